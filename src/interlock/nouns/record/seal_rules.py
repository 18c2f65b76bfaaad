"""Sealing: the oldest entries leave the log for a segment, and what remains stays verifiable.

All clients write to the log, so it has to stay small; auditors read the record, so none of it may
change.  A segment is an item that holds the entries of one stretch of the log, byte for byte, and
the marks before and after it.  ``meta/sealed`` advances in the same commit, so segments follow each
other without a gap or an overlap, whichever client sealed them.  Only then are the entries trimmed
from the log; a client that is killed in between leaves them in both, and the next one trims them
first.

Before it is sealed a stretch is checked: each entry has the hash that was stored beside it, and
where a checkpoint lies inside the stretch the digest must equal the checkpoint's.  A record that
contradicts itself is left as it is; ``record verify`` finds the position.

The newest entries and all entries younger than an hour stay in the log, so that unknown outcomes
can be settled and followers that are a little behind miss nothing.  A log of twice its limit cannot
wait an hour; five minutes are enough for settling.

The writer dates its entries, and one wrong clock must do no harm.  "Now" is no later than our clock
and no later than the newest entry, so a client whose clock is ahead seals and drops nothing too
soon.  The date of an entry that is a day or more ahead is ignored, so it does not block the entries
behind it.  Entries of a slow clock lie among those of others: the entries shortly before a young
one count as young.

Retention drops whole segments, oldest first.  Only their digest remains, in ``meta/sealed``: it
proves that the rest is what followed them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.core.decision import Decision, Write
from interlock.core.segment import RecordMark, SealedMark, Segment, pack, roll
from interlock.errors import StoreDamaged

Row: TypeAlias = tuple[int, str, bytes, str]
"""An entry of the log: its revision, its id, its stored bytes and the hash stored beside them."""

THING = "record"
DAY = 86_400.0


class SealLimits(Struct, frozen=True, kw_only=True):
    """How much of the record the log and the segments hold.

    hot_entries  of the log, above which it is sealed; 0 if its bytes decide
    hot_bytes    the same in bytes
    keep         seconds for which a segment is kept after its last entry
    sealed       bytes of all segments together
    newest       entries that are never sealed
    age          seconds for which an entry stays in the log
    pressed      the same, while the log is twice as large as it should be
    between      entries between two checkpoints
    """

    hot_entries: int = 0
    hot_bytes: int = 0
    keep: float = 90 * DAY
    sealed: int = 64 << 20
    newest: int = 1_000
    age: float = 3_600.0
    pressed: float = 300.0
    between: int = 10_000


LIMITS = {
    "memory": SealLimits(hot_entries=100_000),
    "sqlite": SealLimits(hot_bytes=256 << 20, sealed=1 << 30),
    "redis": SealLimits(hot_entries=50_000),
    "etcd": SealLimits(hot_entries=20_000),
}
"""The limits of each engine: a disk has more room than the memory of a server."""


class AgeLimit(Struct, frozen=True, kw_only=True):
    """Entries made ``before`` this time are old enough; our clock shows ``now``.

    The ``shield`` entries before a young one count as young.
    """

    before: float
    now: float
    shield: int = 1


class EntrySummary(Struct, frozen=True, gc=False):
    """The fields of an entry that sealing needs."""

    id: str = ""
    at: float = 0.0
    verb: str = ""


class SegmentEnd(Struct, frozen=True):
    """The fields of a segment that retention needs."""

    ends: RecordMark
    until: float


_peek = msgspec.json.Decoder(EntrySummary).decode


def rolled(begins: RecordMark, rows: Sequence[Row], noted: RecordMark | None = None) -> RecordMark:
    """The mark after these entries, whose hashes are checked.

    ``noted`` is a checkpoint; if it lies among the entries it must agree.
    """
    digest, meets = begins.digest, False
    for number, row in enumerate(rows, begins.entries + 1):
        revision, _, stored, hash_ = row
        found = codec.digest(stored)
        if hash_ != found:
            _refuse_forged(row)
        digest = roll(digest, revision, found)
        if noted is not None and noted.revision == revision:
            meets = (number, digest) == (noted.entries, noted.digest)
    last = rows[-1][0] if rows else begins.revision
    if noted is not None and begins.revision < noted.revision <= last and not meets:
        raise damaged(noted.revision, "the checkpoint there knows another history")
    return RecordMark(revision=last, entries=begins.entries + len(rows), digest=digest)


def entry_times(rows: Sequence[Row]) -> list[float]:
    """The time of each entry by its writer; a void has the time of the one before."""
    found: list[float] = []
    for row in rows:
        at = entry_summary(row).at
        found.append(at or (found[-1] if found else 0.0))
    return found


def entry_summary(row: Row) -> EntrySummary:
    """Decode the summary of an entry."""
    try:
        return _peek(row[2])
    except codec.UNREADABLE as error:
        raise damaged(row[0], f"what stands there is no entry ({error})") from error


def newest_time(rows: Sequence[Row]) -> float:
    """The latest time of these entries, without those that maintenance wrote."""
    said = map(entry_summary, rows)
    return max((each.at for each in said if not each.verb.startswith("record.")), default=0.0)


def first_young(rows: Sequence[Row], age: AgeLimit) -> int | None:
    """The index of the first entry that is too young, if any is."""
    times = enumerate(entry_times(rows))
    return next((index for index, at in times if age.before < at <= age.now + DAY), None)


def sealable(rows: Sequence[Row], age: AgeLimit, room: int) -> Sequence[Row]:
    """The entries up to the last old one, none near a young one, as far as they fit."""
    first = first_young(rows, age)
    if first is not None:
        rows = rows[: max(0, first + 1 - age.shield)]
    old = [index for index, at in enumerate(entry_times(rows)) if at <= age.before]
    rows, size = rows[: old[-1] + 1 if old else 0], 0
    for number, row in enumerate(rows):
        size += len(row[2])
        if size > room and number:
            return rows[:number]
    return rows


def clock_ahead(rows: Sequence[Row], now: float) -> str:
    """The reason why these entries are never sealed, if it is a wrong clock."""
    times = entry_times(rows)
    if not times or min(times) <= now + DAY:
        return ""
    return (
        f"the entries from revision {rows[0][0]} on are dated {(min(times) - now) / DAY:.0f} days"
        " ahead of the clock here, and are not sealed; set the clock that is wrong"
    )


def segment(
    begins: RecordMark, rows: Sequence[Row], noted: RecordMark | None, room: int, now: float
) -> Segment:
    """These entries as a segment, or the first of them if not all fit."""
    packed = _packed(rows)
    while len(packed) > room and len(rows) > 1:
        rows = rows[: len(rows) // 2]
        packed = _packed(rows)
    times = [min(at, now) for at in entry_times(rows)]
    return Segment(
        begins=begins,
        ends=rolled(begins, rows, noted),
        since=next((at for at in times if at), 0.0),
        until=max(times),
        packed=packed,
    )


def _packed(rows: Sequence[Row]) -> str:
    for revision, id_, stored, _ in rows:
        if b"\n" in stored or " " in id_ or "\n" in id_:  # it could not be unpacked
            raise damaged(revision, f"entry {id_} is not as a client writes one")
    return pack([row[:3] for row in rows])


def seal(before: SealedMark, made: Segment, *, restarted: bool) -> Decision[str]:
    """Write a segment; ``restarted`` if the entries before it are gone."""
    key = keys.segment(made.ends.revision)
    size = len(codec.encode(made))
    after = SealedMark(
        revision=made.ends.revision,
        entries=made.ends.entries,
        digest=made.ends.digest,
        dropped=made.begins if restarted else before.dropped,
        bytes=size if restarted else before.bytes + size,
        since=made.since if restarted or not before.bytes else before.since,
    )
    puts: tuple[Write, ...] = (Write(key, made), Write(keys.SEALED, after))
    if restarted:  # the old one is about entries that are gone
        puts = (*puts, Write(keys.CHECKPOINT, made.ends))
    return Decision(outcome="sealed", verb="record.seal", thing=THING, puts=puts)


def checkpoint(mark: RecordMark) -> Decision[str]:
    """Write a checkpoint."""
    puts = (Write(keys.CHECKPOINT, mark),)
    return Decision(outcome="noted", verb="record.checkpoint", thing=THING, puts=puts)


def too_old(state: SealedMark, limits: SealLimits, now: float) -> bool:
    """Whether retention has to read the oldest segment."""
    return bool(state.bytes) and (state.bytes > limits.sealed or state.since < now - limits.keep)


def drop(state: SealedMark, key: str, oldest: SegmentEnd, size: int) -> Decision[str]:
    """Drop the oldest segment; its end becomes the beginning of the rest."""
    left = max(0, state.bytes - size)
    after = replace(state, dropped=oldest.ends, bytes=left, since=oldest.until)
    puts = (Write(keys.SEALED, after),)
    return Decision(outcome="dropped", verb="record.drop", thing=THING, puts=puts, deletes=(key,))


def damaged(revision: int, why: str) -> StoreDamaged:
    """The error that stops sealing."""
    return StoreDamaged(
        f"the record is damaged at revision {revision}: {why};"
        " nothing after it is sealed, run 'interlock record verify'"
    )


def _refuse_forged(row: Row) -> None:
    """A void has no hash; every other entry has that of its bytes."""
    revision, id_, _, hash_ = row
    said = entry_summary(row)
    if hash_ or said.verb != "void" or said.id:
        raise damaged(revision, f"entry {id_} is not what was stored")
