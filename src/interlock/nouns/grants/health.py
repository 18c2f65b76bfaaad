"""Problems of locks and semaphores: stale grants, long holds, long waits, standing deadlocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.deadlock import DeadlockedSet
from interlock.core.safe_text import foreign, foreign_names
from interlock.core.thing_names import thing_of
from interlock.core.validate import command, quote, span
from interlock.core.wait import UnqueuedWait
from interlock.nouns.grants.pool import Grant, Pool, Waiter
from interlock.nouns.grants.pool_reader import readable_pool
from interlock.nouns.grants.pool_wait import wait_target
from interlock.nouns.grants.views import holders, named_things, things
from interlock.runtime import reads
from interlock.runtime.deadlock import standing
from interlock.runtime.health import BOUND, HealthCheck, Problem
from interlock.runtime.reads import every, looked_up
from interlock.runtime.wait_graph import Start
from interlock.steps import Op
from interlock.store import Item

Held: TypeAlias = tuple[Grant, list[str]]
"""A grant, and the pools that have it."""
SETTLED = 10.0
"""A waiter that closes a cycle withdraws at once; a cycle that is older than this stands."""
LOOKED_AT = 100
"""Waits from which a cycle is looked for."""


def health(checkup: HealthCheck) -> Op[list[Problem]]:
    """Grants and waits that need attention."""
    base = yield from checkup.runner.base()
    now = checkup.runner.clock.wall()
    pools: dict[str, Pool] = {}
    for prefix in keys.POOLS:
        items = yield from checkup.read(prefix)
        read = {item.key: readable_pool(item, base) for item in items}
        pools |= {key: pool for key, pool in read.items() if pool is not None}
    grants, waiters = _grants(pools), _patient(checkup, pools, now)
    wanted = [key for grant, _ in grants for key in grant.live]
    wanted += [waiter.live for waiter in waiters]
    live = {key for key, item in (yield from looked_up(wanted)).items() if item is not None}
    stale = [each for each in grants if not live.issuperset(each[0].live)]
    return [
        *_stale((yield from _still_held(stale))),
        *_stuck(checkup, [each for each in grants if live.issuperset(each[0].live)], now),
        *_waiting([each for each in waiters if each.live in live], pools, now),
        *(yield from _deadlocks(checkup, pools, base)),
    ]


def _stuck(checkup: HealthCheck, held: Iterable[Held], now: float) -> Iterator[Problem]:
    for grant, wanted in held:
        thing = things(wanted)
        if now - grant.since > checkup.patience.held:
            yield Problem(
                kind="stuck",
                says=f"{named_things(wanted)}: {foreign(grant.agent)} has held it for"
                f" {span(now - grant.since)}",
                remedy=f"see what {foreign(grant.agent)} does: when that ends, this moves on",
                thing=thing,
                agent=grant.agent,
                since=grant.since,
            )


def _patient(checkup: HealthCheck, pools: Mapping[str, Pool], now: float) -> list[Waiter]:
    """The waiters that wait for too long, once each."""
    long = [
        (waiter if waiter.together else replace(waiter, together=(key,)))  # names its only pool
        for key, pool in pools.items()
        for waiter in pool.waiters
        if now - waiter.since > checkup.patience.waiting
    ]
    return list({waiter.id: waiter for waiter in long}.values())


def _deadlocks(checkup: HealthCheck, pools: Mapping[str, Pool], base: int) -> Op[list[Problem]]:
    """Cycles that stand, though the wait that closed them should have withdrawn."""
    now = checkup.runner.clock.wall()
    asleep = yield from every(keys.WAITS, most=BOUND)
    waits: list[tuple[Start, Waiter | UnqueuedWait]] = [*_asleep(asleep), *_queued(pools)]
    begun = now - checkup.runner.capabilities.allow(SETTLED)
    settled = {start.id: (start, who) for start, who in waits if who.since < begun}
    looked_at = sorted(settled.values(), key=lambda each: not each[1].indexed)[:LOOKED_AT]
    targets = {key: wait_target(key, pool) for key, pool in pools.items()}
    found: dict[str, DeadlockedSet] = {}
    for start, _ in looked_at:
        if (deadlock := (yield from standing(base, start, targets))) is not None:
            found[deadlock.victim.id] = deadlock
    return [
        _deadlock(deadlock, settled[id_][1]) for id_, deadlock in found.items() if id_ in settled
    ]


def _queued(pools: Mapping[str, Pool]) -> Iterator[tuple[Start, Waiter]]:
    """Every wait in a queue."""
    for key, pool in pools.items():
        for waiter in pool.waiters:
            yield Start(id=waiter.id, wants=waiter.together or (key,)), waiter


def _asleep(items: Iterable[Item]) -> Iterator[tuple[Start, UnqueuedWait]]:
    """Every wait that is listed and stands in no queue."""
    for item in items:
        found, id_ = reads.readable_wait(item), keys.id_of(item.key)
        if isinstance(found, UnqueuedWait):
            wants, revision = (found.wants,), item.revision
            yield Start(id=id_, wants=wants, asleep=found, revision=revision), found


def _grants(pools: Mapping[str, Pool]) -> list[Held]:
    """Every grant once, with all that it is for."""
    found: dict[str, Held] = {}
    for key, pool in pools.items():
        for grant in pool.grants:
            found.setdefault(grant.id, (grant, []))[1].append(key)
    return list(found.values())


def _still_held(stale: Sequence[Held]) -> Op[list[Held]]:
    """The stale grants that were not just released."""
    items = yield from looked_up(key for _, wanted in stale for key in wanted)
    pools = {key: readable_pool(item, 0) for key, item in items.items() if item}
    left = [(grant, [k for k in wanted if _has(pools.get(k), grant)]) for grant, wanted in stale]
    return [(grant, wanted) for grant, wanted in left if wanted]


def _has(pool: Pool | None, grant: Grant) -> bool:
    return pool is not None and pool.grant(grant.id) is not None


def _stale(found: Iterable[Held]) -> Iterator[Problem]:
    for grant, wanted in found:
        thing = things(wanted)
        yield Problem(
            kind="stale",
            says=f"{named_things(wanted)}: {foreign(grant.agent)} stopped renewing it, and no"
            " caller has acquired it since",
            remedy="acquire it, or run 'interlock maintain'",
            thing=thing,
            agent=grant.agent,
            since=grant.since,
        )


def _waiting(waiters: Iterable[Waiter], pools: Mapping[str, Pool], now: float) -> Iterator[Problem]:
    for waiter in waiters:
        thing = things(waiter.together)
        waited = (
            f"{named_things(waiter.together)}: {foreign(waiter.agent)} has waited for"
            f" {span(now - waiter.since)}"
        )
        yield Problem(
            kind="waiting",
            says="; ".join((waited, *_in_the_way(waiter, pools))),
            remedy=f"see {command(f'interlock why {quote(thing_of(waiter.together[0]))}')}",
            thing=thing,
            agent=waiter.agent,
            since=waiter.since,
        )


def _in_the_way(waiter: Waiter, pools: Mapping[str, Pool]) -> Iterator[str]:
    """The holders of what it waits for, and the waiters before it."""
    for key in waiter.together:
        pool = pools.get(key, Pool())
        if pool.grants:
            yield f"{foreign(thing_of(key))} is held by {holders(pool.grants)}"
        if place := pool.position(waiter.id):
            yield f"{foreign(pool.waiters[place - 1].agent)} is before it"


def _deadlock(deadlock: DeadlockedSet, youngest: Waiter | UnqueuedWait) -> Problem:
    names = deadlock.names
    wanted = dict.fromkeys(need.resource.thing for wait in deadlock.cycle for need in wait.needs)
    return Problem(
        kind="deadlock",
        says=f"{named_things(wanted)}: waiting never ends"
        f" ({foreign_names((*names, names[0]), ' -> ')})",
        remedy="end one of them, and the others go on",
        thing=things(wanted),
        agent=youngest.agent,
        since=youngest.since,
        cycle=(*names, names[0]),
    )
