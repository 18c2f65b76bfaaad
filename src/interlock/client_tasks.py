"""Tasks for programs that may block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Self

from interlock.client import Fleet, Noun, blocking, granting
from interlock.drivers import drive
from interlock.errors import StoreClosed, StoreTrouble
from interlock.nouns.tasks.calls import TaskCalls
from interlock.nouns.tasks.task import TaskEvent
from interlock.runtime.context import Context
from interlock.runtime.outage import AGAIN, Outage
from interlock.threads import background

if TYPE_CHECKING:
    from interlock.client_work import Claim, Hold, Worker
    from interlock.nouns.tasks.events import TaskEventFeed


class Tasks(Noun[TaskCalls]):
    """Tasks, by name."""

    def __init__(self, calls: TaskCalls, fleet: Fleet) -> None:
        super().__init__(calls)
        self._fleet = fleet

    publish = add = blocking(TaskCalls.publish)
    publish_all = import_ = blocking(TaskCalls.publish_all)
    claim = granting(TaskCalls.claim)
    next = granting(TaskCalls.next)
    complete = done = blocking(TaskCalls.complete)
    fail = blocking(TaskCalls.fail)
    release = blocking(TaskCalls.release)
    heartbeat = beat = blocking(TaskCalls.heartbeat)
    cancel = blocking(TaskCalls.cancel)
    requeue = blocking(TaskCalls.requeue)
    retry = blocking(TaskCalls.retry)
    list = blocking(TaskCalls.list)
    show = blocking(TaskCalls.show)

    def hold(self, task: str, *, ttl: float | str | None = None, wait: float | str = 0) -> Hold:
        """Claim one task for a ``with`` block, which completes it at the end.

        It is failed if the block raises, and released if the block is interrupted.  If the task
        cannot be claimed it raises Unavailable, whose ``outcome`` says why.
        """
        from interlock.client_work import Hold

        return Hold(self._fleet, task, ttl=ttl, wait=wait)

    def work(
        self,
        *,
        can: Iterable[str] = (),
        ttl: float | str | None = None,
        stop_on_signals: bool = True,
        stop_on_messages: bool = True,
    ) -> Worker:
        """Claim one task after the other: ``for claim in fleet.tasks.work(can=["rust"]):``.

        Use ``with claim:`` in the body: its end completes the task; what it raises fails the
        attempt and is logged, and the loop goes on.  A claim that is neither entered nor settled is
        never completed: its attempt fails when the loop comes round or is left.  SIGTERM, SIGINT, a
        stop message and ``worker.stop()`` let it finish the claim at hand; a second signal, or a
        second message, releases that, too.
        """
        from interlock.client_work import Worker
        from interlock.nouns.tasks.worker import WorkerLoop

        shift = WorkerLoop(self.calls.context, can, ttl, messages=stop_on_messages)
        return Worker(self._fleet, shift, signals=stop_on_signals)

    def serve(
        self,
        handler: Callable[[Claim], object],
        *,
        can: Iterable[str] = (),
        ttl: float | str | None = None,
        stop_on_signals: bool = True,
        stop_on_messages: bool = True,
    ) -> None:
        """Call ``handler(claim)`` for one task after the other, until it is to stop.

        What it returns becomes the result of the task, and what it raises the reason for failing.
        """
        worker = self.work(
            can=can, ttl=ttl, stop_on_signals=stop_on_signals, stop_on_messages=stop_on_messages
        )
        worker.serve(handler)

    def subscribe(
        self,
        *,
        events: Iterable[str] = ("published",),
        prefix: str = "",
        can: Iterable[str] | None = None,
        after: int | None = None,
        callback: Callable[[TaskEvent], object] | None = None,
    ) -> Subscription:
        """Hear of tasks as things happen to them, from now on or ``after`` a revision.

        Iterate over it, or ``take`` with a time limit; with a ``callback`` each event is given to
        that, in a thread of its own, until it is closed.  ``can`` leaves out tasks that require
        anything else, and ``prefix`` those whose id does not begin with it.
        """
        feed = self.calls.feed(events, prefix, can)
        drive(feed.open(after), self.calls.context.store)
        return Subscription(feed, self.calls.context, callback)

    watch = subscribe


class Subscription:
    """Events of tasks as they come; use it in a ``with`` block, or close it."""

    def __init__(
        self, feed: TaskEventFeed, context: Context, callback: Callable[[TaskEvent], object] | None
    ) -> None:
        self._feed = feed
        self._store = context.store
        self._outage = Outage(context, "a subscription to tasks")
        self._callback = callback
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        if callback is not None:
            self._thread = background(lambda: self._call(callback), "interlock-events")
            self._thread.start()

    def take(self, timeout: float | None = None) -> tuple[TaskEvent, ...]:
        """What came since the last call, as soon as there is anything; none when time is up."""
        return drive(self._outage.feed(self._feed.take, timeout), self._store)

    def close(self) -> None:
        """Stop listening."""
        self._closed.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=self._store.capabilities.allow(1.0))
        self._feed.close()

    def __iter__(self) -> Iterator[TaskEvent]:
        while True:
            yield from self.take()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, callback: Callable[[TaskEvent], object]) -> None:
        from interlock.runtime.outage import OutageLog
        from interlock.runtime.stoppable import SLICE

        complaints = OutageLog("a subscription to tasks")
        while not self._closed.is_set():
            try:
                found = self.take(SLICE)
            except StoreClosed:
                return
            except StoreTrouble as trouble:  # it goes on where it was when that is over
                complaints.tell(trouble)
                self._closed.wait(self._store.capabilities.allow(AGAIN))
                continue
            complaints.over()
            for event in found:
                self._one(callback, event)

    def _one(self, callback: Callable[[TaskEvent], object], event: TaskEvent) -> None:
        try:
            callback(event)
        except Exception:
            import logging

            logging.getLogger("interlock").exception("a callback failed with %s", event)
