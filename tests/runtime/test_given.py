"""A late holder changes nothing: calls about tasks and messages rely on grants that they name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

import interlock
from interlock import aio, registry
from interlock.errors import BadInput
from interlock.testing.testbed import Testbed

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "publish": lambda f, given: f.tasks.publish("new", given=given),
    "publish_all": lambda f, given: f.tasks.publish_all([{"id": "new"}], given=given),
    "claim": lambda f, given: f.tasks.claim("ready", given=given),
    "next": lambda f, given: f.tasks.next(given=given),
    "complete": lambda f, given: f.tasks.complete("mine", given=given),
    "fail": lambda f, given: f.tasks.fail("mine", given=given),
    "release": lambda f, given: f.tasks.release("mine", given=given),
    "heartbeat": lambda f, given: f.tasks.heartbeat("mine", given=given),
    "cancel": lambda f, given: f.tasks.cancel("ready", given=given),
    "retry": lambda f, given: f.tasks.retry("failed", given=given),
    "alert": lambda f, given: f.messages.alert("build", given=given),
    "share": lambda f, given: f.messages.share("ada", "finding", given=given),
    "stop": lambda f, given: f.messages.stop("ada", given=given),
    "send": lambda f, given: f.messages.send("ada", "hello", given=given),
    "query": lambda f, given: f.messages.query("ada", "what?", timeout=0.05, given=given),
    "subscribe": lambda f, given: f.messages.subscribe("news", given=given),
    "unsubscribe": lambda f, given: f.messages.unsubscribe("build", given=given),
}
"""All of these change something when they may."""


def prepared(fleet: interlock.Fleet) -> None:
    for task in ("failed", "mine", "ready"):
        fleet.tasks.publish(task, retries=0)
    fleet.tasks.claim("failed")
    fleet.tasks.fail("failed")
    fleet.tasks.claim("mine")
    fleet.messages.subscribe("build")


@pytest.fixture
def fleet(url: str) -> Iterator[interlock.Fleet]:
    with interlock.connect(url, agent="ada") as fleet:
        prepared(fleet)
        yield fleet


@pytest.mark.parametrize("name", CALLS)
def test_a_holder_changes_what_a_late_holder_cannot(url: str, name: str) -> None:
    call = CALLS[name]
    with interlock.connect(url, agent="ada") as fleet:
        prepared(fleet)
        with fleet.lock("deploy") as held:
            proof, text = held.check(), f"lock/deploy={held.token}"
        entries = len(fleet.record.log(limit=1000))
        for given in (proof, text):
            late = call(fleet, [given])
            assert late == interlock.GivenFenced(given="lock/deploy")
            assert not late
        assert len(fleet.record.log(limit=1000)) == entries
        with fleet.lock("deploy") as held:
            done = call(fleet, [held.check(), f"lock/deploy={held.token}"])
            assert not isinstance(done, interlock.GivenFenced), done


REQUESTS: dict[str, dict[str, Any]] = {
    "task add": {"task": "new"},
    "task claim": {"task": "ready"},
    "task next": {},
    "task done": {"task": "mine"},
    "task fail": {"task": "mine", "reason": "no"},
    "task release": {"task": "mine"},
    "task beat": {"task": "mine"},
    "task cancel": {"task": "ready"},
    "task retry": {"task": "failed"},
    "alert": {"type": "build"},
    "share": {"who": "ada", "type": "finding"},
    "stop": {"who": "ada", "reason": "enough"},
    "send": {"who": ["ada"], "body": "hello"},
    "query": {"who": "ada", "text": "what?", "timeout": 0.05},
    "subscribe": {"type": "news"},
    "unsubscribe": {"type": "build"},
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_carries_the_grants_that_it_relies_on(name: str) -> None:
    kind = registry.find(name).request
    with interlock.connect("memory:", agent="ada") as fleet:
        prepared(fleet)
        with fleet.lock("deploy") as held:
            late = f"lock/deploy={held.token}"
        entries = len(fleet.record.log(limit=1000))
        request = msgspec.convert({**REQUESTS[name], "given": [late]}, kind)
        assert fleet.act(request) == interlock.GivenFenced(given="lock/deploy")
        assert len(fleet.record.log(limit=1000)) == entries
        with fleet.lock("deploy") as held:
            request = msgspec.convert(
                {**REQUESTS[name], "given": [f"lock/deploy={held.token}"]}, kind
            )
            assert not isinstance(fleet.act(request), interlock.GivenFenced)


def test_a_grant_is_named_by_its_token_whatever_it_is_of(fleet: interlock.Fleet) -> None:
    slots = fleet.semaphores.acquire("builds", capacity=2)
    claim = fleet.tasks.claim("ready")
    assert isinstance(slots, interlock.SlotsAcquired)
    assert isinstance(claim, interlock.Claimed)
    both = [f"sem/builds={slots.token}", f"task/ready={claim.token}"]
    assert isinstance(fleet.messages.alert("build", given=both), interlock.Sent)
    fleet.tasks.complete("ready")
    late = fleet.messages.alert("build", given=both)
    assert late == interlock.GivenFenced(given="task/ready")


@pytest.mark.parametrize("given", ["lock/a", "lock/a=x", "a=1", "agent/ada=1", "lock/-a=1"])
def test_what_names_no_grant_is_refused_in_one_line(given: str) -> None:
    with interlock.connect("memory:", agent="ada") as fleet, pytest.raises(BadInput):
        fleet.tasks.publish("a", given=[given])


def test_a_proof_is_given_in_a_list() -> None:
    with interlock.connect("memory:", agent="ada") as fleet, fleet.lock("a") as held:
        proof: Any = held.check()
        with pytest.raises(BadInput, match="in a list"):
            fleet.tasks.publish("b", given=proof)


def test_a_grant_that_goes_while_we_decide_is_noticed_by_the_commit() -> None:
    """Between reading and committing the lock moves on: the commit itself refuses."""
    stage = Testbed()
    ada, bob = stage.client("ada"), stage.client("bob")
    granted = ada.run(ada.locks.acquire("deploy", ttl=5))
    assert isinstance(granted, interlock.LockAcquired)
    stage.clock.advance(6)
    bob.run(bob.locks.acquire("deploy"))
    late = ada.run(ada.tasks.publish("t", given=[f"lock/deploy={granted.token}"]))
    assert late == interlock.GivenFenced(given="lock/deploy")


def test_it_is_the_same_in_an_event_loop(url: str) -> None:
    async def main() -> None:
        async with await aio.connect(url, agent="ada") as fleet:
            async with fleet.lock("deploy") as held:
                proof = await held.check()
                done = await fleet.tasks.publish("a", given=[proof])
                assert isinstance(done, interlock.Published)
            late = await fleet.tasks.publish("b", given=[proof])
            assert late == interlock.GivenFenced(given="lock/deploy")
            told = await fleet.messages.alert("build", given=[proof])
            assert told == interlock.GivenFenced(given="lock/deploy")

    asyncio.run(main())
