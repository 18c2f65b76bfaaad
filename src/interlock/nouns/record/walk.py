"""One reading of the whole record: the segments in order, then the log, up to an end.

The end is fixed first, so that a reader can be done while others write on.  Whoever seals or drops
meanwhile is no trouble: a page of the log is read together with the segment that would come next,
and where the segment is there, it comes first.  So entries that stand in both (somebody was killed
between sealing and trimming) are read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from interlock.core import keys
from interlock.core.log import Mark, Sealed, Segment
from interlock.drivers import Op
from interlock.errors import StoreBusy, StoreDamaged
from interlock.nouns.record.rolling_digest import Kept
from interlock.nouns.record.segment import adds_up, number, unpack
from interlock.runtime.decode import decoded, exact
from interlock.runtime.steps import Read, StoreCall
from interlock.store import LOG, Capabilities, Item, Log, Range

PAGE = 2000
"""Entries at a time: what an event loop is kept from others for is some milliseconds."""

_SEALED = msgspec.json.Decoder(Sealed)
_MARK = msgspec.json.Decoder(Mark)
_SEGMENT = msgspec.json.Decoder(Segment)


class Moved(StoreBusy):
    """Retention dropped what was to be read next: begin again."""


class Span(Struct, frozen=True, kw_only=True):
    """What there is to read.

    ``begins`` is the mark up to which retention dropped everything; ``covered`` is false if the
    engine forgot entries that no segment has, ``anew`` if sealing began again behind them;
    ``trims`` is true if the engine itself can have forgotten them: else they were removed;
    ``kept`` are the marks of the store itself.
    """

    end: int
    strict: bool
    covered: bool
    trims: bool = False
    anew: bool = False
    begins: Mark | None = None
    kept: tuple[Kept, ...] = ()


class Reader(Protocol):
    """Who is given what was read."""

    def feed(self, items: Sequence[Item], *, sealed: bool = False) -> None:
        """The next entries."""

    def segment(self, item: Item, begins: Mark, ends: Mark | None) -> None:
        """The next entries come from here; no end if it lies behind that of the reading."""

    def unreadable(self, item: Item, last: int) -> None:
        """This should be a segment, up to this revision, and is none."""

    def changed(self, item: Item) -> None:
        """The next entries come from here, and what the segment says of them is not true."""

    def stray(self, item: Item) -> None:
        """This stands among the segments, and is not named as one."""

    def forgotten(self, first: int) -> None:
        """The engine forgot entries before this one, and no segment has them."""


def span(capabilities: Capabilities) -> Op[Span]:
    """Where the record begins and ends at this moment."""
    trimmed = (yield StoreCall("extent")).trimmed  # first: whoever trims has sealed before
    last = Log(limit=1, last=True)
    snapshot = yield Read(last, keys.SEALED, keys.CHECKPOINT)
    sealed = sealed_mark(snapshot[keys.SEALED])
    marks = {keys.SEALED: sealed, keys.CHECKPOINT: _mark(snapshot[keys.CHECKPOINT])}
    entries = snapshot.ranges[last]
    reached = sealed.revision if sealed is not None else 0
    dropped = sealed.dropped if sealed is not None else None
    anew = dropped is not None and not dropped.digest  # sealing began again behind a gap
    end = max(reached, entries[-1].created if entries else 0)
    gap = dropped.revision if anew and dropped is not None else trimmed
    return Span(
        end=end,
        strict=capabilities.local,
        covered=trimmed <= reached,
        trims=capabilities.may_forget(gap, end),
        anew=anew,
        begins=dropped,
        kept=tuple(Kept(plain(mark), key) for key, mark in marks.items() if mark is not None),
    )


def walk(span: Span, reader: Reader) -> Op[None]:
    """Give a reader all entries up to the end of the span."""
    at = span.begins.revision if span.begins is not None else 0
    key = keys.segment(at)
    logged, covered = False, span.covered
    if span.anew:  # nothing that is here was before the gap
        reader.forgotten(at + 1)
        covered = True
    while at < span.end:
        segments, log = Range(keys.SEGMENTS, key, 1), Log(after=at, limit=PAGE)
        refs = (segments, log, keys.SEALED) if logged else (segments, keys.SEALED)
        snapshot = yield Read(*refs)
        if found := snapshot.ranges[segments]:
            at = _read_segment(found[0], at, span, reader, sealed_mark(snapshot[keys.SEALED]))
            key = found[0].key
        elif not logged:
            logged = True
        else:
            _refuse_moved(at, sealed_mark(snapshot[keys.SEALED]))
            items = snapshot.ranges[log]
            page = [exact(item) for item in items if item.created <= span.end]
            if page and not covered:
                reader.forgotten(page[0].created)
                covered = True
            reader.feed(page)
            if len(page) < PAGE:
                return
            at = page[-1].created
            key = max(key, keys.segment(at))


def sealed_mark(item: Item | None) -> Sealed | None:
    """How far the record is sealed; None if it is not, or if nobody can tell."""
    try:
        return None if item is None else decoded(_SEALED, item)
    except StoreDamaged:
        return None  # the item is compared with the entry that wrote it, and that says so


def plain(mark: Mark) -> Mark:
    """Only the mark: what stands beside it is not compared."""
    return Mark(revision=mark.revision, entries=mark.entries, digest=mark.digest)


def _mark(item: Item | None) -> Mark | None:
    try:
        return None if item is None else decoded(_MARK, item)
    except StoreDamaged:
        return None


def _read_segment(item: Item, at: int, span: Span, reader: Reader, sealed: Sealed | None) -> int:
    """Give a reader the entries of a segment that it does not have; how far that goes."""
    last = number(item.key.removeprefix(keys.SEGMENTS))
    if last is None:
        reader.stray(item)
        return at
    opened = unsealed(item)
    if opened is None:
        reader.unreadable(item, last)
        return last
    segment, entries = opened
    if segment.begins.revision > at:
        _refuse_moved(at, sealed)
    if adds_up(segment, [(each.created, each.value) for each in entries], last):
        ends = segment.ends if segment.ends.revision <= span.end else None
        reader.segment(item, segment.begins, ends)
    else:
        reader.changed(item)
    reader.feed([each for each in entries if at < each.created <= span.end], sealed=True)
    return last


def unsealed(item: Item) -> tuple[Segment, list[Item]] | None:
    """A segment and its entries; None if it cannot be read."""
    try:
        segment = decoded(_SEGMENT, item)
        lines = list(unpack(segment.packed))
    except (StoreDamaged, ValueError):
        return None
    return segment, [Item(LOG + id_, data, at, at, id_) for at, id_, data in lines]


def _refuse_moved(at: int, sealed: Sealed | None) -> None:
    if sealed is not None and sealed.dropped is not None and sealed.dropped.revision > at:
        raise Moved("the oldest entries were dropped while they were read; try again")
