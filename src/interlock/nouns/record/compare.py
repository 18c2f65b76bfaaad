"""A record beside an export: of itself at an earlier time, or of a copy of its store that went on.

An export that this record has in full proves as much as an anchor at its end does.  One of a part
says where the digest stood at its beginning, which the record has to meet too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256

from interlock.core.log import Mark
from interlock.nouns.record.export_reader import Copy, Head, copies
from interlock.nouns.record.rolling_digest import Kept
from interlock.nouns.record.verdict import Compared
from interlock.nouns.record.verify_rules import Verifier
from interlock.nouns.record.walk import Span
from interlock.store import Item


class Beside:
    """Hands on what is read, and compares it with an export."""

    def __init__(self, judge: Verifier, path: str, found: Span) -> None:
        self._judge = judge
        self._path = path
        self._export = copies(path)
        head = next(self._export)
        assert isinstance(head, Head)  # noqa: S101 - the first is the head, or it is BadInput
        self._begins = head.begins.revision
        judge.rolling.expect(Kept(head.begins, f"the beginning of {path}", outside=True))
        judge.rolling.meet(judge.rolling.at)
        self._theirs = self._after(found.begins.revision if found.begins is not None else 0)
        self._common = 0
        self._compared: Compared | None = None
        self._more = 0

    def feed(self, items: Sequence[Item], *, sealed: bool = False) -> None:
        """The next entries."""
        for item in items:
            if self._compared is None and item.created > self._begins:
                self._compare(item)
        self._judge.feed(items, sealed=sealed)

    def segment(self, key: str, begins: Mark, ends: Mark | None) -> None:
        """The next entries come from here."""
        self._judge.segment(key, begins, ends)

    def unreadable(self, key: str, last: int) -> None:
        """This should be a segment, and is none."""
        self._judge.unreadable(key, last)

    def changed(self, key: str) -> None:
        """The next entries come from here, and what the segment says of them is not true."""
        self._judge.changed(key)

    def forgotten(self, first: int) -> None:
        """The engine forgot entries before this one, which only the export has."""
        while self._theirs is not None and self._theirs.revision < first:
            self._theirs = next(self._entries(), None)
        self._judge.forgotten(first)

    def end(self) -> Compared:
        """How the two compare; what that says about the end of ours goes to the judge."""
        for _ in self._export:  # to its last line: it may be cut
            pass
        if self._compared is not None:
            return self._parted(self._compared)
        if self._theirs is not None:
            return self._shorter(self._theirs)
        self._judge.rolling.anchored = max(self._judge.rolling.anchored, self._common)
        if self._more:
            return Compared(record="longer", common=self._common, ours=self._more)
        return Compared(record="same", common=self._common)

    def _entries(self) -> Iterator[Copy]:
        return (each for each in self._export if isinstance(each, Copy))

    def _after(self, revision: int) -> Copy | None:
        return next((each for each in self._entries() if each.revision > revision), None)

    def _compare(self, item: Item) -> None:
        theirs = self._theirs
        if theirs is None:
            self._more = self._more or item.created
        elif theirs == Copy(item.created, sha256(item.value).hexdigest()):
            self._common = item.created
            self._theirs = next(self._entries(), None)
        else:
            self._compared = Compared(
                record="parted", common=self._common, ours=item.created, theirs=theirs.revision
            )

    def _parted(self, compared: Compared) -> Compared:
        both = f"revision {compared.common} is the last that both have"
        self._judge.findings.add(
            "truncation",
            f"the record and {self._path} parted: {both if compared.common else 'they share none'},"
            f" then the record has revision {compared.ours} and the export another"
            f" at {compared.theirs}",
            compared.theirs,
        )
        return compared

    def _shorter(self, theirs: Copy) -> Compared:
        self._judge.findings.add(
            "truncation",
            f"{self._path} goes on after revision {self._common} with {theirs.revision}:"
            " the end of this record is missing, or the export is of a newer copy",
            theirs.revision,
        )
        return Compared(record="shorter", common=self._common, theirs=theirs.revision)
