"""The outcomes of the acts on tasks: what a caller learns (``task.py`` has the states)."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct, field

from interlock.core import item_outcomes, outcomes
from interlock.core.decision import Refusal, Success
from interlock.nouns.tasks.task import PRIORITY, State


class Published(Success, frozen=True, kw_only=True, tag="published"):
    """The task is published.

    ``ended`` are needs that failed, are dead or were dropped: it waits for them as well.  If a
    ``guard`` keeps it, ``leaf`` is the condition that does not hold, and ``reason`` says why.
    """

    own_words = ("reason",)

    task: str
    state: State = "pending"
    ended: tuple[str, ...] = ()
    guard: str = ""
    leaf: str = ""
    reason: str = ""


class TaskExists(item_outcomes.Exists, Refusal, frozen=True, kw_only=True, tag="exists"):
    """A task of this id exists already, and stays as it is."""

    task: str
    state: State


class Claimed(outcomes.Acquired, frozen=True, kw_only=True, tag="claimed"):
    """The task is yours; its ``title``, ``text`` and ``data`` were published with it.

    Only ``next`` compares what it ``requires`` with your abilities.  ``others`` were claimed by the
    same commit, for a caller that asked for more than one.
    """

    of_lines = ("text",)

    task: str
    token: int | None = None
    holder: str = ""
    expires_in: float | None = None
    data: Any = None
    attempt: int = 1
    priority: int = PRIORITY
    grant: str = ""
    requires: tuple[str, ...] = ()
    title: str = ""
    text: str = ""
    labels: tuple[str, ...] = ()
    others: tuple[Claimed, ...] = ()


class Taken(outcomes.Busy, frozen=True, kw_only=True, tag="taken"):
    """Another worker has the task."""

    task: str
    holder: str
    since: float = 0.0
    expires_in: float | None = None


class TaskBlocked(outcomes.Blocked, frozen=True, kw_only=True, tag="blocked"):
    """It cannot begin yet: a need is not complete (``on``), or it has to wait (``retry_in``).

    If a ``guard`` keeps it, ``result`` says whether that failed or is unknown, ``leaf`` is the
    condition that decides it, and ``acts`` would clear it.
    """

    own_words = ("reason",)

    task: str
    reason: str
    on: str = ""
    retry_in: float | None = None
    guard: str = ""
    result: Literal["failed", "unknown", ""] = ""
    leaf: str = ""
    acts: tuple[str, ...] = ()


class TaskDeadlock(outcomes.Deadlock, frozen=True, kw_only=True, tag="deadlock"):
    """The wait would never end: these wait for each other in a cycle, beginning with you."""

    task: str
    cycle: tuple[str, ...]


class NoTask(outcomes.Nothing, frozen=True, kw_only=True, tag="nothing"):
    """There is nothing to claim: no ready task that you can do, or the named task has ended.

    Of the next task, ``can`` is what you can do, as the call or your session says; ``missing`` are
    the abilities that ready tasks require and you do not have; ``soonest`` is the task that may
    begin next, or the schedule that publishes it, in ``begins_in`` seconds.
    """

    own_words = ("reason",)

    reason: str
    task: str = ""
    state: State | Literal["unknown", ""] = ""
    can: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    soonest: str = ""
    begins_in: float | None = None


class TaskExtended(outcomes.Extended, frozen=True, kw_only=True, tag="extended"):
    """The claim is renewed."""

    task: str
    holder: str
    token: int | None = None
    expires_in: float | None = None
    grant: str = ""


class ProgressNoted(Success, frozen=True, kw_only=True, tag="progress"):
    """How far the work is, from 0 to 1, is noted, and what is being done (``doing``)."""

    task: str
    progress: float
    doing: str = ""


class TaskCompleted(item_outcomes.Completed, frozen=True, kw_only=True, tag="completed"):
    """The task is complete; ``already`` if the same claim had completed it before.

    ``unblocked`` is the number of tasks that became ready with it, and ``warned`` are guards of its
    evidence that did not pass, and only warn.  ``next`` is the next task, for a caller that asked
    for one with it.
    """

    task: str
    already: bool = False
    unblocked: int = 0
    warned: tuple[str, ...] = ()
    next: Claimed | NoTask | None = None


class EvidenceMissing(outcomes.Blocked, frozen=True, kw_only=True, tag="blocked"):
    """A guard of its evidence does not pass: it is not complete, and the claim stays as it is.

    ``result`` says whether the guard failed or is unknown; ``leaf`` is the condition that decides
    that, and ``acts`` would clear it.  A guard that is checked a limited number of times has failed
    ``failures`` times, and is counted again after ``retry_in`` seconds.
    """

    own_words = ("reason",)

    task: str
    guard: str
    result: Literal["failed", "unknown"]
    leaf: str
    reason: str
    acts: tuple[str, ...] = ()
    failures: int = 0
    retry_in: float | None = None


class EvidenceFailed(item_outcomes.Failed, Refusal, frozen=True, kw_only=True, tag="failed"):
    """A guard of its evidence failed, and ended the attempt: the task is retried, or dead."""

    own_words = ("reason",)

    task: str
    state: State
    attempts: int
    guard: str
    leaf: str
    reason: str
    retry_in: float | None = None


class TaskFailed(item_outcomes.Failed, Success, frozen=True, kw_only=True, tag="failed"):
    """The attempt failed: the task is retried (pending), failed for good, or dead.

    ``next`` is the next task, for a caller that asked for one with it.
    """

    task: str
    state: State
    attempts: int
    retry_in: float | None = None
    already: bool = False
    next: Claimed | NoTask | None = None


class TaskReleased(outcomes.Released, frozen=True, kw_only=True, tag="released"):
    """The task is back in the queue; no attempt was counted."""

    task: str


class TaskFenced(outcomes.Fenced, frozen=True, kw_only=True, tag="fenced"):
    """Your claim has ended; ``by`` names the operator who ended it, if one did."""

    task: str
    state: State
    holder: str = ""
    token: int | None = None
    by: str = ""
    reason: str = ""


class TaskRequeued(Success, frozen=True, kw_only=True, tag="requeued"):
    """The claim of ``holder`` has ended, its token is fenced, and the task waits for a worker."""

    task: str
    holder: str
    token: int | None
    reason: str


class TaskNotOwner(outcomes.NotOwner, frozen=True, kw_only=True, tag="not_owner"):
    """You have no claim on this task, and never had one."""

    task: str
    state: State | Literal["unknown"]
    holder: str = ""


class TaskCancelled(item_outcomes.Cancelled, frozen=True, kw_only=True, tag="cancelled"):
    """The task will not be done, unless it is retried."""

    task: str
    already: bool = False


class Retried(Success, frozen=True, kw_only=True, tag="retried"):
    """The task is in the queue again, with all its attempts."""

    task: str
    state: State


class FieldChange(Struct, frozen=True, kw_only=True):
    """The values of a field before and after an edit; a long one is cut, and says so."""

    old: Any
    new: Any


class TaskEdited(Success, frozen=True, kw_only=True, tag="edited"):
    """The task is as you want it; ``changed`` are the fields that were different.

    ``ended`` are needs that failed, are dead or were dropped.
    """

    task: str
    state: State
    changed: dict[str, FieldChange] = field(default_factory=dict)
    ended: tuple[str, ...] = ()


class TasksDropped(item_outcomes.Dropped, frozen=True, kw_only=True, tag="dropped"):
    """These tasks will never be done; ``blocked`` are the first tasks that wait for one of them."""

    tasks: tuple[str, ...]
    blocked: tuple[str, ...] = ()


class Unchanged(Refusal, frozen=True, kw_only=True, tag="unchanged"):
    """Nothing changed, since the state of the task does not allow it."""

    own_words = ("reason",)

    task: str
    state: State | Literal["unknown"]
    reason: str


class TaskNoted(Success, frozen=True, kw_only=True, tag="noted"):
    """The note stands with the task, under this number."""

    task: str
    note: int


class Imported(Success, frozen=True, kw_only=True, tag="imported"):
    """The whole plan is published.

    ``later`` counts tasks that must not begin yet, ``guarded`` tasks that begin when their guards
    pass.
    """

    plan: str
    tasks: int
    ready: int
    blocked: int
    later: int = 0
    guarded: int = 0


class Checked(Success, frozen=True, kw_only=True, tag="checked"):
    """The plan could be published as it is; nothing was written."""

    plan: str
    tasks: int
    ready: int
    blocked: int
    later: int = 0
    guarded: int = 0


class PlannedEdit(Struct, frozen=True, kw_only=True):
    """A task that an update of its plan edits, with the fields that change."""

    task: str
    changed: dict[str, FieldChange]


class LeftTask(Struct, frozen=True, kw_only=True):
    """A task that an update of its plan leaves alone, although it differs from the file."""

    own_words = ("reason",)

    task: str
    state: State
    reason: str


class PlanChanges(Success, frozen=True, kw_only=True, tag="changes"):
    """What an update of the plan would change; nothing was written.

    ``left`` are tasks that differ and stay as they are; ``same`` counts those that do not differ.
    Only of a plan that is ``named`` the tasks are known, so only then some are dropped.
    """

    plan: str
    new: tuple[str, ...] = ()
    edited: tuple[PlannedEdit, ...] = ()
    dropped: tuple[str, ...] = ()
    left: tuple[LeftTask, ...] = ()
    same: int = 0
    named: bool = True


class PlanUpdated(Success, frozen=True, kw_only=True, tag="updated"):
    """The plan is that of the file, but for tasks that are ``left`` as they are."""

    plan: str
    new: tuple[str, ...] = ()
    edited: tuple[PlannedEdit, ...] = ()
    dropped: tuple[str, ...] = ()
    left: tuple[LeftTask, ...] = ()
    same: int = 0
    named: bool = True


class PlanExists(item_outcomes.Exists, Refusal, frozen=True, kw_only=True, tag="exists"):
    """This plan was published before, or one of its ids is in use; nothing was written."""

    own_words = ("reason",)

    plan: str
    reason: str
    task: str = ""
    state: State | str = ""


PublishOutcome: TypeAlias = Published | TaskExists | outcomes.GivenFenced


ClaimOutcome: TypeAlias = (
    Claimed | Taken | TaskBlocked | NoTask | TaskDeadlock | outcomes.GivenFenced
)


CompleteOutcome: TypeAlias = (
    TaskCompleted
    | EvidenceMissing
    | EvidenceFailed
    | TaskFenced
    | TaskNotOwner
    | outcomes.GivenFenced
)


FailOutcome: TypeAlias = TaskFailed | TaskFenced | TaskNotOwner | outcomes.GivenFenced


ReleaseOutcome: TypeAlias = TaskReleased | TaskFenced | TaskNotOwner | outcomes.GivenFenced


BeatOutcome: TypeAlias = TaskExtended | TaskFenced | TaskNotOwner | outcomes.GivenFenced


ProgressOutcome: TypeAlias = ProgressNoted | TaskFenced | TaskNotOwner | outcomes.GivenFenced


CancelOutcome: TypeAlias = TaskCancelled | Unchanged | outcomes.GivenFenced


RetryOutcome: TypeAlias = Retried | Unchanged | outcomes.GivenFenced


NoteOutcome: TypeAlias = TaskNoted | Unchanged | outcomes.GivenFenced


EditOutcome: TypeAlias = TaskEdited | Unchanged | outcomes.GivenFenced


DropOutcome: TypeAlias = TasksDropped | Unchanged | outcomes.GivenFenced


RequeueOutcome: TypeAlias = TaskRequeued | TaskFenced | Unchanged
