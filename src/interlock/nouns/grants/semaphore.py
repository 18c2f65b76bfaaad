"""Semaphores: a number of slots, taken by weight, first come first served.

A semaphore is a pool with a capacity (``pool.py``).  The first request that names a capacity makes
it, and it stays until it is removed.  A request that names another capacity is refused, so all
callers mean the same number; ``resize`` changes it.

A lower capacity takes no slot from a holder; no waiter is served until there is room again.  The
commit that lowers it removes the waiters that can never fit any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from interlock.core import item_outcomes, keys, outcomes
from interlock.core.decision import Decision, Event, Outcome, Success, Write
from interlock.core.validate import CAPACITY, count
from interlock.nouns.grants.pool import Grant, Pool
from interlock.nouns.grants.pool_change import PoolChanges, PoolFacts
from interlock.nouns.grants.request import Demand, GrantTarget, RequestStatus, pool_name
from interlock.runtime.why import Queued

if TYPE_CHECKING:
    from interlock.settings import Settings


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


class SlotsFull(item_outcomes.Full, outcomes.Busy, frozen=True, kw_only=True, tag="full"):
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


class Slots(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The slots of one holder, for display."""

    holder: str
    weight: int
    state: str
    token: int | None = None
    since: float | None = None
    expires_in: float | None = None
    max_hold: float | None = None
    session: str = ""
    metadata: Any = None


class SemaphoreView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A semaphore, for display."""

    semaphore: str
    capacity: int
    available: int
    holders: tuple[Slots, ...] = ()
    waiters: tuple[Queued, ...] = ()


_GRANTED = {"granted": SlotsAcquired, "extended": AlreadyHeld, "increased": Increased}

AcquireOutcome: TypeAlias = (
    SlotsAcquired
    | AlreadyHeld
    | Increased
    | SlotsFull
    | SlotsDeadlock
    | SlotsFenced
    | outcomes.GuardBlocked
    | outcomes.NoGuard
)
ReleaseOutcome: TypeAlias = SlotsReleased | NotHolder | SlotsFenced
BeatOutcome: TypeAlias = AlreadyHeld | NotHolder | SlotsFenced
BreakOutcome: TypeAlias = SlotsBroken | NoHolder


class SlotsTarget(GrantTarget, frozen=True, gc=False):
    """Slots of one semaphore; a ``capacity`` makes it."""

    noun: ClassVar[str] = "sem"
    about: ClassVar[str] = "a wait for slots"

    name: str
    weight: int = 1
    capacity: int | None = None
    keys: tuple[str, ...] = ()  # a field, since a property takes longer
    """Its one pool; the name says which."""

    def __post_init__(self) -> None:
        name = pool_name(self.name, "semaphore")
        force_setattr(self, "name", name)
        force_setattr(self, "keys", (keys.semaphore(name),))

    @property
    def demands(self) -> tuple[Demand, ...]:
        """The slots of one pool."""
        return (Demand(self.keys[0], self.weight, self.capacity),)

    @property
    def things(self) -> tuple[str, ...]:
        """The semaphore."""
        return (self.thing,)

    @property
    def thing(self) -> str:
        """The semaphore."""
        return f"sem/{self.name}"

    def configured(
        self, settings: Settings, least: float
    ) -> tuple[SlotsTarget, Mapping[str, float]]:
        """The slots, validated, and the terms of the semaphore in the settings."""
        terms, capacity = settings.semaphore(self.name, least), self.capacity
        if capacity is None and "capacity" in terms:
            capacity = int(terms["capacity"])
        count(self.weight, "weight", CAPACITY)
        if capacity is not None:
            count(capacity, "capacity", CAPACITY)
        return self if capacity == self.capacity else replace(self, capacity=capacity), terms

    def outcome(self, status: RequestStatus) -> Outcome:
        """The outcome of a semaphore for a status."""
        match status.kind:
            case "granted" | "extended" | "increased":
                grant: Grant = status.grant  # type: ignore[assignment]  # has one
                return self.granted(status.kind, status.pools[0], grant, status.expires_in)
            case "queued":
                return SlotsWaiting(semaphore=self.name, before=status.before)
            case "refused":
                return full(self.name, status.pools[0])
            case "deadlock":
                return SlotsDeadlock(semaphore=self.name, cycle=status.cycle)
            case "gone":
                return SlotsGone(semaphore=self.name)

    def fenced(self, token: int | None = None, by: str = "", reason: str = "") -> Outcome:
        """The grant is over."""
        return SlotsFenced(semaphore=self.name, token=token, by=by, reason=reason)

    def given_fenced(self, thing: str) -> Outcome:
        """A given grant is over."""
        return SlotsFenced(semaphore=thing.partition("/")[2])

    def not_held(self, pool: Pool | None, *, stale: bool) -> Outcome:
        """The caller holds none."""
        del pool, stale
        return NotHolder(semaphore=self.name)

    def expired(self, token: int | None, grant: Grant | None) -> Outcome:
        """The grant expired, if there was one."""
        if grant is None and token is None:
            return NotHolder(semaphore=self.name)
        return self.fenced()

    def released(self, things: tuple[str, ...], served: tuple[str, ...]) -> Outcome:
        """The waiters that fit have them now."""
        del things
        return SlotsReleased(semaphore=self.name, next=served)

    def broken(self, grant: Grant, served: tuple[str, ...], reason: str) -> Outcome:
        """The grant was ended."""
        return SlotsBroken(
            semaphore=self.name,
            holder=grant.agent,
            weight=grant.weight,
            token=grant.token,
            reason=reason,
            next=served,
        )

    def not_found(self, pool: Pool | None) -> Outcome:
        """There is no such grant; the outcome names the holders."""
        return NoHolder(semaphore=self.name, holders=_holders(pool or Pool()))

    def granted(self, kind: str, pool: Pool, grant: Grant, expires_in: float | None) -> Outcome:
        """The slots were taken, or their grant extended or increased."""
        return _GRANTED[kind](
            semaphore=self.name,
            holder=grant.agent,
            weight=grant.weight,
            capacity=pool.capacity,
            available=max(pool.free, 0),
            token=grant.token,
            expires_in=expires_in,
            grant=grant.id,
        )


def full(name: str, pool: Pool) -> SlotsFull:
    """The outcome that says how many slots there are."""
    return SlotsFull(
        semaphore=name,
        capacity=pool.capacity,
        available=max(pool.free, 0),
        waiters=len(pool.waiters),
        holders=_holders(pool),
    )


def _holders(pool: Pool) -> tuple[str, ...]:
    return tuple(dict.fromkeys([grant.agent for grant in pool.grants]))


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
            created=(f"sem/{name}",),
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
    changes.settle((key,))
    left = changes.pool(key) or Pool()
    if left.grants or left.waiters:
        return changes.decision(full(name, left), "sem.reclaim", f"sem/{name}")
    thing = f"sem/{name}"
    return Decision(
        outcome=Removed(semaphore=name),
        verb="sem.remove",
        thing=thing,
        deletes=(key,),
        awaited=(thing,) if left.gated else (),
    )


def _remove_hopeless(changes: PoolChanges, key: str) -> list[str]:
    """Remove the waiters that can never fit from all of their queues; returns these pools.

    A waiter for which this commit has no room leaves the queue itself when it wakes.
    """
    pool, left = changes.pool(key) or Pool(), list[str]()
    for waiter in pool.waiters:
        if pool.never_fits(waiter) and changes.spare:
            changes.leave(waiter.together or (key,), waiter.id)
            changes.wake(waiter)
            left.extend(waiter.together)
    return left
