"""Tasks for programs that may block."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from interlock.nouns.tasks.calls import TaskCalls
from interlock.runtime.calls import Blocking

if TYPE_CHECKING:
    from interlock.client_work import Claim, Hold, Worker


class Tasks(TaskCalls[Blocking]):
    """Tasks, by name."""

    def hold(self, task: str, *, ttl: float | str | None = None, wait: float | str = 0) -> Hold:
        """Claim one task for a ``with`` block, which completes it at the end.

        It is failed if the block raises, and released if the block is interrupted.  If the task
        cannot be claimed it raises Unavailable, whose ``outcome`` says why.
        """
        from interlock.client_work import Hold

        return Hold(self.context.client, task, ttl=ttl, wait=wait)

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

        shift = WorkerLoop(self.context, can, ttl, messages=stop_on_messages)
        return Worker(self.context.client, shift, signals=stop_on_signals)

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
