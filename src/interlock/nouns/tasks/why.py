"""Why a task does not make progress: its needs down to the last one, and who can clear that.

A blocked task hangs on one unmet need, which may hang on another.  That chain is followed to its
end, however long it is.  The other unmet needs are counted; the first few are named and followed,
beginning with needs that ended without being complete.  Of all ends the answer names the one first
that is least likely to clear by itself: a dead letter before a task that no worker takes, and that
before a running one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from interlock.core import keys, validate
from interlock.core.validate import quote
from interlock.core.wait import caller_name
from interlock.drivers import Op, Read
from interlock.errors import BadInput, StoreDamaged
from interlock.nouns.agents.session_service import Sessions, decode_session
from interlock.nouns.agents.views import session_overview
from interlock.nouns.grants.decode import decode_pool
from interlock.nouns.grants.why import meanwhile, with_ended
from interlock.nouns.tasks.task import BATCH, TaskOwner
from interlock.nouns.tasks.task_reader import decode_status
from interlock.nouns.tasks.why_state import (
    DAMAGED,
    Able,
    Explanation,
    TaskSnapshot,
    able_sessions,
    explain,
    read_snapshots,
)
from interlock.runtime.reads import KEYS_AT_ONCE, looked_up
from interlock.runtime.runner import Runner
from interlock.runtime.why import NAMED, Need, Why
from interlock.store import Item, Range, Snapshot

if TYPE_CHECKING:
    from interlock.runtime.context import Context

NEEDS_SHOWN = 20
"""The most unmet needs in the answer, with the needs of needs."""
FOLLOWED = 100_000
"""The longest chain that is followed."""
BELOW = 1000
"""The most needs that are read of a task that is itself a need; of the first task, all are."""
COUNTED = 1000
"""The most ready tasks that are counted before a task."""
_ENDED = ("failed", "dead", DAMAGED)
_CHAIN_SHOWN = 4
"""The most tasks of a chain that are named one after the other."""


def task(context: Context, name: str) -> Op[Why]:
    """Explain a task."""
    explanations = TaskExplanations(context.runner, context.sessions)
    found = yield from explanations.task(validate.task_id(name))
    return (yield from with_ended(found, context.runner.clock.wall()))


def plain(context: Context, name: str) -> Op[Why | None]:
    """Explain a plain name if it is that of a task."""
    if (yield from task_or_lock(validate.name(name, "thing"))).startswith("task/"):
        return (yield from task(context, name))
    return None


class TaskExplanations:
    """Explanations, as generators for a driver."""

    def __init__(self, runner: Runner, sessions: Sessions) -> None:
        self._runner = runner
        self._sessions = sessions
        self._able: Able = {}

    def task(self, id_: str) -> Op[Why]:
        """What keeps this task from being done."""
        snapshot = (yield from read_snapshots(self._runner, [id_]))[id_]
        if snapshot.state == "blocked":
            return (yield from self._blocked(snapshot))
        yield from self._read_abilities([snapshot])
        found = self._explain(snapshot)
        return Why(
            thing=f"task/{id_}",
            state=snapshot.state,
            blocked=found.blocked,
            because=found.says + (yield from self._more(snapshot, found)),
            clear=f"claim it: interlock task claim {quote(id_)}"
            if _is_ready(snapshot, found)
            else found.clear,
            by=found.by,
            since=found.since,
            expires_in=found.expires_in,
            meanwhile=(yield from _meanwhile(snapshot)),
        )

    def _read_abilities(self, snapshot: Iterable[TaskSnapshot]) -> Op[None]:
        """Read the abilities of agents, if any of these requires something."""
        if any(each.state == "pending" and each.known_spec.requires for each in snapshot):
            self._able = (yield from session_overview()).able

    def _explain(self, snapshot: TaskSnapshot) -> Explanation:
        return explain(snapshot, self._runner.clock.wall(), self._able)

    def _more(self, snapshot: TaskSnapshot, found: Explanation) -> Op[str]:
        """What is worth saying only of the task that was asked for."""
        if snapshot.claim is not None and snapshot.alive:
            return (yield from self._where(snapshot, snapshot.claim))
        if _is_ready(snapshot, found):
            return (yield from _before(snapshot)) + (yield from self._takers(snapshot))
        return ""

    def _takers(self, snapshot: TaskSnapshot) -> Op[str]:
        """The agents that report that they can do this."""
        fitting = (
            able_sessions(self._able, snapshot.known_spec.requires)
            if snapshot.known_spec.requires
            else []
        )
        items = yield from looked_up(map(keys.session, fitting[:KEYS_AT_ONCE]))
        sessions = [found for item in items.values() if (found := decode_session(item)) is not None]
        names = sorted({session.agent for session in sessions})
        if not names:
            return ""
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return f"; {', '.join(names[:NAMED])}{more} can do it"

    def _where(self, snapshot: TaskSnapshot, claim: TaskOwner) -> Op[str]:
        """The process that works on it."""
        session = yield from self._sessions.find(claim.session)
        where = f", process {session.pid} on {session.host}" if session else ""
        return f" (token {snapshot.token}, attempt {claim.attempt}{where})"

    def _blocked(self, first: TaskSnapshot) -> Op[Why]:
        """Explain a blocked task by the needs at the ends of its tree."""
        tree = _NeedsTree(first)
        yield from self._read_needs(tree)
        yield from self._follow(tree)
        yield from self._read_abilities(tree.snapshots.values())
        leaves = {task: self._explain(tree.snapshots[task]) for task in tree.leaves()}
        worst = max(leaves, key=lambda task: leaves[task].rank)
        found = leaves[worst]
        return Why(
            thing=f"task/{first.task}",
            state="blocked",
            blocked=True,
            because=f"it needs {_chain(tree.path(worst))} ({_state(tree.snapshots[worst])}):"
            f" {found.says}{_cut(tree.snapshots[worst])}{_others(tree.unmet)}",
            clear=found.clear,
            by=found.by,
            since=first.known_status.since,
            expires_in=found.expires_in,
            needs=tuple(_lines(tree, leaves, worst)),
            meanwhile=(yield from _meanwhile(tree.snapshots[worst])),
        )

    def _read_needs(self, tree: _NeedsTree) -> Op[None]:
        """Read unmet needs level by level, up to ``NEEDS_SHOWN``."""
        level = [tree.first]
        while level and tree.left > 0:
            for snapshot in level:
                tree.add(snapshot.task, (yield from self._unmet_needs(tree, snapshot)))
            fresh = [task for task in tree.order if task not in tree.snapshots]
            tree.snapshots |= yield from read_snapshots(self._runner, fresh)
            level = [tree.snapshots[task] for task in fresh if tree.snapshots[task].hangs]

    def _unmet_needs(self, tree: _NeedsTree, snapshot: TaskSnapshot) -> Op[list[str]]:
        """The unmet needs of a blocked task, ended ones first; at least one."""
        status = snapshot.known_status
        if status.on.startswith(BATCH):
            return [status.on]
        most = None if snapshot is tree.first else BELOW
        needs = snapshot.known_spec.needs[max(status.place, 0) :][:most]
        items = yield from looked_up(map(keys.status, (snapshot.task, *needs)))
        own = items[keys.status(snapshot.task)]
        found = {need: _state_of(_meant(items[keys.status(need)], own)) for need in needs}
        unmet = [need for need in needs if found[need] not in ("unknown", "complete")]
        return sorted(unmet, key=lambda need: found[need] not in _ENDED) or [status.on]

    def _follow(self, tree: _NeedsTree) -> Op[None]:
        """Follow the chain that the task hangs on to its end."""
        at = tree.first
        for _ in range(FOLLOWED):
            if not at.hangs:
                return
            need = at.known_status.on
            if need not in tree.snapshots:
                tree.snapshots[need] = yield from self._read_need(need)
                tree.block_on(at.task, need)
            at = tree.snapshots[need]

    def _read_need(self, need: str) -> Op[TaskSnapshot]:
        """Read one task of a chain; only the status of one that hangs on the next."""
        key = keys.status(need)
        item = (yield Read(key))[key]
        if not need.startswith(BATCH) and _state_of(item) == "blocked":
            return TaskSnapshot(task=need, status=decode_status(item))
        return (yield from read_snapshots(self._runner, [need], states_of=("pending",)))[need]


class _NeedsTree:
    """The needs of a task as a tree, each where it was found first."""

    def __init__(self, first: TaskSnapshot) -> None:
        self.first = first
        self.snapshots = {first.task: first}
        self.order: list[str] = []
        self.unmet = 0
        """The number of unmet needs of the first task, shown or not."""
        self._above: dict[str, str] = {}
        self._below: dict[str, list[str]] = {}

    @property
    def left(self) -> int:
        """How many more may be shown."""
        return NEEDS_SHOWN - len(self.order)

    def add(self, task: str, needs: Sequence[str]) -> None:
        """Add needs of a task up to the limit; a need that is in the tree stays where it is."""
        if task == self.first.task:
            self.unmet = len(needs)
        fresh = [need for need in needs[:NAMED] if need not in self._above]
        for need in fresh[: self.left]:
            self.order.append(need)
            self.block_on(task, need)

    def block_on(self, task: str, need: str) -> None:
        """Put one below another."""
        self._above[need] = task
        self._below.setdefault(task, []).append(need)

    def leaves(self) -> list[str]:
        """The needs without needs below them."""
        return [task for task in self.walk() if task not in self._below]

    def path(self, task: str) -> list[str]:
        """The needs from below the first task down to this one."""
        way = []
        while task != self.first.task:
            way.append(task)
            task = self._above[task]
        return way[::-1]

    def walk(self) -> Iterator[str]:
        """All but the first task, each followed by its needs."""
        left = self._below.get(self.first.task, [])[::-1]
        while left:
            task = left.pop()
            yield task
            left.extend(self._below.get(task, [])[::-1])


def _lines(tree: _NeedsTree, leaves: Mapping[str, Explanation], worst: str) -> Iterator[Need]:
    """The shown part of the tree, with the need that the answer names, however deep it is."""
    shown = {*tree.order, worst}
    for task in tree.walk():
        if task in shown:
            snapshot = tree.snapshots[task]
            yield Need(
                task=_name(task),
                state=_state(snapshot),
                says=leaves[task].says
                if task in leaves
                else f"it needs {_name(snapshot.known_status.on)}",
                depth=len(tree.path(task)),
            )


def _is_ready(snapshot: TaskSnapshot, found: Explanation) -> bool:
    return snapshot.state == "pending" and not found.blocked


def _before(snapshot: TaskSnapshot) -> Op[str]:
    """How many ready tasks with the same requirements come before a task."""
    place, page = (
        snapshot.known_spec.ready_key(snapshot.task),
        Range(keys.ready(snapshot.known_spec.requirement_set), limit=COUNTED),
    )
    before = sum(item.key < place for item in (yield Read(page)).ranges[page])
    if not before:
        return ""
    many = "1 other is" if before == 1 else f"{before} others are"
    return f"; {many} before it" if before < COUNTED else f"; {before} or more are before it"


def _meanwhile(snapshot: TaskSnapshot) -> Op[tuple[str, ...]]:
    """The waits of the worker that has the task."""
    claim = snapshot.claim
    if claim is None or not snapshot.alive:
        return ()
    return (
        yield from meanwhile({caller_name(claim.agent, claim.session, claim.caller): claim.agent})
    )


def _chain(path: Sequence[str]) -> str:
    """The chain of needs in words, without the middle of a long one."""
    task_or_lock = [_name(task) for task in path]
    if len(task_or_lock) > _CHAIN_SHOWN:
        between = len(task_or_lock) - _CHAIN_SHOWN + 1
        task_or_lock[_CHAIN_SHOWN - 2 : -1] = [f"{between} others one after the other"]
        return f"{', which needs '.join(task_or_lock[:-1])} and in the end {task_or_lock[-1]}"
    return ", which needs ".join(task_or_lock)


def _cut(snapshot: TaskSnapshot) -> str:
    return f", and so on: {FOLLOWED} tasks were followed" if snapshot.hangs else ""


def _others(unmet: int) -> str:
    return "" if unmet <= 1 else f"; {unmet} of its needs are not complete"


def _meant(need: Item | None, own: Item | None) -> Item | None:
    """The item of a need; None if it was published after the task and only has the same id."""
    later = need is not None and own is not None and need.created > own.created
    return None if later else need


def _state_of(item: Item | None) -> str:
    """The state in an item, ``unknown`` or ``damaged``."""
    try:
        status = decode_status(item)
    except StoreDamaged:
        return DAMAGED
    return "unknown" if status is None else status.state


def _name(task: str) -> str:
    return "an import" if task.startswith(BATCH) else task


def _state(snapshot: TaskSnapshot) -> str:
    return "unfinished" if snapshot.batch else snapshot.state


def task_or_lock(name: str) -> Op[str]:
    """The task of this name, or else the lock; if there are both, the caller has to choose."""
    task, lock = keys.status(name), keys.lock(name)
    snapshot: Snapshot = yield Read(task, lock)
    if snapshot[task] is None or name.startswith(BATCH):
        return f"lock/{name}"
    pool = decode_pool(snapshot[lock], 0)
    if pool is not None and (pool.grants or pool.waiters):
        raise BadInput(f"{name!r} is a task and a lock; ask for 'task/{name}' or for 'lock/{name}'")
    return f"task/{name}"
