"""Several locks and slots at once: all of them with one commit, or none.

Whoever takes one thing after the other can end up in a circle with somebody who takes them in
another order, and holds the first while it waits for the second.  Asking for all of them at once
does neither: nothing is held before everything is.  ``pool.py`` says how that queues.
"""

from __future__ import annotations

from typing import TypeAlias, cast

from msgspec import Struct

from interlock.core import outcomes
from interlock.core.decision import Outcome
from interlock.core.thing_names import key_of
from interlock.errors import BadInput
from interlock.nouns.grants import lock, semaphore
from interlock.nouns.grants.pool import BreakNote, Grant, Pool
from interlock.nouns.grants.request import Demand, GrantRequest, RequestStatus
from interlock.nouns.grants.request import HolderRequest as AnyCaller

AT_ONCE = 16
"""Things in one request: every engine can commit so many pools and their waiters at once."""


class ThingRequest(Struct, frozen=True, omit_defaults=True):
    """One of the things: ``lock/merge``, or so many slots of ``sem/builds``."""

    thing: str
    weight: int = 1
    capacity: int | None = None

    def __str__(self) -> str:
        return self.thing if self.weight == 1 else f"{self.thing}={self.weight}"


class SeveralAcquired(outcomes.Acquired, frozen=True, kw_only=True, tag="acquired"):
    """All of it is yours, under one token."""

    things: tuple[str, ...]
    holder: str
    token: int | None = None
    expires_in: float | None = None
    grant: str = ""


class SeveralBusy(outcomes.Busy, frozen=True, kw_only=True, tag="busy"):
    """Some of it cannot be had now, so you have none of it."""

    things: tuple[str, ...]
    blocked: tuple[lock.LockBusy | semaphore.SlotsFull, ...]


class SeveralWaiting(outcomes.Waiting, frozen=True, kw_only=True, tag="waiting"):
    """In all the queues, with so many before you where most are."""

    things: tuple[str, ...]
    before: int


class SeveralGone(outcomes.Gone, frozen=True, kw_only=True, tag="gone"):
    """Not in the queues any more."""

    things: tuple[str, ...]


class SeveralDeadlock(outcomes.Deadlock, frozen=True, kw_only=True, tag="deadlock"):
    """Waiting would never end: these wait for each other, in a circle, beginning with you."""

    things: tuple[str, ...]
    cycle: tuple[str, ...]


class SeveralReleased(outcomes.Released, frozen=True, kw_only=True, tag="released"):
    """These were yours and are not any more; ``next`` have some of it now, if anybody waited."""

    things: tuple[str, ...]
    next: tuple[str, ...] = ()


class SeveralNotOwner(outcomes.NotOwner, frozen=True, kw_only=True, tag="not_owner"):
    """You hold none of it, and never did."""

    things: tuple[str, ...]


class SeveralFenced(outcomes.Fenced, frozen=True, kw_only=True, tag="fenced"):
    """Your grant is over, or something that this relies on is no longer yours."""

    things: tuple[str, ...]
    token: int | None = None
    by: str = ""
    reason: str = ""


AcquireOutcome: TypeAlias = SeveralAcquired | SeveralBusy | SeveralDeadlock | SeveralFenced
ReleaseOutcome: TypeAlias = SeveralReleased | SeveralNotOwner | SeveralFenced


class SeveralGrantRequest(GrantRequest[Outcome], frozen=True, kw_only=True, gc=False):
    """Take all of these, or (``wait``) queue for all of them."""

    parts: tuple[ThingRequest, ...]

    @property
    def demands(self) -> tuple[Demand, ...]:
        """So much of each."""
        parts = self.parts
        return tuple([Demand(key_of(part.thing), part.weight, part.capacity) for part in parts])

    @property
    def named(self) -> tuple[str, ...]:
        """What was asked for, as people write it."""
        return tuple([str(part) for part in self.parts])

    def answer(self, standing: RequestStatus) -> Outcome:
        """How it stands."""
        match standing.kind:
            case "granted" | "extended" | "increased":
                return self._acquired(standing, cast("Grant", standing.grant))
            case "queued":
                return SeveralWaiting(things=self.named, before=standing.before)
            case "refused":
                return SeveralBusy(things=self.named, blocked=self._blocked(standing.pools))
            case "deadlock":
                return SeveralDeadlock(things=self.named, cycle=standing.cycle)
            case "gone":
                return SeveralGone(things=self.named)

    def fenced(self, thing: str) -> Outcome:
        """Something that it relies on is gone."""
        return SeveralFenced(things=(thing,))

    def _acquired(self, standing: RequestStatus, grant: Grant) -> SeveralAcquired:
        return SeveralAcquired(
            things=self.named,
            holder=grant.agent,
            token=grant.token,
            expires_in=standing.expires_in,
            grant=grant.id,
        )

    def _blocked(self, pools: tuple[Pool, ...]) -> tuple[lock.LockBusy | semaphore.SlotsFull, ...]:
        pairs = zip(self.parts, pools, strict=True)
        short = [(p.thing, pool) for p, pool in pairs if pool.waiters or p.weight > pool.free]
        return tuple([_no(thing, pool) for thing, pool in short])


class SeveralHolderRequest(AnyCaller[Outcome], frozen=True, kw_only=True, gc=False):
    """Who speaks about things that it got at once; ``weights`` are those that it named."""

    things: tuple[str, ...]
    weights: tuple[tuple[str, int], ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The pools."""
        return tuple([key_of(thing) for thing in self.things])

    def agrees(self, thing: str, grant: Grant) -> None:
        """What one has is given back whole: whoever names a part of it means something else."""
        if dict(self.weights).get(thing, grant.weight) != grant.weight:
            raise BadInput(
                f"you have {grant.weight} of {thing}, and it is given back whole; write {thing}"
            )

    def refused(self, pool: Pool | None, newest: int, *, stale: bool) -> Outcome:
        """None of it: fenced by whatever came later, or never held."""
        del stale
        current = () if pool is None else [grant.token for grant in pool.grants]
        if self.token is not None and self.token not in current and self.token < newest:
            return SeveralFenced(things=self.things, token=newest)
        return SeveralNotOwner(things=self.things)

    def ended(self, note: BreakNote) -> Outcome:
        """An operator ended it."""
        return SeveralFenced(things=self.things, by=note.by, reason=note.reason)

    def lapsed(self, grant: Grant | None) -> Outcome:
        """It is over, and nobody has it yet."""
        del grant
        return SeveralFenced(things=self.things)

    def released(self, things: tuple[str, ...], served: tuple[str, ...]) -> Outcome:
        """Whoever waited and fits has it."""
        return SeveralReleased(things=things, next=served)


def _no(thing: str, pool: Pool) -> lock.LockBusy | semaphore.SlotsFull:
    kind, _, name = thing.partition("/")
    return semaphore.full(name, pool) if kind == "sem" else lock.busy(name, pool)
