"""The calls of workers and operators: claim, settle a claim, report on it, take a task back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from msgspec import Raw
from msgspec.structs import replace

from interlock.core import validate
from interlock.errors import BadInput
from interlock.nouns.tasks import task as task_types
from interlock.nouns.tasks import task_outcomes
from interlock.nouns.tasks.publish_calls import reason_text
from interlock.nouns.tasks.ready_index import Abilities, abilities_of
from interlock.runtime.calls import Calls, D, call, grants, patient
from interlock.runtime.given import Given
from interlock.runtime.identity import Identity
from interlock.steps import Op

if TYPE_CHECKING:
    pass


Ended = TypeVar("Ended", task_outcomes.CompleteOutcome, task_outcomes.FailOutcome)


class TaskClaimCalls(Calls[D]):
    """Tasks, for workers and operators."""

    @grants
    @patient("a wait for a task")
    def claim(
        self,
        task: str,
        *,
        ttl: float | str | None = None,
        wait: float | str = 0,
        given: Given = (),
    ) -> Op[task_outcomes.ClaimOutcome]:
        """Claim one task: exactly one of all claimants gets it, and the others learn which.

        With ``wait`` stand by until it can be claimed: its needs are complete, its guards pass, its
        rest is over, or its worker released it.  A wait that could never end is answered with
        ``Deadlock`` at once: the worker of the task, or of a need of it, waits for this caller.
        """
        patience = self.context.checked_wait(wait)
        lives, _ = self.context.terms({}, ttl, None)
        identity = self._identity(given)
        claiming = self.context.tasks.claims.by_name(
            identity, validate.task_id(task), ttl=lives, wait=patience
        )
        return self._fenced(identity, claiming)

    @grants
    @patient("a wait for work")
    def next(
        self,
        *,
        can: Iterable[str] | None = None,
        limit: int = 1,
        ttl: float | str | None = None,
        wait: float | str = 0,
        given: Given = (),
    ) -> Op[task_outcomes.ClaimOutcome]:
        """Claim the best task that is ready: lowest priority number, then oldest.

        Only tasks that require nothing but what you ``can`` do: what your session reports
        (``agents.status``, ``agents.join``), unless you name it here; ``["*"]`` is everything.
        If there is none, the answer names the abilities that are ``missing`` for what is ready, and
        the ``soonest`` task that may begin.
        With a ``limit`` above one, the same commit claims the next best ones, too: they are in
        ``others`` of the answer, each a claim of its own.  They may be fewer than the limit
        although more are ready: a task with guards, or with a deadline, is claimed by itself.
        With ``wait`` stand by until there is one; a wait that lasts is reported, as a worker
        reports it, and the report before it is reported again after it.
        """
        patience = self.context.checked_wait(wait)
        lives, _ = self.context.terms({}, ttl, None)
        identity = self._identity(given)
        able = abilities_of(identity, can)
        this, asleep = object(), None
        if patience and self.context.session_lease is not None:
            asleep = lambda: self.context.pulse.waits(this)  # noqa: E731 - the pulse is made late
        claiming = self.context.tasks.claims.next(
            identity,
            able,
            ttl=lives,
            wait=patience,
            limit=validate.count(limit, "limit", task_types.CLAIMED_AT_ONCE),
            asleep=asleep,
        )
        claiming = self._explained(able, claiming)
        return self._fenced(identity, self._reported(this, claiming) if asleep else claiming)

    def _explained(
        self, able: Abilities, claiming: Op[task_outcomes.ClaimOutcome]
    ) -> Op[task_outcomes.ClaimOutcome]:
        """The outcome; if there is nothing, with what is missing and what comes next."""
        found = yield from claiming
        if not isinstance(found, task_outcomes.NoTask):
            return found
        from interlock.nouns.tasks.nothing import explained

        return (yield from explained(self.context.runner, able, found))

    def _reported(
        self, wait: object, claiming: Op[task_outcomes.ClaimOutcome]
    ) -> Op[task_outcomes.ClaimOutcome]:
        """Restore the former report when the wait is over."""
        try:
            return (yield from claiming)
        finally:
            if "pulse" in self.context.__dict__:  # else it did not sleep
                self.context.pulse.waited(wait)

    @grants
    def complete(
        self,
        task: str,
        *,
        token: int | None = None,
        result: object = None,
        then_next: bool = False,
        can: Iterable[str] | None = None,
        ttl: float | str | None = None,
        given: Given = (),
    ) -> Op[task_outcomes.CompleteOutcome]:
        """Complete a task; its dependents become ready in the same commit.

        If a guard of its evidence does not pass, it is not complete: the answer names the guard,
        and the claim stays as it is (``EvidenceMissing``), or the attempt failed
        (``EvidenceFailed``).  Done twice by the same claim, the second answer says that it was
        ``already`` done.

        With ``then_next`` the same commit claims the next task, as ``next`` would with this ``can``
        and ``ttl``: ``next`` of the answer is ``Claimed`` or ``NoTask``.  A refusal claims nothing.
        """
        kept, identity = payload(result, "result"), self._identity(given)
        worker, tasks = self._worker(task, token), self.context.tasks
        able, lives = self._terms_of_next(identity, then_next, can, ttl)
        then = tasks.claims.following(identity, able, lives) if then_next else None
        done = tasks.complete(identity.actor, worker, kept, then=then)
        if then_next:
            done = self._with_next(done, identity, able, lives)
        return self._fenced(identity, done)

    done = complete

    @grants
    def fail(
        self,
        task: str,
        reason: str = "",
        *,
        token: int | None = None,
        error: object = None,
        retry: bool = True,
        then_next: bool = False,
        can: Iterable[str] | None = None,
        ttl: float | str | None = None,
        given: Given = (),
    ) -> Op[task_outcomes.FailOutcome]:
        """Fail an attempt: the task rests and is retried, or is a dead letter.

        ``retry=False`` says that no attempt will ever succeed.  ``then_next``, ``can`` and ``ttl``
        are as those of ``complete``.
        """
        kept = payload(error, "error")
        worker, identity = self._worker(task, token), self._identity(given)
        why, again = reason_text(reason), validate.flag(retry, "retry")
        able, lives = self._terms_of_next(identity, then_next, can, ttl)
        tasks = self.context.tasks
        then = tasks.claims.following(identity, able, lives) if then_next else None
        done = tasks.fail(identity.actor, worker, why, kept, retry=again, then=then)
        if then_next:
            done = self._with_next(done, identity, able, lives)
        return self._fenced(identity, done)

    def _terms_of_next(
        self,
        identity: Identity,
        then_next: bool,
        can: Iterable[str] | None,
        ttl: float | str | None,
    ) -> tuple[Abilities, float | None]:
        """The validated terms of the next claim."""
        able, (lives, _) = abilities_of(identity, can), self.context.terms({}, ttl, None)
        if not validate.flag(then_next, "then_next") and (can is not None or ttl is not None):
            raise BadInput(
                "'can' and 'ttl' are terms of the next task; ask for it: then_next=True, --next"
            )
        return able, lives

    def _with_next(
        self, done: Op[Ended], identity: Identity, can: Abilities, ttl: float | None
    ) -> Op[Ended]:
        """The outcome with the next task; if it did not come with the commit, it is claimed now."""
        outcome = yield from done
        if not isinstance(outcome, task_outcomes.TaskCompleted | task_outcomes.TaskFailed):
            return outcome
        if outcome.next is not None:
            return outcome
        claiming = self.context.tasks.claims.next(identity, can, ttl=ttl, wait=0.0)
        found = yield from self._explained(can, claiming)
        return replace(outcome, next=found)

    @call
    def release(
        self, task: str, *, token: int | None = None, given: Given = ()
    ) -> Op[task_outcomes.ReleaseOutcome]:
        """Release a task to the queue; no attempt is counted."""
        identity = self._identity(given)
        return self._fenced(
            identity, self.context.tasks.release(identity.actor, self._worker(task, token))
        )

    @call
    def heartbeat(
        self, task: str, *, token: int | None = None, given: Given = ()
    ) -> Op[task_outcomes.BeatOutcome]:
        """Renew a claim; one that expired is not revived."""
        identity, worker = self._identity(given), self._worker(task, token)
        return self._fenced(
            identity, self.context.tasks.heartbeat(identity.actor, worker, identity.session_ttl)
        )

    beat = heartbeat

    @call
    def progress(
        self,
        task: str,
        part: float,
        doing: str = "",
        *,
        token: int | None = None,
        given: Given = (),
    ) -> Op[task_outcomes.ProgressOutcome]:
        """Note how far the work on a claim is, from 0 to 1, and what is being done: one commit.

        A claim of a block or of a worker has ``claim.progress``, which commits now and then.
        """
        from interlock.nouns.tasks.claim_reports import work_report

        report = work_report(part, doing)
        identity, worker = self._identity(given), self._worker(task, token)
        return self._fenced(
            identity, self.context.tasks.progress(identity.actor, worker, report.part, report.doing)
        )

    @call
    def cancel(
        self, task: str, reason: str = "", *, given: Given = ()
    ) -> Op[task_outcomes.CancelOutcome]:
        """Cancel a task; its worker learns that its claim has ended."""
        identity = self._identity(given)
        return self._fenced(
            identity,
            self.context.tasks.cancel(identity.actor, validate.task_id(task), reason_text(reason)),
        )

    @call
    def requeue(
        self, task: str, reason: str, *, token: int | None = None
    ) -> Op[task_outcomes.RequeueOutcome]:
        """End the claim of a worker, and put the task back in the queue: for operators.

        No attempt is counted.  The worker's token is fenced, and it learns the ``reason``.  With a
        ``token`` only that claim is ended.
        """
        actor, why = self.context.me().actor, validate.reason(reason)
        return self.context.tasks.requeue(actor, validate.task_id(task), why, validate.token(token))

    @call
    def retry(self, task: str, *, given: Given = ()) -> Op[task_outcomes.RetryOutcome]:
        """Send back a task that failed or is a dead letter, with all its attempts."""
        identity = self._identity(given)
        return self._fenced(
            identity, self.context.tasks.retry(identity.actor, validate.task_id(task))
        )

    def _worker(self, task: str, token: int | None) -> task_types.Claimant:
        actor = self.context.me().actor
        return task_types.Claimant(
            task=validate.task_id(task),
            agent=actor.agent,
            session=actor.session,
            token=validate.token(token),
        )


def payload(value: object, what: str) -> Raw | None:
    """A validated result or error."""
    if value is None:
        return None
    return Raw(validate.payload(value, what, task_types.DATA_LIMIT, task_types.ELSEWHERE))
