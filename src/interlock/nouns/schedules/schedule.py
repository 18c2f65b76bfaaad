"""Schedules: each publishes a task again and again, each run once.

    add ──> active ──publish──> active ──> ...        a commit a run
              │  ^
       pause  v  │ resume
             paused                                   drop deletes it in any state

A schedule is two items: when it is due and what became of its last run, which is small and written
with each run, and the task that it publishes, which may be large and is written once.  Its entry in
the ``due`` index stands among those of tasks, under the time of its next run.  So nothing runs for
schedules alone: a worker that looks for work reads that index anyway, a waiting worker sleeps until
its first entry, and between two due times ten thousand schedules cost what one does.

A run is published by one commit: it checks the item of the schedule, publishes the task, and moves
the entry to the next time.  Of many processes that find it due, one succeeds.  The id of the task
is made of the name and the planned time (``nightly@2026-11-17T02:00:00Z``), so even a schedule that
was deleted and added again, or whose clock was set back, publishes no run twice.

The time is that of the client, or that of the engine if it is earlier: a client whose clock is
ahead publishes nothing early.  If no process looked for a while, ``missed`` says what happens to
the runs of that time:
    once    the last one is published, for all of them
    all     each is published, the last hundred at most
    none    none is, unless the last one is found within a minute

While the last task is open (blocked, pending or running), ``overlap`` says what a run does that is
due: it is published all the same (``allow``), or given up (``skip``).

A run that cannot be published (its id is taken, a task that it needs does not exist) is given up,
so that it stops neither the other schedules nor its own next run; the schedule keeps the reason,
which ``why``, ``health`` and ``schedule list`` show until a run succeeds.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from msgspec import Struct

from interlock.core import item_outcomes, outcomes
from interlock.core.decision import Refusal, Success
from interlock.core.outcomes import Listing, always

MissedRuns: TypeAlias = Literal["once", "all", "none"]
MISSED: tuple[MissedRuns, ...] = get_args(MissedRuns)
Overlap: TypeAlias = Literal["allow", "skip"]
OVERLAPS: tuple[Overlap, ...] = get_args(Overlap)
ScheduleState: TypeAlias = Literal["active", "paused", "ended"]
NAME_LIMIT = 170
"""Bytes of a name: the id of a task is the name and the time."""
LISTED = 100
MOST = 10_000
AHEAD = 60.0
"""A schedule that was moved this many seconds after now was moved by a wrong clock."""


class Schedule(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """When a schedule is due, and what became of its last run.

    It comes ``every`` so many seconds from ``start`` on, or by a ``cron`` line in a ``zone``.
    ``run`` is the planned time of the next run, and ``due`` the key of its entry in the ``due``
    index.  ``moved`` is when that was last written.  ``deadline`` is how long after its publishing
    a task may begin.  ``lost`` counts runs that were not published since none looked in time, and
    ``skipped`` those that were not since the last task was open.
    ``failure`` says why the run of ``failed_run`` could not be published; a success clears it.
    """

    at: float
    by: str = ""
    every: float = 0.0
    start: float = 0.0
    cron: str = ""
    zone: str = "UTC"
    missed: MissedRuns = "once"
    overlap: Overlap = "allow"
    deadline: float | None = None
    state: ScheduleState = "active"
    run: float | None = None
    due: str = ""
    moved: float = 0.0
    published: int = 0
    lost: int = 0
    skipped: int = 0
    last_task: str = ""
    last_run: float = 0.0
    last_at: float = 0.0
    failure: str = ""
    failed_run: float = 0.0
    changed_by: str = ""
    reason: str = ""


class DueRuns(Struct, frozen=True, kw_only=True):
    """What is due of a schedule: the run to publish, if any, and the time of the next one.

    ``lost`` counts the runs that are left out.
    """

    run: float | None
    following: float | None
    lost: int = 0


def run_id(name: str, run: float) -> str:
    """The id of the task of a run."""
    return f"{name}@{datetime.fromtimestamp(run, UTC):%Y-%m-%dT%H:%M:%SZ}"


class ScheduleAdded(Success, frozen=True, kw_only=True, tag="added"):
    """The schedule publishes its first task at ``next_run``, with the id ``task``.

    ``replaced`` if there was one of this name before.
    """

    schedule: str
    next_run: float
    task: str
    replaced: bool = False


class ScheduleExists(item_outcomes.Exists, Refusal, frozen=True, kw_only=True, tag="exists"):
    """A schedule of this name exists already, and stays as it is."""

    schedule: str
    state: ScheduleState


class ScheduleDropped(item_outcomes.Dropped, frozen=True, kw_only=True, tag="dropped"):
    """The schedule is deleted; the tasks that it published stay."""

    schedule: str


class SchedulePaused(item_outcomes.Paused, Success, frozen=True, kw_only=True, tag="paused"):
    """The schedule publishes nothing until it is resumed."""

    schedule: str
    already: bool = False


class ScheduleResumed(item_outcomes.Resumed, frozen=True, kw_only=True, tag="resumed"):
    """The schedule goes on; runs of the time in between are not published."""

    schedule: str
    next_run: float | None = None
    already: bool = False


class UnknownSchedule(outcomes.Unknown, frozen=True, kw_only=True, tag="unknown"):
    """There is no schedule of this name."""

    what: Literal["schedule"] = always("schedule")


AddOutcome: TypeAlias = ScheduleAdded | ScheduleExists | outcomes.GivenFenced
DropOutcome: TypeAlias = ScheduleDropped | UnknownSchedule | outcomes.GivenFenced
PauseOutcome: TypeAlias = SchedulePaused | UnknownSchedule | outcomes.GivenFenced
ResumeOutcome: TypeAlias = ScheduleResumed | UnknownSchedule | outcomes.GivenFenced


class ListedSchedule(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schedule, for display; ``when`` says in words when it is due.

    ``next_run`` is the planned time of its next run, ``last_task`` the task that it published last,
    for the planned time ``last_run``.  ``failure`` says why its last run could not be published.
    ``lost`` counts runs that were missed, and ``skipped`` those whose predecessor was open.
    """

    own_words = ("when", "failure")

    schedule: str
    state: ScheduleState
    when: str
    missed: MissedRuns
    overlap: Overlap = "allow"
    every: float | None = None
    cron: str = ""
    zone: str = ""
    next_run: float | None = None
    published: int = 0
    lost: int = 0
    skipped: int = 0
    last_task: str = ""
    last_run: float | None = None
    last_at: float | None = None
    failure: str = ""
    failed_run: float | None = None
    added_at: float | None = None
    added_by: str = ""
    reason: str = ""
    changed_by: str = ""


class ScheduleView(ListedSchedule, frozen=True, kw_only=True, omit_defaults=True):
    """One schedule, with the fields of the task that it publishes and its next times.

    A task is a dead letter if no worker began it ``deadline_in`` seconds after its publishing.
    """

    task: dict[str, Any]
    next_runs: tuple[float, ...] = ()
    deadline_in: float | None = None


class ScheduleList(Listing[ListedSchedule], frozen=True, kw_only=True):
    """Schedules by name; ``more`` is the last name if there are more after it."""

    listed: ClassVar[str] = "schedules"

    schedules: tuple[ListedSchedule, ...]
    more: str = ""
