"""The record as it stands in log and segments, read by hand: what tests of sealing share."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from interlock.core import codec, keys
from interlock.core.decision import Decision, Write
from interlock.core.segment import RecordMark, SealedMark, Segment, roll, unpack
from interlock.nouns.record.seal_rules import SealLimits
from interlock.runtime.attempt import DecideOp
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Runner
from interlock.steps import drive
from interlock.store import LOG, Log, Range, Store

Row: TypeAlias = tuple[int, str, bytes]
"""The revision, the id and the bytes of an entry."""

SMALL = SealLimits(hot_entries=10, newest=5, age=-1.0, pressed=-1.0)
"""Also what was made this very moment may be sealed."""


def fill(store: Store, count: int) -> list[Row]:
    """Commit as agents do; returns what the log has then."""
    runner = Runner(store, clock=getattr(store, "_clock", None))
    for number in range(count):
        drive(runner.change(lambda n=number: touch(n), Actor("ada")), store)  # type: ignore[misc]
    return log(store)


def touch(number: int) -> DecideOp[str]:
    key = f"things/{number % 7}"
    yield (key,)
    return Decision(outcome="touched", verb="test", thing=key, puts=(Write(key, {"n": number}),))


def log(store: Store) -> list[Row]:
    ref = Log(limit=100_000)
    items = store.read(ref).ranges[ref]
    return [(item.revision, item.key.removeprefix(LOG), item.value) for item in items]


def segments(store: Store) -> list[Segment]:
    ref = Range(keys.SEGMENTS)
    return [msgspec.json.decode(item.value, type=Segment) for item in store.read(ref).ranges[ref]]


def mark(store: Store) -> SealedMark:
    item = store.read(keys.SEALED)[keys.SEALED]
    return SealedMark() if item is None else msgspec.json.decode(item.value, type=SealedMark)


def noted(store: Store) -> RecordMark | None:
    item = store.read(keys.CHECKPOINT)[keys.CHECKPOINT]
    return None if item is None else msgspec.json.decode(item.value, type=RecordMark)


def whole(store: Store) -> list[Row]:
    """The record from its first entry on, each once; the digest is rolled through all of it."""
    found: list[Row] = []
    stands = RecordMark()
    for part in segments(store):
        assert part.begins == stands
        rows = list(unpack(part.packed))
        found += [row[:3] for row in rows]
        stands = rolled(stands, [row[:3] for row in rows])
        assert part.ends == stands
    sealed = mark(store)
    assert (sealed.revision, sealed.entries, sealed.digest) == (
        stands.revision,
        stands.entries,
        stands.digest,
    )
    found += [row for row in log(store) if row[0] > stands.revision]
    assert [row[0] for row in found] == sorted({row[0] for row in found})
    return found


def rolled(begins: RecordMark, rows: list[Row]) -> RecordMark:
    digest = begins.digest
    for revision, _, stored in rows:
        digest = roll(digest, revision, codec.digest(stored))
    return RecordMark(revision=rows[-1][0], entries=begins.entries + len(rows), digest=digest)
