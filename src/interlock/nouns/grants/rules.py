"""The decisions about locks, slots, and several of them at once.

The target of a request (``request.py``) names the pools, and makes the outcomes of its kind.

    acquire     the pools have room and no waiter: take it; the request carries a grant: extend or
                increase that; else refuse, or with ``wait`` queue in all pools at once
    check_wait  a waiter wakes: take the grant that it was given, or remove what blocks it
    withdraw    leave the queue, unless the grant came at the last moment
    confirm     keep a grant that came while the waiter slept
    abandon     end the grant or the wait of a request that its caller gave up
    release     end the grant and serve the waiters in the same commit
    beat        renew the liveness of a grant
    break_grant an operator ends the grant of another agent, with a reason
    reclaim     maintenance ends stale grants and serves the waiters

A refusal (an older token; never held) changes nothing, but the first one for each grant and minute
is recorded.  ``pool.py`` has the theory.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import REFUSAL_WINDOW, Decision, Event, Outcome, Write
from interlock.core.safe_text import foreign
from interlock.core.thing_names import pool_kind, thing_of
from interlock.core.validate import quote
from interlock.core.wait import wait_keys
from interlock.errors import BadInput, NotAllowed
from interlock.nouns.grants.pool import WAITERS, BreakNote, Grant, Pool, Waiter, listed_sessions
from interlock.nouns.grants.pool_change import (
    PoolChanges,
    PoolFacts,
    grant_of,
    liveness,
    renewal,
    things,
)
from interlock.nouns.grants.request import (
    BreakRequest,
    Demand,
    GrantRequest,
    HolderRequest,
    RequestStatus,
)

_NAMED = 5
"""The most grants that an error names to choose from."""


def acquire(request: GrantRequest, facts: PoolFacts, now: float) -> Decision[Outcome]:
    """Take it, extend the grant that the request carries, or refuse; with ``wait``, queue."""
    demands = request.target.demands
    if (
        len(demands) == 1
        and (uncontended := acquire_uncontended(request, facts.pool(demands[0].key), now))
        is not None
    ):
        return uncontended
    changes = PoolChanges(facts, now)
    mine = _carried_grant(changes, demands[0].key, request) if len(demands) == 1 else None
    if request.token is not None and mine is None:
        pool, newest = changes.pool(demands[0].key), facts.newest.get(demands[0].key, 0)
        if (outdated := request.target.outdated(request.token, pool, newest)) is not None:
            return _refusal(outdated, request, facts, request.target.verb("acquire"))
    for demand in demands:
        _admit(changes, demand, mine)
    return (
        _take(changes, request, demands)
        if mine is None
        else _extend_or_increase(changes, request, demands[0], mine)
    )


def acquire_uncontended(
    request: GrantRequest, pool: Pool | None, now: float
) -> Decision[Outcome] | None:
    """The most common case, which needs no other facts: there is room and no waiter."""
    (demand,) = request.target.demands
    if pool is None:
        return _take_uncontended(request, _new_pool(demand), demand, now, new=True)
    if _may_take_uncontended(request, pool, demand):
        return _take_uncontended(request, pool, demand, now)
    return None


def check_wait(request: GrantRequest, facts: PoolFacts, now: float) -> Decision[Outcome]:
    """The status of a waiter that woke, after the stale grants before it were ended."""
    changes = PoolChanges(facts, now)
    status = _settled_status(changes, request)
    return _answer(changes, request, status, "reclaim")


def withdraw(
    request: GrantRequest, facts: PoolFacts, now: float, cycle: tuple[str, ...] = ()
) -> Decision[Outcome]:
    """Leave the queue, unless the grant came at the last moment; a cycle may be the reason."""
    changes = PoolChanges(facts, now)
    status = _settled_status(changes, request)
    if status.kind != "queued":
        return _answer(changes, request, status, "reclaim")
    changes.leave(request.keys, request.grant)
    changes.serve(request.keys)
    left = RequestStatus(
        "deadlock" if cycle else "refused", changes.pools(request.keys), cycle=cycle
    )
    decision = _answer(changes, request, left, "withdraw")
    if not cycle:
        return decision
    refused = [
        Event(f"{pool_kind(key)}:deadlock", request.agent, thing_of(key), details={"cycle": cycle})
        for key in request.keys
    ]
    return replace(decision, events=(*decision.events, *refused))


def abandon(request: GrantRequest, facts: PoolFacts, now: float) -> Decision[str]:
    """End the grant or the wait of this request, if there is one."""
    changes = PoolChanges(facts, now)
    held = _held(changes, request)
    for key, grant in held:
        changes.end(key, grant)
    if not changes.leave(request.keys, request.grant) and not held:
        return Decision(outcome="gone")
    changes.serve(request.keys)
    word, outcome = ("release", "released") if held else ("withdraw", "withdrawn")
    return changes.decision(outcome, request.target.verb(word), request.target.thing)


def confirm(request: GrantRequest, facts: PoolFacts) -> Decision[str]:
    """Keep a grant that came while the waiter slept, with the full ttl."""
    held = _held(PoolChanges(facts, 0.0), request)
    if len(held) < len(request.keys) or not facts.rely(held[0][1]):
        return Decision(outcome="gone")
    renew = renewal(held[0][1], request.target.thing, request.session_ttl)
    return Decision(outcome="agreed", puts=(renew,), quiet=True)


def release(request: HolderRequest, facts: PoolFacts, now: float) -> Decision[Outcome]:
    """End the grants of the holder, and serve the waiters in the same commit."""
    found = [
        (key, grant) for key in request.keys if (grant := held_grant(facts.pool(key), request))
    ]
    for key, grant in found:
        _check_weight(request, thing_of(key), grant)
    if not found:
        return _refuse(request, facts, request.target.verb("release"))
    facts.need([each for _, grant in found for each in grant.live])
    if not all(facts.rely(grant) for _, grant in found):
        return _release_expired(request, facts, found, now)
    if len(found) == 1 and not found[0][1].together:
        pool = facts.pool(found[0][0]) or Pool()
        if not pool.waiters and not pool.gated:
            return _release_uncontended(request, pool, *found[0])
    changes = PoolChanges(facts, now)
    for key, grant in found:
        changes.end(key, grant)
    ended = [key for key, _ in found]
    changes.serve(ended)
    outcome = request.target.released(tuple(map(thing_of, ended)), _served(changes))
    return changes.decision(outcome, request.target.verb("release"), things(ended))


def _check_weight(request: HolderRequest, thing: str, grant: Grant) -> None:
    """A grant is released whole, so a caller that names another weight made a mistake."""
    if dict(request.weights).get(thing, grant.weight) != grant.weight:
        raise BadInput(
            f"you have {grant.weight} of {thing}, and all of it is released at once; write {thing}"
        )


def _release_expired(
    request: HolderRequest, facts: PoolFacts, found: list[tuple[str, Grant]], now: float
) -> Decision[Outcome]:
    """The grant expired, and nothing ended it yet: refuse, and serve the waiters."""
    changes = PoolChanges(facts, now)
    ended = [key for key, _ in found]
    changes.settle(ended)
    outcome = request.target.expired(request.token, found[0][1])
    return changes.decision(outcome, request.target.verb("reclaim"), things(ended))


def beat(request: HolderRequest, facts: PoolFacts, session_ttl: float) -> Decision[Outcome]:
    """Renew the liveness of the grant; an expired grant is not revived."""
    key = request.keys[0]
    pool = facts.pool(key)
    grant = held_grant(pool, request)
    if pool is None or not pool.grants:
        return Decision(outcome=request.target.expired(request.token, None))
    if grant is None:
        return _refuse(request, facts, request.target.verb("beat"))
    if not facts.rely(grant):
        return Decision(outcome=request.target.expired(request.token, grant))
    renew = renewal(grant, thing_of(key), session_ttl)
    status = RequestStatus("extended", (pool,), grant, 0, renew.ttl)
    return Decision(outcome=request.target.outcome(status), puts=(renew,), quiet=True)


def break_grant(request: BreakRequest, facts: PoolFacts, now: float) -> Decision[Outcome]:
    """End the grant of another agent in all of its pools, whether its holder lives or not.

    The same commit serves the waiters and leaves a note with the reason for the holder.
    """
    target = request.target
    pool = facts.pool(target.keys[0])
    fitting = [grant for grant in (() if pool is None else pool.grants) if request.matches(grant)]
    if not fitting:
        return Decision(outcome=target.not_found(pool))
    if len(fitting) > 1:
        names = ", ".join(
            f"{foreign(grant.agent)} (token {grant.token})" for grant in fitting[:_NAMED]
        )
        raise BadInput(
            f"{target.thing} has {len(fitting)} such grants: {names}; say which one:"
            " give its token (token=N, --token N)"
        )
    changes, grant = PoolChanges(facts, now), fitting[0]
    wanted = grant.together or target.keys
    for key in wanted:
        if (there := (changes.pool(key) or Pool()).grant(grant.id)) is not None:
            changes.end(key, there, word="broken")
            changes.write(_note(request, key, there, now))
    changes.serve(wanted)
    outcome = target.broken(grant, _served(changes), request.reason)
    decision = changes.decision(outcome, target.verb("break"), things(wanted))
    return replace(decision, reason=request.reason)


def _note(request: BreakRequest, key: str, grant: Grant, now: float) -> Write:
    note = BreakNote(
        grant=grant.id,
        holder=grant.agent,
        session=grant.session,
        token=grant.token,
        by=request.by,
        at=now,
        reason=request.reason,
    )
    return Write(keys.broken(thing_of(key), grant.id), note)


def reclaim(key: str, facts: PoolFacts, now: float) -> Decision[str]:
    """End the stale grants of a pool, and serve its waiters."""
    changes = PoolChanges(facts, now)
    outcome = "reclaimed" if changes.settle((key,)) else "alive"
    noun = "lock" if key.startswith(keys.LOCKS) else "sem"
    return changes.decision(outcome, f"{noun}.reclaim", thing_of(key))


def held_grant(pool: Pool | None, request: HolderRequest) -> Grant | None:
    """The grant that a holder means: by its id, its token and agent, or its session.

    One without a liveness key belongs to a pipeline, which ends it by itself.
    """
    own = other = None
    for grant in () if pool is None else pool.grants:
        if request.grant:
            fits = grant.id == request.grant
        elif request.token is None:
            fits = grant.session == request.session
        else:
            fits = grant.token == request.token and grant.agent == request.agent
        if fits and grant.live:
            if grant.session == request.session:
                own = grant
            else:
                other = grant
    return own or other


def _answer(
    changes: PoolChanges, request: GrantRequest, status: RequestStatus, word: str
) -> Decision[Outcome]:
    target = request.target
    return changes.decision(target.outcome(status), target.verb(word), target.thing)


def _served(changes: PoolChanges) -> tuple[str, ...]:
    """The agents of the waiters that have something now."""
    return tuple([waiter.agent for waiter in changes.served.values()])


def _may_take_uncontended(request: GrantRequest, pool: Pool, demand: Demand) -> bool:
    """Whether there is room and no waiter, and the request carries no grant."""
    carries = request.token is not None or request.whole_session
    agreed = demand.capacity in (None, pool.capacity)
    free = not pool.waiters and not pool.gated and pool.fits(demand.weight)
    return not carries and agreed and free


def _take_uncontended(
    request: GrantRequest, pool: Pool, demand: Demand, now: float, *, new: bool = False
) -> Decision[Outcome]:
    """Take it without ``PoolChanges``: this is the hot path."""
    target, key = request.target, demand.key
    thing, is_lock = target.thing, key.startswith(keys.LOCKS)
    grant = grant_of(request, demand.weight, now)
    pool = Pool((*pool.grants, grant), (), pool.capacity)
    puts: tuple[Write, ...] = (Write(key, pool),)
    if grant.listed and grant.ttl is None:
        puts += (Write(keys.held(grant.session, key), {}),)
    if grant.ttl is not None or grant.max_hold is not None:
        puts += liveness(grant, thing)
    return Decision(
        outcome=target.granted("granted", pool, grant, _lives(request)),
        verb=target.verb("acquire"),
        thing=thing,
        puts=puts,
        events=(Event("lock:acquired" if is_lock else "semaphore:acquired", request.agent),),
        created=(thing,) if new and not is_lock else (),
    )


def _release_uncontended(
    request: HolderRequest, pool: Pool, key: str, grant: Grant
) -> Decision[Outcome]:
    """Release it without ``PoolChanges``: no waiter has to be served."""
    rest = tuple([each for each in pool.grants if each is not grant])
    over = not rest and key.startswith(keys.LOCKS)
    thing, session = thing_of(key), keys.live(grant.session)
    own = [each for each in grant.live if each != session]
    left = Pool(rest, (), pool.capacity)
    if grant.listed and grant.session not in listed_sessions(left):
        own.append(keys.held(grant.session, key))
    return Decision(
        outcome=request.target.released((thing,), ()),
        verb=request.target.verb("release"),
        thing=thing,
        puts=() if over else (Write(key, left),),
        deletes=(key, *own) if over else tuple(own),
        events=(Event(f"{pool_kind(key)}:released", grant.agent),),
    )


def _take(
    changes: PoolChanges, request: GrantRequest, demands: tuple[Demand, ...]
) -> Decision[Outcome]:
    if not _all_fit(changes, demands):
        changes.settle(request.keys)
        if not _all_fit(changes, demands):
            return _queue(changes, request, demands)
    if changes.just_granted(request.keys, request.agent):
        # Two grants would share a token: the caller retries at once.
        return _answer(changes, request, RequestStatus("gone"), "reclaim")
    together = request.keys if len(demands) > 1 else ()
    given = [
        changes.give(w.key, grant_of(request, w.weight, changes.now, together)) for w in demands
    ]
    changes.write(*liveness(given[0], request.target.thing))
    status = RequestStatus("granted", changes.pools(request.keys), given[0], 0, _lives(request))
    return _answer(changes, request, status, "acquire")


def _queue(
    changes: PoolChanges, request: GrantRequest, demands: tuple[Demand, ...], into: str = ""
) -> Decision[Outcome]:
    """Refuse, or queue behind all waiters."""
    if not request.wait:
        refused = RequestStatus("refused", changes.pools(request.keys))
        return _answer(changes, request, refused, "reclaim")
    together = request.keys if len(demands) > 1 else ()
    for demand in demands:
        pool = changes.pool(demand.key) or Pool()
        if len(pool.waiters) >= WAITERS:
            changes.drop_dead_waiters(demand.key)
            pool = changes.pool(demand.key) or Pool()
        if len(pool.waiters) >= WAITERS:
            raise NotAllowed(
                f"{WAITERS} already wait for {thing_of(demand.key)}; retry later, or do not wait"
            )
        changes.rely_on_few(demand.key)
        waiters = (*pool.waiters, _waiter(request, demand.weight, changes.now, together, into))
        changes.change(demand.key, Pool(pool.grants, waiters, pool.capacity))
    changes.write(*[Write(key, request.keys) for key in wait_keys(request, request.grant)])
    pools = changes.pools(request.keys)
    status = RequestStatus("queued", pools, before=max(len(pool.waiters) for pool in pools) - 1)
    return _answer(changes, request, status, "wait")


def _extend_or_increase(
    changes: PoolChanges, request: GrantRequest, demand: Demand, mine: Grant
) -> Decision[Outcome]:
    """A request that carries a grant: extend or increase it."""
    if demand.weight > mine.weight:
        return _increase(changes, request, Demand(demand.key, demand.weight - mine.weight), mine)
    renew = renewal(mine, request.target.thing, request.session_ttl)
    if request.metadata is None or request.metadata == mine.metadata:
        status = RequestStatus("extended", changes.pools(request.keys), mine, 0, renew.ttl)
        return Decision(outcome=request.target.outcome(status), puts=(renew,), quiet=True)
    mine = replace(mine, metadata=request.metadata)
    changes.change(demand.key, (changes.pool(demand.key) or Pool()).with_grant(mine))
    changes.write(renew)
    status = RequestStatus("extended", changes.pools(request.keys), mine, 0, renew.ttl)
    return _answer(changes, request, status, "extend")


def _increase(
    changes: PoolChanges, request: GrantRequest, more: Demand, mine: Grant
) -> Decision[Outcome]:
    if not _all_fit(changes, (more,), more=True):
        changes.settle(request.keys)
        if not _all_fit(changes, (more,), more=True):
            return _queue(changes, request, (more,), mine.id)
    grown = changes.grow(more.key, mine, more.weight)
    renew = renewal(mine, request.target.thing, request.session_ttl)
    changes.write(renew)
    status = RequestStatus("increased", changes.pools(request.keys), grown, 0, renew.ttl)
    return _answer(changes, request, status, "increase")


def _settled_status(changes: PoolChanges, request: GrantRequest) -> RequestStatus:
    """The status of a request that queued, after the stale grants before it were ended."""
    if not _positions(changes, request):
        return _unqueued_status(changes, request)
    if _never_fits(changes, request):
        changes.leave(request.keys, request.grant)
        changes.serve(request.keys)
        return RequestStatus("gone")
    changes.settle(request.keys)
    if request.grant in changes.served:
        return _granted_status(changes, request)
    positions = _positions(changes, request)
    if len(positions) < len(request.keys):
        return RequestStatus("gone")
    return RequestStatus("queued", changes.pools(request.keys), before=max(positions))


def _unqueued_status(changes: PoolChanges, request: GrantRequest) -> RequestStatus:
    """The status of a request that is in no queue: it was granted, or dropped as dead."""
    held = _held(changes, request)
    if held and (len(held) < len(request.keys) or not changes.facts.alive(held[0][1])):
        return RequestStatus("gone")
    return _granted_status(changes, request)


def _granted_status(changes: PoolChanges, request: GrantRequest) -> RequestStatus:
    """A new grant, or an increase of the grant that the request carries."""
    pools = changes.pools(request.keys)
    if held := _held(changes, request):
        return RequestStatus("granted", pools, held[0][1])
    mine = _carried_grant(changes, request.keys[0], request)
    if mine is not None and mine.weight >= request.target.demands[0].weight:
        return RequestStatus("increased", pools, mine)
    return RequestStatus("gone")


def _refuse(request: HolderRequest, facts: PoolFacts, verb: str) -> Decision[Outcome]:
    """The caller has no grant: refuse, and record that once a minute."""
    target, key, stale = request.target, request.keys[0], False
    pool = facts.pool(key)
    if pool is not None and pool.grants:
        mark = keys.refusal_mark(pool.grants[0].id, request.agent, verb)
        facts.need((mark, *pool.grants[0].live))
        stale = not facts.alive(pool.grants[0])
    outcome = target.outdated(request.token, pool, facts.newest.get(key, 0))
    if outcome is None:  # a refusal is false, so this cannot be an ``or``
        outcome = target.not_held(pool, stale=stale)
    return _refusal(outcome, request, facts, verb)


def _refusal(
    outcome: Outcome, request: HolderRequest | GrantRequest, facts: PoolFacts, verb: str
) -> Decision[Outcome]:
    """A refusal because of a grant, recorded once in a window for each caller and verb.

    Without a grant it is not recorded.
    """
    pool = facts.pool(request.keys[0])
    if pool is None or not pool.grants:
        return Decision(outcome=outcome)
    mark = keys.refusal_mark(pool.grants[0].id, request.agent, verb)
    facts.need((mark,))
    if facts.exists[mark]:
        return Decision(outcome=outcome)
    thing = thing_of(request.keys[0])
    mark_it = Write(mark, {"for": thing}, REFUSAL_WINDOW)
    return Decision(outcome=outcome, verb=verb, thing=thing, puts=(mark_it,))


def _admit(changes: PoolChanges, demand: Demand, mine: Grant | None) -> None:
    """Refuse what can never fit, unless the caller has it; make a new semaphore."""
    pool = changes.pool(demand.key)
    if pool is None:
        changes.change(demand.key, _new_pool(demand))
        return
    if demand.capacity not in (None, pool.capacity):
        name = thing_of(demand.key).removeprefix("sem/")
        raise BadInput(
            f"semaphore {name!r} has capacity {pool.capacity}, not {demand.capacity}; leave the"
            f" capacity out, or change it: interlock sem resize {quote(name)} {demand.capacity}"
        )
    if mine is None or demand.weight > mine.weight:
        _bounded(demand, pool.capacity)


def _new_pool(demand: Demand) -> Pool:
    """The pool of a new lock or semaphore."""
    if demand.key.startswith(keys.LOCKS):
        return Pool()
    if demand.capacity is None:
        name = thing_of(demand.key).removeprefix("sem/")
        raise BadInput(
            f"semaphore {name!r} is not there yet; give its capacity (capacity=N, --capacity N),"
            f" or make it: interlock sem resize {quote(name)} N"
        )
    _bounded(demand, demand.capacity)
    return Pool(capacity=demand.capacity)


def _bounded(demand: Demand, capacity: int) -> None:
    if demand.weight > capacity:
        raise BadInput(
            f"{thing_of(demand.key)} has {capacity} in all, so {demand.weight} can never be had;"
            " ask for less"
        )


def _all_fit(changes: PoolChanges, demands: Iterable[Demand], *, more: bool = False) -> bool:
    """Whether all of it can be taken now: there is room and no waiter."""
    for demand in demands:
        pool = changes.pool(demand.key)
        if pool is not None and (pool.waiters or not pool.fits(demand.weight, more=more)):
            return False
    return True


def _held(changes: PoolChanges, request: GrantRequest) -> list[tuple[str, Grant]]:
    """The pools that have the requested grant, with it."""
    pools = [(key, changes.pool(key)) for key in request.keys]
    found = [(key, pool.grant(request.grant)) for key, pool in pools if pool is not None]
    return [(key, grant) for key, grant in found if grant is not None]


def _positions(changes: PoolChanges, request: GrantRequest) -> list[int]:
    """The position of the request in each queue where it waits."""
    pools = [changes.pool(key) for key in request.keys]
    positions = [pool.position(request.grant) for pool in pools if pool is not None]
    return [position for position in positions if position is not None]


def _never_fits(changes: PoolChanges, request: GrantRequest) -> bool:
    """Whether the request can never fit somewhere, because the capacity was lowered."""
    pools = [(pool, pool.position(request.grant)) for pool in changes.pools(request.keys)]
    return any(pool.never_fits(pool.waiters[at]) for pool, at in pools if at is not None)


def _carried_grant(changes: PoolChanges, key: str, request: GrantRequest) -> Grant | None:
    """The living grant that an acquire carries and may extend."""
    if request.token is None and not request.whole_session:
        return None
    pool = changes.pool(key)
    for grant in () if pool is None else pool.grants:
        by_session = request.token is None and grant.session == request.session
        by_token = request.token is not None and (grant.token, grant.agent) == (
            request.token,
            request.agent,
        )
        if (by_session or by_token) and grant.live and changes.facts.rely(grant):
            return grant
    return None


def _waiter(
    request: GrantRequest, weight: int, now: float, together: tuple[str, ...], into: str
) -> Waiter:
    return Waiter(
        id=request.grant,
        agent=request.agent,
        session=request.session,
        live=keys.live(request.session),
        since=now,
        ttl=request.ttl,
        max_hold=request.max_hold,
        metadata=request.metadata,
        weight=weight,
        caller=request.caller,
        together=together,
        into=into,
        indexed=request.indexed,
        also=request.also,
        listed=request.listed,
    )


def _lives(request: GrantRequest) -> float:
    """How long a new grant lives without a renewal."""
    ttl = request.ttl or request.session_ttl
    return ttl if request.max_hold is None else min(ttl, request.max_hold)
