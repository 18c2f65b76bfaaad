"""Whether a record is what was recorded: entries in order, then the state that they left.

What gives a change away, by what was done and to which entry:

  done       entry of a chain (linked later)        entry that nobody links
  edit       integrity at the entry                 integrity: at the entry if what it wrote still
                                                    stands, else at the next mark
  delete     completeness at the entry that         completeness at a key if it changed one, else
             links it                               integrity at the next mark
  insert     integrity or completeness where the    integrity at the next mark, and completeness
             next one saw something else            at a key if it claims to have written one
  reorder    integrity: a link points forward, or   on a local engine integrity (``on``), else at
             an older state was seen                the next mark
  truncate   completeness at the keys that the end had changed, truncation at an anchor behind it

Of all marks (``core.rolling``) only an anchor stands where whoever changes the store cannot change
it too; so what nobody links and no anchor covers can be forged.  An edit that goes with its hash,
and a deletion, can look the same: the last entry of a writer is not the one that its next entry
links.  Then the sentence says both.

Memory: the keys that stand, the last entry of each of the last ``RECENT`` writers, and the hashes
of the last ``RECENT`` entries, or twice as many.  A link further back is looked for in a second
reading (``wanted``, ``resolve``), which is only needed if there is one.

What came before the beginning (dropped by retention, or trimmed by the engine) is not known: a
first link of a writer, or a first look at a key, that points back there is let pass.  A writer with
several commits under way has several such links, among others that lead to entries we have.  They
are let pass too, up to its ``UNDER_WAY``-th entry, unless what comes later contradicts: each entry
of a writer is linked by a later one, so where one is linked and the one before it never is, the
entry between them is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256

from interlock.core import codec
from interlock.core.log import Mark
from interlock.nouns.record.evidence import Doubt, Known, Lean, Open, Stored, decode
from interlock.nouns.record.rolling_digest import Kept, Rolling
from interlock.nouns.record.verdict import Aspect, Finding, Findings, Verified, word

RECENT = 100_000
UNDER_WAY = 10_000
"""Entries of one writer while one of its commits waits for an answer, generously."""
BLIND = "blind"
"""What an entry saw that carried no stamp."""
_VOID = b'{"verb":"void"}'
_UNSTAMPED = "meta/"
"""A few facts of the engines stand here without an entry."""
_STAMPED = ("meta/sealed", "meta/checkpoint")
_LOG = len("log/")
_TOLD = -1
"""In place of a revision: an item has this hash, and what that means is told already."""


class Verifier:
    """Reads a record once, entry by entry, then the items; says in the end what it is worth.

    ``strict`` is for local engines, where an entry stands right above what it was decided on.
    ``trims`` is for engines that forget unsealed entries by themselves: elsewhere such a gap was
    made by another hand.
    ``begins`` is where the digest stood before the first entry, if something was before it.
    """

    def __init__(
        self,
        *,
        strict: bool,
        trims: bool = True,
        begins: Mark | None = None,
        marks: Iterable[Kept] = (),
    ) -> None:
        start = begins or Mark()
        self.findings = Findings()
        self.rolling = Rolling(start, self.findings)
        self.first = self.read = self._forgotten = 0
        self._strict = strict
        self._trims = trims
        self._dropped = start.entries
        self._partial = begins is not None
        self._lost = start.revision
        self._young: dict[str, Known] = {}
        self._old: dict[str, Known] = {}
        self._writers: dict[str, Known] = {}
        self._state: dict[str, tuple[Known, str]] = {}
        self._gone: set[str] = set()
        self._excused: dict[str, set[str]] = {}
        self._doubts: list[Doubt] = []
        self._open: dict[str, list[Open]] = {}
        self._behind: dict[str, int] = {}
        self._unread: list[int] = []
        self._suspects: dict[str, Finding] = {}
        for kept in marks:
            self.rolling.expect(kept)
        self.rolling.meet(start.revision)

    # ---- entries --------------------------------------------------------------------------------

    def segment(self, key: str, begins: Mark, ends: Mark | None) -> None:
        """The next entries come from a segment, which has to fit to those before it."""
        at = self.rolling.at
        if begins.revision > at:
            said = f"the entries after revision {at} up to {begins.revision} are missing"
            self.findings.add("completeness", said, begins.revision)
            self._lose(begins)
        elif begins.revision == at and at:  # else it was sealed while we read the log
            self.rolling.expect(Kept(begins, f"the beginning of {key}"))
            self.rolling.meet(begins.revision)
        if ends is not None:
            self.rolling.expect(Kept(ends, key))

    def unreadable(self, key: str, last: int) -> None:
        """A segment cannot be read: what it held, up to this revision, is not known."""
        self.findings.add("integrity", f"{key} is not a segment of sealed entries", key=key)
        self._lose(Mark(revision=last), known=False)

    def changed(self, key: str) -> None:
        """A segment says what is not true of its entries: they are judged without it."""
        self.findings.add("integrity", f"{key} is not as it was sealed: it was changed", key=key)

    def forgotten(self, first: int) -> None:
        """The engine forgot entries before this one, and nothing stands for them.

        An engine that only trims what is sealed never does: then they were removed.
        """
        if not self._trims:
            said = f"entries up to revision {first - 1} were removed, and they were never sealed"
            self.findings.add("completeness", said, first - 1)
            self._lose(Mark(revision=first - 1))
            return
        self._forgotten = first
        self.rolling.forget(first - 1)
        self._begin_again(first - 1)

    def _lose(self, upto: Mark, *, known: bool = True) -> None:
        self.rolling.skip(upto, known=known)
        self._begin_again(upto.revision)

    def _begin_again(self, after: int) -> None:
        """Behind a gap anything may have changed: what was before it says nothing any more."""
        self._partial, self._lost = True, after
        for known in (self._state, self._writers, self._gone, self._excused):
            known.clear()

    def feed(self, items: Sequence[Stored], *, sealed: bool = False) -> None:
        """The next entries, in order; sealed ones have no stamp of their own."""
        roll = self.rolling.roll
        self.first = self.first or (items[0].created if items else 0)
        for item in items:
            hash_ = sha256(item.value).hexdigest()
            roll(item.created, hash_)
            entry = self._entry(item, hash_, sealed=sealed)
            if entry is not None:
                before = self._writers.get(entry.writer)
                number = 1 if before is None else before.number + 1
                known = Known(item.created, entry.id, hash_ if sealed else item.hash, number)
                self._follow(entry, known)
                self._replay(entry, known)
                self._young[known.hash] = known
                self._writers[entry.writer] = known
        self.read += len(items)
        self._forget()

    def _forget(self) -> None:
        """Keep what is remembered in bounds."""
        if len(self._young) > RECENT:
            self._old, self._young = self._young, {}
        while len(self._writers) > RECENT:
            del self._writers[next(iter(self._writers))]
        if len(self._gone) > RECENT:
            self._gone.clear()

    def _entry(self, item: Stored, hash_: str, *, sealed: bool) -> Lean | None:
        """An entry that can be read, judged by itself; None for a void."""
        revision, data = item.created, item.value
        if item.revision != revision:
            self._spoilt(revision, f"was written again at revision {item.revision}")
        if data == _VOID:
            if item.hash and not sealed:
                self._spoilt(revision, "is a void that carries the hash of another entry")
            return None
        if hash_ != item.hash and not sealed:
            self._spoilt(revision, "does not hash to what is stored beside it")
        try:
            entry = decode(data)
        except codec.UNREADABLE:
            self._spoilt(revision, "cannot be read as an entry")
            self._unread.append(revision)
            return None
        if entry.id != item.key[_LOG:]:
            self._spoilt(revision, f"says that it is {entry.id}, and stands at {item.key}")
        on = entry.on
        if on and (on + 1 != revision if self._strict else on >= revision):
            self._spoilt(revision, f"was decided on revision {on}, and cannot stand here")
        return entry

    def _spoilt(self, revision: int, wrong: str) -> None:
        self.findings.add("integrity", f"the entry {wrong}", revision)

    def _known(self, hash_: str) -> Known | None:
        return self._young.get(hash_) or self._old.get(hash_)

    def _follow(self, entry: Lean, known: Known) -> None:
        """The chain of its writer."""
        for link in entry.after:
            linked = self._young.get(link) or self._old.get(link)
            if linked is not None:
                linked.vouched = linked.linked = True
            else:
                self._dangling(entry, known, link)

    def _replay(self, entry: Lean, known: Known) -> None:
        """The chains of the things: what it saw must be what the record has there."""
        state = self._state
        for key, seen in entry.saw.items():
            there = state.get(key)
            if there is None:
                if seen is not None:
                    self._unseen(known, key, seen, None)
            elif there[0].hash == seen:
                there[0].vouched = True
            else:
                self._unseen(known, key, seen, there[0])
        for key, wrote in entry.put.items():
            state[key] = (known, wrote)
        for key in entry.deleted:
            state.pop(key, None)
            if self._partial:
                self._gone.add(key)

    def _dangling(self, entry: Lean, known: Known, link: str) -> None:
        """A link to an entry of its writer that is not among the recent ones."""
        before = self._writers.get(entry.writer)
        if self._partial and (before is None or known.number <= UNDER_WAY):
            excused = self._excused.setdefault(entry.writer, set())
            if before is not None and link not in excused:
                self._doubts.append(Doubt(link, known, before))
            excused.add(link)
        else:
            self._open.setdefault(link, []).append(Open(known.revision, "", before))

    def _unseen(self, known: Known, key: str, seen: str | None, there: Known | None) -> None:
        """An entry saw something else under a key than what the record has there."""
        if seen == BLIND:
            return
        if seen is None:
            assert there is not None  # noqa: S101 - else both say that nothing is there
            there.undone = True
            wrote = f"revision {there.revision}" if there.revision else "an entry"
            self.findings.add(
                "completeness",
                f"the entry saw nothing under {key}, which {wrote} had written:"
                " one that deleted it is missing",
                known.revision,
                key,
            )
            return
        older = self._known(seen)
        unknown = there is None and self._partial and key not in self._gone
        if unknown and (older is None or older.revision <= self._lost):
            if older is not None:  # no entry that the gap took changed the key
                older.vouched = True
            self._state[key] = (Known(0, "", seen, vouched=True), "")
        elif older is not None:
            self._stale(known.revision, key, older.revision)
        else:
            self._open.setdefault(seen, []).append(Open(known.revision, key, there))

    def _stale(self, revision: int, key: str, older: int) -> None:
        self.findings.add(
            "integrity",
            f"the entry saw {key} as revision {older} left it, and that was not the last before"
            " it: one was moved or added",
            revision,
            key,
        )

    # ---- a second reading -----------------------------------------------------------------------

    def wanted(self) -> frozenset[str]:
        """Hashes that links have and no recent entry had: look for them among all entries."""
        self._weigh()
        return frozenset(self._open)

    def resolve(self, hash_: str, revision: int) -> None:
        """One of the wanted stands here."""
        self._behind[hash_] = revision

    def _weigh(self) -> None:
        """All entries were read: what was let pass and should not have been is open again."""
        for each in self._doubts:
            if each.founded:
                opened = Open(each.known.revision, "", each.before)
                self._open.setdefault(each.link, []).append(opened)
        self._doubts.clear()

    # ---- items ----------------------------------------------------------------------------------

    def folders(self) -> frozenset[str]:
        """Where the record says that something stands."""
        return frozenset(map(folder, self._state))

    def item(self, key: str, revision: int, digest: str, entry: str, hash_: str) -> None:
        """What stands under a key: its revision, the digest of its payload, and its stamp."""
        there = self._state.pop(key, None)
        if there is None:
            self._stray(key, revision, entry, hash_)
            return
        known, wrote = there
        if hash_ == known.hash and entry == (known.id or entry):
            known.vouched = True
            if known.revision and (digest != wrote or revision != known.revision):
                said = f"{key} is not what revision {known.revision} wrote"
                self._suspect("integrity", said, key)
        elif entry == known.id:
            said = f"the entry is not the one that wrote {key}: it was changed"
            self._suspects[key] = Finding(verdict="integrity", says=said, revision=known.revision)
            self._behind[hash_] = _TOLD
        else:
            older = self._known(hash_)
            if older is not None or not known.revision:
                was = older.revision if older is not None else "an entry"
                last = known.revision or "the last entry"
                said = f"{key} is as {was} left it, and not as {last} did"
                self._suspect("integrity", said, key)
            else:
                said = f"{key} was written by {entry or 'nobody'}, which is not in the record"
                self._suspect("completeness", said, key)

    def _stray(self, key: str, revision: int, entry: str, hash_: str) -> None:
        """An item that the record does not have."""
        if not hash_ and key.startswith(_UNSTAMPED) and key not in _STAMPED:
            return
        if self._partial and key not in self._gone and 0 < revision <= self._lost:
            return
        said = f"{key} stands there, and no entry wrote it"
        if entry and self._known(hash_) is None:
            said = f"{key} was written by {entry}, which is not in the record"
        self._suspect("completeness", said, key)

    def _suspect(self, verdict: Aspect, said: str, key: str) -> None:
        self._suspects[key] = Finding(verdict=verdict, says=said, key=key)

    def items_end(self) -> frozenset[str]:
        """All items were read; the keys about which record and state do not agree.

        Those that an entry behind the last one changed meanwhile are to be told to ``finish``.
        """
        for key, (known, _) in self._state.items():
            said = f"revision {known.revision} wrote {key}, and nothing stands there"
            if not known.revision:
                said = f"{key} was there, no entry deleted it, and nothing stands there"
            self._suspect("completeness", said, key)
            known.undone = True
        self._state.clear()
        return frozenset(self._suspects)

    # ---- the end --------------------------------------------------------------------------------

    def finish(self, changed: Iterable[str] = ()) -> Verified:
        """The verdicts; ``changed`` are keys that were written while the items were read."""
        self._weigh()
        for key in changed:
            self._suspects.pop(key, None)
        for finding in self._suspects.values():
            self.findings.put(finding)
        for link, opens in self._open.items():
            self._close(link, opens)
        self.rolling.end()
        return self._verified()

    def _close(self, link: str, opens: list[Open]) -> None:
        """Say what a link is that leads nowhere, or not to where it should."""
        stands = self._behind.get(link)
        if stands == _TOLD:
            return
        if stands is not None:
            for each in opens:
                self._misled(each, stands)
            return
        saw = [each for each in opens if each.key]
        each = saw[0] if saw else opens[0]
        instead = each.instead
        if instead is None or instead.vouched or instead.undone or not instead.revision:
            what = f"saw {each.key} as an entry left it" if each.key else "links an entry"
            self.findings.add("completeness", f"the entry {what} that is missing", each.revision)
        elif not any(instead.revision < unread < each.revision for unread in self._unread):
            self.findings.add(
                "integrity",
                f"the entry is not the one that revision {each.revision} links:"
                " it was changed, or the one behind it is missing",
                instead.revision,
            )

    def _misled(self, each: Open, stands: int) -> None:
        if stands >= each.revision:
            self._spoilt(each.revision, f"links one that stands behind it, at revision {stands}")
        elif each.key:
            self._stale(each.revision, each.key, stands)

    def _verified(self) -> Verified:
        bad, anchored = self.findings.bad, self.rolling.anchored
        return Verified(
            integrity=word(bad="integrity" in bad),
            completeness=word(bad="completeness" in bad, proven=not self._forgotten),
            truncation=word(bad="truncation" in bad, proven=anchored > 0),
            entries=self.read,
            begins=self.first,
            ends=self.rolling.at if self.read else 0,
            dropped=self._dropped,
            anchored=anchored,
            since=self._forgotten,
            findings=self.findings.all(),
            more=self.findings.more,
        )


def folder(key: str) -> str:
    """The folder that a key stands in; itself if it stands in none."""
    return key[: key.find("/") + 1] or key
