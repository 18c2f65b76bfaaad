"""A claim in our hands: kept alive, lost in time, and settled once.

Shared by the blocking and the async blocks, which differ only in how they wait.

A claim is settled by completing, failing or releasing its task.  While the store is in trouble it
cannot be, and whoever tries is told: nothing that was done is dropped without a word.  The claim
stays in our hands then, so that it can be tried again; if the block ends instead, completing is
tried once more if that was asked for, and otherwise the task goes back to the queue as soon as the
store answers, or when the lease ends.  Trouble with saying how it went is never a failed attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from interlock.core import keys
from interlock.core.decision import Outcome, Write
from interlock.drivers import Op
from interlock.errors import InterlockError, Lost, StoreTrouble, Unavailable
from interlock.nouns.grants.holding import WAITED, HeldGrant, deadlocked
from interlock.nouns.grants.service import PendingRelease
from interlock.nouns.tasks import task as core
from interlock.nouns.tasks.calls import TaskCalls
from interlock.runtime.callers import LocalCaller
from interlock.runtime.context import Context
from interlock.runtime.handover import Handover
from interlock.runtime.keeper import Lease
from interlock.runtime.steps import Read

T = TypeVar("T", bound=Outcome)

WENT_ON = "the loop went on without completing it"
LEFT = "the loop was left without completing it"
_ENDS: dict[type, str] = {
    core.Completed: "completed",
    core.Failed: "failed",
    core.TaskReleased: "released",
}
_REASON = 1000
_TRACEBACK = 16 * 1024


class HeldClaim(HeldGrant):
    """A claim that we rely on, and every way to settle it."""

    def __init__(
        self, context: Context, claimed: core.Claimed, leases: Sequence[Lease], caller: str = ""
    ) -> None:
        super().__init__(context, (f"task/{claimed.task}",), claimed, leases, None)
        self.claimed = claimed
        self._caller = caller
        """The name that the claim goes by, if nobody in particular made it."""
        self._worker: LocalCaller | None = None
        self.on_settled: Callable[[], None] = lambda: None
        """Called when it is no longer in our hands, however that came."""
        self._calls = TaskCalls(context)
        self.trouble = ""
        """What the last attempt to settle it met; only its words, since an error knows its caller,
        and whoever drops the claim must not be kept by it."""
        self._again: Callable[[], Op[Outcome]] | None = None
        """What to try once more then."""
        self._settling = False
        self.ended = ""
        """How it ended: completed, failed, released or lost; empty while it has not."""
        self.handover.add(self, lambda: (self._debt(),))
        self.handover.held = self

    def complete(self, result: object = None) -> Op[core.Completed]:
        """The task is done."""
        task, token = self.claimed.task, self.claimed.token
        call = self._calls.complete(task, token=token, result=result)
        return (yield from self._settle(call, core.Completed, lambda: self.complete(result)))

    def fail(self, reason: str, error: object = None, *, retry: bool = True) -> Op[core.Failed]:
        """The attempt failed."""
        task, token = self.claimed.task, self.claimed.token
        call = self._calls.fail(task, reason, token=token, error=error, retry=retry)
        return (yield from self._settle(call, core.Failed))

    def release(self) -> Op[core.TaskReleased]:
        """Give the task back; no attempt is counted."""
        call = self._calls.release(self.claimed.task, token=self.claimed.token)
        return (yield from self._settle(call, core.TaskReleased))

    def end(self, error: BaseException | None) -> Op[None]:
        """The end of a block: completed, failed if something went wrong, released if interrupted.

        It raises only if the block did not: otherwise there is an error on its way already.
        """
        if self.released:
            return
        if error is None:
            yield from self._or_give_up(self._closing(None))
            return
        try:
            if not isinstance(error, Exception) and self.context.store.outage:
                self.give_up()  # whoever is interrupted need not wait for it, too
            else:
                yield from self._or_give_up(self._closing(error))
        except Lost:
            return
        except InterlockError as trouble:
            self._later(str(trouble))

    def give_up(self) -> None:
        """Rely on it no more, and have the keeper release it as soon as it can."""
        if self.released:
            return
        self.context.grants.add_pending(self._debt())
        self.ended = self.ended or ("lost" if self.lost() else "released")
        self.drop()
        self.handover.close()

    def take_up(self) -> None:
        """Whoever calls this works on it from now on: while that waits, so does the claim."""
        self._put_down()
        worker = self.context.grants.current_caller() if self._caller else None
        if worker is not None:
            worker.works[self._caller] = None
            self._worker = worker

    def drop(self) -> None:
        """Rely on it no more."""
        if not self.released:
            super().drop()
            self._put_down()
            self.on_settled()

    def over(self) -> Lost:
        """The error that says that it is no longer ours."""
        return Lost(
            f"task {self.claimed.task} (token {self.claimed.token}) {self.how_it_ended};"
            " stop working on it: it goes on without us"
        )

    def _debt(self) -> PendingRelease:
        """What gives the task back."""
        task, claim = self.claimed.task, self.claimed.grant
        claiming, identity = self.context.tasks.claims, self.context.identity
        return PendingRelease(
            claim, f"task/{task}", lambda: claiming.take_back(identity, task, claim)
        )

    def _put_down(self) -> None:
        if self._worker is not None:
            self._worker.works.pop(self._caller, None)
            self._worker = None

    def _closing(self, error: BaseException | None) -> Op[Outcome]:
        """What the end of a block makes of it; what was asked for inside counts for more."""
        if self._again is not None:
            return (yield from self._again())
        if self.trouble:
            task = self.claimed.task
            raise StoreTrouble(f"task {task} was not settled and goes back: {self.trouble}")
        if error is None:
            return (yield from self.complete())
        if isinstance(error, Exception):
            return (yield from self.fail(_reason(error), _traceback(error)))
        return (yield from self.release())

    def _or_give_up(self, op: Op[Outcome]) -> Op[None]:
        """Settle it; if that cannot be, it is nobody's from here on."""
        try:
            yield from op
        except BaseException:
            self.give_up()
            raise

    def _settle(
        self, call: Op[Outcome], good: type[T], again: Callable[[], Op[Outcome]] | None = None
    ) -> Op[T]:
        """End the claim; what strikes meanwhile because it ended is no loss."""
        if self.released:
            raise self.over()
        self._settling = True
        try:
            outcome = yield from call
        except StoreTrouble as trouble:
            self.trouble, self._again = str(trouble), again
            raise
        finally:
            self._settling = False
        self.ended = _ENDS[good] if isinstance(outcome, good) else "lost"
        self.drop()
        self.handover.close()
        if not isinstance(outcome, good):
            yield from self.learn()
            raise self.over()
        return outcome

    def _tell(self) -> None:
        if not self._settling:
            super()._tell()


class ClaimHandle:
    """A claim, as far as it can be looked at without asking the store.

    If it is one of a worker's (``in_loop``), its block raises nothing but interruptions: whatever
    else went wrong is the task's, or is told to the log, and the worker goes on.  Dropped before
    it was settled, it is given back; but the claim of a block lives by the handover of that.
    """

    def __init__(
        self, working: HeldClaim, *, in_loop: bool = False, handover: Handover | None = None
    ) -> None:
        self._working = working
        if handover is None or not handover.tied:
            working.handover.tie(self)
        self._in_loop = in_loop
        self._entered = False

    @property
    def task(self) -> str:
        """The id of the task."""
        return self._working.claimed.task

    @property
    def data(self) -> Any:  # noqa: ANN401 - as it was published
        """What was published with it."""
        return self._working.claimed.data

    @property
    def token(self) -> int:
        """The fencing token: pass it on to whatever the task changes."""
        return self._working.claimed.token or 0

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1 on."""
        return self._working.claimed.attempt

    @property
    def outcome(self) -> core.Claimed:
        """How we got it."""
        return self._working.claimed

    @property
    def lost(self) -> bool:
        """Whether it is no longer ours, or settled; costs nothing, ask often."""
        return self._working.lost()

    @property
    def settled(self) -> bool:
        """Whether it is out of our hands: completed, failed, released, or given up."""
        return self._working.released

    @property
    def ended(self) -> str:
        """How it ended: ``completed``, ``failed``, ``released`` or ``lost``; empty till then."""
        return self._working.ended

    @property
    def troubled(self) -> bool:
        """Whether settling it met trouble."""
        return bool(self._working.trouble)

    @property
    def forgotten(self) -> bool:
        """Whether nobody entered its block, or settled it."""
        return not self._entered and not self._working.released

    @property
    def reason(self) -> str:
        """Why an operator ended it; empty if no one did, or we have not heard of it yet."""
        note = self._working.broken
        return "" if note is None else note.reason

    def over(self) -> Lost:
        """The error that says that it is no longer ours."""
        return self._working.over()

    def take_up(self) -> None:
        """Whoever calls this works on it until it is settled; entering its block does so, too.

        What it waits for meanwhile holds up the task, so circles that lead over the task are found.
        """
        self._working.take_up()

    def _told(self, error: BaseException | None) -> bool:
        """Tell the log what its block ended with; whether that is not to be raised."""
        if not self._in_loop or not isinstance(error, Exception):
            return False
        import logging

        log = logging.getLogger("interlock")
        if isinstance(error, Lost):
            log.warning("%s", error)
        elif self.troubled:
            log.warning("task %s could not be settled at once: %s", self.task, error)
        else:
            log.error("task %s failed", self.task, exc_info=error)
        return True

    def _passed_over(self, reason: str) -> Op[None]:
        """Fail the attempt: its loop neither settled it nor entered its block."""
        import logging

        log = logging.getLogger("interlock")
        log.warning("task %s failed: %s; use 'with claim:' in the loop", self.task, reason)
        try:
            yield from self._working.fail(reason)
        except InterlockError as error:
            self._working.give_up()
            self._told(error)
        except BaseException:
            self._working.give_up()
            raise

    def __repr__(self) -> str:
        return f"<claim of task {self.task}, token {self.token}, attempt {self.attempt}>"


def claim_for_block(
    context: Context, task: str, *, ttl: float | str | None, wait: float | str
) -> Op[HeldClaim]:
    """Claim a task for a ``with`` block, which cannot return a no: it raises."""
    lives, _ = context.terms({}, ttl, None)
    sent = context.runner.clock.monotonic()
    outcome = yield from TaskCalls(context).claim(task, ttl=lives, wait=wait)
    if not isinstance(outcome, core.Claimed):
        raise _no(outcome)
    return (yield from hold_claim(context, outcome, lives, sent))


def hold_claim(
    context: Context, claimed: core.Claimed, ttl: float | None, sent: float, caller: str = ""
) -> Op[HeldClaim]:
    """Take a claim into our hands that was made by a request begun at this moment.

    ``caller`` is the name that it goes by, if whoever made it is not who works on it.
    """
    if ttl is None:
        return HeldClaim(context, claimed, _by_session(context), caller)
    if context.runner.clock.monotonic() - sent <= context.runner.capabilities.allow(WAITED):
        return HeldClaim(context, claimed, (_lease(context, claimed, ttl, sent),), caller)
    key, sent = keys.live(claimed.grant), context.runner.clock.monotonic()  # it waited for long
    try:
        item = (yield Read(key, times=True))[key]
    except BaseException:
        HeldClaim(context, claimed, ()).give_up()
        raise
    left = 0.0 if item is None else item.expires_in or 0.0
    return HeldClaim(context, claimed, (_lease(context, claimed, ttl, sent + left - ttl),), caller)


def _by_session(context: Context) -> tuple[Lease, ...]:
    """What a claim without a ttl of its own relies on."""
    return () if context.session_lease is None else (context.session_lease,)


def _no(outcome: core.ClaimOutcome) -> Unavailable:
    """Why there is nothing to hold."""
    match outcome:
        case core.TaskDeadlock(task=task, cycle=cycle):
            return deadlocked(cycle, outcome, (keys.owner(task),))
        case core.Taken(task=task, holder=holder):
            said = f"task {task} is taken by {holder}; wait longer, or take another"
        case core.Blocked(task=task, reason=reason):
            said = f"task {task} cannot begin: {reason}; wait longer, or take another"
        case core.NoTask(reason=reason):
            said = f"there is nothing to claim: {reason}"
        case _:
            said = "what this claim relies on is no longer yours; acquire it again"
    return Unavailable(said, outcome)


def _lease(context: Context, claimed: core.Claimed, ttl: float, sent: float) -> Lease:
    tag = {"agent": claimed.holder, "for": f"task/{claimed.task}"}
    return context.keeper.keep(Write(keys.live(claimed.grant), tag, ttl), sent)


def _reason(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}".rstrip(": ")
    return text.encode("utf-8", "replace").decode()[:_REASON]


def _traceback(error: Exception) -> str:
    """Where it went wrong; of a long story the end, which says most."""
    import traceback

    text = "".join(traceback.format_exception(error))
    return text.encode("utf-8", "replace").decode()[-_TRACEBACK:]
