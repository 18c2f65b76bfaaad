"""What a phase holds: locks and slots, exchanged with the commit that changes the phase.

A pipeline holds as ``pipeline:ID``.  Such a grant has no liveness key, since a pipeline is no
process that could renew it; it ends when the pipeline leaves the phase, or by ``lock break``.

    in both phases      the grant stays; if the number of slots differs, it grows or shrinks
    only in the former  it is released, and the waiters are served
    only in the next    it is acquired, if it is free and has no waiter

All of that happens, or nothing.  A pipeline does not queue: while something is busy it is blocked,
as by a guard, and the release that leaves it free moves the pipeline on.  A grant that an operator
ended is not held any more; leaving the phase is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.safe_text import foreign
from interlock.core.thing_names import key_of, thing_of
from interlock.nouns.grants.pool import Grant, Pool
from interlock.nouns.grants.pool_change import PoolChanges
from interlock.nouns.grants.request import Demand
from interlock.nouns.guards import condition as c
from interlock.nouns.guards.gates import GateFact, Hindrance
from interlock.nouns.guards.leaf_rules import RULES, act, judge
from interlock.nouns.guards.shell import leaf_text
from interlock.nouns.pipelines.pipeline import PhaseGrant


def holder_name(pipeline: str) -> str:
    """The name that a pipeline holds under."""
    return f"pipeline:{pipeline}"


def exchange(
    changes: PoolChanges,
    agent: str,
    held: Iterable[PhaseGrant],
    demands: Sequence[Demand],
    ids: Sequence[str],
) -> tuple[PhaseGrant, ...] | Demand:
    """Release what is not demanded any more and acquire the rest; or the demand that is busy.

    ``ids`` has an id for each demand that may become a new grant.
    """
    standing = _standing(changes, held)
    wanted = {demand.key: demand for demand in demands}
    if _busy(changes, demands, standing) is not None:
        changes.settle(list(wanted))
    if (busy := _busy(changes, demands, standing)) is not None:
        return busy
    ended = [key for key in standing if key not in wanted]
    for key in ended:
        changes.end(key, standing[key])
    changes.serve(ended)
    return tuple(
        _hold(changes, agent, demand, standing.get(demand.key), id_)
        for demand, id_ in zip(demands, ids, strict=True)
    )


def _standing(changes: PoolChanges, held: Iterable[PhaseGrant]) -> dict[str, Grant]:
    """The grants that the pipeline still has, by pool."""
    pools = {key_of(each.thing): each.grant for each in held}
    found = {key: (changes.pool(key) or Pool()).grant(id_) for key, id_ in pools.items()}
    return {key: grant for key, grant in found.items() if grant is not None}


def _busy(
    changes: PoolChanges, demands: Sequence[Demand], standing: Mapping[str, Grant]
) -> Demand | None:
    """The first demand that cannot be met now."""
    for demand in demands:
        pool, mine = changes.pool(demand.key), standing.get(demand.key)
        more = demand.weight - (0 if mine is None else mine.weight)
        if pool is None and demand.key.startswith(keys.SEMAPHORES):
            if demand.capacity is None or demand.weight > demand.capacity:
                return demand
        elif pool is None or more <= 0:
            continue
        elif pool.waiters or not pool.fits(more, more=mine is not None):
            return demand
    return None


def _hold(
    changes: PoolChanges, agent: str, demand: Demand, mine: Grant | None, id_: str
) -> PhaseGrant:
    thing, key = thing_of(demand.key), demand.key
    if mine is None:
        if changes.pool(key) is None:
            changes.change(key, Pool(capacity=demand.capacity or 1))
        mine = Grant(
            id=id_, agent=agent, session=id_, live=(), since=changes.now, weight=demand.weight
        )
        changes.give(key, mine)
    elif mine.weight != demand.weight:
        shrinks = demand.weight < mine.weight
        pool = changes.pool(key) or Pool()
        changes.change(key, pool.with_grant(replace(mine, weight=demand.weight)))
        if shrinks:
            changes.serve((key,))
    return PhaseGrant(thing=thing, grant=mine.id, weight=demand.weight)


def busy_hindrance(changes: PoolChanges, guard: str, demand: Demand) -> Hindrance:
    """Why a demand cannot be met: the holder, or the first waiter."""
    pool, name = changes.pool(demand.key), thing_of(demand.key).partition("/")[2]
    leaf: c.LockFree | c.SemaphoreAvailable
    fact: c.LockFact | c.SemaphoreFact
    holders = tuple(dict.fromkeys(grant.agent for grant in pool.grants)) if pool else ()
    if demand.key.startswith(keys.LOCKS):
        leaf = c.LockFree(lock=name)
        first = pool.grants[0] if pool and pool.grants else None
        fact = c.LockFact() if first is None else c.LockFact(holder=first.agent, since=first.since)
    else:
        leaf = c.SemaphoreAvailable(semaphore=name, slots=demand.weight)
        free = max(0, pool.free) if pool else 0
        capacity = pool.capacity if pool else demand.capacity
        fact = c.SemaphoreFact(capacity=capacity, available=free, holders=holders)
    rule = RULES[type(leaf)]
    value, reason = judge(rule, leaf, fact, changes.now)
    said = act(leaf, fact, wanted=True)
    stored = judge(rule, leaf, fact, None)[1]
    if value and pool is not None and pool.waiters:
        first_waiter = pool.waiters[0].agent
        holders = (first_waiter,)
        reason = stored = f"it is reserved for {foreign(first_waiter)}, the first waiter"
        said = f"{foreign(first_waiter)} gets and releases {foreign(thing_of(demand.key))}"
    return Hindrance(
        guard=guard,
        leaf=leaf_text(leaf),
        reason=reason,
        acts=(said,),
        by=holders,
        stored=stored,
        thing=thing_of(demand.key),
        facts=(GateFact(fact=thing_of(demand.key)),),
    )
