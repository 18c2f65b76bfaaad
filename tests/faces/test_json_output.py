"""JSON is complete and even, does nothing to a terminal, and is as its schema says."""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec
import pytest
from msgspec import Struct
from msgspec import inspect as kinds
from tests.faces.shell import Here
from tests.for_each import for_each
from tests.schemas import check, errors

from interlock import registry
from interlock.core.outcomes import Listing
from interlock.faces.json_output import DURATIONS, complete, encoded, iso, members
from interlock.faces.schema import all_schemas, schema
from interlock.nouns.grants.lock import LockAcquired, LockBusy
from interlock.nouns.schedules.schedule import ScheduleView
from interlock.runtime.operation import Operation

TABLE = registry.operations()
LOOKS = ("check", "list", "show", "log", "verify", "explain", "info", "health", "doctor", "why",
         "observe", "schema", "bench", "shared", "watch")  # fmt: skip
"""Operations that change nothing."""
EXACT = {
    "added_cost", "avg_execution_time_ms", "avg_latency_ms", "confidence", "conflict_bound",
    "conflict_rate", "cost", "floor", "le", "limit_cost", "message_throughput_per_sec", "p50",
    "p95", "p99", "progress",
    "rate", "ratio", "slots_seconds", "sum", "time_diff_ms", "timeout_bound", "timeout_rate",
    "took", "total_cost", "ttl", "value",
}  # fmt: skip
"""Numbers that are not rounded: what a commit took, and what was measured."""
SAMPLE = LockBusy(lock="m", holder="ada", since=1794804901.18812, expires_in=12.3456789)


def structs(kind: kinds.Type, above: tuple[type[Struct], ...] = ()) -> Iterator[type[Struct]]:
    """The structs in an answer; one that may contain others of its own kind is looked at once."""
    match kind:
        case kinds.StructType(cls=cls, fields=fields) if cls not in above:
            yield cls
            for field in fields:
                yield from structs(field.type, (*above, cls))
        case kinds.UnionType(types=types):
            for each in types:
                yield from structs(each, above)
        case kinds.VarTupleType(item_type=item):
            yield from structs(item, above)
        case _:
            pass


def answers() -> set[type[Struct]]:
    every = [each for operation in TABLE for each in (*operation.outcomes, *operation.lines)]
    return {kind for each in every if each is not dict for kind in structs(kinds.type_info(each))}


def test_no_field_is_left_out_at_its_default() -> None:
    granted = complete(LockAcquired(lock="m", holder="ada"))
    assert granted == {
        "outcome": "acquired", "lock": "m", "holder": "ada", "token": None, "expires_in": None,
        "grant": "",
    }  # fmt: skip


def test_a_moment_has_its_iso_8601_beside_it_and_a_duration_at_most_milliseconds() -> None:
    told = complete(SAMPLE)
    assert isinstance(told, dict)
    assert told["since"] == 1794804901.18812
    assert told["since_iso"] == "2026-11-16T04:55:01.188Z"
    assert told["expires_in"] == 12.346


def test_moments_have_their_iso_8601_each_and_a_deadline_after_each_run_is_a_duration() -> None:
    view = ScheduleView(
        schedule="s", state="active", when="every 1 h", missed="once", task={},
        next_runs=(1794804901.0, 1794808501.0), deadline_in=90.0,
    )  # fmt: skip
    told = complete(view)
    assert isinstance(told, dict)
    assert told["next_runs_iso"] == ["2026-11-16T04:55:01.000Z", "2026-11-16T05:55:01.000Z"]
    assert told["deadline_in"] == 90.0
    assert "deadline_in_iso" not in told
    check("schedule show", json.loads(encoded(view)))


@pytest.mark.parametrize("moment", [None, 0.0, 1e300, -1e300])
def test_a_moment_that_is_none_has_no_iso_8601(moment: float | None) -> None:
    assert iso(moment) is None


def test_every_number_is_a_moment_a_duration_or_known_to_be_exact() -> None:
    """The author of a new one declares it in ``json_output.py``."""
    for kind in answers():
        info = kinds.type_info(kind)
        assert isinstance(info, kinds.StructType)
        sorts = {member.attribute: member.sort for member in members(kind)}
        for field in info.fields:
            inner = field.type.types if isinstance(field.type, kinds.UnionType) else (field.type,)
            if any(isinstance(each, kinds.FloatType) for each in inner):
                known = field.name in DURATIONS or sorts[field.name] == "moment"
                assert known or field.name in EXACT, (kind, field.name)


@for_each("operation", TABLE, lambda each: each.name)
def test_what_changes_something_answers_with_an_outcome(operation: Operation) -> None:
    changes = operation.name.split()[-1] not in LOOKS and operation.act is not None
    for each in operation.outcomes if changes else ():
        reads = operation.name == "inbox" and each.__name__ == "Inbox"
        reads |= operation.name == "subscribe" and each.__name__ == "SubscriptionList"
        reads |= operation.name == "request audit" and each.__name__ == "AuditList"
        config = getattr(each, "__struct_config__", None)
        assert reads or (config and config.tag_field == "outcome"), each


@for_each("operation", TABLE, lambda each: each.name)
def test_a_list_has_its_name_and_a_count(operation: Operation) -> None:
    lists = [each for each in operation.outcomes if issubclass(each, Listing)]
    if operation.name.endswith(" list"):
        assert lists
    for each in lists:
        assert each.listed in each.__struct_fields__
        assert [member.name for member in members(each)][-1] == "count"


@pytest.mark.parametrize(
    "sign", ["\x7f", "\x80", "\x9b", "\u200e", "\u202e", "\u2066", "\u2028", "\u2029", "\U000e0001"]
)
def test_characters_that_do_not_print_are_escaped_and_read_as_they_were(sign: str) -> None:
    data = encoded({"text": f"a{sign}b", sign: "grün 日本 😀"})
    assert data.decode().isprintable()
    assert json.loads(data) == {"text": f"a{sign}b", sign: "grün 日本 😀"}
    assert "grün 日本 😀" in data.decode()


def test_what_others_wrote_is_escaped_in_the_json_of_a_command(here: Here) -> None:
    here.run("task", "add", "t", "--data", '"a\u202eb\x9b"', "--agent", "ada")
    done = here.run("task", "show", "t", "--json")
    assert done.out.rstrip("\n").isprintable()
    assert done.json["data"] == "a\u202eb\x9b"


def test_every_command_has_a_schema() -> None:
    found = all_schemas()
    assert list(found) == list(registry.names())
    for name, each in found.items():
        assert each["title"] == f"interlock {name} --json"
        assert msgspec.json.decode(msgspec.json.encode(each)) == each


def test_a_command_prints_the_schema_of_another(here: Here) -> None:
    assert here.json("schema", "lock", "acquire") == (0, schema("lock acquire"))
    assert json.loads(here.run("schema", "lock", "acquire").out) == schema("lock acquire")
    _, every = here.json("schema")
    assert every["count"] == len(every["schemas"]) == len(registry.names())
    assert "interlock schema lock acquire\n" in here.run("schema").out
    assert here.json("schema", "lock", "fly")[1]["error"] == "bad_input"


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, ""),
        ({"holder": 7}, "$.holder is 7"),
        ({"waiters": True}, "$.waiters is True"),
        ({"since_iso": "today"}, "$.since_iso is 'today'"),
        ({"more": 1}, "$.more is not in the schema"),
        ({"holder": ...}, "$.holder is missing"),
        ({"outcome": "acquired"}, "$.token is missing"),
    ],
)
def test_the_check_of_schemas_finds_what_is_wrong(change: dict[str, object], wrong: str) -> None:
    answer = json.loads(encoded(SAMPLE)) | change
    answer = {name: value for name, value in answer.items() if value is not ...}
    found = "".join(errors(answer, schema("lock acquire"), schema("lock acquire")))
    assert wrong in found
    assert bool(found) == bool(wrong)
    if wrong:
        with pytest.raises(AssertionError, match="interlock lock acquire --json"):
            check("lock acquire", answer)
