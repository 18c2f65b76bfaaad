"""Asking for something that others may have: take it, extend it, queue for it, give it back.

An Ask is for one lock, for slots of one semaphore, or for several of these at once; its noun says
which pools that means and puts how it stands into words.  All decisions about it are here:

    acquire    room and nobody before us: take it; carried: extend or increase it; else refused,
               or (``wait``) behind everybody who waits, in all pools at once
    look       what a waiter does when it wakes: take what it was given, or clear the way
    withdraw   leave the queue, unless our turn came at the last moment
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
from interlock.core.validate import shell
from interlock.core.wait import listed
from interlock.errors import BadInput, NotAllowed
from interlock.nouns.grants.pool import WAITERS, Break, Grant, Pool, Waiter, listing
from interlock.nouns.grants.pool_change import Facts, Turn, grant_of, liveness, renewal, things
from interlock.nouns.grants.request import Ask, Breaker, Caller, Standing, Want

Answer = TypeVar("Answer", bound=Outcome)
O_co = TypeVar("O_co", bound=Outcome, covariant=True)

REFUSAL_WINDOW = 60.0
_NAMED = 5


def acquire(ask: Ask[O_co], known: Facts, now: float) -> Decision[O_co]:
    """Take it, extend what is carried, or be refused; with ``wait`` queue for it."""
    wants = ask.wants
    if len(wants) == 1 and (quick := at_once(ask, known.pool(wants[0].key), now)) is not None:
        return quick
    turn = Turn(known, now)
    mine = _own(turn, wants[0].key, ask) if len(wants) == 1 else None
    if ask.token is not None and mine is None:
        pool, newest = turn.pool(wants[0].key), known.newest.get(wants[0].key, 0)
        if (moved_on := ask.moved_on(pool, newest)) is not None:
            return _refusal(moved_on, wants[0].key, known, ask.verb("acquire"))
    for want in wants:
        _admit(turn, want, mine)
    return _take(turn, ask, wants) if mine is None else _again(turn, ask, wants[0], mine)


def at_once(ask: Ask[O_co], pool: Pool | None, now: float) -> Decision[O_co] | None:
    """What happens most, and needs to know nothing else: there is room, and nobody waits."""
    want = ask.wants[0]
    if pool is None or _may_take_at_once(ask, pool, want):
        return _take_at_once(ask, pool, want, now)
    return None


def look(ask: Ask[O_co], known: Facts, now: float) -> Decision[O_co]:
    """How a waiter stands when it wakes, after what is in its way and dead was cleared."""
    turn = Turn(known, now)
    standing = _settle(turn, ask)
    return turn.decision(ask.answer(standing), ask.verb("reclaim"), ask.thing)


def withdraw(
    ask: Ask[O_co], known: Facts, now: float, cycle: tuple[str, ...] = ()
) -> Decision[O_co]:
    """Leave the queue, unless our turn came at the last moment; a cycle may be the reason."""
    turn = Turn(known, now)
    standing = _settle(turn, ask)
    if standing.kind != "queued":
        return turn.decision(ask.answer(standing), ask.verb("reclaim"), ask.thing)
    turn.leave(ask.keys, ask.grant)
    turn.serve(ask.keys)
    left = Standing("deadlock" if cycle else "refused", turn.pools(ask.keys), cycle=cycle)
    return turn.decision(ask.answer(left), ask.verb("withdraw"), ask.thing)


def abandon(ask: Ask[Any], known: Facts, now: float) -> Decision[str]:
    """End the grant or the wait, whatever there is of it."""
    turn = Turn(known, now)
    held = _held(turn, ask)
    for key, grant in held:
        turn.end(key, grant)
    if not turn.leave(ask.keys, ask.grant) and not held:
        return Decision(outcome="gone")
    turn.serve(ask.keys)
    word, outcome = ("release", "released") if held else ("withdraw", "withdrawn")
    return turn.decision(outcome, ask.verb(word), ask.thing)


def agree(ask: Ask[Any], known: Facts) -> Decision[str]:
    """Keep what came while we slept, for as long as was asked."""
    held = _held(Turn(known, 0.0), ask)
    if len(held) < len(ask.keys) or not known.rely(held[0][1]):
        return Decision(outcome="gone")
    renew = renewal(held[0][1], ask.thing, ask.session_ttl)
    return Decision(outcome="agreed", puts=(renew,), quiet=True)


def release(who: Caller[O_co], known: Facts, now: float) -> Decision[O_co]:
    """Give back all that is carried, and serve those who wait in the same commit."""
    found = [(key, grant) for key in who.keys if (grant := carried(known.pool(key), who))]
    for key, grant in found:
        who.agrees(keys.thing(key), grant)
    if not found:
        return _refuse(who, known, who.verb("release"))
    known.need([each for _, grant in found for each in grant.live])
    if not all(known.rely(grant) for _, grant in found):
        return _over(who, known, found, now)
    if len(found) == 1 and not found[0][1].together:
        pool = known.pool(found[0][0]) or Pool()
        if not pool.waiters:
            return _give_back_at_once(who, pool, *found[0])
    turn = Turn(known, now)
    for key, grant in found:
        turn.end(key, grant)
    ended = [key for key, _ in found]
    turn.serve(ended)
    outcome = who.released(
        tuple([keys.thing(key) for key in ended]), tuple([w.agent for w in turn.served.values()])
    )
    return turn.decision(outcome, who.verb("release"), things(ended))


def _over(
    who: Caller[O_co], known: Facts, found: list[tuple[str, Grant]], now: float
) -> Decision[O_co]:
    """What is carried lapsed, and nobody took it yet: refused, and passed on with that commit."""
    turn = Turn(known, now)
    ended = [key for key, _ in found]
    turn.reclaim(ended)
    turn.serve(ended)
    return turn.decision(who.lapsed(found[0][1]), who.verb("reclaim"), things(ended))


def beat(who: Caller[O_co], known: Facts, session_ttl: float) -> Decision[O_co]:
    """Renew what keeps the grant alive; a grant that lapsed is not revived."""
    key = who.keys[0]
    pool = known.pool(key)
    grant = carried(pool, who)
    if pool is None or not pool.grants:
        return Decision(outcome=who.lapsed(None))
    if grant is None:
        return _refuse(who, known, who.verb("beat"))
    if not known.rely(grant):
        return Decision(outcome=who.lapsed(grant))
    renew = renewal(grant, keys.thing(key), session_ttl)
    return Decision(outcome=who.extended(pool, grant, renew.ttl), puts=(renew,), quiet=True)


def end(who: Breaker[O_co], known: Facts, now: float) -> Decision[O_co]:
    """End the grant of another, wherever it stands, whether its holder lives or not.

    Those who wait are served with the same commit, and a note tells the holder why.
    """
    pool = known.pool(who.key)
    fitting = [grant for grant in (() if pool is None else pool.grants) if who.means(grant)]
    if not fitting:
        return Decision(outcome=who.missed(pool))
    if len(fitting) > 1:
        names = ", ".join(f"{grant.agent} (token {grant.token})" for grant in fitting[:_NAMED])
        raise BadInput(
            f"{keys.thing(who.key)} has {len(fitting)} such grants: {names}; say which one:"
            " give its token (token=N, --token N)"
        )
    turn, grant = Turn(known, now), fitting[0]
    wanted = grant.together or (who.key,)
    for key in wanted:
        if (there := (turn.pool(key) or Pool()).grant(grant.id)) is not None:
            turn.end(key, there, word="broken")
            turn.put(_note(who, key, there, now))
    turn.serve(wanted)
    outcome = who.broken(grant, tuple([waiter.agent for waiter in turn.served.values()]))
    decision = turn.decision(outcome, f"{who.noun}.break", things(wanted))
    return replace(decision, reason=who.reason)


def _note(who: Breaker[Any], key: str, grant: Grant, now: float) -> Write:
    note = Break(
        grant=grant.id,
        holder=grant.agent,
        session=grant.session,
        token=grant.token,
        by=who.by,
        at=now,
        reason=who.reason,
    )
    return Write(keys.broken(keys.thing(key), grant.id), note)


def reclaim(key: str, known: Facts, now: float) -> Decision[str]:
    """End what is stale, and serve those who wait."""
    turn = Turn(known, now)
    ended = turn.reclaim((key,))
    turn.serve((key,))
    noun = "lock" if key.startswith(keys.LOCKS) else "sem"
    outcome = "reclaimed" if ended else "alive"
    return turn.decision(outcome, f"{noun}.reclaim", keys.thing(key))


def carried(pool: Pool | None, who: Caller[Any]) -> Grant | None:
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


def _may_take_at_once(ask: Ask[Any], pool: Pool, want: Want) -> bool:
    """Whether there is room, nobody waits, and no grant that is carried may be meant."""
    carries = ask.token is not None or ask.whole_session
    agreed = want.capacity in (None, pool.capacity)
    return not carries and agreed and not pool.waiters and pool.fits(want.weight)


def _take_at_once(ask: Ask[O_co], pool: Pool | None, want: Want, now: float) -> Decision[O_co]:
    """What happens most, without a Turn."""
    pool = pool or _made(want)
    grant = grant_of(ask, want.weight, now)
    pool = Pool((*pool.grants, grant), (), pool.capacity)
    thing = keys.thing(want.key)
    lists: tuple[Write, ...] = ()
    if grant.listed and grant.ttl is None:
        lists = (Write(keys.held(grant.session, want.key), {}),)
    return Decision(
        outcome=ask.answer(Standing("granted", (pool,), grant, 0, _lives(ask))),
        verb=ask.verb("acquire"),
        thing=thing,
        puts=(Write(want.key, pool), *lists, *liveness(grant, thing)),
        events=(Event(f"{keys.kind(want.key)}:acquired", ask.agent),),
    )


def _give_back_at_once(who: Caller[O_co], pool: Pool, key: str, grant: Grant) -> Decision[O_co]:
    """What happens most when it is over: nobody waits for it."""
    rest = tuple([each for each in pool.grants if each is not grant])
    over = not rest and key.startswith(keys.LOCKS)
    thing, session = keys.thing(key), keys.live(grant.session)
    own = [each for each in grant.live if each != session]
    left = Pool(rest, (), pool.capacity)
    if grant.listed and grant.session not in listing(left):
        own.append(keys.held(grant.session, key))
    return Decision(
        outcome=who.released((thing,), ()),
        verb=who.verb("release"),
        thing=thing,
        puts=() if over else (Write(key, left),),
        deletes=(key, *own) if over else tuple(own),
        events=(Event(f"{keys.kind(key)}:released", grant.agent),),
    )


def _take(turn: Turn, ask: Ask[O_co], wants: tuple[Want, ...]) -> Decision[O_co]:
    if not _fit(turn, wants):
        turn.reclaim(ask.keys)
        turn.serve(ask.keys)
        if not _fit(turn, wants):
            return _queue(turn, ask, wants)
    if turn.fresh(ask.keys, ask.agent):  # with a token of its own, then: it comes again at once
        again = ask.answer(Standing("gone"))
        return turn.decision(again, ask.verb("reclaim"), ask.thing)
    together = ask.keys if len(wants) > 1 else ()
    given = [turn.give(w.key, grant_of(ask, w.weight, turn.now, together)) for w in wants]
    turn.put(*liveness(given[0], ask.thing))
    standing = Standing("granted", turn.pools(ask.keys), given[0], 0, _lives(ask))
    return turn.decision(ask.answer(standing), ask.verb("acquire"), ask.thing)


def _queue(turn: Turn, ask: Ask[O_co], wants: tuple[Want, ...], into: str = "") -> Decision[O_co]:
    """Refused, or behind everybody who waits."""
    if not ask.wait:
        refused = Standing("refused", turn.pools(ask.keys))
        return turn.decision(ask.answer(refused), ask.verb("reclaim"), ask.thing)
    together = ask.keys if len(wants) > 1 else ()
    for want in wants:
        pool = turn.pool(want.key) or Pool()
        if len(pool.waiters) >= WAITERS:
            turn.bury(want.key)
            pool = turn.pool(want.key) or Pool()
        if len(pool.waiters) >= WAITERS:
            raise NotAllowed(
                f"{WAITERS} already wait for {keys.thing(want.key)};"
                " try again later, or do not wait"
            )
        turn.rely_on_few(want.key)
        waiters = (*pool.waiters, _waiter(ask, want.weight, turn.now, together, into))
        turn.change(want.key, Pool(pool.grants, waiters, pool.capacity))
    turn.put(*[Write(key, ask.keys) for key in listed(ask, ask.grant)])
    pools = turn.pools(ask.keys)
    standing = Standing("queued", pools, before=max(len(pool.waiters) for pool in pools) - 1)
    return turn.decision(ask.answer(standing), ask.verb("wait"), ask.thing)


def _again(turn: Turn, ask: Ask[O_co], want: Want, mine: Grant) -> Decision[O_co]:
    """A call that carries a grant: extend it, or let it take more."""
    if want.weight > mine.weight:
        return _increase(turn, ask, Want(want.key, want.weight - mine.weight), mine)
    renew = renewal(mine, ask.thing, ask.session_ttl)
    if ask.metadata is None or ask.metadata == mine.metadata:
        standing = Standing("extended", turn.pools(ask.keys), mine, 0, renew.ttl)
        return Decision(outcome=ask.answer(standing), puts=(renew,), quiet=True)
    mine = replace(mine, metadata=ask.metadata)
    turn.change(want.key, (turn.pool(want.key) or Pool()).with_grant(mine))
    turn.put(renew)
    standing = Standing("extended", turn.pools(ask.keys), mine, 0, renew.ttl)
    return turn.decision(ask.answer(standing), ask.verb("extend"), ask.thing)


def _increase(turn: Turn, ask: Ask[O_co], more: Want, mine: Grant) -> Decision[O_co]:
    if not _fit(turn, (more,), more=True):
        turn.reclaim(ask.keys)
        turn.serve(ask.keys)
        if not _fit(turn, (more,), more=True):
            return _queue(turn, ask, (more,), mine.id)
    grown = turn.grow(more.key, mine, more.weight)
    renew = renewal(mine, ask.thing, ask.session_ttl)
    turn.put(renew)
    standing = Standing("increased", turn.pools(ask.keys), grown, 0, renew.ttl)
    return turn.decision(ask.answer(standing), ask.verb("increase"), ask.thing)


def _settle(turn: Turn, ask: Ask[Any]) -> Standing:
    """How a request that queued stands, after what is in its way and dead was cleared."""
    if not _places(turn, ask):
        return _outside(turn, ask)
    if _never(turn, ask):
        turn.leave(ask.keys, ask.grant)
        turn.serve(ask.keys)
        return Standing("gone")
    turn.reclaim(ask.keys)
    turn.serve(ask.keys)
    if ask.grant in turn.served:
        return _given(turn, ask)
    places = _places(turn, ask)
    if len(places) < len(ask.keys):
        return Standing("gone")
    return Standing("queued", turn.pools(ask.keys), before=max(places))


def _outside(turn: Turn, ask: Ask[Any]) -> Standing:
    """How a request stands that waits no more: it got what it wanted, or it was forgotten."""
    held = _held(turn, ask)
    if held and len(held) == len(ask.keys) and turn.known.alive(held[0][1]):
        return _given(turn, ask)
    return Standing("gone") if held else _given(turn, ask)


def _given(turn: Turn, ask: Ask[Any]) -> Standing:
    """A grant of its own, or more of the one that it carries."""
    pools = turn.pools(ask.keys)
    if held := _held(turn, ask):
        return Standing("granted", pools, held[0][1])
    mine = _own(turn, ask.keys[0], ask)
    if mine is not None and mine.weight >= ask.wants[0].weight:
        return Standing("increased", pools, mine)
    return Standing("gone")


def _refuse(who: Caller[O_co], known: Facts, verb: str) -> Decision[O_co]:
    """No grant of the caller: refused, and recorded once in a while."""
    key = who.keys[0]
    pool = known.pool(key)
    newest = known.newest.get(key, 0)
    if pool is None or not pool.grants:
        return Decision(outcome=who.refused(pool, newest, stale=False))
    grant = pool.grants[0]
    known.need((keys.refused(grant.id), *grant.live))
    outcome = who.refused(pool, newest, stale=not known.alive(grant))
    return _refusal(outcome, key, known, verb)


def _refusal(outcome: Answer, key: str, known: Facts, verb: str) -> Decision[Answer]:
    """A refusal in favour of the first grant of a pool; one that has none is not recorded."""
    pool = known.pool(key)
    if pool is None or not pool.grants:
        return Decision(outcome=outcome)
    mark = keys.refused(pool.grants[0].id)
    known.need((mark,))
    if known.live[mark]:
        return Decision(outcome=outcome)
    thing = keys.thing(key)
    mark_it = Write(mark, {"for": thing}, REFUSAL_WINDOW)
    return Decision(outcome=outcome, verb=verb, thing=thing, puts=(mark_it,))


def _admit(turn: Turn, want: Want, mine: Grant | None) -> None:
    """Refuse what can never be, unless we have it; make a semaphore that is not there yet."""
    pool = turn.pool(want.key)
    if pool is None:
        turn.change(want.key, _made(want))
        return
    if want.capacity not in (None, pool.capacity):
        name = keys.thing(want.key).removeprefix("sem/")
        raise BadInput(
            f"semaphore {name!r} has capacity {pool.capacity}, not {want.capacity}; leave the"
            f" capacity out, or change it: interlock sem resize {shell(name)} {want.capacity}"
        )
    if mine is None or want.weight > mine.weight:
        _bounded(want, pool.capacity)


def _made(want: Want) -> Pool:
    """The pool of something that nobody asked for before."""
    if want.key.startswith(keys.LOCKS):
        return Pool()
    if want.capacity is None:
        name = keys.thing(want.key).removeprefix("sem/")
        raise BadInput(
            f"semaphore {name!r} is not there yet; give its capacity (capacity=N, --capacity N),"
            f" or make it: interlock sem resize {shell(name)} N"
        )
    _bounded(want, want.capacity)
    return Pool(capacity=want.capacity)


def _bounded(want: Want, capacity: int) -> None:
    if want.weight > capacity:
        raise BadInput(
            f"{keys.thing(want.key)} has {capacity} in all, so {want.weight} can never be had;"
            " ask for less"
        )


def _fit(turn: Turn, wants: Iterable[Want], *, more: bool = False) -> bool:
    """Whether all of it can be taken at once: there is room, and nobody came before."""
    pools = [(turn.pool(want.key), want.weight) for want in wants]
    return all(p is None or (not p.waiters and p.fits(weight, more=more)) for p, weight in pools)


def _held(turn: Turn, ask: Ask[Any]) -> list[tuple[str, Grant]]:
    """Where the grant that was asked for stands."""
    pools = [(key, turn.pool(key)) for key in ask.keys]
    found = [(key, pool.grant(ask.grant)) for key, pool in pools if pool is not None]
    return [(key, grant) for key, grant in found if grant is not None]


def _places(turn: Turn, ask: Ask[Any]) -> list[int]:
    """How many wait before us, in each pool where we wait."""
    pools = [turn.pool(key) for key in ask.keys]
    places = [pool.place(ask.grant) for pool in pools if pool is not None]
    return [place for place in places if place is not None]


def _never(turn: Turn, ask: Ask[Any]) -> bool:
    """Whether somewhere we wait for more than there will ever be: the capacity was lowered."""
    pools = [(pool, pool.place(ask.grant)) for pool in turn.pools(ask.keys)]
    return any(pool.never(pool.waiters[at]) for pool, at in pools if at is not None)


def _own(turn: Turn, key: str, ask: Ask[Any]) -> Grant | None:
    """The grant that an acquire carries and may extend, if it lives."""
    if ask.token is None and not ask.whole_session:
        return None
    pool = turn.pool(key)
    for grant in () if pool is None else pool.grants:
        by_session = ask.token is None and grant.session == ask.session
        by_token = ask.token is not None and (grant.token, grant.agent) == (ask.token, ask.agent)
        if (by_session or by_token) and turn.known.rely(grant):
            return grant
    return None


def _waiter(ask: Ask[Any], weight: int, now: float, together: tuple[str, ...], into: str) -> Waiter:
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


def _lives(ask: Ask[Any]) -> float:
    """How long a fresh grant lives at least, renewed or not at most."""
    ttl = ask.ttl or ask.session_ttl
    return ttl if ask.max_hold is None else min(ttl, ask.max_hold)
