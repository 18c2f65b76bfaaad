"""Semaphores: so many slots, taken by weight, first come first served.

A semaphore is a pool with a capacity (``pool.py``).  It is made by the first request that
names a capacity and stays until it is removed, so that everybody means the same number: a request
that names another one is refused, and changing it is an act of its own (``resize``).

A lower capacity takes nothing from anybody: who holds keeps, and nobody is served until there is
room again.  Whoever waits for more than there will ever be is sent away by the same commit.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias, cast

from interlock.core import keys, outcomes
from interlock.core.decision import Decision, Event, Outcome, Success, Write
from interlock.nouns.grants.pool import BreakNote, Grant, Pool
from interlock.nouns.grants.pool_change import PoolChanges, PoolFacts
from interlock.nouns.grants.request import BreakRequest as AnyBreaker
from interlock.nouns.grants.request import Demand, GrantRequest, RequestStatus
from interlock.nouns.grants.request import HolderRequest as AnyCaller


class SlotsGranted(outcomes.Granted, frozen=True, kw_only=True):
    """What every grant says; ``available`` is what is left for others."""

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
    """You had as many, or more, and keep them."""


class Increased(SlotsGranted, frozen=True, kw_only=True, tag="increased"):
    """Your grant now has as many as you asked for."""


class SlotsFull(outcomes.Full, outcomes.Busy, frozen=True, kw_only=True, tag="full"):
    """Not enough is available, or somebody who waits came before."""

    semaphore: str
    capacity: int
    available: int
    waiters: int = 0
    holders: tuple[str, ...] = ()


class SlotsWaiting(outcomes.Waiting, frozen=True, kw_only=True, tag="waiting"):
    """In the queue, with so many before you."""

    semaphore: str
    before: int


class SlotsGone(outcomes.Gone, frozen=True, kw_only=True, tag="gone"):
    """Not in the queue any more: our liveness lapsed, or what we want can never be had."""

    semaphore: str


class SlotsDeadlock(outcomes.Deadlock, frozen=True, kw_only=True, tag="deadlock"):
    """Waiting would never end: these wait for each other, in a circle, beginning with you."""

    semaphore: str
    cycle: tuple[str, ...]


class SlotsReleased(outcomes.Released, frozen=True, kw_only=True, tag="released"):
    """They were yours and are not any more; ``next`` have some now, if anybody waited."""

    semaphore: str
    next: tuple[str, ...] = ()


class NotHolder(outcomes.NotOwner, frozen=True, kw_only=True, tag="not_holder"):
    """You hold none of it, and never did."""

    semaphore: str


class SlotsFenced(outcomes.Fenced, frozen=True, kw_only=True, tag="fenced"):
    """Your grant is over: others came later, or an operator ended it, ``by`` name."""

    semaphore: str
    token: int | None = None
    by: str = ""
    reason: str = ""


class SlotsBroken(outcomes.Broken, frozen=True, kw_only=True, tag="broken"):
    """The grant of ``holder`` is over, and its token is fenced; ``next`` have some slots now."""

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
    """The capacity is another one now; ``next`` have some now, if anybody waited."""

    semaphore: str
    capacity: int
    before: int
    next: tuple[str, ...] = ()


class Removed(Success, frozen=True, kw_only=True, tag="removed"):
    """There is no such semaphore any more."""

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
    """Take slots, extend or increase the grant that is carried, or (``wait``) queue for them."""

    noun: ClassVar[str] = "sem"

    semaphore: str
    weight: int = 1
    capacity: int | None = None

    @property
    def demands(self) -> tuple[Demand, ...]:
        """So many slots."""
        return (Demand(keys.semaphore(self.semaphore), self.weight, self.capacity),)

    def answer(self, standing: RequestStatus) -> Outcome:
        """How it stands, in the words of semaphores."""
        match standing.kind:
            case "granted" | "extended" | "increased":
                return self._granted(_GRANTED[standing.kind], standing)
            case "queued":
                return SlotsWaiting(semaphore=self.semaphore, before=standing.before)
            case "refused":
                return full(self.semaphore, standing.pools[0])
            case "deadlock":
                return SlotsDeadlock(semaphore=self.semaphore, cycle=standing.cycle)
            case "gone":
                return SlotsGone(semaphore=self.semaphore)

    def fenced(self, thing: str) -> Outcome:
        """Something that it relies on is gone."""
        return SlotsFenced(semaphore=thing.partition("/")[2])

    def moved_on(self, pool: Pool | None, newest: int) -> Outcome | None:
        """A token from before the last change, of no grant that is left, is fenced."""
        current = () if pool is None else [grant.token for grant in pool.grants]
        if self.token in current or (self.token or 0) >= newest:
            return None
        return SlotsFenced(semaphore=self.semaphore, token=newest)

    def ended(self, note: BreakNote) -> Outcome:
        """An operator ended it."""
        return SlotsFenced(semaphore=self.semaphore, by=note.by, reason=note.reason)

    def _granted(self, kind: type[SlotsGranted], standing: RequestStatus) -> SlotsGranted:
        grant = cast("Grant", standing.grant)
        return _granted(kind, self.semaphore, standing.pools[0], grant, standing.expires_in)


class SlotsHolderRequest(AnyCaller[Outcome], frozen=True, kw_only=True, gc=False):
    """Who speaks about slots."""

    noun: ClassVar[str] = "sem"

    semaphore: str

    @property
    def keys(self) -> tuple[str, ...]:
        """The one pool."""
        return (keys.semaphore(self.semaphore),)

    def refused(self, pool: Pool | None, newest: int, *, stale: bool) -> Outcome:
        """A token from before the last change, of no grant that is left, is fenced."""
        del stale
        current = () if pool is None else [grant.token for grant in pool.grants]
        if self.token is not None and self.token not in current and self.token < newest:
            return SlotsFenced(semaphore=self.semaphore, token=newest)
        return NotHolder(semaphore=self.semaphore)

    def released(self, things: tuple[str, ...], served: tuple[str, ...]) -> Outcome:
        """Whoever waited and fits has them."""
        del things
        return SlotsReleased(semaphore=self.semaphore, next=served)

    def extended(self, pool: Pool, grant: Grant, expires_in: float | None) -> Outcome:
        """It lives on."""
        return _granted(AlreadyHeld, self.semaphore, pool, grant, expires_in)

    def ended(self, note: BreakNote) -> Outcome:
        """An operator ended it."""
        return SlotsFenced(semaphore=self.semaphore, by=note.by, reason=note.reason)

    def lapsed(self, grant: Grant | None) -> Outcome:
        """It is over, if there ever was one."""
        if grant is None and self.token is None:
            return NotHolder(semaphore=self.semaphore)
        return SlotsFenced(semaphore=self.semaphore)


class SlotsBreakRequest(AnyBreaker[Outcome], frozen=True, kw_only=True, gc=False):
    """An operator who ends the grant of slots."""

    noun: ClassVar[str] = "sem"

    semaphore: str

    @property
    def key(self) -> str:
        """The one pool."""
        return keys.semaphore(self.semaphore)

    def broken(self, grant: Grant, served: tuple[str, ...]) -> Outcome:
        """It is over."""
        return SlotsBroken(
            semaphore=self.semaphore,
            holder=grant.agent,
            weight=grant.weight,
            token=grant.token,
            reason=self.reason,
            next=served,
        )

    def missed(self, pool: Pool | None) -> Outcome:
        """Who holds some instead."""
        grants = () if pool is None else pool.grants
        names = tuple(dict.fromkeys([grant.agent for grant in grants]))
        return NoHolder(semaphore=self.semaphore, holders=names)


def full(name: str, pool: Pool) -> SlotsFull:
    """The answer that says how much there is."""
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
    """Set the capacity; serve who fits now, and send away who never will."""
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
    left = _send_away(changes, key)
    changes.serve(dict.fromkeys((key, *left)))
    served = tuple([waiter.agent for waiter in changes.served.values()])
    outcome = Resized(semaphore=name, capacity=capacity, before=before.capacity, next=served)
    return changes.decision(outcome, "sem.resize", f"sem/{name}")


def remove(name: str, facts: PoolFacts, now: float) -> Decision[Removed | SlotsFull | NoSemaphore]:
    """Take it away, unless somebody holds or waits for some of it."""
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


def _send_away(changes: PoolChanges, key: str) -> list[str]:
    """Take whoever can never be served out of all its queues; which these are.

    Whoever there is no room for in this commit leaves by itself, when it looks.
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
