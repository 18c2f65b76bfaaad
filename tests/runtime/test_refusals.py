"""When a wait is refused, what it stands on, what it leaves behind, and what it costs."""

from __future__ import annotations

import time
from typing import Any

import pytest
from msgspec.structs import replace

from interlock.core import keys
from interlock.errors import Deadlocked
from interlock.nouns.grants.held_grant import take
from interlock.nouns.grants.lock import (
    LockAcquired,
    LockDeadlock,
    LockReleased,
    LockTarget,
    Reclaimed,
)
from interlock.nouns.grants.pool import Grant, Pool, Waiter
from interlock.nouns.grants.pool_reader import decode_pool
from interlock.nouns.grants.pool_wait import wait_target
from interlock.nouns.grants.request import GrantTerms
from interlock.nouns.grants.semaphore import SlotsDeadlock
from interlock.runtime.reads import outside
from interlock.runtime.wait_graph import Graph, KnownTargets, Start
from interlock.steps import Commit, OpenWatch, Read
from interlock.store import Range
from interlock.testing.testbed import Client, Stepper, Testbed

TERMS = GrantTerms(wait=3600, ttl=None, max_hold=None, metadata=None, given=())


class Near(Testbed):
    """Everybody in one process."""

    def join(self, agent: str, ttl: float = 30.0) -> Client:
        return self.client(agent, ttl=ttl)


class Far(Near):
    """Everybody across a network."""

    def join(self, agent: str, ttl: float = 30.0) -> Client:
        return self.remote(agent, ttl=ttl)


@pytest.fixture(params=["near", "far"])
def stage(request: pytest.FixtureRequest) -> Near:
    """On a local engine, and across a network."""
    return Near() if request.param == "near" else Far()


def crossed(stage: Near, ttl: float = 30.0) -> tuple[Client, Client, Stepper[Any]]:
    """Ada has a and waits for b, which bob has."""
    ada, bob = stage.join("ada", ttl=ttl), stage.join("bob", ttl=30.0)
    ada.run(ada.locks.acquire("a"))
    bob.run(bob.locks.acquire("b"))
    return ada, bob, ada.start(ada.locks.acquire("b", wait=600))


def listed(stage: Testbed) -> list[str]:
    waits = Range(keys.WAITS)
    return [item.key for item in stage.store.read(waits).ranges[waits]]


def waiter(client: Client, lock: str) -> Waiter:
    pool = decode_pool(client.store.read(keys.lock(lock))[keys.lock(lock)], 0)
    assert pool is not None
    return pool.waiters[0]


def test_the_wait_that_closes_a_circle_is_refused_and_leaves_nothing_behind(stage: Near) -> None:
    ada, bob, waits = crossed(stage)
    outcome = bob.run(bob.locks.acquire("a", wait=600))
    assert isinstance(outcome, LockDeadlock)
    assert outcome.cycle == ("bob", "ada")
    assert ada.run(ada.locks.show("a")).waiters == ()
    assert {keys.id_of(key) for key in listed(stage)} == {waiter(ada, "b").id}
    assert isinstance(bob.run(bob.locks.release("b")), LockReleased)
    assert isinstance(waits.run().result(), LockAcquired)
    assert listed(stage) == []


def test_a_block_that_would_wait_for_ever_raises_who_is_in_the_circle(stage: Near) -> None:
    _, bob, _ = crossed(stage)
    with pytest.raises(Deadlocked, match="bob -> ada -> bob") as refused:
        bob.run(take(bob.context, LockTarget("a"), None, TERMS))
    assert isinstance(refused.value.outcome, LockDeadlock)
    assert refused.value.outcome.cycle == ("bob", "ada")


def test_two_who_close_a_circle_at_the_same_moment_are_not_both_refused(stage: Near) -> None:
    ada, bob = stage.join("ada"), stage.join("bob")
    ada.run(ada.locks.acquire("a"))
    bob.run(bob.locks.acquire("b"))
    one = Stepper(ada.locks.acquire("b", wait=600), ada.store, stage.clock)
    two = Stepper(bob.locks.acquire("a", wait=600), bob.store, stage.clock)
    while any([one.go(), two.go()]):
        pass
    assert [one.done, two.done].count(True) == 1
    loser, client = (one, ada) if one.done else (two, bob)
    assert isinstance(loser.result(), LockDeadlock)
    client.run(client.agents.leave())
    winner = two if loser is one else one
    assert isinstance(winner.run().result(), LockAcquired)


@pytest.mark.parametrize("steps", range(12))
def test_a_holder_that_gives_back_at_the_same_moment_refuses_nobody(
    stage: Near, steps: int
) -> None:
    """Whatever bob has read by then: ada leaves the circle, so there is none at his commit."""
    ada, bob, waits = crossed(stage)
    hand = Stepper(bob.locks.acquire("a", wait=600), bob.store, stage.clock)
    for _ in range(steps):
        hand.go()
    refused = hand.done
    waits.interrupt(KeyboardInterrupt())
    ada.run(ada.locks.release("a"))
    assert isinstance(hand.run().result(), LockDeadlock if refused else LockAcquired)


@pytest.mark.parametrize("steps", range(12))
def test_a_member_that_lapses_meanwhile_refuses_nobody(stage: Near, steps: int) -> None:
    _, bob, _ = crossed(stage, ttl=5.0)
    hand = Stepper(bob.locks.acquire("a", wait=600), bob.store, stage.clock)
    for _ in range(steps):
        hand.go()
    refused = hand.done
    stage.clock.advance(6.0)
    bob.run(bob.context.keeper.beat())
    while not hand.run().done:
        stage.clock.advance(hand.wakes - stage.clock.monotonic())
    assert isinstance(hand.result(), LockDeadlock if refused else LockAcquired | Reclaimed)


@pytest.mark.parametrize("lapses", [False, True])
@pytest.mark.parametrize("steps", range(12))
def test_a_circle_that_opens_elsewhere_meanwhile_refuses_nobody(
    stage: Near, steps: int, *, lapses: bool
) -> None:
    """Cleo waits for ada, who waits for bob, who waits for cleo, but not for long."""
    ada, bob, cleo = stage.join("ada"), stage.join("bob", ttl=5.0), stage.join("cleo")
    for client, name in ((ada, "a"), (bob, "b"), (cleo, "c")):
        client.run(client.locks.acquire(name))
    ada.start(ada.locks.acquire("b", wait=600))
    waits = bob.start(bob.locks.acquire("c", wait=600))
    hand = Stepper(cleo.locks.acquire("a", wait=600), cleo.store, stage.clock)
    for _ in range(steps):
        hand.go()
    refused = hand.done
    if lapses:
        stage.clock.advance(6.0)
    else:
        waits.interrupt(KeyboardInterrupt())
    assert hand.run().done == refused


def test_a_stranger_who_queues_meanwhile_changes_nothing(stage: Near) -> None:
    ada, bob, _ = crossed(stage)
    eve = stage.join("eve")
    hand = Stepper(bob.locks.acquire("a", wait=600), bob.store, stage.clock)
    for name in ("a", "b"):
        hand.go()
        hand.go()
        hand.go()
        eve.start(eve.locks.acquire(name, wait=600))
    assert isinstance(hand.run().result(), LockDeadlock)
    del ada


def test_a_capacity_that_is_lowered_may_close_a_circle_which_the_next_look_finds(
    stage: Near,
) -> None:
    ada, bob, cleo = (stage.join(name) for name in ("ada", "bob", "cleo"))
    ada.run(ada.semaphores.acquire("s", capacity=3))
    cleo.run(cleo.semaphores.acquire("s", weight=2))
    bob.run(bob.locks.acquire("b"))
    first = ada.start(ada.locks.acquire("b", wait=600))
    second = bob.start(bob.semaphores.acquire("s", weight=2, wait=600))
    assert not second.done
    cleo.run(cleo.semaphores.resize("s", 2))
    cleo.run(cleo.semaphores.release("s"))
    stage.clock.advance(2.0)
    assert isinstance(second.run().result(), SlotsDeadlock)
    bob.run(bob.locks.release("b"))
    assert isinstance(first.run().result(), LockAcquired)


def test_a_killed_waiter_is_no_edge_and_maintenance_clears_what_it_listed(stage: Near) -> None:
    ada, bob, _ = crossed(stage, ttl=5.0)
    stage.clock.advance(6.0)
    bob.run(bob.context.keeper.beat())
    assert isinstance(bob.run(bob.locks.acquire("a", wait=600)), Reclaimed)
    bob.run(bob.locks.release("b"))
    bob.run(bob.fleet.maintain())
    assert listed(stage) == []
    del ada


@pytest.mark.parametrize("how", ["leave", "interrupt", "promoted", "deadline"])
def test_a_wait_that_is_over_is_listed_no_more(stage: Near, how: str) -> None:
    ada, bob, waits = crossed(stage)
    assert len(listed(stage)) == 2, "under the agent, and under the caller, who holds a"
    match how:
        case "leave":
            ada.run(ada.agents.leave())
        case "interrupt":
            waits.interrupt(KeyboardInterrupt())
        case "promoted":
            bob.run(bob.locks.release("b"))
        case _:
            for _ in range(70):
                stage.clock.advance(10.0)
                for client in (ada, bob):
                    client.run(client.context.keeper.beat())
                waits.run()
    assert listed(stage) == []


def test_a_lock_that_we_let_go_of_while_the_store_was_away_is_no_reason(stage: Near) -> None:
    ada = stage.join("ada")
    held = ada.run(take(ada.context, LockTarget("a"), None, TERMS))
    ada.run(ada.locks.acquire("other"))
    ada.context.grants.release_later(ada.context.identity, held.target, held.grant.grant)
    waits = ada.start(ada.locks.acquire("a", wait=600))
    assert isinstance(waits.run().result(), LockAcquired)


@pytest.mark.parametrize("holds", [False, True])
def test_the_look_at_the_graph_comes_with_a_read_that_is_made_anyway(*, holds: bool) -> None:
    stage = Testbed()
    ada, bob = stage.remote("ada"), stage.remote("bob")
    ada.run(ada.locks.acquire("a"))
    bob.run(bob.locks.acquire("b") if holds else bob.runner.base())
    hand = bob.start(bob.locks.acquire("a", wait=600))
    assert [type(step) for step in hand.steps] == [Commit, Commit, OpenWatch, Read]


def test_who_holds_nothing_is_listed_under_its_agent_only() -> None:
    stage = Testbed()
    ada, bob = stage.remote("ada"), stage.remote("bob")
    ada.run(ada.locks.acquire("a"))
    for _ in range(3):
        bob.run(bob.locks.acquire("b"))
        bob.run(bob.locks.release("b"))
    bob.start(bob.locks.acquire("a", wait=600))
    assert listed(stage) == [keys.waits("agent:bob", waiter(bob, "a").id)]


def test_a_thousand_waiters_and_holders_are_read_in_few_steps_and_little_time() -> None:
    """One more waiter behind a thousand, on slots of a thousand holders who wait elsewhere."""
    stage = Testbed()
    ada = stage.remote("ada")
    grants = [_grant(number) for number in range(1000)]
    waiters = [_waiter(number) for number in range(1000)]
    mine = replace(_waiter(1000), id="mine", caller="me")
    pools: dict[str, Pool | None] = {
        keys.semaphore("s"): Pool(tuple(grants), (*waiters, mine), 1000),
        keys.lock("l"): Pool((_grant(5000),), tuple(_waiter(n, f"h{n}") for n in range(1000))),
    }
    known = KnownTargets({key: wait_target(key, pool) for key, pool in pools.items()})
    graph = Graph(0, Start(id="mine", wants=(keys.semaphore("s"),)), known)
    began = time.thread_time()
    hand = Stepper(outside(graph.explore()), ada.store, stage.clock).run()
    assert hand.done
    assert graph.deadlock() is None
    assert len(hand.steps) <= 10, "a hundred lists with each read"
    assert time.thread_time() - began < 10.0


def _grant(number: int) -> Grant:
    return Grant(
        id=f"g{number}",
        agent="a",
        session="s",
        live=(f"live/g{number}",),
        since=0.0,
        token=1,
        caller=f"h{number}",
    )


def _waiter(number: int, caller: str = "") -> Waiter:
    return Waiter(
        id=f"w{caller}{number}",
        agent="a",
        session="s",
        live="live/s",
        since=0.0,
        order=number + 1,
        caller=caller or f"w{number}",
        indexed=bool(caller),
    )
