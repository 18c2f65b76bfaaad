"""Locks and semaphores as they stand: list, show, and what why and health say about them.

The next caller removes stale grants and dead waiters; ``LivePool`` says which these are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from interlock.core import keys
from interlock.core.safe_text import foreign, foreign_names
from interlock.core.thing_names import thing_of
from interlock.core.wait import UnqueuedWait
from interlock.nouns.grants.lock import LockView
from interlock.nouns.grants.pool import Grant, Pool, Waiter
from interlock.nouns.grants.pool_reader import decode_pool, readable_pool
from interlock.nouns.grants.semaphore import NoSemaphore, SemaphoreView, Slots
from interlock.nouns.grants.service import expires_in
from interlock.runtime.reads import every, looked_up, readable_wait
from interlock.runtime.runner import Runner
from interlock.runtime.why import NAMED, Queued
from interlock.steps import Op, Read
from interlock.store import Item, Snapshot


class LivePool(Struct, frozen=True):
    """A pool, and the liveness items of its grants; for ``why`` also those of its waiters."""

    pool: Pool
    live: Mapping[str, Item | None]

    @property
    def grants(self) -> tuple[Grant, ...]:
        """The grants that live."""
        return tuple(grant for grant in self.pool.grants if self.alive(grant))

    @property
    def stale(self) -> tuple[Grant, ...]:
        """The grants that have expired."""
        return tuple(grant for grant in self.pool.grants if not self.alive(grant))

    @property
    def waiters(self) -> tuple[Waiter, ...]:
        """The waiters that live."""
        return tuple(waiter for waiter in self.pool.waiters if self.live[waiter.live])

    @property
    def room(self) -> int:
        """The capacity that no living grant uses."""
        return self.pool.capacity - sum(grant.weight for grant in self.grants)

    @property
    def expires_in(self) -> float | None:
        """How long until the first holder may expire."""
        items = [self.live[key] for grant in self.grants for key in grant.live]
        alive = [item for item in items if item and item.expires_in is not None]
        times = [item.life for item in alive if item.life is not None]
        return min(times, default=None) if len(times) == len(alive) else None

    def alive(self, grant: Grant) -> bool:
        """Whether a grant lives."""
        return None not in [self.live[key] for key in grant.live]

    def terms(self, grant: Grant) -> dict[str, Any]:
        """What a view says about a grant."""
        left = expires_in({key: self.live[key] for key in grant.live})
        return {
            "holder": grant.agent,
            "state": "held" if self.alive(grant) else "stale",
            "token": grant.token,
            "since": grant.since,
            "expires_in": None if left is None else round(left, 3),
            "max_hold": grant.max_hold,
            "session": grant.session,
            "metadata": grant.metadata,
        }


def lock(runner: Runner, name: str) -> Op[LockView]:
    """The lock, its holder and its queue."""
    found = yield from live_pool(runner, keys.lock(name))
    return LockView(lock=name, state="free") if found is None else _lock_view(name, found)


def semaphore(runner: Runner, name: str) -> Op[SemaphoreView | NoSemaphore]:
    """The semaphore, its holders and its queue."""
    found = yield from live_pool(runner, keys.semaphore(name))
    return NoSemaphore(semaphore=name) if found is None else _semaphore_view(name, found)


def locks(runner: Runner) -> Op[tuple[LockView, ...]]:
    """All locks that have a holder or waiters, by name."""
    found = yield from _every_pool(runner, keys.LOCKS)
    return tuple(_lock_view(name, pool) for name, pool in found.items())


def semaphores(runner: Runner) -> Op[tuple[SemaphoreView, ...]]:
    """All semaphores, by name."""
    found = yield from _every_pool(runner, keys.SEMAPHORES)
    return tuple(_semaphore_view(name, pool) for name, pool in found.items())


def live_pool(runner: Runner, key: str, *, waiters: bool = False) -> Op[LivePool | None]:
    """One pool, with the liveness of its grants, and of its waiters if these matter.

    None if there is no such semaphore, or the lock is free.
    """
    base = yield from runner.base()
    snapshot: Snapshot = yield Read(key)
    pool = decode_pool(snapshot[key], base)
    if pool is None or _is_free_lock(key, pool):
        return None
    wanted = [*_liveness(pool), *([waiter.live for waiter in pool.waiters] if waiters else ())]
    return LivePool(pool, (yield from looked_up(wanted, times=True)))


def _every_pool(runner: Runner, prefix: str) -> Op[dict[str, LivePool]]:
    """All locks, or all semaphores, by name.

    One that cannot be read is left out: doctor names it.
    """
    base = yield from runner.base()
    pools: dict[str, Pool] = {}
    for item in (yield from every(prefix)):
        pool = readable_pool(item, base)
        if pool is not None and not _is_free_lock(item.key, pool):
            pools[keys.decode(item.key.removeprefix(prefix))] = pool
    wanted = [key for pool in pools.values() for key in _liveness(pool)]
    live = yield from looked_up(wanted, times=True)
    return {name: LivePool(pool, live) for name, pool in pools.items()}


def _is_free_lock(key: str, pool: Pool) -> bool:
    """Whether this is a free lock, which has an item only while gates wait for it."""
    return key.startswith(keys.LOCKS) and not pool.grants and not pool.waiters


def _liveness(pool: Pool) -> Iterator[str]:
    return (key for grant in pool.grants for key in grant.live)


def _lock_view(name: str, found: LivePool) -> LockView:
    waiters = tuple(waiter.agent for waiter in found.pool.waiters)
    if not found.pool.grants:
        return LockView(lock=name, state="reserved", waiters=waiters)
    return LockView(lock=name, waiters=waiters, **found.terms(found.pool.grants[0]))


def _semaphore_view(name: str, found: LivePool) -> SemaphoreView:
    pool = found.pool
    return SemaphoreView(
        semaphore=name,
        capacity=pool.capacity,
        available=max(pool.free, 0),
        holders=tuple(Slots(weight=grant.weight, **found.terms(grant)) for grant in pool.grants),
        waiters=queue(pool.waiters),
    )


def queue(waiters: Iterable[Waiter]) -> tuple[Queued, ...]:
    """The waiters of a semaphore, in their order."""
    return tuple(Queued(agent=w.agent, weight=w.weight, since=w.since) for w in waiters)


def stands_on(item: Item) -> tuple[str, ...]:
    """What shows whether a listed wait is one: its pools, or its liveness.

    Nothing for a wait that cannot be read.
    """
    found = readable_wait(item)
    if isinstance(found, UnqueuedWait):
        return (found.live,)
    return found or ()


def holders(grants: Iterable[Grant]) -> str:
    """The first holders, with their slots if one has more than one."""
    named = [foreign(g.agent) + (f" ({g.weight})" if g.weight > 1 else "") for g in grants]
    more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
    return ", ".join(named[:NAMED]) + more


def things(wanted: Iterable[str]) -> str:
    """Pools as people name them."""
    return " and ".join(map(thing_of, wanted))


def named_things(wanted: Iterable[str]) -> str:
    """Pools as they stand in a sentence."""
    return foreign_names(map(thing_of, wanted), " and ")
