"""For each commit of a session's life: its request or its reply is lost, without a sign which.

The caller gets the right answer all the same, and what it asked for has happened once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Literal, TypeAlias

import pytest
from tests.faults.setup import WAYS, Client, RequestFault, Setup, Way, settle, voids
from tests.processes import checks

from interlock.nouns.agents.session_rules import Left, Renewed
from interlock.nouns.grants.lock import LockAcquired, LockBusy, LockReleased
from interlock.testing.servers.proxy import Proxy

Fate: TypeAlias = Literal["lost", "cut"]


class Play:
    """Ada, whose connection will suffer, and Bob, who sees what there is."""

    def __init__(self, setup: Setup, way: Way, fate: Fate) -> None:
        self.setup = setup
        self.bob = setup.client("bob")
        self.proxy: Proxy = setup.proxy()
        self._way = way
        self._fate = fate

    def ada(self) -> Client:
        return self.setup.client("ada", self.proxy, self._way)

    def suffer(
        self,
        call: Callable[..., Any],
        *arguments: Any,
        on: tuple[str, str],
        with_: bytes = b"",
        **terms: Any,
    ) -> Future[Any]:
        """Let the call lose the commit with this verb and outcome, or the answer to it."""
        verb, outcome = on
        words = (f'"verb":"{verb}"'.encode(), f'"outcome":"{outcome}"'.encode(), with_)
        strike = RequestFault(self.proxy, self._fate, *words)
        future = self.setup.begin(call, *arguments, **terms)
        strike.wait()
        if self._fate == "lost":
            settle(lambda: self.count()[verb, outcome, "ada"], "the commit")
            assert not future.done()
            strike.lose()
        return future

    def count(self) -> Counter[tuple[str, str, str]]:
        entries = self.bob.do(lambda fleet: fleet.record.log(limit=1000))
        return Counter((each.verb, each.outcome, each.agent) for each in entries)

    def waiters(self) -> tuple[str, ...]:
        found: tuple[str, ...] = self.bob.show("merge").waiters
        return found


def joins(play: Play) -> Iterator[tuple[str, str]]:
    on = ("agent.join", "joined")
    ada = play.suffer(play.ada, on=on).result()
    assert [each.state for each in play.bob.do(lambda f: f.agents.show("ada"))] == ["alive"]
    assert isinstance(ada.acquire("merge"), LockAcquired)
    yield on


def acquires(play: Play) -> Iterator[tuple[str, str]]:
    on = ("lock.acquire", "acquired")
    before = play.bob.acquire("merge").token
    play.bob.release("merge")
    got = play.suffer(play.ada().acquire, "merge", on=on).result()
    assert isinstance(got, LockAcquired)
    shown = play.bob.show("merge")
    assert (shown.holder, shown.token) == ("ada", got.token)
    assert got.token > before
    yield on


def queues(play: Play) -> Iterator[tuple[str, str]]:
    on = ("lock.wait", "waiting")
    token = play.bob.acquire("merge").token
    waits = play.suffer(play.ada().acquire, "merge", wait=30, on=on)
    settle(lambda: play.waiters() == ("ada",), "a waiter")
    assert isinstance(play.bob.release("merge"), LockReleased)
    got = waits.result()
    assert isinstance(got, LockAcquired)
    assert got.token > token
    yield on


def hands_over(play: Play) -> Iterator[tuple[str, str]]:
    on = ("lock.release", "released")
    ada = play.ada()
    token = ada.acquire("merge").token
    waits = play.setup.begin(play.bob.acquire, "merge", wait=30)
    settle(lambda: ada.show("merge").waiters == ("bob",), "a waiter")
    assert isinstance(
        play.suffer(ada.release, "merge", on=on, with_=b"lock:acquired").result(), LockReleased
    )
    got = waits.result()
    assert isinstance(got, LockAcquired)
    assert got.token > token
    yield on


def withdraws(play: Play) -> Iterator[tuple[str, str]]:
    on = ("lock.withdraw", "busy")
    play.bob.acquire("merge")
    assert isinstance(play.suffer(play.ada().acquire, "merge", wait=0.2, on=on).result(), LockBusy)
    assert play.waiters() == ()
    assert play.bob.show("merge").holder == "bob"
    yield on


def leaves(play: Play) -> Iterator[tuple[str, str]]:
    on = ("agent.leave", "left")
    ada = play.ada()
    token = ada.acquire("merge").token
    waits = play.setup.begin(play.bob.acquire, "merge", wait=30)
    settle(lambda: ada.show("merge").waiters == ("bob",), "a waiter")
    left = play.suffer(ada.leave, on=on).result()
    assert isinstance(left, Left)
    assert left.released == ("merge",)
    assert waits.result().token > token
    assert play.bob.do(lambda f: f.agents.show("ada")) == ()
    yield on


@pytest.mark.parametrize("fate", ["lost", "cut"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("step", [joins, acquires, queues, hands_over, withdraws, leaves])
def test_a_commit_that_nobody_heard_of_happens_once_and_is_answered(
    setup: Setup,
    way: Way,
    fate: Fate,
    step: Callable[[Play], Iterator[tuple[str, str]]],
) -> None:
    play = Play(setup, way, fate)
    ((verb, outcome),) = step(play)
    assert play.count()[verb, outcome, "ada"] == 1
    assert voids(setup.store()) == (1 if fate == "cut" else 0)
    checks.sound(setup.url)


@pytest.mark.parametrize("way", WAYS)
def test_a_conflict_that_nobody_heard_of_changes_nothing(setup: Setup, way: Way) -> None:
    """The guess that the lock is free is wrong, and the answer that says so is lost."""
    bob = setup.client("bob")
    bob.acquire("merge")
    proxy = setup.proxy()
    ada = setup.client("ada", proxy, way)
    strike = RequestFault(proxy, "drop reply", b'"verb":"lock.acquire"')
    got = ada.acquire("merge")
    strike.wait()
    assert isinstance(got, LockBusy)
    assert got.holder == "bob"
    assert bob.show("merge").waiters == ()
    checks.sound(setup.url)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", [1, 2])
def test_a_renewal_that_nobody_heard_of_is_made_again(setup: Setup, way: Way, number: int) -> None:
    bob = setup.client("bob")
    proxy = setup.proxy()
    ada = setup.client("ada", proxy, way)
    ada.beat()
    before = len(bob.do(lambda fleet: fleet.record.log()))
    struck: list[int] = []

    def judge_(_data: bytes) -> Literal["drop reply"] | None:
        struck.append(1)
        return "drop reply" if len(struck) == number else None

    proxy.on_request(judge_)
    assert isinstance(ada.beat(), Renewed)
    assert len(struck) >= number
    assert len(bob.do(lambda fleet: fleet.record.log())) == before
    checks.sound(setup.url)
