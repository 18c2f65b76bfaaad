"""Damage is reported in one line: no traceback, and no session is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import interlock
from interlock import aio
from interlock.core import codec
from interlock.errors import StoreDamaged
from interlock.nouns.record.seal_rules import LIMITS, SealLimits
from interlock.nouns.record.seal_service import Sealing
from interlock.runtime.client_housekeeping import BETWEEN, ClientHousekeeping
from interlock.runtime.identity import Actor
from interlock.steps import Op
from interlock.store import Put, Txn
from interlock.testing.testbed import Testbed

NO_UTF8 = b'{"id":"\xff"}'
DEEP = b'{"x":' + b"[" * 100_000
SMALL = SealLimits(hot_entries=2, newest=1, age=-3600.0, pressed=-3600.0)


@pytest.fixture
def fleet(tmp_path: Path, lively: None) -> Iterator[interlock.Fleet]:
    with interlock.connect(str(tmp_path / "store.db"), agent="ada", ttl=10.0) as fleet:
        for _ in range(5):
            with fleet.lock("merge"):
                pass
        yield fleet


def spoil(fleet: interlock.Fleet, value: bytes | str, revision: int = 3) -> None:
    """Change an entry in the file, as somebody with an editor would."""
    file = apsw.Connection(str(fleet.store.info()["path"]))
    file.execute("UPDATE log SET value = ? WHERE revision = ?", (value, revision))
    file.close()


@pytest.mark.parametrize(
    "value", [NO_UTF8, DEEP, b"", b"[]"], ids=["no UTF-8", "deep", "empty", "a list"]
)
def test_an_entry_that_cannot_be_read_is_told_in_one_line(
    fleet: interlock.Fleet, value: bytes
) -> None:
    spoil(fleet, value)
    for ask in (fleet.record.log, lambda: fleet.record.explain("lock/merge")):
        with pytest.raises(StoreDamaged, match="is not an entry"):
            ask()
    assert fleet.record.verify().integrity == "bad"


def _idle(*_: object) -> Op[None]:
    """Housekeeping of a client that does nothing: it might seal what a test changes or counts."""
    yield from ()


@pytest.mark.parametrize("value", [NO_UTF8, DEEP], ids=["no UTF-8", "deep"])
def test_maintain_says_which_entry_stops_it(
    fleet: interlock.Fleet, value: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClientHousekeeping, "run", _idle)
    monkeypatch.setitem(LIMITS, "sqlite", SMALL)
    spoil(fleet, value)
    assert "the record is damaged at revision 3" in str(fleet.maintain().finding)


def test_an_entry_that_was_turned_into_text_is_read_and_sealed_as_its_bytes(
    fleet: interlock.Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClientHousekeeping, "run", _idle)
    monkeypatch.setitem(LIMITS, "sqlite", SMALL)
    before = fleet.record.log()
    file = apsw.Connection(str(fleet.store.info()["path"]))
    file.execute("UPDATE log SET value = CAST(value AS TEXT) WHERE revision = 3")
    file.close()
    assert fleet.record.log() == before
    assert fleet.maintain().sealed
    assert fleet.record.verify().exit_status == 0


def test_an_entry_that_would_not_come_out_of_a_segment_is_not_sealed() -> None:
    stage = Testbed()
    ada = stage.client("ada", ttl=None)
    raw = b'{"id":"txn_x",\n"writer":"w"}'
    stage.store.commit(Txn(id="txn_x", entry=raw, hash=codec.digest(raw)))
    for _ in range(3):
        ada.run(ada.locks.acquire("merge", ttl=60))
        ada.run(ada.locks.release("merge"))
    sealing = Sealing(ada.runner)
    sealing.limits = SMALL
    assert "at revision 1" in ada.run(sealing.run_pass(Actor())).finding


def test_a_lock_that_cannot_be_read_is_told_in_one_line() -> None:
    stage = Testbed()
    ada = stage.client("ada")
    put = Put("locks/merge", b'{"grants":[{"id":"\xff"}]}')
    stage.store.commit(Txn(id="txn_x", entry=b'{"id":"txn_x"}', hash="h", puts=(put,)))
    with pytest.raises(StoreDamaged, match="locks/merge does not read"):
        ada.run(ada.locks.acquire("merge"))


def _broken(*_: object) -> object:
    raise ZeroDivisionError


@pytest.mark.parametrize("value", [NO_UTF8, ""])
def test_a_session_outlives_a_record_that_cannot_be_tended(
    fleet: interlock.Fleet, value: bytes | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LIMITS, "sqlite", SMALL)
    if value:
        spoil(fleet, value)
    else:
        monkeypatch.setattr(Sealing, "run_pass", _broken)
    context = fleet.context
    context.housekeeping._many()  # a thousand commits are many
    assert context.session_lease is not None
    for _ in range(2):  # the first one comes before it tends
        until = context.session_lease.ends
        while context.session_lease.ends <= until:
            assert context.session_lease.alive()
    assert fleet.agents.list()[0].state == "alive"


def test_a_task_goes_on_beating_whatever_a_beat_meets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lively: None
) -> None:
    monkeypatch.setattr(ClientHousekeeping, "run", _broken)

    async def work() -> None:
        async with await aio.connect(str(tmp_path / "store.db"), agent="ada", ttl=10.0) as fleet:
            lease = fleet.context.session_lease
            assert lease is not None
            fleet.context.housekeeping._many()
            for _ in range(2):  # the first one comes before it tends
                until = lease.ends
                while lease.ends <= until:
                    assert lease.alive()
                    await asyncio.sleep(0)

    asyncio.run(work())


def test_what_nobody_foresaw_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sealing, "run_pass", _broken)
    stage = Testbed()
    ada = stage.client("ada", ttl=None)
    housekeeping = ClientHousekeeping(ada.runner, stage.store)
    for _ in range(3):
        ada.run(housekeeping.run(Actor()))
        stage.clock.advance(BETWEEN)
    assert [r.getMessage() for r in caplog.records] == [
        "housekeeping of the record failed (ZeroDivisionError()); run 'interlock record verify'"
    ]
