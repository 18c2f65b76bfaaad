"""Reads all entries, sealed or not, each once, from either end.

Sealed entries are in segments, the others in the log.  Sealing writes the segment before it trims
the log, so for a while an entry is in both; a walk therefore never returns behind the entries that
it gave.  Where it changes from one to the other it reads both in one snapshot, so that entries
sealed at that moment are neither missed nor doubled.

A segment names the end of the one before it, which is that segment's key: so segments can be walked
backwards without listing them.
"""

from __future__ import annotations

from collections.abc import Iterator

from interlock.core import codec, keys
from interlock.core.filter import RecordFilter
from interlock.core.log import Entry, RecordLine, SealedMark, Segment, decode
from interlock.drivers import Op, Read
from interlock.errors import StoreDamaged
from interlock.runtime.reads import decoded, unreadable, with_bytes
from interlock.store import LOG, Item, Log, Range, Snapshot

PAGE = 1000
EVERYTHING = RecordFilter()
_SEALED = codec.Decoder(SealedMark)
_SEGMENT = codec.Decoder(Segment)


class EntriesForward:
    """The entries after a revision, oldest first."""

    def __init__(self, after: int = 0, page: int = PAGE) -> None:
        self._after = after
        self._page = page
        self._sealed = False

    def page(self) -> Op[tuple[Item, ...]]:
        """The next entries; none when there are no more."""
        while True:
            sealed = Range(keys.SEGMENTS, keys.segment(self._after), 1)
            log = Log(after=self._after, limit=self._page)
            snapshot: Snapshot = yield Read(sealed) if self._sealed else Read(sealed, log)
            segments = snapshot.ranges[sealed]
            looked, self._sealed = self._sealed, bool(segments)
            if looked and not segments:  # the last one is behind us: now both, at one moment
                continue
            found = self._opened(segments[0]) if segments else snapshot.ranges[log]
            self._after = found[-1].revision if found else self._after
            if found or not segments:
                return found

    def _opened(self, item: Item) -> tuple[Item, ...]:
        segment = decoded(_SEGMENT, item)
        found = tuple(each for each in _entries(item, segment) if each.revision > self._after)
        self._after = max(self._after + 1, segment.ends.revision)  # advances in any case
        return found


class EntriesBackward:
    """The entries before a revision (0: all), the latest portion first; each portion in order."""

    def __init__(self, before: int = 0, page: int = PAGE) -> None:
        self._before = before
        self._page = page
        self._segment: int | None = None
        """The last revision of the segment to come; 0 when there is none; None in the log."""

    def page(self) -> Op[tuple[Item, ...]]:
        """The entries before the last page; none when there are no more."""
        found: tuple[Item, ...] = ()
        if self._segment is None:
            found = yield from self._unsealed()
        while not found and self._segment:
            found = yield from self._sealed(self._segment)
        self._before = found[0].revision if found else self._before
        return found

    def _unsealed(self) -> Op[tuple[Item, ...]]:
        log = Log(before=self._before, limit=self._page, last=True)
        snapshot: Snapshot = yield Read(log, keys.SEALED)
        found = snapshot.ranges[log]
        if len(found) < self._page:
            mark = snapshot[keys.SEALED]
            self._segment = 0 if mark is None else decoded(_SEALED, mark).revision
        return found

    def _sealed(self, last: int) -> Op[tuple[Item, ...]]:
        key = keys.segment(last)
        snapshot: Snapshot = yield Read(key)
        item = snapshot[key]
        if item is None:  # retention dropped it, and all before it
            self._segment = 0
            return ()
        segment = decoded(_SEGMENT, item)
        self._segment = min(segment.begins.revision, last - 1)  # goes back in any case
        entries = _entries(item, segment)
        return tuple(e for e in entries if not self._before or e.revision < self._before)


def search(
    wanted: RecordFilter, *, after: int = 0, limit: int, last: bool = True
) -> Op[tuple[RecordLine, ...]]:
    """The entries after a revision that match a filter, in order: the last, or the first."""
    page = PAGE if wanted != EVERYTHING else min(limit, PAGE)
    walk = EntriesBackward(page=page) if last else EntriesForward(after, page)
    found: list[RecordLine] = []
    while len(found) < limit:
        items = yield from walk.page()
        found += (
            record_line(item, entry)
            for item in (reversed(items) if last else items)
            if item.revision > after and wanted.keeps(entry := read_entry(item))
        )
        if not items or items[0].revision <= after:
            break
    return tuple(reversed(found[:limit]) if last else found[:limit])


def read_entry(item: Item) -> Entry:
    """The entry that an item of the log is."""
    try:
        entry: Entry = decode(item.value)
    except codec.UNREADABLE as error:
        raise StoreDamaged(f"{item.key} is not an entry ({error}); restore a copy") from error
    return entry


def record_line(item: Item, entry: Entry | None = None) -> RecordLine:
    """An entry with its place in the order and its own hash."""
    entry = entry or read_entry(item)
    fields = {name: getattr(entry, name) for name in Entry.__struct_fields__}
    fields["id"] = item.key.removeprefix(LOG)
    return RecordLine(revision=item.revision, hash=codec.digest(with_bytes(item).value), **fields)


def _entries(item: Item, segment: Segment) -> Iterator[Item]:
    from interlock.nouns.record.segment import (
        unpack,  # zlib is imported only for sealed entries
    )

    try:
        for revision, id_, stored in unpack(segment.packed):
            yield Item(LOG + id_, stored, revision, revision, id_)
    except ValueError as error:
        raise unreadable(item, error) from error
