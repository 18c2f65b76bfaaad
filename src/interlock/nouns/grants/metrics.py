"""Locks and semaphores as numbers for monitors; totals only, since their names have no bound."""

from __future__ import annotations

from collections import Counter

from interlock.core import keys
from interlock.nouns.grants.pool_reader import readable_pool
from interlock.nouns.grants.views import LivePool
from interlock.runtime.metrics import Metric, gauge, gauges
from interlock.runtime.monitoring import Scrape
from interlock.runtime.reads import looked_up
from interlock.steps import Op


def grant_gauges(scrape: Scrape) -> Op[list[Metric]]:
    """Locks by state, slots in use and free, waiters and how long the first of them waits."""
    locks = yield from _pools(scrape, keys.LOCKS)
    semaphores = yield from _pools(scrape, keys.SEMAPHORES)
    states = Counter(held=0, stale=0, reserved=0)
    for pool in locks:
        states["held"] += len(pool.grants)
        states["stale"] += len(pool.stale)
        states["reserved"] += bool(pool.pool.waiters) and not pool.pool.grants
    slots = Counter(used=0, stale=0, free=0)
    for pool in semaphores:
        slots["used"] += sum(grant.weight for grant in pool.grants)
        slots["stale"] += sum(grant.weight for grant in pool.stale)
        slots["free"] += max(0, pool.pool.free)
    now = scrape.runner.clock.wall()
    waits = {"lock": _waits(locks), "semaphore": _waits(semaphores)}
    oldest = min([now, *waits["lock"], *waits["semaphore"]])
    numbers = {kind: len(since) for kind, since in waits.items()}
    says = "Seconds for which the oldest waiter has waited."
    return [
        *gauges("interlock_locks", "Locks that are not free, by state.", "state", states),
        *gauges("interlock_semaphore_slots", "Slots of all semaphores.", "state", slots),
        *gauges("interlock_waiters", "Agents that wait for a grant.", "kind", numbers),
        gauge("interlock_waiter_oldest_seconds", says, round(now - oldest, 3)),
    ]


def _pools(scrape: Scrape, prefix: str) -> Op[list[LivePool]]:
    base = yield from scrape.runner.base()
    read = [readable_pool(item, base) for item in (yield from scrape.read(prefix))]
    pools = [pool for pool in read if pool is not None]
    live = yield from looked_up(
        key for pool in pools for grant in pool.grants for key in grant.live
    )
    return [LivePool(pool, live) for pool in pools]


def _waits(pools: list[LivePool]) -> list[float]:
    return [waiter.since for pool in pools for waiter in pool.pool.waiters]
