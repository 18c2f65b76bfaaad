"""Which reservations conflict: pure functions of the entries that were read.

``reservation.py`` says what a conflict is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from interlock.nouns.reservations import pattern as patterns
from interlock.nouns.reservations.pattern import Pattern
from interlock.nouns.reservations.reservation import (
    Reservation,
    ReservationOverlap,
    ReservedPattern,
)


class PatternEntry(Struct, frozen=True, gc=False):
    """An entry as it was read, with the revision of the commit that added it."""

    of: ReservedPattern
    order: int


class QueuedReservation(Struct, frozen=True, gc=False):
    """A reservation that waits, with the revision of the commit that queued it."""

    of: Reservation
    order: int


class PatternIndex:
    """Entries by the literal segments with which their patterns begin."""

    def __init__(self, entries: Iterable[PatternEntry] = ()) -> None:
        self._at: dict[tuple[str, ...], list[PatternEntry]] = {}
        self._below: dict[tuple[str, ...], list[PatternEntry]] = {}
        for entry in entries:
            self.add(entry)

    def add(self, entry: PatternEntry) -> None:
        """Add an entry."""
        prefix = parsed(entry.of).prefix
        self._at.setdefault(prefix, []).append(entry)
        for depth in range(len(prefix)):
            self._below.setdefault(prefix[:depth], []).append(entry)

    def candidates(self, wanted: Pattern) -> Iterator[PatternEntry]:
        """The entries that may overlap: at its prefix, above it, and below it.

        Below a path or a glob whose prefix ends earlier all are candidates.
        """
        prefix = wanted.prefix
        for depth in range(len(prefix) + 1):
            yield from self._at.get(prefix[:depth], ())
        yield from self._below.get(prefix, ())


def parsed(entry: ReservedPattern) -> Pattern:
    """The pattern of an entry."""
    return patterns.parse(entry.pattern, fold=entry.fold)


def own_entries(reservation: Reservation, *, queued: bool) -> list[ReservedPattern]:
    """The entries of a reservation, one for each pattern."""
    return [
        ReservedPattern(
            id=reservation.id,
            agent=reservation.agent,
            pattern=text,
            live=reservation.live,
            since=reservation.since,
            shared=reservation.shared,
            tree=reservation.tree,
            fold=reservation.fold,
            queued=queued,
            reason=reservation.reason,
        )
        for text in reservation.patterns
    ]


def conflicting(
    wanted: Reservation,
    entries: Iterable[PatternEntry],
    before: int | None = None,
    path: Pattern | None = None,
) -> list[PatternEntry]:
    """The entries that conflict with a reservation, one of each other reservation.

    Waiters count if they came before it.  ``path`` is what is wanted if that is a path that exists,
    which no pattern may spell.
    """
    mine = [path] if path else [patterns.parse(text, fold=wanted.fold) for text in wanted.patterns]
    several = len(mine) > 1
    index = PatternIndex(entries) if several else None
    all_ = () if several else tuple(entries)
    found: dict[str, PatternEntry] = {}
    for each in mine:
        for entry in all_ if index is None else index.candidates(each):
            if entry.of.id not in found and _conflict(wanted, each, entry, before):
                found[entry.of.id] = entry
    return sorted(found.values(), key=lambda entry: entry.order)


def _conflict(wanted: Reservation, mine: Pattern, entry: PatternEntry, before: int | None) -> bool:
    other = entry.of
    if other.id == wanted.id or other.agent == wanted.agent:
        return False
    if other.shared and wanted.shared:
        return False
    if other.tree and wanted.tree and other.tree != wanted.tree:
        return False
    if other.queued and before is not None and entry.order >= before:
        return False
    theirs = parsed(other)
    if other.fold != wanted.fold:  # either file system may hold the files of both
        mine, theirs = patterns.folded(mine), patterns.folded(theirs)
    return patterns.overlaps(mine, theirs)


def overlap(
    wanted: Reservation, entry: PatternEntry, path: Pattern | None = None
) -> ReservationOverlap:
    """A conflict, with a path that both cover."""
    other, fold = entry.of, entry.of.fold or wanted.fold
    theirs = patterns.parse(other.pattern, fold=fold)
    pairs = [(text, patterns.parse(text, fold=fold)) for text in wanted.patterns if path is None]
    if path is not None:
        pairs = [(path.text, patterns.folded(path) if fold else path)]
    found = ((text, patterns.overlap(mine, theirs)) for text, mine in pairs)
    text, witness = next((text, path) for text, path in found if path is not None)
    return ReservationOverlap(
        holder=other.agent,
        pattern=other.pattern,
        witness=witness,
        wanted=text,
        since=other.since,
        reason=other.reason,
        queued=other.queued,
        id=other.id,
    )


def same(one: Reservation, other: Reservation) -> bool:
    """Whether two reservations of an agent are for the same files, and end in the same way.

    One ends with its session, the other after its ttl: to extend the first would promise a time
    that it does not live.
    """
    mine = (frozenset(one.patterns), one.shared, one.tree)
    if mine != (frozenset(other.patterns), other.shared, other.tree):
        return False
    if one.ttl is None or other.ttl is None:
        return one.ttl is other.ttl and one.session == other.session
    return True
