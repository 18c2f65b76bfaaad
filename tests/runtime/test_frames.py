"""Uncontended calls and handoffs on SQLite make few calls of Python functions.

No part of such a call takes long; their number is what it costs, and each layer adds some.
"""

import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.processes.helpers import until_asleep

import interlock
from interlock.nouns.grants.lock import LockTarget
from interlock.runtime.callers import LocalCaller
from interlock.steps import NextChanges, drive

WARM = 20
"""Calls before the first that counts: modules are imported, statements prepared."""
MOST = {"acquire": 97, "slots": 109, "claim": 148, "alert": 104, "share": 125}
"""A few more than there are now, in Python 3.11; they were 147, 184, 200, 158 and 116."""
MOST_FOR_A_HANDOFF = 540
"""The same for a release, the wait of its caller, and the waiter that is served; it was 706."""
MOST_IN_A_LOOP = 312
"""The same from one block of a worker's plain loop to the next; it was 331."""
CLIENTS = 8
MOST_RECEIVED = {"alert": 325, "share": 370}
"""For one that waits, with the acknowledgement of the one before it; they were 376 and 466."""


def frames(act: Callable[[], object]) -> int:
    """How many functions of Python the act calls; a generator that goes on counts again."""
    count = 0

    def look(_frame: FrameType, event: str, _arg: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        act()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("kind", MOST)
def test_an_uncontended_call_makes_few_calls_of_functions(kind: str, tmp_path: Path) -> None:
    with interlock.connect(tmp_path / "store.db", agent="ada") as fleet:
        acts: dict[str, Callable[[str], object]] = {
            "acquire": fleet.locks.acquire,
            "slots": lambda name: fleet.semaphores.acquire(name, capacity=3),
            "claim": fleet.tasks.claim,
            "alert": lambda _: fleet.messages.alert("build", {"ok": True}),
            "share": lambda _: fleet.messages.share("ada", "build", {"ok": True}),
        }
        names = [f"name.{number}" for number in range(WARM + 5)]
        for name in names if kind == "claim" else ():
            fleet.tasks.publish(name)
        counts = [frames(partial(_succeed, acts[kind], name)) for name in names]
    assert min(counts[WARM:]) <= MOST[kind], counts


def _succeed(act: Callable[[str], object], name: str) -> None:
    assert act(name)


def test_a_plain_loop_makes_few_calls_of_functions_for_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.client_worker.AT_ONCE", 60.0)  # on a busy machine, too
    monkeypatch.setattr("interlock.client_worker_ends.LONGEST", 60.0)
    with interlock.connect(tmp_path / "store.db", agent="ada") as fleet:
        for number in range(WARM + 6):
            fleet.tasks.publish(f"name.{number}")
        loop = iter(fleet.tasks.work())

        def go_on() -> None:
            with next(loop):
                pass

        counts = [frames(go_on) for _ in range(WARM + 5)]
    assert min(counts[WARM:]) <= MOST_IN_A_LOOP, counts


class Waiter:
    """A client with one wait for a lock, which goes on when its signal has come."""

    def __init__(self, fleet: interlock.Fleet, number: int) -> None:
        self.store = fleet.store
        self.grants, self._me = fleet.context.grants, fleet.context.me()
        caller = LocalCaller(f"caller.{number}")
        self.grants.current_caller = lambda: caller
        self._token: int | None = None

    def queue(self) -> None:
        """Begin a wait, and carry it out up to its sleep, or to the grant of a free lock."""
        self._op = self.grants.acquire(self._me, LockTarget("merge"), wait=60.0)
        self._go_on(None)

    def wake(self) -> None:
        """Receive the signal."""
        self._go_on(self._sleep.perform(self.store))

    def release(self) -> None:
        """Release the lock that the wait was for."""
        assert self._token is not None, "the signal had the grant"
        op = self.grants.release(self._me.actor, LockTarget("merge"), token=self._token)
        assert drive(op, self.store)
        self._token = None

    def _go_on(self, answer: Any) -> None:
        try:
            step = self._op.send(answer)
            while not isinstance(step, NextChanges):
                step = self._op.send(step.perform(self.store))
            self._sleep = step
        except StopIteration as done:
            self._token = done.value.token


def test_a_handoff_makes_few_calls_of_functions(tmp_path: Path) -> None:
    with ExitStack() as stack:
        connect = partial(interlock.connect, tmp_path / "store.db")
        fleets = [stack.enter_context(connect(agent=f"agent{n}")) for n in range(CLIENTS)]
        waiters = [Waiter(fleet, number) for number, fleet in enumerate(fleets)]
        for waiter in waiters:
            waiter.queue()

        def hand_over(number: int) -> None:
            before, after = waiters[number % CLIENTS], waiters[(number + 1) % CLIENTS]
            before.release()
            before.queue()
            after.wake()

        counts = [frames(partial(hand_over, number)) for number in range(WARM + CLIENTS)]
    assert min(counts[WARM:]) <= MOST_FOR_A_HANDOFF, counts


@pytest.mark.parametrize("kind", MOST_RECEIVED)
def test_a_receiver_that_waits_makes_few_calls_of_functions(kind: str, tmp_path: Path) -> None:
    path, counts, waits = tmp_path / "store.db", list[int](), threading.Semaphore(0)
    with interlock.connect(path, agent="ada") as ada, interlock.connect(path, agent="bob") as bob:
        ada.messages.subscribe("build")

        def receive() -> None:
            loop = iter(ada.messages.recv())
            for _ in range(WARM + 5):
                waits.release()
                counts.append(frames(lambda: next(loop)))

        receiving = threading.Thread(target=receive)
        receiving.start()
        for _ in range(WARM + 5):
            waits.acquire()
            until_asleep(receiving)  # then the message comes with its change
            if kind == "alert":
                bob.messages.alert("build", {"ok": True})
            else:
                bob.messages.share("ada", "build", {"ok": True})
        receiving.join()
    assert min(counts[WARM:]) <= MOST_RECEIVED[kind], counts
