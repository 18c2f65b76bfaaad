"""Reads a whole store and judges its record; ``check_record.RecordJudge`` is the judge.

The segments and the log are read first, in order, then the items.  Changes that others make during
the reading are left out: entries behind the end are not read, and an item that one of them changed
is not judged.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from hashlib import sha256
from typing import Any, TypeAlias, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from interlock import registry
from interlock.check_record import (
    Comparison,
    DigestMark,
    ExpectedMark,
    Findings,
    Flaw,
    KnownEntry,
    ParsedEntry,
    RecordJudge,
    RollingDigest,
    SignedEntries,
)
from interlock.core import codec, keys
from interlock.core.entry import Entry, decode
from interlock.core.segment import RecordMark
from interlock.errors import BadInput, StoreBusy
from interlock.nouns.record.noun import Compared, EntriesOfKey, RecordFinding, Verified
from interlock.nouns.record.reader import (
    PAGE,
    OvertakenByRetention,
    RecordSpan,
    item_stamp,
    open_segment,
    plain_mark,
    span,
    walk,
)
from interlock.runtime.reads import MOST_PAGE, Pages, fresh_once
from interlock.steps import Op, Read
from interlock.store import LIVE, LOG, Capabilities, Item, Log, Range

TakeStamp: TypeAlias = Callable[[str, int, str, str, str], None]

TRIES = 5
SHOWN = 20
"""Findings in an outcome; the others are counted."""
FORMAT = 1
_LAST = 1 << 63
_BULKY = {
    keys.LOGS: 16,
    keys.TASKS: 64,
    keys.NOTES: 64,
    keys.MESSAGES: 64,
    keys.TOPICS: 64,
    keys.QUERIES: 64,
}
"""Folders with large items: only a few are read at once."""
_ELSEWHERE = (keys.SEGMENTS, LOG, LIVE)


class _LeanEntry(Struct, gc=False):
    """``ParsedEntry``, as msgspec decodes it: four times as fast as the checker's own."""

    id: str = ""
    writer: str = ""
    agent: str = ""
    on: int = 0
    after: tuple[str, ...] = ()
    saw: dict[str, str | None] = {}
    put: dict[str, str] = {}
    deleted: tuple[str, ...] = ()
    store: str = ""


class _LeanKnown(Struct, gc=False):
    """``KnownEntry`` as a struct: it takes less time and memory."""

    revision: int
    id: str
    hash: str
    number: int = 0
    key: str = ""
    vouched: bool = False
    linked: bool = False
    undone: bool = False


_parse = cast("Callable[[bytes], ParsedEntry]", msgspec.json.Decoder(_LeanEntry).decode)


def verify(
    capabilities: Capabilities, anchors: Sequence[ExpectedMark] = (), against: str = ""
) -> Op[Verified]:
    """Read all and judge it; also compare it with an export if one is named."""
    return (yield from verify_and_roll(capabilities, anchors, against))[1]


def verify_and_roll(
    capabilities: Capabilities, anchors: Sequence[ExpectedMark] = (), against: str = ""
) -> Op[tuple[RollingDigest, Verified]]:
    """Read all and judge it; returns the digest at the end too."""
    for _ in range(TRIES):
        found = yield from span(capabilities)
        judge = record_judge(found, anchors)
        compared = _Compared(judge, against, found) if against else None
        with suppress(OvertakenByRetention):
            return judge.rolling, (yield from fresh_once(_verify(found, judge, compared)))
    raise too_fast()


def too_fast() -> StoreBusy:
    """Retention drops entries before they can be read."""
    return StoreBusy("the oldest entries are dropped faster than they can be read; try again")


def record_judge(
    found: RecordSpan, anchors: Sequence[ExpectedMark] = (), *, signatures: bool = True
) -> RecordJudge:
    """A judge for the entries of this span, which verifies their signatures or not."""
    return RecordJudge(
        strict=found.strict,
        trims=found.trims,
        begins=None if found.begins is None else plain_mark(found.begins),
        marks=(*found.marks, *anchors),
        findings=Findings(SHOWN),
        parse=_parse,
        known=cast("Callable[[int, str, str, int], KnownEntry]", _LeanKnown),
        fits=_fits if signatures else None,
        store=found.store,
    )


def _fits(key: bytes, signature: bytes, data: bytes) -> bool:
    """As ``check_record.signature_fits``, and many times as fast."""
    from interlock.core.signing import fits

    return fits(key, signature, data)


def verified(judge: RecordJudge, changed: Iterable[str] = ()) -> Verified:
    """The outcome after all items were read; ``changed`` keys were written during the reading."""
    verdicts = judge.finish(changed)
    findings = sorted(judge.findings.kept.values(), key=_order)
    return Verified(
        integrity=verdicts["integrity"],
        completeness=verdicts["completeness"],
        truncation=verdicts["truncation"],
        entries=judge.read,
        begins=judge.first,
        ends=judge.rolling.at if judge.read else 0,
        dropped=judge.dropped,
        anchored=judge.rolling.anchored,
        since=judge.trimmed,
        signed=tuple(_share(each) for key, each in judge.signed.items() if key),
        unsigned=_share(judge.signed[""]) if "" in judge.signed else None,
        store=judge.store if any(judge.signed) else "",
        findings=tuple(RecordFinding(**flaw._asdict()) for flaw in findings),
        more=judge.findings.more,
    )


def _share(found: SignedEntries) -> EntriesOfKey:
    return EntriesOfKey(
        key=found.fingerprint if found.key else "",
        entries=found.entries,
        begins=found.first,
        ends=found.last,
        agents=tuple(sorted(found.agents)),
    )


def _order(flaw: Flaw) -> tuple[bool, int, str]:
    """Changed segments first, since they explain later findings; then by revision; keys last."""
    changed = flaw.verdict == "integrity" and flaw.key.startswith(keys.SEGMENTS)
    return not changed, flaw.revision or _LAST, flaw.key


def _verify(found: RecordSpan, judge: RecordJudge, compared: _Compared | None) -> Op[Verified]:
    stamps, sealed = yield from walk(found, judge if compared is None else compared, judge)
    if wanted := judge.wanted():
        yield from walk(found, _Seeker(judge, wanted))
    for stamp in stamps:
        judge.item(*stamp)
    yield from read_items(judge, judge.item)
    suspects = judge.items_end()
    changed = (yield from changed_after(found.end)) & suspects if suspects else frozenset()
    against = None if compared is None else compared.end()
    return replace(verified(judge, changed), sealed=sealed, against=against)


class _Seeker:
    """A second reading, for the hashes of links that no recent entry had."""

    def __init__(self, judge: RecordJudge, wanted: frozenset[str]) -> None:
        self._judge = judge
        self._wanted = wanted

    def feed(self, items: Sequence[Item], *, sealed: bool = False) -> None:  # noqa: ARG002 - alike
        for item in items:
            if (hash_ := sha256(item.value).hexdigest()) in self._wanted:
                self._judge.resolve(hash_, item.created)

    def segment(self, key: str, begins: DigestMark, ends: DigestMark | None) -> None: ...

    def unreadable(self, key: str, last: int) -> None: ...

    def changed(self, key: str) -> None: ...

    def trimmed_before(self, first: int) -> None: ...


def read_items(judge: RecordJudge, take: TakeStamp) -> Op[None]:
    """Read all items of the folders that a store may have, and that the record names."""
    declared = (kind.prefix for noun in registry.added() for kind in noun.keys)
    folders = keys.FOLDERS.union(map(_folder, (*declared, *judge.keys())))
    for folder in sorted(folders.difference(_ELSEWHERE)):
        pages = Pages(folder, limit=MOST_PAGE)
        while not pages.finished:
            for item in (yield from pages.read(_BULKY.get(folder, MOST_PAGE))):
                if _folder(item.key) == folder:
                    take(*item_stamp(item))


def _folder(key: str) -> str:
    """The folder of a key; the key itself if it is in none."""
    return key[: key.find("/") + 1] or key


def changed_after(after: int) -> Op[frozenset[str]]:
    """The keys that entries behind a revision wrote or deleted, sealed ones included."""
    found: set[str] = set()
    page = Log(after=after, limit=PAGE)
    while entries := (yield Read(page)).ranges[page]:  # first: entries that leave it are sealed
        found.update(key for item in entries for key in _changed(item))
        page = Log(after=entries[-1].created, limit=PAGE)
    ref = Range(keys.SEGMENTS, keys.segment(after), 1)
    while segments := (yield Read(ref)).ranges[ref]:
        _, sealed = open_segment(segments[0]) or (None, ())
        found.update(key for item in sealed for key in _changed(item))
        ref = Range(keys.SEGMENTS, segments[0].key, 1)
    return frozenset(found)


def _changed(item: Item) -> Iterator[str]:
    with suppress(*codec.UNREADABLE):
        entry: Entry = decode(item.value)
        yield from (*entry.put, *entry.deleted)


# ---- beside an export ---------------------------------------------------------------------------


class ExportHead(Struct, frozen=True, kw_only=True):
    """The first line of an export.

    ``strict``: an entry's revision follows the one that it was decided on.
    ``whole``: no entry precedes the beginning.
    ``store``: the id of the store, which signed entries name.
    """

    interlock: int = FORMAT
    begins: RecordMark
    strict: bool
    whole: bool
    store: str = ""


class _EntryLine(Struct, frozen=True, kw_only=True):
    """The line of an entry: its text, or base64 if its bytes are no text."""

    revision: int
    entry: str = ""
    base64: str = ""


class _Compared:
    """Hands entries to the judge, and compares them with an export."""

    def __init__(self, judge: RecordJudge, path: str, found: RecordSpan) -> None:
        self._judge = judge
        lines = _export_lines(path)
        head = next(lines)
        assert isinstance(head, ExportHead)  # noqa: S101 - else BadInput was raised
        entries = (line for line in lines if not isinstance(line, ExportHead))
        after = found.begins.revision if found.begins is not None else 0
        self._comparison = Comparison(judge, path, plain_mark(head.begins), entries, after)
        self.segment = judge.segment
        self.unreadable = judge.unreadable
        self.changed = judge.changed

    def feed(self, items: Sequence[Item], *, sealed: bool = False) -> None:
        for item in items:
            self._comparison.entry(item.created, sha256(item.value).hexdigest())
        self._judge.feed(items, sealed=sealed)

    def trimmed_before(self, first: int) -> None:
        self._comparison.skip(first)
        self._judge.trimmed_before(first)

    def end(self) -> Compared:
        record, common, ours, theirs = self._comparison.end()
        return Compared(record=record, common=common, ours=ours, theirs=theirs)


def _export_lines(path: str) -> Iterator[ExportHead | tuple[int, str]]:
    """The head of an export, then the position and hash of each entry; BadInput if it is none."""
    try:
        with closing(open(path, "rb")) as file:
            ended = False
            for number, text in enumerate(file, 1):
                try:
                    line: dict[str, Any] = msgspec.json.decode(text, type=dict)
                    if number == 1:
                        yield msgspec.convert(line, ExportHead)
                    elif "id" in line:
                        yield _hashed(msgspec.convert(line, _EntryLine))
                except codec.UNREADABLE:
                    raise BadInput(
                        f"line {number} of {path} is none of an export; name an export"
                    ) from None
                ended = "ends" in line
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; name an export") from None
    if not ended:
        raise BadInput(f"{path} was cut before its end; export it again")


def _hashed(line: _EntryLine) -> tuple[int, str]:
    raw = base64.b64decode(line.base64) if line.base64 else line.entry.encode()
    return line.revision, codec.digest(raw)
