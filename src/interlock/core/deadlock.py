"""Deadlock detection: which waits block each other without end, and which of them is the victim.

A wait ends when *all* of its needs are met.  A need is a weight of a resource, which callers hold
in part, behind the waits that are served before.  A question to one of three agents is a need for
1 of 3; so locks, slots, claims and questions are described alike.

A caller without a wait goes on, and releases its grants some day.  So the waits are reduced: a
wait can end if every wait before it can be served, and its needs fit once all callers that can go
on have released.  A caller with several waits goes on if one of them can end.  The waits that
remain can never end by themselves.

A wait blocks more than its caller.  A caller may be inside of another: ``a/b`` is a part of what
``a`` does, so ``a`` cannot go on while all waits of ``a`` and inside of it are stuck.  A caller
may work on a claim with a name of its own; and a wait of an agent blocks the agent and its
session, which others may wait for.

Some of the remaining waits only stand behind a cycle and would go on if the cycle were broken.  A
*deadlocked set* is a set of waits that never end even if all others go on, and that all end as
soon as one of them withdraws.  Its victim is the youngest: each wait reads the graph after its
commit, so the wait that closed the cycle sees all of it, and no other need act.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

Node: TypeAlias = str | tuple[str, str]
"""A wait by its id, or what one wait needs of another, between the two."""


class Resource(Struct, frozen=True, gc=False):
    """A shared resource: its capacity, and its holders with the weight of each.

    ``agents`` are the agents of the holders, if they are known.
    """

    thing: str
    capacity: int
    holders: tuple[tuple[str, int], ...]
    agents: tuple[str, ...] = ()


class ResourceNeed(Struct, frozen=True, gc=False):
    """A weight of a resource, and the wait that is served before."""

    resource: Resource
    weight: int = 1
    before: str = ""


class Wait(Struct, frozen=True, gc=False):
    """A caller that goes on when all its needs are met; ``order`` says when the wait began.

    ``also`` are other callers that the wait blocks.
    """

    id: str
    caller: str
    agent: str
    order: int
    needs: tuple[ResourceNeed, ...]
    also: tuple[str, ...] = ()


class DeadlockedSet(Struct, frozen=True):
    """Waits that block each other; the cycle is a shortest one from the start."""

    members: tuple[Wait, ...]
    cycle: tuple[Wait, ...]

    @property
    def victim(self) -> Wait:
        """The wait that withdraws."""
        return max(self.members, key=_age)

    @property
    def names(self) -> tuple[str, ...]:
        """The agents of the cycle, and after a wait the agent that its caller holds as, if another.

        It is ``bob, ada`` if bob waits for a grant that his own caller holds as ada.
        """
        after = (*self.cycle[1:], self.cycle[0])
        steps = [
            (wait.agent, *_holds_as(on, wait)) for wait, on in zip(self.cycle, after, strict=True)
        ]
        return tuple([name for step in steps for name in step])


def deadlocked_set(waits: Iterable[Wait], start: str) -> DeadlockedSet | None:
    """The deadlocked set of this wait, if it is part of a cycle."""
    everyone = _in_order(waits)
    return _blocking_set(everyone, everyone, start)


def closed_deadlock(waits: Iterable[Wait], start: str) -> DeadlockedSet | None:
    """The deadlocked set that this wait closed, as if each wait had checked when it began.

    Other waits may have closed sets of their own and be about to withdraw: a wait that is stuck
    only because of these does not count.
    """
    everyone = _in_order(waits)
    if start not in everyone:
        return None
    last = _age(everyone[start])
    older = {id_: wait for id_, wait in everyone.items() if _age(wait) <= last}
    stuck = Reduction(everyone, older).stuck
    if start not in stuck:
        return None
    standing = _still_waiting(everyone, [older[id_] for id_ in stuck if id_ != start])
    return _blocking_set(everyone, {**standing, start: everyone[start]}, start)


def is_stuck(waits: Iterable[Wait], start: str) -> bool:
    """Whether this wait cannot end now, no matter which wait is the victim."""
    everyone = _in_order(waits)
    return start in Reduction(everyone, everyone).stuck


def _still_waiting(everyone: Mapping[str, Wait], stuck: Iterable[Wait]) -> dict[str, Wait]:
    """The waits that go on after every earlier wait has checked the graph."""
    all_ = {wait.id: wait for wait in stuck}
    if not Reduction(everyone, all_).stuck:
        return all_
    standing: dict[str, Wait] = {}
    for wait in all_.values():
        if Reduction(everyone, {**standing, wait.id: wait}).stuck:
            continue  # it closed a deadlocked set, and withdraws
        standing[wait.id] = wait
    return standing


def _blocking_set(
    everyone: Mapping[str, Wait], among: Mapping[str, Wait], start: str
) -> DeadlockedSet | None:
    """The waits that block each other with the start, even if all others go on."""
    reduction = Reduction(everyone, among)
    while start in reduction.stuck:
        stuck, edges = reduction.stuck, reduction.edges()
        back = _reach(_reversed(edges), start)
        cycle_nodes = {node for node in _reach(edges, start) if node in back}
        members = {id_: wait for id_, wait in stuck.items() if id_ in cycle_nodes}
        if len(members) == len(stuck):
            cycle = tuple([stuck[id_] for id_ in _way_back(edges, start)])
            return DeadlockedSet(tuple(members.values()), cycle)
        reduction = Reduction(everyone, members)  # the others that are stuck may yet go on
    return None


def _holds_as(on: Wait, wait: Wait) -> tuple[str, ...]:
    """The agent as which a waiting caller holds what a wait needs, if not its own agent."""
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
    """The caller, and the callers that it is inside of."""
    while caller:
        yield caller
        caller = caller.rpartition("/")[0]


def blocked_callers(wait: Wait) -> Iterator[str]:
    """The callers that it blocks, unless another of their waits ends."""
    for name in (wait.caller, *wait.also):
        yield from lineage(name)


class Reduction:
    """The waits that remain when every wait that can end has ended.

    The waits that are not ``among`` these count as gone from their queues, and their callers go on.
    """

    def __init__(self, everyone: Mapping[str, Wait], among: Mapping[str, Wait]) -> None:
        self.stuck = dict(among if among is everyone else _relinked(everyone, among))
        among = self.stuck.copy()
        self._resources = {
            n.resource.thing: n.resource for wait in among.values() for n in wait.needs
        }
        self._queues: dict[str, deque[tuple[Wait, ResourceNeed]]] = {}
        for wait in among.values():
            for need in wait.needs:
                self._queues.setdefault(need.resource.thing, deque()).append((wait, need))
        going = {c for w in everyone.values() if w.id not in among for c in blocked_callers(w)}
        self._waiting = {c for w in among.values() for c in blocked_callers(w)} - going
        self._holds: dict[str, list[tuple[str, int]]] = {}
        self._held = dict.fromkeys(self._resources, 0)
        for resource in self._resources.values():
            for caller, weight in resource.holders:
                if caller in self._waiting:
                    self._holds.setdefault(caller, []).append((resource.thing, weight))
                    self._held[resource.thing] += weight
        self._reduce()

    def edges(self) -> dict[Node, list[Node]]:
        """The edges between the stuck waits, with what they need in between."""
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
                    resource = need.resource
                    edges[wait.id].append(("resource", resource.thing))
                    if ("resource", resource.thing) not in edges:
                        found = [
                            id_ for who, _ in resource.holders for id_ in blocking.get(who, ())
                        ]
                        edges["resource", resource.thing] = list(dict.fromkeys(found))
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
        """Release all grants of a caller; yields their things."""
        if caller in self._waiting:
            self._waiting.remove(caller)
            for thing, weight in self._holds.get(caller, ()):
                self._held[thing] -= weight
                yield thing

    def _first(self, thing: str) -> Iterator[Wait]:
        """The waits for this resource that are behind no other."""
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
    """These waits, each linked to the last of them before it."""
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
    """The nodes that can be reached from here, each with the step before it."""
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
    """A shortest cycle from the start, without its end."""
    came = _reach(edges, start)
    way: list[Node] = [came[start]]
    while way[-1] != start:
        way.append(came[way[-1]])
    return [node for node in reversed(way) if isinstance(node, str)]
