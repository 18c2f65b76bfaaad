"""The log: how large it is, and forgetting its oldest entries."""

# ruff: noqa: D102 - the name of a test says what should be true

from __future__ import annotations

from interlock.store import LOG, Change, Item, Log, Put, Resync, Store, Watch
from interlock.testing.conformance.place import (
    PATIENCE,
    Place,
    Suite,
    committed,
    gather,
    txn,
    write,
)


class Trimming(Suite):
    """What ``trim`` and ``extent`` promise."""

    def test_the_extent_of_the_log_is_its_entries(self, store: Store) -> None:
        assert store.extent().entries == 0
        for number in range(3):
            write(store, Put(f"p/{number}", b""))
        write(store, Put("p/0", b"1"), quiet=True)
        assert store.extent().entries == 3

    def test_trimming_forgets_the_oldest_entries_and_nothing_else(self, store: Store) -> None:
        revisions = [write(store, Put(f"p/{number}", b"")) for number in range(5)]
        assert store.trim(revisions[2]) == 3
        assert [item.revision for item in _log(store)] == revisions[3:]
        assert store.extent().entries == 2
        assert store.extent().trimmed in (0, revisions[2])
        items = store.read(*(f"p/{number}" for number in range(5))).items
        assert [item and item.revision for item in items.values()] == revisions

    def test_trimming_again_finds_nothing(self, store: Store) -> None:
        revisions = [write(store) for _ in range(3)]
        assert store.trim(0) == 0
        assert store.trim(revisions[0]) == 1
        assert store.trim(revisions[0]) == 0
        assert store.trim(revisions[0] - 1) == 0
        assert store.extent().entries == 2

    def test_a_trimmed_entry_reads_as_absent(self, store: Store) -> None:
        change = txn(Put("a", b""))
        store.commit(change)
        store.trim(store.read().revision)
        assert store.read(LOG + change.id)[LOG + change.id] is None

    def test_revisions_go_on_when_the_whole_log_was_trimmed(
        self, place: Place, store: Store
    ) -> None:
        last = write(store, Put("a", b""))
        store.trim(last)
        assert store.read().revision >= last
        assert write(place.open(), Put("a", b"")) > last
        assert [item.revision > last for item in _log(store)] == [True]

    def test_trimming_is_bounded_and_goes_from_the_oldest_on(self, store: Store) -> None:
        for _ in range(1100):
            write(store)
        entries = _log(store)
        gone = store.trim(entries[-1].revision)
        assert 100 <= gone < 1100
        assert _log(store) == entries[gone:]
        while more := store.trim(entries[-1].revision):
            gone += more
        assert gone == 1100

    def test_trimming_is_no_change_that_a_watch_sees(self, store: Store) -> None:
        first = write(store, Put("p/1", b""))
        watches = {scope: store.watch(scope, first) for scope in ("", LOG, "p/")}
        store.trim(first)
        change = txn(Put("p/2", b""))
        last = committed(store.commit(change)).revision
        end = write(store, Put("p/3", b""))
        keys = {scope: _changes_up_to(watch, last, end) for scope, watch in watches.items()}
        assert keys == {"": {LOG + change.id, "p/2"}, LOG: {LOG + change.id}, "p/": {"p/2"}}

    def test_a_watch_from_before_the_trimming_misses_nothing_or_is_told(self, store: Store) -> None:
        revisions = [write(store, Put(f"p/{number}", b"")) for number in range(4)]
        store.trim(revisions[2])
        for after in (0, revisions[0]):
            watch = store.watch("p/", after)
            expected = [revision for revision in revisions if revision > after]
            found: list[Change | Resync] = []
            while not found or found[-1].revision < revisions[-1]:
                some = watch.take(PATIENCE)
                assert some, f"only {found}"
                found += some
            resynced = isinstance(found[0], Resync)
            assert resynced or [change.revision for change in found] == expected
            watch.close()


def _log(store: Store) -> tuple[Item, ...]:
    ref = Log(limit=10_000)
    return store.read(ref).ranges[ref]


def _changes_up_to(watch: Watch, revision: int, end: int) -> set[str]:
    """The changes of a watch up to a revision; a later one is sure to come."""
    found = gather(watch, lambda found: bool(found) and found[-1].revision >= end)
    return {change.key for change in found if change.revision <= revision}
