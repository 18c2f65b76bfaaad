"""The graph of waits, as far as it can be reached from one wait.

A wait is for a *target*: a pool, a task or a query.  A target has resources, and a wait needs its
share of each.  A resource has blockers: the callers that have to act before there is room.

    a pool    one resource; the blockers are the holders; it has a queue, so a wait is behind others
    a task    a resource for each running task below it; the blocker is its worker
    a query   one resource; the blockers are all agents that may answer, and one answer is enough

Each kind of target has its own reader, which its noun declares (``waits`` in ``runtime/noun.py``).

From a wait the graph leads to its targets, and from there to the blockers and to the waits before
it in the queue; from each blocker, by the lists ``waits/{name}/``, to what the blocker itself waits
for, and so on.

An edge ends with the liveness of its waiter or blocker.  Nearly every wait is part of no cycle, so
liveness is read only when there seems to be one, and only of its members; and of blockers with
several waits, since the wait of a dead caller would hide a cycle there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from msgspec import Struct

from interlock import registry
from interlock.core import keys
from interlock.core.deadlock import (
    DeadlockedSet,
    Resource,
    ResourceNeed,
    Wait,
    blocked_callers,
    closed_deadlock,
    is_stuck,
)
from interlock.core.wait import (
    QueuedWait,
    UnqueuedWait,
    agent_caller_name,
    caller_name_of,
    is_shared_name,
    session_caller_name,
    wait_keys,
)
from interlock.runtime import reads
from interlock.runtime.attempt import ReadOp, Unchecked
from interlock.runtime.reads import KEYS_AT_ONCE, looked_up
from interlock.steps import Op, Read
from interlock.store import Item, Range, Snapshot


class Blocker(Struct, frozen=True, gc=False):
    """A caller that has to act: how much it has, by which grant, and what keeps that grant alive.

    ``among`` is the name under which its waits are listed together with waits of other callers;
    ``agent`` is the agent that holds, if it is known.
    """

    caller: str
    weight: int = 1
    grant: str = ""
    live: tuple[str, ...] = ()
    among: str = ""
    agent: str = ""


class SharedResource(Struct, frozen=True, gc=False):
    """A resource as it was read.

    Without a capacity it has room for all of its blockers that live.  ``keys`` are the items that
    show this, and ``live`` the liveness keys without which there is nothing to wait for.
    """

    thing: str
    blockers: tuple[Blocker, ...]
    capacity: int | None = None
    keys: tuple[str, ...] = ()
    live: tuple[str, ...] = ()


class WaitTarget(Struct, frozen=True, gc=False):
    """The resources of a target; without one, a wait for it may end at any time."""

    resources: tuple[SharedResource, ...] = ()
    queue: tuple[QueuedWait, ...] = ()

    @property
    def blockers(self) -> list[Blocker]:
        """The blockers of all resources."""
        return [each for resource in self.resources for each in resource.blockers]

    def position(self, id_: str) -> int | None:
        """How many wait before this one in the queue; None if it is not there."""
        return next((n for n, waiter in enumerate(self.queue) if waiter.id == id_), None)


WaitTargets: TypeAlias = dict[str, WaitTarget]
"""Targets by their keys; one that does not exist has no resource."""
Reader: TypeAlias = Callable[[tuple[str, ...], int], ReadOp[WaitTargets]]


class KnownTargets:
    """The targets of a wait as it has read them, and what their blockers wait for.

    A waiter reads how long the holders live before it sleeps.  The same read brings the lists of
    their waits, so a wait whose holders all run costs no read of its own.

    ``live`` and ``lists`` are what the transaction that queued has read of them.  That is enough:
    of two waits in a cycle the later commit sees the earlier one.
    """

    def __init__(
        self,
        targets: Mapping[str, WaitTarget],
        live: Mapping[str, Item | None] = {},
        lists: Mapping[Range, tuple[Item, ...]] = {},
    ) -> None:
        self.targets = targets
        self.lists = lists
        self._live = live
        self._looked = False

    def look(self, liveness: Iterable[str]) -> Op[dict[str, Item | None]]:
        """How long all of these live, and what the blockers wait for, if one read has room."""
        wanted = list(dict.fromkeys(liveness))
        blockers = [each for target in self.targets.values() for each in target.blockers]
        pages = list_pages([each.caller for each in blockers])
        known = {key: item for key in wanted if (item := self._live.get(key)) and item.expires_in}
        if len(known) == len(wanted) and self.lists.keys() >= {*pages}:
            self._looked = True
            return dict(known)
        if not 0 < len(wanted) + len(pages) <= KEYS_AT_ONCE:
            return (yield from looked_up(wanted, times=True))
        snapshot: Snapshot = yield Read(*wanted, *pages, times=True)
        self.lists = {page: tuple(snapshot.ranges[page]) for page in pages}
        self._looked = True
        return dict(snapshot.items)

    @property
    def open(self) -> bool:
        """Whether all callers that can be reached from here run: then there is no cycle."""
        if not self._looked or any(self.lists.values()):
            return False
        for target in self.targets.values():
            for each in target.queue:
                if each.together:
                    return False
        return True


class Start(Struct, frozen=True, kw_only=True):
    """The wait that is looked from: its id and its targets.

    Of one without a queue also who it is, and the revision of the commit that listed it.
    """

    id: str
    wants: tuple[str, ...]
    asleep: UnqueuedWait | None = None
    revision: int = 0


class Graph:
    """All that one wait may wait for.

    ``around`` is what is known already, ``released`` are grants that count as released.
    """

    def __init__(
        self,
        base: int,
        start: Start,
        around: KnownTargets | None = None,
        released: AbstractSet[str] = frozenset(),
    ) -> None:
        around = around or KnownTargets({})
        self._targets = dict(around.targets)
        self._known = around.lists
        self._base = base
        self._released = released
        self._start = start
        self._waits = {start.id}
        self._asleep: dict[str, tuple[UnqueuedWait, int]] = {}
        if start.asleep is not None:
            self._asleep[start.id] = (start.asleep, base + start.revision)
        self._lists: set[str] = set()
        self._followed: dict[str, int] = {}
        self._ambiguous: set[str] = set()
        self._blockers_wait = False

    def explore(self) -> ReadOp[None]:
        """Read from the targets of the wait on, one level after the other."""
        asked = [(key, self._start.id) for key in self._start.wants]
        while asked:
            unknown = dict.fromkeys([key for key, _ in asked if key not in self._targets])
            self._targets |= yield from _read(tuple(unknown), self._base)
            lists: dict[str, None] = {}
            more = [each for key, id_ in asked for each in self._follow(key, id_, lists)]
            for item in (yield from self._items(lists)):
                more.extend(self._listed(item))
            asked = more

    def living(self, dead: set[str]) -> ReadOp[DeadlockedSet | None]:
        """The deadlocked set of living callers; expired liveness keys are added to ``dead``."""
        asked = dead.copy()
        wanted = self._doubtful() if self._blockers_wait else []
        while True:
            unknown = tuple([key for key in dict.fromkeys(wanted) if key not in asked])
            live = yield from glanced(unknown)
            asked.update(unknown)
            dead.update([key for key, item in live.items() if item is None])
            deadlock = self.deadlock(dead)
            if deadlock is None:
                return None
            wanted = list(self.liveness(deadlock))
            if asked.issuperset(wanted):
                return deadlock

    def deadlock(self, dead: AbstractSet[str] = frozenset()) -> DeadlockedSet | None:
        """The deadlock that the wait closed, if nothing is dead but this."""
        return (
            closed_deadlock(self._standing(dead), self._start.id) if self._blockers_wait else None
        )

    def stuck(self, dead: AbstractSet[str]) -> bool:
        """Whether the wait cannot end, though another member of the cycle may have to withdraw."""
        return self._blockers_wait and is_stuck(self._standing(dead), self._start.id)

    @property
    def snapshot(self) -> object:
        """All that was read; if the next graph has the same, it stood like that in between."""
        return self._targets, self._asleep, self._waits

    def items(self, deadlock: DeadlockedSet) -> tuple[str, ...]:
        """The items that make it a deadlock: the targets of its members, and their waits."""
        found = [key for resource in self._resources(deadlock) for key in resource.keys]
        asleep = [wait.id for wait in deadlock.members if wait.id in self._asleep]
        found += [wait_keys(self._asleep[id_][0], id_)[0] for id_ in asleep]
        return tuple(dict.fromkeys(found))

    def liveness(self, deadlock: DeadlockedSet) -> tuple[str, ...]:
        """What keeps its members alive, and what they have of each other's needs."""
        inside = _inside(deadlock)
        found = [party.live for party in map(self._party, deadlock.members)]
        for resource in self._resources(deadlock):
            found.extend(resource.live)
            found.extend(
                key for each in resource.blockers if each.caller in inside for key in each.live
            )
        return tuple(dict.fromkeys(found))

    def _follow(self, key: str, id_: str, lists: dict[str, None]) -> Iterator[tuple[str, str]]:
        """Where one target of a wait leads: to its blockers, and to the waits before it."""
        target = self._targets[key]
        position = target.position(id_)
        if position is None and id_ not in self._asleep:
            return  # it is over
        if key not in self._followed:
            listed = [
                keys.waits(each.among or each.caller) for each in target.blockers if each.caller
            ]
            lists.update(dict.fromkeys([each for each in listed if each not in self._lists]))
            self._lists.update(listed)
        done = self._followed.get(key, 0)
        end = done if position is None else position + 1
        for waiter in target.queue[done:end]:
            self._waits.add(waiter.id)
            yield from [(other, waiter.id) for other in waiter.together if other != key]
        self._followed[key] = max(done, end)

    def _items(self, lists: Iterable[str]) -> ReadOp[list[Item]]:
        """All that is listed there."""
        found: list[Item] = []
        todo = list(map(_first_page, lists))
        while todo:
            some, todo = todo[:KEYS_AT_ONCE], todo[KEYS_AT_ONCE:]
            unknown = Unchecked([page for page in some if page not in self._known])
            pages = (yield unknown).ranges if unknown else {}
            for page in some:
                items = self._known[page] if page in self._known else pages[page]
                found.extend(items)
                if len(items) == page.limit:
                    todo.append(Range(page.prefix, items[-1].key, page.limit))
        return found

    def _listed(self, item: Item) -> Iterator[tuple[str, str]]:
        """A wait of a blocker."""
        id_ = keys.id_of(item.key)
        waited = reads.readable_wait(item)
        if waited is None:  # an unreadable wait counts as one that can end
            return
        self._blockers_wait = True
        self._waits.add(id_)
        if isinstance(waited, UnqueuedWait):
            self._asleep[id_] = (waited, self._base + item.revision)
            yield waited.wants, id_
        else:
            yield from [(key, id_) for key in waited]

    def _standing(self, dead: AbstractSet[str]) -> list[Wait]:
        """Every wait of a living caller that was found, with its needs."""
        self._ambiguous = self._ambiguous_names()
        needs: dict[str, list[ResourceNeed]] = {}
        found: dict[str, tuple[QueuedWait | UnqueuedWait, int]] = {}
        for target in self._targets.values():
            for waiter, need in self._queued(target, dead):
                found[waiter.id] = (waiter, waiter.order or 0)
                needs.setdefault(waiter.id, []).append(need)
        for id_, (asleep, order) in self._asleep.items():
            if asleep.live not in dead:
                found[id_] = (asleep, order)
                resources = self._targets[asleep.wants].resources
                parts = [self._living_part(each, dead) for each in resources]
                needs[id_] = [ResourceNeed(part) for part in parts if part is not None]
        return [self._wait(id_, *found[id_], needs[id_]) for id_ in found]

    def _wait(
        self, id_: str, party: QueuedWait | UnqueuedWait, order: int, needs: Iterable[ResourceNeed]
    ) -> Wait:
        also = (agent_caller_name(party.agent), session_caller_name(party.session), *party.also)
        return Wait(
            id_, self._name(caller_name_of(party), id_), party.agent, order, tuple(needs), also
        )

    def _queued(
        self, target: WaitTarget, dead: AbstractSet[str]
    ) -> Iterator[tuple[QueuedWait, ResourceNeed]]:
        last = max([n for n, w in enumerate(target.queue, 1) if w.id in self._waits], default=0)
        room = self._living_part(target.resources[0], dead) if last else None
        if room is None:
            return
        before = ""
        for waiter in target.queue[:last]:
            if waiter.live not in dead:
                yield waiter, ResourceNeed(room, waiter.weight, before)
                before = waiter.id

    def _living_part(self, resource: SharedResource, dead: AbstractSet[str]) -> Resource | None:
        """What a wait needs its share of; None if there is nothing to wait for any more."""
        if not dead.isdisjoint(resource.live):
            return None
        blockers = [each for each in resource.blockers if dead.isdisjoint(each.live)]
        capacity = max(1, len(blockers)) if resource.capacity is None else resource.capacity
        holders = tuple([(self._name(each.caller, each.grant), each.weight) for each in blockers])
        return Resource(resource.thing, capacity, holders, tuple([each.agent for each in blockers]))

    def _name(self, caller: str, id_: str) -> str:
        return "" if caller in self._ambiguous or id_ in self._released else caller

    def _ambiguous_names(self) -> set[str]:
        """Names of callers that wait for what a caller of the same name holds.

        These are two callers, and each may run: what else belongs to which of them is unknown.
        """
        found: set[str] = set()
        for key, target in self._targets.items():
            waiting = {caller_name_of(each) for each in target.queue}
            waiting |= {
                caller_name_of(each) for each, _ in self._asleep.values() if each.wants == key
            }
            blocking = {each.caller for each in target.blockers}
            found |= {caller for caller in blocking & waiting if is_shared_name(caller)}
        return found

    def _doubtful(self) -> list[str]:
        """The liveness keys of waits of blockers that have several."""
        blocking = {each.caller for some in self._targets.values() for each in some.blockers}
        waits = self._standing(frozenset())
        names = Counter(
            name for wait in waits for name in set(blocked_callers(wait)) if name in blocking
        )
        return [
            self._party(wait).live
            for wait in waits
            if any(names[name] > 1 for name in blocked_callers(wait))
        ]

    def _resources(self, deadlock: DeadlockedSet) -> Iterator[SharedResource]:
        """Where its members wait for each other."""
        inside = _inside(deadlock)
        targets = dict.fromkeys(key for wait in deadlock.members for key in self._wanted(wait))
        for target in map(self._targets.__getitem__, targets):
            for resource in target.resources:
                if target.queue or any(each.caller in inside for each in resource.blockers):
                    yield resource

    def _wanted(self, wait: Wait) -> tuple[str, ...]:
        if wait.id in self._asleep:
            return (self._asleep[wait.id][0].wants,)
        return tuple([need.resource.thing for need in wait.needs])

    def _party(self, wait: Wait) -> QueuedWait | UnqueuedWait:
        if wait.id in self._asleep:
            return self._asleep[wait.id][0]
        queue = self._targets[wait.needs[0].resource.thing].queue
        return next(waiter for waiter in queue if waiter.id == wait.id)


def _read(wanted: tuple[str, ...], base: int) -> ReadOp[WaitTargets]:
    """All of these targets, by the readers that their nouns declare."""
    found: WaitTargets = {}
    folders = {key.partition("/")[0]: key for key in wanted}
    readers = {folder: registry.wait_reader(key) for folder, key in folders.items()}
    for reference in dict.fromkeys(readers.values()):
        some = [key for key in wanted if readers[key.partition("/")[0]] == reference]
        reader: Reader = registry.load(reference)
        found |= yield from reader(tuple(some), base)
    return found


def glanced(wanted: tuple[str, ...]) -> ReadOp[dict[str, Item | None]]:
    """Many items, in portions, of which nothing is checked."""
    found: dict[str, Item | None] = {}
    for start in range(0, len(wanted), KEYS_AT_ONCE):
        found |= (yield Unchecked(wanted[start : start + KEYS_AT_ONCE])).items
    return found


def list_pages(callers: Iterable[str]) -> list[Range]:
    """Where the waits of these callers are listed; one without a name has none."""
    return [_first_page(keys.waits(caller)) for caller in dict.fromkeys(callers) if caller]


def _first_page(prefix: str) -> Range:
    """The beginning of a list; it is nearly always all of it."""
    return Range(prefix, limit=KEYS_AT_ONCE)


def _inside(deadlock: DeadlockedSet) -> set[str]:
    return {name for wait in deadlock.members for name in blocked_callers(wait)}
