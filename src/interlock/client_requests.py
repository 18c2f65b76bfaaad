"""Requests of the blocking client.

fleet.requests.serve(lambda request: audit(request.payload), can=["audit"])
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from interlock.nouns.requests.calls import RequestCalls
from interlock.nouns.requests.request import LEASE
from interlock.nouns.requests.service import NOT_KEPT, NOT_TAKEN_IN
from interlock.nouns.requests.serving import ServedRequest, abilities, settled
from interlock.nouns.swarms.link import SwarmLink
from interlock.runtime.calls import Blocking
from interlock.runtime.outage import AGAIN
from interlock.steps import Op, drive
from interlock.threads import background

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.client_tasks import Claim


class Requests(RequestCalls[Blocking]):
    """Requests to other swarms, and those that came from them."""

    def serve(
        self,
        handler: Callable[[ServedRequest], object],
        *,
        can: Iterable[str] = (),
        concurrency: int = 1,
        ttl: float | str = LEASE,
        stop_on_signals: bool = True,
        stop_on_messages: bool = True,
    ) -> None:
        """Call ``handler(request)`` for one request after the other, until the worker stops.

        With a ``concurrency`` above one, so many threads call it at once.

        These are the requests to our agent by name, and to any agent that ``can`` do it.  What the
        handler returns is the result, which is committed together with the end of the task; its
        exception is an answer, too, with the status ``error``.  Execution is at least once: use
        ``request.id`` where the work must have its effect once.  ``ttl`` is how long a claim lives
        if this process dies; then another worker begins.
        """
        fleet: Fleet = self.context.client
        worker = fleet.tasks.work(
            can=abilities(self.context, can),
            concurrency=concurrency,
            ttl=ttl,
            stop_on_signals=stop_on_signals,
            stop_on_messages=stop_on_messages,
        )

        def handle(claim: Claim) -> None:
            request = ServedRequest(claim)
            claim.end_by(*settled(self.context, request, lambda: handler(request)))

        with self.tending():
            worker.handle(handle)

    @contextmanager
    def tending(self) -> Iterator[None]:
        """Take in, post and repeat requests of our swarm in a thread while the block runs.

        A second thread keeps the swarm on its bus: a signed entry may take a moment.
        """
        over = threading.Event()
        service, actor = self.context.requests, self.context.me().actor
        drive(service.begin(actor), self.context.store)

        def repeat(what: str, work: Callable[[], Op[None]]) -> None:
            while not over.is_set():
                with service.going_on(what):
                    drive(work(), self.context.store)
                over.wait(AGAIN)

        def follow() -> None:
            repeat(NOT_TAKEN_IN, lambda: service.follow(actor, over.is_set))

        def keep() -> None:
            repeat(NOT_KEPT, lambda: SwarmLink(self.context).run(over.is_set))

        threads = background(follow, "interlock-intake"), background(keep, "interlock-link")
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join(timeout=self.context.store.capabilities.allow(2.0))
