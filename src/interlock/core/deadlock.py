"""Who waits for each other in a circle, and who has to give way.

A wait is *all of* its needs.  A need is counted: so much out of a room, some of which callers
hold, behind whoever waits before us.  One of three that may answer is a need for 1 of 3; so locks,
slots, claims and questions are all told in the same words.

A caller that does not wait goes on, and gives back what it holds one day.  So we reduce: a wait
can end if everybody before it can be served, and what it needs is there once all callers that can
go on have given back.  A caller with several waits goes on if one of them can end.  What remains
after that can never end by itself.

A wait holds up more than one.  A caller may be inside of another one: ``a/b`` is a part of what
``a`` does, so ``a`` cannot go on while all that it waits for is stuck, be it itself or inside of
it.  It may work on something that goes by a name of its own; and whatever an agent waits for keeps
the agent and its session, which others may ask something, from going on.

Some of what remains only stands behind a circle and is not part of it: it would go on as soon as
the circle is broken.  A *knot* is a set of waits that never end even if everybody else goes on,
and that all end as soon as one of them gives way.  That is its youngest: each wait looks at the
graph after it was committed, so the one that closed the knot sees all of it, and nobody else need
do anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

Node: TypeAlias = str | tuple[str, str]
"""A wait by its id; between two waits stands what one of them needs of the other."""


class Resource(Struct, frozen=True, gc=False):
    """A thing that is shared: its capacity, who holds how much of it, and in whose names.

    Without ``agents`` it is not known in whose.
    """

    thing: str
    capacity: int
    holders: tuple[tuple[str, int], ...]
    agents: tuple[str, ...] = ()


class ResourceNeed(Struct, frozen=True, gc=False):
    """So much of a room, and which wait is served before."""

    resource: Resource
    weight: int = 1
    before: str = ""


class Wait(Struct, frozen=True, gc=False):
    """A caller that goes on when all its needs are met; ``order`` says when it began to wait.

    ``also`` are other names that cannot go on while it lasts.
    """

    id: str
    caller: str
    agent: str
    order: int
    needs: tuple[ResourceNeed, ...]
    also: tuple[str, ...] = ()


class DeadlockedSet(Struct, frozen=True):
    """Waits that cannot end because of each other; the cycle is a shortest one from the start."""

    members: tuple[Wait, ...]
    cycle: tuple[Wait, ...]

    @property
    def victim(self) -> Wait:
        """The one that gives way."""
        return max(self.members, key=_age)

    @property
    def names(self) -> tuple[str, ...]:
        """The agents of the cycle; after a wait comes in whose name its caller holds, if another.

        So it is ``bob, ada`` if bob waits for what his own caller holds as ada.
        """
        after = (*self.cycle[1:], self.cycle[0])
        steps = [
            (wait.agent, *_holds_as(on, wait)) for wait, on in zip(self.cycle, after, strict=True)
        ]
        return tuple([name for step in steps for name in step])


def deadlocked_set(waits: Iterable[Wait], start: str) -> DeadlockedSet | None:
    """All that is tied to this wait, if it waits for itself in the end."""
    everyone = _in_order(waits)
    return _tied(everyone, everyone, start)


def closed_deadlock(waits: Iterable[Wait], start: str) -> DeadlockedSet | None:
    """The knot that this wait closed and has to untie, as if each had looked when it came.

    Others may have closed knots of their own meanwhile and be about to give way: what is stuck only
    because of those is none of ours.
    """
    everyone = _in_order(waits)
    if start not in everyone:
        return None
    last = _age(everyone[start])
    older = {id_: wait for id_, wait in everyone.items() if _age(wait) <= last}
    stuck = Reduction(everyone, older).stuck
    if start not in stuck:
        return None
    standing = _patient(everyone, [older[id_] for id_ in stuck if id_ != start])
    return _tied(everyone, {**standing, start: everyone[start]}, start)


def is_stuck(waits: Iterable[Wait], start: str) -> bool:
    """Whether this wait cannot end as things stand, whoever has to give way."""
    everyone = _in_order(waits)
    return start in Reduction(everyone, everyone).stuck


def _patient(everyone: Mapping[str, Wait], stuck: Iterable[Wait]) -> dict[str, Wait]:
    """Those who go on waiting after everybody before us has looked."""
    all_ = {wait.id: wait for wait in stuck}
    if not Reduction(everyone, all_).stuck:
        return all_
    standing: dict[str, Wait] = {}
    for wait in all_.values():
        if Reduction(everyone, {**standing, wait.id: wait}).stuck:
            continue  # it closed a knot, and gives way
        standing[wait.id] = wait
    return standing


def _tied(
    everyone: Mapping[str, Wait], among: Mapping[str, Wait], start: str
) -> DeadlockedSet | None:
    """All that is tied to the start, and cannot end even if everybody else goes on."""
    reduction = Reduction(everyone, among)
    while start in reduction.stuck:
        stuck, edges = reduction.stuck, reduction.edges()
        back = _reach(_reversed(edges), start)
        circle = {node for node in _reach(edges, start) if node in back}
        members = {id_: wait for id_, wait in stuck.items() if id_ in circle}
        if len(members) == len(stuck):
            cycle = tuple([stuck[id_] for id_ in _way_back(edges, start)])
            return DeadlockedSet(tuple(members.values()), cycle)
        reduction = Reduction(everyone, members)  # whoever else is stuck may yet go on
    return None


def _holds_as(on: Wait, wait: Wait) -> tuple[str, ...]:
    """In whose name a caller that waits has what a wait needs, if not in that of its own wait."""
    if any(need.before == on.id for need in wait.needs):
        return ()
    callers = set(blocked_callers(on))
    names = [
        agent
        for need in wait.needs
        for (caller, _), agent in zip(need.resource.holders, need.resource.agents, strict=False)
        if caller in callers
    ]
    return () if on.agent in names else tuple([name for name in names if name][:1])


def _in_order(waits: Iterable[Wait]) -> dict[str, Wait]:
    return {wait.id: wait for wait in sorted(waits, key=_age)}


def _age(wait: Wait) -> tuple[int, str]:
    return wait.order, wait.id


def lineage(caller: str) -> Iterator[str]:
    """The caller, and all that it is inside of."""
    while caller:
        yield caller
        caller = caller.rpartition("/")[0]


def blocked_callers(wait: Wait) -> Iterator[str]:
    """All who cannot go on while it lasts, unless another of their waits ends."""
    for name in (wait.caller, *wait.also):
        yield from lineage(name)


class Reduction:
    """What remains of some waits when everything that can end has ended.

    Those that are not ``among`` them are taken to be gone from their queues, and to go on.
    """

    def __init__(self, everyone: Mapping[str, Wait], among: Mapping[str, Wait]) -> None:
        self.stuck = dict(among if among is everyone else _relinked(everyone, among))
        among = self.stuck.copy()
        self._rooms = {n.resource.thing: n.resource for wait in among.values() for n in wait.needs}
        self._queues: dict[str, deque[tuple[Wait, ResourceNeed]]] = {}
        for wait in among.values():
            for need in wait.needs:
                self._queues.setdefault(need.resource.thing, deque()).append((wait, need))
        going = {c for w in everyone.values() if w.id not in among for c in blocked_callers(w)}
        self._waiting = {c for w in among.values() for c in blocked_callers(w)} - going
        self._holds: dict[str, list[tuple[str, int]]] = {}
        self._held = dict.fromkeys(self._rooms, 0)
        for room in self._rooms.values():
            for caller, weight in room.holders:
                if caller in self._waiting:
                    self._holds.setdefault(caller, []).append((room.thing, weight))
                    self._held[room.thing] += weight
        self._reduce()

    def edges(self) -> dict[Node, list[Node]]:
        """Who of them waits for whom, with what is needed in between."""
        blocking: dict[str, list[Node]] = {}
        for wait in self.stuck.values():
            for caller in blocked_callers(wait):
                if caller in self._waiting:
                    blocking.setdefault(caller, []).append(wait.id)
        edges: dict[Node, list[Node]] = {wait: [] for wait in self.stuck}
        for wait in self.stuck.values():
            for need in wait.needs:
                if need.before in self.stuck:
                    edges[wait.id].append(("before", need.before))
                    edges["before", need.before] = [need.before]
                if self._lacks(need):
                    room = need.resource
                    edges[wait.id].append(("room", room.thing))
                    if ("room", room.thing) not in edges:
                        found = [id_ for who, _ in room.holders for id_ in blocking.get(who, ())]
                        edges["room", room.thing] = list(dict.fromkeys(found))
        return edges

    def _reduce(self) -> None:
        todo = deque(self.stuck.values())  # in their order, so that a queue takes one pass
        while todo:
            wait = todo.popleft()
            if wait.id in self.stuck and self._can_end(wait):
                del self.stuck[wait.id]
                things = [need.resource.thing for need in wait.needs]
                for caller in blocked_callers(wait):
                    things.extend(self._go_on(caller))
                for thing in dict.fromkeys(things):
                    todo.extend(self._first(thing))

    def _go_on(self, caller: str) -> Iterator[str]:
        """Let a caller give back all that it holds; says of what."""
        if caller in self._waiting:
            self._waiting.remove(caller)
            for thing, weight in self._holds.get(caller, ()):
                self._held[thing] -= weight
                yield thing

    def _first(self, thing: str) -> Iterator[Wait]:
        """Those who wait here, and are behind nobody."""
        queue = self._queues[thing]
        while queue and queue[0][0].id not in self.stuck:
            queue.popleft()
        for wait, need in queue:
            if need.before in self.stuck:
                return
            yield wait

    def _can_end(self, wait: Wait) -> bool:
        return not any(need.before in self.stuck or self._lacks(need) for need in wait.needs)

    def _lacks(self, need: ResourceNeed) -> bool:
        return need.weight > need.resource.capacity - self._held[need.resource.thing]


def _relinked(
    everyone: Mapping[str, Wait], among: Mapping[str, Wait]
) -> Iterator[tuple[str, Wait]]:
    """These waits, each behind the last of them that is before it."""
    last: dict[tuple[str, str], str] = {}
    for wait in everyone.values():
        needs = []
        for need in wait.needs:
            thing = need.resource.thing
            before = need.before if need.before in among else last.get((thing, need.before), "")
            last[thing, wait.id] = before
            needs.append(ResourceNeed(need.resource, need.weight, before))
        if wait.id in among:
            yield wait.id, replace(wait, needs=tuple(needs))


def _reversed(edges: Mapping[Node, list[Node]]) -> dict[Node, list[Node]]:
    back: dict[Node, list[Node]] = {node: [] for node in edges}
    for node, others in edges.items():
        for other in others:
            back[other].append(node)
    return back


def _reach(edges: Mapping[Node, list[Node]], start: Node) -> dict[Node, Node]:
    """What can be reached from here, each with the step before it."""
    came: dict[Node, Node] = {}
    todo = deque([start])
    while todo:
        here = todo.popleft()
        for there in edges[here]:
            if there not in came:
                came[there] = here
                todo.append(there)
    return came


def _way_back(edges: Mapping[Node, list[Node]], start: str) -> list[str]:
    """A shortest way from the start to itself, without its end."""
    came = _reach(edges, start)
    way: list[Node] = [came[start]]
    while way[-1] != start:
        way.append(came[way[-1]])
    return [node for node in reversed(way) if isinstance(node, str)]
