"""Finds problems of tasks for ``health``.

All of them are found through the indexes, so complete tasks cost nothing.  An index says where to
look and is never the truth: a task that seems to be lost, or to wait, is read itself before it is
reported.  Damaged items are left to ``doctor``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from interlock.core import keys
from interlock.core.validate import quote, span
from interlock.core.wait import UnqueuedWait
from interlock.drivers import Op, Read
from interlock.nouns.agents.views import SessionOverview, all_deaths, session_overview
from interlock.nouns.tasks.task import BATCH, EndedEntry, TaskOwner, TaskStatus
from interlock.nouns.tasks.task_reader import (
    decode_claim,
    decode_ended,
    decode_names,
    decode_ready,
    decode_spec,
    decode_status,
)
from interlock.nouns.tasks.why_state import able_sessions, read_snapshots
from interlock.runtime.health import HealthCheck, Patience, Problem
from interlock.runtime.reads import decode_wait, every, looked_up, readable
from interlock.runtime.runner import Runner
from interlock.runtime.why import NAMED
from interlock.store import Item, Range

BOUND = 10_000
"""The most items that a pass reads of each index."""
HEAD = 1000
"""The most ready tasks that a pass reads of each set of requirements."""
LINES = 20
"""The most needs with blocked dependents that are named."""
SETS_AT_ONCE = 16
A_WHILE = 60.0
"""The worker that completes a task unblocks its dependents; a ``todo`` mark that is older than this
was left over."""


def health(checkup: HealthCheck) -> Op[list[Problem]]:
    """Tasks that need attention."""
    tasks = TaskHealth(checkup.runner, checkup.patience)
    found = yield from tasks.run()
    checkup.partial |= tasks.partial
    return found


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


class TaskHealth:
    """One pass over the tasks of a store."""

    def __init__(self, runner: Runner, patience: Patience) -> None:
        self._runner = runner
        self._patience = patience
        self.partial = False
        """Whether a bound cut the pass short."""

    def run(self) -> Op[list[Problem]]:
        """Find all problems of tasks."""
        running = yield from self._running()
        waiting = yield from self._waiting({each.task for each in running})
        now = self._runner.clock.wall()
        here = (yield from session_overview()) if waiting else SessionOverview()
        working = any(each.alive for each in running) or bool(here.at_work)
        alone = [] if working else (yield from self._unattended(waiting, here, now))
        unable = [each for each in waiting if each not in alone and _is_unable(each, here, now)]
        ended = yield from self._ended()
        return [
            *_stale([each for each in running if not each.alive]),
            *self._stuck([each for each in running if each.alive], now),
            *_overdue([each for each in running if each.alive], now),
            *_unattended_problems(alone),
            *_unable(unable),
            *self._waiting_long([each for each in waiting if each not in (*alone, *unable)], now),
            *(yield from self._ended_problems(ended)),
            *(yield from self._blocked(ended, now)),
            *(yield from self._leftover(now)),
            *(yield from self._unfinished(now)),
        ]

    def _read(self, prefix: str, most: int = BOUND) -> Op[list[Item]]:
        items = yield from every(prefix, most=most + 1)
        self.partial |= len(items) > most
        return items[:most]

    def _running(self) -> Op[list[RunningTask]]:
        """All running tasks; liveness is read before the owners, so a new claim is not stale."""
        claims = yield from self._read(keys.CLAIMS)
        lives = {keys.task_in_index(item.key): _names(item) for item in claims}
        live = yield from looked_up(name for names in lives.values() for name in names)
        wanted = (key for task in lives for key in (keys.owner(task), keys.status(task)))
        items = yield from looked_up(wanted)
        found = []
        for task, names in lives.items():
            claim = readable(decode_claim, items[keys.owner(task)])
            status = _status(items[keys.status(task)])
            if claim is not None and status is not None and claim.live == names:
                alive = all(live[name] is not None for name in names)
                found.append(RunningTask(task=task, claim=claim, status=status, alive=alive))
        return found

    def _stuck(self, running: Sequence[RunningTask], now: float) -> Iterator[Problem]:
        for each in running:
            agent, since = each.claim.agent, each.claim.since
            if now - since > self._patience.stuck:
                yield Problem(
                    kind="stuck",
                    says=f"task/{each.task}: {agent} has worked on it for {span(now - since)}",
                    remedy=_see(each),
                    thing=f"task/{each.task}",
                    agent=agent,
                    since=since,
                )

    def _waiting(self, running: set[str]) -> Op[list[WaitingTasks]]:
        """Tasks that wait for a worker, by set of requirements, and due tasks that still rest."""
        items = yield from self._read(keys.SETS)
        sets = {item.key.removeprefix(keys.SETS): _required(item) for item in items}
        found = [(yield from self._overdue_rests())]
        for name, places in (yield from self._places([keys.NO_REQUIREMENTS, *sets])).items():
            standing = [item for item in places if keys.task_in_index(item.key) not in running]
            since = {
                keys.task_in_index(item.key): decode_ready(item).since or keys.ready_at(item.key)
                for item in standing
            }
            found.append((yield from self._first(since, sets.get(name, ()))))
        return [each for each in found if each is not None]

    def _places(self, sets: Sequence[str]) -> Op[dict[str, Sequence[Item]]]:
        """The tasks that are ready, by their requirements."""
        found: dict[str, Sequence[Item]] = {}
        for start in range(0, len(sets), SETS_AT_ONCE):
            some = sets[start : start + SETS_AT_ONCE]
            pages = {name: Range(keys.ready(name), limit=HEAD) for name in some}
            ranges = (yield Read(*pages.values())).ranges
            found |= {name: ranges[page] for name, page in pages.items()}
        self.partial |= any(len(places) == HEAD for places in found.values())
        return found

    def _overdue_rests(self) -> Op[WaitingTasks | None]:
        """Tasks whose moment has come, and which no worker made ready."""
        page = Range(keys.DUE, limit=HEAD)
        now = self._runner.clock.wall()
        since = {
            keys.task_in_index(item.key): keys.due_at(item.key)
            for item in (yield Read(page)).ranges[page]
            if keys.due_at(item.key) < now
        }
        return (yield from self._first(since, ()))

    def _first(
        self, since: Mapping[str, float], requires: tuple[str, ...]
    ) -> Op[WaitingTasks | None]:
        """The task that has waited longest, of the tasks that are really pending."""
        oldest = sorted(since, key=lambda task: since[task])[:NAMED]
        snapshots = yield from read_snapshots(self._runner, oldest, states_of=())
        for task in oldest:
            if snapshots[task].state == "pending" and not snapshots[task].left:
                return WaitingTasks(
                    task=task, since=since[task], count=len(since), requires=requires
                )
        return None

    def _unattended(
        self, waiting: Sequence[WaitingTasks], here: SessionOverview, now: float
    ) -> Op[list[WaitingTasks]]:
        """The ready tasks that have no worker, where no session has a claim or reports work.

        They are reported after a minute, and at once if a session died and no live session
        reports: a worker that reports ``idle`` has the minute to take them.  A session that is
        merely here is no worker, so it changes nothing.
        """
        late = [each for each in waiting if now - each.since > A_WHILE]
        if len(late) < len(waiting) and not here.able:
            died = here.lapsed or (yield from all_deaths())
            late = list(waiting) if died else late
        return [] if not late or (yield from _awaited()) else late

    def _waiting_long(self, waiting: Sequence[WaitingTasks], now: float) -> Iterator[Problem]:
        for each in waiting:
            if now - each.since > self._patience.waiting:
                able = f" who can {' and '.join(each.requires)}" if each.requires else ""
                yield Problem(
                    kind="waiting",
                    says=f"task/{each.task}: it has waited for a worker{able} for"
                    f" {span(now - each.since)}{_more(each.count - 1, 'task waits', 'tasks wait')}",
                    remedy=f"see 'interlock why {quote(f'task/{each.task}')}'",
                    thing=f"task/{each.task}",
                    since=each.since,
                )

    def _ended(self) -> Op[dict[str, EndedEntry]]:
        """All tasks that failed, died or were cancelled."""
        items = yield from self._read(keys.ENDED)
        return {
            keys.task_in_index(item.key): found
            for item in items
            if (found := readable(decode_ended, item)) is not None
        }

    def _ended_problems(self, ended: Mapping[str, EndedEntry]) -> Op[list[Problem]]:
        """Dead letters, and tasks that failed for good; a cancelled task is no problem."""
        order = sorted(ended, key=lambda task: ended[task].since)
        dead = [task for task in order if ended[task].state == "dead"]
        failed = [task for task in order if ended[task].state == "failed"]
        statuses = yield from looked_up(map(keys.status, (*dead[:NAMED], *failed)))
        known = {task: _status(statuses.get(keys.status(task))) for task in order}
        given_up = [task for task in failed if (each := known[task]) is not None and each.token]
        return [
            *_ended_problems("dead_letter", "died", dead, ended, known),
            *_ended_problems("failed", "failed for good", given_up, ended, known),
        ]

    def _blocked(self, ended: Mapping[str, EndedEntry], now: float) -> Op[list[Problem]]:
        """Tasks that stay blocked, one line for each need that ended without success."""
        if not ended:
            return []
        below: dict[str, list[str]] = {}
        for item in (yield from self._read(keys.HANGS)):
            need, task = keys.hangs_of(item.key)
            below.setdefault(need, []).append(task)
        found = {need: tasks for need, tasks in below.items() if need in ended}
        others = [task for need, tasks in below.items() if need not in ended for task in tasks]
        self.partial |= len(others) > HEAD
        for task, need in (yield from _later_needs(others[:HEAD], ended)):
            found.setdefault(need, []).append(task)
        wanted = [keys.status(task) for need, tasks in found.items() for task in (need, *tasks)]
        items = yield from looked_up(wanted)
        known = {keys.task_of(key): _status(item) for key, item in items.items()}
        return list(_blocked_for_good(found, known, now))

    def _leftover(self, now: float) -> Op[list[Problem]]:
        needs = [keys.task_in_index(item.key) for item in (yield from self._read(keys.TODO))]
        items = yield from looked_up(map(keys.status, needs))
        known = {need: _status(items[keys.status(need)]) for need in needs}
        return [
            Problem(
                kind="leftover",
                says=f"{_named(need)}: it was completed {span(now - each.since)} ago, and not all"
                " that needs it was moved on",
                remedy="run 'interlock maintain'",
                thing="" if need.startswith(BATCH) else f"task/{need}",
                since=each.since,
            )
            for need, each in known.items()
            if each is not None and now - each.since > A_WHILE
        ]

    def _unfinished(self, now: float) -> Op[list[Problem]]:
        """Imports whose client is gone: their tasks are hidden."""
        items = yield from self._read(f"{keys.TASKS}{BATCH}")
        found = {
            keys.task_of(item.key): status
            for item in items
            if item.key.endswith("/status") and (status := _status(item)) is not None
        }
        open_ = [id_ for id_, each in found.items() if each.state in ("blocked", "failed")]
        live = yield from looked_up(map(keys.live, open_))
        left = [found[id_] for id_ in open_ if live[keys.live(id_)] is None]
        return [
            Problem(
                kind="unfinished",
                says=f"an import began {span(now - each.since)} ago and was not finished,"
                " so its tasks are hidden",
                remedy="repeat it: it goes on where it was",
                since=each.since,
            )
            for each in left
            if now - each.since > self._patience.dead_after
        ]


def _awaited() -> Op[bool]:
    """Whether a live session waits for a task by its name."""
    read = [readable(decode_wait, item) for item in (yield from every(keys.WAITS, most=BOUND))]
    waits = [each for each in read if isinstance(each, UnqueuedWait)]
    live = yield from looked_up(each.live for each in waits if each.wants.startswith(keys.TASKS))
    return any(item is not None for item in live.values())


def _stale(lost: Sequence[RunningTask]) -> Iterator[Problem]:
    for each in lost:
        yield Problem(
            kind="stale",
            says=f"task/{each.task}: {each.claim.agent} was lost,"
            " and it is not back in the queue yet",
            remedy="claim it, or run 'interlock maintain'",
            thing=f"task/{each.task}",
            agent=each.claim.agent,
            since=each.claim.since,
        )


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
    wanted = [keys.status(each) for pair in found for each in pair]
    status = yield from looked_up(wanted)
    # A need that is younger than the task has the id of one that was complete and deleted.
    return [pair for pair in found if _is_older(status[keys.status(pair[1])], status, pair[0])]


def _is_older(need: Item | None, items: Mapping[str, Item | None], task: str) -> bool:
    own = items[keys.status(task)]
    return need is not None and own is not None and need.created < own.created


def _blocked_for_good(
    found: Mapping[str, Sequence[str]], known: Mapping[str, TaskStatus | None], now: float
) -> Iterator[Problem]:
    """One line for each need that ended, with its first dependent."""
    still = {
        need: [task for task in tasks if (each := known[task]) and each.state == "blocked"]
        for need, tasks in found.items()
        if (status := known[need]) and status.state in ("failed", "dead")
    }
    needs = [need for need, tasks in still.items() if tasks]
    for need in needs[:LINES]:
        status, first, more = known[need], still[need][0], len(still[need]) - 1
        if status is None:
            continue
        word = "died" if status.state == "dead" else "failed"
        word = "was cancelled" if status.state == "failed" and not status.token else word
        why = status.reason or "no reason was given"
        yield Problem(
            kind="blocked",
            says=f"task/{first}: it needs {need}, which {word} {span(now - status.since)} ago"
            f" ({why}){_more(more, 'task is blocked', 'tasks are blocked')}",
            remedy=f"send the need back: interlock task retry {quote(need)} --agent NAME;"
            f" or give up what needs it: interlock task cancel {quote(first)} --agent NAME",
            thing=f"task/{first}",
            since=status.since,
        )
    if len(needs) > LINES:
        yield Problem(
            kind="blocked",
            says=f"{len(needs) - LINES} more needs ended without success, and block tasks",
            remedy="see 'interlock task list --state blocked'",
        )


def _is_unable(waiting: WaitingTasks, here: SessionOverview, now: float) -> bool:
    """Whether no agent that is here reports that it can do this."""
    known = bool(here.live) or now - waiting.since > A_WHILE
    return known and bool(waiting.requires) and not able_sessions(here.able, waiting.requires)


def _unattended_problems(waiting: Sequence[WaitingTasks]) -> Iterator[Problem]:
    if not waiting:
        return
    first = min(waiting, key=lambda each: each.since)
    more = sum(each.count for each in waiting) - 1
    yield Problem(
        kind="unattended",
        says=f"task/{first.task}: it is ready, and no worker is here"
        f"{_more(more, 'task waits', 'tasks wait')}",
        remedy="start a worker, or take it: interlock task next --agent NAME"
        + (f" --can {_listed(first)}" if first.requires else ""),
        thing=f"task/{first.task}",
        since=first.since,
    )


def _unable(waiting: Sequence[WaitingTasks]) -> Iterator[Problem]:
    for each in waiting:
        yield Problem(
            kind="unable",
            says=f"task/{each.task}: it requires {' and '.join(each.requires)}, and no agent"
            f" that is here reports that it can{_more(each.count - 1, 'task waits', 'tasks wait')}",
            remedy=f"start a worker that can: interlock task next --can {_listed(each)};"
            f" or let one say so: interlock agent status --can {_listed(each)}",
            thing=f"task/{each.task}",
            since=each.since,
        )


def _overdue(running: Sequence[RunningTask], now: float) -> Iterator[Problem]:
    for each in running:
        deadline, agent = each.status.deadline, each.claim.agent
        if deadline is not None and deadline < now:
            yield Problem(
                kind="overdue",
                says=f"task/{each.task}: {agent} works on it, and its deadline was"
                f" {span(now - deadline)} ago",
                remedy=_see(each),
                thing=f"task/{each.task}",
                agent=agent,
                since=deadline,
            )


def _ended_problems(
    kind: Literal["dead_letter", "failed"],
    word: str,
    tasks: Sequence[str],
    ended: Mapping[str, EndedEntry],
    known: Mapping[str, TaskStatus | None],
) -> Iterator[Problem]:
    if not tasks:
        return
    named = [
        f"{task} ({(each.reason if (each := known[task]) else '') or 'no reason was given'})"
        for task in tasks[:NAMED]
    ]
    more = f" and {len(tasks) - NAMED} more" if len(tasks) > NAMED else ""
    yield Problem(
        kind=kind,
        says=f"{len(tasks)} task{'' if len(tasks) == 1 else 's'} {word}: {', '.join(named)}{more}",
        remedy=f"fix the cause, then retry what is still wanted: interlock task retry"
        f" {quote(tasks[0])} --agent NAME",
        thing=f"task/{tasks[0]}",
        since=ended[tasks[0]].since,
    )


def _listed(waiting: WaitingTasks) -> str:
    """The requirements of a set, quoted for the shell."""
    return quote(",".join(waiting.requires))


def _see(each: RunningTask) -> str:
    return (
        f"see what {each.claim.agent} does, or give it up:"
        f" interlock task cancel {quote(each.task)} --agent NAME"
    )


def _more(number: int, one: str, many: str) -> str:
    if number < 1:
        return ""
    return f"; 1 more such {one}" if number == 1 else f"; {number} more such {many}"


def _required(item: Item) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_names(item)))


def _names(item: Item) -> tuple[str, ...]:
    return readable(decode_names, item) or ()


def _status(item: Item | None) -> TaskStatus | None:
    return readable(decode_status, item)


def _named(need: str) -> str:
    return "an import" if need.startswith(BATCH) else f"task/{need}"
