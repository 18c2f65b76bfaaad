"""Working on tasks, for programs that may block.

for claim in fleet.tasks.work(can=["rust"]):
    with claim:
        build(claim.data)
"""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self, TypeVar

from interlock.client import Fleet
from interlock.core.decision import Proof
from interlock.drivers import Op, drive
from interlock.errors import InterlockError, Lapsed, StoreClosed
from interlock.nouns.messages.stops import StopNotice
from interlock.nouns.tasks import task as core
from interlock.nouns.tasks.held_claim import LEFT, WENT_ON, ClaimHandle, HeldClaim, claim_for_block
from interlock.nouns.tasks.worker import SignalListener, WorkerLoop, interrupt_main
from interlock.runtime.handover import HANDOVER, BlockExit, Handover
from interlock.runtime.stoppable import SLICE
from interlock.threads import background

T = TypeVar("T")


class Claim(ClaimHandle):
    """A task in our hands.

    As a ``with`` block it is completed at the end, failed if the block raises, and released if the
    block is interrupted.  ``claim.lost`` turns true if it is no longer ours.  In the loop of a
    worker, what the block raises is logged, and the loop goes on; an interruption ends it.
    """

    _end: weakref.ref[Callable[..., bool]] | None = None

    def check(self) -> Proof:
        """Ask the store whether it is still ours; raises Lost if not.

        The proof can be carried by another commit: ``fleet.lock(..., given=[claim.check()])``.
        """
        return self._drive(self._working.check())

    def complete(self, result: object = None) -> core.Completed:
        """The task is done; raises Lost if it was no longer ours."""
        return self._drive(self._working.complete(result))

    def fail(self, reason: str, error: object = None, *, retry: bool = True) -> core.Failed:
        """The attempt failed; ``retry=False`` says that no other will ever succeed."""
        return self._drive(self._working.fail(reason, error, retry=retry))

    def release(self) -> core.TaskReleased:
        """Give the task back to the queue; no attempt is counted."""
        return self._drive(self._working.release())

    def let_go(self) -> None:
        """Give it back, unless somebody works on it or has settled it."""
        if self.forgotten:
            self._drive(self._working.end(GeneratorExit()))

    def passed_over(self, reason: str) -> None:
        """Fail the attempt, unless somebody works on it or has settled it."""
        if self.forgotten:
            self._drive(self._passed_over(reason))

    def entering(self, end: Callable[..., bool]) -> None:
        """What the handover is tied to as soon as the block begins."""
        if not self._entered:
            self._end = weakref.ref(end)

    def __enter__(self) -> Self:
        if self._end is not None and (end := self._end()) is not None:
            self._working.handover.tie(end)
        self._entered = True
        if self._working.lost() and not self._in_loop:
            self._working.give_up()
            raise self.over()
        self.take_up()
        return self

    def leave(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        """The end of the block; whether what it raised was told to the log instead."""
        try:
            self._drive(self._working.end(error))
        except InterlockError as trouble:
            if not self._told(trouble):
                raise
            return True
        return self._told(error)

    __exit__ = BlockExit[bool]()

    def _drive(self, op: Op[T]) -> T:
        return drive(op, self._working.context.store)


class Hold:
    """``with fleet.tasks.hold(...)``: claims it, works inside, and completes it at the end."""

    def __init__(
        self, fleet: Fleet, task: str, *, ttl: float | str | None, wait: float | str
    ) -> None:
        self._fleet = fleet
        self._asked = (task, ttl, wait)
        self._handover: Handover | None = None
        self._claim: Claim | None = None

    def entering(self, end: Callable[..., None]) -> None:
        """Take a fresh handover, unless the block has begun."""
        if self._handover is None or not self._handover.tied:
            self._handover = Handover(self._fleet.context.grants)
            self._handover.tie(end)

    def __enter__(self) -> Claim:
        task, ttl, wait = self._asked
        context = self._fleet.context
        handover = (
            self._handover if self._handover and self._handover.tied else Handover(context.grants)
        )
        try:
            self._fleet.keep(nudge=False)  # an interrupt leaves it to that
            HANDOVER.set(handover)
            working = drive(claim_for_block(context, task, ttl=ttl, wait=wait), context.store)
            HANDOVER.set(None)
            self._claim = claim = Claim(working, handover=handover)
            self._fleet.nudge()
            claim.__enter__()
        except BaseException:
            handover.abandon()
            raise
        return claim

    def leave(self, kind: object, error: BaseException | None, trace: object) -> None:
        """The end of the block."""
        claim = self._claim
        if claim is not None:
            claim.leave(kind, error, trace)
            self._claim = None

    __exit__ = BlockExit[None]()


class Worker:
    """Claims one task after the other, for a ``for`` loop.

    A claim that the loop neither entered (``with claim:``) nor settled is never completed: its
    attempt fails when the loop comes round or is left.  If the worker is to stop, it is released.
    """

    def __init__(self, fleet: Fleet, shift: WorkerLoop, *, signals: bool) -> None:
        self._fleet = fleet
        self._shift = shift
        self._signals = signals
        self._heard_before = False
        self._claim: Claim | None = None
        """The one at hand."""
        self._listening = False
        self._striking = threading.Lock()
        self._strikes = False
        """Whether the next signal is one of our own."""
        self._struck = threading.Event()

    def stop(self, reason: str = "") -> None:
        """Finish the claim at hand, and claim no more; any thread may say so."""
        self._shift.stop(reason)

    @property
    def stopped(self) -> str:
        """Why it is to stop; empty while it is not."""
        return self._shift.reason

    def __iter__(self) -> Iterator[Claim]:
        with SignalListener(self._heard, wanted=self._signals), self._messages():
            handover = Handover(self._fleet.context.grants)
            try:
                while True:
                    handover = Handover(self._fleet.context.grants)
                    HANDOVER.set(handover)
                    claim = self._next()
                    HANDOVER.set(None)
                    if claim is None:
                        return
                    self._claim = claim
                    yield claim
                    claim.passed_over(WENT_ON)
                    self._claim = None
            finally:
                self._left(handover)

    def serve(self, handler: Callable[[Claim], object]) -> None:
        """Have each claim handled; what that returns is the result, and what it raises why not."""
        for claim in self:
            with claim:
                result = handler(claim)
                if not claim.settled:
                    claim.complete(result)

    def _left(self, handover: Handover) -> None:
        """The loop is over; an interrupt may have kept the last claim from it."""
        claim, self._claim = self._claim, None
        if claim is None:
            handover.abandon()
        elif self._shift.reason:
            claim.let_go()
        else:
            claim.passed_over(LEFT)
        self._shift.report()

    def _next(self) -> Claim | None:
        if self._shift.reason:
            return None
        fleet = self._fleet
        fleet.keep()
        try:
            working = drive(self._shift.wait_next(), fleet.store)
        except (Lapsed, StoreClosed):
            if not fleet.closed:
                raise
            self.stop("the client was closed")
            return None
        return self._yours(working)

    def _yours(self, working: HeldClaim | None) -> Claim | None:
        """A claim, unless it came too late."""
        if working is None:
            return None
        claim = Claim(working, in_loop=True)
        if self._shift.reason:
            claim.let_go()
            return None
        self._shift.report((claim.task,))
        claim.take_up()
        return claim

    @contextmanager
    def _messages(self) -> Iterator[None]:
        """Listen to messages meanwhile, in a thread."""
        stops, store = self._shift.stops, self._fleet.store
        if stops is None:
            yield
            return
        over = threading.Event()
        op = stops.for_other_thread().listen(self._obey, lambda: not over.is_set())
        background(lambda: drive(op, store), "interlock-stops").start()
        self._listening = True
        try:
            yield
        finally:
            over.set()
            with self._striking:
                self._listening = False
            drive(self._shift.acknowledge_stops(), store)

    def _obey(self, stop: StopNotice) -> None:
        if self._shift.handle_stop(stop):
            self._break_off()

    def _break_off(self) -> None:
        """Give the claim at hand back: where no signal can interrupt its block, it is lost to it.

        What strikes must not strike after the loop.  A signal that comes right before the main
        thread begins to wait does not wake it: so it is sent again until it was heard.
        """
        while True:
            with self._striking:
                claim = self._claim
                if not self._listening or claim is None or self._struck.is_set():
                    return
                self._strikes = True
                if not interrupt_main(self._heard):
                    break
            self._struck.wait(SLICE / 10)
        with suppress(InterlockError):
            claim.release()

    def _heard(self, number: int) -> None:
        if self._strikes:
            self._strikes = False
            if self._struck.is_set():  # one too many
                return
            self._struck.set()
        elif not self._heard_before:
            self._heard_before = True
            self.stop(signal.Signals(number).name)
            return
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)
