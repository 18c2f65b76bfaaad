from __future__ import annotations

import pytest

from interlock.core import keys
from interlock.nouns.grants.lock import LockAcquired, LockFenced, Reclaimed
from interlock.runtime import refusals
from interlock.runtime.housekeeping import HousekeepingPass, Maintained
from interlock.runtime.identity import Actor
from interlock.store import Range
from interlock.testing.audit import audit
from interlock.testing.testbed import Client, Stepper, Testbed


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


def maintain(client: Client, bound: int = 1000) -> Maintained:
    return client.run(HousekeepingPass(client.runner).run(Actor("keeper"), bound))


def crowd(stage: Testbed, count: int) -> None:
    """Agents that each held a lock and are gone."""
    for number in range(count):
        agent = stage.client(f"agent-{number}", ttl=1.0)
        agent.run(agent.locks.acquire(f"lock-{number}"))
    stage.clock.advance(2.0)


def test_maintenance_reclaims_stale_locks_and_lapsed_sessions(stage: Testbed) -> None:
    crowd(stage, 3)
    keeper = stage.client("keeper")
    keeper.run(keeper.locks.acquire("mine"))
    assert maintain(keeper) == Maintained(reclaimed=6)
    assert [lock.lock for lock in keeper.run(keeper.locks.list())] == ["mine"]
    assert [agent.agent for agent in keeper.run(keeper.agents.list())] == ["keeper"]


def test_a_second_pass_finds_nothing_to_do(stage: Testbed) -> None:
    crowd(stage, 2)
    keeper = stage.client("keeper")
    maintain(keeper)
    revision = stage.store.read().revision
    assert maintain(keeper) == Maintained()
    assert stage.store.read().revision == revision


def test_a_pass_is_bounded_and_says_what_is_left(stage: Testbed) -> None:
    crowd(stage, 3)
    keeper = stage.client("keeper")
    assert maintain(keeper, bound=4) == Maintained(reclaimed=4, left=2)
    assert maintain(keeper, bound=4) == Maintained(reclaimed=2)


def test_maintenance_passes_a_lock_on_to_whoever_waits(stage: Testbed) -> None:
    ada, bob = stage.client("ada", ttl=1.0), stage.client("bob")
    ada.run(ada.locks.acquire("merge"))
    wait = bob.start(bob.locks.acquire("merge", wait=600))
    stage.clock.advance(1.0)
    maintain(stage.client("keeper"))
    outcome = wait.run().result()
    assert isinstance(outcome, Reclaimed)
    assert outcome.reclaimed_from == "ada"


def test_what_came_back_to_life_meanwhile_is_left_alone(stage: Testbed) -> None:
    """Between the look and the commit of a pass another one may have been quicker."""
    crowd(stage, 1)
    keeper, bob = stage.remote("keeper"), stage.client("bob")
    hand = Stepper(HousekeepingPass(keeper.runner).run(Actor("keeper")), keeper.store, stage.clock)
    for _ in range(4):
        hand.go()
    assert isinstance(bob.run(bob.locks.acquire("lock-0")), Reclaimed)
    hand.run()
    assert hand.result().reclaimed == 1  # the session, not the lock
    assert bob.run(bob.locks.show("lock-0")).holder == "bob"
    assert audit(stage.store) == []


def test_two_passes_at_once_reclaim_everything_once(stage: Testbed) -> None:
    crowd(stage, 3)
    keepers = [stage.remote("one", ttl=None), stage.remote("two", ttl=None)]
    hands = [
        Stepper(HousekeepingPass(keeper.runner).run(Actor()), keeper.store, stage.clock)
        for keeper in keepers
    ]
    while not all(hand.done for hand in hands):
        for hand in hands:
            hand.go()
    assert sum(hand.result().reclaimed for hand in hands) == 6
    assert audit(stage.store) == []


def test_a_call_of_maintain_also_sweeps_a_local_store(stage: Testbed) -> None:
    crowd(stage, 1)
    keeper = stage.client("keeper")
    keeper.run(keeper.fleet.maintain())
    assert stage.store.sweep() == 0
    assert isinstance(keeper.run(keeper.locks.acquire("lock-0")), LockAcquired)


def test_refusals_that_were_counted_are_forgotten_a_day_after_the_last(stage: Testbed) -> None:
    keeper = stage.client("keeper")
    for name in ("ada", "bob"):
        client = stage.client(name)
        client.run(refusals.count(client.runner, Actor(name), "limited"))
        stage.clock.advance(refusals.OLD / 2 + refusals.MINUTE)
    keeper.run(HousekeepingPass(keeper.runner).run(Actor("keeper")))
    left = stage.store.read(page := Range(keys.refusal_counts())).ranges[page]
    assert [item.key for item in left] == [keys.refusal_counts("bob")]


def test_a_client_remembers_no_more_of_its_grants_than_it_may_have(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.runtime.callers.MOST_REMEMBERED", 2)
    ada = stage.client("ada", ttl=10_000)
    for number in range(4):
        assert isinstance(ada.run(ada.locks.acquire(f"l{number}", ttl=1)), LockAcquired)
    assert set(ada.context.grants.own.pools() or ()) == {
        keys.lock(f"l{number}") for number in range(4)
    }
    for number in range(4, 8):
        ada.run(ada.locks.acquire(f"l{number}", ttl=1))
    assert ada.context.grants.own.pools() is None, "it looks for them from now on"


def test_a_client_does_not_remember_a_grant_that_it_was_told_is_over(stage: Testbed) -> None:
    ada = stage.client("ada", ttl=10_000)
    got = ada.run(ada.locks.acquire("merge", ttl=1))
    assert isinstance(got, LockAcquired)
    stage.clock.advance(2)
    assert isinstance(ada.run(ada.locks.release("merge", token=got.token)), LockFenced)
    assert ada.context.grants.own.pools() == set()
