"""A full disk: what does not fit is refused, nothing is lost, nothing is half done."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest
from tests.faces.shell import COMMAND
from tests.processes.helpers import ProcessGroup
from tests.stores.sqlite.store_programs import put

import interlock
from interlock.errors import StoreFull
from interlock.store import Committed, Put, Txn, Work
from interlock.stores.sqlite import SQLiteStore, schema

MANY = 1 << 30


def limit(store: SQLiteStore, pages: int) -> None:
    """So many more pages are free on the disk."""
    db = store._engine.db
    used = int(str(db.pragma("page_count")))
    db.pragma("max_page_count", used + pages)


def large(key: str, size: int) -> Callable[[object], Txn]:
    name = put("x").id
    puts = (Put(f"{key}/first", b"1"), Put(key, b"v" * size))
    return lambda _: Txn(id=name, entry=b"{}", puts=puts)


def test_a_commit_that_does_not_fit_leaves_nothing_and_the_store_goes_on(path: str) -> None:
    store = SQLiteStore(path)
    limit(store, 60)
    done: list[int] = []
    error = None
    while error is None:
        try:
            store.transact(large(f"k/{len(done)}", 20_000))
            done.append(len(done))
        except StoreFull as full:
            error = str(full)
    assert error == f"no room for another commit in {path}; free some space, then go on"
    assert 3 < len(done) < 20
    refused = f"k/{len(done)}"
    assert not any(store.read(refused, refused + "/first").items.values())
    limit(store, MANY)
    store.transact(large(refused, 20_000))
    store.close()
    store = SQLiteStore(path)
    keys = [f"k/{number}" for number in range(len(done) + 1)]
    assert all(store.read(*keys).items.values())
    assert store.info()["revision"] == len(keys) == store.info()["entries"]
    store.close()


@pytest.mark.parametrize("contended", [False, True])
def test_in_a_group_only_what_cannot_fit_fails(path: str, *, contended: bool) -> None:
    store = SQLiteStore(path)
    store.transact(lambda _: put("k/before"))
    limit(store, 30)
    sizes = [100, 900_000, 100, 2_000, 900_000, 100, 900_000, 300]
    works: list[Work] = [large(f"k/{number}", size) for number, size in enumerate(sizes)]
    store._writer._slow = contended  # through the thread, or in the loop itself

    async def main() -> list[Committed | BaseException | None]:
        return await asyncio.gather(*map(store.transact_async, works), return_exceptions=True)

    answers = asyncio.run(main())
    kinds = [type(answer) for answer in answers]
    assert kinds == [StoreFull if size > 500_000 else Committed for size in sizes]
    revisions = [answer.revision for answer in answers if isinstance(answer, Committed)]
    assert revisions == [2, 3, 4, 5, 6]
    limit(store, MANY)
    assert isinstance(asyncio.run(main())[1], Committed), "there is room again"
    store.close()


def test_after_reopening_everything_acknowledged_is_there_and_nothing_else(path: str) -> None:
    store = SQLiteStore(path)
    limit(store, 40)
    acknowledged: set[str] = set()
    refused: set[str] = set()

    async def one(number: int) -> None:
        key = f"k/{number}"
        try:
            await store.transact_async(large(key, 8_000))
            acknowledged.add(key)
        except StoreFull:
            refused.add(key)

    async def main() -> None:
        await asyncio.gather(*map(one, range(40)))

    asyncio.run(main())
    assert acknowledged
    assert refused
    store.close()
    store = SQLiteStore(path)
    items = store.read(*acknowledged, *refused).items
    assert {key for key, item in items.items() if item is not None} == acknowledged
    parts = store.read(*(f"{key}/first" for key in refused)).items
    assert not any(parts.values())
    store.close()


def acquired(fleet: interlock.Fleet, name: str, metadata: object) -> bool:
    try:
        return isinstance(fleet.locks.acquire(name, metadata=metadata), interlock.Acquired)
    except StoreFull:
        return False


def test_a_lock_is_neither_lost_nor_doubled_by_a_full_disk(path: str) -> None:
    store = SQLiteStore(path)
    fleet = interlock.connect(agent="ada", store=store)
    with fleet.lock("merge") as held:
        limit(store, 0)
        names = [f"other:{number}" for number in range(100)]
        much = {"much": "m" * 10_000}
        taken = [name for name in names if acquired(fleet, name, much)]
        assert len(taken) < 10
        held.check()
        assert not held.lost
        assert {shown.lock for shown in fleet.locks.list()} == {"merge", *taken}
        limit(store, MANY)
        assert acquired(fleet, names[-1], much)
    fleet.close()


def test_renewals_without_room_are_tried_now_and_then_and_said_once(
    path: str, programs: ProcessGroup
) -> None:
    with interlock.connect(path, agent="bob") as bob:
        program = programs.start("renew_without_room", path)
        refused = program.read_line()
        assert refused == (
            f"no room for another commit in {path} (File too large); free some space, or raise"
            " the limit, then go on"
        )
        assert program.read_line() == f"renewals: {refused}"
        while not program.has_line():
            assert isinstance(bob.locks.acquire("other"), interlock.Acquired)
            bob.locks.release("other")
        assert 0 < int(program.read_line()) < 25, "a keeper that spins makes thousands"
        told = iter(program.read_line, "")
        assert list(told) == [f"renewals failed, and will be tried again: {refused}"]
        program.finish()
        assert isinstance(bob.locks.acquire("more"), interlock.Acquired), "nothing was committed"


def test_a_quota_that_is_used_up_is_named(path: str) -> None:
    db: Any = SimpleNamespace(system_errno=errno.EDQUOT)
    error: Any = apsw.exception_for(apsw.SQLITE_IOERR_WRITE)
    found = schema.translated(error, path, db)
    assert isinstance(found, StoreFull)
    assert "(Disk quota exceeded); free some space, or raise the limit" in str(found)


FULL_DISK = """
mount -t tmpfs -o size=300k tmpfs "$FOLDER" && cd "$FOLDER" || exit 99
$INTERLOCK init --store store.db > /dev/null || exit 98
while head -c 1k /dev/zero >> fill; do :; done 2> /dev/null
for words in "lock acquire m --agent ada --store store.db" "init --store new.db"; do
  $INTERLOCK --json $words; echo "$?"
done
$INTERLOCK doctor --store store.db; echo "$?"
rm fill
$INTERLOCK doctor --store store.db; echo "$?"
"""


def test_a_new_command_and_the_doctor_name_a_full_disk(tmp_path: Path) -> None:
    own = ["unshare", "--map-root-user", "--mount"]
    environment = {**os.environ, "FOLDER": str(tmp_path), "INTERLOCK": shlex.join(COMMAND)}
    done = subprocess.run(
        [*own, "bash", "-c", FULL_DISK],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode in (1, 99):
        pytest.skip("a file system of one's own needs the right to make one")
    assert done.stderr == ""
    taken, status, made, also, *looked = done.stdout.splitlines()
    for said in (taken, made):
        assert json.loads(said)["error"] == "store_full"
    assert status == also == "4"
    end = looked.index("4")
    room = f"no room for another commit in {tmp_path}/store.db; free some space, then go on"
    assert looked[end - 1] == f"bad  store: {room}"
    assert any(line.startswith("ok   writing: a commit took") for line in looked[end:])
