"""Tasks that are over: how long they stay, and what has to be true before one goes.

    complete       goes by age and by count, whoever needs it: what is complete stays so, and a need
                   that is not there any more was complete
    failed, dead   likewise, but only while no task needs it that is not complete: such a task would
                   take what is gone for done
    a batch        when it is complete, as a task does; a plan is imported anew then

So there is one rule for whoever meets a need that is gone, and it cannot be wrong.  Its id may be
used again; but a task needs what was there when it was published, and not what has that name now,
else the new one might need the old, in a circle.  All that belongs to a task goes with one commit,
which checks that it still stands as it was seen, and that nothing is left to be moved on behind it.

Nobody lists who needs a task, so for one that failed all tasks are looked at once, from the first
to the last.  Each that was there before is met, since its key never changes.  Whoever publishes a
task that needs one that failed writes ``meta/needed`` anew, and so does whoever forgets one: both
check it, so neither can pass the other unseen.  A publisher may have seen a need before it failed,
and check nothing of it: so ``meta/suspected`` is written before all tasks are looked at, and
checked by whoever publishes what needs a task that is not complete.  A task of an import comes
later than it was planned, so while one is under way nothing that failed goes.

What is old is told by the clocks of many workers, and one that is wrong must do no harm.  Now is no
later than our clock, nor than the newest entries of most others in the record: whoever is ahead
lets go of nothing too soon.  A task is not over before it was published, and not longer than what
was written before it, as far as that was seen, in the record or among tasks: one clock that is slow
does not make fresh results vanish.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.nouns.messages.retention_rules import Forgotten, RetentionLimits
from interlock.nouns.tasks import progress_rules
from interlock.nouns.tasks.task import BATCH, Spec, State, TaskStatus
from interlock.nouns.tasks.task_change import TaskChanges

KEEP = 90 * 86400.0
"""As long as the record keeps its story, so that both end together."""
KEPT = 100_000
SLACK, PART = 4, 64
DAY = 86400.0
"""What is dated so much ahead says nothing."""
NEVER = 1 << 63
OPERATIONS = 7
"""That forgetting one task may take."""

_OVER: tuple[State, ...] = ("complete", "failed", "dead")


class EndedTask(Struct, frozen=True, kw_only=True, gc=False):
    """A task that is over: at which revision that was written, and when it was."""

    task: str
    revision: int
    at: float
    complete: bool


class RecordedTime(Struct, frozen=True, kw_only=True, gc=False):
    """What an entry of the record says: when it was, and by whom."""

    revision: int = 0
    at: float = 0.0
    writer: str = ""
    agent: str = ""


class RetentionSurvey(Struct, frozen=True, kw_only=True):
    """What was over when all tasks were looked at: how many, and the oldest of them since when.

    ``entries`` are those that the record had by then, if that is known.
    """

    revision: int
    at: float
    oldest: float
    count: int
    entries: int = 0

    def settles(self, keep: RetentionLimits, now: float, came: int) -> bool:
        """Whether nothing can be too old yet, nor too many by more than a quarter.

        ``came`` is how many can have ended since.
        """
        right = self.at <= now + DAY
        old = self.oldest + keep.age < now
        most = keep.count + keep.count // SLACK
        return right and not old and self.count + came <= most

    def rests(self, keep: RetentionLimits, now: float, came: int) -> bool:
        """Whether that may wait for whoever looked: what is old may stay since it is needed."""
        few = came <= keep.count // PART
        return self.settles(keep, now, came) or (few and now < self.at + keep.age / PART)


def now(own: float, said: Sequence[RecordedTime], writer: str) -> float:
    """The moment that it is, by our own clock and by what most other agents wrote last."""
    newest: dict[str, float] = {}
    for each in said:
        if each.writer != writer:
            newest[each.agent] = max(each.at, newest.get(each.agent, 0.0))
    order = sorted(newest.values())
    return min(own, order[(len(order) - 1) // 2]) if order else own


def young(some: Iterable[EndedTask | RecordedTime], age: float, now: float) -> int:
    """The revision from which on nothing is too old, since that was written when it was not."""
    found = (each.revision for each in some if each.at <= now <= each.at + age)
    return min(found, default=NEVER)


def ended_task(task: str, revision: int, status: TaskStatus, spec: Spec) -> EndedTask | None:
    """What is over of a task; None if it is not, or is an import under way."""
    complete = status.state == "complete"
    if status.state not in _OVER or (task.startswith(BATCH) and not complete):
        return None
    at = max(status.since, spec.at)
    return EndedTask(task=task, revision=revision, at=at, complete=complete)


def expired(some: Sequence[EndedTask], before: float, young: int, cut_at: int) -> list[EndedTask]:
    """Those of them whose time is up: too old, or ended at or before the revision of the cut_at.

    Too old is what ended ``before`` a moment, unless it did so at a ``young`` revision.
    """
    return [
        each
        for each in some
        if each.revision <= cut_at or (each.at < before and each.revision < young)
    ]


def count_cut(revisions: Sequence[int], count: int) -> int:
    """The revision up to which those ended that are too many; 0 if none are.

    What ended with one commit goes together: a few more than are kept may stay, and never fewer.
    """
    order, beyond = sorted(revisions), len(revisions) - count
    if beyond <= 0:
        return 0
    first = order[beyond] if count else order[-1] + 1
    return min(order[beyond - 1], first - 1)


def note(survey: RetentionSurvey, before: RetentionSurvey | None) -> Decision[None]:
    """Write down what was seen, so that nobody need look again before it matters."""
    if before is not None and before.revision >= survey.revision:
        return Decision(outcome=None)
    put = Write(keys.FINISHED, survey)
    return Decision(outcome=None, verb="task.survey", thing="tasks", puts=(put,))


def suspect() -> Decision[None]:
    """Let whoever saw what failed before it did look again, before all tasks are looked at."""
    put = Write(keys.SUSPECTED, {})
    return Decision(outcome=None, verb="task.suspect", thing="tasks", puts=(put,))


def delete(
    changes: TaskChanges, aims: Mapping[str, int], *, failed: bool = False
) -> Decision[Forgotten]:
    """Let go of these, if they stand as they did at their revisions, with all that is theirs.

    Whoever gives some that ``failed`` has seen that nobody needs them, and checks ``meta/needed``.
    """
    gone = [task for task, revision in aims.items() if _stands(changes, task, revision)]
    for task in gone:
        changes.rely(keys.status(task), keys.todo(task))
        changes.delete(keys.data(task), keys.status(task), keys.result(task))
        if failed:
            changes.delete(keys.ended(task))
            status = changes.facts.status(task)
            if status is not None and status.deadline is not None:
                changes.delete(keys.deadline(task))
        if not task.startswith(BATCH):
            changes.task_event("forgotten", "", task)
    if not gone:
        return Decision(outcome=Forgotten())
    if failed:
        changes.put(keys.NEEDED, {})
    thing = progress_rules.record_name(gone[0]) if len(gone) == 1 else "tasks"
    return changes.decision(Forgotten(count=len(gone)), "task.forget", thing)


def _stands(changes: TaskChanges, task: str, revision: int) -> bool:
    """Whether a task is as it was seen, and nothing hangs on it that may go on."""
    there = changes.facts.status(task) is not None and changes.facts.newest[task] == revision
    return there and not changes.facts.has(keys.todo(task))
