"""Tasks for event loops."""

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

        It is failed if the block raises, and released if the block is cancelled.  If the task
        cannot be claimed it raises Unavailable, whose ``outcome`` says why.  If the claim is lost,
        the block is cancelled and raises Lost.
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

        Use ``async with claim:`` in the body: its end completes the task; what it raises fails the
        attempt and is logged, and the loop goes on.  A claim that is neither entered nor settled is
        never completed: its attempt fails when the loop comes round or is left.  With a
        ``concurrency`` of more than one it goes on while fewer claims than that are open: begin a
        task for each.  SIGTERM, SIGINT, a stop message and ``worker.stop()`` let it finish what is
        open; a second signal, or a second message, cancels the loop, which releases that, too.
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
        """Await ``handler(claim)`` for so many tasks at once, until it is to stop.

        What it returns becomes the result of the task, and what it raises the reason for failing.
        """
        worker = self.work(
            can=can,
            concurrency=concurrency,
            ttl=ttl,
            stop_on_signals=stop_on_signals,
            stop_on_messages=stop_on_messages,
        )
        await worker.serve(handler)
