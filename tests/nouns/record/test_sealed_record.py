"""Sealing, retention and the proof of the record, together, on every engine."""

from __future__ import annotations

import json
from pathlib import Path

from msgspec.structs import replace
from tests.nouns.record.histories import words
from tests.nouns.record.records import agree
from tests.nouns.record.sealed import segments

import interlock
from interlock.core.segment import Segment
from interlock.nouns.record.noun import Verified
from interlock.nouns.record.seal_rules import SealLimits
from interlock.nouns.record.seal_service import Sealing
from interlock.runtime.identity import Actor
from interlock.steps import drive

SMALL = SealLimits(hot_entries=40, newest=10, age=-1.0, pressed=-1.0, between=30)
"""Redis keeps what is younger than three minutes, sealed or not: what stands twice counts once."""


def busy(fleet: interlock.Fleet, rounds: int) -> None:
    for number in range(rounds):
        fleet.locks.acquire(f"lock{number % 3}")
        fleet.semaphores.acquire("slots", capacity=2)
        fleet.semaphores.release("slots")
        fleet.locks.release(f"lock{number % 3}")


def seal(fleet: interlock.Fleet, limits: SealLimits = SMALL) -> None:
    sealing = Sealing(fleet.context.runner)
    sealing.limits = limits
    tidied = drive(sealing.run_pass(Actor()), fleet.store)
    assert not tidied.finding


def judged(fleet: interlock.Fleet, folder: Path) -> Verified:
    return agree(fleet, folder, folder / "anchors")


def test_a_record_stays_provable_while_it_is_sealed_and_dropped(url: str, tmp_path: Path) -> None:
    with interlock.connect(url, agent="ada") as fleet:
        busy(fleet, 40)
        fleet.record.anchor(str(tmp_path / "anchors"))
        seal(fleet)
        first = judged(fleet, tmp_path)
        assert words(first) == ("ok", "ok", "ok"), first.findings
        assert first.sealed > 0
        assert first.entries >= 160
        busy(fleet, 40)
        seal(fleet)
        fleet.record.anchor(str(tmp_path / "anchors"))
        assert words(judged(fleet, tmp_path)) == ("ok", "ok", "ok")
        smallest = replace(SMALL, sealed=1)
        seal(fleet, smallest)
        last = judged(fleet, tmp_path)
        assert words(last) == ("ok", "ok", "ok"), last.findings
        assert last.dropped > 0
        fleet.maintain()
        assert words(judged(fleet, tmp_path)) == ("ok", "ok", "ok")


def test_a_log_reads_the_same_before_and_after_it_is_sealed(url: str) -> None:
    with interlock.connect(url, agent="ada") as fleet:
        busy(fleet, 30)
        before = fleet.record.log(limit=1000, last=False)
        story = fleet.record.explain("lock/lock0", limit=1000)
        seal(fleet)
        assert segments(fleet.store)
        after = fleet.record.log(limit=1000, last=False)
        assert after[: len(before)] == before
        assert [line.verb for line in after[len(before) :]][:1] == ["record.seal"]
        assert fleet.record.explain("lock/lock0", limit=1000) == story
        assert fleet.record.log(verb="sem.acquire", limit=3) == tuple(
            [line for line in before if line.verb == "sem.acquire"][-3:]
        )


def test_a_segment_that_was_changed_is_named(tmp_path: Path) -> None:
    import apsw

    path = str(tmp_path / "store.db")
    with interlock.connect(path, agent="ada") as fleet:
        busy(fleet, 30)
        seal(fleet)
        part: Segment = segments(fleet.store)[0]
        key = f"segments/{part.ends.revision:016d}"
        db = apsw.Connection(path)
        (value,) = db.execute("SELECT value FROM item WHERE key=?", (key,)).fetchone()  # type: ignore[misc]
        forged = json.loads(value) | {"packed": part.packed[:40] + "AAAA" + part.packed[44:]}
        db.execute("UPDATE item SET value=? WHERE key=?", (json.dumps(forged).encode(), key))
        db.close()
        found = fleet.record.verify()
        assert found.integrity == "bad"
        assert any(finding.key == key for finding in found.findings)
