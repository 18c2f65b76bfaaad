"""A reader of many pages pays for the items that it reads, and not for those before."""

from __future__ import annotations

from itertools import count

from interlock.store import Put, Range, Txn
from interlock.stores.sqlite import SQLiteStore, schema
from interlock.stores.sqlite.connection import ReadConnection


def test_the_last_page_takes_no_more_steps_than_the_first(store: SQLiteStore, path: str) -> None:
    keys = [f"tasks/t{number:04d}" for number in range(2000)]
    store.commit(Txn(id="txn_1", puts=tuple([Put(key, b"1") for key in keys]), quiet=True))
    reader = ReadConnection(schema.open_connection(path))
    steps = count()
    reader.db.set_progress_handler(lambda: next(steps) < 0, 1)
    reader.read(Range("tasks/", limit=10))
    first = next(steps)
    last = Range("tasks/", keys[-11], 10)
    found = reader.read(last).ranges[last]
    assert [item.key for item in found] == keys[-10:]
    assert next(steps) <= 3 * first
    reader.db.close()


def test_a_key_that_is_the_prefix_itself_is_under_it(store: SQLiteStore) -> None:
    puts = [Put(key, b"1") for key in ("tasks/", "tasks/a", "tasks/a\x01", "tasks0")]
    store.commit(Txn(id="txn_1", puts=tuple(puts), quiet=True))
    for after, wanted in (
        ("", ["tasks/", "tasks/a", "tasks/a\x01"]),
        ("tasks", ["tasks/", "tasks/a", "tasks/a\x01"]),
        ("tasks/", ["tasks/a", "tasks/a\x01"]),
        ("tasks/a", ["tasks/a\x01"]),
        ("tasks1", []),
    ):
        page = Range("tasks/", after)
        assert [item.key for item in store.read(page).ranges[page]] == wanted
