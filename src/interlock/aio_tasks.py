"""Tasks of the asyncio client.

async for claim in fleet.tasks.work(can=["rust"]):
    async with claim:
        await build(claim.data)
"""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from interlock.aio import BlockTask, Fleet, offered
from interlock.core import validate
from interlock.errors import InterlockError, Lapsed, StoreClosed
from interlock.nouns.messages.stops import StopNotice
from interlock.nouns.tasks.calls import TaskCalls
from interlock.nouns.tasks.held_claim import (
    LEFT,
    WENT_ON,
    ClaimHandle,
    HeldClaim,
    claim_for_block,
)
from interlock.nouns.tasks.task import Claimed
from interlock.nouns.tasks.waiting_workers import ReservedSlot
from interlock.nouns.tasks.worker import MOST_AT_ONCE, SignalListener, WorkerLoop
from interlock.runtime.calls import Awaiting
from interlock.runtime.outage import AGAIN
from interlock.steps import Op, drive_async

if TYPE_CHECKING:
    from interlock.nouns.tasks.next_claim import NextClaim


class Tasks(TaskCalls[Awaiting]):
    """Tasks, by name."""

    def hold(
        self,
        task: str | None = None,
        *,
        can: Iterable[str] = (),
        ttl: float | str | None = None,
        wait: float | str = 0,
    ) -> Hold:
        """Claim one task for an ``async with`` block, which completes it at the end.

        Without an id it is the next task that you ``can`` do.
        The task fails if the block raises, and is released if the block is cancelled.  If the task
        cannot be claimed, ``hold`` raises Unavailable, whose ``outcome`` says why.  If the claim is
        lost, the block is cancelled and raises Lost.
        """
        claiming = partial(claim_for_block, self.context, task, can=can, ttl=ttl, wait=wait)
        return Hold(self.context.client, claiming)

    def work(
        self,
        *,
        can: Iterable[str] = (),
        concurrency: int = 1,
        ttl: float | str | None = None,
        stop_on_signals: bool = True,
        stop_on_messages: bool = True,
    ) -> Worker:
        """Claim one task after the other: ``async for claim in fleet.tasks.work(can=["rust"]):``.

        Use ``async with claim:`` in the body: its end completes the task; an exception fails the
        attempt and is logged, and the loop continues.  A claim that is neither entered nor settled
        is never completed: its attempt fails when the loop continues or ends.  With a
        ``concurrency`` above one the loop continues while fewer claims than that are open: start an
        asyncio task for each.  After SIGTERM, SIGINT, a stop message or ``worker.stop()`` the
        worker finishes its open claims and claims no more; a second signal, or a second message,
        cancels the loop, which releases the open claims, too.
        """
        many = validate.count(concurrency, "concurrency", MOST_AT_ONCE)
        worker_loop = WorkerLoop(self.context, can, ttl, messages=stop_on_messages)
        return Worker(self.context.client, worker_loop, many, signals=stop_on_signals)

    async def serve(
        self,
        handler: Callable[[Claim], Awaitable[object]],
        *,
        can: Iterable[str] = (),
        concurrency: int = 1,
        ttl: float | str | None = None,
        stop_on_signals: bool = True,
        stop_on_messages: bool = True,
    ) -> None:
        """Await ``handler(claim)`` for ``concurrency`` tasks at once, until the worker stops.

        Its return value is the result of the task; its exception is the reason of the failure.
        """
        worker = self.work(
            can=can,
            concurrency=concurrency,
            ttl=ttl,
            stop_on_signals=stop_on_signals,
            stop_on_messages=stop_on_messages,
        )
        await worker.serve(handler)


@offered
class Claim(ClaimHandle[Awaiting]):
    """A claimed task.

    The end of its ``async with`` block completes the task; it fails if the block raises, and is
    released if the block is cancelled.  If the claim is lost, the block is cancelled and raises
    Lost.  In the loop of a worker an exception of the block is logged, and the loop continues; a
    cancellation ends it.
    """

    def __init__(self, working: HeldClaim, *, in_loop: bool = False) -> None:
        super().__init__(working, in_loop=in_loop)
        self._block: BlockTask | None = None

    async def __aenter__(self) -> Self:
        self._entered = True
        if self._holding.lost() and not self._in_loop:
            self._holding.give_up()
            raise self.over()
        self._block = BlockTask()
        self._holding.on_lost = self._block.cancel
        if self._holding.lost():
            self._block.cancel()
        self.take_up()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> bool:
        self._holding.on_lost = None
        ours = self._block is not None and self._block.end()
        try:
            if ours and kind is asyncio.CancelledError:
                self._holding.give_up()
                raise self.over() from None
            await drive_async(self._holding.end(error), self.context.store)
        except InterlockError as trouble:
            if not self._log_error(trouble):
                raise
            return True
        return self._log_error(error)


class Hold:
    """``async with fleet.tasks.hold(...)``: claims it, works inside, completes it at the end."""

    def __init__(self, fleet: Fleet, claiming: Callable[[], Op[HeldClaim]]) -> None:
        self._fleet = fleet
        self._claiming = claiming
        self._claim: Claim | None = None

    async def __aenter__(self) -> Claim:
        context = self._fleet.context
        working = await drive_async(self._claiming(), context.store)
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

    With a concurrency of one, a claim that the loop neither entered (``async with claim:``) nor
    settled is never completed: its attempt fails when the loop continues or ends; if the worker is
    to stop, it is released.  With more, the code that works on a claim settles it, and a claim that
    is garbage-collected is released.

    While there is work, the worker makes as many requests at once as its concurrency allows.  When
    there is none, a single request waits.
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
        self._ear: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._heard_before = False
        self._open: dict[str, str] = {}
        """The task of each claim that is not settled yet."""
        self._came: deque[Claim] = deque()
        self._asking: set[asyncio.Task[None]] = set()
        self._reserved: set[ReservedSlot] = set()
        self._following: set[NextClaim] = set()
        """Requests that go along with the end of a claim; each is for the slot of that claim."""
        self._waiting = False
        self._leaving = False
        self._dry = False
        self._error: BaseException | None = None
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
            self._give(claim)
            self._changed.set()

    def _give(self, claim: HeldClaim) -> None:
        """A claim that came while it was not asked for by itself."""
        if self._worker_loop.reason:
            claim.give_up()
        else:
            self._take(claim)

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
                self._hear_of_lapses(wanted=False)
                if claim is not None and self._settles:
                    await (claim.let_go() if self._worker_loop.reason else claim.passed_over(LEFT))
                await self._give_back()

    async def serve(self, handler: Callable[[Claim], Awaitable[object]]) -> None:
        """Handle each claim; the handler returns the result, or raises the reason of a failure."""
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
        while not self._worker_loop.reason:
            if self._came:
                return self._came.popleft()
            if self._error is not None:
                raise self._error
            self._ask()
            self._changed.clear()
            await self._changed.wait()
        return None

    def _ask(self, most: int = 1) -> None:
        """Start up to ``most`` more requests for a claim, if the worker has capacity for them."""
        if self._worker_loop.reason or self._error or (self._dry and self._asking):
            return
        for _ in range(min(self._room(), most)):
            task = self._loop.create_task(self._claim_one())
            self._asking.add(task)
            task.add_done_callback(self._asked)

    def _hear_of_lapses(self, *, wanted: bool = True) -> None:
        lease = self._worker_loop.lease
        if lease is not None and self._lapsed in lease.listeners:
            if not wanted:
                lease.listeners.remove(self._lapsed)
        elif lease is not None and wanted:
            lease.listeners.append(self._lapsed)

    async def _claim_one(self) -> None:
        self._hear_of_lapses()
        working = await drive_async(self._worker_loop.claim_next(), self._fleet.store)
        if working is None:
            self._dry = True
            if self._waiting:
                return
            self._waiting = True
            self._worker_loop.report(self._open.values())
            try:
                working = await drive_async(
                    self._worker_loop.claim_next(validate.FOREVER), self._fleet.store
                )
            finally:
                self._waiting = False
        if working is not None:
            self._dry = False
            self._take(working)

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
            self._give((yield from self._worker_loop.hold_next(then, claimed)))
        finally:
            self.no_next(then)

    def no_next(self, then: NextClaim) -> None:
        """No request with the end of a task is under way."""
        self._following.discard(then)
        self._ask()
        self._changed.set()

    def _room(self) -> int:
        """How many more claims the worker may ask for."""
        taken = len(self._open) + len(self._asking) + len(self._reserved) + len(self._following)
        return self._concurrency - taken

    def _take(self, working: HeldClaim) -> None:
        """A claim of this worker: the loop hands it out next."""
        working.worker = self
        grant = working.claimed.grant
        self._open[grant] = working.claimed.task
        self._worker_loop.report(self._open.values())
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
        """Cancel the waiting requests of an expired session: they begin again with a new one."""
        for task in self._asking:
            task.cancel()
        self._changed.set()

    async def _give_back(self) -> None:
        """Release the claims that were not handed out."""
        self.stop("its loop was left")
        while self._asking:
            await asyncio.wait(self._asking)
        while self._came:
            await self._came.popleft().let_go()
        self._worker_loop.report(self._open.values())

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        """Listen to signals and stop messages, once for the loop and for ``serve``."""
        stops, store = self._worker_loop.stops, self._fleet.store
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
                await drive_async(self._worker_loop.acknowledge_stops(), store)

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

    def _heard(self, number: int) -> None:
        """Handle a signal, which may come at any moment: the event loop does the work later."""
        name = signal.Signals(number).name
        act = self._break_off if self._heard_before else self._stop_for
        self._heard_before = True
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


async def _handled(claim: Claim, handler: Callable[[Claim], Awaitable[object]]) -> None:
    """Handle one claim."""
    async with claim:
        result = await handler(claim)
        if not claim.settled:
            await claim.conclude(result)
