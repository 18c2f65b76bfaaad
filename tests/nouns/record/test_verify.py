from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.hypothesis_settings import budget
from tests.nouns.record.histories import History, words
from tests.nouns.record.records import (
    agree,
    busy,
    checker,
    checkpoint,
    entries,
    record,
    rolled,
    seal,
)
from tests.nouns.record.test_judge import TAMPERING, random_history, tamper, under_way

import interlock
from interlock import aio, check_record
from interlock.core import codec, keys
from interlock.core.decision import Write
from interlock.core.segment import SealedMark
from interlock.errors import BadInput, StoreDamaged, StoreUnsuitable
from interlock.nouns.record import reader
from interlock.nouns.record.reader import OvertakenByRetention
from interlock.store import Item, Put, Txn, void
from interlock.stores.memory import MemoryStore, _Row
from interlock.stores.sqlite import SQLiteStore
from interlock.testing.testbed import Testbed

OK = ("ok", "ok", "unproven")


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[interlock.Fleet]:
    with interlock.connect(str(tmp_path / "store.db"), agent="ada") as fleet:
        busy(fleet)
        yield fleet


def trim(fleet: interlock.Fleet, revision: int) -> None:
    assert isinstance(fleet.store, SQLiteStore)
    fleet.store.trim(revision)


def test_every_store_keeps_a_sound_record(url: str, tmp_path: Path) -> None:
    with interlock.connect(url, agent="ada") as ada, interlock.connect(url, agent="bob") as bob:
        for each in (ada, bob):
            busy(each)
        ada.store.commit(void("txn_never"))
        assert words(agree(ada, tmp_path)) == OK
        ada.record.anchor(str(tmp_path / "anchors"))
        busy(bob)
        found = agree(ada, tmp_path, tmp_path / "anchors")
        assert words(found) == ("ok", "ok", "ok")
        assert found.begins < found.anchored < found.ends


def test_many_commits_under_way_at_once_make_a_sound_record(url: str) -> None:
    async def work() -> None:
        async with (
            await aio.connect(url, agent="ada") as ada,
            await aio.connect(url, agent="bob") as bob,
        ):
            locks = [f"lock{n % 10}" for n in range(60)]
            for _ in range(2):
                await asyncio.gather(*(f.locks.acquire(n) for n in locks for f in (ada, bob)))
                await asyncio.gather(*(f.locks.release(n) for n in locks for f in (ada, bob)))
            found = await ada.record.verify()
            assert words(found) == OK, found.findings

    asyncio.run(work())


def test_an_empty_store_has_an_empty_record(tmp_path: Path) -> None:
    with interlock.connect(str(tmp_path / "store.db")) as fleet:
        found = agree(fleet, tmp_path)
        assert (words(found), found.entries) == (OK, 0)


@pytest.mark.parametrize("engine", ["memory", "sqlite"])
def test_on_a_local_engine_an_entry_stands_right_above_what_it_was_decided_on(
    engine: str, tmp_path: Path
) -> None:
    store = MemoryStore() if engine == "memory" else SQLiteStore(str(tmp_path / "store.db"))

    async def work() -> None:
        async with await aio.connect(agent="ada", store=store) as fleet:
            await asyncio.gather(*(fleet.locks.acquire(f"lock{n}") for n in range(40)))
            await fleet.store.commit_async(void("txn_never"))
            await asyncio.gather(*(fleet.agents.beat() for _ in range(3)))  # quiet ones between
            await asyncio.gather(*(fleet.locks.release(f"lock{n}") for n in range(40)))
            found = await fleet.record.verify()
            assert (words(found), found.entries) == (OK, 82)
            lines = [line for line in await fleet.record.log(limit=100) if line.on]
            assert all(line.on + 1 == line.revision for line in lines)
            assert len(lines) == 80

    asyncio.run(work())


def test_clients_across_a_network_are_judged_by_what_they_can_know() -> None:
    stage = Testbed()
    ada, bob = stage.client("ada"), stage.remote("bob")
    ada.run(ada.locks.acquire("merge"))
    wait = bob.start(bob.locks.acquire("merge", wait=60))
    ada.run(ada.locks.release("merge"))
    wait.run().result()
    assert words(bob.run(bob.record.verify())) == OK


def test_sealed_entries_are_read_from_their_segments(
    fleet: interlock.Fleet, tmp_path: Path
) -> None:
    whole = fleet.record.verify()
    first = seal(fleet, 4)
    found = agree(fleet, tmp_path)
    assert (words(found), found.sealed) == (OK, 4), "not trimmed yet: what stands twice counts once"
    trim(fleet, first.revision)
    second = seal(fleet, 3, first)
    trim(fleet, second.revision)
    found = agree(fleet, tmp_path)
    assert (words(found), found.sealed, found.entries) == (OK, 7, whole.entries + 2)


def test_what_retention_dropped_is_proven_by_its_digest(
    fleet: interlock.Fleet, tmp_path: Path
) -> None:
    fleet.record.anchor(str(tmp_path / "anchors"))
    first = seal(fleet, 4)
    second = seal(fleet, 3, first)
    trim(fleet, second.revision)
    sealed = SealedMark(**msgspec.structs.asdict(second), dropped=first)
    gone = (keys.segment(first.revision),)
    record(fleet, "record.drop", Write(keys.SEALED, sealed), deletes=gone)
    found = agree(fleet, tmp_path, tmp_path / "anchors")
    assert words(found) == ("ok", "ok", "ok")
    assert (found.dropped, found.sealed) == (4, 3)


def test_a_segment_that_cannot_be_read_is_found(fleet: interlock.Fleet, tmp_path: Path) -> None:
    first = seal(fleet, 4)
    second = seal(fleet, 3, first)
    trim(fleet, second.revision)
    swap(fleet, '"packed":"', '"packed":"A')
    assert agree(fleet, tmp_path).integrity == "bad"


@pytest.mark.parametrize("name", ["0" * 17, "x", "9" * 17])
def test_what_stands_among_the_segments_and_is_none_is_found(
    fleet: interlock.Fleet, tmp_path: Path, name: str
) -> None:
    seal(fleet, 4)
    fleet.store.commit(Txn(id="quiet", quiet=True, puts=(Put(keys.SEGMENTS + name, b"x"),)))
    found = agree(fleet, tmp_path)
    assert [(f.verdict, f.key) for f in found.findings] == [("completeness", keys.SEGMENTS + name)]
    assert found.entries == len(entries(fleet))


def test_a_segment_that_is_gone_is_missed(fleet: interlock.Fleet, tmp_path: Path) -> None:
    first = seal(fleet, 4)
    second = seal(fleet, 3, first)
    trim(fleet, second.revision)
    spoil(fleet, "DELETE FROM item WHERE key=?", keys.segment(first.revision))
    found = agree(fleet, tmp_path)
    assert (found.completeness, found.findings[0].revision) == ("bad", first.revision)


def test_a_changed_segment_is_not_what_its_entry_put(
    fleet: interlock.Fleet, tmp_path: Path
) -> None:
    mark = seal(fleet, 4)
    trim(fleet, mark.revision)
    swap(fleet, '"until":0.0', '"until":9.0')
    found = agree(fleet, tmp_path)
    assert [each.key for each in found.findings] == [keys.segment(mark.revision)]


def test_an_entry_of_another_shape_cannot_be_read(fleet: interlock.Fleet, tmp_path: Path) -> None:
    raw = b'{"id":"x","after":{}}'
    spoil(fleet, "UPDATE log SET value=?, hash=? WHERE revision=4", raw, codec.digest(raw))
    found = agree(fleet, tmp_path)
    assert found.integrity == "bad"
    assert found.findings[0].says == "the entry cannot be read as an entry"


def forgetful(fleet: interlock.Fleet) -> None:
    """Let its engine be one that forgets unsealed entries by itself, as Redis does."""
    runner = fleet.context.runner
    runner.capabilities = replace(runner.capabilities, consecutive=False, max_log=1)


def test_a_log_that_was_trimmed_and_never_sealed_is_unproven_before(
    fleet: interlock.Fleet, tmp_path: Path
) -> None:
    forgetful(fleet)
    trim(fleet, entries(fleet)[3].revision)
    found = agree(fleet, tmp_path)
    assert words(found) == ("ok", "unproven", "unproven")
    assert found.since == entries(fleet)[0].revision


def test_what_an_engine_forgot_behind_the_segments_is_unproven_and_no_mark_is_blamed(
    fleet: interlock.Fleet, tmp_path: Path
) -> None:
    forgetful(fleet)
    sealed = seal(fleet, 3)
    checkpoint(fleet, sealed)
    busy(fleet, 1)
    trim(fleet, sealed.revision + 2)
    found = agree(fleet, tmp_path)
    assert words(found) == ("ok", "unproven", "unproven")
    assert (found.sealed, found.since) == (3, sealed.revision + 3)
    assert fleet.record.anchor(str(tmp_path / "anchors")).revision == found.ends


def test_an_anchored_export_cannot_be_forged_in_front_of_a_gap(
    fleet: interlock.Fleet, tmp_path: Path
) -> None:
    anchor, path = tmp_path / "anchors", tmp_path / "record.jsonl"
    fleet.record.anchor(str(anchor))
    fleet.record.export(str(path))
    lines = path.read_text().splitlines(keepends=True)
    fifth = entries(fleet)[4].revision
    mark = msgspec.structs.asdict(rolled(entries(fleet)[:5]))
    place = next(n for n, line in enumerate(lines) if f'"revision":{fifth},"id"' in line)
    gap = json.dumps({"forgotten": fifth}) + "\n"
    met = json.dumps({"mark": mark, "name": keys.CHECKPOINT}) + "\n"
    forged = [line.replace("ada", "eve") if '"id"' in line else line for line in lines[:place]]
    path.write_text("".join((*forged, gap, lines[place], met, *lines[place + 1 :])))
    said = checker(path, "--anchor", anchor)[1]
    assert "truncation    unproven" in said


def test_a_reading_that_retention_overtakes_begins_again(
    fleet: interlock.Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = seal(fleet, 3)
    second = seal(fleet, 3, first)
    trim(fleet, second.revision)
    real = reader._read_segment
    dropped: list[int] = []

    def overtaken(item: Item, *rest: Any) -> tuple[int, int]:
        if not dropped:
            dropped.append(first.revision)
            sealed = SealedMark(**msgspec.structs.asdict(second), dropped=first)
            gone = (keys.segment(first.revision),)
            record(fleet, "record.drop", Write(keys.SEALED, sealed), deletes=gone)
            raise OvertakenByRetention("try again")
        return real(item, *rest)

    monkeypatch.setattr(reader, "_read_segment", overtaken)
    found = fleet.record.verify()
    assert (words(found), found.dropped) == (OK, 3)


def test_an_event_loop_verifies_exports_and_anchors(tmp_path: Path) -> None:
    async def work() -> None:
        async with await aio.connect(str(tmp_path / "store.db"), agent="ada") as fleet:
            place, path = str(tmp_path / "anchors"), str(tmp_path / "record.jsonl")
            anchored = await fleet.record.anchor(place)
            exported = await fleet.record.export(path)
            assert anchored.digest == exported.digest
            found = await fleet.record.verify(anchors=[place], against=path)
            assert words(found) == ("ok", "ok", "ok")

    asyncio.run(work())


def spoil(fleet: interlock.Fleet, sql: str, *values: str | bytes | int) -> None:
    """Change the file behind the store's back."""
    assert isinstance(fleet.store, SQLiteStore)
    db = apsw.Connection(fleet.store.path)
    db.execute(sql, values)
    db.close()


def swap(fleet: interlock.Fleet, old: str, new: str) -> None:
    """Change a piece of every item that has it."""
    sql = "UPDATE item SET value=CAST(replace(CAST(value AS TEXT), ?, ?) AS BLOB)"
    spoil(fleet, sql, old, new)


def test_what_others_write_meanwhile_is_no_finding(
    fleet: interlock.Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PAGE", 5)
    assert isinstance(fleet.store, SQLiteStore)
    stop = threading.Event()

    def write() -> None:
        with interlock.connect(str(tmp_path / "store.db"), agent="bob") as bob:
            while not stop.is_set():
                busy(bob, 1)
                bob.locks.release("kept0")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(10):
            assert words(fleet.record.verify()) == OK
    finally:
        stop.set()
        writer.join()
    assert words(agree(fleet, tmp_path)) == OK


def test_an_export_is_sound_although_the_log_is_sealed_while_it_is_read(
    fleet: interlock.Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment that comes next may begin before the last entry that was read from the log."""
    monkeypatch.setattr(reader, "PAGE", 5)
    busy(fleet, 10)
    pages: list[bytes] = []

    def write(lines: bytes) -> None:
        pages.append(lines)
        if sum(b'"entry"' in page for page in pages) == 1:
            seal(fleet, 5, seal(fleet, 3))

    fleet.record.export(write)
    path = tmp_path / "record.jsonl"
    path.write_bytes(b"".join(pages))
    checked = check_record.ExportCheck(str(path))
    assert list(checked.verdicts.values()) == list(OK), checked.findings()


# ---- anchors ------------------------------------------------------------------------------------


def test_an_anchor_is_one_line_for_its_owner_alone(fleet: interlock.Fleet, tmp_path: Path) -> None:
    place = tmp_path / "anchors"
    made = fleet.record.anchor(str(place))
    assert fleet.record.anchor(str(place)) == made, "nothing happened since: no second line"
    busy(fleet, 1)
    fleet.record.anchor(str(place))
    first, second = map(json.loads, place.read_text().splitlines())
    assert list(first) == ["anchor", "at", "revision", "entries", "digest"]
    assert first["revision"] == made.revision < second["revision"]
    assert place.stat().st_mode & 0o777 == 0o600


def test_a_line_that_was_cut_while_it_was_written_is_left_out(
    fleet: interlock.Fleet, tmp_path: Path
) -> None:
    place = tmp_path / "anchors"
    fleet.record.anchor(str(place))
    with place.open("a") as file:
        file.write('{"anchor":1,"at"')
    assert fleet.record.verify(anchors=[str(place)]).truncation == "ok"


def test_an_anchor_is_added_in_place_of_a_line_that_was_cut(
    fleet: interlock.Fleet, tmp_path: Path
) -> None:
    place, path = tmp_path / "anchors", tmp_path / "record.jsonl"
    fleet.record.anchor(str(place))
    whole = place.read_bytes()
    for tail in (b'{"anchor":1,"at"', b'{"an', whole[:-1]):
        place.write_bytes(whole + tail)
        fleet.record.export(str(path))
        assert checker(path, "--anchor", place)[0] == 0
        busy(fleet, 1)
        fleet.record.anchor(str(place))
        lines = place.read_bytes().splitlines(keepends=True)
        assert lines[0] == whole
        assert all(json.loads(line)["anchor"] == 1 for line in lines)
        assert fleet.record.verify(anchors=[str(place)]).truncation == "ok"


def test_a_file_that_is_none_of_anchors_is_left_as_it_is(
    fleet: interlock.Fleet, tmp_path: Path
) -> None:
    place = tmp_path / "notes"
    for text in (b"remember the milk", b"one\ntwo", b"\xff"):
        place.write_bytes(text)
        with pytest.raises(BadInput, match=r"line 1 of .* is not an anchor"):
            fleet.record.anchor(str(place))
        assert place.read_bytes() == text


def test_a_place_without_an_anchor_is_no_proof(fleet: interlock.Fleet, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has no anchor; make one"):
        fleet.record.verify(anchors=[str(tmp_path / "nothing")])
    (tmp_path / "other").write_text("hello\nworld\n")
    with pytest.raises(BadInput, match=r"line 1 of .* is not an anchor"):
        fleet.record.verify(anchors=[str(tmp_path / "other")])
    with pytest.raises(BadInput, match="takes a list"):
        fleet.record.verify(anchors="file")


def test_a_record_that_contradicts_its_checkpoint_is_not_anchored(
    fleet: interlock.Fleet, tmp_path: Path
) -> None:
    checkpoint(fleet)
    spoil(fleet, "DELETE FROM log WHERE revision=3")
    with pytest.raises(StoreDamaged, match="contradicts itself"):
        fleet.record.anchor(str(tmp_path / "anchors"))
    assert not (tmp_path / "anchors").exists()


def test_a_place_of_another_store_or_a_cut_record_is_refused(
    fleet: interlock.Fleet, tmp_path: Path
) -> None:
    place = str(tmp_path / "anchors")
    first = fleet.record.anchor(place)
    busy(fleet, 2)
    fleet.record.anchor(place)
    with (
        interlock.connect(str(tmp_path / "other.db"), agent="ada") as other,
        pytest.raises(StoreDamaged, match="or it is another store"),
    ):
        other.record.anchor(place)
    spoil(fleet, "DELETE FROM log WHERE revision > ?", first.revision)
    with (
        interlock.connect(str(tmp_path / "store.db"), agent="ada") as again,
        pytest.raises(StoreDamaged, match=f"since revision {first.revision}"),
    ):
        again.record.anchor(place)


def test_a_place_whose_anchors_all_speak_of_dropped_entries_takes_no_more(
    fleet: interlock.Fleet, tmp_path: Path
) -> None:
    """Who claims that everything up to the last anchor was dropped cannot go on with the place."""
    place = tmp_path / "anchors"
    fleet.record.anchor(str(place))
    busy(fleet, 1)
    dropped = seal(fleet, len(entries(fleet)) - 1)
    trim(fleet, dropped.revision)
    sealed = SealedMark(**msgspec.structs.asdict(dropped), dropped=dropped)
    gone = (keys.segment(dropped.revision),)
    record(fleet, "record.drop", Write(keys.SEALED, sealed), deletes=gone)
    assert words(agree(fleet, tmp_path, place)) == OK
    with pytest.raises(StoreUnsuitable, match="anchor to a new one"):
        fleet.record.anchor(str(place))
    assert fleet.record.anchor(str(tmp_path / "new")).entries > dropped.entries


def test_anchors_can_be_commits_of_a_git_ref(
    fleet: interlock.Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    monkeypatch.chdir(repository)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    with pytest.raises(BadInput, match="git rev-parse failed"):
        fleet.record.anchor("git:anchors")
    subprocess.run(["git", "init", "-q"], check=True)
    fleet.record.anchor("git:anchors")
    busy(fleet, 1)
    last = fleet.record.anchor("git:anchors")
    found = fleet.record.verify(anchors=["git:anchors"])
    assert (found.truncation, found.anchored) == ("ok", last.revision)
    log = ["git", "log", "--format=%s", "refs/interlock/anchors"]
    said = subprocess.run(log, check=True, capture_output=True, text=True).stdout.splitlines()
    assert said[0] == f"Anchor the record at revision {last.revision}"
    assert len(said) == 2
    assert os.listdir(repository) == [".git"], "the work tree is not touched"


# ---- exports and forks --------------------------------------------------------------------------


def test_an_export_has_no_payloads_and_is_its_owners_alone(
    fleet: interlock.Fleet, tmp_path: Path
) -> None:
    fleet.locks.acquire("secret", ttl=900, metadata={"password": "tiger"})
    path = tmp_path / "record.jsonl"
    made = fleet.record.export(str(path))
    assert "tiger" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert (made.entries, made.ends) == (len(entries(fleet)), entries(fleet)[-1].revision)
    pages: list[bytes] = []
    fleet.record.export(pages.append)
    assert b"".join(pages) == path.read_bytes()
    assert sorted(os.listdir(tmp_path)) == [
        "record.jsonl",
        "store.db",
        "store.db-bells",
        *wal(tmp_path),
    ]


def wal(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.endswith(("-wal", "-shm")))


def test_an_export_takes_the_place_of_an_older_one_and_of_nothing_else(
    fleet: interlock.Fleet, tmp_path: Path
) -> None:
    path, notes = tmp_path / "record.jsonl", tmp_path / "notes"
    fleet.record.export(str(path))
    fleet.record.export(str(path))
    notes.write_text("remember the milk")
    store = tmp_path / "store.db"
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "fifo")
    for name in (notes, store, tmp_path, tmp_path / "nowhere", tmp_path / "fifo"):
        with pytest.raises(BadInput, match="is there already and is no export"):
            fleet.record.export(str(name))
    assert notes.read_text() == "remember the milk"
    assert fleet.record.verify().exit_status == 0
    assert not list(tmp_path.glob("*.part"))


def test_nobody_can_know_where_an_export_is_written_meanwhile(
    fleet: interlock.Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes"
    notes.write_text("remember the milk")
    monkeypatch.setattr(os, "urandom", lambda count: b"0" * count)  # somebody guesses it
    (tmp_path / f"record.jsonl.{'30' * 8}.part").symlink_to(notes)
    with pytest.raises(BadInput, match="File exists"):
        fleet.record.export(str(tmp_path / "record.jsonl"))
    assert notes.read_text() == "remember the milk"


def test_a_part_of_the_record_can_be_checked_alone(fleet: interlock.Fleet, tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    made = fleet.record.export(str(path), after=4)
    assert made.begins == 5
    status, said = checker(path)
    assert (status, said.split()[:6]) == (
        0,
        ["integrity", "ok", "completeness", "ok", "truncation", "unproven"],
    )


def test_the_checker_needs_nothing_but_python(fleet: interlock.Fleet, tmp_path: Path) -> None:
    path, place = tmp_path / "record.jsonl", tmp_path / "anchors"
    fleet.record.anchor(str(place))
    fleet.record.export(str(path))
    assert checker(path, "--anchor", place, "--against", path)[0] == 0
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    assert checker(path) == (
        2,
        f"this cannot be checked: ValueError('{path} was cut before its end')\n",
    )
    path.write_text("".join([*lines[:3], *lines[4:]]))
    status, said = checker(path, "--anchor", place)
    assert status == 1
    assert "completeness  bad" in said
    assert checker(tmp_path / "nothing")[0] == 2


def test_a_copy_that_went_on_is_told_from_the_original(
    fleet: interlock.Fleet, tmp_path: Path
) -> None:
    path, copy = tmp_path / "record.jsonl", tmp_path / "copy.db"
    fleet.record.export(str(path))
    same = fleet.record.verify(against=str(path))
    assert same.against is not None
    assert (same.against.record, same.truncation) == ("same", "ok")
    spoil(fleet, "VACUUM INTO ?", str(copy))
    with interlock.connect(str(copy), agent="eve") as fork:
        at = same.ends
        busy(fork, 1)
        longer = fork.record.verify(against=str(path)).against
        assert longer is not None
        assert (longer.record, longer.common, longer.ours) == ("longer", at, at + 1)
        fork.record.export(str(tmp_path / "fork.jsonl"))
    shorter = fleet.record.verify(against=str(tmp_path / "fork.jsonl"))
    assert shorter.against is not None
    assert (shorter.against.record, shorter.truncation) == ("shorter", "bad")
    busy(fleet, 1)
    parted = fleet.record.verify(against=str(tmp_path / "fork.jsonl"))
    assert parted.against is not None
    assert (parted.against.record, parted.truncation) == ("parted", "bad")
    assert (parted.against.common, parted.against.theirs) == (at, at + 1)
    fleet.record.export(str(path))
    status, said = checker(path, "--against", tmp_path / "fork.jsonl")
    assert status == 1
    assert f"truncation at revision {at + 1}" in said


def test_a_cut_export_is_no_proof(fleet: interlock.Fleet, tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    fleet.record.export(str(path))
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(BadInput, match="was cut before its end"):
        fleet.record.verify(against=str(path))
    path.write_text("{}\n")
    with pytest.raises(BadInput, match=r"line 1 of .* is none of an export"):
        fleet.record.verify(against=str(path))


@pytest.mark.parametrize(
    "line",
    [
        '{"revision":"x","id":"y","entry":"z"}',
        '{"revision":1,"id":"y","base64":5}',
        '{"revision":1,"id":"y","entry":"\\ud800"}',
        "[1]",
        '{"id":' + "[" * 100_000,
    ],
)
def test_a_file_that_is_no_export_is_told_in_one_line(
    fleet: interlock.Fleet, tmp_path: Path, line: str
) -> None:
    path = tmp_path / "record.jsonl"
    head = '{"interlock":1,"begins":{},"strict":true,"whole":true}'
    path.write_text(f'{head}\n{line}\n{{"ends":{{}},"items":0,"changed":[]}}\n')
    with pytest.raises(BadInput, match=r"line 2 of .* is none of an export"):
        fleet.record.verify(against=str(path))
    assert checker(path)[0] == 2


def test_an_entry_that_is_nested_too_deep_is_one_that_cannot_be_read(tmp_path: Path) -> None:
    raw = '{"x":' + "[" * 100_000
    line = json.dumps({"revision": 1, "id": "y", "hash": codec.digest(raw.encode()), "entry": raw})
    path = tmp_path / "record.jsonl"
    head = '{"interlock":1,"begins":{},"strict":true,"whole":true}'
    path.write_text(f'{head}\n{line}\n{{"ends":{{"revision":1}},"items":0,"changed":[]}}\n')
    status, said = checker(path)
    assert (status, "the entry cannot be read as an entry" in said) == (1, True)


def test_an_export_of_a_part_is_compared_with_where_it_begins(
    fleet: interlock.Fleet, tmp_path: Path
) -> None:
    part, ours = tmp_path / "part.jsonl", tmp_path / "ours.jsonl"
    fleet.record.export(str(part), after=entries(fleet)[3].revision)
    fleet.record.export(str(ours))
    assert fleet.record.verify(against=str(part)).truncation == "ok"
    assert checker(ours, "--against", part)[0] == 0
    head, *rest = part.read_text().splitlines(keepends=True)
    other = json.loads(head)
    other["begins"]["digest"] = "0" * 64
    part.write_text(json.dumps(other) + "\n" + "".join(rest))
    found = fleet.record.verify(against=str(part))
    assert (found.truncation, found.findings[0].revision) == ("bad", entries(fleet)[3].revision)
    assert "truncation    bad" in checker(ours, "--against", part)[1]


# ---- the two checkers agree ---------------------------------------------------------------------


def stored(history: History) -> MemoryStore:
    """A store that has this history."""
    store = MemoryStore()
    for item in (*history.entries, *history.items.values()):
        store._rows[item.key] = _Row(
            item.value, item.revision, item.created, item.entry, item.hash, None
        )
    store._order = sorted(store._rows)
    store._revision = 1000
    return store


@settings(
    max_examples=budget(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    acts=st.lists(
        st.tuples(
            st.sampled_from(["ada", "bob", "cleo"]),
            st.sampled_from(["put", "delete", "none", "void", "quiet"]),
            st.sampled_from(["locks/a", "locks/b", "locks/c"]),
        ),
        min_size=3,
        max_size=20,
    ),
    tampering=TAMPERING,
    where=st.tuples(st.integers(0, 1000), st.integers(0, 1000)),
)
def test_the_checker_agrees_with_verify_whatever_was_done(
    acts: list[tuple[str, str, str]], tampering: str, where: tuple[int, int], tmp_path: Path
) -> None:
    history = random_history(acts)
    anchor = tmp_path / "anchors"
    line = {"anchor": 1, "at": 0, **msgspec.structs.asdict(history.mark())}
    anchor.write_text(json.dumps(line) + "\n")
    changed = tamper(history, tampering, where)
    with interlock.connect(store=stored(history)) as fleet:
        found = agree(fleet, tmp_path, anchor)
    assert found.exit_status == changed


@settings(
    max_examples=budget(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    acts=st.lists(
        st.tuples(st.sampled_from(["draft", "draft", "commit", "fail"]), st.integers(0, 9)),
        min_size=8,
        max_size=30,
    ),
    cut=st.integers(1, 5),
    gone=st.integers(0, 30),
)
def test_the_checker_agrees_with_verify_about_what_was_under_way_at_a_cut(
    acts: list[tuple[str, int]], cut: int, gone: int, tmp_path: Path
) -> None:
    history = under_way(acts)
    cut = min(cut, len(history.entries) - 1)
    begins = history.mark(cut)
    sealed = SealedMark(
        revision=begins.revision, entries=begins.entries, digest=begins.digest, dropped=begins
    )
    del history.entries[:cut]
    if gone < len(history.entries):
        del history.entries[gone]
    store = stored(history)
    store._rows[keys.SEALED] = _Row(
        codec.encode(sealed), begins.revision, begins.revision, "", "", None
    )
    store._order = sorted(store._rows)
    with interlock.connect(store=store) as fleet:
        agree(fleet, tmp_path)
