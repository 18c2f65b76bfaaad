"""The write-ahead log stays in bounds, also when a reader stood in the way for long."""

from __future__ import annotations

import os

from tests.processes.helpers import Cast
from tests.stores.sqlite.actors import put

from interlock.stores.sqlite import SQLiteStore

BOUND = 64 << 20


def write(store: SQLiteStore, many: int, size: int) -> None:
    for number in range(many):
        store.transact(lambda _, n=number: put(f"k/{n % 50}", os.urandom(8) * (size // 8)))  # type: ignore[misc]


def test_normal_load_keeps_it_small(store: SQLiteStore) -> None:
    for _ in range(3):
        write(store, 1000, 100)
        assert os.path.getsize(store.path + "-wal") < 8 << 20


def test_it_grows_while_a_reader_stays_is_reported_and_comes_back(path: str, cast: Cast) -> None:
    store = SQLiteStore(path)
    write(store, 10, 100)
    reader = cast.start("read_on", path)
    assert reader.hear() == "reading"
    write(store, 2000, 40_000)
    grown = os.path.getsize(path + "-wal")
    assert grown > BOUND
    assert store.info()["wal_bytes"] == grown
    reader.tell()
    reader.finish()
    write(store, 5, 100)
    assert os.path.getsize(path + "-wal") < BOUND
    assert store.info()["wal_bytes"] == os.path.getsize(path + "-wal")
    store.close()


def test_commits_do_not_wait_for_a_reader_that_stays(path: str, cast: Cast) -> None:
    store = SQLiteStore(path)
    write(store, 10, 100)
    reader = cast.start("read_on", path)
    assert reader.hear() == "reading"
    write(store, 30, 1_000_000)
    store.transact(lambda _: put("k/last"))
    before = int(str(store.info()["revision"]))
    write(store, 400, 100)
    assert store.info()["revision"] == before + 400
    reader.tell()
    reader.finish()
    store.close()


def test_short_lived_processes_leave_no_log_behind(path: str, cast: Cast) -> None:
    for _ in range(3):
        assert cast.start("open_it", path).rest() == ["ok"]
    assert not os.path.exists(path + "-wal")
