"""The write-ahead log: durable before the answer, and in bounds when a reader stood in the way."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.processes.helpers import ProcessGroup
from tests.stores.sqlite.store_programs import put

import interlock
from interlock.errors import OutcomeUnknown, StoreAway
from interlock.stores.sqlite import SQLiteStore, connection, files

BOUND = 64 << 20


def write(store: SQLiteStore, many: int, size: int) -> None:
    for number in range(many):
        store.transact(lambda _, n=number: put(f"k/{n % 50}", os.urandom(8) * (size // 8)))  # type: ignore[misc]


def test_normal_load_keeps_it_small(store: SQLiteStore) -> None:
    for _ in range(3):
        write(store, 1000, 100)
        assert os.path.getsize(store.path + "-wal") < 8 << 20


def test_it_grows_while_a_reader_stays_is_reported_and_comes_back(
    path: str, programs: ProcessGroup
) -> None:
    store = SQLiteStore(path)
    write(store, 10, 100)
    reader = programs.start("read_on", path)
    assert reader.read_line() == "reading"
    write(store, 2000, 40_000)
    grown = os.path.getsize(path + "-wal")
    assert grown > BOUND
    assert store.info()["wal_bytes"] == grown
    reader.write_line()
    reader.finish()
    write(store, 5, 100)
    assert os.path.getsize(path + "-wal") < BOUND
    assert store.info()["wal_bytes"] == os.path.getsize(path + "-wal")
    store.close()


def test_commits_do_not_wait_for_a_reader_that_stays(path: str, programs: ProcessGroup) -> None:
    store = SQLiteStore(path)
    write(store, 10, 100)
    reader = programs.start("read_on", path)
    assert reader.read_line() == "reading"
    write(store, 30, 1_000_000)
    store.transact(lambda _: put("k/last"))
    before = int(str(store.info()["revision"]))
    write(store, 400, 100)
    assert store.info()["revision"] == before + 400
    reader.write_line()
    reader.finish()
    store.close()


def test_short_lived_processes_leave_no_log_behind(path: str, programs: ProcessGroup) -> None:
    for _ in range(3):
        assert programs.start("open_it", path).remaining_lines() == ["ok"]
    assert not os.path.exists(path + "-wal")


def test_nobody_is_answered_before_it_is_durable_and_nobody_else_waits_for_that(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = SQLiteStore(path), SQLiteStore(path)
    reached, go_on, done = threading.Event(), threading.Event(), threading.Event()
    sync = connection._sync

    def once(fd: int) -> None:
        if threading.current_thread().name == "slow":
            reached.set()
            go_on.wait(60)
        sync(fd)

    def commit() -> None:
        slow.transact(lambda _: put("k/slow"))
        done.set()

    monkeypatch.setattr(connection, "_sync", once)
    thread = threading.Thread(target=commit, name="slow")
    thread.start()
    assert reached.wait(60)
    assert quick.read("k/slow")["k/slow"] is not None
    assert quick.transact(lambda _: put("k/quick")) is not None
    assert not done.is_set()
    go_on.set()
    thread.join()
    assert done.is_set()
    slow.close()
    quick.close()


def test_what_the_disk_refused_is_unknown_and_nothing_more_is_committed(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SQLiteStore(path)
    store.transact(lambda _: put("k/before"))

    def refuse(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(connection, "_sync", refuse)
        with pytest.raises(OutcomeUnknown, match="could not be made durable"):
            store.transact(lambda _: put("k/lost"))
    with pytest.raises(StoreAway, match="connect again"):
        store.transact(lambda _: put("k/after"))
    store.close()
    again = SQLiteStore(path)
    assert again.transact(lambda _: put("k/again")) is not None
    assert again.read("k/after").items["k/after"] is None
    again.close()


def test_a_store_that_cannot_be_looked_at_after_a_commit_leaves_no_outcome_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit stands, so an error of the engine must not say that it did not happen."""
    with interlock.connect(str(tmp_path / "store.db"), agent="ada") as fleet:
        fleet.tasks.publish("t")
        claim = fleet.tasks.claim("t")
        assert isinstance(claim, interlock.Claimed)
        real, faults = files._header, iter([apsw.IOError("disk I/O error")])

        def header(*words: Any) -> Any:
            if (fault := next(faults, None)) is not None:
                raise fault
            return real(*words)

        monkeypatch.setattr(files, "_header", header)
        assert isinstance(fleet.tasks.complete("t", token=claim.token), interlock.Completed)
        assert fleet.tasks.show("t").state == "complete"
