"""What somebody does to the log inside of a real engine shows, and where."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from tests.faces.shell import Shell
from tests.nouns.record.histories import places, words
from tests.nouns.record.records import agree, busy, checkpoint
from tests.nouns.record.records import seal as seal_some
from tests.stores.tampering import Row, hand, rewritten, rows

import interlock
from interlock.core import codec, keys
from interlock.core.entry import Entry
from interlock.errors import StoreDamaged
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
    fleet: interlock.Fleet, url: str, tmp_path: Path
) -> None:
    log = rows(fleet.store)
    hand(fleet.store).save(log[:-3])
    with interlock.connect(url) as again:  # on SQLite who has it open takes it for a restored copy
        found = agree(again, tmp_path)
        assert words(found) == ("ok", "bad", "unproven")
        assert {each.key for each in found.findings} <= {"locks/kept0", "locks/kept1"}
        found = agree(again, tmp_path, tmp_path / "anchors")
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
    assert found.completeness == "bad", "Redis itself forgets nothing that is so young"
    runner = fleet.context.runner
    runner.capabilities = msgspec.structs.replace(runner.capabilities, trims_after=0)
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


# ---- deletions -----------------------------------------------------------------------------------

ONE_SHOT = """
lock acquire deploy --agent ada --ttl 60s
lock release deploy --agent bob --token 1
sem acquire builds --capacity 2 --agent ada --ttl 60s
sem release builds --agent cleo --token 1
sem resize builds 3 --agent ada
task add t1 --agent ada
task add t2 --agent ada
task claim t1 --agent ada
task done t1 --agent bob --token 1
task fail t2 --agent cleo --token 1
alert build {} --agent ada
inbox --agent bob
share bob finding 1 --agent ada
lock beat deploy --agent dora --token 1
sem beat builds --agent dora --token 1
lock release deploy --agent ada --token 1
"""


def mixed(url: str, folder: Path) -> None:
    """A record of commands, each with a process of its own, and of a client between them."""
    shell = Shell(folder, INTERLOCK_STORE=url)
    for line in ONE_SHOT.strip().splitlines():
        done = shell.run(*line.split())
        assert done.status in (0, 1), done
    with interlock.connect(url, agent="eve") as fleet:
        busy(fleet, 1)
        fleet.locks.release("kept0", token=1)
        fleet.tasks.publish("t3")


@pytest.mark.parametrize("url", ["sqlite", "redis"], indirect=True)
def test_no_single_entry_can_be_deleted_unnoticed(url: str, tmp_path: Path) -> None:
    with interlock.connect(url) as fleet:
        mixed(url, tmp_path)
        log, writer = rows(fleet.store), hand(fleet.store)
        assert sum(b'"not_owner"' in row.value or b'"fenced"' in row.value for row in log) >= 4
        assert fleet.record.verify().exit_status == 0
        unnoticed = []
        for row in log:
            writer.save([each for each in log if each is not row])
            if not fleet.record.verify().exit_status:
                unnoticed.append(row.value)
        assert not unnoticed


@every
def test_a_refusal_that_changes_nothing_else_cannot_be_deleted_unnoticed(
    url: str, tmp_path: Path
) -> None:
    with interlock.connect(url, agent="ada") as ada:
        ada.locks.acquire("deploy", ttl=900)
        with interlock.connect(url, "bob", join=False) as bob:
            assert bob.locks.release("deploy", token=1).exit_status == 1
        log = rows(ada.store)
        assert b'"lock.release"' in log[-1].value
        assert agree(ada, tmp_path).exit_status == 0
        hand(ada.store).save(log[:-1])
        assert agree(ada, tmp_path).completeness == "bad"


# ---- a gap that no engine makes ------------------------------------------------------------------


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_an_anchor_cannot_be_argued_away_by_a_gap(fleet: interlock.Fleet, tmp_path: Path) -> None:
    """The first entry goes, the store says that it trimmed it, and the others are forged."""
    anchors = tmp_path / "anchors"
    forged = rewritten(rows(fleet.store)[1:])
    hand(fleet.store).save(forged)
    assert isinstance(fleet.store, SQLiteStore)
    with apsw.Connection(fleet.store.path) as db:
        db.execute("UPDATE meta SET value=1 WHERE name='trimmed'")
        for key, entry, hash_ in db.execute("SELECT key, entry, hash FROM item").fetchall():
            row = next((each for each in forged if each.id == entry), None)
            if row is not None and row.hash != hash_:
                db.execute("UPDATE item SET hash=? WHERE key=?", (row.hash, key))
    found = agree(fleet, tmp_path, anchors)
    assert (found.exit_status, found.completeness, found.truncation) == (1, "bad", "bad")
    assert found.findings[0].says.startswith("entries up to revision 1 were removed")
    with pytest.raises(StoreDamaged):
        fleet.record.anchor(str(anchors))
    with pytest.raises(StoreDamaged):
        fleet.record.anchor(str(tmp_path / "new"))


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_an_anchor_cannot_be_argued_away_by_a_new_beginning(
    fleet: interlock.Fleet, tmp_path: Path
) -> None:
    """The store says that sealing began again behind a gap."""
    mark = seal_some(fleet, 3)
    assert isinstance(fleet.store, SQLiteStore)
    fleet.store.trim(mark.revision)
    with apsw.Connection(fleet.store.path) as db:
        db.execute("DELETE FROM item WHERE key LIKE 'segments/%'")
        found: Any = db.execute("SELECT value FROM item WHERE key=?", (keys.SEALED,)).fetchall()
        sealed = msgspec.json.decode(bytes(found[0][0])) | {"dropped": {"revision": mark.revision}}
        put = (codec.encode(sealed), keys.SEALED)
        db.execute("UPDATE item SET value=? WHERE key=?", put)
    judged = agree(fleet, tmp_path, tmp_path / "anchors")
    assert (judged.completeness, judged.truncation) == ("bad", "bad")


# ---- segments ------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_flipped_bit_in_a_segment_is_named_first_and_alone(url: str, tmp_path: Path) -> None:
    with interlock.connect(url, agent="ada") as fleet:
        mark = None
        for _ in range(3):
            busy(fleet, 4)
            mark = seal_some(fleet, 10, mark)
            fleet.store.trim(mark.revision)
        assert agree(fleet, tmp_path).exit_status == 0
        assert isinstance(fleet.store, SQLiteStore)
        db = apsw.Connection(fleet.store.path)
        find = "SELECT key, value FROM item WHERE key LIKE 'segments/%' ORDER BY key"
        segments: Any = db.execute(find).fetchall()
        key, value = segments[1]
        head = value.index(b'"packed"')
        for place in (*range(0, head, 3), *range(head, len(value), 61)):
            flipped = bytearray(value)
            flipped[place] ^= 1 << place % 8
            db.execute("UPDATE item SET value=? WHERE key=?", (bytes(flipped), key))
            judged = fleet.record.verify()
            assert [(f.verdict, f.key) for f in judged.findings] == [("integrity", key)], place
        assert agree(fleet, tmp_path).integrity == "bad"
        db.close()
