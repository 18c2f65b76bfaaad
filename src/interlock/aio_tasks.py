"""Tasks for event loops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Self

from interlock.aio import Fleet, Noun, awaited
from interlock.core import validate
from interlock.drivers import drive_async
from interlock.errors import StoreClosed, StoreTrouble
from interlock.nouns.tasks.calls import TaskCalls
from interlock.nouns.tasks.task import TaskEvent
from interlock.runtime.context import Context
from interlock.runtime.outage import AGAIN, Outage

if TYPE_CHECKING:
    from interlock.aio_work import Claim, Hold, Worker
    from interlock.nouns.tasks.events import TaskEventFeed


class Tasks(Noun[TaskCalls]):
    """Tasks, by name."""

    def __init__(self, calls: TaskCalls, fleet: Fleet) -> None:
        super().__init__(calls)
        self._fleet = fleet

    publish = add = awaited(TaskCalls.publish)
    publish_all = import_ = awaited(TaskCalls.publish_all)
    claim = awaited(TaskCalls.claim)
    next = awaited(TaskCalls.next)
    complete = done = awaited(TaskCalls.complete)
    fail = awaited(TaskCalls.fail)
    release = awaited(TaskCalls.release)
    heartbeat = beat = awaited(TaskCalls.heartbeat)
    cancel = awaited(TaskCalls.cancel)
    requeue = awaited(TaskCalls.requeue)
    retry = awaited(TaskCalls.retry)
    list = awaited(TaskCalls.list)
    show = awaited(TaskCalls.show)

    def hold(self, task: str, *, ttl: float | str | None = None, wait: float | str = 0) -> Hold:
        """Claim one task for an ``async with`` block, which completes it at the end.

        It is failed if the block raises, and released if the block is cancelled.  If the task
        cannot be claimed it raises Unavailable, whose ``outcome`` says why.  If the claim is lost,
        the block is cancelled and raises Lost.
        """
        from interlock.aio_work import Hold

        return Hold(self._fleet, task, ttl=ttl, wait=wait)

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
        shift = WorkerLoop(self.calls.context, can, ttl, messages=stop_on_messages)
        return Worker(self._fleet, shift, many, signals=stop_on_signals)

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

    async def subscribe(
        self,
        *,
        events: Iterable[str] = ("published",),
        prefix: str = "",
        can: Iterable[str] | None = None,
        after: int | None = None,
        callback: Callable[[TaskEvent], object] | None = None,
    ) -> Subscription:
        """Hear of tasks as things happen to them, from now on or ``after`` a revision.

        Iterate over it, or ``take`` with a time limit; with a ``callback`` (which may be a
        coroutine function) each event is given to that, until it is closed.  ``can`` leaves out
        tasks that require anything else, and ``prefix`` those whose id does not begin with it.
        """
        feed = self.calls.feed(events, prefix, can)
        await drive_async(feed.open(after), self.calls.context.store)
        return Subscription(feed, self.calls.context, callback)

    watch = subscribe


class Subscription:
    """Events of tasks as they come; use it in an ``async with`` block, or close it."""

    def __init__(
        self, feed: TaskEventFeed, context: Context, callback: Callable[[TaskEvent], object] | None
    ) -> None:
        self._feed = feed
        self._store = context.store
        self._outage = Outage(context, "a subscription to tasks")
        self._task: asyncio.Task[None] | None = None
        if callback is not None:
            self._task = asyncio.create_task(self._call(callback))

    def take(self, timeout: float | None = None) -> Awaitable[tuple[TaskEvent, ...]]:
        """What came since the last call, as soon as there is anything; none when time is up."""
        return drive_async(self._outage.feed(self._feed.take, timeout), self._store)

    async def close(self) -> None:
        """Stop listening."""
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
            await asyncio.wait((self._task,))
        self._feed.close()

    async def __aiter__(self) -> AsyncIterator[TaskEvent]:
        while True:
            for event in await self.take():
                yield event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _call(self, callback: Callable[[TaskEvent], object]) -> None:
        from interlock.runtime.outage import OutageLog

        complaints = OutageLog("a subscription to tasks")
        while True:
            try:
                found = await self.take()
            except StoreClosed:
                return
            except StoreTrouble as trouble:  # it goes on where it was when that is over
                complaints.tell(trouble)
                await asyncio.sleep(self._store.capabilities.allow(AGAIN))
                continue
            complaints.over()
            for event in found:
                await self._one(callback, event)

    async def _one(self, callback: Callable[[TaskEvent], object], event: TaskEvent) -> None:
        try:
            answer = callback(event)
            if isinstance(answer, Awaitable):
                await answer
        except Exception:
            import logging

            logging.getLogger("interlock").exception("a callback failed with %s", event)
