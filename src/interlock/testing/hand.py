"""Operations driven by hand: one step at a time, in any order, without waiting.

Each step of an operation is one atomic act on the store.  So whatever threads, tasks or processes
can do to each other, a test can do by choosing whose step comes next; and it can do it again.
A pause takes no time.  A wait ends when something arrived, or when the clock of the test has
passed its timeout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, cast

from interlock.clock import Clock
from interlock.driving import Op, Pause, Step
from interlock.runtime.steps import Take
from interlock.store import Store
from interlock.testing.clock import FakeClock

T = TypeVar("T")


class Hand(Generic[T]):
    """One operation on its way; ``steps`` are those it performed."""

    def __init__(self, op: Op[T], store: Store, clock: Clock) -> None:
        self.steps: list[Step] = []
        self.done = False
        self._op = op
        self._store = store
        self._clock = clock
        self._next: Step | None = None
        self._wakes = 0.0
        self._outcome: T | None = None
        self._error: BaseException | None = None
        self._move(lambda: next(op))

    @property
    def asleep(self) -> bool:
        """Whether it waits, as far as it has come."""
        return isinstance(self._next, Take)

    @property
    def wakes(self) -> float:
        """The monotonic moment at which it wakes by itself."""
        return self._wakes if self.asleep else self._clock.monotonic()

    def go(self) -> bool:
        """Perform the next step; False if it sleeps on, or is done."""
        step = self._next
        if step is None:
            return False
        if isinstance(step, Take):
            found = step.watch.take(0)
            if not found and self._clock.monotonic() < self._wakes:
                return False
            self._perform(step, lambda: found)
        else:
            self._perform(
                step, lambda: None if isinstance(step, Pause) else step.perform(self._store)
            )
        return True

    def run(self) -> Hand[T]:
        """Go on until it sleeps or is done."""
        while self.go():
            pass
        return self

    def interrupt(self, error: BaseException) -> Hand[T]:
        """Strike with an exception where it stands, and let it clean up."""
        if not self.done:
            self._move(lambda: self._op.throw(error))
        return self.run()

    def result(self) -> T:
        """What it returned; what it raised is raised again."""
        if self._error is not None:
            raise self._error
        assert self.done, "it is not done yet"
        return cast("T", self._outcome)

    def _perform(self, step: Step, act: Callable[[], object]) -> None:
        self.steps.append(step)
        try:
            answer = act()
        except BaseException as error:  # noqa: BLE001 - the operation decides
            struck = error
            self._move(lambda: self._op.throw(struck))
        else:
            self._move(lambda: self._op.send(answer))

    def _move(self, move: Callable[[], Step]) -> None:
        self._next = None
        try:
            self._next = move()
        except StopIteration as done:
            self.done, self._outcome = True, done.value
        except BaseException as error:  # noqa: BLE001 - kept for result()
            self.done, self._error = True, error
        if isinstance(self._next, Take):
            timeout = self._next.timeout
            self._wakes = float("inf") if timeout is None else self._clock.monotonic() + timeout


def by_hand(op: Op[T], store: Store, clock: FakeClock) -> T:
    """Carry out one operation alone; where it sleeps, time passes at once."""
    hand = Hand(op, store, clock)
    while not hand.run().done:
        assert hand.wakes < float("inf"), "it waits for ever"
        clock.advance(max(0.0, hand.wakes - clock.monotonic()))
    return hand.result()
