"""Tasks of the blocking client.

for claim in fleet.tasks.work(can=["rust"]):
    with claim:
        build(claim.data)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Self, TypeAlias, TypeVar

from interlock.client import offered
from interlock.client_blocks import HandoverBlock
from interlock.core import validate
from interlock.descriptors import by_name
from interlock.errors import InterlockError
from interlock.nouns.grants.handover import HANDOVER, BlockExit
from interlock.nouns.tasks.calls import TaskCalls
from interlock.nouns.tasks.claim_handle import ClaimHandle
from interlock.nouns.tasks.held_claim import HeldClaim, claim_for_block
from interlock.runtime.calls import Blocking
from interlock.steps import Op, drive

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.client_worker import Worker
    from interlock.nouns.tasks.worker import WorkerLoop


class Tasks(TaskCalls[Blocking]):
    """Tasks, by name."""

    @by_name
    def hold(
        self,
        task: str | None = None,
        *,
        can: Iterable[str] | None = None,
        ttl: float | str | None = None,
        wait: float | str = 0,
    ) -> Hold:
        """Claim one task for a ``with`` block, which completes it at the end.

        Without an id it is the next task that you ``can`` do; what your session reports, unless you
        name it here.
        The task fails if the block raises, and is released if the block is interrupted.  If the
        task cannot be claimed, ``hold`` raises Unavailable, whose ``outcome`` says why.
        """
        claiming = partial(claim_for_block, self.context, task, can=can, ttl=ttl, wait=wait)
        return Hold(self.context.client, claiming)

    @by_name
    def work(
        self,
        *,
        can: Iterable[str] | None = None,
        concurrency: int = 1,
        ahead: int | None = None,
        ttl: float | str | None = None,
        stop_on_signals: bool = True,
        stop_on_messages: bool = True,
    ) -> Worker:
        """Claim one task after the other: ``for claim in fleet.tasks.work(can=["rust"]):``.

        Use ``with claim:`` in the body: its end completes the task.  Code after the block runs even
        if its body raised: the exception fails the attempt, is logged, and does not leave the
        block; ``claim.ended`` says how the task ended.  It has ended when the block is over.  In a
        loop that goes on at once the same commit claims the next task, which is released again if
        the loop is left, or does something else for a tenth of a second.  A claim that is neither
        entered nor settled is never completed: its attempt fails when the loop continues or ends.
        With ``ahead``, of at most 16, so many tasks are claimed and ended together if they take a
        fraction of a millisecond each.  A worker that is killed then leaves up to so many finished
        tasks, which are done again, and as many that it did not begin, each until the session
        expires.  Without it that is so in ``worker.serve`` (16), and not in a loop; with a ``ttl``,
        with several threads, and in a session that another process keeps alive, it is nowhere so.
        After SIGTERM, SIGINT, a stop message or ``worker.stop()`` the worker finishes the current
        claim and claims no more; a second signal, or a second message, releases the current claim,
        too.
        A loop works on one task at a time; ``concurrency`` is for ``worker.serve``.
        """
        from interlock.client_worker import Worker  # a command that claims needs none
        from interlock.nouns.tasks.worker import MOST_AT_ONCE, WorkerLoop

        many = validate.count(concurrency, "concurrency", MOST_AT_ONCE)
        worker_loop = WorkerLoop(self.context, can, ttl, messages=stop_on_messages)
        return Worker(self.context.client, worker_loop, many, ahead, signals=stop_on_signals)

    def serve(
        self,
        handler: Handler,
        *,
        can: Iterable[str] | None = None,
        concurrency: int = 1,
        ahead: int | None = None,
        timeout: float | str | None = None,
        ttl: float | str | None = None,
        stop_on_signals: bool = True,
        stop_on_messages: bool = True,
    ) -> None:
        """Call ``handler(claim)`` for one task after the other, until the worker stops.

        Its return value is the result of the task; its exception is the reason of the failure.
        With a ``concurrency`` above one, so many threads call it at once.  If a call takes longer
        than ``timeout``, its attempt fails, and ``claim.lost`` becomes true; a thread cannot be
        killed, so it is free again only when the call returns.  If calls take a fraction of a
        millisecond, up to 16 tasks are claimed and ended together, and a worker that is killed
        leaves as many finished ones, which are done again; ``ahead=1`` ends each by itself.
        """
        worker = self.work(
            can=can,
            concurrency=concurrency,
            ahead=ahead,
            ttl=ttl,
            stop_on_signals=stop_on_signals,
            stop_on_messages=stop_on_messages,
        )
        worker.serve(handler, timeout=timeout)


@offered
class Claim(ClaimHandle[Blocking]):
    """A claimed task.

    The end of its ``with`` block completes the task; it fails if the block raises, and is released
    if the block is interrupted.  ``claim.lost`` becomes true if the claim is lost.  In the loop of
    a worker an exception of the block is logged, and the loop continues; an interruption ends it.
    """

    _end: weakref.ref[Callable[..., bool]] | None = None
    _worker: Worker | None = None

    def of_worker(self, worker: Worker) -> Self:
        """The claim of a loop, which ends it, perhaps together with others."""
        self._worker = worker
        return self

    @property
    def settled(self) -> bool:
        """Whether it was completed, failed, released, or given up."""
        if self._worker is not None:
            self._worker.end_if_put_off(self)
        return super().settled

    @property
    def ended(self) -> str:
        """How it ended: ``completed``, ``failed``, ``released`` or ``lost``; empty till then."""
        if self._worker is not None:
            self._worker.end_if_put_off(self)
        return super().ended

    def entering(self, end: Callable[..., bool]) -> None:
        """Keep the function to which the handover is tied as soon as the block begins."""
        if not self._entered:
            self._end = weakref.ref(end)

    def __enter__(self) -> Self:
        if self._end is not None and (end := self._end()) is not None:
            self._holding.handover.tie(end)
        self._entered = True
        if not self._in_loop and self._holding.lost():
            self._holding.give_up()
            raise self.over()
        self.take_up()
        return self

    def leave(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        """End the block; returns whether its exception was logged instead of raised."""
        worker = self._worker
        if worker is not None and worker.puts_off(self._holding, error):
            self._holding.handover.tie(self)  # the worker keeps us until it has ended the claim
            self._holding.stop_work()  # its end no longer waits for the caller
            worker.put_off(self, self._holding, error)
            return self._log_error(error)
        if worker is None:
            return self.end_now(error)
        return worker.end_block(self, self._holding, error)

    def end_now(self, error: BaseException | None, *, log: bool = True) -> bool:
        """End the claim; returns whether the exception of the block, or of this, was logged."""
        try:
            drive(self._holding.end(error), self.context.store)
        except InterlockError as trouble:
            if not self._log_error(trouble):
                raise
            return True
        return error is not None and log and self._log_error(error)

    def end_with_next(self, error: BaseException | None, worker_loop: WorkerLoop) -> None:
        """End the claim of a block that is over, and claim the next task with it."""
        self._holding.worker = worker_loop
        self.end_now(error, log=False)

    __exit__ = BlockExit[bool]()


Handler: TypeAlias = Callable[[Claim], object]
"""A function that works on a claim."""
AnyHandler = TypeVar("AnyHandler", bound=Handler)


class Hold(HandoverBlock):
    """``with fleet.tasks.hold(...)``: claims the task, and completes it at the end of the block."""

    def __init__(self, fleet: Fleet, claiming: Callable[[], Op[HeldClaim]]) -> None:
        super().__init__(fleet)
        self._claiming = claiming
        self._claim: Claim | None = None

    def __enter__(self) -> Claim:
        context = self._fleet.context
        handover = self._current()
        try:
            self._fleet.keep(nudge=False)  # it releases after an interrupt
            HANDOVER.set(handover)
            working = drive(self._claiming(), context.store)
            HANDOVER.set(None)
            self._claim = claim = Claim(working, handover=handover)
            self._fleet.nudge()
            claim.__enter__()
        except BaseException:
            handover.abandon()
            raise
        return claim

    def leave(self, kind: object, error: BaseException | None, trace: object) -> None:
        """The end of the block."""
        claim = self._claim
        if claim is not None:
            claim.leave(kind, error, trace)
            self._claim = None

    __exit__ = BlockExit[None]()
