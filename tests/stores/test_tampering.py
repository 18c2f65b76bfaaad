"""What somebody does to the log inside of a real engine shows, and where."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import msgspec
import pytest
from tests.core.histories import places, words
from tests.services.records import agree, busy, checkpoint
from tests.stores.tampering import Row, hand, rows

import interlock
from interlock.core import codec
from interlock.core.log import Entry
from interlock.stores.sqlite import SQLiteStore

CAN_FORGE_REVISIONS = pytest.mark.parametrize("url", ["sqlite", "redis"], indirect=True)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def fleet(url: str, tmp_path: Path) -> Iterator[interlock.Fleet]:
    """A record with an anchor behind its end."""
    with interlock.connect(url, agent="ada") as fleet:
        busy(fleet)
        fleet.record.anchor(str(tmp_path / "anchors"))
        yield fleet


every = pytest.mark.parametrize("url", ["sqlite", "redis", "etcd"], indirect=True)


@every
def test_an_edit_is_found_where_it_was_made(fleet: interlock.Fleet, tmp_path: Path) -> None:
    log = rows(fleet.store)
    log[3].edit()
    hand(fleet.store).save(log)
    found = agree(fleet, tmp_path)
    assert words(found)[:2] == ("bad", "ok")
    assert places(found.findings) == [("integrity", log[3].revision)]
    assert agree(fleet, tmp_path, tmp_path / "anchors").truncation == "bad"


@every
def test_a_deletion_is_missed_by_the_next_of_its_chain(
    fleet: interlock.Fleet, tmp_path: Path
) -> None:
    log = rows(fleet.store)
    hand(fleet.store).save([*log[:4], *log[5:]])
    found = agree(fleet, tmp_path)
    assert found.completeness == "bad"
    assert ("completeness", log[5].revision) in places(found.findings)
    assert agree(fleet, tmp_path, tmp_path / "anchors").truncation == "bad"


@every
def test_a_cut_end_shows_in_what_it_had_written_and_beside_an_anchor(
    fleet: interlock.Fleet, tmp_path: Path
) -> None:
    log = rows(fleet.store)
    hand(fleet.store).save(log[:-3])
    found = agree(fleet, tmp_path)
    assert words(found) == ("ok", "bad", "unproven")
    assert {each.key for each in found.findings} <= {"locks/kept0", "locks/kept1"}
    found = agree(fleet, tmp_path, tmp_path / "anchors")
    assert ("truncation", log[-1].revision) in places(found.findings)


@every
def test_a_payload_that_no_entry_wrote_is_found(fleet: interlock.Fleet, tmp_path: Path) -> None:
    item = fleet.store.read("locks/kept0")["locks/kept0"]
    assert item is not None
    changed = msgspec.structs.replace(item, value=item.value.replace(b"ada", b"eve"))
    hand(fleet.store).put(changed)
    found = agree(fleet, tmp_path)
    assert places(found.findings) == [("integrity", "locks/kept0")]


@CAN_FORGE_REVISIONS
def test_entries_that_changed_places_are_found(fleet: interlock.Fleet, tmp_path: Path) -> None:
    log = rows(fleet.store)
    log[2].revision, log[5].revision = log[5].revision, log[2].revision
    hand(fleet.store).save(sorted(log, key=lambda row: row.revision))
    found = agree(fleet, tmp_path)
    assert found.integrity == "bad"
    assert {each.revision for each in found.findings if each.verdict == "integrity"} & {
        log[2].revision,
        log[5].revision,
    }


def forged(revision: int) -> Row:
    entry = codec.encode(Entry(id="txn_forged", writer="mallory", verb="lock.acquire"))
    return Row(revision, "txn_forged", entry, codec.digest(entry))


@CAN_FORGE_REVISIONS
def test_an_entry_that_nobody_links_is_noticed_by_the_next_mark(
    fleet: interlock.Fleet, tmp_path: Path
) -> None:
    fleet.agents.beat()  # on a local engine: a revision that no entry has
    busy(fleet, 1)
    mark = checkpoint(fleet)
    log = rows(fleet.store)
    place = next(n for n in range(1, len(log)) if free(log, n))
    hand(fleet.store).save([*log[:place], forged(log[place].revision - 1), *log[place:]])
    found = agree(fleet, tmp_path)
    assert places(found.findings) == [("integrity", mark.revision)]
    assert "counts" in found.findings[0].says


def free(log: list[Row], place: int) -> bool:
    """Whether there is room for a forgery before this entry."""
    return log[place].revision - log[place - 1].revision > 1


@pytest.mark.parametrize("url", ["etcd"], indirect=True)
def test_on_etcd_a_forgery_can_only_be_the_last(fleet: interlock.Fleet, tmp_path: Path) -> None:
    log = rows(fleet.store)
    hand(fleet.store).save([*log[:2], forged(log[1].revision), *log[2:]])
    assert rows(fleet.store)[-1].id == "txn_forged"
    assert agree(fleet, tmp_path).exit_status == 0, "nobody links it, and no mark is behind it"


@pytest.mark.parametrize("url", ["redis"], indirect=True)
def test_what_redis_trimmed_is_unproven_and_the_rest_is_judged(
    fleet: interlock.Fleet, tmp_path: Path
) -> None:
    log = rows(fleet.store)
    writer = hand(fleet.store)
    writer.save(log[3:])
    assert agree(fleet, tmp_path).completeness == "bad", "nobody said that it was trimmed"
    writer._ask("HSET", fleet.store.keys["meta"], "trimmed", log[2].revision)  # type: ignore[attr-defined]
    found = agree(fleet, tmp_path)
    assert (words(found), found.since) == (("ok", "unproven", "unproven"), log[3].revision)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_what_was_edited_by_hand_in_a_shell_is_found(
    fleet: interlock.Fleet, tmp_path: Path
) -> None:
    assert isinstance(fleet.store, SQLiteStore)
    db = apsw.Connection(fleet.store.path)
    db.execute("UPDATE log SET value=replace(value, '\"ada\"', '\"eve\"') WHERE revision=4")
    db.execute("UPDATE item SET value=replace(value, '\"ada\"', '\"eve\"') WHERE key='locks/kept1'")
    db.close()
    found = agree(fleet, tmp_path)
    assert places(found.findings) == [("integrity", 4), ("integrity", "locks/kept1")]
