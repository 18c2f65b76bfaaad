"""A store whose file is moved, deleted or replaced while it is in use."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from tests.processes.helpers import ProcessGroup, until
from tests.stores.sqlite.store_programs import put

import interlock
from interlock import aio
from interlock.errors import StoreMissing
from interlock.stores.sqlite import SQLiteStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def test_a_holder_notices_that_its_store_was_replaced(path: Path) -> None:
    fleet = interlock.connect(str(path), agent="ada", ttl=1)
    block = fleet.lock("merge")
    held = block.__enter__()
    path.rename(path.with_name("moved.db"))
    interlock.connect(str(path)).close()
    until(lambda: held.lost)
    with pytest.raises(interlock.Lost):
        block.__exit__(None, None, None)
    fleet.close()


@pytest.mark.parametrize("way", ["deleted", "moved"])
def test_every_call_says_that_the_file_is_gone(path: Path, way: str) -> None:
    with interlock.connect(str(path), agent="ada") as fleet:
        if way == "deleted":
            path.unlink()
        else:
            path.rename(path.with_name("moved.db"))
        assert "moved, deleted or replaced" in until(lambda: _complaint(fleet))


def test_a_new_store_in_the_place_of_a_deleted_one_is_not_harmed(path: Path) -> None:
    old = interlock.connect(str(path), agent="ada")
    old.locks.acquire("merge")
    for file in path.parent.glob("store.db*"):
        if file.is_file():
            file.unlink()
    with interlock.connect(str(path), agent="bob") as new:
        taken = new.locks.acquire("merge")
        old.close()
        assert new.locks.show("merge").holder == "bob"
        assert new.store.read(f"log/{_last(new)}").items
        assert isinstance(taken, interlock.Acquired)
    store = SQLiteStore(str(path))
    assert store.check() == []
    store.close()


def _deleted(path: Path, _backup: Path) -> None:
    path.unlink()


def _replaced(path: Path, backup: Path) -> None:
    backup.rename(path)


def _without_log(path: Path, _backup: Path) -> None:
    path.with_name("store.db-wal").unlink()


def _without_index(path: Path, _backup: Path) -> None:
    path.with_name("store.db-shm").unlink()


def _copied_over(path: Path, backup: Path) -> None:
    shutil.copyfile(backup, path)


RUINS = [_deleted, _replaced, _without_log, _without_index, _copied_over]


@pytest.mark.parametrize("ruin", RUINS)
def test_a_holder_a_waiter_and_a_worker_get_nothing_out_of_a_store_that_is_gone(
    path: Path, programs: ProcessGroup, ruin: Callable[[Path, Path], None]
) -> None:
    backup = path.with_name("backup.db")
    SQLiteStore(str(path)).close()
    shutil.copyfile(path, backup)
    holder = programs.start("hold_busily", path)
    assert holder.read_line() == "held"
    waiter, worker = (programs.start("wait_for", path, what) for what in ("lock", "task"))
    assert waiter.read_line() == worker.read_line() == "ready"
    holder.write_line()
    assert holder.read_line() == waiter.read_line() == worker.read_line() == "grown"
    ruin(path, backup)
    ruined = time.monotonic()
    answered, lost = holder.read_line().split()
    assert float(answered) < ruined, "a commit that began afterwards was acknowledged"
    assert lost == "True"
    assert [holder.read_line() for _ in range(3)] == ["store_missing", "store_missing", "fenced"]
    assert waiter.read_line() == worker.read_line() == "missing"
    for actor in (holder, waiter, worker):
        actor.finish()


def test_a_restored_store_is_whole_after_its_old_clients_ended(
    path: Path, programs: ProcessGroup
) -> None:
    SQLiteStore(str(path)).close()
    backup = path.with_name("backup.db")
    shutil.copyfile(path, backup)
    holder = programs.start("hold_busily", path)
    assert holder.read_line() == "held"
    holder.write_line()
    assert holder.read_line() == "grown"
    for side in ("-wal", "-shm"):
        path.with_name(path.name + side).unlink()
    backup.rename(path)
    holder.remaining_lines()
    store = SQLiteStore(str(path))
    assert store.check() == []
    assert store.read("k/busy")["k/busy"] is None
    store.close()


def test_an_older_state_behind_the_back_of_a_client_is_noticed(path: Path) -> None:
    """SQLite's own restore is one more transaction for it, in the same file."""
    SQLiteStore(str(path)).close()
    backup = path.with_name("backup.db")
    shutil.copyfile(path, backup)
    store, reader = SQLiteStore(str(path)), SQLiteStore(str(path))
    for _ in range(3):
        store.transact(lambda _: put("k/a"))
    reader.transact(lambda _: put("k/a"))
    with (
        closing(apsw.Connection(str(path))) as here,
        closing(apsw.Connection(str(backup))) as there,
        here.backup("main", there, "main") as restore,
    ):
        restore.step(-1)
    with pytest.raises(StoreMissing, match="went back from revision 3"):
        store.transact(lambda _: put("k/a"))
    with pytest.raises(StoreMissing, match="went back from revision 4"):
        reader.read("k/a")
    store.close()
    reader.close()


def test_a_store_behind_a_link_is_the_one_that_it_points_to(path: Path) -> None:
    link = path.with_name("link.db")
    link.symlink_to(path.name)
    with (
        interlock.connect(str(link), agent="ada") as ada,
        interlock.connect(str(path), agent="bob") as bob,
    ):
        assert isinstance(ada.locks.acquire("merge"), interlock.Acquired)
        assert bob.locks.show("merge").holder == "ada"
        assert isinstance(bob.locks.acquire("merge"), interlock.LockBusy)
    names = {found.name for found in path.parent.iterdir()}
    assert names == {"link.db", "store.db", "store.db-bells"}


def test_a_link_that_points_elsewhere_by_now_is_a_store_that_was_replaced(path: Path) -> None:
    other = path.with_name("other.db")
    SQLiteStore(str(other)).close()
    link, fresh = path.with_name("link.db"), path.with_name("fresh.db")
    link.symlink_to(path.name)
    fresh.symlink_to(other.name)
    with interlock.connect(str(link), agent="ada") as ada:
        ada.locks.acquire("merge")
        fresh.rename(link)
        with pytest.raises(StoreMissing, match=r"link\.db was moved, deleted or replaced"):
            ada.locks.acquire("deploy")
    with interlock.connect(str(link), agent="bob") as bob:
        assert isinstance(bob.locks.acquire("merge"), interlock.Acquired)


def test_a_block_in_an_event_loop_is_cancelled_when_its_store_is_gone(path: Path) -> None:
    async def main() -> None:
        async with await aio.connect(str(path), agent="ada") as fleet, fleet.lock("merge"):
            await asyncio.to_thread(path.unlink)
            await asyncio.sleep(60)

    with pytest.raises(interlock.Lost):
        asyncio.run(asyncio.wait_for(main(), 30))


@pytest.mark.parametrize("moment", ["before it is read", "after it is read"])
def test_an_opening_that_meets_a_restore_opens_the_restored_file(
    path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    SQLiteStore(str(path)).close()
    begin, met = SQLiteStore._begin_boot, list[int]()

    def restored(self: SQLiteStore, db: apsw.Connection) -> None:
        met.append(path.stat().st_ino)
        if len(met) == 1:
            shutil.copy(path, f"{path}.new")
            Path(f"{path}.new").rename(path)
            if moment == "before it is read":
                raise apsw.CorruptError("the log of the old file")
        begin(self, db)

    monkeypatch.setattr(SQLiteStore, "_begin_boot", restored)
    with closing(SQLiteStore(str(path), create=False)) as store:
        store.commit(put("a/1"))
        assert met == [met[0], path.stat().st_ino]
        assert met[0] != met[1]
        assert store.read("a/1")["a/1"] is not None


class TakenMeanwhile:
    """A lock that a commit takes just after a look at it."""

    def locked(self) -> bool:
        return False

    def acquire(self, blocking: bool = True) -> bool:
        assert not blocking, "a read waits for a commit"
        return False

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None: ...


def test_the_first_read_does_not_wait_for_a_commit(path: Path) -> None:
    with closing(SQLiteStore(str(path))) as store:
        using = store._writer.using
        store._writer.using = TakenMeanwhile()  # type: ignore[assignment]
        try:
            assert store.read("a/1")["a/1"] is None
        finally:
            store._writer.using = using


def test_an_emptied_file_is_no_store(path: Path) -> None:
    path.touch()
    with pytest.raises(StoreMissing, match="empty"):
        SQLiteStore(str(path), create=False)


def test_a_missing_folder_is_a_slip_and_not_made(path: Path) -> None:
    with pytest.raises(StoreMissing, match="no folder"):
        SQLiteStore(str(path.parent / "slip" / "store.db"))
    assert not (path.parent / "slip").exists()


def _complaint(fleet: interlock.Fleet) -> str:
    try:
        fleet.locks.heartbeat("merge")
    except StoreMissing as missing:
        return str(missing)
    return ""


def _last(fleet: interlock.Fleet) -> str:
    return fleet.record.log(limit=1)[-1].id
