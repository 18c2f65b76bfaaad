"""Working on tasks, for event loops.

async for claim in fleet.tasks.work(can=["rust"]):
    async with claim:
        await build(claim.data)
"""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

from interlock.aio import Fleet
from interlock.core import validate
from interlock.core.decision import Proof
from interlock.drivers import drive_async
from interlock.errors import InterlockError, Lapsed, StoreClosed
from interlock.nouns.messages.stops import StopNotice
from interlock.nouns.tasks import task as core
from interlock.nouns.tasks.held_claim import LEFT, WENT_ON, ClaimHandle, HeldClaim, claim_for_block
from interlock.nouns.tasks.worker import SignalListener, WorkerLoop
from interlock.runtime.outage import AGAIN


class Claim(ClaimHandle):
    """A task in our hands.

    As an ``async with`` block it is completed at the end, failed if the block raises, and released
    if the block is cancelled.  If it is no longer ours, the block is cancelled and raises Lost.
    In the loop of a worker, what the block raises is logged, and the loop goes on; a cancellation
    ends it.
    """

    def __init__(self, working: HeldClaim, *, in_loop: bool = False) -> None:
        super().__init__(working, in_loop=in_loop)
        self._block: _Block | None = None

    def check(self) -> Awaitable[Proof]:
        """Ask the store whether it is still ours; raises Lost if not.

        The proof can be carried by another commit: ``fleet.lock(..., given=[proof])``.
        """
        return drive_async(self._working.check(), self._working.context.store)

    def complete(self, result: object = None) -> Awaitable[core.Completed]:
        """The task is done; raises Lost if it was no longer ours."""
        return drive_async(self._working.complete(result), self._working.context.store)

    def fail(
        self, reason: str, error: object = None, *, retry: bool = True
    ) -> Awaitable[core.Failed]:
        """The attempt failed; ``retry=False`` says that no other will ever succeed."""
        op = self._working.fail(reason, error, retry=retry)
        return drive_async(op, self._working.context.store)

    def release(self) -> Awaitable[core.TaskReleased]:
        """Give the task back to the queue; no attempt is counted."""
        return drive_async(self._working.release(), self._working.context.store)

    async def let_go(self) -> None:
        """Give it back, unless somebody works on it or has settled it."""
        if self.forgotten:
            await drive_async(self._working.end(GeneratorExit()), self._working.context.store)

    async def passed_over(self, reason: str) -> None:
        """Fail the attempt, unless somebody works on it or has settled it."""
        if self.forgotten:
            await drive_async(self._passed_over(reason), self._working.context.store)

    async def __aenter__(self) -> Self:
        self._entered = True
        if self._working.lost() and not self._in_loop:
            self._working.give_up()
            raise self.over()
        self._block = _Block()
        self._working.on_lost = self._block.cancel
        if self._working.lost():
            self._block.cancel()
        self.take_up()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> bool:
        self._working.on_lost = None
        ours = self._block is not None and self._block.end()
        try:
            if ours and kind is asyncio.CancelledError:
                self._working.give_up()
                raise self.over() from None
            await drive_async(self._working.end(error), self._working.context.store)
        except InterlockError as trouble:
            if not self._told(trouble):
                raise
            return True
        return self._told(error)


class _Block:
    """The task that works inside of a block, to be cancelled once."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._cancelled = False

    def cancel(self) -> None:
        """The claim is lost."""
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    def end(self) -> bool:
        """Whether it was cancelled by us alone."""
        return self._cancelled and self._task is not None and self._task.uncancel() == 0


class Hold:
    """``async with fleet.tasks.hold(...)``: claims it, works inside, completes it at the end."""

    def __init__(
        self, fleet: Fleet, task: str, *, ttl: float | str | None, wait: float | str
    ) -> None:
        self._fleet = fleet
        self._asked = (task, ttl, wait)
        self._claim: Claim | None = None

    async def __aenter__(self) -> Claim:
        task, ttl, wait = self._asked
        context = self._fleet.context
        working = await drive_async(
            claim_for_block(context, task, ttl=ttl, wait=wait), context.store
        )
        self._claim = Claim(working)
        self._fleet.keep()
        return await self._claim.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._claim is not None:
            await self._claim.__aexit__(kind, error, trace)


class Worker:
    """Claims tasks for an ``async for`` loop, as long as fewer than ``concurrency`` are open.

    One at a time, a claim that the loop neither entered (``async with claim:``) nor settled is
    never completed: its attempt fails when the loop comes round or is left; if the worker is to
    stop, it is released.  If several are open at once, each of them is settled by whoever works on
    it, and released when that drops it.

    It asks with as many calls at once as there is room for, while there is work.  When there is
    none, one call waits for all.
    """

    def __init__(self, fleet: Fleet, shift: WorkerLoop, concurrency: int, *, signals: bool) -> None:
        self._fleet = fleet
        self._shift = shift
        self._concurrency = concurrency
        self._signals = signals
        self._settles = concurrency == 1
        """Whether the loop settles what its body left as it was."""
        self._loop = asyncio.get_running_loop()
        self._worker: asyncio.Task[Any] | None = None
        self._ear: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._heard_before = False
        self._open: dict[str, str] = {}
        """The task of each claim that is not settled yet."""
        self._came: deque[Claim] = deque()
        self._asking: set[asyncio.Task[None]] = set()
        self._waiting = False
        self._dry = False
        self._error: BaseException | None = None
        self._changed = asyncio.Event()

    def stop(self, reason: str = "") -> None:
        """Finish what is open, and claim no more."""
        self._shift.stop(reason)
        for task in self._asking:
            task.cancel()
        self._changed.set()

    @property
    def stopped(self) -> str:
        """Why it is to stop; empty while it is not."""
        return self._shift.reason

    async def __aiter__(self) -> AsyncIterator[Claim]:
        self._worker = asyncio.current_task()
        claim: Claim | None = None
        async with self._listening():
            try:
                while (claim := await self._next()) is not None:
                    if self._settles:
                        claim.take_up()
                    yield claim
                    if self._settles:
                        await claim.passed_over(WENT_ON)
                    claim = None  # of several, nobody but who works on it may keep it
            finally:
                self._hear_of_lapses(wanted=False)
                if claim is not None and self._settles:
                    await (claim.let_go() if self._shift.reason else claim.passed_over(LEFT))
                await self._give_back()

    async def serve(self, handler: Callable[[Claim], Awaitable[object]]) -> None:
        """Have each claim handled; what that returns is the result, and what it raises why not."""
        self._worker = asyncio.current_task()
        self._settles = False
        tasks: set[asyncio.Task[None]] = set()
        async with self._listening():
            try:
                async for claim in self:
                    task = self._loop.create_task(_handled(claim, handler))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _next(self) -> Claim | None:
        """The next claim; None when it is to stop."""
        self._fleet.keep()
        while not self._shift.reason:
            if self._came:
                return self._came.popleft()
            if self._error is not None:
                raise self._error
            self._ask()
            self._changed.clear()
            await self._changed.wait()
        return None

    def _ask(self, most: int = 1) -> None:
        """Begin to ask for so many more, as far as there is room and hope."""
        room = self._concurrency - len(self._open) - len(self._asking)
        if self._shift.reason or self._error or (self._dry and self._asking):
            return
        for _ in range(min(room, most)):
            task = self._loop.create_task(self._claim_one())
            self._asking.add(task)
            task.add_done_callback(self._asked)

    def _hear_of_lapses(self, *, wanted: bool = True) -> None:
        lease = self._shift.lease
        if lease is not None and self._lapsed in lease.listeners:
            if not wanted:
                lease.listeners.remove(self._lapsed)
        elif lease is not None and wanted:
            lease.listeners.append(self._lapsed)

    async def _claim_one(self) -> None:
        self._hear_of_lapses()
        working = await drive_async(self._shift.claim_next(), self._fleet.store)
        if working is None:
            self._dry = True
            if self._waiting:
                return
            self._waiting = True
            self._shift.report(self._open.values())
            try:
                working = await drive_async(
                    self._shift.claim_next(validate.FOREVER), self._fleet.store
                )
            finally:
                self._waiting = False
        if working is not None:
            grant = working.claimed.grant
            self._dry = False
            self._open[grant] = working.claimed.task
            self._shift.report(self._open.values())
            working.on_settled = lambda: self._settled(grant)
            self._came.append(Claim(working, in_loop=True))

    def _asked(self, task: asyncio.Task[None]) -> None:
        self._asking.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Lapsed | StoreClosed) and self._fleet.closed:
            self.stop("the client was closed")
        elif error is not None:
            self._error = error
        elif not self._dry:
            self._ask(2)
        self._changed.set()

    def _settled(self, grant: str) -> None:
        self._open.pop(grant, None)
        self._ask()

    def _lapsed(self) -> None:
        """Our session is over: what waits begins again, with another one."""
        for task in self._asking:
            task.cancel()
        self._changed.set()

    async def _give_back(self) -> None:
        """Release what came and was not handed out."""
        self.stop("its loop was left")
        while self._asking:
            await asyncio.wait(self._asking)
        while self._came:
            await self._came.popleft().let_go()
        self._shift.report(self._open.values())

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        """Hear signals and messages meanwhile, once for the loop and whoever serves with it."""
        stops, store = self._shift.stops, self._fleet.store
        with SignalListener(self._heard, wanted=self._signals):
            if stops is None or self._ear is not None:
                yield
                return
            ear = self._ear = self._loop.create_task(
                drive_async(stops.listen(self._obey), store), name="interlock-stops"
            )
            try:
                yield
            finally:
                self._ear = None
                ear.cancel()
                await asyncio.wait((ear,))
                await drive_async(self._shift.acknowledge_stops(), store)

    def _obey(self, stop: StopNotice) -> None:
        """A message came; the second one says not to finish, either."""
        second = self._shift.handle_stop(stop)
        self.stop()
        if second and self._ending is None:
            self._ending = self._loop.create_task(self._end_now(f"a message ({stop})"))

    async def _end_now(self, name: str) -> None:
        """Acknowledge what asked for it, if that takes no time, and break off.

        The store may be closed by the time at which our loop comes to its end.
        """
        done = self._loop.create_task(
            drive_async(self._shift.acknowledge_stops(), self._fleet.store)
        )
        await asyncio.wait((done,), timeout=AGAIN)
        self._break_off(name)

    def _heard(self, number: int) -> None:
        """A signal came, at whatever moment: what has to be done with the loop is done later."""
        name = signal.Signals(number).name
        act = self._break_off if self._heard_before else self.stop
        self._heard_before = True
        self._shift.stop(name)
        self._loop.call_soon_threadsafe(act, name)

    def _break_off(self, name: str) -> None:
        if self._worker is not None:
            self._worker.cancel(f"{name} came while it was to stop")


async def _handled(claim: Claim, handler: Callable[[Claim], Awaitable[object]]) -> None:
    """Let one claim be handled."""
    async with claim:
        result = await handler(claim)
        if not claim.settled:
            await claim.complete(result)
