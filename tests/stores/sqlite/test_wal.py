"""The write-ahead log: durable before the answer, and in bounds when a reader stood in the way."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.processes.helpers import Process, ProcessGroup, until, until_asleep
from tests.stores.sqlite.store_programs import put
from tests.system_faults import as_system_call

import interlock
from interlock.errors import OutcomeUnknown, StoreAway
from interlock.store import Check, Txn, View
from interlock.stores.sqlite import SQLiteStore, files, wal

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
    sync = wal._sync

    def once(fd: int) -> None:
        if threading.current_thread().name == "slow":
            reached.set()
            go_on.wait(60)
        sync(fd)

    def commit() -> None:
        slow.transact(lambda _: put("k/slow"))
        done.set()

    monkeypatch.setattr(wal, "_sync", once)
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
        patched.setattr(wal, "_sync", as_system_call(refuse))
        with pytest.raises(OutcomeUnknown, match="could not be made durable"):
            store.transact(lambda _: put("k/lost"))
    with pytest.raises(StoreAway, match="connect again"):
        store.transact(lambda _: put("k/after"))
    store.close()
    again = SQLiteStore(path)
    assert again.transact(lambda _: put("k/again")) is not None
    assert again.read("k/after").items["k/after"] is None
    again.close()


KEY = "k/early"


class Disk:
    """The disk as this process has it: how often it was asked, and whether it works."""

    def __init__(self) -> None:
        self.asked = 0
        self.broken = False
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def sync(self, _: int) -> None:
        self.asked += 1
        self.reached.set()
        assert self.go_on.wait(60)
        if self.broken:
            raise OSError(5, "Input/output error")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr(wal, "_sync", as_system_call(made.sync))
    return made


@pytest.fixture
def early(path: str, programs: ProcessGroup) -> Iterator[Process]:
    """Another process that committed ``KEY``, and has not asked the disk yet."""
    with interlock.connect(path, agent="ada") as fleet:
        fleet.tasks.publish("t")
    process = programs.start("commit_before_the_disk", path, KEY)
    assert process.read_line() == "committed"
    yield process
    process.write_line()
    assert process.remaining_lines() == ["done"]


def _refused(store: SQLiteStore) -> object:
    return store.commit(Txn(id="x", entry=b"{}", hash="00", checks=(Check(KEY, "absent"),)))


def _nothing_changed(store: SQLiteStore) -> object:
    found = []

    def work(view: View) -> None:
        found.append(view.read(KEY)[KEY])

    store.transact(work)
    return found


def _raised(store: SQLiteStore) -> object:
    def work(view: View) -> None:
        raise LookupError(view.read(KEY)[KEY])

    return store.transact(work)


async def _async(store: SQLiteStore) -> object:
    return await store.read_async(KEY)


def _watched(store: SQLiteStore) -> object:
    return store.watch("k/", 0).take(0)


WAYS: dict[str, Callable[[SQLiteStore], object]] = {
    "read": lambda store: store.read(KEY),
    "read in a loop": lambda store: asyncio.run(_async(store)),
    "refused commit": _refused,
    "no change": _nothing_changed,
    "raised": _raised,
    "watch": _watched,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("early")
def test_no_answer_rests_on_a_commit_that_the_disk_may_lose(
    path: str, disk: Disk, way: str
) -> None:
    store = SQLiteStore(path)
    disk.broken = True
    with pytest.raises(StoreAway, match="could not be made durable"):
        WAYS[way](store)
    store.close()


@pytest.mark.parametrize("way", [way for way in WAYS if way != "raised"])
@pytest.mark.usefixtures("early")
def test_an_answer_waits_for_the_disk_and_not_for_the_process_that_committed(
    path: str, disk: Disk, way: str
) -> None:
    store, answers = SQLiteStore(path), list[object]()
    disk.go_on.clear()
    thread = threading.Thread(target=lambda: answers.append(WAYS[way](store)))
    thread.start()
    assert disk.reached.wait(60)
    until_asleep(thread)
    assert not answers
    disk.go_on.set()
    thread.join()
    assert answers
    assert disk.asked == 1
    store.close()


@pytest.mark.usefixtures("early")
def test_a_slow_disk_does_not_stop_the_event_loop_that_reads(path: str, disk: Disk) -> None:
    store = SQLiteStore(path)
    store._engine.wal.slow = True

    async def read_beside_another() -> None:
        disk.go_on.clear()
        reading = asyncio.create_task(_async(store))
        await asyncio.to_thread(disk.reached.wait, 60)
        assert not reading.done()
        disk.go_on.set()
        await reading

    asyncio.run(read_beside_another())
    store.close()


@pytest.mark.usefixtures("early")
def test_the_threads_that_wait_for_the_disk_ask_it_once_together(path: str, disk: Disk) -> None:
    store = SQLiteStore(path)
    revision = store._read((KEY,), None).revision
    disk.go_on.clear()
    threads = [threading.Thread(target=store._engine.wal.wait, args=(revision,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        until_asleep(thread)
    disk.go_on.set()
    for thread in threads:
        thread.join()
    assert disk.asked == 1
    store.close()


def test_what_any_process_made_durable_is_read_without_the_disk(path: str, disk: Disk) -> None:
    store, other = SQLiteStore(path), SQLiteStore(path)
    store.transact(lambda _: put("k/a"))
    asked = disk.asked
    for way in ("read", "no change", "watch"):
        assert WAYS[way](other)
        assert WAYS[way](store)
    later = SQLiteStore(path)
    assert later.read("k/a")["k/a"] is not None
    assert disk.asked == asked
    for each in (store, other, later):
        each.close()


def test_after_the_disk_refused_what_is_durable_is_still_read(path: str, disk: Disk) -> None:
    store, other = SQLiteStore(path), SQLiteStore(path)
    store.transact(lambda _: put("k/a"))
    disk.broken = True
    assert other.read("k/a")["k/a"] is not None
    with pytest.raises(OutcomeUnknown):
        store.transact(lambda _: put("k/b"))
    asked = disk.asked
    for each in (store, store, other, other):
        with pytest.raises(StoreAway, match="could not be made durable"):
            each.read("k/a")
    assert disk.asked == asked + 1, "nothing asks again once it was refused"
    store.close()
    other.close()


@pytest.mark.parametrize(
    "note", [(10_000).to_bytes(8) * 2, b"", b"\xff" * 15, (1).to_bytes(8) + (2).to_bytes(8)]
)
def test_a_note_of_another_store_or_half_a_note_counts_as_nothing(
    path: str, note: bytes, disk: Disk
) -> None:
    SQLiteStore(path).close()
    Path(path + "-bells", "synced").write_bytes(note)
    store, other = SQLiteStore(path), SQLiteStore(path)
    disk.broken = True
    with pytest.raises(OutcomeUnknown):
        store.transact(lambda _: put("k/a"))
    with pytest.raises(StoreAway):
        other.read("k/a")
    store.close()
    other.close()


def test_without_a_note_each_process_asks_the_disk_by_itself(path: str, disk: Disk) -> None:
    SQLiteStore(path).close()
    os.unlink(path + "-bells/synced")
    os.mkdir(path + "-bells/synced")
    store, other = SQLiteStore(path), SQLiteStore(path)
    store.transact(lambda _: put("k/a"))
    asked = disk.asked
    assert other.read("k/a")["k/a"] is not None
    assert other.read("k/a")["k/a"] is not None
    assert disk.asked == asked + 1
    store.close()
    other.close()


def test_a_waiter_gets_its_token_when_the_disk_has_the_handover(
    path: str, programs: ProcessGroup, disk: Disk
) -> None:
    holder = programs.start("release_before_the_disk", path)
    assert holder.read_line() == "held"
    tokens = list[int]()
    with interlock.connect(path, agent="bob") as fleet:

        def take() -> None:
            with fleet.lock("merge", wait=60) as held:
                tokens.append(held.token)

        thread = threading.Thread(target=take)
        thread.start()
        until(lambda: fleet.locks.show("merge").waiters)
        until_asleep(thread)
        disk.reached.clear()
        disk.go_on.clear()
        holder.write_line()
        assert holder.read_line() == "committed"
        assert disk.reached.wait(60), "the waiter looks by itself"
        until_asleep(thread)
        assert not tokens
        disk.go_on.set()
        thread.join()
        assert tokens
    holder.write_line()
    assert holder.remaining_lines() == ["released"]


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
