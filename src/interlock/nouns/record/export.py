"""The record as a file that anybody can check without Interlock, and without the payloads.

JSON Lines, told apart by their first member:
  interlock  the head: format, where the digest stood at the beginning, how to judge
  mark       a mark that the entries have to meet, and its name
  missing    entries up to this mark are missing, and why
  changed    a segment says what is not true of its entries, which come next
  forgotten  the engine forgot entries before this revision; the digest is not known here
  revision   an entry: its id, the hash beside it, and the stored text itself
  key        an item: its stamp, and the digest of its payload (the payload may be a secret)
  ends       the end: the digest there, and the keys that changed while the items were read;
             a file without this line was cut
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import IO

import msgspec

from interlock.core import codec
from interlock.core.log import Mark
from interlock.drivers import Op
from interlock.errors import BadInput
from interlock.nouns.record.export_reader import Head
from interlock.nouns.record.verdict import Exported
from interlock.nouns.record.verify import TRIES, Noting, items, too_fast, touched, verifier
from interlock.nouns.record.verify_rules import Verifier
from interlock.nouns.record.walk import Moved, Span, span, walk
from interlock.runtime.steps import InThread
from interlock.store import LOG, VOID, Capabilities, Item

Write = Callable[[bytes], object]

_BEGINS = b'{"interlock":'
_lines = msgspec.json.Encoder().encode_lines


def export(capabilities: Capabilities, to: str | Write, after: int = 0) -> Op[Exported]:
    """Write the record to a file, or give its lines to whoever takes them, page by page."""
    if callable(to):
        return (yield from _export(capabilities, to, after))
    part = f"{to}.{os.urandom(8).hex()}.part"
    file = yield InThread(lambda: _made(part, to))
    try:
        done = yield from _exported(capabilities, file, after)
        yield InThread(lambda: _finished(file, part, to))
    finally:
        file.close()
        with suppress(FileNotFoundError):
            os.unlink(part)
    return msgspec.structs.replace(done, path=to)


def _exported(capabilities: Capabilities, file: IO[bytes], after: int) -> Op[Exported]:
    """Into a file one can begin again, where retention overtakes."""
    for _ in range(TRIES):
        file.seek(0)
        file.truncate()
        with suppress(Moved):
            return (yield from _export(capabilities, file.write, after))
    raise too_fast()


def _export(capabilities: Capabilities, write: Write, after: int) -> Op[Exported]:
    found = yield from span(capabilities)
    out = _Out(verifier(found), write, found, after)
    noting = Noting(out)
    yield from walk(found, noting)
    out.begin()
    for item in noting.segments:
        out.item(*item)
    yield from items(out.judge.folders(), out.item)
    changed = yield from touched(found.end)
    return out.end(changed)


class _Out:
    """Turns what is read into lines; the digest is rolled along."""

    def __init__(self, judge: Verifier, write: Write, found: Span, after: int) -> None:
        self.judge = judge
        self._write = write
        self._found = found
        self._after = after
        self._begun = False
        self._first = self._last = self._entries = self._items = 0

    def begin(self) -> None:
        """The head, once it is known where the digest stands at the beginning."""
        if self._begun:
            return
        self._begun = True
        mark, known = self.judge.rolling.mark, self.judge.rolling.known
        whole = known and not mark.revision
        begins = mark if known else Mark(revision=mark.revision)  # nobody can compare it
        self._say(Head(begins=begins, strict=self._found.strict, whole=whole))
        if not known:
            self._say({"forgotten": mark.revision + 1})
        least = mark.revision + (not known)  # of what is not known no mark can be met
        kept = (each for each in self._found.kept if each.mark.revision >= least)
        self._say(*({"mark": each.mark, "name": each.name} for each in kept))

    def feed(self, items: Sequence[Item], *, sealed: bool = False) -> None:
        """The next entries: those up to ``after`` are only rolled."""
        skipped = [item for item in items if item.created <= self._after]
        told = [item for item in items if item.created > self._after]
        self.judge.feed(skipped, sealed=sealed)
        if told:
            self.begin()
            self._first = self._first or told[0].created
            self._last = told[-1].created
            self._entries += len(told)
            self._say(*(_line(item, sealed=sealed) for item in told))
            self.judge.feed(told, sealed=sealed)

    def segment(self, key: str, begins: Mark, ends: Mark | None) -> None:
        """The next entries come from here."""
        at = self.judge.rolling.at
        if self._after <= begins.revision:
            self.begin()
            if begins.revision > at:
                self._say({"missing": begins, "why": ""})
            elif begins.revision:
                self._say({"mark": begins, "name": f"the beginning of {key}"})
        if ends is not None and ends.revision > self._after:
            self._say({"mark": ends, "name": key})
        self.judge.segment(key, begins, ends)

    def unreadable(self, key: str, last: int) -> None:
        """This should be a segment, and is none."""
        self.begin()
        self._say({"missing": Mark(revision=last), "why": f"{key} cannot be read"})
        self.judge.unreadable(key, last)

    def changed(self, key: str) -> None:
        """The next entries come from here, and what the segment says of them is not true."""
        self.begin()
        self._say({"changed": key})
        self.judge.changed(key)

    def forgotten(self, first: int) -> None:
        """The engine forgot entries before this one, or another hand removed them."""
        if not self._found.trims:
            self.begin()
            self._say({"missing": Mark(revision=first - 1), "why": ""})
        elif self._begun:
            self._say({"forgotten": first})
        self.judge.forgotten(first)

    def item(self, key: str, revision: int, digest: str, entry: str, hash_: str) -> None:
        """What stands under a key."""
        self._items += 1
        stamp = {"key": key, "revision": revision, "digest": digest, "entry": entry, "hash": hash_}
        self._say(stamp)

    def end(self, changed: Iterable[str]) -> Exported:
        """The last line."""
        mark = self.judge.rolling.mark
        self._say({"ends": mark, "items": self._items, "changed": sorted(changed)})
        return Exported(
            entries=self._entries,
            items=self._items,
            begins=self._first,
            ends=self._last,
            digest=mark.digest,
        )

    def _say(self, *lines: object) -> None:
        if lines:
            self._write(_lines(lines))


def _line(item: Item, *, sealed: bool) -> dict[str, object]:
    """An entry, so that its bytes can be hashed again."""
    line: dict[str, object] = {"revision": item.created, "id": item.key.removeprefix(LOG)}
    stamped = item.value != VOID  # a segment keeps no stamps; they would say this
    line["hash"] = (codec.digest(item.value) if stamped else "") if sealed else item.hash
    if item.created != item.revision:
        line["again"] = item.revision
    try:
        line["entry"] = item.value.decode()
    except UnicodeDecodeError:
        line["base64"] = base64.b64encode(item.value).decode()
    return line


def _made(part: str, path: str) -> IO[bytes]:
    """A file of our own, in which nobody could plant anything; it takes the name in the end."""
    _refuse_other(path)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        return open(os.open(part, flags, 0o600), "wb")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; name another file") from None


def _refuse_other(path: str) -> None:
    """An export may take the place of an older one, and of nothing else: it may be the store."""
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


def _finished(file: IO[bytes], part: str, path: str) -> None:
    try:
        file.flush()
        os.fsync(file.fileno())
        _refuse_other(path)
        os.replace(part, path)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; name another file") from None
