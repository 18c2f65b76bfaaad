"""Workers of the blocking client: one task after the other, for a loop or for handlers.

for claim in fleet.tasks.work(can=["rust"]):
    with claim:
        build(claim.data)

The end of the block is the end of the task: it is committed before the code after the block runs.
A loop that goes on at once after its blocks gets its next claim with the same commit.  If it does
something else first, another thread releases that claim again, and later ends bring none.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from interlock.client_tasks import AnyHandler, Claim, Handler
from interlock.client_worker_ends import MOST_AHEAD, PutOffEnd, PutOffEnds
from interlock.core import validate
from interlock.core.safe_text import foreign
from interlock.errors import BadInput, InterlockError, Lapsed, StoreClosed
from interlock.nouns.grants.handover import HANDOVER, Handover
from interlock.nouns.messages.stops import StopNotice
from interlock.nouns.tasks.handlers import HandlersByType
from interlock.nouns.tasks.held_claim import LEFT, WENT_ON, HeldClaim
from interlock.nouns.tasks.worker import SignalListener, WorkerLoop, interrupt_main
from interlock.runtime.stoppable import SLICE
from interlock.steps import drive
from interlock.threads import background, going_on

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.client_threads import WorkerThreads


AT_ONCE = 0.002
"""A loop that takes no longer from the end of a block to its next step has nothing in between."""


class Worker:
    """Claims one task after the other, for a ``for`` loop.

    A claim that the loop neither entered (``with claim:``) nor settled is never completed: its
    attempt fails when the loop continues or ends.  If the worker is to stop, it is released.
    """

    def __init__(
        self,
        fleet: Fleet,
        worker_loop: WorkerLoop,
        concurrency: int = 1,
        ahead: int | None = None,
        *,
        signals: bool,
    ) -> None:
        self._fleet = fleet
        self._worker_loop = worker_loop
        self._concurrency = concurrency
        if ahead is not None:
            ahead = validate.count(ahead, "ahead", MOST_AHEAD)
        self._most_ahead = ahead
        """How many tasks may be claimed together; None: one in a loop, more in ``serve``."""
        self._handlers: HandlersByType[Handler] = HandlersByType()
        self._threads: WorkerThreads | None = None
        self._signals = signals
        self._signalled = False
        self._claim: Claim | None = None
        """The current claim."""
        self._listening = False
        self._interrupting = threading.Lock()
        self._sends_signal = False
        """Whether this worker sends the next signal itself."""
        self._interrupted = threading.Event()
        self._ends = PutOffEnds(fleet, worker_loop, ahead or 1)
        self._following: Handover | None = None
        """The handover of the claim that came with the end of the last block."""
        self._clock = fleet.context.runner.clock.monotonic
        self._left_at = 0.0
        self._went_on_at_once = False
        self._serves = False

    def stop(self, reason: str = "") -> None:
        """Finish the current claim, and claim no more; any thread may call it."""
        self._worker_loop.stop(reason)
        if self._threads is not None:
            self._threads.look()

    @property
    def stopped(self) -> str:
        """Why the worker is to stop; empty while it is not."""
        return self._worker_loop.reason

    def __iter__(self) -> Iterator[Claim]:
        if self._concurrency > 1:
            raise BadInput("a loop works on one task at a time; use worker.serve(handler)")
        with SignalListener(self._on_signal, wanted=self._signals), self._messages():
            handover, loop = Handover(self._fleet.context.grants), _Loop()
            try:
                self._ends.open()
                while True:
                    if (claim := self._next_ahead()) is None:
                        handover = Handover(self._fleet.context.grants)
                        HANDOVER.set(handover)
                        claim = self._next(loop)
                        HANDOVER.set(None)
                    if claim is None:
                        return
                    self._claim = claim
                    yield claim
                    self._went_on_at_once = self._clock() - self._left_at < AT_ONCE
                    if not (self._ends.together and self._ends.includes(claim)):
                        if claim.forgotten:
                            claim.passed_over(WENT_ON)
                        self._claim = None
            finally:
                self._left(handover)

    @property
    def _goes_on(self) -> bool:
        """Whether the loop is likely to take its next step at once: it did so the last time.

        If it does not do so this time, another thread sets it right (``LateEnd``).
        """
        return (self._went_on_at_once or self._serves) and not self._worker_loop.reason

    def puts_off(self, holding: HeldClaim, error: BaseException | None) -> bool:
        """Whether the end of a block waits, so that it goes together with others."""
        if not (self._ends.together and self._goes_on):
            return False
        plain = error is None or isinstance(error, Exception)
        return plain and not (holding.released or holding.trouble or holding.lost())

    def put_off(self, claim: Claim, holding: HeldClaim, error: BaseException | None) -> None:
        """End the claim with the next step of the loop, or before any other call of this thread."""
        end = PutOffEnd(claim, holding, error)
        self._ends.add(end, watched=not self._serves)  # serving always goes on at once
        self._left_at = self._clock()

    def end_if_put_off(self, claim: Claim) -> None:
        """End a claim whose end was put off: its caller asks how it ended."""
        self._ends.end_if_waiting(claim)

    def end_block(self, claim: Claim, holding: HeldClaim, error: BaseException | None) -> bool:
        """End the claim of a block, and claim the next task with it if the loop goes on."""
        if self._ends.together:
            self._ends.end_alone()  # tasks end in their order
        try:
            if self._goes_on:
                self._following = Handover(self._fleet.context.grants)
                HANDOVER.set(self._following)
                holding.worker = self._worker_loop
            with self._ends.ending:
                return claim.end_now(error)
        finally:
            HANDOVER.set(None)
            self._left_at = self._clock()
            self._ends.watch_ahead()

    def on(
        self, *types: str, timeout: float | str | None = None
    ) -> Callable[[AnyHandler], AnyHandler]:
        """Use a function for tasks of these types: ``@worker.on("build")``.

        The type of a task is what it requires.  A worker with such functions can do their types,
        and takes no other tasks; ``@worker.on()`` is for all others.  If a call takes longer than
        ``timeout``, its attempt fails.
        """

        def add(handler: AnyHandler) -> AnyHandler:
            self._handlers.add(types, handler, timeout)
            return handler

        return add

    def serve(self, handler: Handler | None = None, *, timeout: float | str | None = None) -> None:
        """Handle each claim; the handler returns the result, or raises the reason of a failure.

        Without a handler, those that were added by ``on`` are used.
        """
        if handler is not None:
            self._handlers.add((), handler, timeout)
        self._worker_loop.only(self._handlers.abilities())

        def handle(claim: Claim) -> None:
            found = self._handlers.find(claim.outcome.requires)
            if found.timeout is None:
                result = found.function(claim)
            else:
                with TimeLimit(claim, found.timeout, found.too_late):
                    result = found.function(claim)
            if not claim.settled:
                claim.end_with(result)

        self.handle(handle)

    def handle(self, handler: Callable[[Claim], None]) -> None:
        """Call this for each claim, in its block; by several threads if it has a concurrency."""
        if self._concurrency > 1:
            from interlock.client_threads import WorkerThreads

            self._threads = WorkerThreads(
                self._fleet, self._worker_loop, self._concurrency, signals=self._signals
            )
            self._threads.run(handler)
            return
        self._serves = True
        if self._most_ahead is None:
            self._ends.most = MOST_AHEAD
        for claim in self:
            with claim:
                handler(claim)

    def _left(self, handover: Handover) -> None:
        """Clean up after the loop; an interrupt may have come before it got its last claim."""
        self._ends.close()
        claim, self._claim = self._claim, None
        if claim is not None and self._worker_loop.reason:
            claim.let_go()
        elif claim is not None:
            claim.passed_over(LEFT)
        try:
            kept = "" if claim is None else claim.outcome.grant
            drive(self._worker_loop.release_ahead(kept), self._fleet.store)
        finally:
            for each in filter(None, (handover, self._following)):
                each.abandon()  # what an interrupt kept from reaching us
            self._worker_loop.report()

    def _next_ahead(self) -> Claim | None:
        """The next claim that was made already."""
        return None if self._worker_loop.reason else self._yours(self._ends.next_ahead())

    def _next(self, loop: object) -> Claim | None:
        """The next claim that is made now, together with the ends that were put off."""
        self._ends.end_with_claims(loop)
        self._claim = None
        return self._yours(self._wait_next())

    def _wait_next(self) -> HeldClaim | None:
        if self._worker_loop.reason:
            return None
        fleet = self._fleet
        fleet.keep(nudge=False)  # waking the keeper for each task costs as much as the task
        try:
            return drive(self._worker_loop.wait_next(), fleet.store)
        except (Lapsed, StoreClosed):
            if not fleet.closed:
                raise
            self.stop("the client was closed")
            return None

    def _yours(self, working: HeldClaim | None) -> Claim | None:
        """A claim, unless it came too late."""
        if working is None:
            return None
        claim = Claim(working, in_loop=True).of_worker(self)
        if self._worker_loop.reason:
            claim.let_go()
            return None
        self._worker_loop.report((claim.task,))
        if self._worker_loop.leased:
            self._fleet.nudge()  # the keeper has another lease
        claim.take_up()
        self._ends.begin()
        return claim

    @contextmanager
    def _messages(self) -> Iterator[None]:
        """Listen to stop messages in a thread while the block runs."""
        with listening(self._fleet, self._worker_loop, self._obey):
            self._listening = True
            try:
                yield
            finally:
                with self._interrupting:
                    self._listening = False

    def _obey(self, stop: StopNotice) -> None:
        if self._worker_loop.handle_stop(stop):
            self._break_off()

    def _break_off(self) -> None:
        """Release the current claim: interrupt its block, or, if no signal can, make it lost.

        The interrupt must not come after the loop.  A signal that comes right before the main
        thread begins to wait does not wake it, so it is sent again until the handler has run.
        """
        while True:
            with self._interrupting:
                claim = self._claim
                if not self._listening or claim is None or self._interrupted.is_set():
                    return
                self._sends_signal = True
                if not interrupt_main(self._on_signal):
                    break
            self._interrupted.wait(SLICE / 10)
        self.release_current()

    def release_current(self) -> None:
        """Release the current claim, which makes it lost; one whose work is done is ended."""
        with suppress(InterlockError):
            self._ends.end_alone()
            if (claim := self._claim) is not None:
                claim.release()

    def _on_signal(self, number: int) -> None:
        if self._sends_signal:
            self._sends_signal = False
            if self._interrupted.is_set():  # one too many
                return
            self._interrupted.set()
        elif not self._signalled:
            self._signalled = True
            self.stop(signal.Signals(number).name)
            return
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)


@contextmanager
def listening(
    fleet: Fleet, worker_loop: WorkerLoop, obey: Callable[[StopNotice], None]
) -> Iterator[None]:
    """Listen to stop messages in a thread while the block runs."""
    stops, store = worker_loop.stops, fleet.store
    if stops is None:
        yield
        return
    over = threading.Event()
    listener, name = stops.for_other_thread(), "interlock-stops"

    def listen() -> None:
        drive(listener.listen(obey, lambda: not over.is_set()), store)

    background(going_on(listen, name, over), name).start()
    try:
        yield
    finally:
        over.set()
        drive(worker_loop.acknowledge_stops(), store)


class TimeLimit:
    """Fails the attempt of a claim whose block takes too long, from a thread of its own.

    The block goes on, since no thread can be killed; ``claim.lost`` asks it to stop.
    """

    def __init__(self, claim: Claim, seconds: float, reason: str) -> None:
        self._claim = claim
        self._seconds = seconds
        self._reason = reason
        self._over = threading.Event()

    def __enter__(self) -> None:
        background(self._watch, "interlock-time-limit").start()

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        if self._over.wait(self._seconds):
            return
        import logging

        log = logging.getLogger("interlock")
        try:
            self._claim.fail(self._reason)
        except InterlockError as error:
            log.warning("task %s: %s: %s", foreign(self._claim.task), self._reason, error)
        else:
            log.warning(
                "task %s: %s; its thread is still busy", foreign(self._claim.task), self._reason
            )


class _Loop:
    """Lives as long as the frame of a loop: the claims that it made ahead are released then."""
