"""One name for one outcome, and one class for one word."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, Literal, cast, get_origin

import pytest
from msgspec.structs import fields

import interlock
from interlock.core.decision import Outcome, Refusal, Success
from interlock.nouns.record.noun import Verified
from interlock.runtime.health import Health
from interlock.runtime.why import Why
from interlock.stores.memory import MemoryStore

ROOT = Path(interlock.__file__).parent
GRANT = {"holder", "token", "expires_in", "grant"}
SHARED: dict[str, set[str]] = {
    "acquired": GRANT,
    "allowed": set(),
    "answered": set(),
    "away": {"to"},
    "blocked": {"reason", "retry_in", "guard", "leaf", "acts"},
    "broken": {"holder", "token", "reason", "next"},
    "busy": set(),
    "cancelled": set(),
    "completed": {"already", "warned"},
    "deadlock": {"cycle"},
    "defined": set(),
    "denied": set(),
    "dropped": set(),
    "exists": set(),
    "extended": GRANT,
    "failed": set(),
    "fenced": {"token"},
    "full": set(),
    "gone": set(),
    "not_owner": set(),
    "nothing": set(),
    "paused": set(),
    "released": {"later"},
    "resumed": {"already"},
    "sent": {"message", "kind", "to", "type", "thread"},
    "unknown": {"what", "unknown"},
    "waiting": {"before"},
}
"""Each word that several outcomes have, and the fields that all of these have.

Besides these each outcome names its thing by its noun: ``lock``, ``task``, ``things``.
"""


def below(kind: type[Outcome]) -> Iterator[type[Outcome]]:
    for child in kind.__subclasses__():
        yield child
        yield from below(child)


def outcomes() -> list[type[Outcome]]:
    """Every outcome that the product defines."""
    for path in sorted(ROOT.rglob("*.py")):
        if ', tag="' in path.read_text():
            import_module(".".join(("interlock", *path.relative_to(ROOT).with_suffix("").parts)))
    found = [kind for kind in below(Outcome) if kind.__module__.startswith("interlock.")]
    return sorted(set(found), key=lambda kind: (kind.__name__, kind.__module__))


def users() -> dict[str, list[type[Outcome]]]:
    """The outcomes that each word stands for; without a word of its own, a class is above them."""
    found = defaultdict(list)
    for kind in outcomes():
        word = str(kind.__struct_config__.tag)
        if word != kind.__name__:
            found[word].append(kind)
    return found


def called(word: str) -> str:
    return "".join(part.capitalize() for part in word.split("_"))


def plain(kind: object) -> object:
    return str if get_origin(kind) is Literal else kind


def test_no_two_outcomes_have_the_same_name() -> None:
    names = Counter(kind.__name__ for kind in outcomes())
    assert len(names) > 100
    assert [name for name, many in names.items() if many > 1] == []


def test_a_yes_is_true_and_a_no_is_false_as_its_exit_status_says() -> None:
    for kind in [kind for kinds in users().values() for kind in kinds]:
        assert issubclass(kind, Success) != issubclass(kind, Refusal), kind
        assert cast("Any", kind).__bool__(None) is (kind.exit_status == 0), kind


def test_a_condition_tells_a_grant_from_a_refusal() -> None:
    store = MemoryStore()
    with (
        interlock.connect(store=store, agent="ada") as ada,
        interlock.connect(store=store, agent="bob") as bob,
    ):
        bob.tasks.publish("t1")
        calls: tuple[Callable[[interlock.Fleet], object], ...] = (
            lambda fleet: fleet.locks.acquire("deploy"),
            lambda fleet: fleet.semaphores.acquire("builds", capacity=1),
            lambda fleet: fleet.several.acquire("lock/db", "lock/api"),
            lambda fleet: fleet.tasks.claim("t1"),
        )
        for acquire in calls:
            assert acquire(ada)
            assert not acquire(bob)
        assert not bob.tasks.next()
        assert not bob.locks.release("deploy")
        assert ada.locks.release("deploy")
        assert not ada.messages.send("nobody", "hello")


def test_a_report_with_an_exit_status_is_true_if_that_is_0() -> None:
    reports: list[tuple[Health | Verified | Why, bool]] = [
        (Health(healthy=True, problems=()), True),
        (Health(healthy=False, problems=()), False),
        (Verified(integrity="ok", completeness="ok", truncation="unproven", entries=0), True),
        (Verified(integrity="bad", completeness="ok", truncation="ok", entries=1), False),
        (Why(thing="task/t1", blocked=False, because="", clear=""), True),
        (Why(thing="task/t1", blocked=False, because="", clear="", state="unknown"), False),
    ]
    for report, good in reports:
        assert bool(report) is good is (report.exit_status == 0)


def test_every_outcome_of_a_call_is_a_name_of_the_package() -> None:
    """Outcomes beside a declaration belong to the command line alone, as those of ``init`` do."""
    for kind in outcomes():
        if not kind.__module__.endswith("noun"):
            assert getattr(interlock, kind.__name__, None) is kind


def test_a_word_of_several_outcomes_is_a_class_above_them() -> None:
    for word, kinds in users().items():
        if len(kinds) > 1:
            above = getattr(interlock, called(word))
            assert all(issubclass(kind, above) for kind in kinds), word


def test_the_table_has_every_word_of_several_outcomes() -> None:
    assert {word for word, kinds in users().items() if len(kinds) > 1} == set(SHARED)


@pytest.mark.parametrize("word", sorted(SHARED))
def test_whoever_says_a_word_has_its_fields(word: str) -> None:
    kinds = users()[word]
    assert (
        set.intersection(*[{field.encode_name for field in fields(k)} for k in kinds])
        == (SHARED[word])
    )
    every = chain.from_iterable(map(fields, kinds))
    shared = [(f.encode_name, plain(f.type)) for f in every if f.encode_name in SHARED[word]]
    assert len(set(shared)) == len(SHARED[word])


def test_the_http_status_of_an_outcome_agrees_with_its_exit_status() -> None:
    meaning = {0: {200}, 1: {404, 409, 429}, 3: {403, 429}}
    for kind in outcomes():
        if issubclass(kind, Success | Refusal):
            assert kind.http_status in meaning[kind.exit_status], kind
