"""The list of tasks, by id and in pages, and the view of one task.

Every task that is not complete has an entry in an index, so a store with a million complete tasks
and ten others is read as if it had ten.  Where many are open, the indexes are too long, and all
tasks from an id on are read instead, since most of them match; the cost depends on the size of the
page, not on the number of tasks.  If few of the tasks match, the indexes are read after all, up to
ten thousand entries.

An index says where to look; the answer is the status, read together with its owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import asdict, replace

from interlock.core import keys
from interlock.core.validate import quote
from interlock.drivers import Op, Read
from interlock.errors import StoreDamaged
from interlock.nouns.grants.waiting import expires_in
from interlock.nouns.tasks import task as core
from interlock.nouns.tasks.task import (
    BATCH,
    STATES,
    ListedTask,
    Spec,
    State,
    TaskList,
    TaskOwner,
    TaskResult,
    TaskStatus,
    TaskView,
)
from interlock.nouns.tasks.task_reader import (
    decode_claim,
    decode_due,
    decode_result,
    decode_spec,
    decode_status,
)
from interlock.runtime.reads import looked_up, readable
from interlock.runtime.runner import Runner
from interlock.store import Item, Range, Snapshot

OPEN: frozenset[State] = frozenset(STATES) - {"complete"}

_TASKS_AT_ONCE = 30
_MOST_INDEXED = 10_000
"""The most entries of indexes; above that, tasks are read one after the other."""
_FEW_INDEXED = 64
"""The most entries of indexes at first, in addition to one for each wanted task."""
_SPARSE = 16
"""Items that are read for each wanted task before the indexes are read after all."""
_LEAST_PAGE, _LARGEST_PAGE = 16, 1000
_PAGE_BYTES = 4 * 1024 * 1024
_NO_DATA = Raw(b"null")
# In the order in which tasks go through them: a task that moves while we read is found later.
_INDEXES: tuple[tuple[str, frozenset[State]], ...] = (
    (keys.HANGS, frozenset({"blocked"})),
    (keys.DUE, frozenset({"pending"})),
    (keys.READY, frozenset({"pending"})),
    (keys.CLAIMS, frozenset({"running"})),
    (keys.ENDED, frozenset({"failed", "dead"})),
)


class TaskQuery(Struct, frozen=True, kw_only=True):
    """The conditions of a list; a task must meet all of them."""

    states: frozenset[State] = OPEN
    labels: frozenset[str] = frozenset()
    requires: frozenset[str] = frozenset()
    agent: str = ""
    prefix: str = ""
    after: str = ""
    limit: int = core.LISTED

    def names(self, task: str) -> bool:
        """Whether a task may match, by its id alone."""
        later = not self.after or _order(task) > _order(self.after)
        return later and task.startswith(self.prefix) and not task.startswith(BATCH)

    def keeps(self, row: _TaskRow) -> bool:
        """Whether a task matches."""
        return (
            row.status.state in self.states
            and self.labels.issubset(row.spec.labels)
            and self.requires.issubset(row.spec.requires)
            and self.agent in ("", "" if row.claim is None else row.claim.agent)
        )


class _TaskRow(Struct, frozen=True, kw_only=True):
    """A task as it was read at one revision."""

    task: str
    spec: Spec
    status: TaskStatus
    claim: TaskOwner | None
    token: int | None


class _Liveness(Struct, frozen=True, kw_only=True):
    """Items that tasks refer to: liveness keys, ``due`` entries; and the tasks with lost claims."""

    items: Mapping[str, Item | None]
    lost: frozenset[str]
    now: float


class TaskViews:
    """List and show, as generators for a driver."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def show(self, task: str) -> Op[TaskView | core.NoTask]:
        """One task, with its data and its result."""
        base = yield from self._runner.base()
        result = keys.result(task)
        snapshot: Snapshot = yield Read(*_items(task), result)
        row = _read_row(task, snapshot.items, base)
        if row is None:
            reason = (
                f"there is no task {task}; for a deleted one see"
                f" 'interlock record explain {quote(f'task/{task}')}'"
            )
            return core.NoTask(task=task, state="unknown", reason=reason)
        (listed,) = yield from self._listed([row])
        result_item = decode_result(snapshot[result])
        return TaskView(**asdict(listed), data=_value(row.spec.data), **_outcome(result_item))

    def list(self, query: TaskQuery) -> Op[TaskList]:
        """The tasks that match a query, by id."""
        base = yield from self._runner.base()
        source = _OpenTasks(query) if query.states <= OPEN else _TaskScan(query)
        portion = min(_TASKS_AT_ONCE, query.limit + 1)
        found: list[_TaskRow] = []
        while len(found) <= query.limit and (some := (yield from source.take())) is not None:
            for start in range(0, len(some), portion):
                found += yield from _matching(query, some[start : start + portion], base)
                if len(found) > query.limit:
                    break
        tasks = yield from self._listed(found[: query.limit])
        more = tasks[-1].task if len(found) > query.limit else ""
        return TaskList(tasks=tasks, more=more)

    def _listed(self, tasks: Sequence[_TaskRow]) -> Op[tuple[ListedTask, ...]]:
        """Tasks with their liveness, as a list shows them."""
        due = yield from looked_up(each.status.due for each in tasks if each.status.due)
        rests = [found.rest for item in due.values() if (found := decode_due(item)) and found.rest]
        lives = [key for each in tasks if each.claim is not None for key in each.claim.live]
        live = yield from looked_up([*lives, *rests], times=True)
        gone = [each for each in tasks if each.claim and not all(map(live.get, each.claim.live))]
        lost = yield from _lost(gone)
        liveness = _Liveness(items={**due, **live}, lost=lost, now=self._runner.clock.wall())
        return tuple(_listed_task(each, liveness) for each in tasks)


class _OpenTasks:
    """Tasks that are not complete: by the indexes where these are short, else by a scan.

    A scan with few matches changes to the indexes once, for the tasks after it.
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
        status = readable(decode_status, item)
        named = self._query.names(keys.task_of(item.key))
        return named and status is not None and status.state in self._query.states


def _indexed(query: TaskQuery, most: int, after: str) -> Op[list[str] | None]:
    """The ids that the indexes have after a key of a task, in order; None if they are too many."""
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


def _matching(query: TaskQuery, tasks: Iterable[str], base: int) -> Op[list[_TaskRow]]:
    """The tasks of these that match a query."""
    wanted = [(task, _items(task)) for task in tasks]
    items = (yield Read(*[key for _, each in wanted for key in each])).items if wanted else {}
    read = (_readable(task, items, base) for task, _ in wanted)
    found = [_light(row) for row in read if row is not None and query.keeps(row)]
    batches = {row.status.on for row in found if row.status.on.startswith(BATCH)}
    held = yield from looked_up(keys.status(batch) for batch in batches)
    ended = {key for key, item in held.items() if _complete(item)}
    return [row for row in found if _visible(row.status.on, ended)]


def _light(row: _TaskRow) -> _TaskRow:
    """The task without its data, which would make a long list heavy."""
    return replace(row, spec=replace(row.spec, data=_NO_DATA))


def _visible(on: str, ended: set[str]) -> bool:
    """Whether a task is visible: not while its batch is not complete."""
    return not on.startswith(BATCH) or keys.status(on) in ended


def _complete(item: Item | None) -> bool:
    status = readable(decode_status, item)
    return status is not None and status.state == "complete"


def _lost(gone: Sequence[_TaskRow]) -> Op[frozenset[str]]:
    """The ids of these tasks that still have the claim that is not alive."""
    owners = yield from looked_up(keys.owner(each.task) for each in gone)
    still = {key: readable(decode_claim, item) for key, item in owners.items()}
    return frozenset(each.task for each in gone if still[keys.owner(each.task)] == each.claim)


def _items(task: str) -> tuple[str, ...]:
    return keys.data(task), keys.owner(task), keys.status(task)


def _readable(task: str, items: Mapping[str, Item | None], base: int) -> _TaskRow | None:
    """The task for a list; None if it is damaged, which ``doctor`` reports."""
    try:
        return _read_row(task, items, base)
    except StoreDamaged:
        return None


def _read_row(task: str, items: Mapping[str, Item | None], base: int) -> _TaskRow | None:
    spec, status = decode_spec(items[keys.data(task)]), decode_status(items[keys.status(task)])
    if spec is None or status is None:
        return None
    owner = items[keys.owner(task)]
    token = None if owner is None else base + owner.revision
    return _TaskRow(task=task, spec=spec, status=status, claim=decode_claim(owner), token=token)


def _listed_task(row: _TaskRow, liveness: _Liveness) -> ListedTask:
    spec, status = row.spec, row.status
    return ListedTask(
        task=row.task,
        state=status.state,
        priority=spec.priority,
        attempts=status.attempts,
        retries=spec.retries,
        requires=spec.requires,
        needs=spec.needs,
        labels=spec.labels,
        since=status.since or None,
        on="" if status.on.startswith(BATCH) else status.on,
        retry_in=_retry_in(status, liveness),
        reason=_reason(status),
        by=status.by,
        published_at=spec.at,
        published_by=spec.by,
        not_before=spec.not_before,
        deadline=spec.deadline,
        **_holder(row, liveness),
    )


def _holder(row: _TaskRow, liveness: _Liveness) -> dict[str, Any]:
    claim = row.claim
    if claim is None:
        return {}
    left = expires_in({key: liveness.items[key] for key in claim.live})
    stale = row.task in liveness.lost
    return {
        "holder": claim.agent,
        "session": claim.session,
        "token": row.token,
        "expires_in": None if stale or not left else round(left, 3),
        "stale": stale,
    }


def _retry_in(status: TaskStatus, liveness: _Liveness) -> float | None:
    """Seconds until a task may begin that must wait."""
    if not status.due:
        return None
    due = decode_due(liveness.items[status.due])
    if due is None or not due.rest:
        return round(max(0.0, keys.due_at(status.due) - liveness.now), 3)
    rest = liveness.items[due.rest]
    return 0.0 if rest is None else round(rest.expires_in or 0.0, 3)


def _reason(status: TaskStatus) -> str:
    return core.HIDDEN_REASON if status.on.startswith(BATCH) else status.reason


def _outcome(result_item: TaskResult | None) -> dict[str, Any]:
    return (
        {}
        if result_item is None
        else {"result": _value(result_item.result), "error": _value(result_item.error)}
    )


def _value(raw: Raw | UnsetType) -> Any:  # noqa: ANN401 - any JSON value
    return None if raw is UNSET else msgspec.json.decode(raw)


def _order(task: str) -> str:
    """The sort key that orders ids as the store orders the keys of their tasks."""
    return keys.encode(task) + "/"
