"""Locks: one holder, first come first served, and a token that fences the past.

A lock is a pool with room for one (``pool.py``), without an item while nobody holds it or
waits for it.  This module has its words: what is asked, and what is answered.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias, cast

from msgspec.structs import asdict

from interlock.core import keys, outcomes
from interlock.core.decision import Outcome, Success
from interlock.nouns.grants.pool import BreakNote, Grant, Pool
from interlock.nouns.grants.request import BreakRequest as AnyBreaker
from interlock.nouns.grants.request import Demand, GrantRequest, RequestStatus
from interlock.nouns.grants.request import HolderRequest as AnyCaller


class LockGranted(outcomes.Granted, frozen=True, kw_only=True):
    """What every grant says."""

    lock: str
    holder: str
    token: int | None = None
    expires_in: float | None = None
    grant: str = ""


class LockAcquired(LockGranted, outcomes.Acquired, frozen=True, kw_only=True, tag="acquired"):
    """The lock was free, or handed over, and is yours."""


class LockExtended(LockGranted, outcomes.Extended, frozen=True, kw_only=True, tag="extended"):
    """You had it and keep it."""


class Reclaimed(LockGranted, outcomes.Acquired, frozen=True, kw_only=True, tag="reclaimed"):
    """It is yours; its last holder (``reclaimed_from``) went stale."""

    reclaimed_from: str


class LockBusy(outcomes.Busy, frozen=True, kw_only=True, tag="busy"):
    """Somebody else holds it; without a holder, the first who waits for it also waits for more."""

    lock: str
    holder: str
    since: float
    expires_in: float | None = None
    waiters: int = 0


class LockWaiting(outcomes.Waiting, frozen=True, kw_only=True, tag="waiting"):
    """In the queue, with so many before you; look again when the holder's liveness may lapse."""

    lock: str
    holder: str
    before: int


class LockGone(outcomes.Gone, frozen=True, kw_only=True, tag="gone"):
    """Not in the queue any more: our liveness lapsed and somebody cleaned up."""

    lock: str


class LockDeadlock(outcomes.Deadlock, frozen=True, kw_only=True, tag="deadlock"):
    """Waiting would never end: these wait for each other, in a circle, beginning with you."""

    lock: str
    cycle: tuple[str, ...]


class LockReleased(outcomes.Released, frozen=True, kw_only=True, tag="released"):
    """It was yours and is not any more; ``next`` has it now, if anybody waited."""

    lock: str
    next: str = ""


class AlreadyFree(Success, frozen=True, kw_only=True, tag="already_free"):
    """Nobody holds it."""

    lock: str


class LockNotOwner(outcomes.NotOwner, frozen=True, kw_only=True, tag="not_owner"):
    """Somebody else holds it, and you never did; ``stale`` if that one is gone."""

    lock: str
    holder: str
    stale: bool = False


class LockFenced(outcomes.Fenced, frozen=True, kw_only=True, tag="fenced"):
    """Your grant is over: a later token exists, or an operator ended it, ``by`` name."""

    lock: str
    holder: str = ""
    token: int | None = None
    by: str = ""
    reason: str = ""


class LockBroken(outcomes.Broken, frozen=True, kw_only=True, tag="broken"):
    """The grant of ``holder`` is over, and its token is fenced; ``next`` were served with it."""

    lock: str
    holder: str
    token: int | None
    reason: str
    next: tuple[str, ...] = ()


AcquireOutcome: TypeAlias = (
    LockAcquired | LockExtended | Reclaimed | LockBusy | LockDeadlock | LockFenced
)
ReleaseOutcome: TypeAlias = LockReleased | AlreadyFree | LockNotOwner | LockFenced
BeatOutcome: TypeAlias = LockExtended | LockNotOwner | LockFenced
BreakOutcome: TypeAlias = LockBroken | AlreadyFree | LockFenced


class LockGrantRequest(GrantRequest[Outcome], frozen=True, kw_only=True, gc=False):
    """Take the lock, extend the grant that is carried, or (``wait``) queue for it."""

    noun: ClassVar[str] = "lock"

    lock: str

    @property
    def demands(self) -> tuple[Demand, ...]:
        """All of it."""
        return (Demand(keys.lock(self.lock)),)

    @property
    def keys(self) -> tuple[str, ...]:
        """The one pool."""
        return (keys.lock(self.lock),)

    def answer(self, standing: RequestStatus) -> Outcome:
        """How it stands, in the words of locks."""
        match standing.kind:
            case "granted" | "extended" | "increased":
                return self._granted(standing, cast("Grant", standing.grant))
            case "queued":
                holder = _holder(standing.pools[0])
                return LockWaiting(lock=self.lock, holder=holder, before=standing.before)
            case "refused":
                return busy(self.lock, standing.pools[0])
            case "deadlock":
                return LockDeadlock(lock=self.lock, cycle=standing.cycle)
            case "gone":
                return LockGone(lock=self.lock)

    def fenced(self, thing: str) -> Outcome:
        """Something that it relies on is gone."""
        return LockFenced(lock=thing.partition("/")[2])

    def moved_on(self, pool: Pool | None, newest: int) -> Outcome | None:
        """A token that is older than that of the holder is fenced."""
        del newest
        holder = pool.grants[0] if pool is not None and pool.grants else None
        if holder is None or holder.token is None or (self.token or 0) >= holder.token:
            return None
        return LockFenced(lock=self.lock, holder=holder.agent, token=holder.token)

    def ended(self, note: BreakNote) -> Outcome:
        """An operator ended it."""
        return LockFenced(lock=self.lock, by=note.by, reason=note.reason)

    def _granted(self, standing: RequestStatus, grant: Grant) -> LockGranted:
        kind = LockAcquired if standing.kind == "granted" else LockExtended
        outcome = kind(
            lock=self.lock,
            holder=grant.agent,
            token=grant.token,
            expires_in=standing.expires_in,
            grant=grant.id,
        )
        if standing.kind != "granted" or not grant.reclaimed_from:
            return outcome
        return Reclaimed(reclaimed_from=grant.reclaimed_from, **asdict(outcome))


class LockHolderRequest(AnyCaller[Outcome], frozen=True, kw_only=True, gc=False):
    """Who speaks about the grant of a lock."""

    noun: ClassVar[str] = "lock"

    lock: str

    @property
    def keys(self) -> tuple[str, ...]:
        """The one pool."""
        return (keys.lock(self.lock),)

    def refused(self, pool: Pool | None, newest: int, *, stale: bool) -> Outcome:
        """Free, or somebody else's: an older token is fenced, all others never held it."""
        del newest
        if pool is None or not pool.grants:
            return AlreadyFree(lock=self.lock)
        grant = pool.grants[0]
        if self.token is not None and grant.token is not None and self.token < grant.token:
            return LockFenced(lock=self.lock, holder=grant.agent, token=grant.token)
        return LockNotOwner(lock=self.lock, holder=grant.agent, stale=stale)

    def released(self, things: tuple[str, ...], served: tuple[str, ...]) -> Outcome:
        """It is the next one's, if anybody waited."""
        del things
        return LockReleased(lock=self.lock, next=served[0] if served else "")

    def extended(self, pool: Pool, grant: Grant, expires_in: float | None) -> Outcome:
        """It lives on."""
        del pool
        return LockExtended(
            lock=self.lock,
            holder=grant.agent,
            token=grant.token,
            expires_in=expires_in,
            grant=grant.id,
        )

    def ended(self, note: BreakNote) -> Outcome:
        """An operator ended it."""
        return LockFenced(lock=self.lock, by=note.by, reason=note.reason)

    def lapsed(self, grant: Grant | None) -> Outcome:
        """It is over, and nobody has it yet: the last holder is who asks."""
        del grant
        return LockFenced(lock=self.lock)


class LockBreakRequest(AnyBreaker[Outcome], frozen=True, kw_only=True, gc=False):
    """An operator who ends the grant of a lock."""

    noun: ClassVar[str] = "lock"

    lock: str

    @property
    def key(self) -> str:
        """The one pool."""
        return keys.lock(self.lock)

    def broken(self, grant: Grant, served: tuple[str, ...]) -> Outcome:
        """It is over."""
        return LockBroken(
            lock=self.lock,
            holder=grant.agent,
            token=grant.token,
            reason=self.reason,
            next=served,
        )

    def missed(self, pool: Pool | None) -> Outcome:
        """Free, or no longer the grant that was meant."""
        if pool is None or not pool.grants:
            return AlreadyFree(lock=self.lock)
        holder = pool.grants[0]
        return LockFenced(lock=self.lock, holder=holder.agent, token=holder.token)


def busy(name: str, pool: Pool, expires_in: float | None = None) -> LockBusy:
    """The answer that names the holder."""
    return LockBusy(
        lock=name,
        holder=_holder(pool),
        since=pool.grants[0].since if pool.grants else pool.waiters[0].since,
        expires_in=expires_in,
        waiters=len(pool.waiters),
    )


def _holder(pool: Pool) -> str:
    return pool.grants[0].agent if pool.grants else ""
