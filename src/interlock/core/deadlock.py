"""Who waits for each other in a circle, and who has to give way.

A wait is *all of* its needs.  A need is counted: so much out of a capacity, some of which callers
hold, behind whoever waits before us.  One of three that may answer is a need for 1 of 3; so locks,
slots, claims and questions are all told in the same words.

A caller that does not wait goes on, and gives back what it holds one day.  So we reduce: a wait
can end if everybody before it can be served, and what it needs is there once all callers that can
go on have given back.  A caller with several waits goes on if one of them can end.  What remains
after that can never end by itself.

Some of what remains only stands behind a circle and is not part of it: it would go on as soon as
the circle is broken.  So only those give way that wait for themselves in the end, and of these
only the youngest: each wait looks at the graph after it was committed, so the one that closed the
circle sees all of it, and nobody else need do anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct


class Need(Struct, frozen=True, gc=False):
    """So much of something: who holds how much of it, and which wait is served before."""

    thing: str
    weight: int
    capacity: int
    holders: tuple[tuple[str, int], ...]
    before: str = ""


class Wait(Struct, frozen=True, gc=False):
    """A caller that goes on when all its needs are met; ``order`` says when it began to wait."""

    id: str
    caller: str
    agent: str
    order: int
    needs: tuple[Need, ...]


class Knot(Struct, frozen=True):
    """Waits that cannot end because of each other; the cycle is a shortest one from the start."""

    members: tuple[Wait, ...]
    cycle: tuple[Wait, ...]

    @property
    def youngest(self) -> Wait:
        """The one that gives way."""
        return max(self.members, key=lambda wait: (wait.order, wait.id))


def knot(waits: Iterable[Wait], start: str) -> Knot | None:
    """The circle that this wait is part of, if it is part of one."""
    stuck = _stuck({wait.id: wait for wait in waits})
    if start not in stuck:
        return None
    edges = {wait.id: tuple(_blockers(wait, stuck)) for wait in stuck.values()}
    ahead = _reach(edges, start)
    cycle = _way_back(edges, start)
    if not cycle:
        return None
    members = [id_ for id_ in ahead if id_ == start or start in _reach(edges, id_)]
    return Knot(tuple(stuck[id_] for id_ in members), tuple(stuck[id_] for id_ in cycle))


def knots(waits: Iterable[Wait]) -> tuple[Knot, ...]:
    """Every circle that there is."""
    every = tuple(waits)
    found = [knot(every, id_) for id_ in _stuck({wait.id: wait for wait in every})]
    return tuple({each.youngest.id: each for each in found if each is not None}.values())


def _stuck(waits: Mapping[str, Wait]) -> dict[str, Wait]:
    """What remains when everything that can end has ended."""
    stuck = dict(sorted(waits.items(), key=lambda each: each[1].order))
    while True:
        callers, before = _waiting(waits.values(), stuck), len(stuck)
        for wait in tuple(stuck.values()):  # in their order, so that a queue takes one pass
            if _can_end(wait, stuck, callers):
                del stuck[wait.id]
        if len(stuck) == before:
            return stuck


def _waiting(waits: Iterable[Wait], stuck: Mapping[str, Wait]) -> set[str]:
    """The callers that cannot go on: each of their waits is stuck."""
    going = {wait.caller for wait in waits if wait.id not in stuck}
    return {wait.caller for wait in stuck.values() if wait.caller} - going


def _can_end(wait: Wait, stuck: Mapping[str, Wait], callers: set[str]) -> bool:
    return all(
        need.before not in stuck
        and need.weight <= need.capacity - sum([w for who, w in need.holders if who in callers])
        for need in wait.needs
    )


def _blockers(wait: Wait, stuck: Mapping[str, Wait]) -> Iterator[str]:
    """The waits that this one waits for: of who holds what it needs, and those before it."""
    holders = {caller for need in wait.needs for caller, _ in need.holders if caller}
    yield from (other.id for other in stuck.values() if other.caller in holders)
    yield from (need.before for need in wait.needs if need.before in stuck)


def _reach(edges: Mapping[str, tuple[str, ...]], start: str) -> dict[str, str]:
    """What can be reached from here, each with the step before it."""
    came: dict[str, str] = {}
    todo = deque([start])
    while todo:
        here = todo.popleft()
        for there in edges[here]:
            if there not in came:
                came[there] = here
                todo.append(there)
    return came


def _way_back(edges: Mapping[str, tuple[str, ...]], start: str) -> list[str]:
    """A shortest way from the start to itself, without its end."""
    came = _reach(edges, start)
    if start not in came:
        return []
    way = [came[start]]
    while way[-1] != start:
        way.append(came[way[-1]])
    return way[::-1]
