"""One moment of the store: keys, ranges, the log; and the log without its oldest entries."""

from __future__ import annotations

import asyncio
from functools import partial

from interlock.store import (
    LOG,
    Change,
    Check,
    Conflict,
    Item,
    Log,
    Put,
    Range,
    Resync,
    Store,
    TransactingStore,
    Watch,
    can_transact,
)
from interlock.testing.conformance.place import (
    PATIENCE,
    Place,
    Suite,
    at_once,
    committed,
    gather,
    there,
    txn,
    write,
)


class Reads(Suite):
    """What ``read`` promises."""

    def test_read_brings_back_every_key_and_none_for_absent_ones(self, store: Store) -> None:
        revision = write(store, Put("a", b"1"))
        snapshot = store.read("a", "b")
        assert snapshot.revision == revision
        assert snapshot["b"] is None
        item = snapshot["a"]
        assert item is not None
        assert (item.key, item.value, item.revision, item.created) == (
            "a",
            b"1",
            revision,
            revision,
        )
        assert item.expires_in is None

    def test_read_of_an_empty_store_is_empty(self, store: Store) -> None:
        everything, entries = Range("a"), Log()
        snapshot = store.read("a", everything, entries)
        assert snapshot["a"] is None
        assert snapshot.ranges == {everything: (), entries: ()}

    def test_read_without_refs_tells_the_revision(self, store: Store) -> None:
        revision = write(store, Put("a", b"1"))
        assert store.read().revision == revision

    def test_read_keeps_any_bytes_as_they_are(self, store: Store) -> None:
        for value in (b"", b"\0", bytes(range(256)), "ü€😀".encode()):
            write(store, Put("a", value))
            item = there(store, "a")
            assert item.value == value

    def test_read_leaves_out_the_values_that_are_longer_than_wanted(self, store: Store) -> None:
        puts = [Put("p/a", b""), Put("p/b", b"1234"), Put("p/c", b"12345"), Put("p/d", b"x" * 9000)]
        plain = Put("tasks/t/status", b'{"state":"ready"}')
        revision = write(store, *puts, plain)
        page = Range("p/", limit=3)
        snapshot = store.read("p/d", "p/b", plain.key, "p/e", page, Log(), longest=4)
        found = {
            item.key: item for item in (*snapshot.ranges[page], *snapshot.items.values()) if item
        }
        sizes = {key: (item.value, item.omitted, item.size) for key, item in found.items()}
        assert sizes == {
            "p/a": (b"", 0, 0),
            "p/b": (b"1234", 0, 4),
            "p/c": (b"", 5, 5),
            "p/d": (b"", 9000, 9000),
            plain.key: (b"", len(plain.value), len(plain.value)),
        }
        assert snapshot["p/e"] is None
        whole = store.read(*found)
        for key, item in found.items():
            other = whole[key]
            assert other is not None
            stamp = (other.revision, other.created, other.entry, other.hash)
            assert (item.revision, item.created, item.entry, item.hash) == stamp
            assert item.revision == revision
        assert all(entry.value for entry in snapshot.ranges[Log()])

    def test_an_event_loop_leaves_out_long_values_too(self, store: Store) -> None:
        write(store, Put("a", b"12345"))

        async def read() -> Item | None:
            return (await store.read_async("a", longest=0))["a"]

        item = asyncio.run(read())
        assert item is not None
        assert (item.value, item.omitted) == (b"", 5)

    def test_a_conflict_leaves_out_the_values_that_are_longer_than_wanted(
        self, store: Store
    ) -> None:
        write(store, Put("a", b"12345"), Put("b", b"12"))
        checks = (Check("a", "absent"), Check("b", "exists"))
        answer = store.commit(txn(checks=checks, deletes=("a",), longest=2))
        assert isinstance(answer, Conflict)
        found = [answer.items["a"], answer.items["b"]]
        assert [item and (item.value, item.omitted) for item in found] == [(b"", 5), (b"12", 0)]
        assert there(store, "a").value == b"12345"

    def test_read_is_one_moment_while_others_write(self, place: Place, store: Store) -> None:
        pair = Range("pair/")
        write(store, Put("pair/a", b"0"), Put("pair/b", b"0"))

        def writes(other: Store) -> None:
            for number in range(self.times(60)):
                value = str(number).encode()
                write(other, Put("pair/a", value), Put("pair/b", value))

        def reads(other: Store) -> None:
            for _ in range(self.times(120)):
                snapshot = other.read("pair/a", pair, "pair/b")
                a, b = snapshot["pair/a"], snapshot["pair/b"]
                assert a is not None
                assert b is not None
                assert a.value == b.value
                assert a.revision == b.revision <= snapshot.revision
                assert snapshot.ranges[pair] == (a, b)

        at_once(*(partial(work, place.open()) for work in (writes, reads, reads)))

    def test_range_is_in_order_and_only_under_its_prefix(self, store: Store) -> None:
        keys = ("p", "p.", "p/", "p/a", "p/a/b", "p/b", "p/~", "p0", "q")
        write(store, *(Put(key, b"") for key in reversed(keys)))
        assert _keys(store, Range("p/")) == ["p/", "p/a", "p/a/b", "p/b", "p/~"]
        assert _keys(store, Range("p/a")) == ["p/a", "p/a/b"]
        assert _keys(store, Range("x/")) == []

    def test_range_starts_after_a_key_whether_that_exists_or_not(self, store: Store) -> None:
        write(store, *(Put(key, b"") for key in ("p/a", "p/c", "p/d")))
        assert _keys(store, Range("p/", after="p/a")) == ["p/c", "p/d"]
        assert _keys(store, Range("p/", after="p/b")) == ["p/c", "p/d"]
        assert _keys(store, Range("p/", after="p/d")) == []
        assert _keys(store, Range("p/", after="a")) == ["p/a", "p/c", "p/d"]
        assert _keys(store, Range("p/", after="z")) == []

    def test_pages_of_a_range_hold_everything_once(self, store: Store) -> None:
        keys = [f"p/{number:03}" for number in range(25)]
        write(store, *(Put(key, b"") for key in keys))
        for limit in (1, 7, 25, 26):
            found: list[str] = []
            while page := _keys(store, Range("p/", after=found[-1] if found else "", limit=limit)):
                assert len(page) <= limit
                found += page
            assert found == keys

    def test_range_forgets_deleted_keys(self, store: Store) -> None:
        write(store, Put("p/a", b""), Put("p/b", b""))
        write(store, deletes=("p/a",))
        assert _keys(store, Range("p/")) == ["p/b"]

    def test_log_is_in_order_of_revisions(self, store: Store) -> None:
        txns = [txn(Put("a", b""), id_=f"txn_{name}") for name in "dbca"]
        revisions = [committed(store.commit(each)).revision for each in txns]
        ref = Log()
        entries = store.read(ref).ranges[ref]
        assert [entry.key for entry in entries] == [LOG + each.id for each in txns]
        assert [entry.revision for entry in entries] == revisions
        assert [entry.value for entry in entries] == [each.entry for each in txns]
        assert [entry.hash for entry in entries] == [each.hash for each in txns]

    def test_log_gives_the_first_ones_after_a_revision_or_the_last(self, store: Store) -> None:
        revisions = [write(store, Put("a", b"")) for _ in range(5)]

        def found(ref: Log) -> list[int]:
            return [entry.revision for entry in store.read(ref).ranges[ref]]

        assert found(Log(after=revisions[1])) == revisions[2:]
        assert found(Log(after=revisions[1], limit=2)) == revisions[2:4]
        assert found(Log(last=True, limit=2)) == revisions[3:]
        assert found(Log(after=revisions[3], last=True, limit=2)) == revisions[4:]
        assert found(Log(after=revisions[4])) == []
        assert found(Log(before=revisions[3])) == revisions[:3]
        assert found(Log(before=revisions[3], last=True, limit=2)) == revisions[1:3]
        assert found(Log(before=revisions[3], after=revisions[0], limit=1)) == revisions[1:2]
        assert found(Log(before=revisions[0], last=True)) == []

    def test_log_shows_no_quiet_commit(self, store: Store) -> None:
        revision = write(store, Put("a", b"1"))
        write(store, Put("a", b"2"), quiet=True)
        ref = Log()
        assert [entry.revision for entry in store.read(ref).ranges[ref]] == [revision]

    def test_a_read_after_a_commit_elsewhere_sees_it(self, place: Place, store: Store) -> None:
        other = place.open()
        for number in range(20):
            revision = write(store, Put("a", str(number).encode()))
            item = there(other, "a")
            assert item.revision == revision
            assert other.read().revision == revision

    def test_a_refused_commit_changes_no_revision(self, store: Store) -> None:
        revision = write(store, Put("a", b""))
        answer = store.commit(txn(Put("a", b"2"), checks=(Check("a", "absent"),)))
        assert isinstance(answer, Conflict)
        assert store.read().revision == revision


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
        if can_transact(store):  # where many share one durable write
            asyncio.run(_write_together(store, 1100))
        else:
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


def _keys(store: Store, ref: Range) -> list[str]:
    return [item.key for item in store.read(ref).ranges[ref]]


async def _write_together(store: TransactingStore, number: int) -> None:
    await asyncio.gather(*(store.transact_async(lambda _: txn()) for _ in range(number)))
