"""How tasks go on: into the queue, from one need to the next, after a rest, past a deadline.

Nobody in particular does this; it is part of whatever happens to a task, or done by whoever comes
along.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from msgspec import Struct
from msgspec.structs import asdict, replace

from interlock.core import keys
from interlock.core.changes import Missing
from interlock.core.decision import Decision, Success
from interlock.nouns.tasks import task as core
from interlock.nouns.tasks.task import DueEntry, Spec, TaskStatus
from interlock.nouns.tasks.task_change import TaskChanges

DEPENDENT_SIZE = 6
"""Operations that moving on one task may take."""
SET_SIZE = 3
"""The same for a set of requirements that has to be listed."""
ENTRY_TEXT = 420
ENTRY_NAMES = 6
"""What one task adds to an entry: so many bytes, and its id so many times."""
NEEDS_AT_FIRST, NEEDS_FACTOR = 8, 4
"""How many needs are looked at first, and by how much more each time: the next one is mostly not
complete yet, and where thousands are, few questions should be enough."""
CLOCK_TTL = 10 * 365 * 86400.0
"""How long the key stands that shows a break of the engine's clock."""
HIDDEN_REASON = "it belongs to an import that has not ended; if that was interrupted, repeat it"


class Moved(Success, frozen=True, kw_only=True, tag="moved"):
    """So many tasks went on."""

    tasks: int = 0


class Expired(Moved, frozen=True, kw_only=True, tag="expired"):
    """So many tasks became dead letters, since nobody began them in time."""


def create(board: TaskChanges, id_: str, spec: Spec, need: str = "") -> TaskStatus:
    """Write a task that is not there yet: ready, blocked, or not due.

    It hangs on the ``need`` that is given, if any, before those of its own: on a batch, which
    hides it until that is complete.
    """
    if spec.deadline is not None:
        _measure(board, id_, spec.deadline)
        spec = replace(spec, measured=True)
    board.put(keys.data(id_), spec)
    if not need:
        board.tell("published", spec.by, id_)
    board.rely(keys.status(id_))
    at = -1 if need else first_unmet_need(board, id_, spec.needs, 0)
    if at is None:
        return board.begin(id_, spec)
    on = need or spec.needs[at]
    status = TaskStatus(
        state="blocked",
        since=board.now,
        on=on,
        place=at,
        deadline=spec.deadline,
        trace=spec.trace,
    )
    board.set(id_, status)
    board.hang(id_, status.on)
    return status


def first_unmet_need(board: TaskChanges, id_: str, needs: Sequence[str], first: int) -> int | None:
    """Where among its needs, from the first on, a task has one that is not complete.

    One that is gone was complete (``retention_rules.py``), and one that came after the task has
    only the name of what it needs.
    """
    width = NEEDS_AT_FIRST
    while first < len(needs):
        some = needs[first : first + width]
        board.facts.ask_for(some)
        for number, need in enumerate(some, first):
            status = board.status(need)
            if status is not None and status.state != "complete" and _meant(board, id_, need):
                return number
        first, width = first + width, width * NEEDS_FACTOR
    return None


def _meant(board: TaskChanges, id_: str, need: str) -> bool:
    """Whether a need was there before the task, or comes with it: by what published them."""
    own = board.facts.oldest.get(id_, 0)  # 0 for what is being published
    return not own or board.facts.oldest.get(need, 0) <= own


def read_needs(
    board: TaskChanges, needs: Sequence[str], besides: Iterable[str] = ()
) -> tuple[str, ...]:
    """Know how all of these stand, before a task is published; the needs that failed or are dead.

    Whoever forgets what failed has to notice: the mark is read no later than what it stands for.
    A need that is open may fail and be suspected before this is committed: that is noticed, too.
    """
    known = board.facts.statuses
    if missing := [keys.status(each) for each in (*needs, *besides) if each not in known]:
        raise Missing((keys.NEEDED, keys.SUSPECTED, *missing) if needs else tuple(missing))
    if any(_is_unmet(board.facts.status(need)) for need in needs):
        board.rely(keys.SUSPECTED)
    ended = tuple(need for need in needs if _failed(board.facts.status(need)))
    if ended:
        board.rely(keys.NEEDED)
        board.put(keys.NEEDED, {})
    return ended


def _is_unmet(status: TaskStatus | None) -> bool:
    return status is not None and status.state != "complete"


def _failed(status: TaskStatus | None) -> bool:
    return status is not None and status.state in ("failed", "dead")


def is_hidden(board: TaskChanges, status: TaskStatus) -> bool:
    """Whether a task belongs to a batch that is not complete: nobody is to know of it yet."""
    if not status.on.startswith(core.BATCH):
        return False
    batch = board.status(status.on)
    return batch is None or batch.state != "complete"


def exists(board: TaskChanges, id_: str) -> bool:
    """Whether there is a task of this id, as far as anybody is to know."""
    status = board.status(id_)
    return status is not None and not is_hidden(board, status)


def record_name(need: str) -> str:
    """What others hang on, as the record names it: a task, or the plan that a batch is of."""
    batch = need.startswith(core.BATCH)
    return f"plan/{need[len(core.BATCH) :]}" if batch else f"task/{need}"


def unblock(board: TaskChanges, need: str, hangers: Sequence[str]) -> tuple[int, int]:
    """Let tasks go on whose need is complete; how many may begin, and how many are left.

    Somebody else may have moved them on since they were listed, to a need that is not complete.
    """
    begun, some = 0, hangers[: _fitting(hangers, board.facts.max_entry_bytes)]
    board.facts.all_of(lambda id_: _next_need(board, id_), some)
    read_requirement_sets(board, [spec for id_ in some if (spec := board.facts.specs.get(id_))])
    for number, id_ in enumerate(some):
        if board.size + DEPENDENT_SIZE + SET_SIZE > board.facts.max_operations:
            return begun, len(hangers) - number
        status = board.status(id_)
        if status is None or status.state != "blocked" or status.on != need:
            continue
        spec, at = board.facts.spec(id_), _next_need(board, id_)
        if need.startswith(core.BATCH):
            board.tell("published", spec.by, id_)
        if at is not None:
            on = spec.needs[at]
            board.move(id_, "unblock", "blocked", since=status.since, on=on, place=at)
            board.hang(id_, on)
            continue
        board.move(id_, "unblock", "pending")
        board.begin(id_, spec)
        board.tell("ready", "", id_)
        begun += 1
    return begun, len(hangers) - len(some)


def read_requirement_sets(board: TaskChanges, specs: Iterable[Spec]) -> None:
    """Ask once for all sets of requirements, not for one after the other."""
    sets = {keys.set_of(spec.set): None for spec in specs if spec.requires}
    board.facts.all_of(board.facts.has, sets)


def _fitting(ids: Sequence[str], text: int) -> int:
    """How many of these tasks one entry has room for; at least one."""
    sizes = accumulate(ENTRY_TEXT + ENTRY_NAMES * len(id_) for id_ in ids)
    return max(1, sum(size <= text for size in sizes))


def unblock_rest(
    board: TaskChanges, need: str, hangers: Sequence[str], *, more: bool
) -> Decision[Moved]:
    """Move on some of what was left hanging on a need that is complete."""
    if not board.facts.has(keys.todo(need)):
        return Decision(outcome=Moved())
    _, rest = unblock(board, need, hangers)
    if not rest and not more:
        board.rely(keys.todo(need))
        board.delete(keys.todo(need))
    moved = Moved(tasks=len(hangers) - rest)
    return board.decision(moved, "task.unblock", record_name(need))


def wake_due(board: TaskChanges, dues: Sequence[str]) -> Decision[Moved]:
    """Tasks whose time has come get their place among those that are ready.

    A place among those that must not begin yet of a task that does not mean it is taken away.
    """
    woken = 0
    waking = [id_ for due in dues if _rests(board, id_ := keys.listed(due), due)]
    board.facts.all_of(board.facts.spec, waking)
    read_requirement_sets(board, map(board.facts.spec, waking))
    for due in dues:
        id_ = keys.listed(due)
        status = board.status(id_)
        if status is None or status.due != due:
            board.rely(due, keys.status(id_))
            board.delete(due)
            woken += 1
        elif is_due(board, status):
            blame = FailureCause(status.reason, status.by, status.token, status.session)
            board.move(id_, "ready", "pending", **asdict(blame))
            board.make_ready(id_, board.facts.spec(id_))
            board.tell("ready", "", id_)
            woken += 1
    if not woken:
        return Decision(outcome=Moved())
    return board.decision(Moved(tasks=woken), "task.ready", "tasks")


def _rests(board: TaskChanges, id_: str, due: str) -> bool:
    """Whether this is the place of a task among those that must not begin yet."""
    status = board.status(id_)
    return status is not None and status.due == due


def expire(board: TaskChanges, ids: Sequence[str]) -> Decision[Moved]:
    """Tasks that nobody began before their deadline are dead letters."""
    board.facts.ask_for(ids)
    board.facts.all_of(lambda id_: is_late(board, id_, board.facts.status(id_)), ids)
    late = [id_ for id_ in ids if is_late(board, id_, board.facts.status(id_))]
    board.facts.all_of(board.facts.spec, late)
    for id_ in late:
        expire_one(board, id_)
    if not late:
        return Decision(outcome=Moved())
    about = f"task/{late[0]}" if len(late) == 1 else "tasks"
    return board.decision(Expired(tasks=len(late)), "task.expire", about)


def is_late(board: TaskChanges, id_: str, status: TaskStatus | None) -> bool:
    """Whether it is too late to begin a task; one that was begun in time may be tried again."""
    if status is None or status.state != "pending" or status.attempts:
        return False
    return status.deadline is not None and is_deadline_over(board, id_, status.deadline)


def is_deadline_over(board: TaskChanges, id_: str, deadline: float) -> bool:
    """Whether the deadline of a task is over, by the engine's clock.

    Its liveness key says so, however wrong our own clock is.  A key that is gone says nothing if
    the engine lost all liveness since the task was published (a reboot under SQLite), or if no
    key was put with the task (an older version): then our own wall clock decides.
    """
    known = board.facts
    known.all_of(known.has, (keys.deadline(id_), keys.CLOCK))
    if known.has(keys.deadline(id_)):
        board.rely(keys.deadline(id_))
        return False
    unbroken = 0 < known.clock <= known.oldest.get(id_, 0)
    return (unbroken and known.spec(id_).measured) or deadline < board.now


def _measure(board: TaskChanges, id_: str, deadline: float) -> None:
    """Let the engine's clock measure how long a task may be begun."""
    board.rely(keys.CLOCK)
    if not board.facts.has(keys.CLOCK):
        board.put(keys.CLOCK, {}, CLOCK_TTL)
    left = max(deadline - board.now, board.facts.min_ttl)
    board.put(keys.deadline(id_), {"for": f"task/{id_}"}, left)


def is_due(board: TaskChanges, status: TaskStatus) -> bool:
    """Whether a task may begin, as far as time is concerned."""
    if not status.due:
        return True
    due = board.facts.due(status.due)
    if due is None:
        return True
    return not board.facts.has(due.rest) if due.rest else due_moment(status.due) <= board.now


def due_moment(due: str) -> float:
    """The moment in the key of a task that must not begin before it."""
    return int(due.split("/")[1]) / 1000


def _next_need(board: TaskChanges, id_: str) -> int | None:
    """The next need of a blocked task that is not complete."""
    status = board.status(id_)
    if status is None or status.state != "blocked":
        return None
    return first_unmet_need(board, id_, board.facts.spec(id_).needs, status.place + 1)


class FailureCause(Struct, frozen=True, gc=False):
    """Why an attempt failed; by whom and with which claim, if somebody says so itself."""

    reason: str
    by: str = ""
    token: int = 0
    session: str = ""


def count_failure(
    board: TaskChanges, id_: str, act: str, blame: FailureCause, chance: float
) -> TaskStatus:
    """One attempt more that failed: rest and try again, or give up."""
    spec, before = board.facts.spec(id_), board.status(id_)
    attempts = 1 + (0 if before is None else before.attempts)
    said = {"attempts": attempts, "since": board.now, **asdict(blame)}
    if attempts > spec.retries:
        return board.move(id_, act, "dead", **said)
    seconds = core.backoff_delay(spec, attempts, chance)
    if not seconds:
        after = board.move(id_, act, "pending", **said)
        board.make_ready(id_, spec)
        return after
    seconds = max(seconds, board.facts.min_ttl)
    due, rest = keys.due(board.now + seconds, id_), keys.live(f"rest/{keys.part(id_)}")
    after = board.move(id_, act, "pending", due=due, **said)
    board.put(due, DueEntry(rest))
    board.call(spec)
    board.put(rest, {"for": f"task/{id_}"}, seconds)
    return after


def expire_one(board: TaskChanges, id_: str) -> None:
    """It is too late to begin."""
    status = board.status(id_)
    if status is not None and not status.due:
        board.delete(board.facts.spec(id_).place(id_))
    board.move(id_, "expire", "dead", since=board.now, reason="nobody began it before its deadline")
    board.tell("dead", "", id_)
