"""Why a task does not go on: down to what it needs in the end, and who can clear that.

A blocked task hangs on one unmet need, which may hang on another.  That chain is followed to its
leaf, however long it is.  The other unmet needs are counted; as many as a person would read are
named and followed, first of all those that ended without being complete.  Of all leaves the one is
told first that will not clear by itself: a dead letter before a task that nobody takes, and that
before one that somebody works on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from interlock.core import keys
from interlock.core.validate import shell
from interlock.drivers import Op
from interlock.errors import StoreDamaged
from interlock.nouns.agents.reports import able
from interlock.nouns.agents.service import Sessions
from interlock.nouns.grants.pool import caller
from interlock.nouns.tasks import decode
from interlock.nouns.tasks.task import BATCH, TaskClaim
from interlock.nouns.tasks.why_state import (
    DAMAGED,
    Able,
    Explanation,
    TaskSnapshot,
    able_sessions,
    explain,
    read_snapshots,
)
from interlock.runtime import decode as pools
from interlock.runtime.gather import KEYS_AT_ONCE, looked_up
from interlock.runtime.id_prefix import named
from interlock.runtime.runner import Runner
from interlock.runtime.steps import Read
from interlock.runtime.why import NAMED, Explain, Need, Why, meanwhile
from interlock.store import Item, Range

TOLD = 20
"""So many unmet needs are told, with those of them below each other."""
FOLLOWED = 100_000
"""So far down a chain is followed."""
BELOW = 1000
"""So many needs are looked at of a task that is itself only a need; of the first one, all."""
COUNTED = 1000
"""So many are counted that come before a task."""
_ENDED = ("failed", "dead", DAMAGED)
_SHOWN = 4
"""So many tasks of a chain are named one after the other."""


class TaskExplanations:
    """Explanations, as generators for a driver."""

    def __init__(self, runner: Runner, sessions: Sessions) -> None:
        self._runner = runner
        self._sessions = sessions
        self._able: Able = {}

    def task(self, id_: str) -> Op[Why]:
        """What keeps this task from being done."""
        seen = (yield from read_snapshots(self._runner, [id_]))[id_]
        if seen.state == "blocked":
            return (yield from self._blocked(seen))
        yield from self._ask_around([seen])
        found = self._leaf(seen)
        return Why(
            thing=f"task/{id_}",
            state=seen.state,
            blocked=found.blocked,
            because=found.says + (yield from self._more(seen, found)),
            clear=f"claim it: interlock task claim {shell(id_)}"
            if _is_ready(seen, found)
            else found.clear,
            by=found.by,
            since=found.since,
            expires_in=found.expires_in,
            meanwhile=(yield from _meanwhile(seen)),
        )

    def either(self, name: str, explain: Explain) -> Op[Why]:
        """What is in the way of whatever this name stands for."""
        if (yield from named(name)).startswith("task/"):
            return (yield from self.task(name))
        return (yield from explain.lock(name, besides=", and there is no task of that name"))

    def _ask_around(self, seen: Iterable[TaskSnapshot]) -> Op[None]:
        """Who can do what, if any of these requires something."""
        if any(each.state == "pending" and each.what.requires for each in seen):
            self._able = yield from able()

    def _leaf(self, seen: TaskSnapshot) -> Explanation:
        return explain(seen, self._runner.clock.wall(), self._able)

    def _more(self, seen: TaskSnapshot, found: Explanation) -> Op[str]:
        """What only whoever asks for this very task wants to know."""
        if seen.claim is not None and seen.alive:
            return (yield from self._where(seen, seen.claim))
        if _is_ready(seen, found):
            return (yield from _before(seen)) + (yield from self._takers(seen))
        return ""

    def _takers(self, seen: TaskSnapshot) -> Op[str]:
        """Who said that it can do this."""
        fitting = able_sessions(self._able, seen.what.requires) if seen.what.requires else []
        items = yield from looked_up(map(keys.session, fitting[:KEYS_AT_ONCE]))
        sessions = [found for item in items.values() if (found := pools.session(item)) is not None]
        names = sorted({session.agent for session in sessions})
        if not names:
            return ""
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return f"; {', '.join(names[:NAMED])}{more} can do it"

    def _where(self, seen: TaskSnapshot, claim: TaskClaim) -> Op[str]:
        """The process that works on it."""
        session = yield from self._sessions.find(claim.session)
        where = f", process {session.pid} on {session.host}" if session else ""
        return f" (token {seen.token}, attempt {claim.attempt}{where})"

    def _blocked(self, first: TaskSnapshot) -> Op[Why]:
        """Down to the leaves."""
        tree = _NeedsTree(first)
        yield from self._grow(tree)
        yield from self._follow(tree)
        yield from self._ask_around(tree.seen.values())
        leaves = {task: self._leaf(tree.seen[task]) for task in tree.leaves()}
        worst = max(leaves, key=lambda task: leaves[task].rank)
        found = leaves[worst]
        return Why(
            thing=f"task/{first.task}",
            state="blocked",
            blocked=True,
            because=f"it needs {_chain(tree.path(worst))} ({_state(tree.seen[worst])}):"
            f" {found.says}{_cut(tree.seen[worst])}{_others(tree.unmet)}",
            clear=found.clear,
            by=found.by,
            since=first.how.since,
            expires_in=found.expires_in,
            needs=tuple(_lines(tree, leaves, worst)),
            meanwhile=(yield from _meanwhile(tree.seen[worst])),
        )

    def _grow(self, tree: _NeedsTree) -> Op[None]:
        """All unmet needs, level by level, as far as a person would read."""
        level = [tree.first]
        while level and tree.room > 0:
            for seen in level:
                tree.add(seen.task, (yield from self._unmet(tree, seen)))
            fresh = [task for task in tree.order if task not in tree.seen]
            tree.seen |= yield from read_snapshots(self._runner, fresh)
            level = [tree.seen[task] for task in fresh if tree.seen[task].hangs]

    def _unmet(self, tree: _NeedsTree, seen: TaskSnapshot) -> Op[list[str]]:
        """The needs of a blocked task that are not complete, the worst first; at least one."""
        status = seen.how
        if status.on.startswith(BATCH):
            return [status.on]
        most = None if seen is tree.first else BELOW
        needs = seen.what.needs[max(status.place, 0) :][:most]
        items = yield from looked_up(map(keys.status, (seen.task, *needs)))
        own = items[keys.status(seen.task)]
        found = {need: _state_of(_meant(items[keys.status(need)], own)) for need in needs}
        unmet = [need for need in needs if found[need] not in ("unknown", "complete")]
        return sorted(unmet, key=lambda need: found[need] not in _ENDED) or [status.on]

    def _follow(self, tree: _NeedsTree) -> Op[None]:
        """The chain that the task itself hangs on, to its leaf."""
        at = tree.first
        for _ in range(FOLLOWED):
            if not at.hangs:
                return
            need = at.how.on
            if need not in tree.seen:
                tree.seen[need] = yield from self._next(need)
                tree.block_on(at.task, need)
            at = tree.seen[need]

    def _next(self, need: str) -> Op[TaskSnapshot]:
        """One task of a chain; where that goes on, its status is all that matters."""
        key = keys.status(need)
        item = (yield Read(key))[key]
        if not need.startswith(BATCH) and _state_of(item) == "blocked":
            return TaskSnapshot(task=need, status=decode.status(item))
        return (yield from read_snapshots(self._runner, [need], states_of=("pending",)))[need]


class _NeedsTree:
    """Tasks below each other, each where it was first met."""

    def __init__(self, first: TaskSnapshot) -> None:
        self.first = first
        self.seen = {first.task: first}
        self.order: list[str] = []
        self.unmet = 0
        """Of the first task itself, whether they are told or not."""
        self._above: dict[str, str] = {}
        self._below: dict[str, list[str]] = {}

    @property
    def room(self) -> int:
        """How many more may be told."""
        return TOLD - len(self.order)

    def add(self, task: str, needs: Sequence[str]) -> None:
        """Needs of a task, as far as there is room; one that is told already stays there."""
        if task == self.first.task:
            self.unmet = len(needs)
        fresh = [need for need in needs[:NAMED] if need not in self._above]
        for need in fresh[: self.room]:
            self.order.append(need)
            self.block_on(task, need)

    def block_on(self, task: str, need: str) -> None:
        """Put one below another."""
        self._above[need] = task
        self._below.setdefault(task, []).append(need)

    def leaves(self) -> list[str]:
        """Those that have nothing below them."""
        return [task for task in self.walk() if task not in self._below]

    def path(self, task: str) -> list[str]:
        """The way from the first task, which is left out, to this one."""
        way = []
        while task != self.first.task:
            way.append(task)
            task = self._above[task]
        return way[::-1]

    def walk(self) -> Iterator[str]:
        """All but the first, each followed by those below it."""
        left = self._below.get(self.first.task, [])[::-1]
        while left:
            task = left.pop()
            yield task
            left.extend(self._below.get(task, [])[::-1])


def _lines(tree: _NeedsTree, leaves: Mapping[str, Explanation], worst: str) -> Iterator[Need]:
    """What is told of the tree, and the leaf that counts, however deep it is."""
    told = {*tree.order, worst}
    for task in tree.walk():
        if task in told:
            seen = tree.seen[task]
            yield Need(
                task=_name(task),
                state=_state(seen),
                says=leaves[task].says if task in leaves else f"it needs {_name(seen.how.on)}",
                depth=len(tree.path(task)),
            )


def _is_ready(seen: TaskSnapshot, found: Explanation) -> bool:
    return seen.state == "pending" and not found.blocked


def _before(seen: TaskSnapshot) -> Op[str]:
    """How many with the same requirements come before a task."""
    place, page = (
        seen.what.ready_key(seen.task),
        Range(keys.ready(seen.what.requirement_set), limit=COUNTED),
    )
    before = sum(item.key < place for item in (yield Read(page)).ranges[page])
    if not before:
        return ""
    many = "1 other is" if before == 1 else f"{before} others are"
    return f"; {many} before it" if before < COUNTED else f"; {before} or more are before it"


def _meanwhile(seen: TaskSnapshot) -> Op[tuple[str, ...]]:
    """What whoever works on it waits for."""
    claim = seen.claim
    if claim is None or not seen.alive:
        return ()
    return (yield from meanwhile({caller(claim.agent, claim.session, claim.caller): claim.agent}))


def _chain(path: Sequence[str]) -> str:
    """The way down, the middle of a long one left out."""
    named = [_name(task) for task in path]
    if len(named) > _SHOWN:
        between = len(named) - _SHOWN + 1
        named[_SHOWN - 2 : -1] = [f"{between} others one after the other"]
        return f"{', which needs '.join(named[:-1])} and in the end {named[-1]}"
    return ", which needs ".join(named)


def _cut(seen: TaskSnapshot) -> str:
    return f", and so on: {FOLLOWED} tasks were followed" if seen.hangs else ""


def _others(unmet: int) -> str:
    return "" if unmet <= 1 else f"; {unmet} of its needs are not complete"


def _meant(need: Item | None, own: Item | None) -> Item | None:
    """A need, unless it came after the task and only has the name of what was needed."""
    later = need is not None and own is not None and need.created > own.created
    return None if later else need


def _state_of(item: Item | None) -> str:
    """How a task stands, in a word, whatever stands there."""
    try:
        status = decode.status(item)
    except StoreDamaged:
        return DAMAGED
    return "unknown" if status is None else status.state


def _name(task: str) -> str:
    return "an import" if task.startswith(BATCH) else task


def _state(seen: TaskSnapshot) -> str:
    return "unfinished" if seen.batch else seen.state
