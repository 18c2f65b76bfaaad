"""One moment of the store: keys, ranges, the log."""

# ruff: noqa: D102 - the name of a test says what should be true

from __future__ import annotations

from functools import partial

from interlock.store import LOG, Check, Conflict, Log, Put, Range, Store
from interlock.testing.conformance.place import Place, Suite, at_once, committed, txn, write


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
            item = store.read("a")["a"]
            assert item is not None
            assert item.value == value

    def test_read_is_one_moment_while_others_write(self, place: Place, store: Store) -> None:
        pair = Range("pair/")
        write(store, Put("pair/a", b"0"), Put("pair/b", b"0"))

        def writes(other: Store) -> None:
            for number in range(60):
                value = str(number).encode()
                write(other, Put("pair/a", value), Put("pair/b", value))

        def reads(other: Store) -> None:
            for _ in range(120):
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
            item = other.read("a")["a"]
            assert item is not None
            assert item.revision == revision
            assert other.read().revision == revision

    def test_a_refused_commit_changes_no_revision(self, store: Store) -> None:
        revision = write(store, Put("a", b""))
        answer = store.commit(txn(Put("a", b"2"), checks=(Check("a", "absent"),)))
        assert isinstance(answer, Conflict)
        assert store.read().revision == revision


def _keys(store: Store, ref: Range) -> list[str]:
    return [item.key for item in store.read(ref).ranges[ref]]
