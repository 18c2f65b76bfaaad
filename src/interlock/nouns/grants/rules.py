"""Asking for something that others may have: take it, extend it, queue for it, give it back.

An Ask is for one lock, for slots of one semaphore, or for several of these at once; its noun says
which pools that means and puts how it stands into words.  All decisions about it are here:

    acquire    room and nobody before us: take it; carried: extend or increase it; else refused,
               or (``wait``) behind everybody who waits, in all pools at once
    look       what a waiter does when it wakes: take what it was given, or clear the way
    withdraw   leave the queue, unless our changes came at the last moment
    agree      keep what came while we slept
    abandon    nobody wants it any more: end whatever there is of it
    release    give it back, and serve those who wait in the same commit
    beat       renew what keeps the grant alive
    end        an operator ends the grant of another, with a reason
    reclaim    end what is stale for nobody in particular: maintenance

Refusals (an older token; never held) change nothing but are recorded, the first one for each
grant and minute.  ``pool.py`` has the theory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Event, Outcome, Write
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

Answer = TypeVar("Answer", bound=Outcome)
O_co = TypeVar("O_co", bound=Outcome, covariant=True)

REFUSAL_WINDOW = 60.0
_NAMED = 5


def acquire(ask: GrantRequest[O_co], facts: PoolFacts, now: float) -> Decision[O_co]:
    """Take it, extend what is carried, or be refused; with ``wait`` queue for it."""
    wants = ask.demands
    if (
        len(wants) == 1
        and (quick := acquire_uncontended(ask, facts.pool(wants[0].key), now)) is not None
    ):
        return quick
    changes = PoolChanges(facts, now)
    mine = _own(changes, wants[0].key, ask) if len(wants) == 1 else None
    if ask.token is not None and mine is None:
        pool, newest = changes.pool(wants[0].key), facts.newest.get(wants[0].key, 0)
        if (moved_on := ask.moved_on(pool, newest)) is not None:
            return _refusal(moved_on, wants[0].key, facts, ask.verb("acquire"))
    for want in wants:
        _admit(changes, want, mine)
    return _take(changes, ask, wants) if mine is None else _again(changes, ask, wants[0], mine)


def acquire_uncontended(
    ask: GrantRequest[O_co], pool: Pool | None, now: float
) -> Decision[O_co] | None:
    """What happens most, and needs to know nothing else: there is room, and nobody waits."""
    want = ask.demands[0]
    if pool is None or _may_take_at_once(ask, pool, want):
        return _take_at_once(ask, pool, want, now)
    return None


def check_wait(ask: GrantRequest[O_co], facts: PoolFacts, now: float) -> Decision[O_co]:
    """How a waiter stands when it wakes, after what is in its way and dead was cleared."""
    changes = PoolChanges(facts, now)
    standing = _settle(changes, ask)
    return changes.decision(ask.answer(standing), ask.verb("reclaim"), ask.thing)


def withdraw(
    ask: GrantRequest[O_co], facts: PoolFacts, now: float, cycle: tuple[str, ...] = ()
) -> Decision[O_co]:
    """Leave the queue, unless our changes came at the last moment; a cycle may be the reason."""
    changes = PoolChanges(facts, now)
    standing = _settle(changes, ask)
    if standing.kind != "queued":
        return changes.decision(ask.answer(standing), ask.verb("reclaim"), ask.thing)
    changes.leave(ask.keys, ask.grant)
    changes.serve(ask.keys)
    left = RequestStatus("deadlock" if cycle else "refused", changes.pools(ask.keys), cycle=cycle)
    return changes.decision(ask.answer(left), ask.verb("withdraw"), ask.thing)


def abandon(ask: GrantRequest[Any], facts: PoolFacts, now: float) -> Decision[str]:
    """End the grant or the wait, whatever there is of it."""
    changes = PoolChanges(facts, now)
    held = _held(changes, ask)
    for key, grant in held:
        changes.end(key, grant)
    if not changes.leave(ask.keys, ask.grant) and not held:
        return Decision(outcome="gone")
    changes.serve(ask.keys)
    word, outcome = ("release", "released") if held else ("withdraw", "withdrawn")
    return changes.decision(outcome, ask.verb(word), ask.thing)


def confirm(ask: GrantRequest[Any], facts: PoolFacts) -> Decision[str]:
    """Keep what came while we slept, for as long as was asked."""
    held = _held(PoolChanges(facts, 0.0), ask)
    if len(held) < len(ask.keys) or not facts.rely(held[0][1]):
        return Decision(outcome="gone")
    renew = renewal(held[0][1], ask.thing, ask.session_ttl)
    return Decision(outcome="agreed", puts=(renew,), quiet=True)


def release(who: HolderRequest[O_co], facts: PoolFacts, now: float) -> Decision[O_co]:
    """Give back all that is carried, and serve those who wait in the same commit."""
    found = [(key, grant) for key in who.keys if (grant := held_grant(facts.pool(key), who))]
    for key, grant in found:
        who.agrees(thing_of(key), grant)
    if not found:
        return _refuse(who, facts, who.verb("release"))
    facts.need([each for _, grant in found for each in grant.live])
    if not all(facts.rely(grant) for _, grant in found):
        return _over(who, facts, found, now)
    if len(found) == 1 and not found[0][1].together:
        pool = facts.pool(found[0][0]) or Pool()
        if not pool.waiters:
            return _give_back_at_once(who, pool, *found[0])
    changes = PoolChanges(facts, now)
    for key, grant in found:
        changes.end(key, grant)
    ended = [key for key, _ in found]
    changes.serve(ended)
    outcome = who.released(
        tuple([thing_of(key) for key in ended]), tuple([w.agent for w in changes.served.values()])
    )
    return changes.decision(outcome, who.verb("release"), things(ended))


def _over(
    who: HolderRequest[O_co], facts: PoolFacts, found: list[tuple[str, Grant]], now: float
) -> Decision[O_co]:
    """What is carried lapsed, and nobody took it yet: refused, and passed on with that commit."""
    changes = PoolChanges(facts, now)
    ended = [key for key, _ in found]
    changes.reclaim(ended)
    changes.serve(ended)
    return changes.decision(who.lapsed(found[0][1]), who.verb("reclaim"), things(ended))


def beat(who: HolderRequest[O_co], facts: PoolFacts, session_ttl: float) -> Decision[O_co]:
    """Renew what keeps the grant alive; a grant that lapsed is not revived."""
    key = who.keys[0]
    pool = facts.pool(key)
    grant = held_grant(pool, who)
    if pool is None or not pool.grants:
        return Decision(outcome=who.lapsed(None))
    if grant is None:
        return _refuse(who, facts, who.verb("beat"))
    if not facts.rely(grant):
        return Decision(outcome=who.lapsed(grant))
    renew = renewal(grant, thing_of(key), session_ttl)
    return Decision(outcome=who.extended(pool, grant, renew.ttl), puts=(renew,), quiet=True)


def break_grant(who: BreakRequest[O_co], facts: PoolFacts, now: float) -> Decision[O_co]:
    """End the grant of another, wherever it stands, whether its holder lives or not.

    Those who wait are served with the same commit, and a note tells the holder why.
    """
    pool = facts.pool(who.key)
    fitting = [grant for grant in (() if pool is None else pool.grants) if who.means(grant)]
    if not fitting:
        return Decision(outcome=who.missed(pool))
    if len(fitting) > 1:
        names = ", ".join(f"{grant.agent} (token {grant.token})" for grant in fitting[:_NAMED])
        raise BadInput(
            f"{thing_of(who.key)} has {len(fitting)} such grants: {names}; say which one:"
            " give its token (token=N, --token N)"
        )
    changes, grant = PoolChanges(facts, now), fitting[0]
    wanted = grant.together or (who.key,)
    for key in wanted:
        if (there := (changes.pool(key) or Pool()).grant(grant.id)) is not None:
            changes.end(key, there, word="broken")
            changes.write(_note(who, key, there, now))
    changes.serve(wanted)
    outcome = who.broken(grant, tuple([waiter.agent for waiter in changes.served.values()]))
    decision = changes.decision(outcome, f"{who.noun}.break", things(wanted))
    return replace(decision, reason=who.reason)


def _note(who: BreakRequest[Any], key: str, grant: Grant, now: float) -> Write:
    note = BreakNote(
        grant=grant.id,
        holder=grant.agent,
        session=grant.session,
        token=grant.token,
        by=who.by,
        at=now,
        reason=who.reason,
    )
    return Write(keys.broken(thing_of(key), grant.id), note)


def reclaim(key: str, facts: PoolFacts, now: float) -> Decision[str]:
    """End what is stale, and serve those who wait."""
    changes = PoolChanges(facts, now)
    ended = changes.reclaim((key,))
    changes.serve((key,))
    noun = "lock" if key.startswith(keys.LOCKS) else "sem"
    outcome = "reclaimed" if ended else "alive"
    return changes.decision(outcome, f"{noun}.reclaim", thing_of(key))


def held_grant(pool: Pool | None, who: HolderRequest[Any]) -> Grant | None:
    """The grant that a caller speaks for: by its id, its token and name, or its session."""
    grants = () if pool is None else pool.grants
    if who.grant:
        fitting = [grant for grant in grants if grant.id == who.grant]
    elif who.token is None:
        fitting = [grant for grant in grants if grant.session == who.session]
    else:
        fitting = [g for g in grants if g.token == who.token and g.agent == who.agent]
    own = [grant for grant in fitting if grant.session == who.session]
    return (own or fitting)[-1] if fitting else None


def _may_take_at_once(ask: GrantRequest[Any], pool: Pool, want: Demand) -> bool:
    """Whether there is room, nobody waits, and no grant that is carried may be meant."""
    carries = ask.token is not None or ask.whole_session
    agreed = want.capacity in (None, pool.capacity)
    return not carries and agreed and not pool.waiters and pool.fits(want.weight)


def _take_at_once(
    ask: GrantRequest[O_co], pool: Pool | None, want: Demand, now: float
) -> Decision[O_co]:
    """What happens most, without a Turn."""
    pool = pool or _made(want)
    grant = grant_of(ask, want.weight, now)
    pool = Pool((*pool.grants, grant), (), pool.capacity)
    thing = thing_of(want.key)
    lists: tuple[Write, ...] = ()
    if grant.listed and grant.ttl is None:
        lists = (Write(keys.held(grant.session, want.key), {}),)
    return Decision(
        outcome=ask.answer(RequestStatus("granted", (pool,), grant, 0, _lives(ask))),
        verb=ask.verb("acquire"),
        thing=thing,
        puts=(Write(want.key, pool), *lists, *liveness(grant, thing)),
        events=(Event(f"{pool_kind(want.key)}:acquired", ask.agent),),
    )


def _give_back_at_once(
    who: HolderRequest[O_co], pool: Pool, key: str, grant: Grant
) -> Decision[O_co]:
    """What happens most when it is over: nobody waits for it."""
    rest = tuple([each for each in pool.grants if each is not grant])
    over = not rest and key.startswith(keys.LOCKS)
    thing, session = thing_of(key), keys.live(grant.session)
    own = [each for each in grant.live if each != session]
    left = Pool(rest, (), pool.capacity)
    if grant.listed and grant.session not in listed_sessions(left):
        own.append(keys.held(grant.session, key))
    return Decision(
        outcome=who.released((thing,), ()),
        verb=who.verb("release"),
        thing=thing,
        puts=() if over else (Write(key, left),),
        deletes=(key, *own) if over else tuple(own),
        events=(Event(f"{pool_kind(key)}:released", grant.agent),),
    )


def _take(
    changes: PoolChanges, ask: GrantRequest[O_co], wants: tuple[Demand, ...]
) -> Decision[O_co]:
    if not _fit(changes, wants):
        changes.reclaim(ask.keys)
        changes.serve(ask.keys)
        if not _fit(changes, wants):
            return _queue(changes, ask, wants)
    if changes.fresh(ask.keys, ask.agent):  # with a token of its own, then: it comes again at once
        again = ask.answer(RequestStatus("gone"))
        return changes.decision(again, ask.verb("reclaim"), ask.thing)
    together = ask.keys if len(wants) > 1 else ()
    given = [changes.give(w.key, grant_of(ask, w.weight, changes.now, together)) for w in wants]
    changes.write(*liveness(given[0], ask.thing))
    standing = RequestStatus("granted", changes.pools(ask.keys), given[0], 0, _lives(ask))
    return changes.decision(ask.answer(standing), ask.verb("acquire"), ask.thing)


def _queue(
    changes: PoolChanges, ask: GrantRequest[O_co], wants: tuple[Demand, ...], into: str = ""
) -> Decision[O_co]:
    """Refused, or behind everybody who waits."""
    if not ask.wait:
        refused = RequestStatus("refused", changes.pools(ask.keys))
        return changes.decision(ask.answer(refused), ask.verb("reclaim"), ask.thing)
    together = ask.keys if len(wants) > 1 else ()
    for want in wants:
        pool = changes.pool(want.key) or Pool()
        if len(pool.waiters) >= WAITERS:
            changes.bury(want.key)
            pool = changes.pool(want.key) or Pool()
        if len(pool.waiters) >= WAITERS:
            raise NotAllowed(
                f"{WAITERS} already wait for {thing_of(want.key)}; try again later, or do not wait"
            )
        changes.rely_on_few(want.key)
        waiters = (*pool.waiters, _waiter(ask, want.weight, changes.now, together, into))
        changes.change(want.key, Pool(pool.grants, waiters, pool.capacity))
    changes.write(*[Write(key, ask.keys) for key in wait_keys(ask, ask.grant)])
    pools = changes.pools(ask.keys)
    standing = RequestStatus("queued", pools, before=max(len(pool.waiters) for pool in pools) - 1)
    return changes.decision(ask.answer(standing), ask.verb("wait"), ask.thing)


def _again(
    changes: PoolChanges, ask: GrantRequest[O_co], want: Demand, mine: Grant
) -> Decision[O_co]:
    """A call that carries a grant: extend it, or let it take more."""
    if want.weight > mine.weight:
        return _increase(changes, ask, Demand(want.key, want.weight - mine.weight), mine)
    renew = renewal(mine, ask.thing, ask.session_ttl)
    if ask.metadata is None or ask.metadata == mine.metadata:
        standing = RequestStatus("extended", changes.pools(ask.keys), mine, 0, renew.ttl)
        return Decision(outcome=ask.answer(standing), puts=(renew,), quiet=True)
    mine = replace(mine, metadata=ask.metadata)
    changes.change(want.key, (changes.pool(want.key) or Pool()).with_grant(mine))
    changes.write(renew)
    standing = RequestStatus("extended", changes.pools(ask.keys), mine, 0, renew.ttl)
    return changes.decision(ask.answer(standing), ask.verb("extend"), ask.thing)


def _increase(
    changes: PoolChanges, ask: GrantRequest[O_co], more: Demand, mine: Grant
) -> Decision[O_co]:
    if not _fit(changes, (more,), more=True):
        changes.reclaim(ask.keys)
        changes.serve(ask.keys)
        if not _fit(changes, (more,), more=True):
            return _queue(changes, ask, (more,), mine.id)
    grown = changes.grow(more.key, mine, more.weight)
    renew = renewal(mine, ask.thing, ask.session_ttl)
    changes.write(renew)
    standing = RequestStatus("increased", changes.pools(ask.keys), grown, 0, renew.ttl)
    return changes.decision(ask.answer(standing), ask.verb("increase"), ask.thing)


def _settle(changes: PoolChanges, ask: GrantRequest[Any]) -> RequestStatus:
    """How a request that queued stands, after what is in its way and dead was cleared."""
    if not _places(changes, ask):
        return _outside(changes, ask)
    if _never(changes, ask):
        changes.leave(ask.keys, ask.grant)
        changes.serve(ask.keys)
        return RequestStatus("gone")
    changes.reclaim(ask.keys)
    changes.serve(ask.keys)
    if ask.grant in changes.served:
        return _given(changes, ask)
    places = _places(changes, ask)
    if len(places) < len(ask.keys):
        return RequestStatus("gone")
    return RequestStatus("queued", changes.pools(ask.keys), before=max(places))


def _outside(changes: PoolChanges, ask: GrantRequest[Any]) -> RequestStatus:
    """How a request stands that waits no more: it got what it wanted, or it was forgotten."""
    held = _held(changes, ask)
    if held and len(held) == len(ask.keys) and changes.facts.alive(held[0][1]):
        return _given(changes, ask)
    return RequestStatus("gone") if held else _given(changes, ask)


def _given(changes: PoolChanges, ask: GrantRequest[Any]) -> RequestStatus:
    """A grant of its own, or more of the one that it carries."""
    pools = changes.pools(ask.keys)
    if held := _held(changes, ask):
        return RequestStatus("granted", pools, held[0][1])
    mine = _own(changes, ask.keys[0], ask)
    if mine is not None and mine.weight >= ask.demands[0].weight:
        return RequestStatus("increased", pools, mine)
    return RequestStatus("gone")


def _refuse(who: HolderRequest[O_co], facts: PoolFacts, verb: str) -> Decision[O_co]:
    """No grant of the caller: refused, and recorded once in a while."""
    key = who.keys[0]
    pool = facts.pool(key)
    newest = facts.newest.get(key, 0)
    if pool is None or not pool.grants:
        return Decision(outcome=who.refused(pool, newest, stale=False))
    grant = pool.grants[0]
    facts.need((keys.refusal_mark(grant.id), *grant.live))
    outcome = who.refused(pool, newest, stale=not facts.alive(grant))
    return _refusal(outcome, key, facts, verb)


def _refusal(outcome: Answer, key: str, facts: PoolFacts, verb: str) -> Decision[Answer]:
    """A refusal in favour of the first grant of a pool; one that has none is not recorded."""
    pool = facts.pool(key)
    if pool is None or not pool.grants:
        return Decision(outcome=outcome)
    mark = keys.refusal_mark(pool.grants[0].id)
    facts.need((mark,))
    if facts.exists[mark]:
        return Decision(outcome=outcome)
    thing = thing_of(key)
    mark_it = Write(mark, {"for": thing}, REFUSAL_WINDOW)
    return Decision(outcome=outcome, verb=verb, thing=thing, puts=(mark_it,))


def _admit(changes: PoolChanges, want: Demand, mine: Grant | None) -> None:
    """Refuse what can never be, unless we have it; make a semaphore that is not there yet."""
    pool = changes.pool(want.key)
    if pool is None:
        changes.change(want.key, _made(want))
        return
    if want.capacity not in (None, pool.capacity):
        name = thing_of(want.key).removeprefix("sem/")
        raise BadInput(
            f"semaphore {name!r} has capacity {pool.capacity}, not {want.capacity}; leave the"
            f" capacity out, or change it: interlock sem resize {quote(name)} {want.capacity}"
        )
    if mine is None or want.weight > mine.weight:
        _bounded(want, pool.capacity)


def _made(want: Demand) -> Pool:
    """The pool of something that nobody asked for before."""
    if want.key.startswith(keys.LOCKS):
        return Pool()
    if want.capacity is None:
        name = thing_of(want.key).removeprefix("sem/")
        raise BadInput(
            f"semaphore {name!r} is not there yet; give its capacity (capacity=N, --capacity N),"
            f" or make it: interlock sem resize {quote(name)} N"
        )
    _bounded(want, want.capacity)
    return Pool(capacity=want.capacity)


def _bounded(want: Demand, capacity: int) -> None:
    if want.weight > capacity:
        raise BadInput(
            f"{thing_of(want.key)} has {capacity} in all, so {want.weight} can never be had;"
            " ask for less"
        )


def _fit(changes: PoolChanges, wants: Iterable[Demand], *, more: bool = False) -> bool:
    """Whether all of it can be taken at once: there is room, and nobody came before."""
    pools = [(changes.pool(want.key), want.weight) for want in wants]
    return all(p is None or (not p.waiters and p.fits(weight, more=more)) for p, weight in pools)


def _held(changes: PoolChanges, ask: GrantRequest[Any]) -> list[tuple[str, Grant]]:
    """Where the grant that was asked for stands."""
    pools = [(key, changes.pool(key)) for key in ask.keys]
    found = [(key, pool.grant(ask.grant)) for key, pool in pools if pool is not None]
    return [(key, grant) for key, grant in found if grant is not None]


def _places(changes: PoolChanges, ask: GrantRequest[Any]) -> list[int]:
    """How many wait before us, in each pool where we wait."""
    pools = [changes.pool(key) for key in ask.keys]
    places = [pool.position(ask.grant) for pool in pools if pool is not None]
    return [place for place in places if place is not None]


def _never(changes: PoolChanges, ask: GrantRequest[Any]) -> bool:
    """Whether somewhere we wait for more than there will ever be: the capacity was lowered."""
    pools = [(pool, pool.position(ask.grant)) for pool in changes.pools(ask.keys)]
    return any(pool.never_fits(pool.waiters[at]) for pool, at in pools if at is not None)


def _own(changes: PoolChanges, key: str, ask: GrantRequest[Any]) -> Grant | None:
    """The grant that an acquire carries and may extend, if it lives."""
    if ask.token is None and not ask.whole_session:
        return None
    pool = changes.pool(key)
    for grant in () if pool is None else pool.grants:
        by_session = ask.token is None and grant.session == ask.session
        by_token = ask.token is not None and (grant.token, grant.agent) == (ask.token, ask.agent)
        if (by_session or by_token) and changes.facts.rely(grant):
            return grant
    return None


def _waiter(
    ask: GrantRequest[Any], weight: int, now: float, together: tuple[str, ...], into: str
) -> Waiter:
    return Waiter(
        id=ask.grant,
        agent=ask.agent,
        session=ask.session,
        live=keys.live(ask.session),
        since=now,
        ttl=ask.ttl,
        max_hold=ask.max_hold,
        metadata=ask.metadata,
        weight=weight,
        caller=ask.caller,
        together=together,
        into=into,
        indexed=ask.indexed,
        also=ask.also,
        listed=ask.listed,
    )


def _lives(ask: GrantRequest[Any]) -> float:
    """How long a fresh grant lives at least, renewed or not at most."""
    ttl = ask.ttl or ask.session_ttl
    return ttl if ask.max_hold is None else min(ttl, ask.max_hold)
