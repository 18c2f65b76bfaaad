"""Requests of the asyncio client.

await fleet.requests.serve(handler, can=["audit"], concurrency=50)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from interlock.nouns.requests.calls import RequestCalls
from interlock.nouns.requests.request import LEASE
from interlock.nouns.requests.service import NOT_KEPT, NOT_TAKEN_IN
from interlock.nouns.requests.serving import ServedRequest, abilities, settled_async
from interlock.nouns.swarms.link import SwarmLink
from interlock.runtime.calls import Awaiting
from interlock.runtime.outage import AGAIN
from interlock.steps import Op, drive_async

if TYPE_CHECKING:
    from interlock.aio import Fleet
    from interlock.aio_tasks import Claim


class Requests(RequestCalls[Awaiting]):
    """Requests to other swarms, and those that came from them."""

    async def serve(
        self,
        handler: Callable[[ServedRequest], Awaitable[object]],
        *,
        can: Iterable[str] = (),
        concurrency: int = 1,
        ttl: float | str = LEASE,
        stop_on_signals: bool = True,
        stop_on_messages: bool = True,
    ) -> None:
        """Await ``handler(request)`` for ``concurrency`` requests at once, until it stops.

        These are the requests to our agent by name, and to any agent that ``can`` do it.  What the
        handler returns is the result, which is committed together with the end of the task; its
        exception is an answer, too, with the status ``error``.  Execution is at least once: use
        ``request.id`` where the work must have its effect once.  ``ttl`` is how long a claim lives
        if this process dies; then another worker begins.
        """
        fleet: Fleet = self.context.client

        async def handle(claim: Claim) -> None:
            request = ServedRequest(claim)
            ending, good = await settled_async(self.context, request, handler(request))
            await claim.settle(ending, good)

        worker = fleet.tasks.work(
            can=abilities(self.context, can),
            concurrency=concurrency,
            ttl=ttl,
            stop_on_signals=stop_on_signals,
            stop_on_messages=stop_on_messages,
        )
        async with self.tending():
            await worker.serve(handle)

    @asynccontextmanager
    async def tending(self) -> AsyncIterator[None]:
        """Take in, post and repeat requests and keep our swarm on its bus, in the block."""
        over = False
        service, actor = self.context.requests, self.context.me().actor
        await drive_async(service.begin(actor), self.context.store)

        async def repeat(what: str, work: Callable[[], Op[None]]) -> None:
            while not over:
                with service.going_on(what):
                    await drive_async(work(), self.context.store)
                await asyncio.sleep(AGAIN)

        works: dict[str, Callable[[], Op[None]]] = {
            NOT_TAKEN_IN: lambda: service.follow(actor, lambda: over),
            NOT_KEPT: lambda: SwarmLink(self.context).run(lambda: over),
        }
        tasks = [asyncio.create_task(repeat(what, work)) for what, work in works.items()]
        try:
            yield
        finally:
            over = True
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
