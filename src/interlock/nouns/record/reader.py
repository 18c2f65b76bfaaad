"""Reads the whole record in order: the segments, then the log, up to a fixed end.

The end is fixed first, so a reader finishes although others keep writing.  Sealing and retention
may run during the reading: a page of the log is read together with the segment that would come
next, and where that segment exists it is read first.  So entries that are in both (a process was
killed between sealing and trimming) are read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Protocol, TypeAlias

from msgspec import Struct

from interlock.check_record import DigestMark, ExpectedMark, RecordJudge
from interlock.core import codec, keys
from interlock.core.segment import (
    MoveNote,
    RecordMark,
    SealedMark,
    Segment,
    adds_up,
    last_revision,
    unpack,
)
from interlock.errors import StoreBusy, StoreDamaged
from interlock.runtime.progress import report
from interlock.runtime.reads import readable, with_bytes
from interlock.steps import InThread, Op, Read, StoreCall
from interlock.store import LOG, Capabilities, Item, Log, Range

PAGE = 2000
"""Entries in one read: an event loop is blocked for some milliseconds."""

_SEALED = codec.Decoder(SealedMark)
_MARK = codec.Decoder(RecordMark)
_SEGMENT = codec.Decoder(Segment)
_MOVE = codec.Decoder(MoveNote)
_STORE = codec.Decoder(str)

ItemStamp: TypeAlias = tuple[str, int, str, str, str]
"""Of an item: its key, its revision, the digest of its payload, and the entry that wrote it (id
and hash)."""


class OvertakenByRetention(StoreBusy):
    """Retention dropped the entries that were to be read next: begin again."""


class RecordSpan(Struct, frozen=True, kw_only=True):
    """The part of the record that exists.

    ``begins`` is the mark up to which retention dropped all entries; ``covered`` is false if the
    engine trimmed entries that no segment has, ``restarted`` if sealing began again behind them;
    ``trims`` is true if the engine may trim entries by itself: else they were removed;
    ``marks`` are the marks in the store, and ``store`` is its id, if it has one.
    """

    end: int
    strict: bool
    covered: bool
    trims: bool = False
    restarted: bool = False
    begins: RecordMark | None = None
    marks: tuple[ExpectedMark, ...] = ()
    store: str = ""


class RecordReader(Protocol):
    """Receives the record in order; ``check_record.RecordJudge`` is one."""

    def feed(self, items: Sequence[Item], *, sealed: bool = False) -> None:
        """The next entries."""

    def segment(self, key: str, begins: DigestMark, ends: DigestMark | None) -> None:
        """The next entries come from this segment; no ``ends`` if it is behind the span's end."""

    def unreadable(self, key: str, last: int) -> None:
        """This segment, with entries up to a revision, cannot be read."""

    def changed(self, key: str) -> None:
        """The next entries come from this segment, and its digests do not match them."""

    def trimmed_before(self, first: int) -> None:
        """The entries before this one are gone, and no segment has them."""


def span(capabilities: Capabilities) -> Op[RecordSpan]:
    """Find where the record begins and ends at this moment."""
    trimmed = (yield StoreCall("extent")).trimmed  # first: sealing precedes trimming
    last = Log(limit=1, last=True)
    snapshot = yield Read(last, keys.SEALED, keys.CHECKPOINT, keys.MOVE, keys.STORE_ID)
    moved = readable(_MOVE.read_if_present, snapshot[keys.MOVE])
    sealed = sealed_mark(snapshot[keys.SEALED])
    noted = readable(_MARK.read_if_present, snapshot[keys.CHECKPOINT])
    marks = {keys.SEALED: sealed, keys.CHECKPOINT: noted}
    entries = snapshot.ranges[last]
    reached = sealed.revision if sealed is not None else 0
    dropped = sealed.dropped if sealed is not None else None
    restarted = dropped is not None and not dropped.digest  # sealing began again behind a gap
    end = max(reached, entries[-1].created if entries else 0)
    gap = dropped.revision if restarted and dropped is not None else trimmed
    return RecordSpan(
        end=end,
        strict=capabilities.consecutive and not (moved is not None and moved.loose),
        covered=trimmed <= reached,
        trims=capabilities.may_have_trimmed(gap, end),
        restarted=restarted,
        begins=dropped,
        marks=tuple(
            ExpectedMark(plain_mark(mark), key) for key, mark in marks.items() if mark is not None
        ),
        store=readable(_STORE.read_if_present, snapshot[keys.STORE_ID]) or "",
    )


def walk(
    span: RecordSpan, reader: RecordReader, judge: RecordJudge | None = None
) -> Op[tuple[list[ItemStamp], int]]:
    """Give a reader all entries up to the end of the span.

    Returns the stamps of the segments that were read, and the number of their entries.
    A ``judge`` verifies the signatures of each page in a thread: they take 0.1 ms each.
    """
    at = span.begins.revision if span.begins is not None else 0
    key = keys.segment(at)
    logged, covered = False, span.covered
    stamps: list[ItemStamp] = []
    sealed_entries = 0
    if span.restarted:  # all entries are behind the gap
        reader.trimmed_before(at + 1)
        covered = True
    first = at
    while at < span.end:
        report("reading the record", at - first, span.end - first)
        if judge is not None and judge.unchecked:
            yield InThread(judge.check_signatures)
        segments, log = Range(keys.SEGMENTS, key, 1), Log(after=at, limit=PAGE)
        refs = (segments, log, keys.SEALED) if logged else (segments, keys.SEALED)
        snapshot = yield Read(*refs)
        sealed = sealed_mark(snapshot[keys.SEALED])
        if found := snapshot.ranges[segments]:
            stamps.append(item_stamp(found[0]))
            at, count = _read_segment(found[0], at, span, reader, sealed)
            sealed_entries += count
            key = found[0].key
        elif not logged:
            logged = True
        else:
            _refuse_overtaken(at, sealed)
            items = snapshot.ranges[log]
            page = [with_bytes(item) for item in items if item.created <= span.end]
            if page and not covered:
                reader.trimmed_before(page[0].created)
                covered = True
            reader.feed(page)
            if len(page) < PAGE:
                break
            at = page[-1].created
            key = max(key, keys.segment(at))
    if judge is not None and judge.unchecked:
        yield InThread(judge.check_signatures)
    return stamps, sealed_entries


def item_stamp(item: Item) -> ItemStamp:
    """What an item says of itself; its payload is hashed."""
    return (
        item.key,
        item.revision,
        sha256(with_bytes(item).value).hexdigest(),
        item.entry,
        item.hash,
    )


def sealed_mark(item: Item | None) -> SealedMark | None:
    """How far the record is sealed; None if it is not sealed, or if the item is damaged.

    A damaged item is found elsewhere: it is compared with the entry that wrote it.
    """
    return readable(_SEALED.read_if_present, item)


def plain_mark(mark: RecordMark) -> DigestMark:
    """A mark as the judge takes it: without the fields of a ``Sealed``."""
    return DigestMark(mark.revision, mark.entries, mark.digest)


def _read_segment(
    item: Item, at: int, span: RecordSpan, reader: RecordReader, sealed: SealedMark | None
) -> tuple[int, int]:
    """Give a reader the new entries of a segment; returns the revision reached and their number."""
    last = last_revision(item.key.removeprefix(keys.SEGMENTS))
    if last is None:  # not named as a segment: an item like any other
        return at, 0
    opened = open_segment(item)
    if opened is None:
        reader.unreadable(item.key, last)
        return last, 0
    segment, entries = opened
    if segment.begins.revision > at:
        _refuse_overtaken(at, sealed)
    if adds_up(segment, [(each.created, each.value) for each in entries], last):
        ends = plain_mark(segment.ends) if segment.ends.revision <= span.end else None
        reader.segment(item.key, plain_mark(segment.begins), ends)
    else:
        reader.changed(item.key)
    found = [each for each in entries if at < each.created <= span.end]
    reader.feed(found, sealed=True)
    return last, len(found)


def open_segment(item: Item) -> tuple[Segment, list[Item]] | None:
    """A segment and its entries; None if it cannot be read."""
    try:
        segment = _SEGMENT.read(item)
        lines = list(unpack(segment.packed))
    except (StoreDamaged, ValueError):
        return None
    return segment, [Item(LOG + id_, data, at, at, id_) for at, id_, data in lines]


def _refuse_overtaken(at: int, sealed: SealedMark | None) -> None:
    if sealed is not None and sealed.dropped is not None and sealed.dropped.revision > at:
        raise OvertakenByRetention(
            "the oldest entries were dropped while they were read; try again"
        )
