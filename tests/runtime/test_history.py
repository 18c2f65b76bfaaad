from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import pytest

import interlock
from interlock.core import keys
from interlock.core.codec import digest, encode
from interlock.core.filter import RecordFilter
from interlock.core.segment import RecordMark, SealedMark, Segment, pack
from interlock.errors import StoreDamaged
from interlock.runtime.history import EntriesBackward, EntriesForward, search
from interlock.steps import Op, drive
from interlock.store import Item, Log, Put, Store, Txn
from interlock.stores import open_store
from interlock.stores.sqlite import SQLiteStore

T = TypeVar("T")

_numbers = itertools.count(1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    store = SQLiteStore(str(tmp_path / "store.db"))
    yield store
    store.close()


def fill(store: Store, count: int) -> list[int]:
    """So many entries, by ada and bob in turn."""
    for number in range(count):
        entry = encode({"agent": "ada" if number % 2 else "bob", "at": 1.0, "verb": "test.write"})
        id_ = f"txn_{next(_numbers):08d}"
        store.commit(Txn(id=id_, entry=entry, hash=digest(entry), puts=(Put("k", b"v"),)))
    return revisions(store)


def revisions(store: Store) -> list[int]:
    return [item.revision for item in hot(store)]


def hot(store: Store) -> tuple[Item, ...]:
    ref = Log(limit=100_000)
    return store.read(ref).ranges[ref]


def seal(store: Store, upto: int) -> None:
    """One more segment, up to a revision; the log is left as it is."""
    item = store.read(keys.SEALED)[keys.SEALED]
    begins = 0 if item is None else _sealed_up_to(item)
    entries = [item for item in hot(store) if begins < item.revision <= upto]
    segment = Segment(
        begins=RecordMark(revision=begins),
        ends=RecordMark(revision=upto),
        since=0.0,
        until=0.0,
        packed=pack((e.revision, e.key.removeprefix("log/"), e.value) for e in entries),
    )
    puts = (
        Put(keys.segment(upto), encode(segment)),
        Put(keys.SEALED, encode(SealedMark(revision=upto))),
    )
    store.commit(Txn(id=f"txn_{next(_numbers):08d}", puts=puts, quiet=True))


def _sealed_up_to(item: Item) -> int:
    return msgspec.json.decode(item.value, type=SealedMark).revision


def walked(
    store: Store, walk: EntriesForward | EntriesBackward, between: Callable[[], None] = lambda: None
) -> list[int]:
    """All revisions of a walk, in order; whatever happens between two steps of it."""
    found: list[list[int]] = []
    while page := drive(_disturbed(walk.page(), between), store):
        found.append([item.revision for item in page])
    pages = found if isinstance(walk, EntriesForward) else reversed(found)
    return [revision for page in pages for revision in page]


def _disturbed(op: Op[T], between: Callable[[], None]) -> Op[T]:
    answer: Any = None
    while True:
        try:
            step = op.send(answer)
        except StopIteration as done:
            return cast("T", done.value)
        answer = yield step
        between()


@pytest.mark.parametrize("seed", range(20))
def test_a_walk_gives_each_entry_once_from_either_end(store: SQLiteStore, seed: int) -> None:
    rng = random.Random(seed)
    everything = fill(store, rng.randrange(1, 40))
    for upto in sorted(rng.sample(everything, min(rng.randrange(4), len(everything)))):
        seal(store, upto)
        store.trim(rng.choice([0, upto, rng.randrange(upto + 1)]))
    page, after = rng.randrange(1, 12), rng.randrange(everything[-1] + 2)
    assert walked(store, EntriesForward(page=page)) == everything
    assert walked(store, EntriesBackward(page=page)) == everything
    assert walked(store, EntriesForward(after, page)) == [r for r in everything if r > after]
    assert walked(store, EntriesBackward(after, page)) == [
        r for r in everything if not after or r < after
    ]


@pytest.mark.parametrize("walk", [EntriesForward, EntriesBackward])
@pytest.mark.parametrize("step", [1, 3, 4, 7])
def test_sealing_during_a_walk_neither_loses_nor_doubles(
    store: SQLiteStore, walk: type[EntriesForward | EntriesBackward], step: int
) -> None:
    everything = fill(store, 24)
    rest = iter(everything[step - 1 :: step])

    def seal_some() -> None:
        if upto := next(rest, None):
            seal(store, upto)
            store.trim(upto)

    assert walked(store, walk(page=4), seal_some) == everything


@pytest.mark.parametrize("walk", [EntriesForward, EntriesBackward])
@pytest.mark.parametrize("moment", range(8))
def test_sealing_at_any_moment_of_a_walk_neither_loses_nor_doubles(
    store: SQLiteStore, walk: type[EntriesForward | EntriesBackward], moment: int
) -> None:
    everything = fill(store, 24)
    seal(store, everything[5])
    store.trim(everything[5])
    steps = itertools.count()

    def seal_once() -> None:
        if next(steps) == moment:
            seal(store, everything[17])
            store.trim(everything[17])

    assert walked(store, walk(page=4), seal_once) == everything


def test_sealed_entries_are_given_as_they_were_stored(store: SQLiteStore) -> None:
    fill(store, 3)
    before = drive(search(RecordFilter(), limit=10), store)
    seal(store, before[1].revision)
    store.trim(before[1].revision)
    assert len(hot(store)) == 1
    assert drive(search(RecordFilter(), limit=10), store) == before
    assert drive(search(RecordFilter(), limit=10, last=False), store) == before


def test_a_walk_back_ends_where_retention_dropped_a_segment(store: SQLiteStore) -> None:
    everything = fill(store, 6)
    for upto in (everything[1], everything[3]):
        seal(store, upto)
    store.trim(everything[3])
    dropped = Txn(id="txn_drop", deletes=(keys.segment(everything[1]),), quiet=True)
    store.commit(dropped)
    assert walked(store, EntriesBackward()) == everything[2:]
    assert walked(store, EntriesForward()) == everything[2:]


def test_a_segment_that_cannot_be_read_is_named(store: SQLiteStore) -> None:
    revision = fill(store, 1)[0]
    seal(store, revision)
    store.trim(revision)
    store.commit(Txn(id="txn_x", puts=(Put(keys.segment(revision), b"{}"),), quiet=True))
    for walk in (EntriesForward(), EntriesBackward()):
        with pytest.raises(StoreDamaged, match=r"^segments/\d+ .*; restore a copy of the store$"):
            walked(store, walk)


@pytest.mark.parametrize("last", [True, False])
def test_a_limit_counts_what_matches(store: SQLiteStore, last: bool) -> None:
    everything = fill(store, 2500)
    found = drive(search(RecordFilter(by="ada"), limit=1200, last=last), store)
    ada = everything[1::2]
    assert [line.revision for line in found] == (ada[-1200:] if last else ada[:1200])
    assert drive(search(RecordFilter(by="nobody"), limit=1), store) == ()


def test_only_what_stands_after_a_revision_is_searched(store: SQLiteStore) -> None:
    everything = fill(store, 10)
    found = drive(search(RecordFilter(), after=everything[3], limit=100), store)
    assert [line.revision for line in found] == everything[4:]


def test_every_store_gives_sealed_entries_once(url: str) -> None:
    with interlock.connect(url, agent="ada", join=False) as fleet:
        for name in ("a", "b", "c", "d"):
            fleet.locks.acquire(name)
        lines = fleet.record.log()
        other = open_store(url)
        for line in lines[1:3]:
            seal(other, line.revision)
        other.close()
        assert fleet.record.log() == lines
        assert fleet.record.log(last=False) == lines
        assert fleet.record.log(last=False, after=lines[0].revision, limit=2) == lines[1:3]
        assert fleet.record.log(thing="b") == lines[1:2]
