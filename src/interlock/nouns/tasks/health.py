"""Finds problems of tasks for ``health``.

All of them are found through the indexes, so complete tasks cost nothing.  An index says where to
look and is never the truth: a task that seems to be lost, or to wait, is read itself before it is
reported.  Damaged items are left to ``doctor``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from interlock.core import keys
from interlock.core.safe_text import foreign, foreign_names
from interlock.core.validate import command, quote, span
from interlock.core.wait import UnqueuedWait
from interlock.nouns.agents.views import SessionOverview, all_deaths, session_overview
from interlock.nouns.tasks.task import BATCH, UNSUCCESSFUL, EndedEntry, TaskOwner, TaskStatus
from interlock.nouns.tasks.task_reader import (
    decode_claim,
    decode_ended,
    decode_names,
    decode_ready,
    decode_spec,
    decode_status,
)
from interlock.nouns.tasks.views import read_snapshots
from interlock.nouns.tasks.why import able_sessions
from interlock.runtime.health import BOUND, HealthCheck, Problem
from interlock.runtime.reads import decode_wait, every, looked_up, readable
from interlock.runtime.why import NAMED
from interlock.steps import Op, Read
from interlock.store import Item, Range

HEAD = 1000
"""The most ready tasks that a pass reads of each set of requirements."""
LINES = 20
"""The most needs with blocked dependents that are named."""
SETS_AT_ONCE = 16
A_WHILE = 60.0
"""The worker that completes a task unblocks its dependents; a ``todo`` mark that is older than this
was left over."""


class RunningTask(Struct, frozen=True, kw_only=True):
    """A running task."""

    task: str
    claim: TaskOwner
    status: TaskStatus
    alive: bool


class WaitingTasks(Struct, frozen=True, kw_only=True):
    """The ready tasks of a set of requirements: the oldest of them, and how many."""

    task: str
    since: float
    count: int
    requires: tuple[str, ...] = ()

    @property
    def others(self) -> str:
        """The other tasks, in words."""
        return _more(self.count - 1, "task waits", "tasks wait")

    @property
    def listed(self) -> str:
        """The requirements, as an option takes them."""
        return ",".join(self.requires)


def health(checkup: HealthCheck) -> Op[list[Problem]]:
    """Tasks that need attention."""
    running = yield from _running(checkup)
    waiting = yield from _waiting(checkup, {each.task for each in running})
    now, patience = checkup.runner.clock.wall(), checkup.patience
    here = (yield from session_overview()) if waiting else SessionOverview()
    alive = [each for each in running if each.alive]
    alone = [] if alive or here.at_work else (yield from _unattended(waiting, here, now))
    unable = [each for each in waiting if each not in alone and _is_unable(each, here, now)]
    others = [each for each in waiting if each not in (*alone, *unable)]
    ended = {
        keys.task_in_index(item.key): found
        for item in (yield from checkup.read(keys.ENDED))
        if (found := readable(decode_ended, item)) is not None
    }
    return [
        *[_stale(each) for each in running if not each.alive],
        *[_stuck(each, now) for each in alive if now - each.claim.since > patience.stuck],
        *_overdue(alive, now),
        *_unattended_problems(alone),
        *map(_unable, unable),
        *[_waiting_long(each, now) for each in others if now - each.since > patience.waiting],
        *(yield from _ended_problems(ended)),
        *(yield from _blocked(checkup, ended, now)),
        *(yield from _leftover(checkup, now)),
        *(yield from _unfinished(checkup, now)),
    ]


def _problem(kind: Any, task: str, says: str, remedy: str, **fields: Any) -> Problem:  # noqa: ANN401 - as in Problem
    thing = f"task/{task}"
    return Problem(
        kind=kind, says=f"{foreign(thing)}: {says}", remedy=remedy, thing=thing, **fields
    )


def _more(number: int, one: str, many: str) -> str:
    if number < 1:
        return ""
    return f"; 1 more such {one}" if number == 1 else f"; {number} more such {many}"


def _names(item: Item) -> tuple[str, ...]:
    return readable(decode_names, item) or ()


def _statuses(tasks: Iterable[str]) -> Op[dict[str, TaskStatus | None]]:
    """The statuses of these tasks; None for a damaged one."""
    items = yield from looked_up(map(keys.status, tasks))
    return {keys.task_of(key): readable(decode_status, item) for key, item in items.items()}


def _running(checkup: HealthCheck) -> Op[list[RunningTask]]:
    """All running tasks; liveness is read before the owners, so a new claim is not stale."""
    claims = yield from checkup.read(keys.CLAIMS)
    lives = {keys.task_in_index(item.key): _names(item) for item in claims}
    live = yield from looked_up(name for names in lives.values() for name in names)
    items = yield from looked_up(
        key for task in lives for key in (keys.owner(task), keys.status(task))
    )
    found = []
    for task, names in lives.items():
        claim = readable(decode_claim, items[keys.owner(task)])
        status = readable(decode_status, items[keys.status(task)])
        if claim is not None and status is not None and claim.live == names:
            alive = all(live[name] is not None for name in names)
            found.append(RunningTask(task=task, claim=claim, status=status, alive=alive))
    return found


def _stale(each: RunningTask) -> Problem:
    agent, since = each.claim.agent, each.claim.since
    says = f"{foreign(agent)} was lost, and it is not back in the queue yet"
    remedy = "claim it, or run 'interlock maintain'"
    return _problem("stale", each.task, says, remedy, agent=agent, since=since)


def _stuck(each: RunningTask, now: float) -> Problem:
    agent, since = each.claim.agent, each.claim.since
    says = f"{foreign(agent)} has worked on it for {span(now - since)}"
    return _problem("stuck", each.task, says, _see(each), agent=agent, since=since)


def _overdue(running: Sequence[RunningTask], now: float) -> Iterator[Problem]:
    for each in running:
        deadline, agent = each.status.deadline, each.claim.agent
        if deadline is not None and deadline < now:
            says = f"{foreign(agent)} works on it, and its deadline was {span(now - deadline)} ago"
            yield _problem("overdue", each.task, says, _see(each), agent=agent, since=deadline)


def _see(each: RunningTask) -> str:
    return (
        f"see what {foreign(each.claim.agent)} does, or give it up:"
        f" interlock task cancel {quote(each.task)} --agent NAME"
    )


def _waiting(checkup: HealthCheck, running: set[str]) -> Op[list[WaitingTasks]]:
    """Tasks that wait for a worker, by set of requirements, and due tasks that still rest."""
    items = yield from checkup.read(keys.SETS)
    sets = {item.key.removeprefix(keys.SETS): tuple(dict.fromkeys(_names(item))) for item in items}
    found = [(yield from _overdue_rests(checkup))]
    for name, places in (yield from _places(checkup, [keys.NO_REQUIREMENTS, *sets])).items():
        since = {
            task: decode_ready(item).since or keys.ready_at(item.key)
            for item in places
            if (task := keys.task_in_index(item.key)) not in running
        }
        found.append((yield from _first(checkup, since, sets.get(name, ()))))
    return [each for each in found if each is not None]


def _places(checkup: HealthCheck, sets: Sequence[str]) -> Op[dict[str, Sequence[Item]]]:
    """The tasks that are ready, by their requirements."""
    found: dict[str, Sequence[Item]] = {}
    for start in range(0, len(sets), SETS_AT_ONCE):
        some = sets[start : start + SETS_AT_ONCE]
        pages = {name: Range(keys.ready(name), limit=HEAD) for name in some}
        ranges = (yield Read(*pages.values())).ranges
        found |= {name: ranges[page] for name, page in pages.items()}
    checkup.partial |= any(len(places) == HEAD for places in found.values())
    return found


def _overdue_rests(checkup: HealthCheck) -> Op[WaitingTasks | None]:
    """Tasks whose moment has come, and which no worker made ready."""
    page = Range(keys.DUE, limit=HEAD)
    now = checkup.runner.clock.wall()
    since = {
        keys.task_in_index(item.key): moment
        for item in (yield Read(page)).ranges[page]
        if (moment := keys.due_at(item.key)) < now and not keys.is_schedule_entry(item.key)
    }
    return (yield from _first(checkup, since, ()))


def _first(
    checkup: HealthCheck, since: Mapping[str, float], requires: tuple[str, ...]
) -> Op[WaitingTasks | None]:
    """The task that has waited longest, of the tasks that are really pending."""
    oldest = sorted(since, key=lambda task: since[task])[:NAMED]
    snapshots = yield from read_snapshots(checkup.runner, oldest, data_of=())
    for task in oldest:
        if snapshots[task].state == "pending" and not snapshots[task].left:
            count = len(since)
            return WaitingTasks(task=task, since=since[task], count=count, requires=requires)
    return None


def _unattended(
    waiting: Sequence[WaitingTasks], here: SessionOverview, now: float
) -> Op[list[WaitingTasks]]:
    """The ready tasks that have no worker, where no session has a claim or reports work.

    They are reported after a minute, and at once if a session died and no live session reports: a
    worker that reports ``idle`` has the minute to take them.  A session that is merely here is no
    worker, so it changes nothing.
    """
    late = [each for each in waiting if now - each.since > A_WHILE]
    if len(late) < len(waiting) and not here.able:
        died = here.lapsed or (yield from all_deaths())
        late = list(waiting) if died else late
    return [] if not late or (yield from _awaited()) else late


def _awaited() -> Op[bool]:
    """Whether a live session waits for a task by its name."""
    read = [readable(decode_wait, item) for item in (yield from every(keys.WAITS, most=BOUND))]
    waits = [each for each in read if isinstance(each, UnqueuedWait)]
    live = yield from looked_up(each.live for each in waits if each.wants.startswith(keys.TASKS))
    return any(item is not None for item in live.values())


def _unattended_problems(waiting: Sequence[WaitingTasks]) -> Iterator[Problem]:
    if not waiting:
        return
    first = min(waiting, key=lambda each: each.since)
    more = _more(sum(each.count for each in waiting) - 1, "task waits", "tasks wait")
    able = f" --can {quote(first.listed)}" if first.requires else ""
    yield _problem(
        "unattended",
        first.task,
        f"it is ready, and no worker is here{more}",
        f"start a worker, or take it: interlock task next --agent NAME{able}",
        since=first.since,
    )


def _is_unable(waiting: WaitingTasks, here: SessionOverview, now: float) -> bool:
    """Whether no agent that is here reports that it can do this."""
    known = bool(here.live) or now - waiting.since > A_WHILE
    return known and bool(waiting.requires) and not able_sessions(here.able, waiting.requires)


def _unable(waiting: WaitingTasks) -> Problem:
    return _problem(
        "unable",
        waiting.task,
        f"it requires {foreign_names(waiting.requires, ' and ')}, and no agent that is here reports"
        " that"
        f" it can{waiting.others}",
        f"start a worker that can: interlock task next --agent NAME --can {quote(waiting.listed)};"
        f" or let one report it: interlock agent status --can {quote(waiting.listed)}, and then its"
        " next claim takes it",
        since=waiting.since,
    )


def _waiting_long(waiting: WaitingTasks, now: float) -> Problem:
    able = f" who can {foreign_names(waiting.requires, ' and ')}" if waiting.requires else ""
    lasted = span(now - waiting.since)
    return _problem(
        "waiting",
        waiting.task,
        f"it has waited for a worker{able} for {lasted}{waiting.others}",
        f"see {command('interlock why ' + quote(f'task/{waiting.task}'))}",
        since=waiting.since,
    )


def _ended_problems(ended: Mapping[str, EndedEntry]) -> Op[list[Problem]]:
    """Dead letters, and tasks that failed for good; a cancelled task is no problem."""
    order = sorted(ended, key=lambda task: ended[task].since)
    dead = [task for task in order if ended[task].state == "dead"]
    failed = [task for task in order if ended[task].state == "failed"]
    known = yield from _statuses((*dead[:NAMED], *failed))
    given_up = [task for task in failed if (each := known[task]) is not None and each.token]
    problems = []
    for kind, word, tasks in (
        ("dead_letter", "died", dead),
        ("failed", "failed for good", given_up),
    ):
        if not tasks:
            continue
        named = [f"{foreign(task)} ({_reason(known[task])})" for task in tasks[:NAMED]]
        count = "1 task" if len(tasks) == 1 else f"{len(tasks)} tasks"
        more = f" and {len(tasks) - NAMED} more" if len(tasks) > NAMED else ""
        said: dict[str, Any] = {"kind": kind, "says": f"{count} {word}: {', '.join(named)}{more}"}
        problems.append(
            Problem(
                **said,
                remedy="fix the cause, then retry what is still wanted: interlock task retry"
                f" {quote(tasks[0])} --agent NAME",
                thing=f"task/{tasks[0]}",
                since=ended[tasks[0]].since,
            )
        )
    return problems


def _reason(status: TaskStatus | None) -> str:
    return foreign(status.reason) if status and status.reason else "no reason was given"


def _blocked(
    checkup: HealthCheck, ended: Mapping[str, EndedEntry], now: float
) -> Op[list[Problem]]:
    """Tasks that stay blocked, one line for each need that ended without success."""
    if not ended:
        return []
    below: dict[str, list[str]] = {}
    for item in (yield from checkup.read(keys.HANGS)):
        need, task = keys.hangs_of(item.key)
        below.setdefault(need, []).append(task)
    found = {need: tasks for need, tasks in below.items() if need in ended}
    others = [task for need, tasks in below.items() if need not in ended for task in tasks]
    checkup.partial |= len(others) > HEAD
    for task, need in (yield from _later_needs(others[:HEAD], ended)):
        found.setdefault(need, []).append(task)
    known = yield from _statuses(task for need, tasks in found.items() for task in (need, *tasks))
    return list(_blocked_for_good(found, known, now))


def _later_needs(
    tasks: Sequence[str], ended: Mapping[str, EndedEntry]
) -> Op[list[tuple[str, str]]]:
    """The tasks of these that hang on another need, but also need one that ended."""
    items = yield from looked_up(map(keys.data, tasks))
    found = []
    for task in tasks:
        spec = readable(decode_spec, items[keys.data(task)])
        need = next((each for each in spec.needs if each in ended), "") if spec else ""
        if need:
            found.append((task, need))
    status = yield from looked_up(keys.status(need) for _, need in found)
    return [
        (task, need)
        for task, need in found
        if _is_meant(status[keys.status(need)], items[keys.data(task)])
    ]


def _is_meant(need: Item | None, data: Item | None) -> bool:
    """Whether the need is meant; a younger one has the id of one that was complete and deleted."""
    return need is not None and data is not None and need.created <= data.revision


def _blocked_for_good(
    found: Mapping[str, Sequence[str]], known: Mapping[str, TaskStatus | None], now: float
) -> Iterator[Problem]:
    """One line for each need that ended, with its first dependent."""
    lines = 0
    for need, tasks in found.items():
        status = known[need]
        if status is None or status.state not in UNSUCCESSFUL:
            continue
        still = [task for task in tasks if (each := known[task]) and each.state == "blocked"]
        lines += bool(still)
        if not still or lines > LINES:
            continue
        word = "died" if status.state == "dead" else "failed" if status.token else "was cancelled"
        back = f"send the need back: interlock task retry {quote(need)} --agent NAME;"
        if status.state == "dropped":
            word = "was dropped"
            back = (
                f"let the task do without it: interlock task edit {quote(still[0])}"
                f" --remove-needs {quote(need)} --agent NAME;"
            )
        why, first = _reason(status), still[0]
        more = _more(len(still) - 1, "task is blocked", "tasks are blocked")
        yield _problem(
            "blocked",
            first,
            f"it needs {foreign(need)}, which {word} {span(now - status.since)} ago ({why}){more}",
            f"{back} or give up what needs it: interlock task cancel {quote(first)} --agent NAME",
            since=status.since,
        )
    if lines > LINES:
        yield Problem(
            kind="blocked",
            says=f"{lines - LINES} more needs ended without success, and block tasks",
            remedy="see 'interlock task list --state blocked'",
        )


def _leftover(checkup: HealthCheck, now: float) -> Op[list[Problem]]:
    """Complete needs that still have blocked dependents."""
    todo = yield from checkup.read(keys.TODO)
    known = yield from _statuses(keys.task_in_index(item.key) for item in todo)
    return [
        Problem(
            kind="leftover",
            says=f"{'an import' if need.startswith(BATCH) else f'task/{foreign(need)}'}: it was"
            " completed"
            f" {span(now - each.since)} ago, and not all that needs it was moved on",
            remedy="run 'interlock maintain'",
            thing="" if need.startswith(BATCH) else f"task/{need}",
            since=each.since,
        )
        for need, each in known.items()
        if each is not None and now - each.since > A_WHILE
    ]


def _unfinished(checkup: HealthCheck, now: float) -> Op[list[Problem]]:
    """Imports whose client is gone: their tasks are hidden."""
    items = yield from checkup.read(f"{keys.TASKS}{BATCH}")
    found = {
        keys.task_of(item.key): status
        for item in items
        if item.key.endswith("/status")
        and (status := readable(decode_status, item)) is not None
        and status.state in ("blocked", "failed")
    }
    live = yield from looked_up(map(keys.live, found))
    return [
        Problem(
            kind="unfinished",
            says=f"an import began {span(now - each.since)} ago and was not finished,"
            " so its tasks are hidden",
            remedy="repeat it: it goes on where it was",
            since=each.since,
        )
        for id_, each in found.items()
        if live[keys.live(id_)] is None and now - each.since > checkup.patience.dead_after
    ]
