"""A wait whose time is up says no only because of somebody who lives."""

from __future__ import annotations

import pytest

from interlock.core.outcomes import Granted
from interlock.nouns.grants.lock import LockBusy
from interlock.nouns.grants.semaphore import SlotsFull
from interlock.testing.testbed import Client, Testbed


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


@pytest.fixture(params=["near", "far"])
def bob(request: pytest.FixtureRequest, stage: Testbed) -> Client:
    return stage.client("bob") if request.param == "near" else stage.remote("bob")


def test_the_dead_are_no_reason_to_refuse_a_lock(stage: Testbed, bob: Client) -> None:
    ada = stage.client("ada")
    ada.run(ada.locks.acquire("merge", ttl=2))
    wait = bob.start(bob.locks.acquire("merge", wait=2.5))
    stage.clock.advance(3)
    assert isinstance(wait.run().result(), Granted)


def test_the_dead_are_no_reason_to_refuse_slots_however_many_they_are(
    stage: Testbed, bob: Client
) -> None:
    ada = stage.client("ada")
    for _ in range(9):
        ada.run(ada.semaphores.acquire("builds", capacity=9, ttl=2))
        ada.someone = type(ada.someone)(ada.runner.new_id("tsk"))
    wait = bob.start(bob.semaphores.acquire("builds", wait=2.5))
    stage.clock.advance(3)
    assert isinstance(wait.run().result(), Granted)


def test_the_living_are(stage: Testbed, bob: Client) -> None:
    ada = stage.client("ada")
    ada.run(ada.locks.acquire("merge"))
    ada.run(ada.semaphores.acquire("builds", capacity=1))
    lock = bob.start(bob.locks.acquire("merge", wait=2.5))
    slot = bob.start(bob.semaphores.acquire("builds", wait=2.5))
    stage.clock.advance(3)
    assert isinstance(lock.run().result(), LockBusy)
    assert isinstance(slot.run().result(), SlotsFull)
