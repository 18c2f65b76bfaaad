"""Stale index entries and ended waiters delay no worker."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.core import keys
from interlock.errors import Lapsed
from interlock.nouns.tasks import task_outcomes
from interlock.store import Put, Range, Ref, Snapshot, Txn
from interlock.testing.testbed import Client, Stepper, Testbed


@pytest.fixture(params=["local", "remote"])
def ada(request: pytest.FixtureRequest) -> Client:
    stage = Testbed()
    return stage.client("ada") if request.param == "local" else stage.remote("ada")


def plant(ada: Client, *puts: Put) -> None:
    ada.store.commit(Txn(id=ada.runner.new_id("txn"), entry=b"{}", puts=puts))


def standing(ada: Client, prefix: str) -> list[str]:
    page = Range(prefix)
    return [item.key for item in ada.store.read(page).ranges[page]]


def test_places_of_tasks_that_are_not_ready_hide_nothing_and_go_away(ada: Client) -> None:
    ada.run(ada.tasks.publish("over"))
    ada.run(ada.tasks.claim("over"))
    ada.run(ada.tasks.complete("over"))
    puts = [Put(keys.ready("-", 0, number, "over"), b"{}") for number in range(1, 10)]
    plant(ada, *puts, Put(keys.ready("-", 0, 1.0, "never"), b"{}"))
    ada.run(ada.tasks.publish("mine"))
    got = ada.run(ada.tasks.next())
    assert isinstance(got, task_outcomes.Claimed)
    assert got.task == "mine"
    assert isinstance(ada.run(ada.tasks.next()), task_outcomes.NoTask)
    assert standing(ada, keys.READY) == []


def test_a_time_that_came_for_nobody_hides_nothing_and_goes_away(ada: Client) -> None:
    plant(ada, Put(keys.due(1.0, "never"), b"{}"))
    ada.run(ada.tasks.publish("mine"))
    assert isinstance(ada.run(ada.tasks.next()), task_outcomes.Claimed)
    assert standing(ada, keys.DUE) == []


def test_who_waits_for_work_is_told_that_its_session_is_over(ada: Client) -> None:
    ada.context.no_retry = True
    waits = ada.start(ada.tasks.next(wait=60))
    ada.clock.advance(31)
    with pytest.raises(Lapsed):
        waits.run().result()


def test_who_waits_for_work_goes_on_with_another_session(ada: Client) -> None:
    session = ada.session
    waits = ada.start(ada.tasks.next(wait=60))
    ada.clock.advance(31)
    waits.run()
    assert ada.session != session
    ada.run(ada.tasks.publish("t1"))
    claimed = waits.run().result()
    assert isinstance(claimed, task_outcomes.Claimed)
    assert ada.run(ada.tasks.complete("t1"))


def test_who_waits_for_long_looks_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Testbed()
    ada = stage.client("ada", ttl=100_000.0)
    reads = []
    read = stage.store.read

    def counted(*refs: Ref, **options: Any) -> Snapshot:
        reads.append(refs)
        return read(*refs, **options)

    monkeypatch.setattr(stage.store, "read", counted)
    assert isinstance(ada.run(ada.tasks.next(can=["*"], wait=3600)), task_outcomes.NoTask)
    assert len(reads) < 3600 / 20 + 20


def test_two_calls_at_once_both_find_tasks_of_a_kind_that_is_new_to_them() -> None:
    stage = Testbed()
    ada, bob = stage.client("ada"), stage.remote("bob")
    bob.run(bob.tasks.next(can=["rust"]))
    for number in range(5):
        ada.run(ada.tasks.publish(f"t{number}", requires=["rust"]))
    calls = [Stepper(bob.tasks.next(can=["rust"]), bob.store, bob.clock) for _ in range(2)]
    while not all(call.done for call in calls):
        for call in calls:
            call.go()
    assert [type(call.result()) for call in calls] == [task_outcomes.Claimed, task_outcomes.Claimed]


def test_many_that_are_too_late_or_due_cost_one_who_asks_for_work_little(ada: Client) -> None:
    for number in range(100):
        ada.run(ada.tasks.publish(f"late{number}", priority=1, deadline=1))
        ada.run(ada.tasks.publish(f"due{number}", priority=9, not_before=1))
    ada.run(ada.tasks.publish("mine"))
    ada.clock.advance(2)
    before = ada.store.read().revision
    got = ada.run(ada.tasks.next())
    assert isinstance(got, task_outcomes.Claimed)
    assert got.task == "mine"
    assert ada.store.read().revision - before < 25


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize(("failed", "at_most"), [(True, 1.5), (False, 3.6)])
def test_who_waits_for_work_looks_as_soon_as_a_rest_is_over(
    far: bool, failed: bool, at_most: float
) -> None:
    stage = Testbed()
    ada = stage.remote("ada", ttl=600.0) if far else stage.client("ada", ttl=600.0)
    bob = stage.client("bob", ttl=None)
    ada.run(ada.tasks.publish("t"))
    claim = bob.run(bob.tasks.claim("t", ttl=2))
    assert isinstance(claim, task_outcomes.Claimed)
    waits = ada.start(ada.tasks.next(wait=60))
    began = stage.clock.monotonic()
    if failed:
        bob.run(bob.tasks.fail("t", token=claim.token))
    while not waits.run().done:
        stage.clock.advance(max(0.0, waits.wakes - stage.clock.monotonic()))
    assert isinstance(waits.result(), task_outcomes.Claimed)
    assert stage.clock.monotonic() - began < at_most
