"""Housekeeping of grants: stale grants, listed waits that are over, notes of broken grants."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from interlock.core import keys
from interlock.core.decision import Decision
from interlock.errors import StoreDamaged, TooLarge
from interlock.nouns.grants import rules
from interlock.nouns.grants.pool import Pool, listed_sessions
from interlock.nouns.grants.pool_reader import (
    decide_on,
    decode_break_note,
    decode_pool,
    readable_pool,
)
from interlock.nouns.grants.views import stands_on
from interlock.runtime.attempt import DecideOp
from interlock.runtime.housekeeping import HousekeepingPart
from interlock.runtime.reads import every, looked_up
from interlock.runtime.retention import old_items
from interlock.steps import Op
from interlock.store import Item

BREAK_NOTE_KEPT = 86400.0
"""Seconds for which the note that a grant was broken is kept for its holder."""


class GrantHousekeepingPart(HousekeepingPart):
    """The part of a pass that is about grants."""

    def reclaim(self) -> Op[None]:
        """End stale grants, serve the waiters; delete listed waits and grants that no pool has."""
        work, base = self.work, (yield from self.work.runner.base())
        pools = yield from every(*keys.POOLS)
        wanted = [(item, _relies_on(readable_pool(item, base))) for item in pools]
        live = yield from looked_up(key for _, lives in wanted for key in lives)
        stale = [item for item, lives in wanted if any(live[key] is None for key in lives)]
        held = {item.key: listed_sessions(readable_pool(item, base)) for item in pools}
        stale += [*(yield from _orphans(base)), *(yield from _unheld(held))]
        for item in stale:
            if work.reclaimed >= work.bound:
                work.left += 1
                continue
            try:
                done = yield from work.runner.change(self._deciding(item, base), work.actor)
            except (StoreDamaged, TooLarge):  # the others need not wait for it; doctor names it
                work.left += 1
                continue
            work.reclaimed += done.outcome in ("reclaimed", "cleared")

    def expired(self, now: float) -> Op[list[Item]]:
        """Notes for holders whose grant an operator broke."""
        return old_items(keys.BROKEN, decode_break_note, now - BREAK_NOTE_KEPT)

    def _deciding(self, item: Item, base: int) -> Callable[[], DecideOp[str]]:
        if item.key.startswith(keys.POOLS):
            decide = partial(rules.reclaim, item.key)
            return lambda: decide_on(self.work.runner, base, (item.key,), decide)
        if item.key.startswith(keys.HELD):
            return lambda: _listed(item.key, base)
        return lambda: _wait(item.key, _stands_on(item), base)


def _unheld(held: dict[str, set[str]]) -> Op[list[Item]]:
    """Pools that are listed under a session which has nothing of them."""
    lists = [(item, keys.held_of(item.key)) for item in (yield from every(keys.HELD))]
    return [item for item, (session, key) in lists if session not in held.get(key, ())]


def _orphans(base: int) -> Op[list[Item]]:
    """Waits that are listed, but stand in no queue, or whose liveness is gone."""
    waits = yield from every(keys.WAITS)
    wanted = {item.key: _stands_on(item) for item in waits}
    found = yield from looked_up(filter(None, wanted.values()))
    stands = {item.key: found.get(wanted[item.key]) for item in waits}
    return [item for item in waits if not _waits(item.key, stands[item.key], base, readable_pool)]


def _listed(key: str, base: int) -> DecideOp[str]:
    session, pool = keys.held_of(key)
    snapshot = yield (key, pool)
    if snapshot[key] is None or session in listed_sessions(decode_pool(snapshot[pool], base)):
        return Decision(outcome="gone")
    return Decision(outcome="cleared", verb="wait.clear", thing="record", deletes=(key,))


def _wait(key: str, stands_on: str, base: int) -> DecideOp[str]:
    snapshot = yield ((key, stands_on) if stands_on else (key,))
    found = snapshot[stands_on] if stands_on else None
    if snapshot[key] is None or _waits(key, found, base):
        return Decision(outcome="gone")
    return Decision(outcome="cleared", verb="wait.clear", thing="record", deletes=(key,))


def _relies_on(pool: Pool | None) -> tuple[str, ...]:
    """The liveness of all holders, and of the first waiter while something is free."""
    if pool is None:
        return ()
    held = [key for grant in pool.grants for key in grant.live]
    first = pool.waiters[:1] if pool.free > 0 else ()
    return (*held, *(waiter.live for waiter in first))


def _stands_on(item: Item) -> str:
    """One of the pools of a listed wait, or its liveness; "" if it cannot be read."""
    return next(iter(stands_on(item)), "")


def _waits(
    key: str,
    stands_on: Item | None,
    base: int,
    read: Callable[[Item, int], Pool | None] = decode_pool,
) -> bool:
    if stands_on is None or stands_on.key.startswith(keys.LIVE):
        return stands_on is not None
    pool = read(stands_on, base)
    return pool is not None and pool.position(keys.id_of(key)) is not None
