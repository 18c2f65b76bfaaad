"""One reading of the whole record: the segments in order, then the log, up to an end.

The end is fixed first, so that a reader can be done while others write on.  Whoever seals or drops
meanwhile is no trouble: a page of the log is read together with the segment that would come next,
and where the segment is there, it comes first.  So entries that stand in both (somebody was killed
between sealing and trimming) are read once.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Protocol, cast

import msgspec
from msgspec import Struct

from interlock.core import keys
from interlock.core.log import Mark, Sealed, Segment
from interlock.core.rolling import Kept
from interlock.driving import Op
from interlock.errors import StoreBusy, StoreRefused
from interlock.services.steps import Read, Upkeep
from interlock.store import LOG, Capabilities, Item, Log, Range

PAGE = 2000
"""Entries at a time: what an event loop is kept from others for is some milliseconds."""

_segment = msgspec.json.Decoder(Segment).decode


class Moved(StoreBusy):
    """Retention dropped what was to be read next: begin again."""


class Extent(Struct, frozen=True, kw_only=True):
    """What there is to read.

    ``begins`` is the mark up to which retention dropped everything; ``covered`` is false if the
    engine forgot entries that no segment has; ``kept`` are the marks of the store itself.
    """

    end: int
    strict: bool
    covered: bool
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

    def forgotten(self, first: int) -> None:
        """The engine forgot entries before this one, and no segment has them."""


def extent(capabilities: Capabilities) -> Op[Extent]:
    """Where the record begins and ends at this moment."""
    trimmed = yield from _trimmed()  # first: whoever trims has sealed before
    last = Log(limit=1, last=True)
    snapshot = yield Read(last, keys.SEALED, keys.CHECKPOINT)
    sealed = sealed_mark(snapshot[keys.SEALED])
    marks = {keys.SEALED: sealed, keys.CHECKPOINT: _mark(snapshot[keys.CHECKPOINT])}
    entries = snapshot.ranges[last]
    reached = sealed.revision if sealed is not None else 0
    return Extent(
        end=max(reached, entries[-1].created if entries else 0),
        strict=capabilities.local,
        covered=trimmed <= reached,
        begins=sealed.dropped if sealed is not None else None,
        kept=tuple(Kept(plain(mark), key) for key, mark in marks.items() if mark is not None),
    )


def walk(extent: Extent, reader: Reader) -> Op[None]:
    """Give a reader all entries up to the end of the extent."""
    at = extent.begins.revision if extent.begins is not None else 0
    logged, covered = False, extent.covered
    while at < extent.end:
        segments, log = Range(keys.SEGMENTS, keys.segment(at), 1), Log(after=at, limit=PAGE)
        refs = (segments, log, keys.SEALED) if logged else (segments, keys.SEALED)
        snapshot = yield Read(*refs)
        if found := snapshot.ranges[segments]:
            at = _read_segment(found[0], at, extent, reader, sealed_mark(snapshot[keys.SEALED]))
        elif not logged:
            logged = True
        else:
            items = snapshot.ranges[log]
            page = [exact(item) for item in items if item.created <= extent.end]
            if page and not covered:
                reader.forgotten(page[0].created)
                covered = True
            reader.feed(page)
            if len(page) < PAGE:
                return
            at = page[-1].created


def sealed_mark(item: Item | None) -> Sealed | None:
    """How far the record is sealed; None if it is not, or if nobody can tell."""
    try:
        return None if item is None else msgspec.json.decode(item.value, type=Sealed)
    except msgspec.DecodeError:
        return None  # the item is compared with the entry that wrote it, and that says so


def exact(item: Item) -> Item:
    """The item with its value as bytes: whoever edits SQLite by hand leaves text behind."""
    if type(item.value) is bytes:
        return item
    return msgspec.structs.replace(item, value=str(item.value).encode("utf-8", "replace"))


def plain(mark: Mark) -> Mark:
    """Only the mark: what stands beside it is not compared."""
    return Mark(revision=mark.revision, entries=mark.entries, digest=mark.digest)


def _mark(item: Item | None) -> Mark | None:
    try:
        return None if item is None else msgspec.json.decode(item.value, type=Mark)
    except msgspec.DecodeError:
        return None


def _trimmed() -> Op[int]:
    """The last entry that the engine forgot, if it ever forgets any by itself.

    Only engines that answer everybody do; where facts are for some users alone, none is forgotten.
    """
    with suppress(StoreRefused):
        facts = cast("dict[str, object]", (yield Upkeep("info")))
        trimmed = facts.get("trimmed")
        return trimmed if isinstance(trimmed, int) else 0
    return 0


def _read_segment(
    item: Item, at: int, extent: Extent, reader: Reader, sealed: Sealed | None
) -> int:
    """Give a reader the entries of a segment that it does not have; how far that goes."""
    number = item.key.removeprefix(keys.SEGMENTS)
    last = int(number) if number.isascii() and number.isdigit() else extent.end
    try:
        segment = _segment(item.value)
        lines = list(_unpacked(segment))
    except ValueError:  # also what msgspec raises
        reader.unreadable(item, last)
        return last
    dropped = sealed.dropped if sealed is not None else None
    if segment.begins.revision > at and dropped is not None and dropped.revision > at:
        raise Moved("the oldest entries were dropped while they were read; try again")
    ends = segment.ends if segment.ends.revision <= extent.end else None
    reader.segment(item, segment.begins, ends)
    entries = [
        Item(LOG + id_, data, revision, revision, id_)
        for revision, id_, data in lines
        if at < revision <= extent.end
    ]
    reader.feed(entries, sealed=True)
    return last


def _unpacked(segment: Segment) -> Iterator[tuple[int, str, bytes]]:
    """The entries of a segment: revision, id and stored bytes; ValueError if it is damaged."""
    try:
        text = zlib.decompress(base64.b64decode(segment.packed, validate=True))
    except (binascii.Error, zlib.error) as error:
        raise ValueError(str(error)) from error
    for line in filter(None, text.split(b"\n")):
        revision, id_, data = line.split(b" ", 2)
        yield int(revision), id_.decode(), data
