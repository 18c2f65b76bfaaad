"""Facts of the store for guards: locks, semaphores, tasks and pipelines, read by a decision.

``store_facts`` runs inside the decision that relies on the facts.  Its commit checks every lock,
semaphore and pipeline that was read, and the liveness of the holder of a lock.  A holder without
liveness does not count: the next caller would end its grant.

Tasks are read as a range, which a commit across a network cannot check: it does not see a task that
is published between the read and the commit.  A complete task stays complete, so nothing else of
that answer can become wrong.  A small range is read whole.  In a large one the indexes find the
tasks that are not complete, and the complete ones are not all counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from interlock.core import codec, keys
from interlock.errors import StoreDamaged
from interlock.nouns.grants.pool import Grant, Pool
from interlock.nouns.grants.pool_reader import decode_pool
from interlock.nouns.guards import condition as c
from interlock.nouns.tasks.task import BATCH, SCHEDULE, Spec, TaskStatus
from interlock.nouns.tasks.task_reader import decode_claim, decode_spec, decode_status
from interlock.runtime.attempt import ReadOp, Unchecked
from interlock.runtime.reads import KEYS_AT_ONCE, every_inside, readable
from interlock.store import Item, Range

SCANNED = 2_000
"""Items of a range of tasks that are read whole; each task has up to four."""
SCANNED_BYTES = 8 << 20
INDEXED = 10_000
"""Entries of the indexes that are read for a larger range."""
PAGE = 100
NAMED = 5
"""Tasks that a fact names, each with its worker."""
_INDEXES = (keys.HANGS, keys.DUE, keys.READY, keys.CLAIMS, keys.ENDED)
"""Every task that is not complete has an entry in one of these."""


class PipelineProgress(Struct, frozen=True, kw_only=True):
    """The fields of a running pipeline that guards ask for."""

    state: str
    phase: str = ""
    since: float | None = None
    asked: bool = False


class _Task(Struct, frozen=True):
    id: str
    spec: Spec
    status: TaskStatus
    worker: str = ""


_PROGRESS = codec.Decoder(PipelineProgress)


def readable_progress(item: Item) -> PipelineProgress | None:
    """The fields of a pipeline; None if it is damaged."""
    return readable(_PROGRESS.read, item)


def store_facts(needs: Collection[c.FactNeed]) -> ReadOp[dict[c.FactNeed, c.Fact]]:
    """The facts for all needs about the store; a damaged item gives a fact that says so."""
    facts: dict[c.FactNeed, c.Fact] = {}
    wanted = {need: key for need in needs if (key := key_of_need(need))}
    items = yield from _read(tuple(wanted.values()))
    pools = {need: _pool(need, items[key]) for need, key in wanted.items()}
    held = [grant for pool in pools.values() if isinstance(pool, Pool) for grant in pool.grants]
    live = yield from _liveness(held)
    for need, found in pools.items():
        if isinstance(found, Pool):
            facts[need] = _pool_fact(need, found, live)
        else:
            facts[need] = _absent(need) if found is None else found
    for need in needs:
        if isinstance(need, c.TasksNeed):
            facts[need] = yield from _tasks_fact(need.filter)
    return facts


def key_of_need(need: c.FactNeed) -> str:
    """The item that answers a need about the store; empty if it is not one item."""
    match need:
        case c.LockNeed():
            return keys.lock(need.lock)
        case c.SemaphoreNeed():
            return keys.semaphore(need.semaphore)
        case c.PipelineNeed():
            return keys.pipeline(need.pipeline)
        case _:
            return ""


def _read(wanted: Sequence[str], *, checked: bool = True) -> ReadOp[dict[str, Item | None]]:
    items: dict[str, Item | None] = {}
    for start in range(0, len(wanted), KEYS_AT_ONCE):
        some = tuple(wanted[start : start + KEYS_AT_ONCE])
        items |= (yield some if checked else Unchecked(some)).items
    return items


def _pool(need: c.FactNeed, item: Item | None) -> Pool | c.Fact | None:
    """The pool of a lock or semaphore, or the fact of anything else that exists."""
    if item is None:
        return None
    try:
        if isinstance(need, c.PipelineNeed):
            found = _PROGRESS.read(item)
            return c.PipelineFact(phase=found.phase, state=found.state, since=found.since)
        return decode_pool(item)
    except StoreDamaged as error:
        return c.NoFact(says=str(error))


def _absent(need: c.FactNeed) -> c.Fact:
    if isinstance(need, c.LockNeed):
        return c.LockFact()
    return c.SemaphoreFact() if isinstance(need, c.SemaphoreNeed) else c.PipelineFact()


def _liveness(grants: Iterable[Grant]) -> ReadOp[dict[str, bool]]:
    """Which liveness keys exist; the commit checks those that do."""
    wanted = tuple(dict.fromkeys(key for grant in grants for key in grant.live))
    items = yield from _read(wanted, checked=False)
    alive = tuple(key for key, item in items.items() if item is not None)
    if alive:
        items |= yield from _read(alive)
    return {key: item is not None for key, item in items.items()}


def _pool_fact(need: c.FactNeed, pool: Pool, live: Mapping[str, bool]) -> c.Fact:
    holding = [grant for grant in pool.grants if all(live[key] for key in grant.live)]
    if isinstance(need, c.LockNeed):
        if not holding:
            return c.LockFact()
        return c.LockFact(holder=holding[0].agent, since=holding[0].since)
    free = pool.capacity - sum(grant.weight for grant in holding)
    holders = tuple(dict.fromkeys(grant.agent for grant in holding))
    return c.SemaphoreFact(capacity=pool.capacity, available=max(0, free), holders=holders)


# Tasks.


def _tasks_fact(chosen: c.TaskFilter) -> ReadOp[c.Fact]:
    try:
        items = yield from _scan(keys.TASKS + keys.encode(chosen.prefix))
        if items is not None:
            return _fact([task for task in _grouped(items) if _matches(chosen, task)])
        return (yield from _large_fact(chosen))
    except StoreDamaged as error:
        return c.NoFact(says=str(error))


def _scan(prefix: str) -> ReadOp[list[Item] | None]:
    """All items of a range; None if it is large."""
    items: list[Item] = []
    page = Range(prefix, limit=PAGE)
    while True:
        some = (yield (page,)).ranges[page]
        items += some
        if len(some) < PAGE:
            return items
        if len(items) >= SCANNED or sum(len(item.value) for item in items) > SCANNED_BYTES:
            return None
        page = Range(prefix, some[-1].key, PAGE)


def _grouped(items: Iterable[Item]) -> Iterator[_Task]:
    """The tasks of these items, without the batches of imports."""
    parts: dict[str, dict[str, Item]] = {}
    for item in items:
        parts.setdefault(keys.task_of(item.key), {})[item.key] = item
    for id_, found in parts.items():
        status, spec = found.get(keys.status(id_)), found.get(keys.data(id_))
        task = _task(id_, status, spec, found.get(keys.owner(id_)))
        if task is not None:
            yield task


def _task(id_: str, status: Item | None, spec: Item | None, owner: Item | None) -> _Task | None:
    known, read = decode_status(status), decode_spec(spec)
    if id_.startswith(BATCH) or known is None or read is None:
        return None
    claim = decode_claim(owner)
    return _Task(id_, read, known, "" if claim is None else claim.agent)


def _matches(chosen: c.TaskFilter, task: _Task) -> bool:
    return (
        task.id.startswith(chosen.prefix)
        and (
            task.status.state != "dropped"
            if not chosen.state
            else chosen.state == task.status.state
        )
        and (not chosen.requires or chosen.requires in task.spec.requires)
        and (not chosen.needs or chosen.needs in task.spec.needs)
        and (not chosen.label or chosen.label in task.spec.labels)
    )


def _fact(tasks: list[_Task], *, partial: bool = False, uncounted: bool = False) -> c.TasksFact:
    unfinished = [task for task in tasks if task.status.state != "complete"]
    return c.TasksFact(
        states=dict(Counter(task.status.state for task in tasks)),
        open=tuple((task.id, task.status.state, task.worker) for task in unfinished[:NAMED]),
        partial=partial,
        uncounted=uncounted,
        last={task.status.state: task.id for task in tasks},
    )


def _large_fact(chosen: c.TaskFilter) -> ReadOp[c.TasksFact]:
    """The tasks that are not complete, found by the indexes, and one that is, if there is one."""
    entries = yield from every_inside(*_INDEXES, most=INDEXED + 1)
    named = dict.fromkeys(keys.task_in_index(item.key) for item in entries)
    some = [
        id_
        for id_ in named
        if id_.startswith(chosen.prefix) and not id_.startswith((BATCH, SCHEDULE))
    ]
    parts = [part(id_) for id_ in some for part in (keys.data, keys.owner, keys.status)]
    items = yield from _read(parts, checked=False)
    unfinished = [
        task
        for task in _grouped(item for item in items.values() if item is not None)
        if _matches(chosen, task)
    ]
    complete = yield from _first_complete(chosen)
    found = [*unfinished, *complete]
    return _fact(found, partial=len(entries) > INDEXED, uncounted=bool(complete))


def _first_complete(chosen: c.TaskFilter) -> ReadOp[list[_Task]]:
    """One complete task that the filter selects, among the first ones of its range."""
    if chosen.state not in ("", "complete"):
        return []
    prefix = keys.TASKS + keys.encode(chosen.prefix)
    page = Range(prefix, limit=PAGE)
    for _ in range(SCANNED // PAGE):
        some = (yield (page,)).ranges[page]
        for task in _grouped(some):
            if task.status.state == "complete" and _matches(chosen, task):
                return [task]
        if len(some) < PAGE:
            break
        page = Range(prefix, some[-1].key, PAGE)
    return []
