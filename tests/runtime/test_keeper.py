from __future__ import annotations

import pytest

from interlock.core import keys
from interlock.core.decision import Write
from interlock.errors import StoreAway
from interlock.nouns.grants.held_grant import HeldPools, take
from interlock.nouns.grants.lock import LockBusy, LockTarget, Reclaimed
from interlock.nouns.grants.request import GrantTerms
from interlock.runtime.keeper import IDLE, margin
from interlock.steps import Read
from interlock.testing.testbed import Client, Stepper, Testbed


def hold(client: Client, **terms: float) -> HeldPools:
    wanted = GrantTerms(
        wait=terms.get("wait", 0),
        ttl=terms.get("ttl"),
        max_hold=terms.get("max_hold"),
        metadata=None,
        given=(),
    )
    return client.run(take(client.context, LockTarget("merge"), None, wanted))


@pytest.mark.parametrize("ttl", [0.5, 3.0, 30.0, 900.0])
def test_a_holder_gives_up_before_the_store_lets_anybody_else_in(ttl: float) -> None:
    stage = Testbed()
    ada, bob = stage.client("ada", ttl=ttl), stage.client("bob", ttl=86400.0)
    held = hold(ada)
    stage.clock.advance(ttl - margin(ttl) - 0.001)
    assert not held.lost()
    stage.clock.advance(0.002)
    assert held.lost()
    assert isinstance(bob.run(bob.locks.acquire("merge")), LockBusy)
    stage.clock.advance(margin(ttl))
    assert isinstance(bob.run(bob.locks.acquire("merge")), Reclaimed)


def test_a_lease_counts_from_when_its_request_was_sent(stage: Testbed) -> None:
    ada = stage.remote("ada", ttl=30.0)
    sent = stage.clock.monotonic()
    beat = Stepper(ada.context.keeper.beat(), ada.store, stage.clock)
    while not beat.done:
        stage.clock.advance(3.0)  # every step is slow
        beat.go()
    lease = ada.context.session_lease
    assert lease is not None
    assert lease.ends == sent + 30.0 - margin(30.0)


def test_a_beat_renews_all_leases_in_one_quiet_commit(stage: Testbed) -> None:
    ada = stage.client("ada")
    held = hold(ada, ttl=12.0)
    before = stage.store.read()
    stage.clock.advance(10.0)
    ada.run(ada.context.keeper.beat())
    after = stage.store.read(keys.live(ada.session), keys.live(held.grant.grant))
    assert after.revision == before.revision + 1
    assert [item and item.expires_in for item in after.items.values()] == [30.0, 12.0]
    assert not held.lost()


def test_renewals_leave_time_for_a_second_try_within_the_shortest_ttl(stage: Testbed) -> None:
    ada = stage.client("ada")
    assert ada.context.keeper.wait() == 12.0
    hold(ada, ttl=5.0)
    assert ada.context.keeper.wait() == 2.0
    stage.clock.advance(5.0)
    assert ada.context.keeper.wait() == 0.0


def test_a_grant_that_the_store_forgot_is_lost_though_the_session_lives(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    told: list[str] = []
    terms = GrantTerms(wait=0, ttl=None, max_hold=None, metadata=None, given=())
    held = ada.run(take(ada.context, LockTarget("merge"), lambda: told.append("lost"), terms))
    kept = ada.run(take(ada.context, LockTarget("other"), None, terms))
    ada.run(ada.context.keeper.beat())
    assert not held.lost()
    # As a restored copy would: the lock is gone, the session is there.
    bob.run(
        bob.context.grants.release(
            ada.context.identity.actor, LockTarget("merge"), token=held.grant.token
        )
    )
    stage.clock.advance(12.0)
    ada.run(ada.context.keeper.beat())
    assert held.lost()
    assert told == ["lost"]
    assert not kept.lost()
    stage.clock.advance(12.0)
    ada.run(held.end())
    ada.run(ada.context.keeper.beat())
    assert told == ["lost"]


def test_without_leases_there_is_nothing_to_do(stage: Testbed) -> None:
    idle = stage.client("ada", ttl=None)
    assert idle.context.keeper.wait() == IDLE
    revision = stage.store.read().revision
    idle.run(idle.context.keeper.beat())
    assert stage.store.read().revision == revision


def test_a_lease_that_the_store_forgot_is_lost_at_the_next_beat(stage: Testbed) -> None:
    ada = stage.client("ada")
    lost: list[str] = []
    lease = ada.context.keeper.keep(Write("live/gone", {}, 60.0), stage.clock.monotonic())
    lease.listeners.append(lambda: lost.append("gone"))
    ada.run(ada.context.keeper.beat())
    ada.run(ada.context.keeper.beat())
    assert lost == ["gone"]
    assert not lease.alive()
    assert ada.context.session_lease is not None
    assert ada.context.session_lease.alive()


def test_a_lease_whose_time_is_over_is_given_up_once(stage: Testbed) -> None:
    ada = stage.client("ada", ttl=30.0)
    lost: list[str] = []
    assert ada.context.session_lease is not None
    ada.context.session_lease.listeners.append(lambda: lost.append("session"))
    stage.clock.advance(30.0 - margin(30.0) - 0.01)
    ada.context.keeper.expire()
    assert lost == []
    stage.clock.advance(0.01)
    ada.context.keeper.expire()
    ada.context.keeper.expire()
    assert lost == ["session"]


def test_an_expired_lease_is_not_renewed_though_the_store_would(stage: Testbed) -> None:
    ada = stage.client("ada", ttl=30.0)
    stage.clock.advance(29.0)
    revision = stage.store.read().revision
    ada.run(ada.context.keeper.beat())
    assert stage.store.read().revision == revision
    assert ada.context.session_lease is not None
    assert not ada.context.session_lease.alive()


def test_a_beat_that_cannot_reach_the_store_extends_nothing(stage: Testbed) -> None:
    ada = stage.remote("ada", ttl=30.0)
    lease = ada.context.session_lease
    assert lease is not None
    ends = lease.ends
    stage.clock.advance(10.0)
    beat = Stepper(ada.context.keeper.beat(), ada.store, stage.clock)
    beat.interrupt(StoreAway("cut off"))
    assert lease.ends == ends
    assert lease.alive()


def test_a_maximum_hold_ends_the_block_however_often_it_beats(stage: Testbed) -> None:
    ada = stage.client("ada")
    held = hold(ada, ttl=12.0, max_hold=20.0)
    for _ in range(2):
        stage.clock.advance(8.0)
        ada.run(ada.context.keeper.beat())
        assert not held.lost()
    stage.clock.advance(4.0 - margin(20.0))
    ada.run(ada.context.keeper.beat())
    assert held.lost()
    bob = stage.client("bob")
    assert isinstance(bob.run(bob.locks.acquire("merge")), LockBusy)
    stage.clock.advance(margin(20.0))
    assert isinstance(bob.run(bob.locks.acquire("merge")), Reclaimed)


@pytest.mark.parametrize("terms", [{"ttl": 600.0}, {"max_hold": 600.0}])
def test_a_grant_that_came_while_we_waited_counts_from_its_own_beginning(
    stage: Testbed, terms: dict[str, float]
) -> None:
    ada, bob = stage.client("ada", ttl=86400.0), stage.client("bob", ttl=86400.0)
    first = hold(ada)
    wanted = GrantTerms(
        wait=3600, ttl=terms.get("ttl"), max_hold=terms.get("max_hold"), metadata=None, given=()
    )
    taking = bob.start(take(bob.context, LockTarget("merge"), None, wanted))
    stage.clock.advance(60.0)
    ada.run(first.release())
    stage.clock.advance(20.0)  # bob is slow to wake
    held = taking.run().result()
    own = stage.store.read(keys.live(held.grant.grant), keys.max_hold(held.grant.grant))
    (left,) = (item.expires_in for item in own.items.values() if item is not None)
    assert left is not None
    stage.clock.advance(left - margin(600.0) - 0.001)
    assert not held.lost()
    stage.clock.advance(0.002)
    assert held.lost()


def test_a_grant_that_ended_before_we_could_look_is_not_handed_out(stage: Testbed) -> None:
    ada, bob = stage.client("ada", ttl=86400.0), stage.client("bob", ttl=86400.0)
    first = hold(ada)
    wanted = GrantTerms(wait=3600, ttl=None, max_hold=5.0, metadata=None, given=())
    taking = Stepper(
        take(bob.context, LockTarget("merge"), None, wanted), bob.store, stage.clock
    ).run()
    stage.clock.advance(60.0)
    ada.run(first.release())
    slept = len(taking.steps)
    while not any(isinstance(step, Read) for step in taking.steps[slept:]):
        taking.go()
    stage.clock.advance(10.0)  # it was given the lock, and is stopped before it asks for how long
    held = taking.run().result()
    assert not held.lost(), "that one was given back, and another taken"
    assert bob.run(bob.locks.show("merge")).token == held.grant.token


@pytest.fixture
def stage() -> Testbed:
    return Testbed()
