"""Moving a whole store: the same content elsewhere, and one store at a time."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import cast

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.processes.helpers import until
from tests.stores.sqlite.test_full import limit
from tests.stores.tampering import hand

import interlock
from interlock.core import keys
from interlock.errors import (
    BadInput,
    NotAllowed,
    StoreAway,
    StoreDamaged,
    StoreFull,
    StoreMissing,
    StoreMoved,
    StoreMoving,
    StoreTrouble,
)
from interlock.nouns.fleet.moving import CopyProgress, StoreCopy, abort_alone
from interlock.nouns.fleet.store_noun import StoreCopied
from interlock.nouns.record.verify import verify
from interlock.runtime.runner import Runner
from interlock.steps import drive
from interlock.store import (
    ENGINE_KEYS,
    Item,
    Log,
    MovableStore,
    Put,
    Range,
    Store,
    StoreMark,
    can_be_moved,
)
from interlock.stores import open_store
from interlock.stores.memory import MemoryStore
from interlock.stores.sqlite import SQLiteStore
from interlock.testing.clock import FakeClock
from interlock.testing.conformance.place import write
from interlock.testing.faults import FaultyStore
from interlock.testing.servers import RedisServer
from interlock.testing.servers.proxy import Proxy

PLACES = ("here", "there")
NOTES = (keys.MOVE, keys.STORE_ID)
"""What a move itself writes into its source."""
STEPS = 12
"""Reports of the copy of a small store, at least."""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def source(stack: ExitStack, tmp_path: Path) -> SQLiteStore:
    return stack.enter_context(closing(SQLiteStore(str(tmp_path / "source.db"))))


@pytest.fixture
def target(stack: ExitStack, tmp_path: Path) -> SQLiteStore:
    return stack.enter_context(closing(SQLiteStore(str(tmp_path / "target.db"))))


class Interrupted(Exception):
    """The process was killed here."""


def work(store: Store) -> None:
    """Something of everything: grants, waiters, tasks, messages, cursors, refusals."""
    with interlock.connect(store=_shared(store), agent="ada") as ada:
        ada.locks.acquire("merge", ttl=600, metadata={"why": "release"})
        ada.semaphores.acquire("builds", weight=2, capacity=3, ttl=600)
        ada.tasks.publish("one", {"n": 1})
        ada.tasks.publish("two", needs=["one"])
        ada.messages.subscribe("alerts")
    with interlock.connect(store=_shared(store), agent="bob") as bob:
        bob.locks.acquire("merge")
        for number in range(3):
            bob.messages.send("ada", f"hello {number}")
            bob.messages.alert("alerts", {"n": number})
    with interlock.connect(store=_shared(store), agent="ada") as ada:
        first, *_ = ada.messages.inbox().messages
        ada.messages.ack(first.id)


class _Shared:
    """A store that the clients of a test leave open."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def close(self) -> None: ...

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def _shared(store: Store) -> Store:
    return cast("Store", _Shared(store))


def content(store: Store) -> tuple[list[Item], tuple[Item, ...]]:
    """All items that stay, and the log."""
    everything, log = Range("", limit=100_000), Log(limit=100_000)
    found = store.read(everything, log).ranges
    items = [item for item in found[everything] if item.expires_in is None]
    plain = [item for item in items if item.key not in ENGINE_KEYS]
    return [item for item in plain if not item.key.startswith(("live/", "log/"))], found[log]


def state_of(store: MovableStore) -> str:
    mark = store.mark()
    return "" if mark is None else mark.state


def living(store: Store) -> set[str]:
    ref = Range("live/")
    return {item.key for item in store.read(ref).ranges[ref]}


def times(store: Store) -> dict[str, float]:
    ref = Range("live/")
    return {item.key: item.expires_in or 0.0 for item in store.read(ref, times=True).ranges[ref]}


def accepts(store: Store) -> bool:
    """Whether a store accepts changes; there is nothing to renew, so nothing changes."""
    try:
        store.renew((Put("live/none", b"", 60.0),))
    except (StoreMoved, StoreMoving):
        return False
    return True


@pytest.fixture(
    params=["sqlite to redis", "redis to etcd", "etcd to sqlite", "sqlite to etcd", "etcd to etcd"]
)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    numbers = itertools.count()
    urls = []
    for engine in request.param.split(" to "):
        if engine == "sqlite":
            urls.append(f"{tmp_path}/{next(numbers)}.db")
        else:
            server = request.getfixturevalue(f"{engine}_server")
            urls.append(server.url(f"{tmp_path.name}{next(numbers)}"))
    return urls[0], urls[1]


def test_everything_is_elsewhere_and_goes_on_there(pair: tuple[str, str], stack: ExitStack) -> None:
    source, target = (stack.enter_context(closing(open_store(url, filling=True))) for url in pair)
    work(source)
    late = stack.enter_context(interlock.connect(pair[0], agent="late"))
    token = next(each.token for each in late.locks.list() if each.lock == "merge")
    assert isinstance(token, int)
    sessions = living(source)
    with interlock.connect(pair[0], agent="ada", join=False) as ada:
        unread = [each.seq for each in ada.messages.inbox().messages]
    assert len(unread) == 5

    done = StoreCopy(source, target, pair).run()
    assert isinstance(done, StoreCopied)
    assert content(target) == content(source)
    assert done.entries == len(content(source)[1])
    assert living(target) == sessions
    longer, shorter = times(target), times(source)
    grain = target.capabilities.grain
    assert all(longer[key] >= left - grain for key, left in shorter.items())
    with pytest.raises(StoreMoved, match="was moved to") as told:
        late.locks.acquire("another")
    assert told.value.place == pair[1]
    with pytest.raises(StoreMoved):
        interlock.connect(pair[0], agent="later")

    with interlock.connect(pair[1], agent="ada") as ada:
        assert [each.seq for each in ada.messages.inbox().messages] == unread
        assert isinstance(ada.locks.release("merge", token=token - 1), interlock.LockFenced)
        assert isinstance(ada.locks.release("merge", token=token), interlock.Released)
        again = ada.locks.acquire("merge")
        assert isinstance(again, interlock.Acquired)
        assert again.token is not None
        assert again.token > max(entry.revision for entry in content(source)[1])
        claim = ada.tasks.next()
        assert isinstance(claim, interlock.Claimed)
        assert claim.task == "one"
        ada.tasks.complete("one", token=claim.token)
        assert isinstance(ada.tasks.next(), interlock.Claimed)
        assert drive(verify(target.capabilities), target)
    assert StoreCopy(source, target, pair).run().resumed, "once more changes nothing"


def test_a_run_that_was_killed_after_any_step_is_completed_by_the_next() -> None:
    for step in itertools.count(1):
        with closing(MemoryStore()) as source, closing(MemoryStore()) as target:
            work(source)
            before = content(source)
            try:
                StoreCopy(source, target, PLACES, report=_dies_at(step)).run()
            except Interrupted:
                if content(target)[0]:
                    assert not accepts(source)
                    assert not accepts(target) or state_of(source) == "moved"
                assert StoreCopy(source, target, PLACES).run()
            else:
                break
            assert content(target) == content(source)
            assert [each for each in content(target)[0] if each.key not in NOTES] == before[0]
            assert content(target)[1][: len(before[1])] == before[1]
            assert accepts(target)
            assert not accepts(source)
    assert step > STEPS


def test_a_move_is_taken_back_after_any_step_but_the_last() -> None:
    for step in itertools.count(1):
        with closing(MemoryStore()) as source, closing(MemoryStore()) as target:
            work(source)
            before = content(source)[0]
            try:
                StoreCopy(source, target, PLACES, report=_dies_at(step)).run()
            except Interrupted:
                moved = state_of(source) == "moved"
            else:
                break
            if moved:
                with pytest.raises(NotAllowed, match="moved already"):
                    StoreCopy(source, target, PLACES).abort()
                assert not accepts(source)
                continue
            StoreCopy(source, target, PLACES).abort()
            assert [each for each in content(source)[0] if each.key not in NOTES] == before
            assert content(target) == ([], ())
            assert accepts(source)
            assert StoreCopy(source, target, PLACES).run().items, "and may be moved again"
    assert step > STEPS


def test_a_run_that_another_process_takes_back_ends_without_harm(
    source: SQLiteStore, target: SQLiteStore
) -> None:
    def taken_back(progress: CopyProgress) -> None:
        if progress.step == "comparing":
            StoreCopy(source, target, PLACES).abort()

    work(source)
    with pytest.raises(StoreTrouble):
        StoreCopy(source, target, PLACES, report=taken_back).run()
    assert accepts(source)
    assert target.mark() is None


def test_two_runs_at_once_are_one_move(source: SQLiteStore, target: SQLiteStore) -> None:
    def second(progress: CopyProgress) -> None:
        if progress.step == "copying items":
            StoreCopy(source, target, PLACES).run()

    work(source)
    with suppress(StoreTrouble):
        StoreCopy(source, target, PLACES, report=second).run()
    assert accepts(target)
    assert not accepts(source)


def test_a_killed_abort_leaves_remains_that_the_next_move_removes(
    source: SQLiteStore, target: SQLiteStore
) -> None:
    work(source)
    with pytest.raises(Interrupted):
        StoreCopy(source, target, PLACES, report=_dies_in("comparing")).run()
    done = abort_alone(source, *PLACES, "it does not answer")
    assert done.opened
    assert accepts(source)
    assert not accepts(target), "an incomplete copy is no store"
    before = content(source)[0]
    StoreCopy(source, target, PLACES).run()
    assert [each for each in content(target)[0] if each.key not in NOTES] == [
        each for each in before if each.key not in NOTES
    ]


def test_a_store_of_another_machine_with_the_same_path_is_another_store(
    source: SQLiteStore, target: SQLiteStore, tmp_path: Path
) -> None:
    work(source)
    with pytest.raises(Interrupted):
        StoreCopy(source, target, PLACES, report=_dies_in("moved")).run()
    with closing(SQLiteStore(f"{tmp_path}/other.db")) as other:
        for run in (StoreCopy(other, target, PLACES).run, StoreCopy(other, target, PLACES).abort):
            with pytest.raises(NotAllowed, match="another store with the path here"):
                run()
        assert accepts(other)
    StoreCopy(source, target, PLACES).run()
    assert content(target) == content(source)
    names = [drive(Runner(store).store_id(), store) for store in (source, target)]
    assert names[0] == names[1]


def test_a_holder_is_told_and_its_lock_stays_reserved_for_its_time(
    source: SQLiteStore, target: SQLiteStore, lively: None
) -> None:
    def hold() -> None:
        with ada.lock("merge") as held:
            StoreCopy(source, target, PLACES).run()
            with interlock.connect(store=_shared(target), agent="bob") as bob:
                busy = bob.locks.acquire("merge")
                assert isinstance(busy, interlock.LockBusy)
                assert [each.token for each in bob.locks.list()] == [held.token]
            until(lambda: held.lost)

    with interlock.connect(store=_shared(source), agent="ada", ttl=20) as ada:
        with pytest.raises(interlock.Lost):
            hold()
        with pytest.raises(StoreMoved):
            ada.locks.acquire("merge")


def test_a_holder_outlives_a_move_that_is_taken_back_within_its_time(
    url: str, lively: None
) -> None:
    mark = StoreMark(state="moving", place="there", move="mov_1")
    with closing(open_store(url)) as store:
        assert can_be_moved(store)
        ttl = store.capabilities.min_ttl + 1
        with interlock.connect(url, agent="ada", ttl=ttl) as ada, ada.lock("merge") as held:
            store.set_mark(mark, None)
            with pytest.raises(StoreMoving):
                ada.locks.acquire("another")
            store.set_mark(None, mark)
            began = time.monotonic()
            until(lambda: held.lost or time.monotonic() > began + ttl + 0.5)
            assert not held.lost
            held.check()


def test_an_incomplete_copy_is_not_opened_by_agents(tmp_path: Path) -> None:
    path = f"{tmp_path}/target.db"
    with closing(SQLiteStore(path)) as target:
        target.set_mark(StoreMark(state="filling", place="there", move="mov_1"), None)
    with pytest.raises(StoreMoving, match="being filled from there"):
        interlock.connect(path, agent="ada")


def test_a_copy_needs_two_stores_and_an_empty_target(
    source: SQLiteStore, target: SQLiteStore, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match="same store twice"):
        StoreCopy(source, source, ("here", "here")).run()
    with (
        closing(SQLiteStore(source.path)) as again,
        pytest.raises(BadInput, match="same store twice"),
    ):
        StoreCopy(source, again, PLACES).run()
    assert accepts(source)
    write(target, Put("a", b"1"))
    with pytest.raises(NotAllowed, match="not empty"):
        StoreCopy(source, target, PLACES).run()
    assert accepts(source)
    with pytest.raises(BadInput, match="cannot be copied"):
        StoreCopy(FaultyStore(source), target, PLACES)
    with closing(SQLiteStore(f"{tmp_path}/third.db")) as third:
        with pytest.raises(Interrupted):
            StoreCopy(source, third, PLACES, report=_dies_in("comparing")).run()
        with closing(SQLiteStore(f"{tmp_path}/fourth.db")) as fourth:
            with pytest.raises(NotAllowed, match="is being copied to there"):
                StoreCopy(source, fourth, ("here", "fourth")).run()
            with pytest.raises(NotAllowed, match="is being filled from here"):
                StoreCopy(fourth, third, ("fourth", "there")).run()
            with pytest.raises(NotAllowed, match="is being copied to there"):
                StoreCopy(source, fourth, ("here", "fourth")).abort()
        StoreCopy(source, third, PLACES).run()


def test_what_a_client_writes_to_the_target_until_it_is_marked_is_kept(
    source: SQLiteStore, target: SQLiteStore
) -> None:
    def late(progress: CopyProgress) -> None:
        if progress.step == "frozen":
            write(target, Put("a", b"1"))

    work(source)
    with pytest.raises(NotAllowed, match="not empty"):
        StoreCopy(source, target, PLACES, report=late).run()
    assert StoreCopy(source, target, PLACES).abort().opened
    assert accepts(source)
    assert target.read("a")["a"] is not None
    assert accepts(target)


def test_a_record_that_does_not_verify_is_moved_only_on_request(
    source: SQLiteStore, target: SQLiteStore
) -> None:
    work(source)
    forged = source.read("tasks/one/data")["tasks/one/data"]
    assert forged is not None
    hand(source).put(forge(forged))
    with pytest.raises(StoreDamaged, match="does not verify"):
        StoreCopy(source, target, PLACES).run()
    assert accepts(source)
    StoreCopy(source, target, PLACES).run(damaged=True)
    assert content(target) == content(source)


def forge(item: Item) -> Item:
    return Item(item.key, b'{"n": 2}', item.revision, item.created, item.entry, item.hash)


def test_a_difference_between_the_two_is_found(source: SQLiteStore, target: SQLiteStore) -> None:
    def meddle(progress: CopyProgress) -> None:
        if progress.step == "comparing":
            mark = target.mark()
            assert mark is not None
            item = next(item for item in content(source)[0] if item.key > "t")
            target.load(mark.move, [forge(item)])

    work(source)
    with pytest.raises(StoreDamaged, match="the copy in there differs"):
        StoreCopy(source, target, PLACES, report=meddle).run()
    StoreCopy(source, target, PLACES).run()
    assert content(target) == content(source)


def test_a_move_to_a_less_durable_store_says_so(source: SQLiteStore, target: SQLiteStore) -> None:
    assert not StoreCopy(source, target, PLACES).run().warning
    assert "less durable" in StoreCopy(target, MemoryStore(), PLACES).run().warning


def test_a_log_that_the_target_cannot_hold_is_refused_before_anything_changes(
    source: SQLiteStore,
) -> None:
    class Small(MemoryStore):
        capabilities = replace(MemoryStore.capabilities, max_log=5)

    work(source)
    with pytest.raises(StoreFull, match="too young"):
        StoreCopy(source, Small(), PLACES).run()
    assert accepts(source)


@pytest.mark.parametrize("away", ["source", "target"])
def test_a_server_that_is_away_for_longer_than_every_limit_ends_the_run_and_not_the_move(
    away: str, redis_server: RedisServer, tmp_path: Path, stack: ExitStack
) -> None:
    proxy = stack.enter_context(Proxy("127.0.0.1", redis_server.port))
    server, file = proxy.through(redis_server.url(tmp_path.name)), f"{tmp_path}/file.db"
    urls = (server, file) if away == "source" else (file, server)
    stores = [stack.enter_context(closing(open_store(url, filling=True))) for url in urls]
    far = stores[0] if away == "source" else stores[1]
    patience, far.patience = far.patience, 0.3  # type: ignore[attr-defined]  # it is a server

    def cut(progress: CopyProgress) -> None:
        if progress.step == "copying entries":
            proxy.cut()

    work(stores[0])
    with pytest.raises(StoreAway):
        StoreCopy(stores[0], stores[1], urls, report=cut).run()
    if away == "target":
        assert not accepts(stores[0])
    proxy.heal()
    far.patience = patience  # type: ignore[attr-defined]  # the client pauses between connections
    assert not accepts(stores[0])
    assert StoreCopy(stores[0], stores[1], urls).run().resumed
    assert content(stores[1]) == content(stores[0])


def test_a_full_disk_of_the_target_ends_the_run_and_the_next_one_goes_on(
    source: SQLiteStore, target: SQLiteStore
) -> None:
    def fill(progress: CopyProgress) -> None:
        if progress.step == "marked":
            limit(target, 2)

    work(source)
    write(source, *(Put(f"large/{number}", bytes(5000)) for number in range(20)))
    with pytest.raises(StoreFull):
        StoreCopy(source, target, PLACES, report=fill).run(damaged=True)
    with pytest.raises(StoreFull):
        StoreCopy(source, target, PLACES).run(damaged=True)
    assert not accepts(source)
    limit(target, 1000)
    assert StoreCopy(source, target, PLACES).run(damaged=True).resumed
    assert content(target) == content(source)


def test_a_source_that_is_replaced_meanwhile_ends_the_run_and_the_new_one_is_moved(
    source: SQLiteStore, target: SQLiteStore, tmp_path: Path
) -> None:
    """As by a person who puts an older file in its place, without its write-ahead log."""

    def replace_file(progress: CopyProgress) -> None:
        if progress.step == "copying items":
            os.replace(f"{tmp_path}/older.db", source.path)
            for beside in ("-wal", "-shm"):
                os.unlink(source.path + beside)

    work(source)
    drive(Runner(source).store_id(), source)
    with closing(apsw.Connection(source.path)) as db:
        db.execute("VACUUM INTO ?", (f"{tmp_path}/older.db",))
    write(source, Put("a/1", b"later"))
    with pytest.raises(StoreMissing, match="replaced while it was in use"):
        StoreCopy(source, target, PLACES, report=replace_file).run(damaged=True)
    assert not accepts(target)
    source.close()
    with closing(SQLiteStore(source.path)) as again:
        assert accepts(again), "it has no mark"
        StoreCopy(again, target, PLACES).run()
        assert content(target) == content(again)
        assert target.read("a/1")["a/1"] is None, "nothing of the other file is left"


KEY = st.sampled_from([f"{folder}/{name}" for folder in "alz" for name in "abc"] + ["live/x"])
CHANGE = st.tuples(KEY, st.binary(max_size=5), st.sampled_from(["put", "quiet", "delete"]))


@given(st.lists(CHANGE, max_size=20))
def test_whatever_was_written_is_the_same_after_moves_to_and_fro(
    changes: list[tuple[str, bytes, str]],
) -> None:
    clock = FakeClock()
    first, second, third = (MemoryStore(clock) for _ in range(3))
    for key, value, kind in changes:
        ttl = 60.0 if key.startswith("live/") else None
        if kind == "delete":
            write(first, deletes=(key,))
        else:
            write(first, Put(key, value, ttl), quiet=kind == "quiet")
    hops: list[tuple[MovableStore, MovableStore]] = [(first, second), (second, third)]
    for one, two in hops:
        StoreCopy(one, two, PLACES).run(damaged=True)
        assert content(two) == content(one)
        assert living(two) == living(one)
        assert write(two, Put("after/1", b"")) > one.read().revision


def _dies_at(step: int) -> Callable[[CopyProgress], None]:
    numbers = itertools.count(1)

    def report(_progress: CopyProgress) -> None:
        if next(numbers) == step:
            raise Interrupted

    return report


def _dies_in(step: str) -> Callable[[CopyProgress], None]:
    def report(progress: CopyProgress) -> None:
        if progress.step == step:
            raise Interrupted

    return report
