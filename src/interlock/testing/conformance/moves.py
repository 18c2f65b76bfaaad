"""Marks that close a store to commits, and loading: for stores that can be moved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from interlock.errors import OutcomeUnknown, StoreMoved, StoreMoving
from interlock.store import (
    ENGINE_KEYS,
    LOG,
    Change,
    Check,
    Item,
    Log,
    MovableStore,
    Put,
    Range,
    Resync,
    Store,
    StoreMark,
    Watch,
    can_be_moved,
    void,
)
from interlock.testing.conformance.place import Place, Suite, there, txn, write

MOVING = StoreMark(state="moving", place="elsewhere", move="mov_1")
MOVED = StoreMark(state="moved", place="elsewhere", move="mov_1")
FILLING = StoreMark(state="filling", place="elsewhere", move="mov_1", revision=5000)
SOON = 8.0
"""Seconds within which a watch learns that its store was moved."""
KEY = "live/one"
TTL = 30.0


class Moves(Suite):
    """For stores that can be moved."""

    @pytest.fixture
    def movable(self, store: Store) -> MovableStore:
        """A fresh store."""
        assert can_be_moved(store)
        return store

    def test_every_client_is_refused_as_soon_as_a_mark_stands(
        self, movable: MovableStore, place: Place
    ) -> None:
        other = place.open()
        write(other, Put("a/1", b"1"), Put(KEY, b"x", TTL))
        assert movable.set_mark(MOVING, None)
        for store in (movable, other, place.open()):
            for change in _every_change(store):
                with pytest.raises(StoreMoving, match="elsewhere"):
                    change()
        assert there(other, "a/1").value == b"1"
        assert movable.set_mark(MOVED, MOVING)
        for store in (movable, other, place.open()):
            for change in _every_change(store):
                with pytest.raises(StoreMoved, match="elsewhere"):
                    change()
            assert store.missing
        assert there(other, "a/1").value == b"1"

    @pytest.mark.parametrize("running", ["blocking", "async"])
    def test_a_watch_of_a_moved_store_has_what_came_before_and_ends(
        self, movable: MovableStore, place: Place, running: str
    ) -> None:
        store = place.open()
        read = _read_to_the_end if running == "blocking" else _read_in_loop
        with ThreadPoolExecutor(3) as pool:
            ends = [
                pool.submit(read, store.watch(scope, 0)) for scope in ("a/", ("a/", "b/"), "c/")
            ]
            write(movable, Put("a/1", b"1"))
            movable.set_mark(MOVING, None)
            movable.set_mark(MOVED, MOVING)
            assert [end.result(SOON) for end in ends] == [["a/1"], ["a/1"], []]
        assert store.missing, "so its owner stops"
        assert there(store, "a/1").value == b"1"
        late = place.open().watch("a/", store.read().revision)
        with pytest.raises(StoreMoved, match="elsewhere"):
            late.take(SOON)

    def test_only_an_empty_store_begins_to_be_filled(
        self, movable: MovableStore, place: Place
    ) -> None:
        write(movable, Put(KEY, b"x", TTL), quiet=True)
        assert movable.set_mark(FILLING, None), "a liveness key is no content"
        movable.load("mov_1", ITEMS)
        assert movable.set_mark(FILLING, None), "a repetition succeeds"
        while movable.erase("mov_1"):
            pass
        assert movable.set_mark(None, FILLING)
        write(place.open(), Put("z/1", b"1"), quiet=True)
        assert not movable.set_mark(FILLING, None)
        assert movable.mark() is None
        write(movable, deletes=("z/1",))
        assert not movable.set_mark(FILLING, None), "it has an entry"
        assert movable.set_mark(MOVING, None)

    def test_a_mark_is_replaced_only_by_one_that_knows_it(self, movable: MovableStore) -> None:
        assert movable.mark() is None
        assert movable.set_mark(MOVING, None)
        stranger = StoreMark(state="moving", place="there", move="mov_2")
        assert not movable.set_mark(stranger, None)
        assert not movable.set_mark(None, stranger)
        assert not movable.set_mark(MOVED, stranger)
        assert MOVING.same(movable.mark())
        assert movable.set_mark(MOVING, None), "a repetition succeeds"
        assert movable.set_mark(None, MOVING)
        assert movable.mark() is None

    def test_without_the_mark_commits_go_on_above_all_revisions(
        self, movable: MovableStore, place: Place
    ) -> None:
        before = write(movable, Put("a/1", b"1"))
        movable.set_mark(MOVING, None)
        movable.set_mark(None, MOVING)
        assert write(place.open(), Put("a/1", b"2")) > before
        assert write(movable, Put("a/1", b"3")) > before + 1

    def test_a_filled_store_has_the_items_as_they_were(
        self, movable: MovableStore, place: Place
    ) -> None:
        assert movable.set_mark(FILLING, None)
        for items in (ENTRIES, ITEMS, ITEMS[:1], ENTRIES, (LIVING,)):
            movable.load("mov_1", items)
        assert movable.set_mark(None, FILLING)
        for store in (movable, place.open()):
            found = Range(""), Log(), Log(after=20, limit=1), Log(limit=1, last=True)
            snapshot = store.read(*found, "a/1", KEY, times=True)
            assert snapshot.revision >= FILLING.revision
            everything = [each for each in snapshot.ranges[found[0]] if _plain(each.key)]
            assert everything == [*ITEMS]
            assert snapshot.ranges[found[1]] == ENTRIES
            assert snapshot.ranges[found[2]] == ENTRIES[2:3]
            assert snapshot.ranges[found[3]] == ENTRIES[-1:]
            assert store.extent().entries == len(ENTRIES)
            living = snapshot[KEY]
            assert living is not None
            assert living.expires_in is not None
            # A host that sees the key for the first time does not know how old it is.
            least = TTL - 10 if store is movable or store.capabilities.one_machine else 0.0
            assert least < living.expires_in <= TTL + 1

    def test_the_first_commit_after_a_filling_is_above_all_that_was_loaded(
        self, movable: MovableStore, place: Place
    ) -> None:
        early = place.open()
        self._fill(movable)
        first = write(early, Put("b/new", b"1"))
        assert first > FILLING.revision
        assert there(early, "b/new").revision == first
        assert there(early, "a/1") == ITEMS[0]
        assert write(place.open(), Put("b/new", b"2")) > first

    def test_loaded_items_are_checked_and_keep_when_they_were_created(
        self, movable: MovableStore, place: Place
    ) -> None:
        self._fill(movable)
        for store, old in ((movable, ITEMS[0]), (place.open(), ITEMS[1])):
            stale = Check(old.key, "at", revision=old.revision - 1)
            assert not _commits(store, old.key, stale)
            assert _commits(store, old.key, Check(old.key, "at", revision=old.revision))
            now = there(store, old.key)
            assert now.created == old.created
            assert now.revision > FILLING.revision
            assert not _commits(store, old.key, Check(old.key, "at", revision=old.revision))
            assert _commits(store, old.key, Check(old.key, "at", revision=now.revision))
            assert there(store, old.key).created == old.created
            write(store, Put(old.key, b"blind"))
            assert there(store, old.key).created == old.created
            write(store, Put(old.key, b"quiet"), quiet=True)
            assert there(store, old.key).created == old.created
        write(movable, deletes=("a/1",))
        revision = write(movable, Put("a/1", b"{}"))
        assert there(movable, "a/1").created == revision

    def test_a_watch_from_before_the_filling_is_told_to_read_the_state(
        self, movable: MovableStore, place: Place
    ) -> None:
        self._fill(movable)
        for store in (movable, place.open()):
            watch = store.watch("a/", 15)
            assert [type(each) for each in watch.take(5.0)] == [Resync]
            revision = write(movable, Put("a/new", b"1"))
            last = 0
            while last < revision and (found := watch.take(5.0)):
                assert {each.key for each in found if not isinstance(each, Resync)} <= {"a/new"}
                last = max(each.revision for each in found)
            assert last == revision
            watch.close()

    def test_loaded_entries_are_trimmed_first(self, movable: MovableStore) -> None:
        self._fill(movable)
        assert movable.trim(20) == 2
        ref = Log()
        assert movable.read(ref).ranges[ref] == ENTRIES[2:]

    def test_only_the_move_that_fills_a_store_loads_and_erases(self, movable: MovableStore) -> None:
        for mark in (None, MOVING, FILLING):
            with pytest.raises(StoreMoving):
                movable.load("mov_2", ITEMS)
            with pytest.raises(StoreMoving):
                movable.erase("mov_2")
            if mark is None:
                movable.set_mark(MOVING, None)
            elif mark is MOVING:
                movable.set_mark(None, MOVING)
                movable.set_mark(FILLING, None)
        with pytest.raises(StoreMoving):
            write(movable, Put("a/1", b"1"))

    def test_an_erased_store_can_be_filled_again(self, movable: MovableStore) -> None:
        movable.set_mark(FILLING, None)
        movable.load("mov_1", ENTRIES)
        movable.load("mov_1", (*ITEMS, LIVING))
        while movable.erase("mov_1"):
            pass
        everything = Range("")
        found = movable.read(everything).ranges[everything]
        assert not [each for each in found if _plain(each.key)]
        assert not movable.extent().entries
        movable.set_mark(None, FILLING)
        self._fill(movable)
        ref = Log()
        assert movable.read(ref).ranges[ref] == ENTRIES
        assert there(movable, "a/1") == ITEMS[0]

    def _fill(self, movable: MovableStore) -> None:
        assert movable.set_mark(FILLING, None)
        movable.load("mov_1", ENTRIES)
        movable.load("mov_1", ITEMS)
        assert movable.set_mark(None, FILLING)


ENTRIES = tuple(
    Item(f"{LOG}txn_{number}", b'{"verb":"old"}', 10 * number, 10 * number, f"txn_{number}", "#")
    for number in range(1, 5)
)
ITEMS = (
    Item("a/1", b"one", 20, 10, "txn_2", "#"),
    Item("tasks/t/status", b'{"state":"ready"}', 40, 30, "txn_4", "#"),
    Item("z", b"", 30, 30),
)
LIVING = Item(KEY, b"{}", 40, 10, "txn_1", "#", TTL)


def _every_change(store: Store) -> list[Callable[[], object]]:
    renewal = (Put(KEY, b"x", TTL),)
    return [
        lambda: store.commit(txn(Put("a/2", b"2"))),
        lambda: store.commit(txn(Put("a/1", b"2"), quiet=True)),
        lambda: store.commit(txn(*renewal, checks=(Check(KEY, "exists"),), quiet=True)),
        lambda: store.commit(void("txn_never")),
        lambda: store.renew(renewal),
        lambda: asyncio.run(_awaited(store)),
    ]


def _read_to_the_end(watch: Watch) -> list[str]:
    """The keys that changed until the watch ends."""
    found: list[str] = []

    def read() -> None:
        while True:
            found.extend(each.key for each in watch.take(None) if isinstance(each, Change))

    with closing(watch), pytest.raises(StoreMoved, match="elsewhere"):
        read()
    return found


def _read_in_loop(watch: Watch) -> list[str]:
    found: list[str] = []

    async def read() -> None:
        while True:
            found.extend(
                each.key for each in await watch.take_async(None) if isinstance(each, Change)
            )

    with closing(watch), pytest.raises(StoreMoved, match="elsewhere"):
        asyncio.run(read())
    return found


async def _awaited(store: Store) -> None:
    await store.renew_async((Put(KEY, b"x", TTL),))


def _commits(store: Store, key: str, check: Check) -> bool:
    try:
        return hasattr(store.commit(txn(Put(key, b"{}"), checks=(check,))), "revision")
    except OutcomeUnknown:
        raise AssertionError("no fault was injected") from None


def _plain(key: str) -> bool:
    return key not in ENGINE_KEYS and not key.startswith((LOG, "live/"))
