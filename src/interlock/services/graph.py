"""Who waits for whom, as far as it can be reached from one wait.

From a pool one comes to its holders and to those who wait before us; from a holder, by the index
``waits/{caller}/``, to what it waits for itself.  Only a caller that may hold something is listed
there, so a wait among holders that all go on is settled by one read.

Edges die with the liveness of who waits or holds.  Nearly every wait is no circle, so liveness is
asked for only when there seems to be one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from interlock.core import keys
from interlock.core.deadlock import Knot, Need, Wait, knot, knots
from interlock.core.pool import Grant, Pool, Waiter, caller_of
from interlock.services import states
from interlock.services.gather import KEYS_AT_ONCE
from interlock.services.runner import Glance, Reading
from interlock.store import Range, Ref


class Graph:
    """All that can be reached from some pools."""

    def __init__(self, base: int) -> None:
        self.pools: dict[str, Pool | None] = {}
        self._base = base
        self._callers: set[str] = set()
        self._someone_waits = False

    def explore(self, start: tuple[str, ...]) -> Reading[None]:
        """Read from these pools on, one level after the other."""
        todo: list[Ref] = list(start)
        while todo:
            some, todo = todo[:KEYS_AT_ONCE], todo[KEYS_AT_ONCE:]
            snapshot = yield Glance(some)
            for key, item in snapshot.items.items():
                self.pools[key] = states.pool(item, self._base)
                todo.extend(self._beyond(self.pools[key]))
            found = [item for items in snapshot.ranges.values() for item in items]
            self._someone_waits |= bool(found)
            todo.extend(key for item in found for key in states.waited_for(item))
            todo = [ref for ref in dict.fromkeys(todo) if ref not in self.pools]

    def knot(self, start: str, live: Mapping[str, bool] | None = None) -> Knot | None:
        """The circle that this wait is part of; without liveness, the one that it may be."""
        if not self._someone_waits:
            return None
        return knot(_waits(self.pools, live), start)

    def knots(self, live: Mapping[str, bool]) -> tuple[Knot, ...]:
        """Every circle among those who live."""
        return knots(_waits(self.pools, live)) if self._someone_waits else ()

    def liveness(self) -> tuple[str, ...]:
        """What keeps alive whoever waits or holds here."""
        pools = [pool for pool in self.pools.values() if pool is not None]
        holders = [key for pool in pools for grant in pool.grants for key in grant.live]
        waiters = [waiter.live for pool in pools for waiter in pool.waiters]
        return tuple(dict.fromkeys((*holders, *waiters)))

    def _beyond(self, pool: Pool | None) -> Iterator[Ref]:
        """The other pools of those who wait here, and what the holders wait for."""
        for waiter in () if pool is None else pool.waiters:
            yield from waiter.together
        callers: list[Grant | Waiter] = [] if pool is None else [*pool.grants]
        callers += [] if pool is None else [each for each in pool.waiters if each.indexed]
        for caller in filter(None, map(caller_of, callers)):
            if caller not in self._callers:
                self._callers.add(caller)
                yield Range(keys.waits(caller), limit=KEYS_AT_ONCE)


def _waits(pools: Mapping[str, Pool | None], live: Mapping[str, bool] | None) -> list[Wait]:
    """Everybody who waits and lives, with what that takes."""
    needs: dict[str, list[Need]] = {}
    waiters: dict[str, Waiter] = {}
    for key, pool in pools.items():
        if pool is not None:
            for waiter, need in _needs(key, pool, live):
                waiters[waiter.id] = waiter
                needs.setdefault(waiter.id, []).append(need)
    return [
        Wait(id_, caller_of(waiter), waiter.agent, waiter.order or 0, tuple(needs[id_]))
        for id_, waiter in waiters.items()
    ]


def _needs(key: str, pool: Pool, live: Mapping[str, bool] | None) -> Iterator[tuple[Waiter, Need]]:
    standing = [g for g in pool.grants if live is None or all(live[each] for each in g.live)]
    holders = tuple((caller_of(grant), grant.weight) for grant in standing)
    before = ""
    for waiter in pool.waiters:
        if live is None or live[waiter.live]:
            yield waiter, Need(key, waiter.weight, pool.capacity, holders, before)
            before = waiter.id
