"""Writes the record to a file that can be checked without Interlock; it has no payloads.

An export is JSON Lines.  The first member of a line says what it is:
  interlock  the head: the format, the mark before the first entry, how to judge
  mark       a mark that the entries must meet, and its name
  missing    entries up to this mark are missing, and why
  changed    a segment whose digests do not match its entries, which come next
  forgotten  the engine trimmed entries before this revision; the digest is unknown here
  revision   an entry: its id, the hash stored beside it, and the stored text
  key        an item: its stamp, and the digest of its payload (the payload may be secret)
  ends       the end: the mark there, and the keys that changed while the items were read;
             a file without this line was cut
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import IO

import msgspec

from interlock.check_record import DigestMark, RecordJudge
from interlock.core import codec
from interlock.core.segment import RecordMark
from interlock.errors import BadInput
from interlock.nouns.record.noun import Exported
from interlock.nouns.record.reader import OvertakenByRetention, RecordSpan, span, walk
from interlock.nouns.record.verify import (
    TRIES,
    ExportHead,
    changed_after,
    read_items,
    record_judge,
    too_fast,
)
from interlock.steps import InThread, Op
from interlock.store import LOG, VOID, Capabilities, Item

WriteLines = Callable[[bytes], object]

_BEGINS = b'{"interlock":'
_lines = msgspec.json.Encoder().encode_lines


def export(capabilities: Capabilities, to: str | WriteLines, after: int = 0) -> Op[Exported]:
    """Write the record to a file, or hand its lines to a function, page by page."""
    if callable(to):
        return (yield from _export(capabilities, to, after))
    temporary = f"{to}.{os.urandom(8).hex()}.part"
    file = yield InThread(lambda: _made(temporary, to))
    try:
        done = yield from _export_to_file(capabilities, file, after)
        yield InThread(lambda: _finished(file, temporary, to))
    finally:
        file.close()
        with suppress(FileNotFoundError):
            os.unlink(temporary)
    return msgspec.structs.replace(done, path=to)


def _export_to_file(capabilities: Capabilities, file: IO[bytes], after: int) -> Op[Exported]:
    """Write to a file, from its beginning again each time that retention drops entries."""
    for _ in range(TRIES):
        file.seek(0)
        file.truncate()
        with suppress(OvertakenByRetention):
            return (yield from _export(capabilities, file.write, after))
    raise too_fast()


def _export(capabilities: Capabilities, write: WriteLines, after: int) -> Op[Exported]:
    found = yield from span(capabilities)
    exporter = _Exporter(record_judge(found, signatures=False), write, found, after)
    stamps, _ = yield from walk(found, exporter)
    exporter.begin()
    for stamp in stamps:
        exporter.item(*stamp)
    yield from read_items(exporter.judge, exporter.item)
    changed = yield from changed_after(found.end)
    return exporter.end(changed)


class _Exporter:
    """Turns a record into lines; the judge rolls the digest."""

    def __init__(
        self, judge: RecordJudge, write: WriteLines, found: RecordSpan, after: int
    ) -> None:
        self.judge = judge
        self._write = write
        self._span = found
        self._after = after
        self._begun = False
        self._first = self._last = self._entries = self._items = 0

    def begin(self) -> None:
        """Write the head, once the digest at the beginning is known."""
        if self._begun:
            return
        self._begun = True
        mark, known = self.judge.rolling.mark, self.judge.rolling.known
        whole = known and not mark.revision
        # Behind an unknown digest no mark is comparable.
        begins = _mark(mark) if known else RecordMark(revision=mark.revision)
        found = self._span
        self._add(ExportHead(begins=begins, strict=found.strict, whole=whole, store=found.store))
        if not known:
            self._add({"forgotten": mark.revision + 1})
        least = mark.revision + (not known)  # no mark of an unknown digest can be met
        kept = (each for each in self._span.marks if each.mark.revision >= least)
        self._add(*({"mark": _mark(each.mark), "name": each.name} for each in kept))

    def feed(self, items: Sequence[Item], *, sealed: bool = False) -> None:
        """The next entries: those up to ``after`` are only rolled."""
        skipped = [item for item in items if item.created <= self._after]
        written = [item for item in items if item.created > self._after]
        self.judge.feed(skipped, sealed=sealed)
        if written:
            self.begin()
            self._first = self._first or written[0].created
            self._last = written[-1].created
            self._entries += len(written)
            self._add(*(_line(item, sealed=sealed) for item in written))
            self.judge.feed(written, sealed=sealed)

    def segment(self, key: str, begins: DigestMark, ends: DigestMark | None) -> None:
        """The next entries come from this segment."""
        at = self.judge.rolling.at
        if self._after <= begins.revision:
            self.begin()
            if begins.revision > at:
                self._add({"missing": _mark(begins), "why": ""})
            elif begins.revision == at and at:  # else it was sealed while the log was read
                self._add({"mark": _mark(begins), "name": f"the beginning of {key}"})
        if ends is not None and ends.revision > self._after:
            self._add({"mark": _mark(ends), "name": key})
        self.judge.segment(key, begins, ends)

    def unreadable(self, key: str, last: int) -> None:
        """This segment cannot be read."""
        self.begin()
        self._add({"missing": RecordMark(revision=last), "why": f"{key} cannot be read"})
        self.judge.unreadable(key, last)

    def changed(self, key: str) -> None:
        """The next entries come from this segment, and its digests do not match them."""
        self.begin()
        self._add({"changed": key})
        self.judge.changed(key)

    def trimmed_before(self, first: int) -> None:
        """The engine trimmed the entries before this one, or they were removed."""
        if not self._span.trims:
            self.begin()
            self._add({"missing": RecordMark(revision=first - 1), "why": ""})
        elif self._begun:
            self._add({"forgotten": first})
        self.judge.trimmed_before(first)

    def item(self, key: str, revision: int, digest: str, entry: str, hash_: str) -> None:
        """An item, without its payload."""
        self._items += 1
        stamp = {"key": key, "revision": revision, "digest": digest, "entry": entry, "hash": hash_}
        self._add(stamp)

    def end(self, changed: Iterable[str]) -> Exported:
        """Write the last line."""
        mark = self.judge.rolling.mark
        self._add({"ends": _mark(mark), "items": self._items, "changed": sorted(changed)})
        return Exported(
            entries=self._entries,
            items=self._items,
            begins=self._first,
            ends=self._last,
            digest=mark.digest,
        )

    def _add(self, *lines: object) -> None:
        if lines:
            self._write(_lines(lines))


def _mark(mark: DigestMark) -> RecordMark:
    return RecordMark(**mark._asdict())


def _line(item: Item, *, sealed: bool) -> dict[str, object]:
    """An entry with its exact bytes, so that a checker can hash them."""
    line: dict[str, object] = {"revision": item.created, "id": item.key.removeprefix(LOG)}
    stamped = item.value != VOID  # a segment keeps no hashes; this is what they were
    line["hash"] = (codec.digest(item.value) if stamped else "") if sealed else item.hash
    if item.created != item.revision:
        line["again"] = item.revision
    try:
        line["entry"] = item.value.decode()
    except UnicodeDecodeError:
        line["base64"] = base64.b64encode(item.value).decode()
    return line


def _made(temporary: str, path: str) -> IO[bytes]:
    """A new file that no other process could prepare; it gets its final name at the end."""
    _refuse_other(path)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        return open(os.open(temporary, flags, 0o600), "wb")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; name another file") from None


def _refuse_other(path: str) -> None:
    """Refuse to overwrite any file but an older export: it may be the store."""
    try:
        if os.path.isfile(path):
            with open(path, "rb") as file:
                if file.read(len(_BEGINS)) == _BEGINS:
                    return
        elif not os.path.lexists(path):
            return
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; name another file") from None
    raise BadInput(f"{path} is there already and is no export; name another file")


def _finished(file: IO[bytes], temporary: str, path: str) -> None:
    try:
        file.flush()
        os.fsync(file.fileno())
        _refuse_other(path)
        os.replace(temporary, path)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; name another file") from None
