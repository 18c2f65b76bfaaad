"""Locks: one holder, first come first served, and a token that fences earlier holders.

A lock is a pool with capacity 1 (``pool.py``).  It has an item only while it has a holder or a
waiter.  This module has its outcomes, and makes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

from msgspec import Struct
from msgspec.structs import asdict, force_setattr

from interlock.core import keys, outcomes
from interlock.core.decision import Outcome, Success
from interlock.nouns.grants.pool import Grant, Pool
from interlock.nouns.grants.request import Demand, GrantTarget, RequestStatus, pool_name

if TYPE_CHECKING:
    from interlock.settings import Settings


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


class LockView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A lock for display: free, held, stale, or reserved.

    It is ``reserved`` for its first waiter, if that also waits for another thing.
    """

    lock: str
    state: str
    holder: str = ""
    token: int | None = None
    since: float | None = None
    expires_in: float | None = None
    max_hold: float | None = None
    session: str = ""
    metadata: Any = None
    waiters: tuple[str, ...] = ()


AcquireOutcome: TypeAlias = (
    LockAcquired
    | LockExtended
    | Reclaimed
    | LockBusy
    | LockDeadlock
    | LockFenced
    | outcomes.GuardBlocked
    | outcomes.NoGuard
)
ReleaseOutcome: TypeAlias = LockReleased | AlreadyFree | LockNotOwner | LockFenced
BeatOutcome: TypeAlias = LockExtended | LockNotOwner | LockFenced
BreakOutcome: TypeAlias = LockBroken | AlreadyFree | LockFenced


class LockTarget(GrantTarget, frozen=True, gc=False):
    """One lock."""

    noun: ClassVar[str] = "lock"
    about: ClassVar[str] = "a wait for a lock"

    name: str
    keys: tuple[str, ...] = ()  # a field, since a property takes longer
    """Its one pool; the name says which."""

    def __post_init__(self) -> None:
        name = pool_name(self.name, "lock")
        force_setattr(self, "name", name)
        force_setattr(self, "keys", (keys.lock(name),))

    @property
    def demands(self) -> tuple[Demand, ...]:
        """The whole pool."""
        return (Demand(self.keys[0]),)

    @property
    def things(self) -> tuple[str, ...]:
        """The lock."""
        return (self.thing,)

    @property
    def thing(self) -> str:
        """The lock."""
        return f"lock/{self.name}"

    def configured(self, settings: Settings, least: float) -> tuple[Self, Mapping[str, float]]:
        """The lock, and its terms in the settings."""
        return self, settings.lock(self.name, least)

    def outcome(self, status: RequestStatus) -> Outcome:
        """The outcome of a lock for a status."""
        match status.kind:
            case "granted" | "extended" | "increased":
                grant: Grant = status.grant  # type: ignore[assignment]  # has one
                return self.granted(status.kind, status.pools[0], grant, status.expires_in)
            case "queued":
                holder = _holder(status.pools[0])
                return LockWaiting(lock=self.name, holder=holder, before=status.before)
            case "refused":
                return busy(self.name, status.pools[0])
            case "deadlock":
                return LockDeadlock(lock=self.name, cycle=status.cycle)
            case "gone":
                return LockGone(lock=self.name)

    def fenced(self, token: int | None = None, by: str = "", reason: str = "") -> Outcome:
        """The grant is over."""
        return LockFenced(lock=self.name, token=token, by=by, reason=reason)

    def given_fenced(self, thing: str) -> Outcome:
        """A given grant is over."""
        return LockFenced(lock=thing.partition("/")[2])

    def outdated(self, token: int | None, pool: Pool | None, newest: int) -> Outcome | None:
        """A token older than that of the holder is fenced."""
        del newest
        if pool is None or not pool.grants or token is None:
            return None
        holder = pool.grants[0]
        if holder.token is None or token >= holder.token:
            return None
        return LockFenced(lock=self.name, holder=holder.agent, token=holder.token)

    def not_held(self, pool: Pool | None, *, stale: bool) -> Outcome:
        """The lock is free, or has another holder."""
        if pool is None or not pool.grants:
            return AlreadyFree(lock=self.name)
        return LockNotOwner(lock=self.name, holder=pool.grants[0].agent, stale=stale)

    def released(self, things: tuple[str, ...], served: tuple[str, ...]) -> Outcome:
        """The first waiter has it now, if there was one."""
        del things
        return LockReleased(lock=self.name, next=served[0] if served else "")

    def broken(self, grant: Grant, served: tuple[str, ...], reason: str) -> Outcome:
        """The grant was ended."""
        return LockBroken(
            lock=self.name, holder=grant.agent, token=grant.token, reason=reason, next=served
        )

    def not_found(self, pool: Pool | None) -> Outcome:
        """The lock is free, or has another grant now."""
        if pool is None or not pool.grants:
            return AlreadyFree(lock=self.name)
        holder = pool.grants[0]
        return LockFenced(lock=self.name, holder=holder.agent, token=holder.token)

    def granted(self, kind: str, pool: Pool, grant: Grant, expires_in: float | None) -> Outcome:
        """The lock was taken, or its grant extended."""
        del pool
        granted = kind == "granted"
        outcome = (LockAcquired if granted else LockExtended)(
            lock=self.name,
            holder=grant.agent,
            token=grant.token,
            expires_in=expires_in,
            grant=grant.id,
        )
        if not granted or not grant.reclaimed_from:
            return outcome
        return Reclaimed(reclaimed_from=grant.reclaimed_from, **asdict(outcome))


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
