"""Reads reservations: the entries that may overlap a pattern, records, the queue, and liveness."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeAlias

from interlock.core import codec, keys
from interlock.nouns.reservations import pattern as patterns
from interlock.nouns.reservations import reservation as r
from interlock.nouns.reservations.conflicts import PatternEntry, QueuedReservation
from interlock.nouns.reservations.pattern import INDEXED, Pattern
from interlock.nouns.reservations.reservation import Reservation, ReservedPattern
from interlock.runtime.attempt import ReadOp, Unchecked
from interlock.runtime.reads import KEYS_AT_ONCE
from interlock.store import Item, Range

Live: TypeAlias = dict[str, bool]
"""Which liveness keys exist, as far as they were read."""
FEW = 50
"""Entries that are decoded without a look at their keys."""

_RECORD = codec.Decoder(Reservation)
_ENTRY = codec.Decoder(ReservedPattern)
decode_reservation = _RECORD.read
decode_entry = _ENTRY.read


def parsed(of: Reservation) -> tuple[Pattern, ...]:
    """The patterns of a reservation."""
    return tuple(patterns.parse(text, fold=of.fold) for text in of.patterns)


def granted_live(of: Reservation) -> str:
    """The liveness key of a reservation that is held."""
    return keys.live(of.session if of.ttl is None else of.id)


def record_key(repository: str, of: ReservedPattern) -> str:
    """The key of the record that an entry belongs to."""
    make = keys.reserve_queue if of.queued else keys.reservation
    return make(repository, of.id)


def learn(known: Live, wanted: Iterable[str]) -> ReadOp[None]:
    """Find out which liveness keys exist; one that is gone never comes back."""
    unknown = [key for key in dict.fromkeys(wanted) if key not in known]
    for start in range(0, len(unknown), KEYS_AT_ONCE):
        items = (yield Unchecked(unknown[start : start + KEYS_AT_ONCE])).items
        known.update({key: item is not None for key, item in items.items()})


def entries_for(repository: str, wanted: Iterable[Pattern]) -> ReadOp[list[PatternEntry]]:
    """The entries of all patterns that may overlap one of these.

    A key says how its pattern begins, so most entries below a glob need not be decoded.
    """
    pages: dict[Range, list[Pattern]] = {}
    for each in wanted:
        prefix = each.prefix
        for depth in range(len(prefix)):
            pages.setdefault(Range(keys.reserved(repository, prefix[:depth], "rsv_")), [])
        pages.setdefault(Range(keys.reserved(repository, prefix)), []).append(each)
    found: dict[str, Item] = {}
    todo = list(pages.items())
    folder = keys.reserved(repository)
    while todo:
        some, todo = todo[:KEYS_AT_ONCE], todo[KEYS_AT_ONCE:]
        ranges = (yield tuple(page for page, _ in some)).ranges
        for page, below in some:
            items = ranges[page]
            may = _key_matcher(folder, below) if len(items) > FEW and below else None
            near = items if may is None else [item for item in items if may(item.key)]
            found.update({item.key: item for item in near})
            if len(items) == page.limit:
                todo.append((Range(page.prefix, items[-1].key, page.limit), below))
    return [PatternEntry(decode_entry(item), item.created) for item in found.values()]


def _key_matcher(folder: str, wanted: Iterable[Pattern]) -> Callable[[str], object]:
    """Matches the keys of entries that may overlap one of these patterns.

    A key has the literal segments with which its pattern begins, and ends after any of them.
    """
    found = []
    for each in wanted:
        nested = ""
        for token in reversed(each.head[:INDEXED]):
            name = re.escape(keys.encode(token.name.lower())) if token.name else "[^/]*"
            nested = f"(?:rsv_|\\.{name}/{nested})"
        found.append(nested)
    return re.compile(re.escape(folder) + f"(?:{'|'.join(found)})").match


def queue_of(repository: str) -> ReadOp[tuple[QueuedReservation, ...]]:
    """The reservations that wait, in their order."""
    page = Range(keys.reserve_queue(repository), limit=r.WAITERS + 1)
    items = (yield (page,)).ranges[page]
    found = [QueuedReservation(decode_reservation(item), item.created) for item in items]
    return tuple(sorted(found, key=lambda each: each.order))


def records_of(repository: str, ids: Iterable[str]) -> ReadOp[list[Reservation]]:
    """The records of these reservations, held or waiting."""
    wanted = [
        key
        for id_ in dict.fromkeys(ids)
        for key in (keys.reservation(repository, id_), keys.reserve_queue(repository, id_))
    ]
    if not wanted:
        return []
    items = (yield tuple(wanted)).items
    return [decode_reservation(item) for item in items.values() if item is not None]


def held_by(repository: str, agent: str, base: int) -> ReadOp[list[tuple[Reservation, int]]]:
    """The reservations of an agent, held or waiting, each with its token."""
    page = Range(keys.reserving(agent, repository))
    found: list[tuple[Reservation, int]] = []
    while True:
        items = (yield (page,)).ranges[page]
        ids = [keys.id_of(item.key) for item in items]
        for start in range(0, len(ids), KEYS_AT_ONCE // 2):
            some = ids[start : start + KEYS_AT_ONCE // 2]
            wanted = [
                key
                for id_ in some
                for key in (keys.reservation(repository, id_), keys.reserve_queue(repository, id_))
            ]
            records = (yield Unchecked(wanted)).items
            found += [
                (decode_reservation(item), base + item.revision)
                for item in records.values()
                if item is not None
            ]
        if len(items) < page.limit:
            return found
        page = Range(page.prefix, items[-1].key, page.limit)
