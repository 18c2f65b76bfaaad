"""Tasks: published once, worked on by one agent at a time, done once.

    publish ─┬─> blocked
             │      │ all needs complete
             └─> pending ──claim──> running ──complete──> complete
                  ^   │               │
                  │   └─deadline──┐   ├─release, or fail and rest──> pending
                  │               v   ├─cancel, fail for good──────> failed
                  └────retry──── dead <─fail, lose the worker: once too often

``TRANSITIONS`` is the table of these; nothing changes a state but ``transition``.

A task is four items: its data, its status, its owner and a result.  The data are written once, at
publishing, and may be large, and so may the result, which says what came of an attempt; a claim
touches only the two small ones between them.  The owner is there exactly while the task runs.  Its
revision is the token of the claim; whoever completes, fails or releases carries that token, and
the same commit checks it.  So a worker that was given up can finish nothing: neither its own
task, which somebody else may do by now, nor anybody else's.

A claim lives as a grant of a lock does: by its session, or by a ttl of its own.  It never ends by
itself; whoever meets a claim whose liveness is gone puts the task back in the queue with one
commit, which counts the attempt.  A task that failed too often is a dead letter, until somebody
sends it back.

Indexes say where to look and are never the truth:
    ready   A task that is pending and may begin has a place here, put by the commit that made it
            so.  The place may be left standing by a claim that did not know where it is (a claim by
            name across a network, which reads nothing before it commits); whoever meets a place
            whose task has an owner takes it away.
    due     A task that is pending and must rest (after a failed attempt) or must not begin yet.
            A rest is measured by the engine's clock, as a liveness key, so that no jump of a wall
            clock makes it longer; a moment that somebody named is a moment of the wall clock.
            So is the time until a deadline (``flow.is_over``): one client whose clock is wrong
            must not end the tasks of others.
    claims  Every running task, under the session that works on it.
    hangs   A blocked task hangs on one unmet need at a time, with a check of that need's status.
            The first task that hangs there marks the need as awaited.  When an awaited need is
            completed, the same commit moves on what hangs there, as far as it has room, and leaves
            a mark (``todo``) for the rest.
    ended   What failed or died.

Only what exists can be needed, and what is complete stays so.  So a circle of needs can come only
from tasks that are published together, and is refused there (``plan.py``).  What has been over
for long is forgotten; a need that is gone was complete (``retention_rules.py``).

What a person is shown of tasks; how it is found is in ``seen.py``.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from interlock.core import keys, outcomes
from interlock.core.decision import Refusal, Success
from interlock.core.outcomes import Listing

State: TypeAlias = Literal["blocked", "pending", "running", "complete", "failed", "dead"]
STATES: tuple[State, ...] = ("blocked", "pending", "running", "complete", "failed", "dead")

TRANSITIONS: dict[str, tuple[tuple[State, ...], tuple[State, ...]]] = {
    "unblock": (("blocked",), ("blocked", "pending")),
    "ready": (("pending",), ("pending",)),
    "claim": (("pending",), ("running",)),
    "release": (("running",), ("pending",)),
    "complete": (("running",), ("complete",)),
    "fail": (("running",), ("pending", "failed", "dead")),
    "reclaim": (("running",), ("pending", "dead")),
    "expire": (("pending",), ("dead",)),
    "cancel": (("blocked", "pending", "running"), ("failed",)),
    "retry": (("failed", "dead"), ("blocked", "pending")),
}
"""From where each act leads to where."""

PRIORITY = 5
PRIORITIES = (keys.LEAST_PRIORITY, keys.GREATEST_PRIORITY)
RETRIES = 3
BACKOFF = 1.0
BACKOFF_MOST = 300.0
JITTER = 0.25
"""A rest is longer than it should be by up to so much of it, so that not all come back at once."""
DATA_LIMIT = 1024 * 1024
REASON_LIMIT = 16 * 1024
NEEDS_LIMIT = 10_000
MOST_RETRIES = 1000
LISTED = 100
REQUIRES_LIMIT = 32
LABELS_LIMIT = 32
BATCH = "+"
"""What the id of a batch begins with, on which the tasks of an import hang (``plan_rules.py``).
That is no legal name, so nobody can mean one."""


class Spec(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a task is, as it was published.  ``at`` is when, and what makes it older than others.

    ``trace`` is the one that it was published under; without one it is the id of the task.
    ``measured`` says that a liveness key was put for its deadline; an older version puts none.
    """

    at: float
    by: str = ""
    data: Raw = Raw(b"null")
    priority: int = PRIORITY
    requires: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    not_before: float | None = None
    deadline: float | None = None
    retries: int = RETRIES
    backoff: float = BACKOFF
    backoff_most: float = BACKOFF_MOST
    trace: str = ""
    measured: bool = False

    @property
    def requirement_set(self) -> str:
        """Its requirements, as a part of a key."""
        return keys.requirements(self.requires)

    def ready_key(self, task: str) -> str:
        """Where it stands while it is ready."""
        return keys.ready(self.requirement_set, self.priority, self.at, task)


class TaskStatus(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How a task stands.

    ``attempts`` are those that failed.  ``on`` is the need that it hangs on, the one at ``place``
    among its needs.  ``due`` is its place among those that must not begin yet.  ``deadline`` is
    here as well, so that nobody takes a task with one for a plain one (FRESH), and is gone when a
    task comes back that had missed it; ``trace`` is here for the same reason.  ``by`` and
    ``token`` say who ended it, with which claim, in which ``session``, and ``reason`` why.
    """

    state: State
    attempts: int = 0
    since: float = 0.0
    awaited: bool = False
    on: str = ""
    place: int = 0
    due: str = ""
    deadline: float | None = None
    by: str = ""
    token: int = 0
    session: str = ""
    reason: str = ""
    trace: str = ""


FRESH = TaskStatus(state="pending")
"""A task that nobody tried yet: what a claim by name takes for granted until it learns more."""


class TaskClaim(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Who works on a task, since when, and what keeps the claim alive.

    ``blind`` says that its place among those that are ready may still stand.
    """

    id: str
    agent: str
    session: str
    live: tuple[str, ...]
    since: float
    ttl: float | None = None
    attempt: int = 1
    caller: str = ""
    blind: bool = False


class ReadyEntry(Struct, frozen=True, omit_defaults=True, gc=False):
    """What stands beside a task that is ready: when it is too late to begin.

    ``since`` is when it became ready, if that was not when it was published; ``trace`` is that of
    the task, so that a claim can guess its status.
    """

    deadline: float | None = None
    since: float = 0.0
    trace: str = ""


class DueEntry(Struct, frozen=True, omit_defaults=True, gc=False):
    """What a task waits for that must not begin yet: the end of a rest, else its moment."""

    rest: str = ""


class EndedEntry(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What stands beside a task that failed."""

    state: State
    since: float


class TaskResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of an attempt: a value, or an error."""

    by: str
    at: float
    token: int
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class Published(Success, frozen=True, kw_only=True, tag="published"):
    """The task is there for everybody.

    ``ended`` are needs that failed or are dead: it cannot begin before they are sent back.
    """

    task: str
    state: State = "pending"
    ended: tuple[str, ...] = ()


class TaskExists(outcomes.Exists, Refusal, frozen=True, kw_only=True, tag="exists"):
    """There is a task of this id already, and it stays as it is."""

    task: str
    state: State


class Claimed(outcomes.Acquired, frozen=True, kw_only=True, tag="claimed"):
    """The task is yours; ``data`` is what was published with it.

    Whether you can do all that it ``requires`` was asked only by ``next``.
    """

    task: str
    token: int | None = None
    holder: str = ""
    expires_in: float | None = None
    data: Any = None
    attempt: int = 1
    priority: int = PRIORITY
    grant: str = ""
    requires: tuple[str, ...] = ()


class Taken(outcomes.Busy, frozen=True, kw_only=True, tag="taken"):
    """Somebody else works on it."""

    task: str
    holder: str
    since: float = 0.0
    expires_in: float | None = None


class Blocked(Refusal, frozen=True, kw_only=True, tag="blocked"):
    """It cannot begin yet: a need is not complete (``on``), or it has to wait (``retry_in``)."""

    task: str
    reason: str
    on: str = ""
    retry_in: float | None = None


class TaskDeadlock(outcomes.Deadlock, frozen=True, kw_only=True, tag="deadlock"):
    """Waiting would never end: these wait for each other, in a circle, beginning with you."""

    task: str
    cycle: tuple[str, ...]


class NoTask(outcomes.Nothing, frozen=True, kw_only=True, tag="nothing"):
    """There is nothing to claim: no task that you can do, or the one you named is over."""

    reason: str
    task: str = ""
    state: State | Literal["unknown", ""] = ""


class TaskExtended(outcomes.Extended, frozen=True, kw_only=True, tag="extended"):
    """The claim lives on."""

    task: str
    holder: str
    token: int | None = None
    expires_in: float | None = None
    grant: str = ""


class Completed(Success, frozen=True, kw_only=True, tag="completed"):
    """The task is done; ``already`` if this very claim had completed it before.

    ``unblocked`` is how many others may begin now because of that.
    """

    task: str
    already: bool = False
    unblocked: int = 0


class Failed(Success, frozen=True, kw_only=True, tag="failed"):
    """The attempt failed: the task is tried again (pending), failed for good, or dead."""

    task: str
    state: State
    attempts: int
    retry_in: float | None = None
    already: bool = False


class TaskReleased(outcomes.Released, frozen=True, kw_only=True, tag="released"):
    """The task is back in the queue; no attempt was counted."""

    task: str


class TaskFenced(outcomes.Fenced, frozen=True, kw_only=True, tag="fenced"):
    """Your claim is over: the task went on without you; if an operator ended it, ``by`` name."""

    task: str
    state: State
    holder: str = ""
    token: int | None = None
    by: str = ""
    reason: str = ""


class TaskRequeued(Success, frozen=True, kw_only=True, tag="requeued"):
    """The claim of ``holder`` is over, its token is fenced, and the task waits for a worker."""

    task: str
    holder: str
    token: int | None
    reason: str


class TaskNotOwner(outcomes.NotOwner, frozen=True, kw_only=True, tag="not_owner"):
    """You do not work on this task, and never did."""

    task: str
    state: State | Literal["unknown"]
    holder: str = ""


class TaskCancelled(outcomes.Cancelled, frozen=True, kw_only=True, tag="cancelled"):
    """The task will not be done, unless somebody sends it back."""

    task: str
    already: bool = False


class Retried(Success, frozen=True, kw_only=True, tag="retried"):
    """The task is back, with all its attempts."""

    task: str
    state: State


class Unchanged(Refusal, frozen=True, kw_only=True, tag="unchanged"):
    """Nothing was done, since the task is not in a state for that."""

    task: str
    state: State | Literal["unknown"]
    reason: str


PublishOutcome: TypeAlias = Published | TaskExists | outcomes.GivenFenced
ClaimOutcome: TypeAlias = Claimed | Taken | Blocked | NoTask | TaskDeadlock | outcomes.GivenFenced
CompleteOutcome: TypeAlias = Completed | TaskFenced | TaskNotOwner | outcomes.GivenFenced
FailOutcome: TypeAlias = Failed | TaskFenced | TaskNotOwner | outcomes.GivenFenced
ReleaseOutcome: TypeAlias = TaskReleased | TaskFenced | TaskNotOwner | outcomes.GivenFenced
BeatOutcome: TypeAlias = TaskExtended | TaskFenced | TaskNotOwner | outcomes.GivenFenced
CancelOutcome: TypeAlias = TaskCancelled | Unchanged | outcomes.GivenFenced
RetryOutcome: TypeAlias = Retried | Unchanged | outcomes.GivenFenced
RequeueOutcome: TypeAlias = TaskRequeued | TaskFenced | Unchanged


EventName: TypeAlias = Literal[
    "published", "ready", "claimed", "released", "completed", "failed", "dead", "reclaimed",
    "cancelled", "retried", "forgotten", "fenced", "not_owner", "requeued",
]  # fmt: skip
EVENT_NAMES: tuple[EventName, ...] = get_args(EventName)
"""What can happen to a task, as events name it."""


class TaskEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened to a task; what it is stands beside what there may be to do."""

    event: EventName | Literal["missed"]
    task: str = ""
    agent: str = ""
    at: float = 0.0
    revision: int = 0
    priority: int | None = None
    requires: tuple[str, ...] = ()
    data: Any = None


class ClaimRequest(Struct, frozen=True, kw_only=True, gc=False):
    """Who wants to work on a task, and on what terms; ``claim`` becomes the id of the claim.

    ``listed`` is where its wait for the task is listed, which ends with the claim.
    """

    task: str
    claim: str
    agent: str
    session: str
    ttl: float | None = None
    session_ttl: float = 0.0
    caller: str = ""
    listed: tuple[str, ...] = ()


class Claimant(Struct, frozen=True, kw_only=True, gc=False):
    """Who speaks about a claim: its id, its token under the owner's name, or its session."""

    task: str
    agent: str
    session: str
    token: int | None = None
    claim: str = ""

    def speaks_for(self, claim: TaskClaim, token: int) -> bool:
        """Whether this is the claim that is meant."""
        if self.claim:
            return claim.id == self.claim
        if self.token is None:
            return claim.session == self.session
        return (token, claim.agent) == (self.token, self.agent)

    def ended(self, status: TaskStatus) -> bool:
        """Whether the task was ended with the claim that is meant."""
        if self.token is None:
            return bool(status.token) and self.session == status.session
        return bool(status.token) and (self.token, self.agent) == (status.token, status.by)


def transition(status: TaskStatus, act: str, state: State, **changes: Any) -> TaskStatus:  # noqa: ANN401
    """The status after an act; what belongs to the state before is gone, unless it is named."""
    sources, targets = TRANSITIONS[act]
    if status.state not in sources or state not in targets:
        raise AssertionError(f"{act} does not lead from {status.state} to {state}")
    return TaskStatus(
        state=state,
        attempts=changes.pop("attempts", status.attempts),
        awaited=changes.pop("awaited", status.awaited),
        deadline=changes.pop("deadline", status.deadline),
        trace=status.trace,
        **changes,
    )


def mark_awaited(status: TaskStatus) -> TaskStatus:
    """The same, marked so that completing it moves on what hangs there."""
    return status if status.awaited else replace(status, awaited=True)


def backoff_delay(spec: Spec, attempts: int, chance: float) -> float:
    """How long a task rests after so many failed attempts; ``chance`` is from 0 to 1."""
    doubled = spec.backoff * float(2 ** min(attempts - 1, 32))
    return min(doubled * (1 + JITTER * chance), spec.backoff_most)


MOST = 10_000
"""So many tasks at once."""


class ListedTask(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task as a person sees it among others.

    While it runs: its ``holder`` with its ``token``, ``stale`` if that one is lost.  While it is
    blocked: the need that it is blocked ``on``.  While it has to wait: how long (``retry_in``).
    ``since`` is when it came into its state, ``by`` who ended it.
    """

    task: str
    state: State
    priority: int
    attempts: int
    retries: int
    requires: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    holder: str = ""
    token: int | None = None
    since: float | None = None
    expires_in: float | None = None
    stale: bool = False
    session: str = ""
    on: str = ""
    retry_in: float | None = None
    reason: str = ""
    by: str = ""
    published_at: float | None = None
    published_by: str = ""
    not_before: float | None = None
    deadline: float | None = None


class TaskView(ListedTask, frozen=True, kw_only=True, omit_defaults=True):
    """One task with its data, and what came of it: ``result``, or the ``error`` if it failed."""

    data: Any = None
    result: Any = None
    error: Any = None


class TaskList(Listing[ListedTask], frozen=True, kw_only=True):
    """Tasks by id; ``more`` is the last one if there are others after it."""

    listed = "tasks"

    tasks: tuple[ListedTask, ...]
    more: str = ""
