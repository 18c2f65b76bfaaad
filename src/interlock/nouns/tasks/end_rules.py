"""Decisions of a worker that ends its claim: it completes the task, fails the attempt, releases it.

An end that is repeated by the same claim is answered as the first one was.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Raw

from interlock.core import keys
from interlock.core.decision import Decision
from interlock.nouns.tasks import progress_rules, task, task_outcomes
from interlock.nouns.tasks.claim_rules import claim_several, own_claim
from interlock.nouns.tasks.task import (
    Claimant,
    ClaimRequest,
    Spec,
    State,
    TaskOwner,
    TaskResult,
    TaskStatus,
)
from interlock.nouns.tasks.task_change import TaskChanges, TaskFacts

END_SIZE = 12
"""The most operations that the end of a task takes which concerns no other."""


def release(changes: TaskChanges, claimant: Claimant) -> Decision[task_outcomes.ReleaseOutcome]:
    """Put a task back in the queue without counting an attempt."""
    found = own_claim(changes, claimant, "task.release")
    if isinstance(found, Decision):
        return found
    id_, (_, held) = claimant.task, found
    changes.end_claim(id_, held)
    changes.move(id_, "release", "pending")
    changes.make_ready(id_, changes.facts.spec(id_))
    changes.task_event("released", held.agent)
    return changes.decision(task_outcomes.TaskReleased(task=id_), "task.release", f"task/{id_}")


def take_back(
    changes: TaskChanges, claimant: Claimant
) -> Decision[task_outcomes.ReleaseOutcome | None]:
    """Release a claim that its caller never learned of, if it was committed."""
    held = changes.facts.claim(claimant.task)
    if held is None or held.id != claimant.claim:
        return Decision(outcome=None)
    return release(changes, claimant)


def complete(
    changes: TaskChanges,
    claimant: Claimant,
    result: Raw | None,
    hangers: Sequence[str],
    *,
    more: bool,
) -> Decision[task_outcomes.CompleteOutcome]:
    """Complete a task and unblock its dependents, as far as they fit into this commit.

    ``hangers`` are dependents of it; ``more`` says that there may be others: they were too many,
    or one may have been published since they were listed.
    """
    id_ = claimant.task
    if _ended_by(changes, claimant, ("complete",)) is not None:
        return Decision(outcome=task_outcomes.TaskCompleted(task=id_, already=True))
    found = own_claim(changes, claimant, "task.complete")
    if isinstance(found, Decision):
        return found
    status, held = found
    _end_complete(changes, id_, status, held, result)
    begun, rest = progress_rules.unblock(changes, id_, hangers)
    if status.awaited and (rest or more):
        changes.put(keys.todo(id_), {})
    outcome = task_outcomes.TaskCompleted(task=id_, unblocked=begun)
    return changes.decision(outcome, "task.complete", f"task/{id_}")


def _end_complete(
    changes: TaskChanges, id_: str, status: TaskStatus, held: TaskOwner, result: Raw | None
) -> None:
    """Make a task complete, for the worker that has it."""
    changes.end_claim(id_, held)
    changes.move(
        id_,
        "complete",
        "complete",
        awaited=False,
        gated=False,
        since=changes.now,
        by=held.agent,
        token=changes.facts.tokens[id_],
        session=held.session,
    )
    if result is not None or status.attempts:
        _keep_result(changes, id_, status, held, result=result)
    if status.deadline is not None:  # a task that failed needs it for a retry
        changes.delete(keys.deadline(id_))
    changes.task_event("completed", held.agent, id_)


def complete_several(changes: TaskChanges, ends: Sequence[task.TaskEnd]) -> list[str]:
    """Complete those of these tasks whose end concerns no other task and no guard; returns them.

    The others are left as they are: each of them ends by a commit of its own (``complete``).
    """
    ended, facts = [], changes.facts
    all_fit = changes.room >= END_SIZE * len(ends)
    for end in ends:
        if (found := _simple_end(facts, end)) is None:
            continue
        if not all_fit and changes.room < END_SIZE:
            break
        status, held = found
        changes.rely(*held.live)
        _end_complete(changes, end.claimant.task, status, held, end.result)
        ended.append(end.claimant.task)
    return ended


def ends_simply(facts: TaskFacts, end: task.TaskEnd) -> bool:
    """Whether a completion is that of the worker, and concerns no other task and no guard."""
    return _simple_end(facts, end) is not None


def _simple_end(facts: TaskFacts, end: task.TaskEnd) -> tuple[TaskStatus, TaskOwner] | None:
    """The status and the claim of a task that ends simply."""
    id_ = end.claimant.task
    status, held = facts.status(id_), facts.claim(id_)
    if status is None or held is None or status.awaited or status.gated or status.evidence:
        return None
    if not end.claimant.speaks_for(held, facts.tokens[id_]) or not facts.alive(held):
        return None
    return status, held


def complete_and_claim(
    changes: TaskChanges, end: task.TaskEnd, request: ClaimRequest, spec: Spec | None
) -> Decision[task_outcomes.TaskCompleted | None]:
    """Complete a task that ends simply, and claim one that is simply ready; else do nothing."""
    ended = complete_several(changes, (end,))
    claimed = claim_several(changes, ((request, spec, ""),))
    if not ended or not claimed:
        return Decision(outcome=None)
    outcome = task_outcomes.TaskCompleted(task=ended[0], next=claimed[0])
    return changes.decision(outcome, "task.complete", f"task/{ended[0]}")


def fail(
    changes: TaskChanges,
    claimant: Claimant,
    reason: str,
    error: Raw | None,
    chance: float,
    *,
    retry: bool,
) -> Decision[task_outcomes.FailOutcome]:
    """Fail an attempt: the task rests and is retried, or it has ended."""
    id_ = claimant.task
    ends: tuple[State, ...] = ("blocked", "pending", "failed", "dead")
    if (ended := _ended_by(changes, claimant, ends)) is not None:
        return Decision(outcome=_failed(changes, id_, ended, already=True))
    found = own_claim(changes, claimant, "task.fail")
    if isinstance(found, Decision):
        return found
    status, held = found
    cause = {
        "reason": reason,
        "by": held.agent,
        "token": changes.facts.tokens[id_],
        "session": held.session,
    }
    changes.end_claim(id_, held)
    if retry:
        after = progress_rules.count_failure(changes, id_, "fail", chance, **cause)
    else:
        attempts, since = status.attempts + 1, changes.now
        after = changes.move(id_, "fail", "failed", attempts=attempts, since=since, **cause)
    _keep_result(changes, id_, status, held, error=error)
    changes.task_event("dead" if after.state == "dead" else "failed", held.agent)
    return changes.decision(_failed(changes, id_, after), "task.fail", f"task/{id_}")


def _keep_result(
    changes: TaskChanges,
    id_: str,
    status: TaskStatus,
    held: TaskOwner,
    *,
    result: Raw | None = None,
    error: Raw | None = None,
) -> None:
    """Write what came of an attempt; without that, delete what came of an earlier one."""
    if result is not None or error is not None:
        kept = TaskResult(
            by=held.agent,
            at=changes.now,
            token=changes.facts.tokens[id_],
            result=UNSET if result is None else result,
            error=UNSET if error is None else error,
        )
        changes.put(keys.result(id_), kept)
    elif status.attempts:
        changes.delete(keys.result(id_))


def _ended_by(
    changes: TaskChanges, claimant: Claimant, states: tuple[State, ...]
) -> TaskStatus | None:
    """The status of a task that the claimant has brought into one of these states before."""
    status = changes.facts.status(claimant.task)
    if status is None or status.state not in states or not claimant.ended(status):
        return None
    return status


def _failed(
    changes: TaskChanges, id_: str, status: TaskStatus, *, already: bool = False
) -> task_outcomes.TaskFailed:
    left = max(0.0, keys.due_at(status.due) - changes.now) if status.due else None
    return task_outcomes.TaskFailed(
        task=id_,
        state="pending" if status.state == "blocked" else status.state,
        attempts=status.attempts,
        retry_in=None if left is None else round(left, 3),
        already=already,
    )
