"""Histories as stores keep them, made by hand, and everything that can be done to them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from interlock.check_record import ExpectedMark, Findings, RecordJudge
from interlock.core import codec
from interlock.core.entry import Entry, sign
from interlock.core.segment import RecordMark, roll
from interlock.core.signing import Signer
from interlock.nouns.record.noun import RecordFinding, Verified
from interlock.nouns.record.reader import plain_mark
from interlock.nouns.record.verify import verified
from interlock.store import LOG, VOID, Item

KEYS = ("locks/a", "locks/b", "locks/c")


class History:
    """What a local engine has after these commits: entries in order, and the items they left."""

    def __init__(self) -> None:
        self.entries: list[Item] = []
        self.items: dict[str, Item] = {}
        self._revision = 0
        self._heads: dict[str, str] = {}

    def commit(
        self,
        writer: str,
        *,
        put: str = "",
        delete: str = "",
        signer: Signer | None = None,
        **fields: object,
    ) -> int:
        """One commit of a writer, which sees what it changes; returns its revision."""
        self._revision += 1
        revision, id_ = self._revision, f"txn_{self._revision}"
        changed = put or delete
        there = self.items.get(changed)
        value = f'{{"by":"{writer}","n":{revision}}}'.encode()
        entry = Entry(
            id=id_,
            writer=writer,
            on=revision - 1,
            after=(self._heads[writer],) if writer in self._heads else (),
            saw={changed: None if there is None else there.hash} if changed else {},
            put={put: codec.digest(value)} if put else {},
            deleted=(delete,) if delete else (),
        )
        raw = codec.encode(msgspec.structs.replace(entry, **fields))
        raw = raw if signer is None else sign(raw, signer)
        hash_ = self._heads[writer] = codec.digest(raw)
        self.entries.append(Item(LOG + id_, raw, revision, revision, id_, hash_))
        if put:
            created = revision if there is None else there.created
            self.items[put] = Item(put, value, revision, created, id_, hash_)
        self.items.pop(delete, None)
        return revision

    def void(self) -> None:
        """A commit that never happened."""
        self._revision += 1
        id_ = f"txn_{self._revision}"
        self.entries.append(Item(LOG + id_, VOID, self._revision, self._revision, id_, ""))

    def quiet(self) -> None:
        """A renewal: a revision without an entry."""
        self._revision += 1

    def mark(self, upto: int | None = None) -> RecordMark:
        """The digest after so many entries, or after all."""
        found = RecordMark()
        for number, item in enumerate(self.entries[:upto], 1):
            digest = roll(found.digest, item.revision, codec.digest(item.value))
            found = RecordMark(revision=item.revision, entries=number, digest=digest)
        return found

    # ---- what can be done to it

    def place(self, revision: int) -> int:
        """Where an entry stands in the list."""
        return next(n for n, item in enumerate(self.entries) if item.revision == revision)

    def edit(self, revision: int, *, rehash: bool = True, **fields: object) -> None:
        """Change fields of an entry, and its hash with it unless that is forgotten."""
        place = self.place(revision)
        item = self.entries[place]
        entry = msgspec.json.decode(item.value, type=Entry)
        raw = codec.encode(msgspec.structs.replace(entry, **fields or {"agent": "mallory"}))
        hash_ = codec.digest(raw) if rehash else item.hash
        self.entries[place] = msgspec.structs.replace(item, value=raw, hash=hash_)

    def delete(self, revision: int) -> None:
        """Take an entry out."""
        del self.entries[self.place(revision)]

    def insert(self, before: int, **fields: object) -> None:
        """Forge an entry at the free revision before this one."""
        id_, revision = f"txn_forged{before}", before - 1
        raw = codec.encode(Entry(id=id_, writer="mallory", on=revision - 1, **fields))  # type: ignore[arg-type]
        item = Item(LOG + id_, raw, revision, revision, id_, codec.digest(raw))
        self.entries.insert(self.place(before), item)

    def swap(self, one: int, other: int) -> None:
        """Let two entries change places."""
        here, there = self.place(one), self.place(other)
        first, second = self.entries[here], self.entries[there]
        self.entries[here] = msgspec.structs.replace(second, revision=one, created=one)
        self.entries[there] = msgspec.structs.replace(first, revision=other, created=other)

    def cut(self, after: int) -> None:
        """Cut the end off, and leave the items as they are."""
        self.entries = [item for item in self.entries if item.revision <= after]


def judged(
    history: History,
    *,
    marks: Iterable[RecordMark] = (),
    anchors: Iterable[RecordMark] = (),
    begins: RecordMark | None = None,
    covered: bool = True,
    changed: Iterable[str] = (),
) -> Verified:
    """What the verifier says to a history, from a mark on if there is one."""
    kept = [*(ExpectedMark(plain_mark(m), "meta/checkpoint") for m in marks)]
    kept += [ExpectedMark(plain_mark(m), "the anchor", outside=True) for m in anchors]
    judge = RecordJudge(
        strict=True,
        begins=None if begins is None else plain_mark(begins),
        marks=kept,
        findings=Findings(20),
    )
    after = 0 if begins is None else begins.revision
    entries = [item for item in history.entries if item.revision > after]
    if not covered and entries:
        judge.trimmed_before(entries[0].created)
    for start in range(0, len(entries), 3):
        judge.feed(entries[start : start + 3])
    wanted = judge.wanted()
    for item in entries:
        if (hash_ := codec.digest(item.value)) in wanted:
            judge.resolve(hash_, item.revision)
    for item in history.items.values():
        digest = codec.digest(item.value)
        judge.item(item.key, item.revision, digest, item.entry, item.hash)
    judge.items_end()
    return verified(judge, changed)


def words(found: Verified) -> tuple[str, str, str]:
    """The three verdicts."""
    return found.integrity, found.completeness, found.truncation


def places(found: Iterable[RecordFinding]) -> list[tuple[str, int | str]]:
    """Where something is wrong, and with what."""
    return [(each.verdict, each.revision or each.key) for each in found]
