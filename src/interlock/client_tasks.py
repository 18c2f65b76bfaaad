"""Tasks of the blocking client."""

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

        The task fails if the block raises, and is released if the block is interrupted.  If the
        task cannot be claimed, ``hold`` raises Unavailable, whose ``outcome`` says why.
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

        Use ``with claim:`` in the body: its end completes the task; an exception fails the attempt
        and is logged, and the loop continues.  A claim that is neither entered nor settled is never
        completed: its attempt fails when the loop continues or ends.  After SIGTERM, SIGINT, a stop
        message or ``worker.stop()`` the worker finishes the current claim and claims no more; a
        second signal, or a second message, releases the current claim, too.
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
        """Call ``handler(claim)`` for one task after the other, until the worker stops.

        Its return value is the result of the task; its exception is the reason of the failure.
        """
        worker = self.work(
            can=can, ttl=ttl, stop_on_signals=stop_on_signals, stop_on_messages=stop_on_messages
        )
        worker.serve(handler)
