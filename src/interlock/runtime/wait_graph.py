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
from interlock.drivers import Op, Read
from interlock.runtime import reads
from interlock.runtime.attempt import ReadOp, Unchecked
from interlock.runtime.reads import KEYS_AT_ONCE, looked_up
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
    met: tuple[Blocker, ...]
    capacity: int | None = None
    keys: tuple[str, ...] = ()
    live: tuple[str, ...] = ()


class WaitTarget(Struct, frozen=True, gc=False):
    """The resources of a target; without one, a wait for it may end at any time."""

    spots: tuple[SharedResource, ...] = ()
    queue: tuple[QueuedWait, ...] = ()

    def turn(self, id_: str) -> int | None:
        """How many wait before this one in the queue; None if it is not there."""
        return next((n for n, waiter in enumerate(self.queue) if waiter.id == id_), None)


WaitTargets: TypeAlias = dict[str, WaitTarget]
"""Targets by their keys; one that does not exist has no resource."""
Reader: TypeAlias = Callable[[tuple[str, ...], int], ReadOp[WaitTargets]]


class KnownTargets:
    """The targets of a wait as it has read them, and what their blockers wait for.

    A waiter reads how long the holders live before it sleeps.  The same read brings the lists of
    their waits, so a wait whose holders all run costs no read of its own.
    """

    def __init__(self, targets: Mapping[str, WaitTarget]) -> None:
        self.targets = targets
        self.lists: dict[Range, tuple[Item, ...]] = {}
        self._looked = False

    def look(self, liveness: Iterable[str]) -> Op[dict[str, Item | None]]:
        """How long all of these live, and what the blockers wait for, if one read has room."""
        wanted = list(dict.fromkeys(liveness))
        callers = dict.fromkeys([each.caller for each in _blockers(self.targets) if each.caller])
        pages = [_first_page(keys.waits(caller)) for caller in callers]
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
        return not any(each.together for target in self.targets.values() for each in target.queue)


class Start(Struct, frozen=True, kw_only=True):
    """The wait that is looked from: its id and its places.

    Of one without a queue also who it is, and the revision of the commit that listed it.
    """

    id: str
    wants: tuple[str, ...]
    asleep: UnqueuedWait | None = None
    revision: int = 0


class Graph:
    """All that one wait may wait for.

    ``around`` is what is known already, ``let_go`` are grants that count as released.
    """

    def __init__(
        self,
        base: int,
        start: Start,
        around: KnownTargets | None = None,
        let_go: AbstractSet[str] = frozenset(),
    ) -> None:
        around = around or KnownTargets({})
        self._places = dict(around.targets)
        self._known = around.lists
        self._base = base
        self._let_go = let_go
        self._start = start
        self._waits = {start.id}
        self._asleep: dict[str, tuple[UnqueuedWait, int]] = {}
        if start.asleep is not None:
            self._asleep[start.id] = (start.asleep, base + start.revision)
        self._lists: set[str] = set()
        self._followed: dict[str, int] = {}
        self._several: set[str] = set()
        self._someone_waits = False

    def explore(self) -> ReadOp[None]:
        """Read from the places of the wait on, one level after the other."""
        asked = [(key, self._start.id) for key in self._start.wants]
        while asked:
            unknown = dict.fromkeys([key for key, _ in asked if key not in self._places])
            self._places |= yield from _read(tuple(unknown), self._base)
            lists: dict[str, None] = {}
            more = [each for key, id_ in asked for each in self._follow(key, id_, lists)]
            for item in (yield from self._items(lists)):
                more.extend(self._listed(item))
            asked = more

    def living(self, dead: set[str]) -> ReadOp[DeadlockedSet | None]:
        """The deadlocked set of living callers; expired liveness keys are added to ``dead``."""
        asked = dead.copy()
        wanted = self._doubtful() if self._someone_waits else []
        while True:
            unknown = tuple([key for key in dict.fromkeys(wanted) if key not in asked])
            live = yield from glanced(unknown)
            asked.update(unknown)
            dead.update([key for key, item in live.items() if item is None])
            knot = self.knot(dead)
            if knot is None:
                return None
            wanted = list(self.liveness(knot))
            if asked.issuperset(wanted):
                return knot

    def knot(self, dead: AbstractSet[str] = frozenset()) -> DeadlockedSet | None:
        """The knot that the wait closed, if nothing is dead but this."""
        return (
            closed_deadlock(self._standing(dead), self._start.id) if self._someone_waits else None
        )

    def stuck(self, dead: AbstractSet[str]) -> bool:
        """Whether the wait cannot end, though another member of the cycle may have to withdraw."""
        return self._someone_waits and is_stuck(self._standing(dead), self._start.id)

    @property
    def seen(self) -> object:
        """All that the look showed; if another one shows the same, it stood so in between."""
        return self._places, self._asleep, self._waits

    def items(self, knot: DeadlockedSet) -> tuple[str, ...]:
        """The items that make it a knot: the places of its members, and their waits."""
        found = [key for spot in self._spots(knot) for key in spot.keys]
        asleep = [wait.id for wait in knot.members if wait.id in self._asleep]
        found += [wait_keys(self._asleep[id_][0], id_)[0] for id_ in asleep]
        return tuple(dict.fromkeys(found))

    def liveness(self, knot: DeadlockedSet) -> tuple[str, ...]:
        """What keeps its members alive, and what they have of each other's needs."""
        inside = _inside(knot)
        found = [party.live for party in map(self._party, knot.members)]
        for spot in self._spots(knot):
            found.extend(spot.live)
            found.extend(key for met in spot.met if met.caller in inside for key in met.live)
        return tuple(dict.fromkeys(found))

    def _follow(self, key: str, id_: str, lists: dict[str, None]) -> Iterator[tuple[str, str]]:
        """Where one target of a wait leads: to its blockers, and to the waits before it."""
        place = self._places[key]
        turn = place.turn(id_)
        if turn is None and id_ not in self._asleep:
            return  # it is over
        if key not in self._followed:
            met = [
                keys.waits(each.among or each.caller)
                for spot in place.spots
                for each in spot.met
                if each.caller
            ]
            lists.update(dict.fromkeys([each for each in met if each not in self._lists]))
            self._lists.update(met)
        done = self._followed.get(key, 0)
        end = done if turn is None else turn + 1
        for waiter in place.queue[done:end]:
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
        self._someone_waits = True
        self._waits.add(id_)
        if isinstance(waited, UnqueuedWait):
            self._asleep[id_] = (waited, self._base + item.revision)
            yield waited.wants, id_
        else:
            yield from [(key, id_) for key in waited]

    def _standing(self, dead: AbstractSet[str]) -> list[Wait]:
        """Every wait of a living that was met, with what it takes."""
        self._several = self._known_twice()
        needs: dict[str, list[ResourceNeed]] = {}
        found: dict[str, tuple[QueuedWait | UnqueuedWait, int]] = {}
        for place in self._places.values():
            for waiter, need in self._queued(place, dead):
                found[waiter.id] = (waiter, waiter.order or 0)
                needs.setdefault(waiter.id, []).append(need)
        for id_, (asleep, order) in self._asleep.items():
            if asleep.live not in dead:
                spots = self._places[asleep.wants].spots
                found[id_] = (asleep, order)
                needs[id_] = [
                    ResourceNeed(_room) for spot in spots if (_room := self._room(spot, dead))
                ]
        return [self._wait(id_, *found[id_], needs[id_]) for id_ in found]

    def _wait(
        self, id_: str, party: QueuedWait | UnqueuedWait, order: int, needs: Iterable[ResourceNeed]
    ) -> Wait:
        also = (agent_caller_name(party.agent), session_caller_name(party.session), *party.also)
        return Wait(
            id_, self._name(caller_name_of(party), id_), party.agent, order, tuple(needs), also
        )

    def _queued(
        self, place: WaitTarget, dead: AbstractSet[str]
    ) -> Iterator[tuple[QueuedWait, ResourceNeed]]:
        last = max([n for n, w in enumerate(place.queue, 1) if w.id in self._waits], default=0)
        room = self._room(place.spots[0], dead) if last else None
        before = ""
        for waiter in place.queue[:last] if room else ():
            if room is not None and waiter.live not in dead:
                yield waiter, ResourceNeed(room, waiter.weight, before)
                before = waiter.id

    def _room(self, spot: SharedResource, dead: AbstractSet[str]) -> Resource | None:
        """What a wait needs its share of; None if there is nothing to wait for any more."""
        if not dead.isdisjoint(spot.live):
            return None
        met = [each for each in spot.met if dead.isdisjoint(each.live)]
        capacity = max(1, len(met)) if spot.capacity is None else spot.capacity
        holders = tuple([(self._name(each.caller, each.grant), each.weight) for each in met])
        return Resource(spot.thing, capacity, holders, tuple([each.agent for each in met]))

    def _name(self, caller: str, id_: str) -> str:
        return "" if caller in self._several or id_ in self._let_go else caller

    def _known_twice(self) -> set[str]:
        """Names of callers that wait for what a caller of the same name holds.

        These are two callers, and each may run: what else belongs to which of them is unknown.
        """
        found: set[str] = set()
        for key, place in self._places.items():
            waiting = {caller_name_of(each) for each in place.queue}
            waiting |= {
                caller_name_of(each) for each, _ in self._asleep.values() if each.wants == key
            }
            met = {each.caller for spot in place.spots for each in spot.met}
            found |= {caller for caller in met & waiting if is_shared_name(caller)}
        return found

    def _doubtful(self) -> list[str]:
        """The liveness keys of waits of blockers that have several."""
        met = {each.caller for each in _blockers(self._places)}
        waits = self._standing(frozenset())
        names = Counter(
            name for wait in waits for name in set(blocked_callers(wait)) if name in met
        )
        return [
            self._party(wait).live
            for wait in waits
            if any(names[name] > 1 for name in blocked_callers(wait))
        ]

    def _spots(self, knot: DeadlockedSet) -> Iterator[SharedResource]:
        """Where its members wait for each other."""
        inside = _inside(knot)
        places = dict.fromkeys(key for wait in knot.members for key in self._wanted(wait))
        for place in map(self._places.__getitem__, places):
            for spot in place.spots:
                if place.queue or any(met.caller in inside for met in spot.met):
                    yield spot

    def _wanted(self, wait: Wait) -> tuple[str, ...]:
        if wait.id in self._asleep:
            return (self._asleep[wait.id][0].wants,)
        return tuple([need.resource.thing for need in wait.needs])

    def _party(self, wait: Wait) -> QueuedWait | UnqueuedWait:
        if wait.id in self._asleep:
            return self._asleep[wait.id][0]
        queue = self._places[wait.needs[0].resource.thing].queue
        return next(waiter for waiter in queue if waiter.id == wait.id)


def _read(wanted: tuple[str, ...], base: int) -> ReadOp[WaitTargets]:
    """All of these targets, by the readers that their nouns declare."""
    found: WaitTargets = {}
    kinds: dict[str, list[str]] = {}
    for key in wanted:
        kinds.setdefault(registry.wait_reader(key), []).append(key)
    for reference, some in kinds.items():
        reader: Reader = registry.load(reference)
        found |= yield from reader(tuple(some), base)
    return found


def glanced(wanted: tuple[str, ...]) -> ReadOp[dict[str, Item | None]]:
    """Many items, in portions, of which nothing is checked."""
    found: dict[str, Item | None] = {}
    for start in range(0, len(wanted), KEYS_AT_ONCE):
        found |= (yield Unchecked(wanted[start : start + KEYS_AT_ONCE])).items
    return found


def _blockers(targets: Mapping[str, WaitTarget]) -> Iterator[Blocker]:
    return (each for target in targets.values() for spot in target.spots for each in spot.met)


def _first_page(prefix: str) -> Range:
    """The beginning of a list; it is nearly always all of it."""
    return Range(prefix, limit=KEYS_AT_ONCE)


def _inside(knot: DeadlockedSet) -> set[str]:
    return {name for wait in knot.members for name in blocked_callers(wait)}
