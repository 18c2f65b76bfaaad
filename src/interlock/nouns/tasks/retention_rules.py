"""Retention: how long ended tasks stay, and what has to be true before one is deleted.

    complete       is deleted by age and by count, even if tasks need it: a complete task stays
                   complete, so a need that does not exist was complete
    failed, dead,  also by age and count, but only if no task needs it that is not complete: that
    dropped        task would take a deleted need for a complete one
    a batch        as a task once it is complete; after that the plan can be imported again

So there is one rule for a need that does not exist, and it cannot be wrong.  Its id may be used
again; but a task needs the task that existed when it was published, or when an edit named it, and
not a later one of the same id, else the new one might need the old, in a cycle.  All items of a
task are deleted with one commit, which checks that the task is as it was read, and that none of its
dependents is still to be unblocked.

No index lists the dependents of a task that are not blocked on it, so before a failed task is
deleted, all tasks are read once, from the first to the last.  A task that existed before is found,
since its key never changes.  A commit that publishes a task which needs a failed one, or edits one
so that it does, rewrites ``meta/needed``, and so does the commit that deletes a failed task: both
check it, so one of them sees the other.  A publisher may have read a need before it failed, without
a check of it: so ``meta/suspected`` is written before all tasks are read, and each commit that
publishes a task with an open need checks it.  Tasks of an import appear later than they were
planned, so while an import is under way no failed task is deleted.

Ages are measured by the clocks of many workers, and a wrong one must do no harm.  Now is no later
than our clock, nor than the newest entries of most other writers in the record: a client whose
clock is ahead deletes nothing too early.  A task did not end before it was published, nor before
items that were written earlier, as far as they were read, in the record or among tasks: one slow
clock does not make fresh results vanish.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.nouns.tasks import progress_rules
from interlock.nouns.tasks.task import BATCH, UNSUCCESSFUL, Spec, State, TaskStatus
from interlock.nouns.tasks.task_change import TaskChanges
from interlock.runtime.retention import Forgotten, RetentionLimits
from interlock.runtime.retention_clock import RecordedTime

KEEP = 90 * 86400.0
"""The age at which ended tasks are deleted: that at which the record deletes its entries."""
KEPT = 100_000
SLACK, PART = 4, 64
DAY = 86400.0
"""A survey that is dated this far ahead is ignored."""
NEVER = 1 << 63
OPERATIONS = 9
"""The most operations that deleting one task without labels and notes takes."""

_NO_LABELS: Mapping[str, Sequence[str]] = {}
_OVER: tuple[State, ...] = ("complete", *UNSUCCESSFUL)


class EndedTask(Struct, frozen=True, kw_only=True, gc=False):
    """An ended task: the revision that wrote its end, when it ended, and what to delete with it.

    Only a task that has not ended can be edited, so a task that is as it was read has these labels.
    """

    task: str
    revision: int
    at: float
    complete: bool
    labels: tuple[str, ...] = ()

    @property
    def operations(self) -> int:
        """The most operations that deleting it takes."""
        return OPERATIONS + len(self.labels)


class RetentionSurvey(Struct, frozen=True, kw_only=True):
    """The result of reading all tasks: how many had ended, and when the oldest of them ended.

    ``entries`` is the number of entries of the record at that time, if it is known.
    """

    revision: int
    at: float
    oldest: float
    count: int
    entries: int = 0

    def settles(self, keep: RetentionLimits, now: float, came: int) -> bool:
        """Whether no task can be too old yet, and at most a quarter too many can have ended.

        ``came`` is how many can have ended since.
        """
        right = self.at <= now + DAY
        old = self.oldest + keep.age < now
        most = keep.count + keep.count // SLACK
        return right and not old and self.count + came <= most

    def rests(self, keep: RetentionLimits, now: float, came: int) -> bool:
        """Whether the client that read all tasks may wait: old tasks may stay that are needed."""
        few = came <= keep.count // PART
        return self.settles(keep, now, came) or (few and now < self.at + keep.age / PART)


def young(some: Iterable[EndedTask | RecordedTime], age: float, now: float) -> int:
    """The lowest revision that is known to be recent: no later one is too old."""
    found = (each.revision for each in some if each.at <= now <= each.at + age)
    return min(found, default=NEVER)


def ended_task(task: str, revision: int, status: TaskStatus, spec: Spec) -> EndedTask | None:
    """The task as an ended one; None if it has not ended, or is an import under way."""
    complete = status.state == "complete"
    if status.state not in _OVER or (task.startswith(BATCH) and not complete):
        return None
    at = max(status.since, spec.at)
    return EndedTask(task=task, revision=revision, at=at, complete=complete, labels=spec.labels)


def expired(some: Sequence[EndedTask], before: float, young: int, cut_at: int) -> list[EndedTask]:
    """The tasks that are too old, or ended at or before the revision ``cut_at``.

    A task is too old if it ended ``before`` a moment, unless at a ``young`` revision.
    """
    return [
        each
        for each in some
        if each.revision <= cut_at or (each.at < before and each.revision < young)
    ]


def count_cut(revisions: Sequence[int], count: int) -> int:
    """The revision up to which the surplus of tasks ended; 0 if there is none.

    Tasks that ended with one commit stay together: a few more than ``count`` may stay, never fewer.
    """
    order, beyond = sorted(revisions), len(revisions) - count
    if beyond <= 0:
        return 0
    first = order[beyond] if count else order[-1] + 1
    return min(order[beyond - 1], first - 1)


def note(survey: RetentionSurvey, before: RetentionSurvey | None) -> Decision[None]:
    """Write a survey, so that no client reads all tasks again before it matters."""
    if before is not None and before.revision >= survey.revision:
        return Decision(outcome=None)
    put = Write(keys.FINISHED, survey)
    return Decision(outcome=None, verb="task.survey", thing="tasks", puts=(put,))


def suspect() -> Decision[None]:
    """Make publishers conflict that read a need before it failed."""
    put = Write(keys.SUSPECTED, {})
    return Decision(outcome=None, verb="task.suspect", thing="tasks", puts=(put,))


def delete(
    changes: TaskChanges,
    aims: Mapping[str, int],
    *,
    failed: bool = False,
    labels: Mapping[str, Sequence[str]] = _NO_LABELS,
) -> Decision[Forgotten]:
    """Delete these tasks with all their items, if they are as they were at these revisions.

    ``labels`` are those of the tasks at these revisions.  A task whose notes do not fit into this
    commit stays, without some of them.

    A caller that gives ``failed`` tasks has seen that no task needs them, and checks
    ``meta/needed``.
    """
    ended = [task for task, revision in aims.items() if _stands(changes, task, revision)]
    changes.facts.need_all(changes.facts.numbers_of_notes, ended)
    leave = OPERATIONS * (1 + len(ended)) + sum(map(len, labels.values()))
    gone = [task for task in ended if changes.delete_notes(task, leave)]
    for task in gone:
        changes.rely(keys.status(task), keys.todo(task))
        changes.delete(keys.data(task), keys.status(task), keys.result(task))
        changes.list_labels(task, (), labels.get(task, ()))
        if (known := changes.facts.status(task)) is not None and known.gated:
            changes.awaits(f"task/{task}")
        if failed:
            changes.delete(keys.ended(task))
            status = changes.facts.status(task)
            if status is not None and status.deadline is not None:
                changes.delete(keys.deadline(task))
        if not task.startswith(BATCH):
            changes.task_event("forgotten", "", task)
    if not ended:
        return Decision(outcome=Forgotten())
    for task in set(ended).difference(gone):
        changes.rely(keys.status(task))
    if failed and gone:
        changes.put(keys.NEEDED, {})
    thing = progress_rules.record_name(ended[0]) if len(ended) == 1 else "tasks"
    forgotten = Forgotten(count=len(gone), left=len(ended) - len(gone))
    return changes.decision(forgotten, "task.forget", thing)


def _stands(changes: TaskChanges, task: str, revision: int) -> bool:
    """Whether a task is as it was read, and none of its dependents is still to be unblocked."""
    there = changes.facts.status(task) is not None and changes.facts.newest[task] == revision
    return there and not changes.facts.has(keys.todo(task))
