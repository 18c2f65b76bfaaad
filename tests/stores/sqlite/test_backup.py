"""Backup and restore: consistent, never over something else, and no token twice."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import apsw
import pytest

import interlock
from interlock.errors import (
    BadInput,
    NotAllowed,
    StoreDamaged,
    StoreMissing,
    StoreMoved,
    StoreTrouble,
)
from interlock.nouns.fleet.moving import record_restore
from interlock.nouns.record.verify import verify
from interlock.steps import drive
from interlock.store import Log, Put, StoreMark
from interlock.stores.sqlite import SQLiteStore, backup
from interlock.stores.sqlite.backup import JUMP, RestoreFacts, back_up
from interlock.testing.conformance.place import write


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = str(tmp_path / "store.db")
    with interlock.connect(path, agent="ada") as ada:
        ada.locks.acquire("merge", ttl=600)
        ada.tasks.publish("one", {"n": 1})
    return path


@pytest.fixture
def copy(store: str, tmp_path: Path) -> str:
    path = str(tmp_path / "copy.backup")
    back_up(store, path)
    return path


def restore(store: str, copy: str, *, force: bool = False) -> RestoreFacts:
    return backup.restore(
        store, copy, force=force, before=lambda part: record_restore(part, copy, store)
    )


def files(folder: Path) -> set[str]:
    return {each for each in os.listdir(folder) if not each.endswith("-bells")}


def test_a_backup_is_consistent_while_others_commit(tmp_path: Path) -> None:
    path, stop = str(tmp_path / "store.db"), threading.Event()

    def commit() -> None:
        with closing(SQLiteStore(path)) as store:
            number = 0
            while not stop.is_set():
                number += 1
                value = str(number).encode()
                write(store, Put("a/1", value), Put("b/1", value))

    writers = [threading.Thread(target=commit) for _ in range(2)]
    with closing(SQLiteStore(path)) as store:
        for each in range(100):
            write(store, Put(f"a/{each}", bytes(5000)))
        write(store, Put("a/1", b"0"), Put("b/1", b"0"))  # a writer may come after the first copy
        for writer in writers:
            writer.start()
        try:
            for number in range(5):
                copy = str(tmp_path / f"{number}.backup")
                made = back_up(path, copy)
                with closing(SQLiteStore(copy, create=False)) as found:
                    snapshot = found.read("a/1", "b/1", Log(limit=1, last=True))
                    one, two = snapshot["a/1"], snapshot["b/1"]
                    assert one is not None
                    assert two is not None
                    assert two.revision == one.revision == snapshot.revision == made["revision"]
        finally:
            stop.set()
            for writer in writers:
                writer.join()


def test_a_backup_is_no_store(copy: str) -> None:
    with pytest.raises(StoreMoved, match="is a backup of"):
        interlock.connect(copy, agent="ada")


def test_a_restored_store_grants_no_token_a_second_time(store: str, copy: str) -> None:
    with interlock.connect(store, agent="bob") as bob:
        tokens = [bob.locks.acquire(f"lock-{number}", ttl=600) for number in range(5)]
    highest = max(got.token or 0 for got in tokens if isinstance(got, interlock.Acquired))
    done = restore(store, copy, force=True)
    assert done["lost"] >= 5
    assert done["revision"] > highest + JUMP
    with interlock.connect(store, agent="eve") as eve:
        got = eve.locks.acquire("lock-0")
        assert isinstance(got, interlock.Acquired)
        assert (got.token or 0) > highest
        assert eve.tasks.show("one")
        taken = eve.locks.acquire("merge")
        assert isinstance(taken, interlock.Acquired), "no session or grant outlives a restore"
        with closing(SQLiteStore(store)) as found:
            assert drive(verify(found.capabilities), found)


def test_a_restore_without_the_store_skips_what_it_may_have_granted(store: str, copy: str) -> None:
    highest = 0
    with interlock.connect(store, agent="bob") as bob:
        for _ in range(20):
            lost = bob.locks.acquire("deploy")
            assert isinstance(lost, interlock.Acquired)
            highest = lost.token or 0
            bob.locks.release("deploy", token=lost.token)
    os.unlink(store)
    restore(store, copy)
    with interlock.connect(store, agent="eve") as eve:
        got = eve.locks.acquire("deploy")
        assert isinstance(got, interlock.Acquired)
        assert (got.token or 0) > highest


def test_two_restores_of_one_backup_go_on_one_above_the_other(store: str, copy: str) -> None:
    first = restore(store, copy, force=True)
    second = restore(store, copy, force=True)
    assert second["revision"] > first["revision"] + JUMP
    assert len({first["kept"], second["kept"]}) == 2


def test_the_replaced_store_is_kept_and_accepts_no_changes(store: str, copy: str) -> None:
    with interlock.connect(store, agent="bob") as bob:
        bob.tasks.publish("later")
    done = restore(store, copy, force=True)
    with interlock.connect(done["kept"]) as old:
        assert old.tasks.show("later")
    with pytest.raises(StoreMoved):
        interlock.connect(done["kept"], agent="bob")


def test_nothing_is_replaced_without_consent(store: str, copy: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="exists"):
        back_up(store, copy)
    with pytest.raises(BadInput, match="--force replaces it"):
        restore(store, copy)
    with pytest.raises(BadInput, match="the store itself"):
        back_up(store, store, force=True)
    other = str(tmp_path / "other.db")
    SQLiteStore(other).close()
    with pytest.raises(NotAllowed, match="is a store and not a backup"):
        back_up(store, other, force=True)
    back_up(store, copy, force=True)
    assert files(tmp_path) == {"store.db", "copy.backup", "other.db"}, "nothing is left behind"


def test_a_restore_under_a_running_agent_is_refused(store: str, copy: str) -> None:
    with interlock.connect(store, agent="bob") as bob:
        with pytest.raises(NotAllowed, match="open; stop every agent"):
            restore(store, copy, force=True)
        assert bob.locks.acquire("deploy"), "and harms nobody"
    restore(store, copy, force=True)


def test_an_agent_that_connects_in_the_midst_of_a_restore_commits_nothing_to_the_old_file(
    store: str, copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    came: list[SQLiteStore] = []
    old = f"{store}.old"

    def arrive(path: str) -> str:
        came.append(SQLiteStore(path))
        return old

    monkeypatch.setattr(backup, "_kept_name", arrive)
    restore(store, copy, force=True)
    (late,) = came
    with closing(late), pytest.raises(StoreTrouble, match="moved, deleted or replaced"):
        write(late, Put("a/1", b"lost"))
    with closing(SQLiteStore(old)) as found:
        assert found.read("a/1")["a/1"] is None
    with closing(SQLiteStore(store)) as found:
        assert found.read("a/1")["a/1"] is None


@pytest.fixture(params=["_built", "_opened_once", "_kept_name", "_synchronize"])
def stage(request: pytest.FixtureRequest) -> Iterator[str]:
    return request.param  # type: ignore[no-any-return]


def test_a_restore_that_is_interrupted_leaves_the_store_as_it_was(
    store: str, copy: str, stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def struck(*_args: object, **_kwargs: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(backup, stage, struck)
        with pytest.raises(KeyboardInterrupt):
            restore(store, copy, force=True)
    assert files(tmp_path) == {"store.db", "copy.backup"}
    with interlock.connect(store, agent="bob") as bob:
        assert isinstance(bob.locks.acquire("merge"), interlock.LockBusy), "ada still has it"
    restore(store, copy, force=True)


def test_a_damaged_store_is_replaced_and_a_damaged_backup_is_not_used(
    store: str, copy: str, tmp_path: Path
) -> None:
    Path(store).write_bytes(b"not a database" * 1000)
    restore(store, copy, force=True)
    with interlock.connect(store, agent="bob") as bob:
        assert bob.tasks.show("one")
    data = bytearray(Path(copy).read_bytes())
    data[5000:9000] = os.urandom(4000)
    broken = tmp_path / "broken.backup"
    broken.write_bytes(data)
    with pytest.raises((StoreDamaged, StoreTrouble)):
        restore(store, str(broken), force=True)
    with pytest.raises(StoreMissing, match="no backup"):
        restore(store, str(tmp_path / "none"), force=True)
    foreign = tmp_path / "foreign.db"
    apsw.Connection(str(foreign)).execute("CREATE TABLE x (y)")
    with pytest.raises(StoreDamaged, match="not a store"):
        restore(store, str(foreign), force=True)
    with interlock.connect(store, agent="bob") as bob:
        assert bob.tasks.show("one")


def test_a_store_that_was_moved_is_neither_backed_up_nor_replaced(
    store: str, copy: str, tmp_path: Path
) -> None:
    with closing(SQLiteStore(store)) as opened:
        opened.set_mark(StoreMark(state="moved", place="redis://there", move="mov_1"), None)
    with pytest.raises(NotAllowed, match="redis://there"):
        back_up(store, str(tmp_path / "another"))
    with pytest.raises(NotAllowed, match="two stores of one"):
        restore(store, copy, force=True)
    with suppress(BadInput):
        restore(str(tmp_path / "elsewhere.db"), copy)
    assert (tmp_path / "elsewhere.db").exists()
