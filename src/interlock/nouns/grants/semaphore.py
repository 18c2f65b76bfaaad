"""Semaphores: a number of slots, taken by weight, first come first served.

A semaphore is a pool with a capacity (``pool.py``).  The first request that names a capacity makes
it, and it stays until it is removed.  A request that names another capacity is refused, so all
callers mean the same number; ``resize`` changes it.

A lower capacity takes no slot from a holder; no waiter is served until there is room again.  The
commit that lowers it removes the waiters that can never fit any more.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias, cast

from interlock.core import keys, outcomes
from interlock.core.decision import Decision, Event, Outcome, Success, Write
from interlock.nouns.grants.pool import BreakNote, Grant, Pool
from interlock.nouns.grants.pool_change import PoolChanges, PoolFacts
from interlock.nouns.grants.request import (
    BreakRequest,
    Demand,
    GrantRequest,
    HolderRequest,
    RequestStatus,
)


class SlotsGranted(outcomes.Granted, frozen=True, kw_only=True):
    """The fields of every grant of slots; ``available`` is the number of free slots."""

    semaphore: str
    holder: str
    weight: int
    capacity: int
    available: int
    token: int | None = None
    expires_in: float | None = None
    grant: str = ""


class SlotsAcquired(SlotsGranted, outcomes.Acquired, frozen=True, kw_only=True, tag="acquired"):
    """The slots are yours."""


class AlreadyHeld(SlotsGranted, frozen=True, kw_only=True, tag="already_held"):
    """You held at least this number already, and keep them."""


class Increased(SlotsGranted, frozen=True, kw_only=True, tag="increased"):
    """Your grant now has the requested number of slots."""


class SlotsFull(outcomes.Full, outcomes.Busy, frozen=True, kw_only=True, tag="full"):
    """Not enough slots are free, or waiters come first."""

    semaphore: str
    capacity: int
    available: int
    waiters: int = 0
    holders: tuple[str, ...] = ()


class SlotsWaiting(outcomes.Waiting, frozen=True, kw_only=True, tag="waiting"):
    """In the queue, behind ``before`` others."""

    semaphore: str
    before: int


class SlotsGone(outcomes.Gone, frozen=True, kw_only=True, tag="gone"):
    """Not in the queue any more: the waiter's session expired, or its request can never fit."""

    semaphore: str


class SlotsDeadlock(outcomes.Deadlock, frozen=True, kw_only=True, tag="deadlock"):
    """The wait would never end: these wait for each other in a cycle that starts with you."""

    semaphore: str
    cycle: tuple[str, ...]


class SlotsReleased(outcomes.Released, frozen=True, kw_only=True, tag="released"):
    """You released them; ``next`` are the waiters that have some now."""

    semaphore: str
    next: tuple[str, ...] = ()


class NotHolder(outcomes.NotOwner, frozen=True, kw_only=True, tag="not_holder"):
    """You hold no slots of it, and never did."""

    semaphore: str


class SlotsFenced(outcomes.Fenced, frozen=True, kw_only=True, tag="fenced"):
    """Your grant is over: later grants exist, or the operator ``by`` ended it."""

    semaphore: str
    token: int | None = None
    by: str = ""
    reason: str = ""


class SlotsBroken(outcomes.Broken, frozen=True, kw_only=True, tag="broken"):
    """The grant of ``holder`` is over and its token is fenced; ``next`` have some slots now."""

    semaphore: str
    holder: str
    weight: int
    token: int | None
    reason: str
    next: tuple[str, ...] = ()


class NoHolder(outcomes.Nothing, frozen=True, kw_only=True, tag="nothing"):
    """There is no such grant of this semaphore."""

    semaphore: str
    holders: tuple[str, ...] = ()


class Resized(Success, frozen=True, kw_only=True, tag="resized"):
    """The capacity has changed; ``next`` are the waiters that have some slots now."""

    semaphore: str
    capacity: int
    before: int
    next: tuple[str, ...] = ()


class Removed(Success, frozen=True, kw_only=True, tag="removed"):
    """The semaphore is removed."""

    semaphore: str


class NoSemaphore(outcomes.Nothing, frozen=True, kw_only=True, tag="nothing"):
    """There is no semaphore of this name."""

    semaphore: str


_GRANTED = {"granted": SlotsAcquired, "extended": AlreadyHeld, "increased": Increased}

AcquireOutcome: TypeAlias = (
    SlotsAcquired | AlreadyHeld | Increased | SlotsFull | SlotsDeadlock | SlotsFenced
)
ReleaseOutcome: TypeAlias = SlotsReleased | NotHolder | SlotsFenced
BeatOutcome: TypeAlias = AlreadyHeld | NotHolder | SlotsFenced
BreakOutcome: TypeAlias = SlotsBroken | NoHolder


class SlotsGrantRequest(GrantRequest[Outcome], frozen=True, kw_only=True, gc=False):
    """Take slots, extend or increase the grant that it carries, or (``wait``) queue."""

    noun: ClassVar[str] = "sem"

    semaphore: str
    weight: int = 1
    capacity: int | None = None

    @property
    def demands(self) -> tuple[Demand, ...]:
        """The slots of one pool."""
        return (Demand(keys.semaphore(self.semaphore), self.weight, self.capacity),)

    def outcome(self, status: RequestStatus) -> Outcome:
        """The outcome of a semaphore for a status."""
        match status.kind:
            case "granted" | "extended" | "increased":
                return self._granted(_GRANTED[status.kind], status)
            case "queued":
                return SlotsWaiting(semaphore=self.semaphore, before=status.before)
            case "refused":
                return full(self.semaphore, status.pools[0])
            case "deadlock":
                return SlotsDeadlock(semaphore=self.semaphore, cycle=status.cycle)
            case "gone":
                return SlotsGone(semaphore=self.semaphore)

    def fenced(self, thing: str) -> Outcome:
        """A given grant that it relies on is over."""
        return SlotsFenced(semaphore=thing.partition("/")[2])

    def outdated(self, pool: Pool | None, newest: int) -> Outcome | None:
        """A token older than the last change, of no grant that is left, is fenced."""
        current = () if pool is None else [grant.token for grant in pool.grants]
        if self.token in current or (self.token or 0) >= newest:
            return None
        return SlotsFenced(semaphore=self.semaphore, token=newest)

    def broken_by(self, note: BreakNote) -> Outcome:
        """An operator ended the grant."""
        return SlotsFenced(semaphore=self.semaphore, by=note.by, reason=note.reason)

    def _granted(self, kind: type[SlotsGranted], status: RequestStatus) -> SlotsGranted:
        grant = cast("Grant", status.grant)
        return _granted(kind, self.semaphore, status.pools[0], grant, status.expires_in)


class SlotsHolderRequest(HolderRequest[Outcome], frozen=True, kw_only=True, gc=False):
    """A request of a holder about its slots."""

    noun: ClassVar[str] = "sem"

    semaphore: str

    @property
    def keys(self) -> tuple[str, ...]:
        """The one pool."""
        return (keys.semaphore(self.semaphore),)

    def refused(self, pool: Pool | None, newest: int, *, stale: bool) -> Outcome:
        """A token older than the last change, of no grant that is left, is fenced."""
        del stale
        current = () if pool is None else [grant.token for grant in pool.grants]
        if self.token is not None and self.token not in current and self.token < newest:
            return SlotsFenced(semaphore=self.semaphore, token=newest)
        return NotHolder(semaphore=self.semaphore)

    def released(self, things: tuple[str, ...], served: tuple[str, ...]) -> Outcome:
        """The waiters that fit have them now."""
        del things
        return SlotsReleased(semaphore=self.semaphore, next=served)

    def extended(self, pool: Pool, grant: Grant, expires_in: float | None) -> Outcome:
        """The grant was renewed."""
        return _granted(AlreadyHeld, self.semaphore, pool, grant, expires_in)

    def broken_by(self, note: BreakNote) -> Outcome:
        """An operator ended the grant."""
        return SlotsFenced(semaphore=self.semaphore, by=note.by, reason=note.reason)

    def expired(self, grant: Grant | None) -> Outcome:
        """The grant expired, if there was one."""
        if grant is None and self.token is None:
            return NotHolder(semaphore=self.semaphore)
        return SlotsFenced(semaphore=self.semaphore)


class SlotsBreakRequest(BreakRequest[Outcome], frozen=True, kw_only=True, gc=False):
    """A request of an operator to end a grant of slots."""

    noun: ClassVar[str] = "sem"

    semaphore: str

    @property
    def key(self) -> str:
        """The one pool."""
        return keys.semaphore(self.semaphore)

    def broken(self, grant: Grant, served: tuple[str, ...]) -> Outcome:
        """The grant was ended."""
        return SlotsBroken(
            semaphore=self.semaphore,
            holder=grant.agent,
            weight=grant.weight,
            token=grant.token,
            reason=self.reason,
            next=served,
        )

    def not_found(self, pool: Pool | None) -> Outcome:
        """There is no such grant; the outcome names the holders."""
        grants = () if pool is None else pool.grants
        names = tuple(dict.fromkeys([grant.agent for grant in grants]))
        return NoHolder(semaphore=self.semaphore, holders=names)


def full(name: str, pool: Pool) -> SlotsFull:
    """The outcome that says how many slots there are."""
    return SlotsFull(
        semaphore=name,
        capacity=pool.capacity,
        available=max(pool.free, 0),
        waiters=len(pool.waiters),
        holders=tuple(dict.fromkeys([grant.agent for grant in pool.grants])),
    )


def resize(
    name: str, capacity: int, facts: PoolFacts, now: float, agent: str = ""
) -> Decision[Resized]:
    """Set the capacity; serve the waiters that fit now, and remove waiters that never will."""
    key = keys.semaphore(name)
    changes = PoolChanges(facts, now)
    before = changes.pool(key)
    if before is None:
        outcome = Resized(semaphore=name, capacity=capacity, before=0)
        made = Write(key, Pool(capacity=capacity))
        return Decision(
            outcome=outcome,
            verb="sem.resize",
            thing=f"sem/{name}",
            puts=(made,),
            events=(Event("semaphore:resized", agent),),
        )
    changes.pool_event(key, "resized", agent)
    changes.change(key, Pool(before.grants, before.waiters, capacity))
    left = _remove_hopeless(changes, key)
    changes.serve(dict.fromkeys((key, *left)))
    served = tuple([waiter.agent for waiter in changes.served.values()])
    outcome = Resized(semaphore=name, capacity=capacity, before=before.capacity, next=served)
    return changes.decision(outcome, "sem.resize", f"sem/{name}")


def remove(name: str, facts: PoolFacts, now: float) -> Decision[Removed | SlotsFull | NoSemaphore]:
    """Remove the semaphore, unless it has holders or waiters."""
    key = keys.semaphore(name)
    changes = PoolChanges(facts, now)
    if changes.pool(key) is None:
        return Decision(outcome=NoSemaphore(semaphore=name))
    changes.reclaim((key,))
    changes.serve((key,))
    left = changes.pool(key) or Pool()
    if left.grants or left.waiters:
        return changes.decision(full(name, left), "sem.reclaim", f"sem/{name}")
    outcome = Removed(semaphore=name)
    return Decision(outcome=outcome, verb="sem.remove", thing=f"sem/{name}", deletes=(key,))


def _remove_hopeless(changes: PoolChanges, key: str) -> list[str]:
    """Remove the waiters that can never fit from all of their queues; returns these pools.

    A waiter for which this commit has no room leaves the queue itself when it wakes.
    """
    pool, left = changes.pool(key) or Pool(), list[str]()
    for waiter in pool.waiters:
        if pool.never_fits(waiter) and changes.spare:
            changes.leave(waiter.together or (key,), waiter.id)
            changes.wake(waiter.id)
            left.extend(waiter.together)
    return left


def _granted(
    kind: type[SlotsGranted], name: str, pool: Pool, grant: Grant, expires_in: float | None
) -> SlotsGranted:
    return kind(
        semaphore=name,
        holder=grant.agent,
        weight=grant.weight,
        capacity=pool.capacity,
        available=max(pool.free, 0),
        token=grant.token,
        expires_in=expires_in,
        grant=grant.id,
    )
