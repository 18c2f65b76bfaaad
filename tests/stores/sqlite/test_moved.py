"""A store whose file is moved, deleted or replaced while it is in use."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.processes.helpers import until

import interlock
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
