"""What list, show, why and health say of tasks: one read model, the list in pages, and one task.

A task is read with its owner at one revision (``TaskSnapshot``); liveness is read after that, for
the tasks that are shown.

Every task that is not complete has an entry in an index, so a store with a million complete tasks
and ten others is read as if it had ten.  Where many are open, the indexes are too long, and all
tasks from an id on are read instead, since most of them match; the cost depends on the size of the
page, not on the number of tasks.  If few of the tasks match, the indexes are read after all, up to
ten thousand entries.  An index says where to look; the answer is the status.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import asdict, replace

from interlock.core import keys
from interlock.core.safe_text import foreign
from interlock.core.validate import command, quote
from interlock.errors import StoreDamaged
from interlock.nouns.tasks import task as task_types
from interlock.nouns.tasks import task_outcomes
from interlock.nouns.tasks.task import (
    BATCH,
    SCHEDULE,
    STATES,
    UNSUCCESSFUL,
    Spec,
    State,
    TaskOwner,
    TaskStatus,
)
from interlock.nouns.tasks.task_reader import (
    decode_claim,
    decode_due,
    decode_result,
    decode_spec,
    decode_status,
)
from interlock.nouns.tasks.task_view import ListedTask, TaskList, TaskNote, TaskView
from interlock.runtime.reads import FIRST_PAGE, MOST_PAGE, Pages, looked_up, readable
from interlock.runtime.runner import Runner
from interlock.steps import Op, Read
from interlock.store import Item, Range

DAMAGED = "damaged"
OPEN: frozenset[State] = frozenset(STATES) - {"complete", "dropped"}
"""The states of the tasks that a list shows unless others are asked for."""
INDEXED: frozenset[State] = frozenset(STATES) - {"complete"}
"""The states whose tasks have an entry in an index."""

_TASKS_AT_ONCE = 30
_MOST_INDEXED = 10_000
"""The most entries of indexes; above that, tasks are read one after the other."""
_FEW_INDEXED = 64
"""The most entries of indexes at first, in addition to one for each wanted task."""
_SPARSE = 16
"""Items that are read for each wanted task before the indexes are read after all."""
_NO_DATA = Raw(b"null")
# In the order in which tasks go through them: a task that moves while we read is found later.
_INDEXES: tuple[tuple[str, frozenset[State]], ...] = (
    (keys.HANGS, frozenset({"blocked"})),
    (keys.DUE, frozenset({"pending"})),
    (keys.READY, frozenset({"pending"})),
    (keys.CLAIMS, frozenset({"running"})),
    (keys.ENDED, frozenset(UNSUCCESSFUL)),
)


class TaskSnapshot(Struct, frozen=True, kw_only=True):
    """A task, with the liveness that its state makes relevant.

    ``written`` is the revision of its data, where they were read.
    ``left`` is the remaining life of its claim, or the time until it may begin.  ``damage`` says
    which item cannot be read.
    """

    task: str
    status: TaskStatus | None = None
    spec: Spec | None = None
    claim: TaskOwner | None = None
    token: int | None = None
    written: int = 0
    alive: bool = False
    left: float | None = None
    damage: str = ""

    @property
    def state(self) -> str:
        """Its state, ``damaged`` or ``unknown``."""
        if self.damage:
            return DAMAGED
        return "unknown" if self.status is None else self.status.state

    @property
    def known_status(self) -> TaskStatus:
        """The status of a task that exists."""
        assert self.status is not None  # noqa: S101 - callers have looked at the state
        return self.status

    @property
    def known_spec(self) -> Spec:
        """The data of a task, where they were read."""
        assert self.spec is not None  # noqa: S101 - written with the status, and never changed
        return self.spec

    @property
    def hangs(self) -> bool:
        """Whether it hangs on another task."""
        return self.state == "blocked" and not self.batch and not self.known_status.guard

    @property
    def batch(self) -> bool:
        """Whether this is the batch of an import."""
        return self.task.startswith(BATCH)


def read_tasks(
    runner: Runner, tasks: Iterable[str], data_of: Collection[str] = STATES
) -> Op[list[TaskSnapshot]]:
    """Read these tasks without their liveness; the data only of those in the states ``data_of``."""
    base = yield from runner.base()
    named = list(dict.fromkeys(tasks))
    parts = (keys.data, keys.owner, keys.status) if data_of else (keys.owner, keys.status)
    found = []
    for start in range(0, len(named), _TASKS_AT_ONCE):
        some = named[start : start + _TASKS_AT_ONCE]
        items = (yield Read(*[part(task) for task in some for part in parts])).items
        found += [_snapshot(task, items, base, data_of) for task in some]
    return found


def _snapshot(
    task: str, items: Mapping[str, Item | None], base: int, data_of: Collection[str]
) -> TaskSnapshot:
    owner = items[keys.owner(task)]
    try:
        status = decode_status(items[keys.status(task)])
        wanted = status is not None and status.state in data_of
        data = items[keys.data(task)] if wanted else None
        return TaskSnapshot(
            task=task,
            status=status,
            spec=decode_spec(data),
            written=0 if data is None else data.revision,
            claim=decode_claim(owner),
            token=None if owner is None else base + owner.revision,
        )
    except StoreDamaged as error:
        return TaskSnapshot(task=task, damage=str(error))


def with_liveness(runner: Runner, tasks: Sequence[TaskSnapshot]) -> Op[list[TaskSnapshot]]:
    """The tasks with the liveness of their claims and of their rests."""
    dues = yield from looked_up(
        each.status.due for each in tasks if each.status and each.status.due
    )
    rests = {key: due.rest for key, item in dues.items() if (due := decode_due(item)) and due.rest}
    lives = [key for each in tasks if each.claim is not None for key in each.claim.live]
    live = yield from looked_up([*lives, *rests.values()], times=True)
    now = runner.clock.wall()
    return [_with_liveness(each, rests, live, now) for each in tasks]


def _with_liveness(
    task: TaskSnapshot, rests: Mapping[str, str], live: Mapping[str, Item | None], now: float
) -> TaskSnapshot:
    due = "" if task.status is None else task.status.due
    if due in rests:
        rest = live[rests[due]]
        return replace(task, left=rest.expires_in if rest else 0.0)
    if due:
        return replace(task, left=max(0.0, keys.due_at(due) - now))
    if task.claim is None:
        return task
    items = [live[key] for key in task.claim.live]
    return replace(task, alive=None not in items, left=_shortest_life(items))


def _shortest_life(items: Iterable[Item | None]) -> float | None:
    return min([i.life for i in items if i and i.life is not None], default=None)


def read_snapshots(
    runner: Runner, tasks: Iterable[str], data_of: Collection[str] = ("blocked", "pending")
) -> Op[dict[str, TaskSnapshot]]:
    """Read these tasks with their liveness; the data only of those in the states ``data_of``."""
    found = yield from read_tasks(runner, tasks, data_of)
    return {each.task: each for each in (yield from with_liveness(runner, found))}


class TaskQuery(Struct, frozen=True, kw_only=True):
    """The conditions of a list; a task must meet all of them."""

    states: frozenset[State] = OPEN
    labels: frozenset[str] = frozenset()
    requires: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()
    words: tuple[str, ...] = ()
    agent: str = ""
    prefix: str = ""
    after: str = ""
    limit: int = task_types.LISTED

    def names(self, task: str) -> bool:
        """Whether a task may match, by its id alone."""
        later = not self.after or self.order(task) > self.order(self.after)
        return later and task.startswith(self.prefix) and not task.startswith((BATCH, SCHEDULE))

    def order(self, task: str) -> str:
        """The sort key that orders ids as the store orders the keys that are read."""
        return keys.encode(task) if self.labels else keys.encode(task) + "/"

    def keeps(self, task: TaskSnapshot) -> bool:
        """Whether a task matches; a damaged one is left to ``doctor``."""
        return (
            task.status is not None
            and task.spec is not None
            and task.status.state in self.states
            and self.labels.issubset(task.spec.labels)
            and self.requires.issubset(task.spec.requires)
            and self.needs.issubset(task.spec.needs)
            and self._says(task.spec.title)
            and self.agent in ("", "" if task.claim is None else task.claim.agent)
        )

    def _says(self, title: str) -> bool:
        """Whether all words are in a title."""
        folded = title.casefold() if self.words else ""
        return all(word in folded for word in self.words)


def show(runner: Runner, task: str) -> Op[TaskView | task_outcomes.NoTask]:
    """One task, with its data and its result."""
    base, result = (yield from runner.base()), keys.result(task)
    noted = keys.notes(task)
    snapshot = yield Read(keys.data(task), keys.owner(task), keys.status(task), result, noted)
    found = _snapshot(task, snapshot.items, base, STATES)
    if found.damage:
        raise StoreDamaged(found.damage)
    if found.status is None or found.spec is None:
        reason = (
            f"there is no task {foreign(task)}; for a deleted one see"
            f" {command('interlock record explain ' + quote(f'task/{task}'))}"
        )
        return task_outcomes.NoTask(task=task, state="unknown", reason=reason)
    (listed,) = yield from _listed(runner, [found])
    came = decode_result(snapshot[result])
    notes: tuple[TaskNote, ...] = ()
    if snapshot[noted] is not None:
        from interlock.nouns.tasks.notes import last_notes

        notes = yield from last_notes(task, snapshot[noted])
    return TaskView(
        **asdict(listed),
        text=found.spec.text,
        notes=notes,
        earlier_notes=notes[0].note - 1 if notes else 0,
        data=_value(found.spec.data),
        result=None if came is None else _value(came.result),
        error=None if came is None else _value(came.error),
    )


def list_tasks(runner: Runner, query: TaskQuery) -> Op[TaskList]:
    """The tasks that match a query, by id."""
    scan = (yield from _label_scan(query)) if query.labels else _TaskScan(query)
    source = _OpenTasks(query, scan) if query.states <= INDEXED else scan
    portion = min(_TASKS_AT_ONCE, query.limit + 1)
    found: list[TaskSnapshot] = []
    while len(found) <= query.limit and (some := (yield from source.take())) is not None:
        for start in range(0, len(some), portion):
            found += yield from _matching(runner, query, some[start : start + portion])
            if len(found) > query.limit:
                break
    tasks = yield from _listed(runner, found[: query.limit])
    more = tasks[-1].task if len(found) > query.limit else ""
    return TaskList(tasks=tasks, more=more)


def _listed(runner: Runner, tasks: Sequence[TaskSnapshot]) -> Op[tuple[ListedTask, ...]]:
    """Tasks with their liveness; a claim is stale if it is not alive, and still there."""
    found = yield from with_liveness(runner, tasks)
    gone = {each.task: each.claim for each in found if each.claim and not each.alive}
    owners = yield from looked_up(map(keys.owner, gone))
    stale = {
        task
        for task, claim in gone.items()
        if readable(decode_claim, owners[keys.owner(task)]) == claim
    }
    listed = tuple(_listed_task(each, stale=each.task in stale) for each in found)
    return (yield from _with_gates(listed)) if any(each.guard for each in listed) else listed


def _with_gates(tasks: Sequence[ListedTask]) -> Op[tuple[ListedTask, ...]]:
    """Tasks with what the guards say that keep some of them."""
    from interlock.nouns.guards.gates import decode_gate

    own = {each.task: keys.gate(f"task/{each.task}") for each in tasks if each.guard}
    items = yield from looked_up(own.values())
    gates = {task: readable(decode_gate, items[key]) for task, key in own.items()}
    return tuple(
        replace(each, leaf=gate.leaf, reason=gate.reason)
        if (gate := gates.get(each.task)) is not None and gate.guard == each.guard
        else each
        for each in tasks
    )


def _matching(runner: Runner, query: TaskQuery, tasks: Iterable[str]) -> Op[list[TaskSnapshot]]:
    """The tasks of these that match a query, without those of a batch that is not complete.

    Their data and texts are dropped, since they would make a long list heavy.
    """
    read = yield from read_tasks(runner, tasks)
    found = [
        replace(each, spec=replace(each.known_spec, data=_NO_DATA, text=""))
        for each in read
        if query.keeps(each)
    ]
    batches = {each.known_status.on for each in found if _hangs_on_batch(each)}
    items = yield from looked_up(map(keys.status, batches))
    statuses = {key: readable(decode_status, item) for key, item in items.items()}
    ended = {key for key, status in statuses.items() if status and status.state == "complete"}
    return [
        each
        for each in found
        if not _hangs_on_batch(each) or keys.status(each.known_status.on) in ended
    ]


def _listed_task(task: TaskSnapshot, *, stale: bool) -> ListedTask:
    spec, status, claim = task.known_spec, task.known_status, task.claim
    left = None if task.left is None else round(task.left, 3)
    listed = ListedTask(
        task=task.task,
        state=status.state,
        title=spec.title,
        priority=spec.priority,
        attempts=status.attempts,
        retries=spec.retries,
        requires=spec.requires,
        needs=spec.needs,
        labels=spec.labels,
        guards=spec.guards,
        evidence=spec.evidence,
        since=status.since or None,
        on="" if _hangs_on_batch(task) else status.on,
        guard=status.guard,
        retry_in=left if status.due else None,
        reason=task_types.HIDDEN_REASON if _hangs_on_batch(task) else status.reason,
        by=status.by,
        published_at=spec.at,
        published_by=spec.by,
        not_before=spec.not_before,
        deadline=spec.deadline,
        plan=spec.plan,
        schedule=spec.schedule,
    )
    if claim is None:
        return listed
    return replace(
        listed,
        holder=claim.agent,
        session=claim.session,
        token=task.token,
        expires_in=None if stale or not task.left else left,
        stale=stale,
        progress=status.progress,
        doing=status.doing,
    )


def _hangs_on_batch(task: TaskSnapshot) -> bool:
    return task.known_status.on.startswith(BATCH)


def _value(raw: Raw | UnsetType) -> Any:  # noqa: ANN401 - any JSON value
    return None if raw is UNSET else msgspec.json.decode(raw)


class _OpenTasks:
    """Tasks that are not complete: by the indexes where these are short, else by a scan.

    A scan with few matches changes to the indexes once, for the tasks after it.  A scan of a label
    has few others at first.
    """

    def __init__(self, query: TaskQuery, scan: _TaskScan) -> None:
        self._query = query
        self._scan = scan
        few = () if query.labels else (query.limit + _FEW_INDEXED,)
        self._bounds = [*few, _MOST_INDEXED]
        self._over = False

    def take(self) -> Op[list[str] | None]:
        """The next ids, which may be none; None at the end."""
        if self._over:
            return None
        pages = self._scan.pages
        first = pages.items == 0 and not self._query.labels
        sparse = pages.items > _SPARSE * (self._query.limit + 1)
        if self._bounds and (first or sparse):
            most = self._bounds.pop(0)
            names = yield from _indexed(self._query, most)
            if names is not None:
                self._over = True
                return [name for name in names if self._scan.key(name) > pages.after]
        return (yield from self._scan.take())


class _TaskScan:
    """All tasks from an id on."""

    def __init__(self, query: TaskQuery) -> None:
        self._query = query
        after = self.key(query.after) if query.after else ""
        self.pages = Pages(self.folder() + keys.encode(query.prefix), after, self.limit())

    def folder(self) -> str:
        """The folder of the keys that are read."""
        return keys.TASKS

    def key(self, task: str) -> str:
        """The last one of these keys for a task."""
        return keys.status(task)

    def limit(self) -> int:
        """How many items to read at first."""
        return FIRST_PAGE

    def take(self) -> Op[list[str] | None]:
        """The next ids, which may be none; None at the end."""
        if self.pages.finished:
            return None
        items = yield from self.pages.read()
        return [keys.task_of(item.key) for item in items if self._fits(item)]

    def _fits(self, item: Item) -> bool:
        if item.key != keys.status(keys.task_of(item.key)):
            return False
        status = readable(decode_status, item)
        named = self._query.names(keys.task_of(item.key))
        return named and status is not None and status.state in self._query.states


class _LabelScan(_TaskScan):
    """The tasks under one of the wanted labels."""

    def __init__(self, query: TaskQuery, label: str) -> None:
        self._label = label
        super().__init__(query)

    def folder(self) -> str:
        """The folder of the label."""
        return keys.label(self._label)

    def key(self, task: str) -> str:
        """The task under the label."""
        return keys.label(self._label, task)

    def limit(self) -> int:
        """Mostly all tasks match, and one shows that there are more."""
        return min(self._query.limit + 1, MOST_PAGE)

    def take(self) -> Op[list[str] | None]:
        """The next ids, which may be none; None at the end."""
        if self.pages.finished:
            return None
        items = yield from self.pages.read()
        return [*filter(self._query.names, map(keys.task_in_index, [item.key for item in items]))]


def _label_scan(query: TaskQuery) -> Op[_LabelScan]:
    """A scan of the wanted label that the fewest tasks have, as far as a short look shows that."""
    labels = sorted(query.labels)
    if len(labels) == 1:
        return _LabelScan(query, labels[0])
    pages = {label: Range(keys.label(label), limit=_FEW_INDEXED) for label in labels}
    ranges = (yield Read(*pages.values())).ranges
    return _LabelScan(query, min(labels, key=lambda label: len(ranges[pages[label]])))


def _indexed(query: TaskQuery, most: int) -> Op[list[str] | None]:
    """The ids that the indexes have, in order; None if they are too many."""
    limit = min(most + 1, MOST_PAGE)
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
    return sorted(filter(query.names, found), key=query.order)
