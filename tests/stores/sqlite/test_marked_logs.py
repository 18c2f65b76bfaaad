"""What SQLite takes for a part of a store with a mark: only what Interlock made."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import apsw
import pytest
from tests.processes.helpers import ProcessGroup
from tests.stores.sqlite.store_programs import increase, put

from interlock import file_mark, work_tree_list
from interlock.errors import StoreGone, StoreMissing, StoreUnsuitable
from interlock.stores.sqlite import SQLiteStore, backup, files


@pytest.fixture
def marked(path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A store with a mark, and a key of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", f"{tmp_path}/state")
    with_key(path)
    work_tree_list.allow_store(path)
    if not file_mark.read(path):
        pytest.skip("no extended attributes here")
    return path


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time for another program that closes the store."""
    monkeypatch.setattr(files, "CLOSING", 0.0)


def with_key(path: str) -> None:
    store = SQLiteStore(path)
    store.transact(lambda _: put("k/own"))
    store.close()


def keys(path: str) -> set[str]:
    store = SQLiteStore(path, create=False)
    try:
        return {key for key, item in store.read("k/own", "k/evil").items.items() if item}
    finally:
        store.close()


@pytest.fixture
def evil(programs: ProcessGroup, tmp_path: Path) -> str:
    """The log of another store, which has every page of it."""
    other = str(tmp_path / "other.db")
    programs.start("leave_log", other).finish()
    return f"{other}-wal"


@pytest.mark.usefixtures("impatient")
def test_a_log_with_every_page_is_not_played_into_the_store(marked: str, evil: str) -> None:
    shutil.copy(evil, f"{marked}-wal")
    with pytest.raises(StoreUnsuitable, match="not made by Interlock"):
        SQLiteStore(marked)
    assert Path(f"{marked}-wal").read_bytes() == Path(evil).read_bytes()
    os.unlink(f"{marked}-wal")
    assert keys(marked) == {"k/own"}


def journal_of(path: str, size: int) -> bytes:
    """What undoes the last change of a database: its first page as it was."""
    page = Path(path).read_bytes()[:size]
    nonce = 7
    total = nonce + sum(page[at] for at in range(size - 200, 0, -200))
    head = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + b"".join(
        number.to_bytes(4, "big") for number in (1, nonce, 1, 512, size)
    )
    body = (1).to_bytes(4, "big") + page + (total & 0xFFFFFFFF).to_bytes(4, "big")
    return head.ljust(512, b"\0") + body


@pytest.mark.usefixtures("impatient")
def test_a_journal_is_not_played_into_the_store(marked: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other.db")
    apsw.Connection(other).execute("CREATE TABLE evil (x)")
    journal = Path(f"{marked}-journal")
    journal.write_bytes(journal_of(other, 4096))
    before = Path(marked).read_bytes()
    with pytest.raises(StoreUnsuitable, match="-journal was not made by Interlock"):
        SQLiteStore(marked)
    assert Path(marked).read_bytes() == before
    journal.unlink()
    assert keys(marked) == {"k/own"}


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
@pytest.mark.parametrize("plant", [Path.touch, lambda path: path.symlink_to("own"), os.mkfifo])
@pytest.mark.usefixtures("impatient")
def test_an_empty_file_a_link_and_a_pipe_are_refused(
    marked: str, suffix: str, plant: Callable[[Path], None], tmp_path: Path
) -> None:
    (tmp_path / "own").touch()
    file_mark.write(str(tmp_path / "own"), str(file_mark.read(marked)))
    plant(Path(marked + suffix))
    with pytest.raises((StoreUnsuitable, StoreGone)):
        SQLiteStore(marked)
    os.unlink(marked + suffix)
    assert keys(marked) == {"k/own"}


def test_a_file_of_a_program_that_closes_at_this_moment_is_waited_for(
    marked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = apsw.Connection(marked)
    other.pragma("user_version")
    sleep = time.sleep

    def close(seconds: float) -> None:
        other.close()
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", close)
    assert keys(marked) == {"k/own"}


@pytest.mark.usefixtures("impatient")
def test_a_log_that_was_removed_from_a_live_store_is_named(
    marked: str, programs: ProcessGroup
) -> None:
    live = programs.start("keep_open", marked)
    live.read_line()
    os.unlink(f"{marked}-wal")
    live.kill()
    for _ in range(2):
        with pytest.raises(StoreGone, match="last commits may be lost") as caught:
            SQLiteStore(marked)
        assert caught.value.path == marked
    assert not os.path.exists(f"{marked}-wal")
    before = file_mark.read(marked)
    work_tree_list.allow_store(marked)
    assert file_mark.read(marked) == before
    assert keys(marked) == {"k/own"}


@pytest.mark.usefixtures("impatient")
def test_a_backup_replaces_a_store_whose_log_was_removed(marked: str, tmp_path: Path) -> None:
    copy = str(tmp_path / "copy.db")
    backup.back_up(marked, copy)
    Path(f"{marked}-shm").touch()
    file_mark.write(f"{marked}-shm", str(file_mark.read(marked)))
    with pytest.raises(StoreGone):
        backup.back_up(marked, str(tmp_path / "second.db"))
    backup.restore(marked, copy, force=True, before=lambda _: None)
    work_tree_list.allow_store(marked)
    assert keys(marked) == {"k/own"}


def test_a_restore_of_a_store_that_is_gone_takes_no_log_in(
    marked: str, evil: str, tmp_path: Path
) -> None:
    copy = str(tmp_path / "copy.db")
    backup.back_up(marked, copy)
    os.unlink(marked)
    shutil.copy(evil, f"{marked}-wal")
    backup.restore(marked, copy, before=lambda _: None)
    work_tree_list.allow_store(marked)
    assert keys(marked) == {"k/own"}


@pytest.mark.usefixtures("impatient")
def test_a_backup_plays_no_log_in(marked: str, evil: str, tmp_path: Path) -> None:
    shutil.copy(evil, f"{marked}-wal")
    with pytest.raises(StoreUnsuitable):
        backup.back_up(marked, str(tmp_path / "copy.db"))
    with pytest.raises(StoreUnsuitable):
        backup.restore(marked, f"{evil}".removesuffix("-wal"), force=True, before=lambda _: None)
    os.unlink(f"{marked}-wal")
    assert keys(marked) == {"k/own"}


@pytest.mark.usefixtures("impatient")
def test_a_log_that_is_planted_while_a_program_forks_is_not_played(marked: str, evil: str) -> None:
    store = SQLiteStore(marked)
    assert store.rest()
    assert not os.path.exists(f"{marked}-wal")
    shutil.copy(evil, f"{marked}-wal")
    store.wake()
    with pytest.raises(StoreMissing, match="not made by Interlock"):
        store.read("k/own")
    store.close()
    assert Path(f"{marked}-wal").read_bytes() == Path(evil).read_bytes()
    os.unlink(f"{marked}-wal")
    assert keys(marked) == {"k/own"}


def test_another_program_may_use_the_store_and_be_the_last_to_close_it(marked: str) -> None:
    store = SQLiteStore(marked)
    other = apsw.Connection(marked)
    assert other.execute("SELECT count(*) FROM item").fetchone() == (1,)
    store.close()
    assert file_mark.read(f"{marked}-wal") == file_mark.read(marked)
    other.close()
    assert not os.path.exists(f"{marked}-wal")
    assert keys(marked) == {"k/own"}
    assert not os.path.exists(f"{marked}-shm")


def test_the_lock_while_it_is_opened_leaves_those_of_other_connections(marked: str) -> None:
    first = SQLiteStore(marked)
    SQLiteStore(marked).close()
    inode = os.stat(marked).st_ino
    held = [line for line in Path("/proc/locks").read_text().splitlines() if f":{inode} " in line]
    assert any(f" {os.getpid()} " in line and "READ" in line for line in held)
    first.close()


def test_a_store_that_a_restore_left_without_a_log_gets_one_with_a_mark(marked: str) -> None:
    db = apsw.Connection(marked)
    db.pragma("journal_mode", "delete")
    db.close()
    store = SQLiteStore(marked)
    assert file_mark.read(f"{marked}-wal") == file_mark.read(marked)
    assert keys(marked) == {"k/own"}
    store.close()


def test_a_store_that_gets_its_mark_while_it_is_open_goes_on(path: str) -> None:
    with_key(path)
    store = SQLiteStore(path)
    work_tree_list.allow_store(path)
    assert keys(path) == {"k/own"}
    assert store.transact(increase)
    store.close()


def test_processes_that_are_killed_at_any_moment_leave_no_store_that_is_refused(
    marked: str, programs: ProcessGroup
) -> None:
    ends = time.monotonic() + 3
    steady = programs.start("open_and_close", marked)
    steady.read_line()
    while time.monotonic() < ends:
        several = [programs.start("open_and_close", marked) for _ in range(3)]
        for process in several:
            process.read_line()
        for process in several:
            for _ in range(random.randrange(20_000)):
                os.stat(marked)
            process.kill()
        assert keys(marked) == {"k/own"}
    steady.write_line()
    assert steady.remaining_lines() == ["done"]


def test_many_processes_that_open_and_close_a_store_meet_in_it(
    marked: str, programs: ProcessGroup
) -> None:
    several = [programs.start("open_and_close", marked) for _ in range(5)]
    for process in several:
        process.read_line()
    for _ in range(50):
        assert keys(marked) == {"k/own"}
    for process in several:
        process.write_line()
        assert process.remaining_lines() == ["done"]
    assert keys(marked) == {"k/own"}


def test_a_system_without_files_that_have_no_name_makes_the_logs(
    marked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_TMPFILE")
    store = SQLiteStore(marked)
    assert file_mark.read(f"{marked}-shm") == file_mark.read(marked)
    store.close()
    assert not [name for name in os.listdir(os.path.dirname(marked)) if "-wal" in name]


def test_without_extended_attributes_nothing_is_refused(
    path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no(*_: object, **__: object) -> bytes:
        raise OSError(95, "Operation not supported")

    monkeypatch.setenv("XDG_STATE_HOME", f"{tmp_path}/state")
    monkeypatch.setattr(os, "setxattr", no)
    monkeypatch.setattr(os, "getxattr", no)
    with_key(path)
    work_tree_list.allow_store(path)
    other = apsw.Connection(path)
    other.pragma("user_version")
    assert keys(path) == {"k/own"}
    other.close()
    with suppress(FileNotFoundError):
        os.unlink(f"{path}-wal")
    assert keys(path) == {"k/own"}
