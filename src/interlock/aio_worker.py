"""Workers of the asyncio client: claims for a loop or for handlers, several at once.

worker = fleet.tasks.work(can=["rust"], concurrency=8)
await worker.serve(build)
"""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from interlock.aio import Fleet
from interlock.aio_ends_together import EndsTogether
from interlock.aio_tasks import AnyHandler, Claim, Handler
from interlock.core import validate
from interlock.errors import Lapsed, StoreClosed
from interlock.nouns.messages.stops import StopNotice
from interlock.nouns.tasks.handlers import HandlersByType, TaskHandler
from interlock.nouns.tasks.held_claim import LEFT, WENT_ON, Ending, HeldClaim
from interlock.nouns.tasks.several_claims import at_once
from interlock.nouns.tasks.task import TaskEnd
from interlock.nouns.tasks.task_outcomes import Claimed, CompleteOutcome, TaskCompleted
from interlock.nouns.tasks.waiting_workers import ReservedSlot
from interlock.nouns.tasks.worker import SignalListener, WorkerLoop
from interlock.runtime.outage import AGAIN
from interlock.steps import Op, drive_async
from interlock.threads import going_on_async

if TYPE_CHECKING:
    from interlock.nouns.tasks.next_claim import NextClaim


class Worker:
    """Claims tasks for an ``async for`` loop, as long as fewer than ``concurrency`` are open.

    With a concurrency of one, a claim that the loop neither entered (``async with claim:``) nor
    settled is never completed: its attempt fails when the loop continues or ends; if the worker is
    to stop, it is released.  With more, the code that works on a claim settles it, and a claim that
    is garbage-collected is released.

    While there is work, one commit completes the claims that end together, and claims as many tasks
    as there is room for (``several_claims.py``).  When there is none, a single request waits.
    """

    def __init__(
        self, fleet: Fleet, worker_loop: WorkerLoop, concurrency: int, *, signals: bool
    ) -> None:
        self._fleet = fleet
        self._worker_loop = worker_loop
        self._concurrency = concurrency
        self._signals = signals
        self._settles = concurrency == 1
        """Whether the loop settles a claim that its body did not settle."""
        self._loop = asyncio.get_running_loop()
        self._worker: asyncio.Task[Any] | None = None
        self._stop_listener: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._signalled = False
        self._open: dict[str, str] = {}
        """The task of each claim that is not settled yet."""
        self._came: deque[Claim] = deque()
        self._asking: dict[asyncio.Task[None], int] = {}
        """The request for claims that is under way, and for how many."""
        self._portion = 1
        """For how many the next one may ask: others are to get some, too, where few are ready."""
        self._ends = EndsTogether(
            self._loop, self._end, self._ask, at_once(fleet.store.capabilities)
        )
        self._reserved: set[ReservedSlot] = set()
        self._following: set[NextClaim] = set()
        """Requests that go along with the end of a claim; each is for the slot of that claim."""
        self._waiting = False
        self._leaving = False
        self._dry = False
        self._error: BaseException | None = None
        self._handlers: HandlersByType[Handler] = HandlersByType()
        self._handling: dict[Claim, asyncio.Task[None]] = {}
        """The tasks of ``serve`` by their claims: handlers, and ends that met trouble."""
        self._changed = asyncio.Event()

    def stop(self, reason: str = "") -> None:
        """Finish the open claims, and claim no more."""
        self._worker_loop.stop(reason)
        for task in self._asking:
            task.cancel()
        self._changed.set()

    @property
    def stopped(self) -> str:
        """Why the worker is to stop; empty while it is not."""
        return self._worker_loop.reason

    @property
    def can(self) -> tuple[str, ...]:
        """What it is able to do."""
        return self._worker_loop.can

    def reserve(self) -> ReservedSlot | None:
        """A slot for a task that is claimed as it is created, while the worker waits.

        The request that waits keeps a slot of its own.
        """
        if not self._waiting or self._worker_loop.reason or self._room() <= 0:
            return None
        slot = self._worker_loop.slot(self)
        self._reserved.add(slot)
        return slot

    def give(self, slot: ReservedSlot, claim: HeldClaim | None) -> None:
        """The claim of a reserved slot, or the slot back."""
        self._reserved.discard(slot)
        if claim is not None:
            self._give((claim,))
            self._changed.set()

    def _give(self, found: Sequence[HeldClaim]) -> None:
        """Claims that came, perhaps too late."""
        for claim in found:
            if self._worker_loop.reason:
                claim.give_up()
            else:
                self._take(claim)
        if found and not self._worker_loop.reason:
            self._worker_loop.report(self._open.values())

    async def __aiter__(self) -> AsyncIterator[Claim]:
        self._worker = asyncio.current_task()
        claim: Claim | None = None
        async with self._listening():
            self._worker_loop.waiting.append(self)
            try:
                while (claim := await self._next()) is not None:
                    if self._settles:
                        claim.take_up()
                    yield claim
                    if self._settles:
                        await claim.passed_over(WENT_ON)
                    claim = None  # only the code that works on a claim may keep it
            finally:
                self._leaving = True
                self._worker_loop.waiting.remove(self)
                self._follow_lapses(wanted=False)
                if claim is not None and self._settles:
                    await (claim.let_go() if self._worker_loop.reason else claim.passed_over(LEFT))
                await self._give_back()

    def on(
        self, *types: str, timeout: float | str | None = None
    ) -> Callable[[AnyHandler], AnyHandler]:
        """Use a coroutine function for tasks of these types: ``@worker.on("build")``.

        The type of a task is what it requires.  A worker with such functions can do their types,
        and takes no other tasks; ``@worker.on()`` is for all others.  A call that takes longer than
        ``timeout`` is cancelled, and its attempt fails.
        """

        def add(handler: AnyHandler) -> AnyHandler:
            self._handlers.add(types, handler, timeout)
            return handler

        return add

    async def serve(
        self,
        handler: Handler | None = None,
        *,
        timeout: float | str | None = None,
    ) -> None:
        """Handle each claim; the handler returns the result, or raises the reason of a failure.

        Without a handler, those that were added by ``on`` are used.
        """
        if handler is not None:
            self._handlers.add((), handler, timeout)
        self._worker_loop.only(self._handlers.abilities())
        self._worker = asyncio.current_task()
        self._settles = False
        async with self._listening():
            try:
                async for claim in self:
                    self._handle(claim)
                    while self._came and not self._worker_loop.reason:
                        self._handle(self._came.popleft())
                await self._all_handled()
            finally:
                for end in self._ends.take_back():
                    end.failed(asyncio.CancelledError())
                for task in self._handling.values():
                    task.cancel()
                await self._all_handled()

    def _handle(self, claim: Claim) -> None:
        self._handling[claim] = self._loop.create_task(self._handled(claim))

    async def _handled(self, claim: Claim) -> None:
        """Handle one claim.  Its end waits for a commit with others, and nothing waits for it."""
        try:
            async with claim:
                handler = self._handlers.find(claim.outcome.requires)
                if handler.timeout is None:
                    result = await handler.function(claim)
                else:
                    result = await _timed(claim, handler)
                if not claim.settled:
                    claim.end_with(result)
                    end = claim.put_off_end() if self._concurrency > 1 else None
                    if end is not None:
                        self._ends.add(_ServedEnd(self, claim), end)
        finally:
            self._handling.pop(claim, None)

    def end_alone(self, claim: Claim, trouble: Exception | None = None) -> None:
        """End a claim that could not end with others, or met trouble with that."""
        task = self._handling[claim] = self._loop.create_task(claim.end_alone(trouble))
        task.add_done_callback(lambda _: self._handling.pop(claim, None))

    async def _all_handled(self) -> None:
        """Wait for all handlers, and until their claims are settled."""
        while self._handling or self._ends.busy:
            if self._handling:
                done, _ = await asyncio.wait(self._handling.values())
                for claim, task in tuple(self._handling.items()):
                    if task in done:  # it was cancelled before it began
                        del self._handling[claim]
            else:
                await self._ends.all_ended()

    async def _next(self) -> Claim | None:
        """The next claim; None when it is to stop."""
        self._fleet.keep()
        while not self._worker_loop.reason:
            if self._came:
                return self._came.popleft()
            if self._error is not None:
                raise self._error
            self._ask()
            self._changed.clear()
            await self._changed.wait()
        return None

    def _ask(self) -> None:
        """Request further claims, if the worker has room for them and asks for none."""
        if self._worker_loop.reason or self._error or self._asking:
            return
        if (wanted := min(self._room(), self._portion)) > 0:
            task = self._loop.create_task(self._claim_some(wanted))
            self._asking[task] = wanted
            task.add_done_callback(self._asked)

    def _follow_lapses(self, *, wanted: bool = True) -> None:
        lease = self._worker_loop.lease
        if lease is not None and self._lapsed in lease.listeners:
            if not wanted:
                lease.listeners.remove(self._lapsed)
        elif lease is not None and wanted:
            lease.listeners.append(self._lapsed)

    async def _claim_some(self, wanted: int) -> None:
        self._follow_lapses()
        store, worker_loop = self._fleet.store, self._worker_loop
        found = await drive_async(worker_loop.claim_some(wanted), store)
        if not found:
            self._dry, self._portion, self._waiting = True, 1, True
            self._asking = dict.fromkeys(self._asking, 1)
            self._worker_loop.report(self._open.values())
            try:
                found = await drive_async(worker_loop.claim_some(1, validate.FOREVER), store)
            finally:
                self._waiting = False
        self._came_together(found, wanted)

    def _came_together(self, found: Sequence[HeldClaim], wanted: int) -> None:
        """Claims of a request for so many."""
        if found:
            self._dry = False
        if len(found) == wanted:
            self._portion = min(2 * max(wanted, self._portion), self._concurrency)
        self._give(found)

    def ends_together(self, end: TaskEnd) -> Ending | None:
        """End a claim together with those that end in the same moment, and claim others with it."""
        if self._concurrency == 1 or not end.small:
            return None
        return lambda _: self._end_with_others(end)

    def _end_with_others(self, end: TaskEnd) -> Op[CompleteOutcome]:
        if (yield self._ends.step(end)):
            return TaskCompleted(task=end.claimant.task)
        context = self._fleet.context
        return (yield from context.tasks.complete(context.me().actor, end.claimant, end.result))

    async def _end(self, ends: Sequence[TaskEnd]) -> frozenset[str]:
        """Complete some tasks, and ask for as many claims with that as there is room for then."""
        free = max(0, min(self._room(), self._portion))
        wanted = 0 if self._dry or self._leaving or self._error else len(ends) + free
        self._ends.claiming = free if wanted else 0
        try:
            ended, found = await drive_async(
                self._worker_loop.end_and_claim(ends, wanted), self._fleet.store
            )
        finally:
            self._ends.claiming = 0
        self._came_together(found, wanted)
        self._changed.set()
        return ended

    def next_claim(self) -> NextClaim | None:
        """The claim that goes along with the end of another task, if there is room for it."""
        if self._leaving or self._dry or self._error or self._room() < 0:
            return None
        if (then := self._worker_loop.next_claim()) is not None:
            self._following.add(then)
        return then

    def take_next(self, then: NextClaim, claimed: Claimed) -> Op[None]:
        """The next task was claimed with the end of another."""
        try:
            self._give(((yield from self._worker_loop.hold_next(then, claimed)),))
        finally:
            self.no_next(then)

    def no_next(self, then: NextClaim) -> None:
        """No request with the end of a task is under way."""
        self._following.discard(then)
        self._ask()
        self._changed.set()

    def _room(self) -> int:
        """How many more claims the worker may ask for."""
        asked = sum(self._asking.values()) + len(self._reserved) + len(self._following)
        return self._concurrency - len(self._open) - asked - self._ends.claiming

    def _take(self, working: HeldClaim) -> None:
        """A claim of this worker: the loop hands it out next."""
        working.worker = self
        grant = working.claimed.grant
        self._open[grant] = working.claimed.task
        working.on_settled = partial(self._settled, grant)
        self._came.append(Claim(working, in_loop=True))

    def _asked(self, task: asyncio.Task[None]) -> None:
        self._asking.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Lapsed | StoreClosed) and self._fleet.closed:
            self.stop("the client was closed")
        elif error is not None:
            self._error = error
        elif not self._dry:
            self._ask()
        self._changed.set()

    def _settled(self, grant: str) -> None:
        self._open.pop(grant, None)
        if not self._ends.committed:
            self._ask()

    def _lapsed(self) -> None:
        """Cancel the waiting requests of an expired session: they begin again with a new one."""
        for task in self._asking:
            task.cancel()
        self._changed.set()

    async def _give_back(self) -> None:
        """Release the claims that were not handed out."""
        self.stop("its loop was left")
        while self._asking:
            await asyncio.wait(self._asking)
        came, self._came = list(self._came), deque()
        await asyncio.gather(*[claim.let_go() for claim in came])
        self._worker_loop.report(self._open.values())

    def _listening(self) -> AsyncExitStack:
        """Listen to signals and stop messages, once for the loop and for ``serve``.

        It is no generator: an event loop that ends closes all generators at once.
        """
        stack, stops = AsyncExitStack(), self._worker_loop.stops
        stack.enter_context(SignalListener(self._on_signal, wanted=self._signals))
        if stops is not None and self._stop_listener is None:
            store = self._fleet.store
            self._stop_listener = self._loop.create_task(
                going_on_async(
                    lambda: drive_async(stops.listen(self._obey), store), "interlock-stops"
                )
            )
            stack.push_async_callback(self._end_listening, self._stop_listener)
        return stack

    async def _end_listening(self, listener: asyncio.Task[None]) -> None:
        self._stop_listener = None
        listener.cancel()
        await asyncio.wait((listener,))
        with suppress(StoreClosed):  # with the client: its session has ended
            await drive_async(self._worker_loop.acknowledge_stops(), self._fleet.store)

    def _obey(self, stop: StopNotice) -> None:
        """Handle a stop message; the second one also breaks off the open claims."""
        second = self._worker_loop.handle_stop(stop)
        self.stop()
        if second and self._ending is None:
            self._ending = self._loop.create_task(self._end_now(f"a message ({stop})"))

    async def _end_now(self, name: str) -> None:
        """Acknowledge the stop messages, if that is quick, and break off.

        The store may be closed by the time the loop ends.
        """
        done = self._loop.create_task(
            drive_async(self._worker_loop.acknowledge_stops(), self._fleet.store)
        )
        await asyncio.wait((done,), timeout=AGAIN)
        self._break_off(name)

    def _on_signal(self, number: int) -> None:
        """Handle a signal, which may come at any moment: the event loop does the work later."""
        name = signal.Signals(number).name
        act = self._break_off if self._signalled else self._stop_for
        self._signalled = True
        self._worker_loop.stop(name)
        self._loop.call_soon_threadsafe(act, name)

    def _stop_for(self, name: str) -> None:
        self.stop(name)
        if self._open:
            import logging

            said = "%s: %d open claims are finished first; a second signal releases them"
            logging.getLogger("interlock").warning(said, name, len(self._open))

    def _break_off(self, name: str) -> None:
        if self._worker is not None:
            self._worker.cancel(f"{name} came while it was to stop")


class _ServedEnd:
    """The end of a claim whose handler has returned."""

    __slots__ = ("_claim", "_worker")

    def __init__(self, worker: Worker, claim: Claim) -> None:
        self._worker = worker
        self._claim = claim

    def ended(self, *, complete: bool) -> None:
        """The commit is over."""
        if complete:
            self._claim.ended_together()
        else:
            self._worker.end_alone(self._claim)

    def failed(self, error: BaseException) -> None:
        """The task ends by itself then; if the worker breaks off, it is released."""
        if isinstance(error, Exception):
            self._worker.end_alone(self._claim, error)
        else:
            self._claim.give_up()


async def _timed(claim: Claim, handler: TaskHandler[Handler]) -> object:
    """Call a handler; if it takes too long, cancel it, and fail the attempt."""
    limit = asyncio.timeout(handler.timeout)
    try:
        async with limit:
            return await handler.function(claim)
    except TimeoutError:
        if not limit.expired():
            raise
        await claim.fail(handler.too_late)
        return None
