"""Reads a whole store and judges its record; ``core.verify`` says what gives a change away.

The segments and the log are read first, in order, then the items.  What others write meanwhile is
left out: entries behind the end are not read, and an item that one of them changed is not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Protocol, TypeAlias

from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.core.log import Entry, Mark, decode
from interlock.drivers import Op
from interlock.errors import StoreBusy
from interlock.nouns.record.compare import Beside
from interlock.nouns.record.rolling_digest import Kept, Rolling
from interlock.nouns.record.verdict import Verified
from interlock.nouns.record.verify_rules import Verifier, folder
from interlock.nouns.record.walk import PAGE, Moved, Span, span, unsealed, walk
from interlock.runtime.decode import exact
from interlock.runtime.steps import Read
from interlock.store import LIVE, LOG, Capabilities, Item, Log, Range

Judged: TypeAlias = tuple[str, int, str, str, str]
"""Of an item: key, revision, digest of the payload, and the stamp: entry and hash."""
Take: TypeAlias = Callable[[str, int, str, str, str], None]

TRIES = 5
_FOLDERS = frozenset(
    (
        *keys.POOLS,
        *keys.WORK,
        *keys.POST,
        keys.SESSIONS,
        keys.REPORTS,
        keys.ABLE,
        keys.DEATHS,
        keys.BROKEN,
        keys.LOGBOOKS,
        keys.LOGS,
        keys.HELD,
        keys.WAITS,
        keys.REFUSALS,
        "meta/",
    )
)
_BULKY = {keys.LOGS: 16, keys.TASKS: 64, keys.MESSAGES: 64, keys.TOPICS: 64, keys.QUERIES: 64}
"""Where items are so large that only a few are read at once."""
_ELSEWHERE = (keys.SEGMENTS, LOG, LIVE)


def verify(
    capabilities: Capabilities, anchors: Sequence[Kept] = (), against: str = ""
) -> Op[Verified]:
    """Read everything, and say what it proves; also beside an export if one is named."""
    return (yield from judged(capabilities, anchors, against))[1]


def judged(
    capabilities: Capabilities, anchors: Sequence[Kept] = (), against: str = ""
) -> Op[tuple[Rolling, Verified]]:
    """The same, and where the digest stands at the end."""
    for _ in range(TRIES):
        found = yield from span(capabilities)
        judge = verifier(found, anchors)
        beside = Beside(judge, against, found) if against else None
        with suppress(Moved):
            verified = yield from _verify(found, judge, beside)
            return judge.rolling, verified
    raise too_fast()


def too_fast() -> StoreBusy:
    """Retention overtakes whoever reads."""
    return StoreBusy("the oldest entries are dropped faster than they can be read; try again")


def verifier(found: Span, anchors: Sequence[Kept] = ()) -> Verifier:
    """Whoever judges the entries of this span."""
    marks = (*found.kept, *anchors)
    return Verifier(strict=found.strict, trims=found.trims, begins=found.begins, marks=marks)


def _verify(found: Span, judge: Verifier, beside: Beside | None) -> Op[Verified]:
    noting = Noting(judge if beside is None else beside)
    yield from walk(found, noting)
    if wanted := judge.wanted():
        yield from walk(found, _Seeking(judge, wanted))
    for item in noting.segments:
        judge.item(*item)
    yield from items(judge.folders(), judge.item)
    suspects = judge.items_end()
    changed = (yield from touched(found.end)) & suspects if suspects else frozenset()
    compared = None if beside is None else beside.end()
    return replace(judge.finish(changed), sealed=noting.sealed, against=compared)


class Judge(Protocol):
    """Who judges what is read, or looks on."""

    def feed(self, items: Sequence[Item], *, sealed: bool = False) -> None:
        """The next entries."""

    def segment(self, key: str, begins: Mark, ends: Mark | None) -> None:
        """The next entries come from here."""

    def unreadable(self, key: str, last: int) -> None:
        """This should be a segment, and is none."""

    def changed(self, key: str) -> None:
        """The next entries come from here, and what the segment says of them is not true."""

    def forgotten(self, first: int) -> None:
        """The engine forgot entries before this one."""


class Noting:
    """Hands on what is read, and notes what to know of the segments: they are read but once."""

    def __init__(self, reader: Judge) -> None:
        self.sealed = 0
        self.segments: list[Judged] = []
        self._reader = reader

    def feed(self, items: Sequence[Item], *, sealed: bool = False) -> None:
        """The next entries."""
        self._reader.feed(items, sealed=sealed)
        self.sealed += len(items) if sealed else 0

    def segment(self, item: Item, begins: Mark, ends: Mark | None) -> None:
        """The next entries come from here."""
        self._reader.segment(item.key, begins, ends)
        self.segments.append(_judged(item))

    def unreadable(self, item: Item, last: int) -> None:
        """This should be a segment, and is none."""
        self._reader.unreadable(item.key, last)
        self.segments.append(_judged(item))

    def changed(self, item: Item) -> None:
        """The next entries come from here, and what the segment says of them is not true."""
        self._reader.changed(item.key)
        self.segments.append(_judged(item))

    def stray(self, item: Item) -> None:
        """This stands among the segments, and is not named as one: an item like any other."""
        self.segments.append(_judged(item))

    def forgotten(self, first: int) -> None:
        """The engine forgot entries before this one."""
        self._reader.forgotten(first)


class _Seeking:
    """A second reading, for hashes that links have and that were not met in time."""

    def __init__(self, judge: Verifier, wanted: frozenset[str]) -> None:
        self._judge = judge
        self._wanted = wanted

    def feed(self, items: Sequence[Item], *, sealed: bool = False) -> None:  # noqa: ARG002 - alike
        for item in items:
            if (hash_ := sha256(item.value).hexdigest()) in self._wanted:
                self._judge.resolve(hash_, item.created)

    def segment(self, item: Item, begins: Mark, ends: Mark | None) -> None: ...

    def unreadable(self, item: Item, last: int) -> None: ...

    def changed(self, item: Item) -> None: ...

    def stray(self, item: Item) -> None: ...

    def forgotten(self, first: int) -> None: ...


def _judged(item: Item) -> Judged:
    digest = sha256(exact(item).value).hexdigest()
    return item.key, item.revision, digest, item.entry, item.hash


def items(folders: frozenset[str], take: Take) -> Op[None]:
    """Everything that stands in these folders, and in those that every store has."""
    for each in sorted((_FOLDERS | folders).difference(_ELSEWHERE)):
        most = _BULKY.get(each, 1000)
        page = Range(each, limit=most)
        while found := (yield Read(page)).ranges[page]:
            for item in found:
                if folder(item.key) == each:
                    take(*_judged(item))
            page = Range(each, found[-1].key, most)


def touched(after: int) -> Op[frozenset[str]]:
    """The keys that entries behind a revision wrote or deleted, also those sealed since."""
    found: set[str] = set()
    page = Log(after=after, limit=PAGE)
    while entries := (yield Read(page)).ranges[page]:  # first: what leaves the log is sealed then
        found.update(key for item in entries for key in _changed(item))
        page = Log(after=entries[-1].created, limit=PAGE)
    part = Range(keys.SEGMENTS, keys.segment(after), 1)
    while segments := (yield Read(part)).ranges[part]:
        _, sealed = unsealed(segments[0]) or (None, ())
        found.update(key for item in sealed for key in _changed(item))
        part = Range(keys.SEGMENTS, segments[0].key, 1)
    return frozenset(found)


def _changed(item: Item) -> Iterator[str]:
    with suppress(*codec.UNREADABLE):
        entry: Entry = decode(item.value)
        yield from (*entry.put, *entry.deleted)
