"""Several locks and slots at once: all of them with one commit, or none.

Two callers that take the same things one after the other, in another order, can deadlock: each
holds its first thing while it waits for the second.  A request for all of them at once holds
nothing until it has everything.  ``pool.py`` says how it queues.
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
from interlock.nouns.grants.request import Demand, GrantRequest, HolderRequest, RequestStatus

AT_ONCE = 16
"""The most things in one request: every engine can commit their pools and waiters at once."""


class ThingRequest(Struct, frozen=True, omit_defaults=True):
    """One of the things: ``lock/merge``, or a number of slots of ``sem/builds``."""

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
    """Some of the things are not available now, so you got none of them."""

    things: tuple[str, ...]
    blocked: tuple[lock.LockBusy | semaphore.SlotsFull, ...]


class SeveralWaiting(outcomes.Waiting, frozen=True, kw_only=True, tag="waiting"):
    """In all the queues; ``before`` is the longest of them before you."""

    things: tuple[str, ...]
    before: int


class SeveralGone(outcomes.Gone, frozen=True, kw_only=True, tag="gone"):
    """Not in the queues any more."""

    things: tuple[str, ...]


class SeveralDeadlock(outcomes.Deadlock, frozen=True, kw_only=True, tag="deadlock"):
    """The wait would never end: these wait for each other in a cycle that starts with you."""

    things: tuple[str, ...]
    cycle: tuple[str, ...]


class SeveralReleased(outcomes.Released, frozen=True, kw_only=True, tag="released"):
    """You released these; ``next`` are the waiters that have some of them now."""

    things: tuple[str, ...]
    next: tuple[str, ...] = ()


class SeveralNotOwner(outcomes.NotOwner, frozen=True, kw_only=True, tag="not_owner"):
    """You hold none of them, and never did."""

    things: tuple[str, ...]


class SeveralFenced(outcomes.Fenced, frozen=True, kw_only=True, tag="fenced"):
    """Your grant is over, or a given grant that the request relies on is."""

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
        """A weight of each pool."""
        parts = self.parts
        return tuple([Demand(key_of(part.thing), part.weight, part.capacity) for part in parts])

    @property
    def named(self) -> tuple[str, ...]:
        """The requested things, as users write them."""
        return tuple([str(part) for part in self.parts])

    def outcome(self, status: RequestStatus) -> Outcome:
        """The outcome for a status."""
        match status.kind:
            case "granted" | "extended" | "increased":
                return self._acquired(status, cast("Grant", status.grant))
            case "queued":
                return SeveralWaiting(things=self.named, before=status.before)
            case "refused":
                return SeveralBusy(things=self.named, blocked=self._blocked(status.pools))
            case "deadlock":
                return SeveralDeadlock(things=self.named, cycle=status.cycle)
            case "gone":
                return SeveralGone(things=self.named)

    def fenced(self, thing: str) -> Outcome:
        """A given grant that it relies on is over."""
        return SeveralFenced(things=(thing,))

    def _acquired(self, status: RequestStatus, grant: Grant) -> SeveralAcquired:
        return SeveralAcquired(
            things=self.named,
            holder=grant.agent,
            token=grant.token,
            expires_in=status.expires_in,
            grant=grant.id,
        )

    def _blocked(self, pools: tuple[Pool, ...]) -> tuple[lock.LockBusy | semaphore.SlotsFull, ...]:
        pairs = zip(self.parts, pools, strict=True)
        short = [(p.thing, pool) for p, pool in pairs if pool.waiters or p.weight > pool.free]
        return tuple([_unavailable(thing, pool) for thing, pool in short])


class SeveralHolderRequest(HolderRequest[Outcome], frozen=True, kw_only=True, gc=False):
    """A request of a holder about its things; ``weights`` are the weights that it names."""

    things: tuple[str, ...]
    weights: tuple[tuple[str, int], ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The pools."""
        return tuple([key_of(thing) for thing in self.things])

    def check_weight(self, thing: str, grant: Grant) -> None:
        """A grant is released whole, so a caller that names another weight made a mistake."""
        if dict(self.weights).get(thing, grant.weight) != grant.weight:
            raise BadInput(
                f"you have {grant.weight} of {thing}, and it is given back whole; write {thing}"
            )

    def refused(self, pool: Pool | None, newest: int, *, stale: bool) -> Outcome:
        """The caller holds none: fenced by a later grant, or never held."""
        del stale
        current = () if pool is None else [grant.token for grant in pool.grants]
        if self.token is not None and self.token not in current and self.token < newest:
            return SeveralFenced(things=self.things, token=newest)
        return SeveralNotOwner(things=self.things)

    def broken_by(self, note: BreakNote) -> Outcome:
        """An operator ended the grant."""
        return SeveralFenced(things=self.things, by=note.by, reason=note.reason)

    def expired(self, grant: Grant | None) -> Outcome:
        """The grant expired, and no other agent has the things yet."""
        del grant
        return SeveralFenced(things=self.things)

    def released(self, things: tuple[str, ...], served: tuple[str, ...]) -> Outcome:
        """The waiters that fit have them now."""
        return SeveralReleased(things=things, next=served)


def _unavailable(thing: str, pool: Pool) -> lock.LockBusy | semaphore.SlotsFull:
    kind, _, name = thing.partition("/")
    return semaphore.full(name, pool) if kind == "sem" else lock.busy(name, pool)
