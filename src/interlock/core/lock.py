"""Locks: one holder, first come first served, and a token that fences the past.

The state is one item, ``locks/{name}``: the grant, and the waiters behind it in their order.
No item means that the lock is free; there are never waiters without a grant.

    free ──acquire──> held ──release──> free, or held by the first live waiter, in one commit
                       │
                       └─ a liveness key of the grant is gone: stale
                          whoever meets it passes it on: to the first live waiter, else to itself

A grant lives as long as *all* of its liveness keys: that of its session, or one of its own when
it has a ttl, and one more that is never renewed when it has a maximum hold.  A grant never
disappears by itself, and a lapsed one is never revived: its holder may only come again.

The identity of a caller is the grant it carries, not its name.  Two tasks of one session are two
callers; so acquiring again is ``extended`` only for a call that carries the grant (its token) or
speaks for its whole session (a shell), and ``busy`` for everybody else.

The token of a grant is the base of the store plus the revision that wrote the grant.  Nobody
knows that revision before the commit, so a fresh grant is stored without its token and has that
of its item; the next writer of the item fills it in (``seen``).

A waiter that is promoted while it sleeps has not agreed to anything yet.  If its grant lives by a
ttl of its own, it starts with a short one (CLAIM_WINDOW), which the waiter stretches when it
wakes: a waiter that died meanwhile costs seconds, not its whole ttl.

Refusals (``fenced``: an older token; ``not_owner``: never held) change nothing but are recorded,
the first one for each grant and minute.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias, TypeVar, cast

from msgspec import Struct
from msgspec.structs import asdict, replace

from interlock.core import keys
from interlock.core.decision import Decision, Event, Outcome, Write
from interlock.errors import NotAllowed

T = TypeVar("T")

CLAIM_WINDOW = 30.0
WAITERS = 1000
REFUSAL_WINDOW = 60.0


class Grant(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Who holds the lock, since when, and what keeps it alive."""

    id: str
    agent: str
    session: str
    live: tuple[str, ...]
    since: float
    ttl: float | None = None
    max_hold: float | None = None
    metadata: Any = None
    token: int | None = None
    reclaimed_from: str = ""


class Waiter(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Who is next, and on what terms; ``id`` becomes the id of its grant."""

    id: str
    agent: str
    session: str
    live: str
    since: float
    ttl: float | None = None
    max_hold: float | None = None
    metadata: Any = None


class Lock(Struct, frozen=True, omit_defaults=True, gc=False):
    """A lock that is held."""

    grant: Grant
    waiters: tuple[Waiter, ...] = ()


class Acquire(Struct, frozen=True, kw_only=True, gc=False):
    """Take the lock, extend the grant that is carried, or (``wait``) queue for it."""

    lock: str
    grant: str
    agent: str
    session: str
    ttl: float | None = None
    max_hold: float | None = None
    metadata: Any = None
    token: int | None = None
    whole_session: bool = False
    session_ttl: float = 0.0
    wait: bool = False


class Caller(Struct, frozen=True, kw_only=True):
    """Who speaks about a grant: its token under the holder's name, or the session that has it."""

    lock: str
    agent: str
    session: str
    token: int | None = None


class Proof(Struct, frozen=True, kw_only=True):
    """Ownership as a value: a commit that carries it happens only while the grant lives."""

    lock: str
    grant: str
    token: int


class Granted(Outcome, frozen=True, kw_only=True):
    """What every grant says."""

    lock: str
    holder: str
    token: int | None = None
    expires_in: float | None = None
    grant: str = ""


class Acquired(Granted, frozen=True, kw_only=True, tag="acquired"):
    """The lock was free, or handed over, and is yours."""


class Extended(Granted, frozen=True, kw_only=True, tag="extended"):
    """You had it and keep it."""


class Reclaimed(Granted, frozen=True, kw_only=True, tag="reclaimed"):
    """It is yours; its last holder (``reclaimed_from``) went stale."""

    reclaimed_from: str


class Busy(Outcome, frozen=True, kw_only=True, tag="busy"):
    """Somebody else holds it."""

    exit_status = 1
    lock: str
    holder: str
    since: float
    expires_in: float | None = None
    waiters: int = 0


class Waiting(Outcome, frozen=True, kw_only=True, tag="waiting"):
    """In the queue, with so many before you; look again when the holder's liveness may lapse."""

    exit_status = 1
    lock: str
    holder: str
    before: int


class Gone(Outcome, frozen=True, kw_only=True, tag="gone"):
    """Not in the queue any more: our liveness lapsed and somebody cleaned up."""

    exit_status = 1
    lock: str


class Released(Outcome, frozen=True, kw_only=True, tag="released"):
    """It was yours and is not any more; ``next`` has it now, if anybody waited."""

    lock: str
    next: str = ""


class AlreadyFree(Outcome, frozen=True, kw_only=True, tag="already_free"):
    """Nobody holds it."""

    lock: str


class NotOwner(Outcome, frozen=True, kw_only=True, tag="not_owner"):
    """Somebody else holds it, and you never did."""

    exit_status = 1
    lock: str
    holder: str


class Fenced(Outcome, frozen=True, kw_only=True, tag="fenced"):
    """Your grant is over: a later token exists."""

    exit_status = 1
    lock: str
    holder: str = ""
    token: int | None = None


AcquireOutcome: TypeAlias = Acquired | Extended | Reclaimed | Busy | Fenced
ReleaseOutcome: TypeAlias = Released | AlreadyFree | NotOwner | Fenced
BeatOutcome: TypeAlias = Extended | NotOwner | Fenced


def seen(lock: Lock, token: int) -> Lock:
    """The lock as a reader knows it: a fresh grant gets the token of the item that holds it."""
    if lock.grant.token is not None:
        return lock
    return Lock(replace(lock.grant, token=token), lock.waiters)


def alive(grant: Grant, live: AbstractSet[str]) -> bool:
    """Whether all that keeps the grant alive still is."""
    return all(key in live for key in grant.live)


def carried(grant: Grant, caller: Caller) -> bool:
    """Whether the caller speaks for this grant."""
    if caller.token is None:
        return grant.session == caller.session
    return grant.token == caller.token and grant.agent == caller.agent


def proves(lock: Lock | None, proof: Proof, live: AbstractSet[str]) -> bool:
    """Whether the grant that a proof speaks of is still the one that holds, and lives."""
    return lock is not None and lock.grant.id == proof.grant and alive(lock.grant, live)


def acquire(
    lock: Lock | None, command: Acquire, live: AbstractSet[str], now: float
) -> Decision[AcquireOutcome | Waiting]:
    """Free: take it.  Carried: extend it.  Stale: pass it on.  Otherwise busy, or queue."""
    if lock is None:
        return _take(command, now)
    if alive(lock.grant, live):
        if _carries(lock.grant, command):
            return _extend(command.lock, lock, command.metadata, command.session_ttl)
        return _queue(_Passed(lock), command, now)
    passed = _pass_on(lock, command.lock, live, now, stale=True)
    if passed.lock is None:
        return _take(command, now, passed, lock.grant.agent)
    return _queue(passed, command, now)


def look(
    lock: Lock | None, name: str, grant: str, live: AbstractSet[str], now: float
) -> Decision[Acquired | Reclaimed | Waiting | Gone]:
    """What a waiter does when it wakes: take what it was given, or pass a stale grant on."""
    passed = _settle(lock, name, grant, live, now)
    return passed.decision(_standing(name, passed.lock, grant), "lock.reclaim", name)


def withdraw(
    lock: Lock | None, name: str, grant: str, live: AbstractSet[str], now: float
) -> Decision[Acquired | Reclaimed | Busy | Gone]:
    """Leave the queue, unless the lock came to us at the last moment."""
    passed = _settle(lock, name, grant, live, now)
    outcome = _standing(name, passed.lock, grant)
    if passed.lock is None or not isinstance(outcome, Waiting):
        return passed.decision(cast("Acquired | Reclaimed | Gone", outcome), "lock.reclaim", name)
    rest = tuple(waiter for waiter in passed.lock.waiters if waiter.id != grant)
    left = Lock(passed.lock.grant, rest)
    passed = replace(passed, lock=left, puts=(Write(keys.lock(name), left), *passed.puts[1:]))
    return passed.decision(busy(name, left), "lock.withdraw", name)


def release(
    lock: Lock | None, caller: Caller, live: AbstractSet[str], now: float
) -> Decision[ReleaseOutcome]:
    """Give it back, and hand it to the first live waiter in the same commit."""
    if lock is None:
        return Decision(outcome=AlreadyFree(lock=caller.lock))
    if not carried(lock.grant, caller):
        return _refuse(lock, caller, live, "lock.release")
    passed = _pass_on(lock, caller.lock, live, now, stale=False)
    successor = passed.lock.grant.agent if passed.lock else ""
    return passed.decision(Released(lock=caller.lock, next=successor), "lock.release", caller.lock)


def beat(
    lock: Lock | None, caller: Caller, live: AbstractSet[str], session_ttl: float
) -> Decision[BeatOutcome]:
    """Renew what keeps the grant alive; a grant that lapsed is not revived."""
    if lock is None:
        return Decision(outcome=Fenced(lock=caller.lock))
    if not carried(lock.grant, caller):
        return _refuse(lock, caller, live, "lock.beat")
    if not alive(lock.grant, live):
        return Decision(outcome=Fenced(lock=caller.lock, holder=lock.grant.agent))
    return _extend(caller.lock, lock, None, session_ttl)


def reclaim(lock: Lock, name: str, live: AbstractSet[str], now: float) -> Decision[str]:
    """Free a stale lock for nobody in particular: maintenance.  The outcome says what happened."""
    if alive(lock.grant, live):
        return Decision(outcome="alive")
    passed = _pass_on(lock, name, live, now, stale=True)
    return passed.decision("reclaimed", "lock.reclaim", name)


def busy(name: str, lock: Lock, expires_in: float | None = None) -> Busy:
    """The answer that names the holder."""
    return Busy(
        lock=name,
        holder=lock.grant.agent,
        since=lock.grant.since,
        expires_in=expires_in,
        waiters=len(lock.waiters),
    )


def granted(name: str, grant: Grant, expires_in: float | None = None) -> Acquired | Reclaimed:
    """The answer for the holder of this grant."""
    outcome = Acquired(
        lock=name, holder=grant.agent, token=grant.token, expires_in=expires_in, grant=grant.id
    )
    if not grant.reclaimed_from:
        return outcome
    return Reclaimed(reclaimed_from=grant.reclaimed_from, **asdict(outcome))


def next_alive(lock: Lock, live: AbstractSet[str]) -> Waiter | None:
    """The first waiter that still lives."""
    return next((waiter for waiter in lock.waiters if waiter.live in live), None)


def _carries(grant: Grant, command: Acquire) -> bool:
    if command.token is None:
        return command.whole_session and grant.session == command.session
    return grant.token == command.token and grant.agent == command.agent


class _Passed(Struct, frozen=True, gc=False):
    """A lock after its grant was passed on (or not), and what that takes."""

    lock: Lock | None
    puts: tuple[Write, ...] = ()
    deletes: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()

    def decision(self, outcome: T, verb: str, name: str) -> Decision[T]:
        """The decision that carries it out; none of it if nothing was passed on."""
        if not self.puts and not self.deletes:
            return Decision(outcome=outcome)
        return Decision(
            outcome=outcome,
            verb=verb,
            thing=f"lock/{name}",
            puts=self.puts,
            deletes=self.deletes,
            signals=self.signals,
            events=self.events,
        )


def _take(
    command: Acquire, now: float, passed: _Passed | None = None, stale: str = ""
) -> Decision[AcquireOutcome]:
    grant = _grant(command.grant, command, now, stale)
    event = Event("lock:acquired", command.agent)
    return Decision(
        outcome=granted(command.lock, grant, _lives(command)),
        verb="lock.acquire",
        thing="lock/" + command.lock,
        puts=(Write(keys.lock(command.lock), Lock(grant)), *_liveness(grant, command.lock)),
        deletes=() if passed is None else passed.deletes[1:],
        events=(event,) if passed is None else (*passed.events, event),
    )


def _queue(passed: _Passed, command: Acquire, now: float) -> Decision[AcquireOutcome | Waiting]:
    """Busy, or behind everybody who waits; ``passed`` may have just changed hands."""
    lock = cast("Lock", passed.lock)
    if not command.wait:
        return passed.decision(busy(command.lock, lock), "lock.reclaim", command.lock)
    if len(lock.waiters) >= WAITERS:
        raise NotAllowed(
            f"{WAITERS} already wait for lock {command.lock!r}; try again later, or without --wait"
        )
    queued = Lock(lock.grant, (*lock.waiters, _waiter(command, now)))
    puts = (Write(keys.lock(command.lock), queued), *passed.puts[1:])
    outcome = _waiting(command.lock, queued, command.grant)
    return replace(passed, puts=puts).decision(outcome, "lock.wait", command.lock)


def _extend(name: str, lock: Lock, metadata: object, session_ttl: float) -> Decision[Extended]:
    grant = lock.grant
    ttl = grant.ttl or session_ttl
    outcome = Extended(
        lock=name, holder=grant.agent, token=grant.token, expires_in=ttl, grant=grant.id
    )
    renewal = Write(grant.live[0], _tag(grant, name), ttl)
    if metadata is None or metadata == grant.metadata:
        return Decision(outcome=outcome, puts=(renewal,), quiet=True)
    changed = Lock(replace(grant, metadata=metadata), lock.waiters)
    return Decision(
        outcome=outcome,
        verb="lock.extend",
        thing=f"lock/{name}",
        puts=(Write(keys.lock(name), changed), renewal),
    )


def _refuse(
    lock: Lock, caller: Caller, live: AbstractSet[str], verb: str
) -> Decision[NotOwner | Fenced]:
    grant = lock.grant
    older = caller.token is not None and grant.token is not None and caller.token < grant.token
    outcome: NotOwner | Fenced = NotOwner(lock=caller.lock, holder=grant.agent)
    if older:
        outcome = Fenced(lock=caller.lock, holder=grant.agent, token=grant.token)
    mark = keys.refused(grant.id)
    if mark in live:
        return Decision(outcome=outcome)
    return Decision(
        outcome=outcome,
        verb=verb,
        thing=f"lock/{caller.lock}",
        puts=(Write(mark, {"lock": caller.lock}, REFUSAL_WINDOW),),
    )


def _settle(
    lock: Lock | None, name: str, grant: str, live: AbstractSet[str], now: float
) -> _Passed:
    """The lock as a waiter may rely on it: a stale grant is passed on, unless it is our own."""
    if lock is None or alive(lock.grant, live):
        return _Passed(lock)
    if lock.grant.id == grant:
        return _Passed(None)
    return _pass_on(lock, name, live, now, stale=True)


def _pass_on(lock: Lock, name: str, live: AbstractSet[str], now: float, *, stale: bool) -> _Passed:
    """End the grant; the first live waiter gets the next one, and dead ones before it go."""
    ended = Event("lock:reclaimed" if stale else "lock:released", lock.grant.agent)
    deletes = _own_keys(lock.grant)
    successor = next_alive(lock, live)
    if successor is None:
        return _Passed(None, deletes=(keys.lock(name), *deletes), events=(ended,))
    grant = _grant(successor.id, successor, now, lock.grant.agent if stale else "")
    passed = Lock(grant, lock.waiters[lock.waiters.index(successor) + 1 :])
    return _Passed(
        passed,
        puts=(Write(keys.lock(name), passed), *_liveness(grant, name, CLAIM_WINDOW)),
        deletes=deletes,
        signals=(keys.wake(grant.id),),
        events=(ended, Event("lock:acquired", grant.agent)),
    )


def _standing(name: str, lock: Lock | None, grant: str) -> Acquired | Reclaimed | Waiting | Gone:
    if lock is not None and lock.grant.id == grant:
        return granted(name, lock.grant)
    if lock is not None and any(waiter.id == grant for waiter in lock.waiters):
        return _waiting(name, lock, grant)
    return Gone(lock=name)


def _waiting(name: str, lock: Lock, grant: str) -> Waiting:
    before = next(index for index, waiter in enumerate(lock.waiters) if waiter.id == grant)
    return Waiting(lock=name, holder=lock.grant.agent, before=before)


def _waiter(command: Acquire, now: float) -> Waiter:
    return Waiter(
        id=command.grant,
        agent=command.agent,
        session=command.session,
        live=keys.live(command.session),
        since=now,
        ttl=command.ttl,
        max_hold=command.max_hold,
        metadata=command.metadata,
    )


def _grant(id_: str, terms: Acquire | Waiter, now: float, stale: str) -> Grant:
    live = keys.live(terms.session if terms.ttl is None else id_)
    return Grant(
        id=id_,
        agent=terms.agent,
        session=terms.session,
        live=(live,) if terms.max_hold is None else (live, keys.limit(id_)),
        since=now,
        ttl=terms.ttl,
        max_hold=terms.max_hold,
        metadata=terms.metadata,
        reclaimed_from=stale,
    )


def _liveness(grant: Grant, name: str, at_most: float | None = None) -> tuple[Write, ...]:
    """The liveness keys that belong to the grant alone."""
    if grant.ttl is None and grant.max_hold is None:
        return ()
    ttl = grant.ttl if grant.ttl is None or at_most is None else min(grant.ttl, at_most)
    terms = ((keys.live(grant.id), ttl), (keys.limit(grant.id), grant.max_hold))
    tag = _tag(grant, name)
    return tuple(Write(key, tag, seconds) for key, seconds in terms if seconds is not None)


def _own_keys(grant: Grant) -> tuple[str, ...]:
    return tuple(key for key in grant.live if key != keys.live(grant.session))


def _lives(command: Acquire) -> float:
    """How long a fresh grant lives at least, renewed or not at most."""
    ttl = command.ttl or command.session_ttl
    return ttl if command.max_hold is None else min(ttl, command.max_hold)


def _tag(grant: Grant, name: str) -> dict[str, str]:
    """What a liveness key says to a person who reads the store."""
    return {"agent": grant.agent} if grant.ttl is None else {"agent": grant.agent, "lock": name}
