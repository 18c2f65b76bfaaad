"""An expired grant is over for every verb, even before another caller acquires it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from interlock.core import keys, outcomes
from interlock.nouns.grants.lock import LockAcquired, Reclaimed
from interlock.nouns.tasks.task_outcomes import Claimed
from interlock.testing.testbed import Client, Testbed

TTL = 5.0


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


@pytest.fixture(params=["near", "far"])
def ada(request: pytest.FixtureRequest, stage: Testbed) -> Client:
    return stage.client("ada") if request.param == "near" else stage.remote("ada")


TAKES: dict[str, Callable[[Client], Any]] = {
    "lock": lambda c: c.locks.acquire("x", ttl=TTL),
    "sem": lambda c: c.semaphores.acquire("x", capacity=2, ttl=TTL),
    "several": lambda c: c.several.acquire("lock/x", "sem/y=1", ttl=TTL),
    "task": lambda c: c.tasks.claim("x", ttl=TTL),
}
VERBS: dict[tuple[str, str], Callable[[Client, int], Any]] = {
    ("lock", "release"): lambda c, token: c.locks.release("x", token=token),
    ("lock", "beat"): lambda c, token: c.locks.heartbeat("x", token=token),
    ("sem", "release"): lambda c, token: c.semaphores.release("x", token=token),
    ("sem", "beat"): lambda c, token: c.semaphores.heartbeat("x", token=token),
    ("several", "release"): lambda c, token: c.several.release("lock/x", "sem/y", token=token),
    ("task", "release"): lambda c, token: c.tasks.release("x", token=token),
    ("task", "complete"): lambda c, token: c.tasks.complete("x", token=token),
    ("task", "fail"): lambda c, token: c.tasks.fail("x", "why", token=token),
    ("task", "beat"): lambda c, token: c.tasks.heartbeat("x", token=token),
}


@pytest.mark.parametrize(("noun", "verb"), VERBS)
def test_a_lapsed_grant_that_nobody_took_is_fenced(
    stage: Testbed, ada: Client, noun: str, verb: str
) -> None:
    ada.run(ada.tasks.publish("x"))
    if noun == "several":
        ada.run(ada.semaphores.acquire("y", capacity=2, ttl=TTL))
    taken = ada.run(TAKES[noun](ada))
    stage.clock.advance(TTL + 1)
    ada.run(ada.agents.beat())
    outcome = ada.run(VERBS[noun, verb](ada, taken.token))
    assert isinstance(outcome, outcomes.Fenced), outcome
    assert not getattr(outcome, "holder", "")


@pytest.mark.parametrize(("noun", "verb"), VERBS)
def test_a_grant_that_lives_is_heard(stage: Testbed, ada: Client, noun: str, verb: str) -> None:
    ada.run(ada.tasks.publish("x"))
    if noun == "several":
        ada.run(ada.semaphores.acquire("y", capacity=2, ttl=TTL))
    taken = ada.run(TAKES[noun](ada))
    stage.clock.advance(TTL - 1)
    assert not isinstance(ada.run(VERBS[noun, verb](ada, taken.token)), outcomes.Fenced)


def test_the_refusal_passes_a_lapsed_lock_on(stage: Testbed, ada: Client) -> None:
    bob = stage.client("bob")
    taken = ada.run(ada.locks.acquire("x", ttl=TTL))
    waits = bob.start(bob.locks.acquire("x", wait=600))
    stage.clock.advance(TTL + 1)
    for client in (ada, bob):
        client.run(client.agents.beat())
    assert isinstance(taken, LockAcquired)
    outcome = ada.run(ada.locks.release("x", token=taken.token))
    assert isinstance(outcome, outcomes.Fenced)
    assert bob.run(bob.locks.show("x")).holder == "bob"
    assert isinstance(waits.run().result(), Reclaimed)


def test_a_late_completion_is_no_completion(stage: Testbed, ada: Client) -> None:
    ada.run(ada.tasks.publish("x"))
    taken = ada.run(ada.tasks.claim("x", ttl=TTL))
    assert isinstance(taken, Claimed)
    stage.clock.advance(TTL + 1)
    ada.run(ada.agents.beat())
    ada.run(ada.tasks.complete("x", token=taken.token, result={"n": 1}))
    assert ada.run(ada.tasks.show("x")).state == "running"
    key = keys.result("x")
    assert stage.store.read(key)[key] is None


@pytest.mark.parametrize("noun", ["lock", "sem"])
def test_a_lapsed_holder_that_asks_again_gets_a_new_token(
    stage: Testbed, ada: Client, noun: str
) -> None:
    taken = ada.run(TAKES[noun](ada))
    stage.clock.advance(TTL + 1)
    ada.run(ada.agents.beat())
    nouns: dict[str, Any] = {"lock": ada.locks, "sem": ada.semaphores}
    again = ada.run(nouns[noun].acquire("x", token=taken.token))
    assert isinstance(again, outcomes.Granted)
    assert (again.token or 0) > taken.token
