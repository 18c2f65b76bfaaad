"""The digest over all entries, rolled along while they are read, and the marks that it must meet.

A mark is the digest as somebody kept it: a checkpoint, a segment, ``meta/sealed``, an anchor.  It
proves every entry up to it, their order, and that none is between them.

Behind a gap the digest is not known, and the next mark says where it stands.  If that mark is one
of the store itself, whoever forged the entries before it may have written it too: so an anchor
behind it proves nothing yet, but one behind that anchor does.  Entries in front of a gap are proven
by no anchor behind it, and then none counts.
"""

from __future__ import annotations

from hashlib import sha256

from msgspec import Struct

from interlock.core.log import Mark
from interlock.nouns.record.verdict import Findings

_NEVER = 1 << 63


class Kept(Struct, frozen=True):
    """A mark that somebody kept: in the store itself, or (``outside``) as an anchor."""

    mark: Mark
    name: str
    outside: bool = False


class Rolling:
    """One pass of the digest.

    ``known`` is false behind entries that are gone with no mark that stands for them, until the
    next mark is passed.
    """

    def __init__(self, begins: Mark, findings: Findings) -> None:
        self.at = begins.revision
        self.known = bool(begins.digest) or not begins.revision
        self.anchored = 0
        self.compared = 0
        """Anchors that stand at an entry that is here."""
        self.since = begins.revision
        """Marks before this revision are about entries that are not here."""
        self._digest, self._entries = begins.digest, begins.entries
        self._findings = findings
        self._marks: list[Kept] = []
        self._due = _NEVER
        self._proven = 0
        self._grounded = True
        """Whether the digest rests on the beginning, or on an anchor."""
        self._severed = False
        """Whether entries were read that no mark to come can prove."""

    @property
    def mark(self) -> Mark:
        """How far it was rolled."""
        return Mark(revision=self.at, entries=self._entries, digest=self._digest)

    def expect(self, kept: Kept) -> None:
        """A mark that is to be met on the way; one of nothing proves nothing."""
        if not kept.mark.entries:
            return
        self._marks.append(kept)
        self._marks.sort(key=lambda each: each.mark.revision)
        self._due = self._marks[0].mark.revision

    def roll(self, revision: int, hash_: str) -> None:
        """One more entry; ``core.log.roll`` says the same for those who are in no hurry."""
        if self._due < revision:  # no entry stands where a mark does
            self.meet(revision - 1)
        together = b"%b%d:%b" % (self._digest.encode(), revision, hash_.encode())
        self._digest = sha256(together).hexdigest()
        self._entries += 1
        self.at = revision
        if self._due == revision:
            self.meet(revision)

    def meet(self, revision: int) -> None:
        """Compare the marks up to this revision with the digest as it is now."""
        while self._due <= revision:
            kept = self._pop()
            mark = kept.mark
            if mark.revision < self.since:
                continue
            if mark.revision != self.at:
                self._unmet(kept)
                continue
            self.compared += kept.outside
            if self.known and mark == self.mark:
                if kept.outside and self._grounded:
                    self.anchored = mark.revision
            elif self.known:
                self._unmet(kept)
            if kept.outside:
                self._grounded = not self._severed
            # What follows is measured from here, so that one change is found once.
            self._digest, self._entries, self.known = mark.digest, mark.entries, True
            self._proven = mark.revision

    def skip(self, upto: Mark, *, known: bool = True) -> None:
        """Go on behind a gap; an anchor in it cannot be met."""
        while self._due < upto.revision:
            kept = self._pop()
            if kept.outside and kept.mark.revision >= self.since:
                self._unmet(kept)
        self._go_on(upto, known=known)

    def forget(self, upto: int) -> None:
        """Go on behind entries that the engine forgot; marks among them say nothing any more."""
        while self._due <= upto:
            self._pop()
        self._go_on(Mark(revision=upto), known=False)

    def _go_on(self, upto: Mark, *, known: bool) -> None:
        if not known:
            self._grounded, self._severed = False, self._severed or self.at > self.since
        self._digest, self._entries, self.at = upto.digest, upto.entries, upto.revision
        self.since, self.known = upto.revision, known

    def end(self) -> None:
        """No entry follows: what is expected still, is missing."""
        while self._marks:
            kept = self._pop()
            revision = kept.mark.revision
            said = f"{kept.name} stands at revision {revision}, and the record ends at {self.at}"
            self._findings.add("truncation", f"{said}: its end is missing", revision)

    def _pop(self) -> Kept:
        kept = self._marks.pop(0)
        self._due = self._marks[0].mark.revision if self._marks else _NEVER
        return kept

    def _unmet(self, kept: Kept) -> None:
        mark, ours = kept.mark, self.mark
        among = f"after revision {self._proven}" if self._proven else "up to there"
        if mark.revision != ours.revision:
            said = f"no entry stands here, where {kept.name} was made"
        elif mark.entries != ours.entries:
            said = (
                f"{kept.name} counts {mark.entries} entries and the record {ours.entries}:"
                f" some {among} were removed or added"
            )
        else:
            said = f"{kept.name} has another digest: entries {among} were changed or moved"
        verdict = "truncation" if kept.outside else "integrity"
        self._findings.add(verdict, said, mark.revision)  # type: ignore[arg-type]  # one of the two
