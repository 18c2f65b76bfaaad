"""Which files a store opens, which it migrates, and which it refuses."""

from __future__ import annotations

import fcntl
import os
import random
import sqlite3
from contextlib import suppress
from pathlib import Path

import apsw
import pytest
from tests.processes.helpers import ProcessGroup
from tests.stores.sqlite.store_programs import put

from interlock.errors import InterlockError, StoreBusy, StoreDamaged, StoreNewer
from interlock.store import Log, Range
from interlock.stores.sqlite import SQLiteStore, schema


def filled(path: str, many: int = 50) -> None:
    store = SQLiteStore(path)
    for number in range(many):
        store.transact(lambda _, n=number: put(f"k/{n}", b"v" * 200))  # type: ignore[misc]
    store.close()


def establish(path: str, **how: object) -> None:
    db = schema.open_connection(path)
    try:
        schema.establish(db, path, **how)  # type: ignore[arg-type]
    finally:
        db.close()


def ask(path: str, sql: str) -> list[tuple[object, ...]]:
    db = apsw.Connection(path)
    try:
        return db.execute(sql).fetchall()
    finally:
        db.close()


def to_two(db: apsw.Connection) -> None:
    db.execute("CREATE TABLE more (x)")
    db.execute("UPDATE item SET value = x'32'")


def one_line(error: BaseException, path: str) -> bool:
    return path in str(error) and "\n" not in str(error)


def test_a_new_file_says_that_it_is_ours_and_has_format_1(path: str) -> None:
    SQLiteStore(path).close()
    assert ask(path, "PRAGMA application_id") == [(0x494C434B,)]
    assert ask(path, "PRAGMA user_version") == [(1,)]
    assert ask(path, "PRAGMA journal_mode") == [("wal",)]
    assert Path(path).read_bytes()[68:72] == b"ILCK"


def test_an_older_file_is_migrated_after_a_backup_copy(path: str) -> None:
    filled(path)
    establish(path, target=2, migrations={1: to_two})
    assert ask(path, "PRAGMA user_version") == [(2,)]
    assert ask(path, "SELECT DISTINCT value FROM item") == [(b"2",)]
    copy = path + ".format1"
    assert ask(copy, "PRAGMA user_version") == [(1,)]
    assert ask(copy, "SELECT count(*) FROM item WHERE value != x'32'") == [(50,)]
    assert os.stat(copy).st_mode & 0o777 == 0o600
    assert not os.path.exists(copy + ".part")


def test_all_steps_from_a_much_older_file_are_taken_at_once(path: str) -> None:
    filled(path)
    steps = {
        1: to_two,
        2: lambda db: db.execute("INSERT INTO more VALUES (3)"),
        3: lambda db: db.execute("INSERT INTO more VALUES (4)"),
    }
    establish(path, target=4, migrations=steps)
    assert ask(path, "SELECT x FROM more") == [(3,), (4,)]


def test_a_migration_that_fails_changes_nothing(path: str) -> None:
    filled(path)

    def broken(db: apsw.Connection) -> None:
        db.execute("DELETE FROM item")
        raise RuntimeError("half done")

    with pytest.raises(RuntimeError):
        establish(path, target=2, migrations={1: broken})
    store = SQLiteStore(path)
    assert store.info()["items"] == 50
    store.close()


def test_the_backup_is_of_the_file_as_it_is_now(path: str) -> None:
    filled(path)
    Path(path + ".format1").write_bytes(b"an old one")
    Path(path + ".format1.part").write_bytes(b"half of one")
    establish(path, target=2, migrations={1: to_two})
    assert ask(path + ".format1", "SELECT count(*) FROM item") == [(50,)]


def test_a_file_that_somebody_migrated_meanwhile_is_not_set_back(path: str) -> None:
    filled(path)
    establish(path, target=2, migrations={1: to_two})
    establish(path, target=2, migrations={})
    with pytest.raises(StoreNewer):
        establish(path, target=1)
    assert ask(path, "PRAGMA user_version") == [(2,)]


def test_a_newer_file_is_refused_with_the_version_to_install(path: str) -> None:
    filled(path)
    db = apsw.Connection(path)
    db.execute("PRAGMA user_version=7; UPDATE meta SET value='9.4.0' WHERE name='version'")
    db.close()
    with pytest.raises(StoreNewer, match=r"format 7.*install interlock 9\.4\.0 or newer") as caught:
        SQLiteStore(path)
    assert one_line(caught.value, path)


def test_a_copy_that_is_not_in_wal_mode_is_switched_back(path: str) -> None:
    filled(path)
    ask(path, "PRAGMA journal_mode=delete")
    SQLiteStore(path).close()
    assert ask(path, "PRAGMA journal_mode") == [("wal",)]


def test_another_programs_database_is_refused_and_not_touched(path: str) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE theirs (x)")
    other.commit()
    other.close()
    before = Path(path).read_bytes()
    with pytest.raises(StoreDamaged, match="some other program's database") as caught:
        SQLiteStore(path)
    assert one_line(caught.value, path)
    assert Path(path).read_bytes() == before
    assert os.listdir(os.path.dirname(path)) == ["store.db"]


def test_a_text_file_is_refused_and_not_touched(path: str) -> None:
    Path(path).write_text("shopping list\n" * 400)
    with pytest.raises(StoreDamaged, match="damaged or not a store") as caught:
        SQLiteStore(path)
    assert one_line(caught.value, path)
    assert Path(path).read_text() == "shopping list\n" * 400


@pytest.mark.parametrize("left", [0.9, 0.5, 0.1])
def test_a_truncated_file_is_damaged(path: str, left: float) -> None:
    filled(path, 500)
    os.truncate(path, int(os.path.getsize(path) * left) // 4096 * 4096)
    with pytest.raises(StoreDamaged) as caught:
        SQLiteStore(path)
    assert one_line(caught.value, path)


def test_a_file_cut_inside_its_first_page_is_damaged(path: str) -> None:
    filled(path)
    os.truncate(path, 1000)
    with pytest.raises(StoreDamaged) as caught:
        SQLiteStore(path)
    assert one_line(caught.value, path)


def test_overwritten_pages_are_found_when_they_are_read(path: str) -> None:
    filled(path, 500)
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(os.urandom(os.path.getsize(path) - 4096))
    with pytest.raises(StoreDamaged) as caught:
        use(path)
    assert one_line(caught.value, path)


def test_whatever_bits_flip_the_answer_is_right_or_one_clear_line(path: str) -> None:
    filled(path, 100)
    whole = Path(path).read_bytes()
    dice = random.Random(7)
    refused: list[str] = []
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(dice.choice((1, 8, 64))):
            place = dice.randrange(len(damaged)) if dice.random() < 0.6 else dice.randrange(4096)
            damaged[place] ^= 1 << dice.randrange(8)
        for left in ("-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.unlink(path + left)
        Path(path).write_bytes(damaged)
        try:
            use(path)
        except InterlockError as error:
            refused.append(str(error))
    assert len(refused) > 20
    assert not [message for message in refused if "\n" in message]


def use(path: str) -> None:
    store = SQLiteStore(path)
    try:
        store.read(*(f"k/{number}" for number in range(100)))
        store.read(Range("k/"), Log())
        store.transact(lambda view: put("k/new" + str(view.read("k/7").revision)))
        store.watch("k/", 0).close()
        store.info()
    finally:
        store.close()


def test_a_process_killed_at_any_statement_while_it_creates_leaves_a_file_that_opens(
    path: str, programs: ProcessGroup
) -> None:
    actors = [programs.start("create", f"{path}{number}", number) for number in range(1, 37)]
    finished = [actor.finished() for actor in actors]
    assert finished.index(True) > 5, "too few statements to be worth a test"
    for number, _ in enumerate(actors, 1):
        SQLiteStore(f"{path}{number}").close()
        assert ask(f"{path}{number}", "PRAGMA integrity_check") == [("ok",)]
        assert ask(f"{path}{number}", "PRAGMA user_version") == [(1,)]


def test_a_process_killed_at_any_statement_while_it_migrates_leaves_a_file_that_migrates(
    path: str, programs: ProcessGroup
) -> None:
    filled(path)
    whole = Path(path).read_bytes()
    actors = []
    for number in range(1, 25):
        Path(f"{path}{number}").write_bytes(whole)
        actors.append(programs.start("migrate", f"{path}{number}", number))
    finished = [actor.finished() for actor in actors]
    assert finished.index(True) > 5, "too few statements to be worth a test"
    for number, done in enumerate(finished, 1):
        place = f"{path}{number}"
        assert ask(place, "PRAGMA integrity_check") == [("ok",)]
        assert ask(place, "SELECT count(*) FROM item WHERE value = x'32'") == [(50 * done,)]
        establish(place, target=2, migrations={1: to_two})
        assert ask(place, "SELECT DISTINCT value FROM item") == [(b"2",)]
        assert ask(place + ".format1", "SELECT count(*) FROM item WHERE value != x'32'") == [(50,)]


def test_many_processes_may_create_the_same_file_at_once(path: str, programs: ProcessGroup) -> None:
    for actor in [programs.start("open_it", path) for _ in range(6)]:
        assert actor.read_line() == "ok"
    assert ask(path, "SELECT count(*), max(revision) FROM log") == [(6, 6)]


def test_a_process_stopped_while_it_creates_a_store_does_not_hold_others_up_for_ever(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "PATIENCE", 0.1)
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    with pytest.raises(StoreBusy, match="has been creating or migrating"):
        SQLiteStore(path)
    os.close(folder)
    SQLiteStore(path).close()
