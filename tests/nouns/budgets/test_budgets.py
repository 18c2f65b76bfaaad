"""Budgets: usage is counted once, and a limit refuses claims with the figure."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from interlock.errors import BadInput, NotAllowed
from interlock.nouns.budgets import budget as core
from interlock.nouns.budgets import transcripts
from interlock.nouns.budgets.budget import TokenUsage, TranscriptPlace
from interlock.nouns.tasks.task_outcomes import Claimed, NoTask
from interlock.testing.audit import audit
from interlock.testing.testbed import Client, Stepper, Testbed


def claude(id_: str, output: int, **more: Any) -> bytes:
    usage = {"input_tokens": 10, "output_tokens": output, "cache_read_input_tokens": 100, **more}
    line = {"type": "assistant", "message": {"id": id_, "usage": usage}}
    return json.dumps(line).encode() + b"\n"


def codex(total: int, cached: int = 0) -> bytes:
    usage = {"input_tokens": total, "cached_input_tokens": cached, "output_tokens": 1}
    info = {"total_token_usage": usage}
    return json.dumps({"payload": {"type": "token_count", "info": info}}).encode() + b"\n"


@pytest.fixture
def bed() -> Testbed:
    return Testbed()


@pytest.fixture(params=["local", "network"])
def ada(request: pytest.FixtureRequest, bed: Testbed) -> Client:
    return (bed.client if request.param == "local" else bed.remote)("ada", ttl=10_000_000.0)


def counted(client: Client, path: Path, **more: Any) -> int:
    done = client.run(client.fleet.budgets.count(transcript=path, **more))
    assert isinstance(done, core.SpendingCounted)
    return done.added


def spent(client: Client, thing: str) -> int:
    found = client.run(client.fleet.budgets.show(thing))
    return sum(each.tokens for each in found)


def test_a_message_that_is_written_several_times_counts_once_with_its_last_usage() -> None:
    lines = [claude("a", 1), claude("b", 5), claude("a", 7), claude("a", 7), b"{broken\n", b"[]\n"]
    whole, place = transcripts.counted(lines, TranscriptPlace())
    assert whole == TokenUsage(input=20, output=12, cache_read=200)
    assert place.offset == sum(map(len, lines))
    parts, at = core.NO_USAGE, TranscriptPlace()
    for line in lines:
        added, at = transcripts.counted([line], at)
        parts = parts.plus(added)
    assert (parts, at) == (whole, place)


def test_totals_of_codex_count_by_their_difference_and_begin_again_with_a_session() -> None:
    added, _ = transcripts.counted([codex(100, 40), codex(150, 40), codex(30)], TranscriptPlace())
    assert added == TokenUsage(input=60 + 50 + 30, output=1 + 0 + 1, cache_read=40)


@pytest.mark.parametrize("odd", [-5, "many", 10**30, None, True, [1]])
def test_odd_numbers_of_a_transcript_count_for_nothing(odd: object) -> None:
    added, _ = transcripts.counted([claude("a", 1, input_tokens=odd)], TranscriptPlace())
    assert added.input in (0, 1)  # a truth value is a number in JSON's eyes of Python
    assert added.output == 1


def test_a_transcript_is_counted_from_where_the_last_call_stopped(
    bed: Testbed, ada: Client, tmp_path: Path
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(claude("a", 1) + claude("b", 2)[:-1])  # its last line is not whole yet
    assert counted(ada, path, task="t1") == 111
    assert counted(ada, path, task="t1") == 0
    with path.open("ab") as file:
        file.write(b"\n" + claude("b", 4))
    assert counted(ada, path) == 114
    path.write_bytes(claude("c", 1))  # another file under the same name
    assert counted(ada, path) == 111
    assert spent(ada, "agent/ada") == 336
    assert spent(ada, "task/t1") == 111
    with pytest.raises(BadInput, match="cannot be read"):
        counted(ada, tmp_path / "nowhere")
    assert audit(bed.store) == []


def test_a_line_longer_than_a_portion_is_skipped_once_it_has_its_end(
    ada: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcripts, "PORTION", 500)
    path = tmp_path / "t.jsonl"
    path.write_bytes(claude("a", 1) + b"x" * 1700 + b"\n" + claude("b", 2) + b"y" * 600)
    assert counted(ada, path) == 223
    assert counted(ada, path) == 0
    with path.open("ab") as file:
        file.write(b"\n\n" + claude("c", 3))
    assert counted(ada, path) == 113


def test_two_readers_of_one_transcript_count_it_once_whatever_their_order(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"".join(claude(f"m{n}", 1) for n in range(3)))
    for number in count():
        bed = Testbed()
        one, two = (bed.remote("ada", ttl=10_000_000.0) for _ in range(2))
        first = Stepper(one.fleet.budgets.count(transcript=path), one.store, bed.clock)
        for _ in range(number):
            first.go()
        over = first.done
        counted(two, path)
        first.run()
        assert spent(two, "agent/ada") == 333, number
        assert audit(bed.store) == []
        if over:
            break
    assert number > 2


def test_a_limit_refuses_claims_with_the_figure_and_others_go_on(bed: Testbed, ada: Client) -> None:
    lead = bed.client("lead", ttl=10_000_000.0)
    for name in ("t1", "t2", "t3"):
        lead.run(lead.tasks.publish(name))
    lead.run(lead.fleet.budgets.set("agent/*", tokens=100))
    got = ada.run(ada.tasks.next())
    assert isinstance(got, Claimed)
    ada.run(ada.fleet.budgets.count(output=150, task=got.task))
    done = ada.run(ada.tasks.complete(got.task, token=got.token))  # what runs goes on
    assert done
    with pytest.raises(NotAllowed, match="150 of 100 tokens are spent"):
        ada.run(ada.tasks.next())
    with pytest.raises(NotAllowed, match="agent/ada is used up"):
        ada.run(ada.tasks.claim("t2"))
    assert isinstance(lead.run(lead.tasks.claim("t2")), Claimed)
    assert [each.kind for each in lead.run(lead.fleet.health()).problems] == ["full"]
    lead.run(lead.fleet.budgets.set("agent/ada", tokens=1000))  # her own limit counts
    assert isinstance(ada.run(ada.tasks.next()), Claimed)
    assert audit(bed.store) == []


@pytest.mark.parametrize(
    ("thing", "limit"),
    [("fleet", {"tokens": 10}), ("task/t", {"cost": "0.5"}), ("fleet", {"cost": 1})],
)
def test_fleets_and_tasks_have_budgets_in_tokens_and_money(
    bed: Testbed, thing: str, limit: dict[str, Any]
) -> None:
    ada, bob = (bed.client(name, ttl=10_000_000.0) for name in ("ada", "bob"))
    bob.run(bob.tasks.publish("t"))
    bob.run(bob.fleet.budgets.set(thing, **limit))
    assert ada.run(ada.fleet.budgets.exceeded(task="t")) == ""
    bob.run(bob.fleet.budgets.count(input=20, cost=1.5, task="t"))
    assert "is used up" in ada.run(ada.fleet.budgets.exceeded(task="t"))
    with pytest.raises(NotAllowed, match="is used up"):
        ada.run(ada.tasks.claim("t"))
    assert ada.run(ada.fleet.budgets.drop(thing))
    assert not ada.run(ada.fleet.budgets.drop(thing))
    assert isinstance(ada.run(ada.tasks.claim("t")), Claimed)


def test_a_limit_that_is_dropped_leaves_the_others_in_force(bed: Testbed, ada: Client) -> None:
    for thing in ("agent/ada", "agent/bob", "fleet"):
        ada.run(ada.fleet.budgets.set(thing, tokens=10))
    ada.run(ada.tasks.publish("t"))
    ada.run(ada.fleet.budgets.count(output=20))
    for thing in ("agent/bob", "agent/ada"):
        assert ada.run(ada.fleet.budgets.drop(thing))
        for client in (ada, bed.client("ada", ttl=10_000_000.0)):
            with pytest.raises(NotAllowed, match="20 of 10 tokens are spent"):
                client.run(client.tasks.claim("t"))
    assert ada.run(ada.fleet.budgets.drop("fleet"))
    assert isinstance(ada.run(ada.tasks.claim("t")), Claimed)


def test_next_passes_over_tasks_whose_own_budget_is_used_up(bed: Testbed, ada: Client) -> None:
    """However many of them are at the head of the queue."""
    lead = bed.client("lead", ttl=10_000_000.0)
    names = [f"t{number:02}" for number in range(40)]
    for name in names:
        lead.run(lead.tasks.publish(name))
    for name in names[:-1]:
        lead.run(lead.fleet.budgets.set(f"task/{name}", tokens=0))
    got = ada.run(ada.tasks.next())
    assert isinstance(got, Claimed)
    assert got.task == names[-1]
    none = ada.run(ada.tasks.next())
    assert isinstance(none, NoTask)
    assert "have used up their budgets" in none.reason
    lead.run(lead.fleet.budgets.set(f"task/{names[7]}", tokens=100))
    got = ada.run(ada.tasks.next())
    assert isinstance(got, Claimed)
    assert got.task == names[7]
    assert audit(bed.store) == []


@pytest.mark.parametrize("name", [None, "t1"])
def test_a_waiter_whose_budget_was_used_up_meanwhile_claims_nothing(
    bed: Testbed, ada: Client, name: str | None
) -> None:
    lead = bed.client("lead", ttl=10_000_000.0)
    lead.run(lead.fleet.budgets.set("agent/ada", tokens=100))
    lead.run(lead.tasks.publish("t0"))
    lead.run(lead.tasks.publish("t1", needs=["t0"]))
    held = lead.run(lead.tasks.claim("t0"))
    assert isinstance(held, Claimed)
    asked = ada.tasks.claim(name, wait=600) if name else ada.tasks.next(wait=600)
    waits = ada.start(asked)
    assert not waits.done
    lead.run(lead.fleet.budgets.count(agent="ada", output=150))
    lead.run(lead.tasks.complete("t0", token=held.token))
    with pytest.raises(NotAllowed, match="150 of 100 tokens"):
        waits.run().result()
    assert isinstance(lead.run(lead.tasks.claim("t1")), Claimed)
    assert audit(bed.store) == []


def test_a_client_that_was_there_before_notices_a_limit_within_a_minute(bed: Testbed) -> None:
    ada, lead = bed.client("ada", ttl=10_000_000.0), bed.client("lead", ttl=10_000_000.0)
    ada.run(ada.tasks.next())
    lead.run(lead.fleet.budgets.set("agent/ada", tokens=0))
    bed.clock.advance(61)
    with pytest.raises(NotAllowed, match="0 of 0 tokens"):
        ada.run(ada.tasks.next())


@pytest.mark.parametrize(
    ("thing", "limit"),
    [("fleet", {}), ("lock/x", {"tokens": 1}), ("fleet", {"tokens": -1}), ("fleet", {"cost": "x"})],
)
def test_a_wrong_limit_is_refused(bed: Testbed, thing: str, limit: dict[str, Any]) -> None:
    ada = bed.client("ada")
    with pytest.raises(BadInput):
        ada.run(ada.fleet.budgets.set(thing, **limit))


def uncounted(client: Client, thing: str, **wrong: Any) -> core.SpendingUncounted:
    done = client.run(client.fleet.budgets.uncount(thing, **wrong))
    assert isinstance(done, core.SpendingUncounted)
    return done


def test_a_false_count_is_taken_back_in_part_or_whole(bed: Testbed, ada: Client) -> None:
    calls = ada.fleet.budgets
    ada.run(calls.set("agent/ada", tokens=500))
    ada.run(calls.count(input=600, output=300, cost=2.5, task="t1"))
    taken = uncounted(ada, "agent/ada", input=500, cost=9, reason="counted twice")
    assert (taken.tokens, taken.cost, taken.total, taken.total_cost) == (500, 2.5, 400, 0.0)
    assert ada.run(calls.exceeded()) == ""
    assert (spent(ada, "task/t1"), spent(ada, "fleet")) == (900, 400)
    assert uncounted(ada, "task/t1").tokens == 900
    revision = ada.store.read().revision
    assert uncounted(ada, "task/t1").tokens == 0
    assert ada.store.read().revision == revision
    ada.run(calls.count(input=1, task="t1"))
    assert (spent(ada, "task/t1"), spent(ada, "fleet")) == (1, 401)
    assert audit(bed.store) == []


@pytest.mark.parametrize("thing", ["fleet", "agent/*", "lock/x", "agent/a\nb"])
def test_only_what_has_a_count_can_be_taken_back(ada: Client, thing: str) -> None:
    with pytest.raises(BadInput):
        ada.run(ada.fleet.budgets.uncount(thing))


@pytest.mark.parametrize("report", [{"input": 10**9 + 1}, {"cache_read": 10**15}, {"cost": 10_001}])
def test_a_report_of_more_than_a_session_can_spend_is_refused(
    ada: Client, report: dict[str, Any]
) -> None:
    with pytest.raises(BadInput, match=r"1,?000,?000,?000|10,000"):
        ada.run(ada.fleet.budgets.count(**report))
