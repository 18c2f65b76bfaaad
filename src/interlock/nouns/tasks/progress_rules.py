"""How tasks make progress: into the queue, from need to need, after a rest, past a deadline.

No process owns this work.  It is a part of other decisions about tasks, or a housekeeping step of
any client (``housekeeping.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Missing, Success
from interlock.nouns.tasks import task
from interlock.nouns.tasks.task import DueEntry, Spec, TaskStatus
from interlock.nouns.tasks.task_change import TaskChanges

DEPENDENT_SIZE = 6
"""The most operations that unblocking one task takes."""
DUE_SIZE = 8
"""The most operations that waking one task takes."""
SET_SIZE = 3
"""The most operations that listing a set of requirements takes."""
ENTRY_TEXT = 420
ENTRY_NAMES = 6
"""One task adds this many bytes to an entry of the record, and this many times its id."""
FEW_OPERATIONS = 50
"""With more operations in a commit, new tasks are not named one by one to the gates that wait."""
NEEDS_AT_FIRST, NEEDS_FACTOR = 8, 4
"""How many needs are read first, and the factor for each next read: mostly the next need is not
complete, and where thousands are, few reads should be enough."""
CLOCK_TTL = 10 * 365 * 86400.0
"""The ttl of the key that shows a break of the engine's clock."""


class Moved(Success, frozen=True, kw_only=True, tag="moved"):
    """This many tasks made progress."""

    tasks: int = 0


class Expired(Moved, frozen=True, kw_only=True, tag="expired"):
    """This many tasks became dead letters, since no worker began them in time."""


def create(
    changes: TaskChanges, id_: str, spec: Spec, need: str = "", *, queued: bool = True
) -> TaskStatus:
    """Write a new task: ready, blocked, or not due yet.

    A given ``need`` comes before its own: a batch, which hides the task until it is complete.
    A task without needs, guards and a moment need not be ``queued``, if the same commit claims it.
    """
    if spec.deadline is not None:
        measure(changes, id_, spec.deadline)
        spec = replace(spec, measured=True)
    changes.put(keys.data(id_), spec)
    if spec.labels:
        changes.list_labels(id_, spec.labels)
    if not need:
        _announce(changes, id_, spec)
    changes.rely(keys.status(id_))
    if not queued:
        return changes.make_fresh(id_, spec)
    at = -1 if need else first_unmet_need(changes, id_, spec.needs, 0)
    if at is None:
        return changes.make_pending(id_, spec)
    on = need or spec.needs[at]
    status = TaskStatus(
        state="blocked",
        since=changes.now,
        on=on,
        place=at,
        deadline=spec.deadline,
        trace=spec.trace,
        guards=spec.guards,
        evidence=spec.evidence,
    )
    changes.set_status(id_, status)
    changes.block_on(id_, on)
    return status


def _announce(changes: TaskChanges, id_: str, spec: Spec) -> None:
    """Report a task that was published, also to the gates that wait for new tasks."""
    if changes.facts.has(keys.NEW_TASKS):
        changes.put(keys.NEW_TASKS, {})  # a gate that is about to wait for it must read again
        changes.awaits(f"tasks/{id_}" if changes.size < FEW_OPERATIONS else "tasks/")
    else:
        changes.rely(keys.NEW_TASKS)
    changes.task_event("published", spec.by, id_)


def first_unmet_need(
    changes: TaskChanges, id_: str, needs: Sequence[str], first: int
) -> int | None:
    """The index of the first need that is not complete, from ``first`` on; None if there is none.

    A need that does not exist was complete (``retention_rules.py``).
    """
    width = NEEDS_AT_FIRST
    while first < len(needs):
        some = needs[first : first + width]
        changes.facts.need_statuses(some)
        for number, need in enumerate(some, first):
            status = changes.status(need)
            if status is not None and status.state != "complete" and is_meant(changes, id_, need):
                return number
        first, width = first + width, width * NEEDS_FACTOR
    return None


def is_meant(changes: TaskChanges, id_: str, need: str) -> bool:
    """Whether a need existed when the data of the task were written, or is written with them.

    A younger one is another task that has the id by now.
    """
    if changes.writes(keys.data(id_)):
        return True
    facts = changes.facts
    own = max(facts.oldest.get(id_, 0), facts.written.get(id_, 0))
    return not own or facts.oldest.get(need, 0) <= own


def read_needs(
    changes: TaskChanges, needs: Sequence[str], besides: Iterable[str] = ()
) -> tuple[str, ...]:
    """Read all of these before a task is published; returns the needs that ended unsuccessfully.

    Retention must notice a new dependent of a failed task, so the mark is read no later than the
    needs.  A need that is open may fail and be suspected before this commit, which then conflicts.
    """
    known = changes.facts.statuses
    if missing := [keys.status(each) for each in (*needs, *besides) if each not in known]:
        raise Missing((keys.NEEDED, keys.SUSPECTED, *missing) if needs else tuple(missing))
    found = [(need, changes.facts.status(need)) for need in needs]
    unmet = [(need, each.state) for need, each in found if each and each.state != "complete"]
    if unmet:
        changes.rely(keys.SUSPECTED)
    ended = tuple([need for need, state in unmet if state in task.UNSUCCESSFUL])
    if ended:
        changes.rely(keys.NEEDED)
        changes.put(keys.NEEDED, {})
    return ended


def record_name(need: str) -> str:
    """The name of a need in the record: of a task, or of the plan of a batch."""
    batch = need.startswith(task.BATCH)
    return f"plan/{need[len(task.BATCH) :]}" if batch else f"task/{need}"


def unblock(changes: TaskChanges, need: str, hangers: Sequence[str]) -> tuple[int, int]:
    """Unblock dependents of a complete need; returns how many became ready, and how many are left.

    Another client may have moved one on to its next need since they were listed.
    """
    begun, some = 0, hangers[: _fitting(hangers, changes.facts.max_entry_bytes)]
    changes.facts.need_all(lambda id_: _next_need(changes, id_), some)
    read_requirement_sets(changes, [spec for id_ in some if (spec := changes.facts.specs.get(id_))])
    for number, id_ in enumerate(some):
        if changes.size + DEPENDENT_SIZE + SET_SIZE > changes.facts.max_operations:
            return begun, len(hangers) - number
        status = changes.status(id_)
        if status is None or status.state != "blocked" or status.on != need:
            continue
        spec, at = changes.facts.spec(id_), _next_need(changes, id_)
        if need.startswith(task.BATCH):
            _announce(changes, id_, spec)
        if at is not None:
            on = spec.needs[at]
            changes.move(id_, "unblock", "blocked", since=status.since, on=on, place=at)
            changes.block_on(id_, on)
            continue
        changes.move(id_, "unblock", "pending")
        if changes.make_pending(id_, spec).state == "pending":  # else its guards are checked next
            changes.task_event("ready", "", id_)
            begun += 1
    return begun, len(hangers) - len(some)


def read_requirement_sets(changes: TaskChanges, specs: Iterable[Spec]) -> None:
    """Ask for all sets of requirements with one read."""
    sets = {keys.requirement_set(spec.requirement_set): None for spec in specs if spec.requires}
    changes.facts.need(sets)


def _fitting(ids: Sequence[str], text: int) -> int:
    """How many of these tasks fit into one entry; at least one."""
    sizes = accumulate(ENTRY_TEXT + ENTRY_NAMES * len(id_) for id_ in ids)
    return max(1, sum(size <= text for size in sizes))


def unblock_rest(
    changes: TaskChanges, need: str, hangers: Sequence[str], *, more: bool
) -> Decision[Moved]:
    """Unblock some of the dependents that did not fit into the commit that completed the need."""
    if not changes.facts.has(keys.todo(need)):
        return Decision(outcome=Moved())
    _, rest = unblock(changes, need, hangers)
    if not rest and not more:
        changes.rely(keys.todo(need))
        changes.delete(keys.todo(need))
    moved = Moved(tasks=len(hangers) - rest)
    return changes.decision(moved, "task.unblock", record_name(need))


def wake_due(changes: TaskChanges, dues: Sequence[str]) -> Decision[Moved]:
    """Make tasks ready whose rest is over or whose moment has come.

    An entry of the ``due`` index that its task does not name is deleted.
    """
    woken = 0
    tasks = [(keys.task_in_index(due), due) for due in dues]
    waking = [id_ for id_, due in tasks if (each := changes.status(id_)) and each.due == due]
    changes.facts.need_all(changes.facts.spec, waking)
    read_requirement_sets(changes, map(changes.facts.spec, waking))
    for id_, due in tasks:
        status = changes.status(id_)
        if status is None or status.due != due:
            changes.rely(due, keys.status(id_))
            changes.delete(due)
            woken += 1
        elif changes.is_due(status) and status.guard:
            changes.check_gate_again(id_)
            woken += 1
        elif changes.is_due(status):
            changes.move(
                id_,
                "ready",
                "pending",
                reason=status.reason,
                by=status.by,
                token=status.token,
                session=status.session,
            )
            changes.make_ready(id_, changes.facts.spec(id_))
            if not changes.facts.spec(id_).guards:
                changes.task_event("ready", "", id_)
            woken += 1
    if not woken:
        return Decision(outcome=Moved())
    return changes.decision(Moved(tasks=woken), "task.ready", "tasks")


def expire(changes: TaskChanges, ids: Sequence[str]) -> Decision[Moved]:
    """Make dead letters of tasks that no worker began before their deadline."""
    changes.facts.need_statuses(ids)
    changes.facts.need_all(lambda id_: changes.is_late(id_, changes.facts.status(id_)), ids)
    late = [id_ for id_ in ids if changes.is_late(id_, changes.facts.status(id_))]
    changes.facts.need_all(changes.facts.spec, late)
    for id_ in late:
        expire_one(changes, id_)
    if not late:
        return Decision(outcome=Moved())
    about = f"task/{late[0]}" if len(late) == 1 else "tasks"
    return changes.decision(Expired(tasks=len(late)), "task.expire", about)


def measure(changes: TaskChanges, id_: str, deadline: float) -> None:
    """Put the liveness key of a deadline, so that the engine's clock measures it."""
    changes.rely(keys.CLOCK)
    if not changes.facts.has(keys.CLOCK):
        changes.put(keys.CLOCK, {}, CLOCK_TTL)
    left = max(deadline - changes.now, changes.facts.min_ttl)
    changes.put(keys.deadline(id_), {"for": f"task/{id_}"}, left)


def _next_need(changes: TaskChanges, id_: str) -> int | None:
    """The next need of a blocked task that is not complete."""
    status = changes.status(id_)
    if status is None or status.state != "blocked":
        return None
    return first_unmet_need(changes, id_, changes.facts.spec(id_).needs, status.place + 1)


def count_failure(
    changes: TaskChanges, id_: str, act: str, chance: float, **cause: object
) -> TaskStatus:
    """Count a failed attempt: the task rests and is retried, or it is dead.

    ``cause`` are fields of its status: the reason, and which claim the worker reported for.
    """
    spec, before = changes.facts.spec(id_), changes.status(id_)
    attempts = 1 + (0 if before is None else before.attempts)
    said = {"attempts": attempts, "since": changes.now, **cause}
    if attempts > spec.retries:
        return changes.move(id_, act, "dead", **said)
    seconds = task.backoff_delay(spec, attempts, chance)
    if not seconds:
        after = changes.move(id_, act, "pending", **said)
        changes.make_ready(id_, spec)
        return after
    due, rest = keys.due(changes.now + seconds, id_), keys.live(f"rest/{keys.encode(id_)}")
    after = changes.move(id_, act, "pending", due=due, **said)
    measured = seconds >= changes.facts.min_ttl  # a shorter rest is over by the wall clock
    changes.put(due, DueEntry(rest if measured else ""))
    changes.wake_workers(spec)
    if measured:
        changes.put(rest, {"for": f"task/{id_}"}, seconds)
    return after


def expire_one(changes: TaskChanges, id_: str) -> None:
    """Make a dead letter of a task that was not begun before its deadline."""
    status = changes.status(id_)
    if status is not None and status.state == "pending" and not status.due:
        changes.delete(changes.facts.spec(id_).ready_key(id_))
    changes.move(
        id_, "expire", "dead", since=changes.now, reason="no worker began it before its deadline"
    )
    changes.task_event("dead", "", id_)
