"""Tasks: published once, worked on by one agent at a time, completed once.

    publish ─┬─> blocked
             │    v   ^  all needs are complete and all guards pass; a guard does not pass any more
             └─> pending ──claim──> running ──complete──> complete
                  ^   │               │
                  │   └─deadline──┐   ├─release, or fail and rest──> pending
                  │               v   ├─cancel, fail for good──────> failed
                  └────retry──── dead <─fail, lose the worker: once too often

``TRANSITIONS`` is the table of these; only ``transition`` changes a state.  A blocked or pending
task may also be edited, or dropped if it never began; an ended one that was not completed may be
published again (``edit_rules.py``).

A task is four items: data, status, owner and result.  The data are written at publishing, and by an
edit, which writes the status, too: so a commit that relies on the status need not check the data.
They may be large, and so may the result of an attempt.  A claim touches only the two small items,
status and owner.  The owner exists exactly while the task runs.  Its revision is the token of the
claim.  To complete, fail or release, the worker carries that token, and the same commit checks it.
So a worker whose claim was ended cannot finish any task: neither its former one, on which another
worker may work by now, nor another.  Notes about a task are further items (``notes.py``).

A claim lives as a grant of a lock does: by its session, or by a ttl of its own.  It never ends by
itself; a client that finds a claim whose liveness is gone puts the task back in the queue with one
commit, which counts the attempt.  A task that failed too often is a dead letter until an operator
sends it back.

Indexes say where to look and are never the truth:
    ready   Each pending task that may begin has an entry, put by the commit that made it so.  A
            claim that does not know the entry leaves it there (a claim by name across a network,
            which reads nothing before it commits); a client that finds an entry whose task has an
            owner deletes the entry.
    due     A pending task that must rest (after a failed attempt) or must not begin yet; also
            schedules (``nouns/schedules``), each under the time of its next run.
            The engine's clock measures a rest, by a liveness key, so that no jump of a wall clock
            makes it longer; a moment that the publisher named is a moment of the wall clock.
            The engine's clock also measures the time until a deadline
            (``TaskChanges.is_deadline_over``): a client whose clock is wrong must not end the
            tasks of others.
    claims  Each running task, under the session that works on it.
    hangs   A blocked task hangs on one unmet need at a time, with a check of that need's status,
            or on the guard that keeps it (``gate_rules.py``).
            The first task that hangs there marks the need as awaited.  The commit that completes
            an awaited need also unblocks its dependents, as far as they fit, and leaves a mark
            (``todo``) for the rest.
    ended   Tasks that failed, died or were dropped.
    labels  Each task that has labels, under each of them, until it is dropped or deleted.

A task can only need tasks that exist, and a complete task stays complete.  So a cycle of needs can
come only from tasks that are published together, and is refused there (``plan.py``), or from an
edit, which looks for one.  Ended tasks are deleted in time; a need that does not exist any more was
complete (``retention_rules.py``).
"""

# Annotations are no strings here: to read those of stored items would take a command 3 ms.
from collections.abc import Collection
from typing import Any, Literal, TypeAlias, get_args

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.validate import ALL_ABILITIES

State: TypeAlias = Literal["blocked", "pending", "running", "complete", "failed", "dead", "dropped"]
STATES: tuple[State, ...] = get_args(State)
UNSUCCESSFUL: tuple[State, ...] = ("failed", "dead", "dropped")
"""The states of a task that ended without being complete."""

TRANSITIONS: dict[str, tuple[tuple[State, ...], tuple[State, ...]]] = {
    "unblock": (("blocked",), ("blocked", "pending")),
    "ready": (("pending",), ("pending",)),
    "gate": (("blocked", "pending"), ("blocked", "failed")),
    "claim": (("pending",), ("running",)),
    "release": (("running",), ("pending",)),
    "complete": (("running",), ("complete",)),
    "fail": (("running",), ("pending", "failed", "dead")),
    "reclaim": (("running",), ("pending", "dead")),
    "expire": (("blocked", "pending"), ("dead",)),
    "cancel": (("blocked", "pending", "running"), ("failed",)),
    "retry": (("failed", "dead"), ("blocked", "pending")),
    "edit": (("blocked", "pending"), ("blocked", "pending")),
    "drop": (("blocked", "pending"), ("dropped",)),
}
"""Each act: the states that it may start from, and the states that it may lead to."""

PRIORITY = 5
PRIORITIES = (keys.LEAST_PRIORITY, keys.GREATEST_PRIORITY)
RETRIES = 3
BACKOFF = 1.0
BACKOFF_MOST = 300.0
JITTER = 0.25
"""A rest is longer by up to this part of it, at random, so that not all tasks return at once."""
DATA_LIMIT = 1024 * 1024
ELSEWHERE = "put it into a file, and pass on a reference: fleet.tasks.file(path), --file"
"""What to do with larger data."""
REASON_LIMIT = 16 * 1024
NEEDS_LIMIT = 10_000
MOST_RETRIES = 1000
LISTED = 100
CLAIMED_AT_ONCE = 64
"""The most tasks that one commit claims, or completes together."""
SMALL_RESULT = 16 * 1024
"""Bytes of the largest result that is written together with others."""
REQUIRES_LIMIT = 32
LABELS_LIMIT = 32
GUARDS_LIMIT = 16
DROPPED_AT_ONCE = 100
"""The most tasks that one commit drops, if a caller names them."""
BATCH = "+"
"""The first character of the id of a batch, on which the tasks of an import hang
(``plan_rules.py``).  No legal name begins with it."""
SCHEDULE = "-"
"""The first character of what stands for a schedule in the ``due`` index; of no legal name."""
ONLY = "-"
"""The first character of an ability that says that a worker takes no tasks but those that require
it, or another such one.  No legal name begins with it."""
HIDDEN_REASON = "it belongs to an import that has not ended; if that was interrupted, repeat it"


class Spec(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A task as it was published; the time ``at`` orders tasks of one priority.

    ``trace`` is the trace of its publisher; without one it is the id of the task.  It can be
    claimed while all its ``guards`` pass, and completed while all guards of its ``evidence`` pass.
    ``measured`` says that a liveness key exists for its deadline; an older version puts none.
    ``plan`` is the name of the import that published it, if that has one.
    ``schedule`` is the schedule that published it.
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
    guards: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    title: str = ""
    text: str = ""
    plan: str = ""
    schedule: str = ""

    @property
    def requirement_set(self) -> str:
        """Its requirements, as a segment of a key."""
        return keys.requirements(self.requires)

    def ready_key(self, task: str) -> str:
        """The key of its entry in the ``ready`` index."""
        return keys.ready(keys.requirements(self.requires), self.priority, self.at, task)


class TaskStatus(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The state of a task, with the fields that belong to that state.

    ``attempts`` counts failed attempts.  ``gated`` says that gates wait for another state of it.
    ``on`` is the need that the task hangs on, at index ``place`` of its needs; ``guard`` is the
    guard that keeps it instead.  ``due`` is the key of its entry in the ``due`` index.
    ``deadline``, ``trace``, ``guards`` and ``evidence`` repeat the data, so that a claim by name
    cannot mistake the task for a plain one (FRESH); a retry after a missed deadline clears that.
    ``failures`` counts how often a guard of its evidence failed that is checked a limited number of
    times.  ``progress``, from 0 to 1, and ``doing`` are what the worker of a running task reported
    last.  ``by``, ``token`` and ``session`` say which claim ended the task, and ``reason`` why.
    ``edits`` counts the edits of its data, so that a claim which relied on the status conflicts.
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
    gated: bool = False
    guards: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    guard: str = ""
    failures: int = 0
    progress: float | None = None
    doing: str = ""
    edits: int = 0


FRESH = TaskStatus(state="pending")
"""The status of a task without an attempt: the first guess of a claim by name."""


class TaskOwner(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The owner of a running task: which agent, since when, and which keys keep the claim alive.

    ``blind`` says that its entry in the ``ready`` index may still exist.
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
    """The value of an entry in the ``ready`` index: when it is too late to begin.

    ``since`` is when the task became ready, if that was after it was published; ``trace`` is that
    of the task, so that a claim can guess its status.  A claim of a task that is ``guarded`` checks
    guards, or its completion does, so nothing is guessed.
    """

    deadline: float | None = None
    since: float = 0.0
    trace: str = ""
    guarded: bool = False


class DueEntry(Struct, frozen=True, omit_defaults=True, gc=False):
    """The value of an entry in the ``due`` index: the liveness key of a rest, or nothing."""

    rest: str = ""


class EndedEntry(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The value of an entry in the ``ended`` index."""

    state: State
    since: float


class TaskResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of an attempt: a value, or an error."""

    by: str
    at: float
    token: int
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


EventName: TypeAlias = Literal[
    "published", "ready", "claimed", "released", "completed", "failed", "dead", "reclaimed",
    "cancelled", "retried", "forgotten", "fenced", "not_owner", "requeued", "blocked", "warned",
    "noted", "progress", "edited", "dropped",
]  # fmt: skip
EVENT_NAMES: tuple[EventName, ...] = get_args(EventName)
"""The events of tasks."""


class TaskEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change of a task; of a task that is published or ready also its title and its data.

    A report of its worker has how far the work is (``progress``), and what is being done.
    """

    event: EventName | Literal["missed"]
    task: str = ""
    agent: str = ""
    at: float = 0.0
    revision: int = 0
    priority: int | None = None
    requires: tuple[str, ...] = ()
    title: str = ""
    data: Any = None
    progress: float | None = None
    doing: str = ""


class ClaimRequest(Struct, frozen=True, kw_only=True, gc=False):
    """A request to claim a task; ``claim`` becomes the id of the claim.

    ``listed`` are the keys under which the wait for the task is listed; the claim deletes them.
    """

    task: str
    claim: str
    agent: str
    session: str
    ttl: float | None = None
    session_ttl: float = 0.0
    caller: str = ""
    listed: tuple[str, ...] = ()


class LookFirst(Struct, frozen=True):
    """A completion needs facts from outside for these guards: look, then decide again."""

    guards: tuple[Any, ...]


class Claimant(Struct, frozen=True, kw_only=True, gc=False):
    """The agent that acts on a claim, which it names by id, by token, or by its session alone."""

    task: str
    agent: str
    session: str
    token: int | None = None
    claim: str = ""

    def speaks_for(self, claim: TaskOwner, token: int) -> bool:
        """Whether this is the claim that the claimant names."""
        if self.claim:
            return claim.id == self.claim
        if self.token is None:
            return claim.session == self.session
        return (token, claim.agent) == (self.token, self.agent)

    def ended(self, status: TaskStatus) -> bool:
        """Whether the claim that the claimant names ended the task."""
        if self.token is None:
            return bool(status.token) and self.session == status.session
        return bool(status.token) and (self.token, self.agent) == (status.token, status.by)


class TaskEnd(Struct, frozen=True, kw_only=True, gc=False):
    """The completion of a task, which may go along with others."""

    claimant: Claimant
    result: Raw | None = None

    @property
    def small(self) -> bool:
        """Whether its result is small enough to go along with others."""
        return self.result is None or len(bytes(self.result)) <= SMALL_RESULT


def can_do(able: Collection[str], requires: Collection[str]) -> bool:
    """Whether a worker with these abilities takes a task that requires this."""
    if ALL_ABILITIES not in able and not set(requires).issubset(able):
        return False
    only = [each.removeprefix(ONLY) for each in able if each.startswith(ONLY)]
    return not only or not set(requires).isdisjoint(only)


def transition(status: TaskStatus, act: str, state: State, **changes: Any) -> TaskStatus:  # noqa: ANN401
    """The status after an act; fields of the state before are cleared, unless given."""
    sources, targets = TRANSITIONS[act]
    if status.state not in sources or state not in targets:
        raise AssertionError(f"{act} does not lead from {status.state} to {state}")
    kept: dict[str, Any] = {
        "attempts": status.attempts,
        "awaited": status.awaited,
        "deadline": status.deadline,
        "gated": status.gated,
        "edits": status.edits,
    }
    return TaskStatus(
        state=state,
        trace=status.trace,
        guards=status.guards,
        evidence=status.evidence,
        **kept | changes,
    )


def mark_awaited(status: TaskStatus) -> TaskStatus:
    """The status with the mark that makes its completion unblock the dependents."""
    return status if status.awaited else replace(status, awaited=True)


def backoff_delay(spec: Spec, attempts: int, chance: float) -> float:
    """Seconds that a task rests after its last failed attempt; ``chance`` is from 0 to 1."""
    doubled = spec.backoff * float(2 ** min(attempts - 1, 32))
    return min(doubled * (1 + JITTER * chance), spec.backoff_most)
