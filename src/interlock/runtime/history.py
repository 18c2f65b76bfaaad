"""Reads the record: all entries in order, entries as they come, and the history of one thing.

Sealed entries are in segments, the others in the log.  Sealing writes the segment before it trims
the log, so for a while an entry is in both; a walk therefore never returns behind the entries that
it gave.  Where it changes from one to the other it reads both in one snapshot, so that entries
sealed at that moment are neither missed nor doubled.

A segment names the end of the one before it, which is that segment's key: so segments can be walked
backwards without listing them.

The history of a thing is made of its entries; each noun turns its own into history events
(``Noun.history``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from msgspec.structs import asdict, replace

from interlock import registry
from interlock.core import codec, keys, validate
from interlock.core.entry import Entry, RecordLine, decode
from interlock.core.filter import RecordFilter, about
from interlock.core.history import HistoryEvent, NounHistory, Story
from interlock.core.segment import SealedMark, Segment, unpack
from interlock.errors import StoreDamaged
from interlock.runtime.reads import with_bytes
from interlock.runtime.runner import Runner
from interlock.steps import NextChanges, Op, OpenWatch, Read
from interlock.store import LOG, Item, Log, Range, Resync, Snapshot, Watch

PAGE = 1000
EVERYTHING = RecordFilter()
_BEFORE = 400
"""Entries read before those that are shown: most of what ends in the history began there."""
_FREQUENT = 1000
"""Entries with frequent verbs that are read for the history of an agent, beside the others."""
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
        segment = _SEGMENT.read(item)
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
            self._segment = 0 if mark is None else _SEALED.read(mark).revision
        return found

    def _sealed(self, last: int) -> Op[tuple[Item, ...]]:
        key = keys.segment(last)
        snapshot: Snapshot = yield Read(key)
        item = snapshot[key]
        if item is None:  # retention dropped it, and all before it
            self._segment = 0
            return ()
        segment = _SEGMENT.read(item)
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
    fields = asdict(entry or read_entry(item)) | {"id": item.key.removeprefix(LOG)}
    return RecordLine(revision=item.revision, hash=codec.digest(with_bytes(item).value), **fields)


def _entries(item: Item, segment: Segment) -> Iterator[Item]:
    try:
        for revision, id_, stored in unpack(segment.packed):
            yield Item(LOG + id_, stored, revision, revision, id_)
    except ValueError as error:
        raise codec.unreadable(item, error) from error


def open_log(after: int | None) -> Op[Watch]:
    """Watch the log, after a revision or from now on; the caller closes the watch."""
    if after is None:
        after = (yield Read(keys.BASE)).revision
    watch: Watch = yield OpenWatch(LOG, validate.after(after))
    return watch


class LogFollowing:
    """Follows the entries after a revision; its opener closes it."""

    about = "following the record"

    def __init__(self, after: int) -> None:
        self._after = after
        self._watch: Watch | None = None

    def take(self, timeout: float | None) -> Op[tuple[RecordLine, ...] | Resync]:
        """The entries since the last call; waits for the first, at most ``timeout`` seconds.

        Resync if the entries that come next were trimmed away.
        """
        if self._watch is None:
            self._watch = yield OpenWatch(LOG, self._after)
        found: list[RecordLine] = []
        for change in (yield NextChanges(self._watch, timeout)):
            if isinstance(change, Resync):
                return change
            item = Item(change.key, change.value, change.revision, change.revision)
            found.append(record_line(item))
        return tuple(found)

    def each(self, taken: tuple[RecordLine, ...] | Resync) -> tuple[RecordLine | Resync, ...]:
        """The values one by one."""
        return (taken,) if isinstance(taken, Resync) else taken

    def close(self) -> None:
        """Stop listening."""
        if self._watch is not None:
            self._watch.close()


def history_of(runner: Runner, thing: str, limit: int) -> Op[Story]:
    """The last history events of a thing; none if the record does not know it."""
    base = yield from runner.base()
    wanted = yield from _wanted(thing)
    lines = yield from _lines(wanted, limit + _BEFORE)
    kind, _, name = thing.partition("/")
    more = frozenset(_related(lines, kind, name))
    if more:
        lines = yield from search(_OfThings(things=more | {thing}), limit=limit + _BEFORE)
    found = tuple(history_events(lines, thing, base, more))
    for noun in registry.nouns():
        if noun.name == kind and noun.history_details:
            details: Callable[[tuple[HistoryEvent, ...], str], Op[tuple[HistoryEvent, ...]]]
            details = registry.load(noun.history_details)
            found = yield from details(found, name)
    earlier = len(found) > limit or len(lines) == limit + _BEFORE
    return Story(thing=thing, happenings=found[-limit:], earlier=earlier)


def _related(lines: Iterable[RecordLine], kind: str, name: str) -> Iterator[str]:
    """Other things whose events belong to the history of a thing, as its noun says."""
    for noun in registry.nouns():
        if noun.name == kind and noun.related:
            yield from registry.load(noun.related)(lines, name)


def history_events(
    lines: Iterable[RecordLine], thing: str, base: int, related: Collection[str] = ()
) -> Iterator[HistoryEvent]:
    """The history events of a thing: ``lock/merge``, ``task/t1``, ``agent/NAME``."""
    kind, _, name = thing.partition("/")
    nouns = _declared()
    found = _read(lines, [noun(base, kind) for noun in nouns], NounHistory(base, kind))
    if kind != "agent":
        yield from (each for each in found if each.thing == thing or each.thing in related)
        return
    counted = {key: word for noun in nouns for key, word in noun.counted.items()}
    own = (each for each in found if name in (each.agent, each.session))
    yield from _merge_counted(own, counted)


def _declared() -> list[type[NounHistory]]:
    return [registry.load(noun.history) for noun in registry.nouns() if noun.history]


def _read(
    lines: Iterable[RecordLine], nouns: Iterable[NounHistory], other: NounHistory
) -> Iterator[HistoryEvent]:
    by_word = {word: noun for noun in nouns for word in noun.words}
    for line in lines:
        yield from by_word.get(line.verb.rpartition(".")[0], other).events(line)


def _merge_counted(
    events: Iterable[HistoryEvent], counted: Mapping[tuple[str, str], str]
) -> Iterator[HistoryEvent]:
    """Merge events that are counted, between two others, into one each."""
    run: dict[tuple[str, str], list[HistoryEvent]] = {}
    for each in events:
        key = (each.thing.partition("/")[0], each.what)
        if key in counted:
            run.setdefault(key, []).append(each)
            continue
        yield from _merged(run, counted)
        run = {}
        yield each
    yield from _merged(run, counted)


def _merged(
    run: dict[tuple[str, str], list[HistoryEvent]], counted: Mapping[tuple[str, str], str]
) -> list[HistoryEvent]:
    found = [
        some[0] if len(some) == 1 else _together(some, counted[key]) for key, some in run.items()
    ]
    return sorted(found, key=lambda each: each.revision)


def _together(some: list[HistoryEvent], of: str) -> HistoryEvent:
    last = some[-1]
    return replace(last, thing="", went_to=(), waited=None, trace="", on=of, count=len(some))


class _ByFrequency(RecordFilter, frozen=True, kw_only=True):
    """Of the wanted entries, those with these verbs, or all others."""

    verbs: frozenset[str]
    frequent: bool

    def keeps(self, entry: Entry) -> bool:
        """Whether this entry is wanted."""
        return (entry.verb in self.verbs) == self.frequent and super().keeps(entry)


class _OfThings(RecordFilter, frozen=True, kw_only=True):
    """Entries about any of several things."""

    things: frozenset[str]

    def keeps(self, entry: Entry) -> bool:
        """Whether this entry is wanted."""
        return any(about(entry, thing) for thing in self.things)


def _lines(wanted: RecordFilter, limit: int) -> Op[tuple[RecordLine, ...]]:
    """The entries to read; the frequent ones of an agent do not crowd the others out."""
    if not wanted.by:
        return (yield from search(wanted, limit=limit))
    verbs = frozenset[str]().union(*(noun.frequent for noun in _declared()))
    rare = _ByFrequency(by=wanted.by, verbs=verbs, frequent=False)
    lines = yield from search(rare, limit=limit)
    begins = lines[0].revision if len(lines) == limit else 0
    frequent = _ByFrequency(by=wanted.by, verbs=verbs, frequent=True)
    more = yield from search(frequent, after=begins, limit=_FREQUENT)
    return tuple(sorted((*lines, *more), key=lambda line: line.revision))


def _wanted(thing: str) -> Op[RecordFilter]:
    """The entries to read: of a session all of its agent, since others know only that name."""
    kind, _, name = thing.partition("/")
    if kind != "agent":
        return RecordFilter(thing=thing)
    if name.startswith("ses_"):
        for line in (yield from search(RecordFilter(by=name), limit=1)):
            own = line.session == name
            return RecordFilter(by=line.agent if own else line.thing.removeprefix("agent/"))
    return RecordFilter(by=name)
