"""Outcomes of verify, export and anchor: three verdicts, and a position for each finding.

integrity     no entry and no item was changed, moved or added
completeness  no entry is missing in between, and the record agrees with the state
truncation    no entry is missing at the end; only a mark that was kept elsewhere can prove that
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from msgspec import Struct

from interlock.core.decision import Success

Aspect: TypeAlias = Literal["integrity", "completeness", "truncation"]
Word: TypeAlias = Literal["ok", "bad", "unproven"]


class RecordFinding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One finding against the record: the verdict that it breaks, its position, and a sentence."""

    verdict: Aspect
    says: str
    revision: int = 0
    key: str = ""


class Compared(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record beside an export of it, or of a copy of its store.

    ``same``, ours is ``longer`` or ``shorter``, or they ``parted``: after ``common``, the last
    revision that both have, ours goes on at revision ``ours`` and the export at ``theirs``.
    """

    record: Literal["same", "longer", "shorter", "parted"]
    common: int = 0
    ours: int = 0
    theirs: int = 0


class Verified(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a record proves: three verdicts, and how far each goes.

    ``begins`` and ``ends`` are the revisions of the first and the last entry; ``sealed`` entries
    were read from segments, ``dropped`` ones are proven by their digest alone; ``anchored`` is the
    revision of the last anchor that is met; ``since`` is where completeness begins if it is
    unproven before; ``more`` counts the findings that are not listed.
    """

    exit_statuses: ClassVar[str] = "0 or 1"

    integrity: Word
    completeness: Word
    truncation: Word
    entries: int
    begins: int = 0
    ends: int = 0
    sealed: int = 0
    dropped: int = 0
    anchored: int = 0
    since: int = 0
    against: Compared | None = None
    findings: tuple[RecordFinding, ...] = ()
    more: int = 0

    def __bool__(self) -> bool:
        """Whether nothing is bad."""
        return self.exit_status == 0

    @property
    def exit_status(self) -> int:
        """1 if a verdict is bad; an unproven one is not."""
        return int("bad" in (self.integrity, self.completeness, self.truncation))


class Anchored(Success, frozen=True, kw_only=True, tag="anchored"):
    """The record up to here is anchored: a later change or cut of it can be detected."""

    place: str
    revision: int
    entries: int
    digest: str


class Exported(Success, frozen=True, kw_only=True, tag="exported"):
    """The record is in the file: entries from ``begins`` to ``ends``, and the stamps of items."""

    path: str = ""
    entries: int
    items: int
    begins: int
    ends: int
    digest: str
