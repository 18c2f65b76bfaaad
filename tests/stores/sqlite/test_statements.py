"""Statements are prepared once, also between transactions that execute one of them very often."""

from __future__ import annotations

from functools import partial

from interlock.store import Put, Txn, View
from interlock.stores.sqlite import SQLiteStore

AT_ONCE = 128


def names(turn: int) -> list[str]:
    return [f"tasks/t{turn}.{number}/status" for number in range(AT_ONCE)]


def writing(turn: int) -> Txn:
    """A commit about as large as one that ends many tasks and claims others."""
    puts = tuple([Put(name, b"{}", None) for name in names(turn)])
    return Txn(id=f"txn_{turn}", entry=b"{}", hash="h", puts=puts, deletes=tuple(names(turn - 1)))


def test_a_large_commit_does_not_drop_the_statements_of_the_next_one(store: SQLiteStore) -> None:
    def work(turn: int, view: View) -> Txn:
        view.read(*names(turn - 1))
        return writing(turn)

    misses = []
    for turn in range(5):
        store.transact(partial(work, turn))
        misses.append(store._engine.db.cache_stats()["misses"])
    assert misses[4] == misses[1]
