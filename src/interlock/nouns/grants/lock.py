"""Locks: one holder, first come first served, and a token that fences earlier holders.

A lock is a pool with capacity 1 (``pool.py``).  It has an item only while it has a holder or a
waiter.
This module has the requests and the outcomes of locks.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias, cast

from msgspec.structs import asdict

from interlock.core import keys, outcomes
from interlock.core.decision import Outcome, Success
from interlock.nouns.grants.pool import BreakNote, Grant, Pool
from interlock.nouns.grants.request import (
    BreakRequest,
    Demand,
    GrantRequest,
    HolderRequest,
    RequestStatus,
)


class LockGranted(outcomes.Granted, frozen=True, kw_only=True):
    """The fields of every grant of a lock."""

    lock: str
    holder: str
    token: int | None = None
    expires_in: float | None = None
    grant: str = ""


class LockAcquired(LockGranted, outcomes.Acquired, frozen=True, kw_only=True, tag="acquired"):
    """The lock was free, or handed over, and is yours."""


class LockExtended(LockGranted, outcomes.Extended, frozen=True, kw_only=True, tag="extended"):
    """You held it already and keep it."""


class Reclaimed(LockGranted, outcomes.Acquired, frozen=True, kw_only=True, tag="reclaimed"):
    """The lock is yours; the grant of its last holder (``reclaimed_from``) had expired."""

    reclaimed_from: str


class LockBusy(outcomes.Busy, frozen=True, kw_only=True, tag="busy"):
    """Another agent holds it; without a holder, it is reserved for the first waiter."""

    lock: str
    holder: str
    since: float
    expires_in: float | None = None
    waiters: int = 0


class LockWaiting(outcomes.Waiting, frozen=True, kw_only=True, tag="waiting"):
    """In the queue, behind ``before`` others; check it when the holder may have expired."""

    lock: str
    holder: str
    before: int


class LockGone(outcomes.Gone, frozen=True, kw_only=True, tag="gone"):
    """Not in the queue any more: the waiter's session expired, and it was removed."""

    lock: str


class LockDeadlock(outcomes.Deadlock, frozen=True, kw_only=True, tag="deadlock"):
    """The wait would never end: these wait for each other in a cycle that starts with you."""

    lock: str
    cycle: tuple[str, ...]


class LockReleased(outcomes.Released, frozen=True, kw_only=True, tag="released"):
    """You released it; ``next`` is the waiter that has it now, if there was one."""

    lock: str
    next: str = ""


class AlreadyFree(Success, frozen=True, kw_only=True, tag="already_free"):
    """The lock has no holder."""

    lock: str


class LockNotOwner(outcomes.NotOwner, frozen=True, kw_only=True, tag="not_owner"):
    """Another agent holds it, and you never did; ``stale`` if that grant has expired."""

    lock: str
    holder: str
    stale: bool = False


class LockFenced(outcomes.Fenced, frozen=True, kw_only=True, tag="fenced"):
    """Your grant is over: a later token exists, or the operator ``by`` ended it."""

    lock: str
    holder: str = ""
    token: int | None = None
    by: str = ""
    reason: str = ""


class LockBroken(outcomes.Broken, frozen=True, kw_only=True, tag="broken"):
    """The grant of ``holder`` is over and its token is fenced; ``next`` have the lock now."""

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
    """Take the lock, extend the grant that the request carries, or (``wait``) queue."""

    noun: ClassVar[str] = "lock"

    lock: str

    @property
    def demands(self) -> tuple[Demand, ...]:
        """The whole pool."""
        return (Demand(keys.lock(self.lock)),)

    @property
    def keys(self) -> tuple[str, ...]:
        """The one pool."""
        return (keys.lock(self.lock),)

    def outcome(self, status: RequestStatus) -> Outcome:
        """The outcome of a lock for a status."""
        match status.kind:
            case "granted" | "extended" | "increased":
                return self._granted(status, cast("Grant", status.grant))
            case "queued":
                holder = _holder(status.pools[0])
                return LockWaiting(lock=self.lock, holder=holder, before=status.before)
            case "refused":
                return busy(self.lock, status.pools[0])
            case "deadlock":
                return LockDeadlock(lock=self.lock, cycle=status.cycle)
            case "gone":
                return LockGone(lock=self.lock)

    def fenced(self, thing: str) -> Outcome:
        """A given grant that it relies on is over."""
        return LockFenced(lock=thing.partition("/")[2])

    def outdated(self, pool: Pool | None, newest: int) -> Outcome | None:
        """A token older than that of the holder is fenced."""
        del newest
        holder = pool.grants[0] if pool is not None and pool.grants else None
        if holder is None or holder.token is None or (self.token or 0) >= holder.token:
            return None
        return LockFenced(lock=self.lock, holder=holder.agent, token=holder.token)

    def broken_by(self, note: BreakNote) -> Outcome:
        """An operator ended the grant."""
        return LockFenced(lock=self.lock, by=note.by, reason=note.reason)

    def _granted(self, status: RequestStatus, grant: Grant) -> LockGranted:
        kind = LockAcquired if status.kind == "granted" else LockExtended
        outcome = kind(
            lock=self.lock,
            holder=grant.agent,
            token=grant.token,
            expires_in=status.expires_in,
            grant=grant.id,
        )
        if status.kind != "granted" or not grant.reclaimed_from:
            return outcome
        return Reclaimed(reclaimed_from=grant.reclaimed_from, **asdict(outcome))


class LockHolderRequest(HolderRequest[Outcome], frozen=True, kw_only=True, gc=False):
    """A request of a holder about its lock."""

    noun: ClassVar[str] = "lock"

    lock: str

    @property
    def keys(self) -> tuple[str, ...]:
        """The one pool."""
        return (keys.lock(self.lock),)

    def refused(self, pool: Pool | None, newest: int, *, stale: bool) -> Outcome:
        """The lock is free or has another holder: an older token is fenced, others never held."""
        del newest
        if pool is None or not pool.grants:
            return AlreadyFree(lock=self.lock)
        grant = pool.grants[0]
        if self.token is not None and grant.token is not None and self.token < grant.token:
            return LockFenced(lock=self.lock, holder=grant.agent, token=grant.token)
        return LockNotOwner(lock=self.lock, holder=grant.agent, stale=stale)

    def released(self, things: tuple[str, ...], served: tuple[str, ...]) -> Outcome:
        """The first waiter has it now, if there was one."""
        del things
        return LockReleased(lock=self.lock, next=served[0] if served else "")

    def extended(self, pool: Pool, grant: Grant, expires_in: float | None) -> Outcome:
        """The grant was renewed."""
        del pool
        return LockExtended(
            lock=self.lock,
            holder=grant.agent,
            token=grant.token,
            expires_in=expires_in,
            grant=grant.id,
        )

    def broken_by(self, note: BreakNote) -> Outcome:
        """An operator ended the grant."""
        return LockFenced(lock=self.lock, by=note.by, reason=note.reason)

    def expired(self, grant: Grant | None) -> Outcome:
        """The grant expired, and no other agent has the lock yet."""
        del grant
        return LockFenced(lock=self.lock)


class LockBreakRequest(BreakRequest[Outcome], frozen=True, kw_only=True, gc=False):
    """A request of an operator to end the grant of a lock."""

    noun: ClassVar[str] = "lock"

    lock: str

    @property
    def key(self) -> str:
        """The one pool."""
        return keys.lock(self.lock)

    def broken(self, grant: Grant, served: tuple[str, ...]) -> Outcome:
        """The grant was ended."""
        return LockBroken(
            lock=self.lock,
            holder=grant.agent,
            token=grant.token,
            reason=self.reason,
            next=served,
        )

    def not_found(self, pool: Pool | None) -> Outcome:
        """The lock is free, or has another grant now."""
        if pool is None or not pool.grants:
            return AlreadyFree(lock=self.lock)
        holder = pool.grants[0]
        return LockFenced(lock=self.lock, holder=holder.agent, token=holder.token)


def busy(name: str, pool: Pool, expires_in: float | None = None) -> LockBusy:
    """The outcome that names the holder."""
    return LockBusy(
        lock=name,
        holder=_holder(pool),
        since=pool.grants[0].since if pool.grants else pool.waiters[0].since,
        expires_in=expires_in,
        waiters=len(pool.waiters),
    )


def _holder(pool: Pool) -> str:
    return pool.grants[0].agent if pool.grants else ""
