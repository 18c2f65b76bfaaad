"""Who waits for whom, as far as it can be reached from one wait.

From a wait one comes to its pools, and there to the holders and to those who wait before it; from
a holder, by the index ``waits/{caller}/``, to what it waits for itself.  Only a caller that may
hold something is listed there, so a wait among holders that all go on is settled by one read.

Edges die with the liveness of who waits or holds.  Nearly every wait is no circle, so liveness is
asked for only when there seems to be one, and only of those who are in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

from interlock.core import keys
from interlock.core.deadlock import Knot, Need, Room, Wait, closed, lineage
from interlock.core.pool import Grant, Pool, Waiter, caller_of, loose
from interlock.services import states
from interlock.services.gather import KEYS_AT_ONCE
from interlock.services.runner import Glance, Reading
from interlock.store import Item, Range, Ref


class Graph:
    """All that one wait may wait for.

    ``pools`` are those of it that are known, ``let_go`` grants that nobody has to act for.
    """

    def __init__(
        self,
        base: int,
        start: str,
        pools: Mapping[str, Pool | None],
        let_go: AbstractSet[str] = frozenset(),
    ) -> None:
        self.pools = dict(pools)
        self._base = base
        self._let_go = let_go
        self._start = start
        self._waits = {start: None}
        self._lists: set[str] = set()
        self._followed: dict[str, int] = {}
        self._several: set[str] = set()
        self._someone_waits = False

    def explore(self, wanted: tuple[str, ...]) -> Reading[None]:
        """Read from these pools of the wait on, one level after the other."""
        asked = [(key, self._start) for key in wanted]
        todo: dict[Ref, None] = {}
        while True:
            while asked:
                key, id_ = asked.pop()
                if key in self.pools:
                    asked.extend(self._follow(key, id_, todo))
                else:
                    todo[key] = None
            if not todo:
                return
            some = tuple(todo)[:KEYS_AT_ONCE]
            snapshot = yield Glance(some)
            todo = dict.fromkeys(tuple(todo)[KEYS_AT_ONCE:])
            for key, item in snapshot.items.items():
                self.pools[key] = states.pool(item, self._base)
                asked.extend(self._met(key))
            for item in [each for items in snapshot.ranges.values() for each in items]:
                asked.extend(self._listed(item))

    def knot(self, dead: AbstractSet[str] = frozenset()) -> Knot | None:
        """The knot that the wait closed, if nothing is dead but this."""
        return closed(self._standing(dead), self._start) if self._someone_waits else None

    def pools_of(self, knot: Knot) -> tuple[str, ...]:
        """The pools that its members wait for."""
        return tuple(dict.fromkeys([n.room.thing for w in knot.members for n in w.needs]))

    def liveness(self, knot: Knot) -> tuple[str, ...]:
        """What keeps its members alive, and what they hold of each other's needs."""
        members = {wait.id for wait in knot.members}
        inside = {caller for wait in knot.members for caller in lineage(wait.caller)}
        found: dict[str, None] = {}
        for pool in filter(None, map(self.pools.get, self.pools_of(knot))):
            found.update((w.live, None) for w in pool.waiters if w.id in members)
            held = [grant.live for grant in pool.grants if caller_of(grant) in inside]
            found.update((key, None) for live in held for key in live)
        return tuple(found)

    def with_pools(self, fresh: Mapping[str, Pool | None]) -> Graph:
        """The same, some pools as they stand by now."""
        other = Graph(self._base, self._start, {**self.pools, **fresh}, self._let_go)
        other._waits, other._someone_waits = self._waits, self._someone_waits
        return other

    def _follow(self, key: str, id_: str, todo: dict[Ref, None]) -> Iterator[tuple[str, str]]:
        """Whom a wait meets in one of its pools: the holders, and who waits before it."""
        pool = self.pools[key]
        place = None if pool is None else pool.place(id_)
        if pool is None or place is None:
            return
        if key not in self._followed:
            lists = {keys.waits(caller) for caller in map(caller_of, pool.grants) if caller}
            todo.update((Range(each, limit=KEYS_AT_ONCE), None) for each in lists - self._lists)
            self._lists |= lists
        done = self._followed.get(key, 0)
        for waiter in pool.waiters[done : place + 1]:
            self._waits[waiter.id] = None
            yield from ((other, waiter.id) for other in waiter.together if other != key)
        self._followed[key] = max(done, place + 1)

    def _met(self, key: str) -> Iterator[tuple[str, str]]:
        """The waits that brought us to a pool which is known only now."""
        pool = self.pools[key]
        waiters = () if pool is None else pool.waiters
        yield from ((key, waiter.id) for waiter in waiters if waiter.id in self._waits)

    def _listed(self, item: Item) -> Iterator[tuple[str, str]]:
        """A wait of somebody who holds something."""
        id_ = keys.wait_of(item.key)
        self._someone_waits = True
        self._waits[id_] = None
        yield from ((key, id_) for key in states.waited_for(item))

    def _standing(self, dead: AbstractSet[str]) -> list[Wait]:
        """Every wait of a living that was met, with what it takes."""
        self._several = self._known_twice()
        needs: dict[str, list[Need]] = {}
        waiters: dict[str, Waiter] = {}
        for key, pool in self.pools.items():
            for waiter, need in () if pool is None else self._needs(key, pool, dead):
                waiters[waiter.id] = waiter
                needs.setdefault(waiter.id, []).append(need)
        return [
            Wait(id_, self._name(waiter), waiter.agent, waiter.order or 0, tuple(needs[id_]))
            for id_, waiter in waiters.items()
        ]

    def _needs(self, key: str, pool: Pool, dead: AbstractSet[str]) -> Iterator[tuple[Waiter, Need]]:
        last = max([n for n, w in enumerate(pool.waiters, 1) if w.id in self._waits], default=0)
        standing = [grant for grant in pool.grants if dead.isdisjoint(grant.live)]
        holders = tuple([(self._name(grant), grant.weight) for grant in standing])
        room = Room(key, pool.capacity, holders)
        before = ""
        for waiter in pool.waiters[:last]:
            if waiter.live not in dead:
                yield waiter, Need(room, waiter.weight, before)
                before = waiter.id

    def _name(self, party: Grant | Waiter) -> str:
        caller = caller_of(party)
        return "" if caller in self._several or party.id in self._let_go else caller

    def _known_twice(self) -> set[str]:
        """Names under which somebody waits for what somebody of the same name holds.

        They are two, and each may go on: nobody can tell what else belongs to which of them.
        """
        pools = [pool for pool in self.pools.values() if pool is not None]
        return {
            caller
            for pool in pools
            for caller in {*map(caller_of, pool.grants)} & {*map(caller_of, pool.waiters)}
            if loose(caller)
        }
