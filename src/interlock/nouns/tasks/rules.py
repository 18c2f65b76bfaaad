"""Decisions of planners and operators: publish, cancel, requeue, retry.

Those of workers are in ``claim_rules.py`` and ``end_rules.py``, edits in ``edit_rules.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision
from interlock.core.safe_text import foreign
from interlock.core.validate import quote
from interlock.errors import BadInput
from interlock.nouns.grants.pool import BreakNote
from interlock.nouns.tasks import progress_rules, task, task_outcomes
from interlock.nouns.tasks.task import (
    Spec,
    State,
    TaskStatus,
)
from interlock.nouns.tasks.task_change import TaskChanges


def publish(
    changes: TaskChanges, id_: str, spec: Spec
) -> Decision[task_outcomes.Published | task_outcomes.TaskExists]:
    """Publish a task; one that exists already stays as it is."""
    if (status := changes.facts.status(id_)) is not None:
        return Decision(outcome=task_outcomes.TaskExists(task=id_, state=status.state))
    ended = progress_rules.read_needs(changes, spec.needs)
    unknown = next((need for need in spec.needs if not changes.exists(need)), None)
    if unknown is not None:
        raise BadInput(
            f"task {id_!r} needs {unknown!r}, which does not exist; publish that first,"
            " or both together: interlock task import FILE;"
            " leave out needs that were completed long ago"
        )
    status = progress_rules.create(changes, id_, spec)
    outcome = task_outcomes.Published(task=id_, state=status.state, ended=ended)
    return changes.decision(outcome, "task.publish", f"task/{id_}")


def cancel(
    changes: TaskChanges, id_: str, agent: str, reason: str
) -> Decision[task_outcomes.CancelOutcome]:
    """End a task as failed; its worker finds its claim fenced at its next act."""
    status = changes.facts.status(id_)
    if status is None or changes.is_hidden(status):
        return Decision(outcome=absent(id_, status))
    if is_cancelled(status.state, status.reason):
        return Decision(outcome=task_outcomes.TaskCancelled(task=id_, already=True))
    if status.state not in OPEN:
        over = f"it is {status.state} already; nothing is left to cancel"
        return Decision(outcome=task_outcomes.Unchanged(task=id_, state=status.state, reason=over))
    _cancel(changes, id_, status, agent, reason)
    return changes.decision(task_outcomes.TaskCancelled(task=id_), "task.cancel", f"task/{id_}")


def is_cancelled(state: task.State, reason: str) -> bool:
    """Whether a task of this state and reason was cancelled, and not failed by its worker."""
    return state == "failed" and reason.startswith(_CANCELLED)


def cancel_open(changes: TaskChanges, ids: Sequence[str], agent: str, reason: str) -> int:
    """Cancel those of these tasks that are not over; returns how many."""
    changes.facts.need_statuses(ids)
    found = {id_: status for id_ in ids if (status := changes.facts.status(id_)) is not None}
    left = {id_: status for id_, status in found.items() if status.state in OPEN}
    changes.facts.need_all(changes.facts.claim, left)
    waiting = [id_ for id_, status in left.items() if status.state == "pending" and not status.due]
    changes.facts.need_all(changes.facts.spec, waiting)
    for id_, status in left.items():
        _cancel(changes, id_, status, agent, reason)
    return len(left)


def _cancel(
    changes: TaskChanges, id_: str, status: task.TaskStatus, agent: str, reason: str
) -> None:
    held = changes.facts.claim(id_)
    if held is not None:
        changes.end_claim(id_, held)
    elif status.state == "pending" and not status.due:
        changes.delete(changes.facts.spec(id_).ready_key(id_))
    said = f"{_CANCELLED} {agent}" + (f": {reason}" if reason else "")
    changes.move(id_, "cancel", "failed", since=changes.now, by=agent, reason=said)
    changes.task_event("cancelled", agent, id_)


def requeue(
    changes: TaskChanges, id_: str, by: str, reason: str, token: int | None
) -> Decision[task_outcomes.RequeueOutcome]:
    """End the claim of a worker for an operator, without counting an attempt."""
    status = changes.facts.status(id_)
    if status is None or changes.is_hidden(status):
        return Decision(outcome=absent(id_, status))
    held = changes.facts.claim(id_)
    if status.state != "running" or held is None:
        why = f"it is {status.state}; only a running task can be requeued"
        return Decision(outcome=task_outcomes.Unchanged(task=id_, state=status.state, reason=why))
    own = changes.facts.tokens[id_]
    if token not in (None, own):
        fenced = task_outcomes.TaskFenced(
            task=id_, state=status.state, holder=held.agent, token=own
        )
        return Decision(outcome=fenced)
    changes.end_claim(id_, held)
    changes.move(id_, "release", "pending")
    changes.make_ready(id_, changes.facts.spec(id_))
    note = BreakNote(
        grant=held.id,
        holder=held.agent,
        session=held.session,
        token=own,
        by=by,
        at=changes.now,
        reason=reason,
    )
    changes.put(keys.broken(f"task/{id_}", held.id), note)
    changes.task_event("requeued", held.agent)
    outcome = task_outcomes.TaskRequeued(task=id_, holder=held.agent, token=own, reason=reason)
    return replace(changes.decision(outcome, "task.requeue", f"task/{id_}"), reason=reason)


def retry(changes: TaskChanges, id_: str, agent: str) -> Decision[task_outcomes.RetryOutcome]:
    """Put a failed or dead task back in the queue, with all its attempts."""
    status = changes.facts.status(id_)
    if status is None or changes.is_hidden(status):
        return Decision(outcome=absent(id_, status))
    if status.state not in ("failed", "dead"):
        reason = f"it is {status.state}; only a failed or dead task can be sent back"
        if status.state == "dropped":
            reason = f"it was dropped; publish it again: interlock task add {quote(id_)} --again"
        return Decision(
            outcome=task_outcomes.Unchanged(task=id_, state=status.state, reason=reason)
        )
    spec = changes.facts.spec(id_)
    at = progress_rules.first_unmet_need(changes, id_, spec.needs, 0)
    missed = status.deadline is not None and changes.is_deadline_over(id_, status.deadline)
    kept = {"attempts": 0, "deadline": None if missed else status.deadline}
    if at is None:
        changes.move(id_, "retry", "pending", **kept)
        changes.make_pending(id_, spec)
    else:
        on = spec.needs[at]
        changes.move(id_, "retry", "blocked", since=changes.now, on=on, place=at, **kept)
        changes.block_on(id_, on)
    changes.task_event("retried", agent)
    after = changes.status(id_)
    state: State = "pending" if after is None else after.state
    return changes.decision(
        task_outcomes.Retried(task=id_, state=state), "task.retry", f"task/{id_}"
    )


_CANCELLED = "cancelled by"
OPEN: tuple[task.State, ...] = ("blocked", "pending", "running")
"""The states of a task that is not over."""


def last_attempt(status: TaskStatus | None) -> dict[str, object]:
    """Which claim ended last, and why: its worker may ask again."""
    if status is None or not status.token:
        return {}
    return {
        "reason": status.reason,
        "by": status.by,
        "token": status.token,
        "session": status.session,
    }


def absent(id_: str, status: TaskStatus | None) -> task_outcomes.Unchanged:
    """Nothing changed: the task does not exist, or is still hidden."""
    if status is None:
        return task_outcomes.Unchanged(
            task=id_, state="unknown", reason=f"there is no task {foreign(id_)}"
        )
    return task_outcomes.Unchanged(task=id_, state=status.state, reason=task.HIDDEN_REASON)
