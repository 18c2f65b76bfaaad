"""The fields of a grant, and the proof that another commit can carry."""

from __future__ import annotations

import pytest

from interlock.core.outcomes import GivenFenced
from interlock.errors import BadInput
from interlock.nouns.grants.held_grant import take
from interlock.nouns.grants.lock import LockAcquired, LockExtended, LockFenced
from interlock.nouns.grants.request import GrantTerms
from interlock.nouns.grants.semaphore import AlreadyHeld, Increased, SemaphoreView, SlotsAcquired
from interlock.nouns.grants.several import SeveralReleased, target_of
from interlock.testing.testbed import Client, Testbed

TERMS = GrantTerms(wait=60, ttl=None, max_hold=None, metadata=None, given=())


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


@pytest.fixture(params=["near", "far"])
def ada(stage: Testbed, request: pytest.FixtureRequest) -> Client:
    client = stage.client if request.param == "near" else stage.remote
    return client("ada", ttl=600.0)


def test_extending_a_grant_says_how_much_of_its_maximum_is_left(
    stage: Testbed, ada: Client
) -> None:
    got = ada.run(ada.locks.acquire("merge", max_hold=60))
    assert isinstance(got, LockAcquired)
    stage.clock.advance(50.0)
    again = ada.run(ada.locks.acquire("merge", token=got.token))
    assert isinstance(again, LockExtended)
    assert again.expires_in == pytest.approx(10.0)


def test_whoever_wakes_late_is_told_how_much_of_its_maximum_is_left(
    stage: Testbed, ada: Client
) -> None:
    bob = stage.client("bob", ttl=600.0)
    ada.run(ada.locks.acquire("merge"))
    waits = bob.start(bob.locks.acquire("merge", wait=500, max_hold=60))
    ada.run(ada.locks.release("merge"))
    stage.clock.advance(50.0)
    got = waits.run().result()
    assert isinstance(got, LockAcquired)
    assert got.expires_in == pytest.approx(10.0)


def test_slots_that_one_has_are_kept_though_the_capacity_was_lowered(ada: Client) -> None:
    got = ada.run(ada.semaphores.acquire("builds", capacity=3, weight=2))
    assert isinstance(got, SlotsAcquired)
    ada.run(ada.semaphores.resize("builds", 1))
    kept = ada.run(ada.semaphores.acquire("builds", weight=2, token=got.token))
    assert isinstance(kept, AlreadyHeld)
    with pytest.raises(BadInput, match="can never be had"):
        ada.run(ada.semaphores.acquire("builds", weight=3, token=got.token))
    ada.run(ada.semaphores.resize("builds", 3))
    assert isinstance(
        ada.run(ada.semaphores.acquire("builds", weight=3, token=got.token)), Increased
    )


def test_a_proof_of_several_things_is_over_as_soon_as_one_of_them_is(ada: Client) -> None:
    ada.run(ada.semaphores.acquire("builds", capacity=3, weight=1))
    held = ada.run(take(ada.context, target_of(("lock/a", "sem/builds")), None, TERMS))
    proof = ada.run(held.check())
    assert isinstance(ada.run(ada.locks.acquire("b", given=[proof])), LockAcquired)
    assert isinstance(
        ada.run(ada.several.release("sem/builds", token=held.grant.token)), SeveralReleased
    )
    assert isinstance(ada.run(ada.locks.acquire("c", given=[proof])), LockFenced)


def test_a_name_that_repeats_its_kind_is_refused(ada: Client) -> None:
    with pytest.raises(BadInput, match="drop 'lock/' from 'lock/merge'"):
        ada.run(ada.locks.acquire("lock/merge"))
    with pytest.raises(BadInput, match="drop 'sem/'"):
        ada.run(ada.semaphores.acquire("sem/builds", capacity=2))


def test_what_one_has_is_given_back_whole(ada: Client) -> None:
    ada.run(ada.semaphores.acquire("builds", capacity=3, weight=2))
    with pytest.raises(BadInput, match="you have 2 of sem/builds"):
        ada.run(ada.several.release("sem/builds=1"))
    assert isinstance(ada.run(ada.several.release("sem/builds=2")), SeveralReleased)


def served_at_once(stage: Testbed, *names: str) -> list[tuple[Client, SlotsAcquired]]:
    """Clients that waited for a slot each, and one release that made room for all of them."""
    holder = stage.client("holder")
    holder.run(holder.semaphores.acquire("s", weight=len(names), capacity=len(names)))
    clients = [stage.client(name) for name in names]
    waits = [client.start(client.semaphores.acquire("s", wait=600)) for client in clients]
    holder.run(holder.semaphores.release("s"))
    got = [wait.run().result() for wait in waits]
    return [
        (client, outcome)
        for client, outcome in zip(clients, got, strict=True)
        if isinstance(outcome, SlotsAcquired)
    ]


def test_two_sessions_of_one_name_never_share_a_token() -> None:
    """So neither can give back or renew the slots of the other."""
    stage = Testbed()
    (one, first), (_, second) = served_at_once(stage, "bob", "bob")
    assert first.token != second.token
    one.run(one.semaphores.release("s", token=first.token))
    shown = one.run(one.semaphores.show("s"))
    assert isinstance(shown, SemaphoreView)
    assert [holder.token for holder in shown.holders] == [second.token]


def test_slots_of_several_agents_that_one_commit_granted_share_a_token() -> None:
    """And the token of an agent that gave its slots back proves nothing about the others."""
    stage = Testbed()
    (bob, first), (cleo, second) = served_at_once(stage, "bob", "cleo")
    assert first.token == second.token
    given = [f"sem/s={first.token}"]
    assert isinstance(bob.run(bob.locks.acquire("a", given=given)), LockAcquired)
    bob.run(bob.semaphores.release("s", token=first.token))
    assert isinstance(bob.run(bob.locks.acquire("b", given=given)), LockFenced)
    assert isinstance(cleo.run(cleo.locks.acquire("b", given=given)), LockAcquired)
    published = bob.run(bob.tasks.publish("t", given=given))
    assert isinstance(published, GivenFenced)
