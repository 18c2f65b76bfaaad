"""Tasks as people see them: one of them, or those that somebody asks for, by id and in pages.

Every task that is not complete has a place in an index, so a store with a million complete tasks
and ten others is read as if it had ten.  Where many are open, the indexes say too much and all
tasks from an id on are looked at, since most of them are asked for; what that costs depends on how
many are wanted, not on how many there are.  Should few of those that are met be asked for, the
indexes are read after all, as far as they are no longer than ten thousand.

An index says where to look; what is shown is the status, read together with its owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import asdict, replace

from interlock.core import keys
from interlock.core.validate import quote
from interlock.drivers import Op
from interlock.errors import StoreDamaged
from interlock.nouns.grants.waiting import expires_in
from interlock.nouns.tasks import decode as states
from interlock.nouns.tasks import progress_rules
from interlock.nouns.tasks import task as core
from interlock.nouns.tasks.task import (
    BATCH,
    STATES,
    ListedTask,
    Spec,
    State,
    TaskClaim,
    TaskList,
    TaskResult,
    TaskStatus,
    TaskView,
)
from interlock.runtime.decode import readable
from interlock.runtime.gather import looked_up
from interlock.runtime.runner import Runner
from interlock.runtime.steps import Read
from interlock.store import Item, Range, Snapshot

OPEN: frozenset[State] = frozenset(STATES) - {"complete"}

_TASKS_AT_ONCE = 30
_MOST_INDEXED = 10_000
"""Entries of indexes; above that, tasks are looked at one after the other."""
_FEW_INDEXED = 64
"""The same at first, beside one for each that is wanted."""
_SPARSE = 16
"""Items that are looked at for each task that is wanted before the indexes are read after all."""
_LEAST_PAGE, _LARGEST_PAGE = 16, 1000
_PAGE_BYTES = 4 * 1024 * 1024
_NO_DATA = Raw(b"null")
# In the order in which tasks go through them: who moves on while we read is met later.
_INDEXES: tuple[tuple[str, frozenset[State]], ...] = (
    (keys.HANGS, frozenset({"blocked"})),
    (keys.DUE, frozenset({"pending"})),
    (keys.READY, frozenset({"pending"})),
    (keys.CLAIMS, frozenset({"running"})),
    (keys.ENDED, frozenset({"failed", "dead"})),
)


class TaskQuery(Struct, frozen=True, kw_only=True):
    """Which tasks: all that it names must be so."""

    states: frozenset[State] = OPEN
    labels: frozenset[str] = frozenset()
    requires: frozenset[str] = frozenset()
    agent: str = ""
    prefix: str = ""
    after: str = ""
    limit: int = core.LISTED

    def names(self, task: str) -> bool:
        """Whether this may be one, by its id alone."""
        later = not self.after or _order(task) > _order(self.after)
        return later and task.startswith(self.prefix) and not task.startswith(BATCH)

    def keeps(self, seen: _TaskRead) -> bool:
        """Whether this is one."""
        return (
            seen.status.state in self.states
            and self.labels.issubset(seen.spec.labels)
            and self.requires.issubset(seen.spec.requires)
            and self.agent in ("", "" if seen.claim is None else seen.claim.agent)
        )


class _TaskRead(Struct, frozen=True, kw_only=True):
    """A task as it was read at one moment."""

    task: str
    spec: Spec
    status: TaskStatus
    claim: TaskClaim | None
    token: int | None


class _Liveness(Struct, frozen=True, kw_only=True):
    """What stands beside tasks: liveness keys, times to begin, claims that are lost."""

    items: Mapping[str, Item | None]
    lost: frozenset[str]
    now: float


class TaskViews:
    """What there is to see of tasks, as generators for a driver."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def show(self, task: str) -> Op[TaskView | core.NoTask]:
        """One task, with its data and what came of it."""
        base = yield from self._runner.base()
        result = keys.result(task)
        snapshot: Snapshot = yield Read(*_items(task), result)
        seen = _seen(task, snapshot.items, base)
        if seen is None:
            reason = (
                f"there is no task {task}; for a deleted one see"
                f" 'interlock record explain {quote(f'task/{task}')}'"
            )
            return core.NoTask(task=task, state="unknown", reason=reason)
        (shown,) = yield from self._shown([seen])
        came = states.result(snapshot[result])
        return TaskView(**asdict(shown), data=_value(seen.spec.data), **_outcome(came))

    def list(self, query: TaskQuery) -> Op[TaskList]:
        """Those that a query asks for, by id."""
        base = yield from self._runner.base()
        source = _OpenTasks(query) if query.states <= OPEN else _TaskScan(query)
        portion = min(_TASKS_AT_ONCE, query.limit + 1)
        found: list[_TaskRead] = []
        while len(found) <= query.limit and (some := (yield from source.take())) is not None:
            for start in range(0, len(some), portion):
                found += yield from _matching(query, some[start : start + portion], base)
                if len(found) > query.limit:
                    break
        tasks = yield from self._shown(found[: query.limit])
        more = tasks[-1].task if len(found) > query.limit else ""
        return TaskList(tasks=tasks, more=more)

    def _shown(self, tasks: Sequence[_TaskRead]) -> Op[tuple[ListedTask, ...]]:
        """Tasks with what stands beside them."""
        due = yield from looked_up(each.status.due for each in tasks if each.status.due)
        rests = [found.rest for item in due.values() if (found := states.due(item)) and found.rest]
        lives = [key for each in tasks if each.claim is not None for key in each.claim.live]
        live = yield from looked_up([*lives, *rests], times=True)
        gone = [each for each in tasks if each.claim and not all(map(live.get, each.claim.live))]
        lost = yield from _lost(gone)
        aside = _Liveness(items={**due, **live}, lost=lost, now=self._runner.clock.wall())
        return tuple(_as_shown(each, aside) for each in tasks)


class _OpenTasks:
    """Tasks that are not complete: by the indexes where these are short, else one after the other.

    A scan that meets few of them is left for the indexes once, as far as it has not come.
    """

    def __init__(self, query: TaskQuery) -> None:
        self._query = query
        self._scan = _TaskScan(query)
        self._bounds = [query.limit + _FEW_INDEXED, _MOST_INDEXED]
        self._over = False

    def take(self) -> Op[list[str] | None]:
        """The next ids, which may be none; None at the end."""
        if self._over:
            return None
        first = self._scan.looked == 0
        sparse = self._scan.looked > _SPARSE * (self._query.limit + 1)
        if self._bounds and (first or sparse):
            most = self._bounds.pop(0)
            names = yield from _indexed(self._query, most, self._scan.after)
            if names is not None:
                self._over = True
                return names
        return (yield from self._scan.take())


class _TaskScan:
    """All tasks from an id on, in pages that are smaller where the tasks are larger."""

    def __init__(self, query: TaskQuery) -> None:
        self._query = query
        self._prefix = keys.TASKS + keys.encode(query.prefix)
        self.after = keys.status(query.after) if query.after else ""  # its last key
        self.looked = 0
        self._limit = _LEAST_PAGE
        self._over = False

    def take(self) -> Op[list[str] | None]:
        """The next ids, which may be none; None at the end."""
        if self._over:
            return None
        page = Range(self._prefix, self.after, self._limit)
        items = (yield Read(page)).ranges[page]
        self.looked += len(items)
        if len(items) < page.limit:
            self._over = True
        else:
            self.after = items[-1].key
            fits = len(items) * _PAGE_BYTES // (1 + sum(len(item.value) for item in items))
            self._limit = max(_LEAST_PAGE, min(fits, _LARGEST_PAGE, 4 * self._limit))
        return [keys.task_of(item.key) for item in items if self._fits(item)]

    def _fits(self, item: Item) -> bool:
        if item.key != keys.status(keys.task_of(item.key)):
            return False
        status = readable(states.status, item)
        named = self._query.names(keys.task_of(item.key))
        return named and status is not None and status.state in self._query.states


def _indexed(query: TaskQuery, most: int, after: str) -> Op[list[str] | None]:
    """The ids that the indexes have after a key of a task, in order; None if those are too many."""
    limit = min(most + 1, _LARGEST_PAGE)
    pages = [Range(prefix, limit=limit) for prefix, states in _INDEXES if states & query.states]
    found: set[str] = set()
    read = 0
    while pages:
        ranges = (yield Read(*pages)).ranges
        read += sum(len(ranges[page]) for page in pages)
        found.update(keys.task_in_index(item.key) for page in pages for item in ranges[page])
        full = [page for page in pages if len(ranges[page]) == page.limit]
        if full and read > most:
            return None
        pages = [Range(page.prefix, ranges[page][-1].key, limit) for page in full]
    names = [name for name in filter(query.names, found) if keys.status(name) > after]
    return sorted(names, key=_order)


def _matching(query: TaskQuery, tasks: Iterable[str], base: int) -> Op[list[_TaskRead]]:
    """Of these tasks, those that a query asks for."""
    wanted = [(task, _items(task)) for task in tasks]
    items = (yield Read(*[key for _, each in wanted for key in each])).items if wanted else {}
    read = (_readable(task, items, base) for task, _ in wanted)
    found = [_light(seen) for seen in read if seen is not None and query.keeps(seen)]
    batches = {seen.status.on for seen in found if seen.status.on.startswith(BATCH)}
    held = yield from looked_up(keys.status(batch) for batch in batches)
    ended = {key for key, item in held.items() if _complete(item)}
    return [seen for seen in found if _visible(seen.status.on, ended)]


def _light(seen: _TaskRead) -> _TaskRead:
    """The same without its data, of which a list of many would be heavy."""
    return replace(seen, spec=replace(seen.spec, data=_NO_DATA))


def _visible(on: str, ended: set[str]) -> bool:
    """Whether a task is there for everybody: not while it is in a batch that is not complete."""
    return not on.startswith(BATCH) or keys.status(on) in ended


def _complete(item: Item | None) -> bool:
    status = readable(states.status, item)
    return status is not None and status.state == "complete"


def _lost(gone: Sequence[_TaskRead]) -> Op[frozenset[str]]:
    """Of the tasks whose claim is not alive any more, those that still have it."""
    owners = yield from looked_up(keys.owner(each.task) for each in gone)
    still = {key: readable(states.claim, item) for key, item in owners.items()}
    return frozenset(each.task for each in gone if still[keys.owner(each.task)] == each.claim)


def _items(task: str) -> tuple[str, ...]:
    return keys.data(task), keys.owner(task), keys.status(task)


def _readable(task: str, items: Mapping[str, Item | None], base: int) -> _TaskRead | None:
    """For a list: a task that cannot be read is left to doctor."""
    try:
        return _seen(task, items, base)
    except StoreDamaged:
        return None


def _seen(task: str, items: Mapping[str, Item | None], base: int) -> _TaskRead | None:
    spec, status = states.spec(items[keys.data(task)]), states.status(items[keys.status(task)])
    if spec is None or status is None:
        return None
    owner = items[keys.owner(task)]
    token = None if owner is None else base + owner.revision
    return _TaskRead(task=task, spec=spec, status=status, claim=states.claim(owner), token=token)


def _as_shown(seen: _TaskRead, aside: _Liveness) -> ListedTask:
    spec, status = seen.spec, seen.status
    return ListedTask(
        task=seen.task,
        state=status.state,
        priority=spec.priority,
        attempts=status.attempts,
        retries=spec.retries,
        requires=spec.requires,
        needs=spec.needs,
        labels=spec.labels,
        since=status.since or None,
        on="" if status.on.startswith(BATCH) else status.on,
        retry_in=_retry_in(status, aside),
        reason=_reason(status),
        by=status.by,
        published_at=spec.at,
        published_by=spec.by,
        not_before=spec.not_before,
        deadline=spec.deadline,
        **_holder(seen, aside),
    )


def _holder(seen: _TaskRead, aside: _Liveness) -> dict[str, Any]:
    claim = seen.claim
    if claim is None:
        return {}
    left = expires_in({key: aside.items[key] for key in claim.live})
    stale = seen.task in aside.lost
    return {
        "holder": claim.agent,
        "session": claim.session,
        "token": seen.token,
        "expires_in": None if stale or not left else round(left, 3),
        "stale": stale,
    }


def _retry_in(status: TaskStatus, aside: _Liveness) -> float | None:
    """How long a task that must not begin yet has to wait."""
    if not status.due:
        return None
    due = states.due(aside.items[status.due])
    if due is None or not due.rest:
        return round(max(0.0, progress_rules.due_moment(status.due) - aside.now), 3)
    rest = aside.items[due.rest]
    return 0.0 if rest is None else round(rest.expires_in or 0.0, 3)


def _reason(status: TaskStatus) -> str:
    return progress_rules.HIDDEN_REASON if status.on.startswith(BATCH) else status.reason


def _outcome(came: TaskResult | None) -> dict[str, Any]:
    return {} if came is None else {"result": _value(came.result), "error": _value(came.error)}


def _value(raw: Raw | UnsetType) -> Any:  # noqa: ANN401 - whatever JSON can say
    return None if raw is UNSET else msgspec.json.decode(raw)


def _order(task: str) -> str:
    """What sorts ids as the store sorts the keys of their tasks."""
    return keys.encode(task) + "/"
