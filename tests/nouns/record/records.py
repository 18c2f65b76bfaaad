"""Records to be judged: made by real clients, sealed as maintenance does it, checked by both."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import interlock
from interlock import check_record
from interlock.core import codec, keys
from interlock.core.decision import Decision, Write
from interlock.core.segment import RecordMark, SealedMark, Segment, pack, roll
from interlock.nouns.record.noun import Verified
from interlock.runtime.attempt import DecideOp
from interlock.runtime.identity import Actor
from interlock.steps import drive
from interlock.store import LOG, Item, Log


def busy(fleet: interlock.Fleet, rounds: int = 3) -> None:
    """Two entries a round, on two locks; the last grant stays."""
    for number in range(rounds):
        with fleet.lock("merge"):
            pass
        fleet.locks.acquire(f"kept{number % 2}", ttl=900)


def entries(fleet: interlock.Fleet) -> tuple[Item, ...]:
    ref = Log(limit=100_000)
    return fleet.store.read(ref).ranges[ref]


def rolled(items: tuple[Item, ...], begins: RecordMark | None = None) -> RecordMark:
    mark = begins or RecordMark()
    for item in items:
        digest = roll(mark.digest, item.revision, codec.digest(item.value))
        mark = RecordMark(revision=item.revision, entries=mark.entries + 1, digest=digest)
    return mark


def record(fleet: interlock.Fleet, verb: str, *puts: Write, deletes: tuple[str, ...] = ()) -> None:
    """A commit as maintenance makes it."""

    def deciding() -> DecideOp[str]:
        yield tuple(put.key for put in puts)
        return Decision(outcome="done", verb=verb, thing="record", puts=puts, deletes=deletes)

    drive(fleet.context.runner.change(deciding, Actor()), fleet.store)


def seal(fleet: interlock.Fleet, count: int, begins: RecordMark | None = None) -> RecordMark:
    """Move entries behind a mark into a segment; the log is trimmed by whoever asked for this."""
    begins = begins or RecordMark()
    items = tuple(i for i in entries(fleet) if i.revision > begins.revision)[:count]
    ends = rolled(items, begins)
    packed = pack((i.revision, i.key.removeprefix(LOG), i.value) for i in items)
    segment = Segment(begins=begins, ends=ends, since=0.0, until=0.0, packed=packed)
    sealed = SealedMark(revision=ends.revision, entries=ends.entries, digest=ends.digest)
    record(
        fleet,
        "record.seal",
        Write(keys.segment(ends.revision), segment),
        Write(keys.SEALED, sealed),
    )
    return ends


def checkpoint(fleet: interlock.Fleet, begins: RecordMark | None = None) -> RecordMark:
    """A mark of now, rolled on from another."""
    after = 0 if begins is None else begins.revision
    mark = rolled(tuple(item for item in entries(fleet) if item.revision > after), begins)
    record(fleet, "record.checkpoint", Write(keys.CHECKPOINT, mark))
    return mark


def agree(fleet: interlock.Fleet, folder: Path, anchor: Path | None = None) -> Verified:
    """What ``record verify`` says, which is what the checker says of an export."""
    anchors = [] if anchor is None else [str(anchor)]
    found = fleet.record.verify(anchors=anchors)
    path = folder / "record.jsonl"
    fleet.record.export(str(path))
    lines = [] if anchor is None else [json.loads(x) for x in anchor.read_text().splitlines()]
    checked = check_record.ExportCheck(str(path), lines)
    ours = {"integrity": found.integrity, "completeness": found.completeness}
    assert checked.verdicts == ours | {"truncation": found.truncation}, checked.findings()
    places = {(each.verdict, each.revision or each.key) for each in found.findings}
    assert {(each.verdict, each.revision or each.key) for each in checked.findings()} == places, (
        checked.findings(),
        found.findings,
    )
    return found


def checker(*words: str | Path) -> tuple[int, str]:
    """The checker as an auditor runs it: alone."""
    script = Path(check_record.__file__)
    done = subprocess.run(
        [sys.executable, "-I", "-S", script, *words], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr
