"""A claim that this process holds: kept alive, noticed when lost, and settled once.

Shared by the blocking and the async blocks, which differ only in how they wait.

A claim is settled by completing, failing or releasing its task.  A call that does so while the
store is away ends with an error, and the claim stays held.  The end of the work, which is that of a
block, a handler or a program, waits instead: until the store answers, or the claim is lost, which
raises ``Lost`` (``_until_answered``).  So no outage that a claim outlives throws away finished
work, and trouble with settling never counts as a failed attempt.  A call that met trouble inside of
the block is repeated by its end.

A completion whose evidence does not pass raises ``Unproven``, and the claim stays held: the caller
may work on, and complete it later.  If the block ends, the attempt fails with the reason of the
guard.  A guard that asks for retries is waited for first, at the end of a block or of a handler;
each failure is counted, so that ends, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from msgspec import Raw

from interlock.client_context import Context
from interlock.core import keys
from interlock.core.decision import Outcome, Write
from interlock.core.safe_text import foreign
from interlock.errors import (
    BadInput,
    InterlockError,
    Lost,
    StoreInUse,
    StoreTrouble,
    Unavailable,
    Unproven,
    note_pending,
)
from interlock.nouns.grants.handover import Handover, PendingRelease
from interlock.nouns.grants.held_grant import WAITED, HeldGrant, deadlocked
from interlock.nouns.tasks import task as task_types
from interlock.nouns.tasks import task_outcomes
from interlock.nouns.tasks.calls import TaskCalls
from interlock.nouns.tasks.claim_calls import payload
from interlock.nouns.tasks.publish_calls import reason_text
from interlock.runtime.callers import LocalCaller
from interlock.runtime.keeper import Lease
from interlock.runtime.outage import AGAIN, PASSING, OutageLog
from interlock.steps import Op, Pause, Read
from interlock.thread_calls import in_call

if TYPE_CHECKING:
    from interlock.nouns.tasks.claim_reports import WorkReport
    from interlock.nouns.tasks.next_claim import NextClaim

T = TypeVar("T", bound=Outcome)

WENT_ON = "the loop went on without completing it"
LEFT = "the loop was left without completing it"
_ENDS: dict[type, str] = {
    task_outcomes.TaskCompleted: "completed",
    task_outcomes.TaskFailed: "failed",
    task_outcomes.TaskReleased: "released",
}
_STILL_HELD = "the claim stays yours: clear that and complete it again, or fail it"
_REASON = 1000
_TRACEBACK = 16 * 1024


Ending: TypeAlias = "Callable[[NextClaim | None], Op[Outcome]]"
"""An operation that ends a claim, and claims the next task with it if it is given that claim."""


class GoesOn(Protocol):
    """A worker, as a claim sees it."""

    def ends_together(self, end: task_types.TaskEnd) -> Ending | None:
        """An operation that completes a task together with others; None if it is to end alone."""

    def next_claim(self) -> NextClaim | None:
        """The claim of the next task; none if the worker is to stop or has enough."""

    def take_next(self, then: NextClaim, claimed: task_outcomes.Claimed) -> Op[None]:
        """The next task was claimed with the end of this one."""

    def no_next(self, then: NextClaim) -> None:
        """None was claimed."""


class HeldClaim(HeldGrant):
    """A claim that we hold, and every way to settle it."""

    worker: GoesOn | None = None
    """The worker that claims the next task with the end of this one, if one does."""
    put_off = False
    """Whether the worker carries out the end of the block later."""
    trouble = ""
    """The error of the last attempt to settle it, as text: an exception would keep its frames
    alive, and with them a claim that the caller dropped."""
    ended = ""
    """How it ended: completed, failed, released or lost; empty while it has not."""
    _worker: LocalCaller | None = None
    _ending: Callable[[], Op[Outcome]] | None = None
    """What the end of the block does, if that is something else than to complete the task."""
    _result: Raw | None = None
    """What it is completed with otherwise."""
    _alone = False
    """Whether it cannot end together with others."""
    _retry: Callable[[], Op[Outcome]] | None = None
    """What to repeat after trouble."""
    _settling = False

    def __init__(
        self,
        context: Context,
        claimed: task_outcomes.Claimed,
        leases: Sequence[Lease],
        caller: str = "",
    ) -> None:
        super().__init__(context, (f"task/{claimed.task}",), claimed, leases, None)
        self.claimed = claimed
        self._caller = caller
        """The caller name of the claim, if the caller that claims may not be the one that works."""
        self.on_settled: Callable[[], None] | None = None
        """Called when we no longer hold it, for any reason."""
        self.handover.add(self, self._pending_releases)
        self.handover.held = self

    def complete(self, result: object = None) -> Op[task_outcomes.TaskCompleted]:
        """Complete the task."""
        return (yield from self._complete(payload(result, "result")))

    def _complete(self, result: Raw | None) -> Op[task_outcomes.TaskCompleted]:
        claimant, again = self._claimant(), partial(self._complete, result)
        end = task_types.TaskEnd(claimant=claimant, result=result)
        worker = None if self._alone else self.worker
        together = None if worker is None else worker.ends_together(end)
        if together is not None:
            return self._settle(together, task_outcomes.TaskCompleted, again, goes_on=False)

        def completing(then: NextClaim | None) -> Op[Outcome]:
            actor = self.context.me().actor
            return self.context.tasks.complete(actor, claimant, result, then=then)

        return self._settle(completing, task_outcomes.TaskCompleted, again)

    def conclude(self, result: object = None) -> Op[task_outcomes.TaskCompleted]:
        """Complete the task at the end of its work; without evidence, the attempt fails."""
        completing = partial(self._complete, payload(result, "result"))
        return (yield from self._until_answered(partial(self._conclude, completing)))

    def conclude_failed(self, reason: str, error: object = None) -> Op[task_outcomes.TaskFailed]:
        """Fail the attempt at the end of its work."""
        return (yield from self._until_answered(partial(self.fail, reason, error)))

    def end_with(self, result: object) -> None:
        """Have the end of the block complete it with this result."""
        self._result, self._ending = payload(result, "result"), None

    def end_by(self, ending: Ending, good: type[T]) -> None:
        """Have the end of the block settle it by another operation: see ``settle``."""
        self._ending = partial(self.settle, ending, good)

    def plain_end(self) -> task_types.TaskEnd | None:
        """The end of the block, if it is a completion that can go together with others."""
        if self.released or self.trouble or self._ending is not None:
            return None
        end = task_types.TaskEnd(claimant=self._claimant(), result=self._result)
        return end if end.small else None

    def put_off_end(self) -> task_types.TaskEnd | None:
        """As ``plain_end``; the worker carries it out after the block."""
        end = self.plain_end()
        self.put_off = end is not None
        return end

    def end_alone(self, trouble: Exception | None) -> None:
        """The end that was put off could not go with others: the end of the block does it now."""
        self.put_off, self._alone = False, trouble is None
        if isinstance(trouble, StoreTrouble):
            self.trouble, self._retry = str(trouble), partial(self._complete, self._result)

    def ended_together(self) -> None:
        """A commit has completed it together with others."""
        self.ended = _ENDS[task_outcomes.TaskCompleted]
        self.drop()
        self.handover.close()

    def belong_to(self, owner: object) -> None:
        """Have the keeper release it as soon as this object is deleted; a block takes it over."""
        earlier, self.handover = self.handover, Handover(self.context.grants)
        self.handover.add(self, self._pending_releases)
        self.handover.held = self
        self.handover.tie(owner)
        earlier.remove(self)  # last: an interrupt before this may release it twice, which is safe

    def _conclude(self, completing: Callable[[], Op[T]]) -> Op[T]:
        """Complete it; a guard that asks for retries is waited for, else the attempt fails."""
        while True:
            try:
                return (yield from completing())
            except Unproven as error:
                lacking = error
            if self.released:
                raise lacking
            outcome = lacking.outcome
            if not isinstance(outcome, task_outcomes.EvidenceMissing) or outcome.retry_in is None:
                yield from self.fail(_lacking(outcome))
                raise Unproven(f"{self._unproven(outcome)}; the attempt failed", outcome) from None
            yield Pause(outcome.retry_in)

    def fail(
        self, reason: str, error: object = None, *, retry: bool = True
    ) -> Op[task_outcomes.TaskFailed]:
        """Fail the attempt."""
        kept, why = payload(error, "error"), reason_text(reason)
        claimant, tasks = self._claimant(), self.context.tasks
        again = partial(self.fail, reason, error, retry=retry)

        def failing(then: NextClaim | None) -> Op[Outcome]:
            actor = self.context.me().actor
            return tasks.fail(actor, claimant, why, kept, retry=retry, then=then)

        return (yield from self._settle(failing, task_outcomes.TaskFailed, again))

    def release(self) -> Op[task_outcomes.TaskReleased]:
        """Release the task; no attempt is counted."""

        def releasing(_: NextClaim | None) -> Op[Outcome]:
            return self.context.tasks.release(self.context.me().actor, self._claimant())

        try:
            return (
                yield from self._settle(
                    releasing, task_outcomes.TaskReleased, self.release, goes_on=False
                )
            )
        except StoreInUse:
            if not in_call():  # a handler that ran inside of this call raised it
                raise
            self.give_up()  # the keeper does it
            return task_outcomes.TaskReleased(task=self.claimed.task, later=True)

    def settle(self, ending: Ending, good: type[T]) -> Op[T]:
        """End the claim by another operation, which returns an outcome of this kind.

        It is the end of the work, as for ``conclude``: without evidence, the attempt fails.
        """

        def completing() -> Op[T]:
            return (yield from self._settle(ending, good, partial(self.settle, ending, good)))

        return (yield from self._conclude(completing))

    def end(self, error: BaseException | None) -> Op[None]:
        """The end of a block: completed, failed if something went wrong, released if interrupted.

        It raises only if the block did not: otherwise there is an error on its way already.
        """
        if self.released:
            return
        settling = partial(self._settle_at_end, error)
        try:
            if error is None or isinstance(error, Exception):
                yield from self._until_answered(settling)
            elif not self.context.store.outage:  # an interrupted caller need not wait for it
                yield from settling()
        except InterlockError as trouble:
            if error is None:
                note_pending(trouble)
                raise
            if not isinstance(trouble, Lost):
                self._warn_pending(str(trouble))
        finally:
            self.give_up()

    def say_progress(self, report: WorkReport) -> Op[None]:
        """Commit a report; if the claim is over, the keeper learns that by itself."""
        actor = self.context.me().actor
        yield from self.context.tasks.progress(actor, self._claimant(), *report)

    def give_up(self) -> None:
        """Stop holding it, and have the keeper release it as soon as it can."""
        if self.released:
            return
        self.context.grants.add_pending(*self._pending_releases())
        self.ended = self.ended or ("lost" if self.lost() else "released")
        self.drop()
        self.handover.close()

    def take_up(self) -> None:
        """Make the calling thread or task the one that works on it: its waits hold up the claim."""
        worker = self.context.grants.current_caller() if self._caller else None
        if worker is self._worker:
            return
        self.stop_work()
        if worker is not None:
            worker.works[self._caller] = None
            self._worker = worker

    def drop(self) -> None:
        """Stop holding it."""
        if not self.released:
            super().drop()
            self.stop_work()
            if self.on_settled is not None:
                self.on_settled()

    def over(self) -> Lost:
        """The error of a claim that is lost, or that this program has ended."""
        if self.ended in _ENDS.values():
            return Lost(
                f"task {foreign(self.claimed.task)} (token {self.claimed.token}): this claim has"
                f" ended already, {self.ended} by this program"
            )
        return Lost(
            f"task {foreign(self.claimed.task)} (token {self.claimed.token}) {self.how_it_ended};"
            " stop working on it: it goes on without us"
        )

    def _claimant(self) -> task_types.Claimant:
        actor = self.context.me().actor
        return task_types.Claimant(
            task=self.claimed.task,
            agent=actor.agent,
            session=actor.session,
            token=self.claimed.token,
        )

    def _pending_releases(self) -> tuple[PendingRelease]:
        """The pending release of the claim."""
        return (_release_of(self.context, self.claimed.task, self.claimed.grant),)

    def stop_work(self) -> None:
        """No longer count the waits of a caller as waits of the task."""
        if self._worker is not None:
            self._worker.works.pop(self._caller, None)
            self._worker = None

    def _settle_at_end(self, error: BaseException | None) -> Op[Outcome]:
        """Settle at the end of a block; what met trouble before is repeated instead."""
        if self._retry is not None:
            return self._conclude(self._retry)
        if error is None and self._ending is not None:
            return self._ending()
        if error is None:
            return self._conclude(partial(self._complete, self._result))
        if isinstance(error, Unproven):
            return self.fail(_lacking(error.outcome))
        if isinstance(error, Exception):
            return self.fail(_reason(error), _traceback(error))
        return self.release()

    def _until_answered(self, attempt: Callable[[], Op[T]]) -> Op[T]:
        """Settle it at the end of the work: repeat that until the store answers, or it is lost.

        A claim whose lease another process renews counts as lost after the time of one lease.
        """
        clock, outage, ends = self.context.runner.clock.monotonic, None, 0.0
        while True:
            try:
                return (yield from attempt())
            except PASSING as trouble:
                if self.context.no_retry or self.released:
                    raise
                if outage is None:
                    outage = OutageLog(f"the end of task {foreign(self.claimed.task)}")
                    ends = clock() + (self.claimed.expires_in or 0.0)
                if not self.context.store.outage:  # else the store has logged it
                    outage.warn(trouble)
            while True:
                if self.lost() or (not self.leases and clock() >= ends):
                    self.give_up()  # else the end of its block would try it again
                    raise self.over()
                yield Pause(self.context.runner.capabilities.allow(AGAIN))
                if not self.context.store.outage or self.context.session_lease is None:
                    break  # an attempt takes ten seconds while the store is away

    def _settle(
        self,
        ending: Ending,
        good: type[T],
        again: Callable[[], Op[Outcome]] | None = None,
        *,
        goes_on: bool = True,
    ) -> Op[T]:
        """End the claim; a loss that the keeper reports during this is ignored.

        The claim of a worker that ``goes_on`` brings the next one.
        """
        if self.released:
            raise self.over()
        worker = self.worker if goes_on else None
        then = None if worker is None else worker.next_claim()
        self._settling = True
        outcome: Outcome | None = None
        try:
            outcome = yield from ending(then)
        except StoreInUse:  # nothing was tried
            raise
        except StoreTrouble as trouble:
            self.trouble, self._retry = str(trouble), again
            raise
        finally:
            self._settling = False
            claimed = getattr(outcome, "next", None)
            if worker is not None and then is not None and claimed is None:
                worker.no_next(then)
        if isinstance(outcome, task_outcomes.EvidenceMissing):
            raise Unproven(f"{self._unproven(outcome)}; {_STILL_HELD}", outcome)
        failed = isinstance(outcome, task_outcomes.EvidenceFailed)
        self.ended = _ENDS[good] if isinstance(outcome, good) else "failed" if failed else "lost"
        self.drop()
        self.handover.close()
        if worker is not None and then is not None and claimed is not None:
            yield from worker.take_next(then, claimed)
        if isinstance(outcome, task_outcomes.EvidenceFailed):
            raise Unproven(f"{self._unproven(outcome)}; the attempt failed", outcome)
        if not isinstance(outcome, good):
            yield from self.learn_reason()
            raise self.over()
        return outcome

    def _unproven(self, outcome: object) -> str:
        return f"task {foreign(self.claimed.task)} lacks evidence: {_lacking(outcome)}"

    def _notify(self) -> None:
        if not self._settling:
            super()._notify()


def claim_for_block(
    context: Context,
    task: str | None,
    *,
    can: Iterable[str] | None = None,
    ttl: float | str | None,
    wait: float | str,
) -> Op[HeldClaim]:
    """Claim a task for a ``with`` block, or the next one; raises if there is none to claim."""
    lives, _ = context.terms({}, ttl, None)
    sent, calls = context.runner.clock.monotonic(), TaskCalls(context)
    if task is None:
        outcome = yield from calls.next(can=can, ttl=lives, wait=wait)
    elif can is not None:
        raise BadInput("'can' chooses the next task; leave it out for one that is named")
    else:
        outcome = yield from calls.claim(task, ttl=lives, wait=wait)
    if not isinstance(outcome, task_outcomes.Claimed):
        raise _no(outcome)
    return (yield from hold_claim(context, outcome, lives, sent))


def release_later(context: Context, task: str, claim: str) -> None:
    """Have the keeper release a claim that may have been made."""
    context.grants.add_pending(_release_of(context, task, claim))


def _release_of(context: Context, task: str, claim: str) -> PendingRelease:
    claims, identity = context.tasks.claims, context.identity
    return PendingRelease(claim, f"task/{task}", lambda: claims.take_back(identity, task, claim))


def hold_claim(
    context: Context,
    claimed: task_outcomes.Claimed,
    ttl: float | None,
    sent: float,
    caller: str = "",
) -> Op[HeldClaim]:
    """Hold a claim that was made by a request sent at this monotonic time.

    ``caller`` is its caller name, if another caller than the one that claimed may work on it.
    """
    if ttl is None:
        return hold_by_session(context, claimed, caller)
    if context.runner.clock.monotonic() - sent <= context.runner.capabilities.allow(WAITED):
        return HeldClaim(context, claimed, (_lease(context, claimed, ttl, sent),), caller)
    key, sent = keys.live(claimed.grant), context.runner.clock.monotonic()  # it waited long
    try:
        item = (yield Read(key, times=True))[key]
    except BaseException:
        HeldClaim(context, claimed, ()).give_up()
        raise
    left = 0.0 if item is None else item.expires_in or 0.0
    return HeldClaim(context, claimed, (_lease(context, claimed, ttl, sent + left - ttl),), caller)


def hold_by_session(
    context: Context, claimed: task_outcomes.Claimed, caller: str = ""
) -> HeldClaim:
    """Hold a claim without a ttl of its own: it lives by its session, if there is one."""
    lease = context.session_lease
    return HeldClaim(context, claimed, () if lease is None else (lease,), caller)


def _no(outcome: task_outcomes.ClaimOutcome) -> Unavailable:
    """The error for a claim that was refused."""
    match outcome:
        case task_outcomes.TaskDeadlock(task=task, cycle=cycle):
            return deadlocked(cycle, outcome, (keys.owner(task),))
        case task_outcomes.Taken(task=task, holder=holder):
            said = (
                f"task {foreign(task)} is taken by {foreign(holder)}; wait longer, or take another"
            )
        case task_outcomes.TaskBlocked(task=task, reason=reason, guard=guard) if guard:
            said = (
                f"task {foreign(task)} cannot begin: guard {foreign(guard)}: {reason}; wait longer"
            )
        case task_outcomes.TaskBlocked(task=task, reason=reason):
            said = f"task {foreign(task)} cannot begin: {reason}; wait longer, or take another"
        case task_outcomes.NoTask(reason=reason):
            said = f"there is nothing to claim: {reason}"
        case _:
            said = "what this claim relies on is no longer yours; acquire it again"
    return Unavailable(said, outcome)


def _lacking(outcome: object) -> str:
    """The guard that did not pass, and why."""
    if not isinstance(outcome, task_outcomes.EvidenceMissing | task_outcomes.EvidenceFailed):
        return "its evidence does not pass"
    leaf = foreign(outcome.leaf) if outcome.leaf else ""
    said = [f"guard {foreign(outcome.guard)}", leaf, outcome.reason]
    return ": ".join([part for part in said if part])[:_REASON]


def _lease(context: Context, claimed: task_outcomes.Claimed, ttl: float, sent: float) -> Lease:
    tag = {"agent": claimed.holder, "for": f"task/{claimed.task}"}
    return context.keeper.keep(Write(keys.live(claimed.grant), tag, ttl), sent)


def _warn(said: str, *about: object) -> None:
    import logging

    logging.getLogger("interlock").warning(said, *about)


def _reason(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}".rstrip(": ")
    return text.encode("utf-8", "replace").decode()[:_REASON]


def _traceback(error: Exception) -> str:
    """The traceback of an error; the end of a long one, which says most."""
    import traceback

    text = "".join(traceback.format_exception(error))
    return text.encode("utf-8", "replace").decode()[-_TRACEBACK:]
