"""Tasks of the asyncio client.

async for claim in fleet.tasks.work(can=["rust"]):
    async with claim:
        await build(claim.data)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias, TypeVar

from interlock.aio import BlockTask, Fleet, offered
from interlock.core import validate
from interlock.errors import InterlockError
from interlock.nouns.tasks.calls import TaskCalls
from interlock.nouns.tasks.claim_handle import ClaimHandle
from interlock.nouns.tasks.held_claim import HeldClaim, claim_for_block
from interlock.runtime.calls import Awaiting
from interlock.steps import Op, drive_async

if TYPE_CHECKING:
    from interlock.aio_worker import Worker


class Tasks(TaskCalls[Awaiting]):
    """Tasks, by name."""

    def hold(
        self,
        task: str | None = None,
        *,
        can: Iterable[str] | None = None,
        ttl: float | str | None = None,
        wait: float | str = 0,
    ) -> Hold:
        """Claim one task for an ``async with`` block, which completes it at the end.

        Without an id it is the next task that you ``can`` do; what your session reports, unless you
        name it here.
        The task fails if the block raises, and is released if the block is cancelled.  If the task
        cannot be claimed, ``hold`` raises Unavailable, whose ``outcome`` says why.  If the claim is
        lost, the block is cancelled and raises Lost.
        """
        claiming = partial(claim_for_block, self.context, task, can=can, ttl=ttl, wait=wait)
        return Hold(self.context.client, claiming)

    def work(
        self,
        *,
        can: Iterable[str] | None = None,
        concurrency: int = 1,
        ttl: float | str | None = None,
        stop_on_signals: bool = True,
        stop_on_messages: bool = True,
    ) -> Worker:
        """Claim one task after the other: ``async for claim in fleet.tasks.work(can=["rust"]):``.

        Use ``async with claim:`` in the body: its end completes the task.  Code after the block
        runs even if its body raised: the exception fails the attempt, is logged, and does not leave
        the block; ``claim.ended`` says how the task ended.  A claim that is neither entered nor
        settled is never completed: its attempt fails when the loop continues or ends.  With a
        ``concurrency`` above one the loop continues while fewer claims than that are open: start an
        asyncio task for each.  After SIGTERM, SIGINT, a stop message or ``worker.stop()`` the
        worker finishes its open claims and claims no more; a second signal, or a second message,
        cancels the loop, which releases the open claims, too.
        """
        from interlock.aio_worker import Worker  # a command that claims needs none
        from interlock.nouns.tasks.worker import MOST_AT_ONCE, WorkerLoop

        many = validate.count(concurrency, "concurrency", MOST_AT_ONCE)
        worker_loop = WorkerLoop(self.context, can, ttl, messages=stop_on_messages)
        return Worker(self.context.client, worker_loop, many, signals=stop_on_signals)

    async def serve(
        self,
        handler: Callable[[Claim], Awaitable[object]],
        *,
        can: Iterable[str] | None = None,
        concurrency: int = 1,
        timeout: float | str | None = None,
        ttl: float | str | None = None,
        stop_on_signals: bool = True,
        stop_on_messages: bool = True,
    ) -> None:
        """Await ``handler(claim)`` for ``concurrency`` tasks at once, until the worker stops.

        Its return value is the result of the task; its exception is the reason of the failure.  A
        call that takes longer than ``timeout`` is cancelled, and its attempt fails.
        """
        worker = self.work(
            can=can,
            concurrency=concurrency,
            ttl=ttl,
            stop_on_signals=stop_on_signals,
            stop_on_messages=stop_on_messages,
        )
        await worker.serve(handler, timeout=timeout)


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
        holding, block = self._holding, BlockTask()
        self._block, holding.on_lost = block, block.cancel
        if holding.lost():
            if not self._in_loop:
                holding.on_lost = None
                holding.give_up()
                raise self.over()
            block.cancel()
        holding.take_up()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> bool:
        self._holding.on_lost = None
        ours = self._block is not None and self._block.end()
        if self._holding.put_off:
            return False
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

    async def end_alone(self, trouble: Exception | None) -> None:
        """End it as its block would have, if it could not end with others or met trouble."""
        self._holding.end_alone(trouble)
        await self.__aexit__(None if trouble is None else type(trouble), trouble, None)


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


Handler: TypeAlias = Callable[[Claim], Awaitable[object]]
"""A coroutine function that works on a claim."""
AnyHandler = TypeVar("AnyHandler", bound=Handler)
