"""Tasks of the asyncio client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from interlock.core import validate
from interlock.nouns.tasks.calls import TaskCalls
from interlock.runtime.calls import Awaiting

if TYPE_CHECKING:
    from interlock.aio_work import Claim, Hold, Worker


class Tasks(TaskCalls[Awaiting]):
    """Tasks, by name."""

    def hold(self, task: str, *, ttl: float | str | None = None, wait: float | str = 0) -> Hold:
        """Claim one task for an ``async with`` block, which completes it at the end.

        The task fails if the block raises, and is released if the block is cancelled.  If the task
        cannot be claimed, ``hold`` raises Unavailable, whose ``outcome`` says why.  If the claim is
        lost, the block is cancelled and raises Lost.
        """
        from interlock.aio_work import Hold

        return Hold(self.context.client, task, ttl=ttl, wait=wait)

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
        from interlock.aio_work import Worker
        from interlock.nouns.tasks.worker import MOST_AT_ONCE, WorkerLoop

        many = validate.count(concurrency, "concurrency", MOST_AT_ONCE)
        shift = WorkerLoop(self.context, can, ttl, messages=stop_on_messages)
        return Worker(self.context.client, shift, many, signals=stop_on_signals)

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
