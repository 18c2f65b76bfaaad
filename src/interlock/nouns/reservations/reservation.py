"""Reservations: the state, and the outcomes that users see.

A reservation is for patterns of paths (``pattern.py``) in one repository.  It is one record, and an
entry for each of its patterns under the literal segments with which the pattern begins:

    reservations/{repository}/{id}              the record of a reservation
    reserve-queue/{repository}/{id}             the record of one that waits
    reserved/{repository}/{.segment/}{id}.{n}   the entry of a pattern, of either
    reserving/{agent}/{repository}/{id}         it is this agent's
    meta/reserved/{repository}                  rewritten by each commit that adds an entry

Two reservations *conflict* if a path exists that both cover, one of them is exclusive, they belong
to two agents, and both count in the same worktree: one that was made for a single worktree
(``tree``) does not concern the others.

    none ──reserve──> reserved ──unreserve──> none, and the waiters that conflict with nothing
      │                  │                    before them are served in the same commit
      └─conflict: queued─┘   a liveness key is gone: stale; the next caller that meets it ends it

A commit that reserves checks the mark of the repository, so no other reservation was added since
its entries were read: one commit decides, on every engine.  Rejected: one item for all of them,
which ten thousand make too large to rewrite; and marks for each folder, since a pattern that begins
with a wildcard would have to check them all, also those that do not exist yet.

The holder is the agent, by its name: a hook, a shell and a program that act under one name share
its reservations.  The token is the base of the store plus the revision that wrote the record.
Waiters are served first come, first served, as far as they conflict with each other.  A waiter that
does not sleep gets a message in the commit that serves it.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from interlock.core import outcomes
from interlock.core.decision import Refusal, Success
from interlock.core.outcomes import Listing

PATTERNS = 32
"""The most patterns of one reservation: its commit has to fit into that of every engine."""
WAITERS = 1000
"""The most reservations of one repository that wait."""
LISTED = 1000

OnConflict: TypeAlias = Literal["deny", "queue", "warn"]


class Reservation(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A reservation as it is stored, held or waiting.

    ``live`` keeps it alive: its own liveness key if it has a ttl, else that of its session.
    ``tree`` is the only worktree where it counts; ``fold`` says that case is ignored there.
    ``despite`` are reservations that it was made in spite of.  ``announce`` says that its agent
    gets a message when it is served, since no call sleeps until then.
    """

    id: str
    agent: str
    session: str
    patterns: tuple[str, ...]
    live: str
    since: float
    ttl: float | None = None
    shared: bool = False
    reason: str = ""
    tree: str = ""
    fold: bool = False
    caller: str = ""
    indexed: bool = False
    also: tuple[str, ...] = ()
    despite: tuple[str, ...] = ()
    announce: bool = False


class ReservedPattern(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The entry of one pattern: all that decides about a conflict, and what its refusal says."""

    id: str
    agent: str
    pattern: str
    live: str
    since: float
    shared: bool = False
    tree: str = ""
    fold: bool = False
    queued: bool = False
    reason: str = ""


class ReservationOverlap(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reservation of another agent that covers a path of mine: ``witness`` is such a path."""

    holder: str
    pattern: str
    witness: str
    wanted: str
    since: float
    reason: str = ""
    queued: bool = False
    id: str = ""


class Reserved(outcomes.Acquired, frozen=True, kw_only=True, tag="reserved"):
    """The paths are yours.

    With ``warn`` there may be ``conflicts``: others have reserved some of them, too.
    """

    token: int | None
    holder: str
    patterns: tuple[str, ...]
    shared: bool = False
    expires_in: float | None = None
    grant: str = ""
    conflicts: tuple[ReservationOverlap, ...] = ()


class ReservationExtended(outcomes.Extended, frozen=True, kw_only=True, tag="extended"):
    """You had reserved exactly this, and it lives on for its whole ttl."""

    token: int | None
    holder: str
    patterns: tuple[str, ...]
    shared: bool = False
    expires_in: float | None = None
    grant: str = ""


class ReservationConflict(Refusal, frozen=True, kw_only=True, tag="conflict"):
    """Another agent has reserved a path that this covers: nothing was reserved.

    ``witness`` is a path that both cover; ``conflicts`` has one entry for each reservation in the
    way.
    """

    holder: str
    witness: str
    pattern: str
    wanted: str
    since: float
    reason: str = ""
    expires_in: float | None = None
    conflicts: tuple[ReservationOverlap, ...] = ()


class ReservationQueued(outcomes.Waiting, frozen=True, kw_only=True, tag="waiting"):
    """It waits, and is reserved as soon as the reservations in its way end."""

    holder: str
    witness: str
    patterns: tuple[str, ...]
    before: int = 0
    grant: str = ""
    expires_in: float | None = None
    conflicts: tuple[ReservationOverlap, ...] = ()


class ReservationDeadlock(outcomes.Deadlock, frozen=True, kw_only=True, tag="deadlock"):
    """The wait would never end."""

    patterns: tuple[str, ...]
    cycle: tuple[str, ...]


class Unreserved(outcomes.Released, frozen=True, kw_only=True, tag="unreserved"):
    """These patterns are not reserved any more; ``next`` are agents whose wait ended with that."""

    patterns: tuple[str, ...]
    next: tuple[str, ...] = ()


class NothingReserved(Success, frozen=True, kw_only=True, tag="not_reserved"):
    """You have reserved nothing like that: nothing to do."""

    patterns: tuple[str, ...] = ()


class ReservationNotOwner(outcomes.NotOwner, frozen=True, kw_only=True, tag="not_owner"):
    """Another agent has reserved exactly this."""

    patterns: tuple[str, ...]
    holder: str


class ReservationFenced(outcomes.Fenced, frozen=True, kw_only=True, tag="fenced"):
    """The reservation with this token is over."""

    token: int | None


class ReservationBroken(outcomes.Broken, frozen=True, kw_only=True, tag="broken"):
    """The reservations of another agent were ended, with a reason; ``next`` are served now."""

    holder: str
    patterns: tuple[str, ...]
    token: int | None
    reason: str
    next: tuple[str, ...] = ()


class Overridden(Success, frozen=True, kw_only=True, tag="overridden"):
    """It is recorded that these paths are changed in spite of their reservations."""

    paths: tuple[str, ...]
    reason: str


class ReservationView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reservation for display: reserved, queued, or stale."""

    patterns: tuple[str, ...]
    holder: str
    state: Literal["reserved", "queued", "stale"]
    shared: bool = False
    since: float
    token: int | None = None
    expires_in: float | None = None
    reason: str = ""
    worktree: str = ""
    session: str = ""
    id: str = ""
    repository: str = ""


class ReservationList(Listing[ReservationView], frozen=True, kw_only=True):
    """The reservations of a repository, the oldest first; ``more`` if some are left out.

    ``repository`` is empty if they are those of all repositories.
    """

    listed = "reservations"

    repository: str
    reservations: tuple[ReservationView, ...]
    more: bool = False


ReserveOutcome: TypeAlias = (
    Reserved | ReservationExtended | ReservationConflict | ReservationQueued | ReservationDeadlock
)
UnreserveOutcome: TypeAlias = (
    Unreserved | NothingReserved | ReservationNotOwner | ReservationFenced | ReservationBroken
)
