"""Processes queue for the write in order; one that stands still is named to those behind it."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from tests.processes.helpers import Process, ProcessGroup, until
from tests.stores.sqlite.store_programs import increase, put

import interlock
from interlock.errors import StoreBusy
from interlock.stores.sqlite import SQLiteStore, writer


def counted(store: SQLiteStore) -> int:
    item = store.read("counter")["counter"]
    return 0 if item is None else int(item.value)


def standing(programs: ProcessGroup, path: str) -> Process:
    """A process that stands still inside of its commit."""
    actor = programs.start("stop_inside", path)
    actor.frozen()
    return actor


def race(programs: ProcessGroup, path: str, processes: int, turns: int) -> list[float]:
    """Who passed each of them while it waited for its turn, as a rule."""
    actors = [programs.start("take_turns", path, turns) for _ in range(processes)]
    for actor in actors:
        assert actor.read_line() == "ready"
    for actor in actors:
        actor.write_line()
    passed = [float(actor.read_line()) for actor in actors]
    for actor in actors:
        actor.finish()
    return passed


def test_eight_processes_lose_nothing_and_take_turns(path: str, programs: ProcessGroup) -> None:
    passed = race(programs, path, 8, 60)
    store = SQLiteStore(path)
    assert counted(store) == 8 * 60 == store.info()["revision"] == store.info()["entries"]
    assert max(passed) <= 2 * 8, passed
    store.close()


def test_behind_a_process_that_stands_still_everybody_is_told_its_pid(
    path: str, programs: ProcessGroup
) -> None:
    store = SQLiteStore(path, patience=0.5)
    store.transact(increase)
    stuck = standing(programs, path)
    waiting = [programs.start("count", path, 0.01) for _ in range(2)]
    for actor in waiting:
        assert actor.read_line() == "ready"
        actor.write_line()
    until(lambda: _at_the_gate(store._write_queue._gate) in {actor.pid for actor in waiting})
    said = f"process {stuck.pid} has held the store up for 0.5 s.*kill -CONT {stuck.pid}"
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(StoreBusy, match=said) as caught:
            store.transact(increase)
        assert "\n" not in str(caught.value)
    assert time.monotonic() - began > 0.5
    assert counted(store) == 1, "reading goes on beside it"
    stuck.thaw()
    assert stuck.read_line() == "done"
    stuck.finish()
    shares = [int(actor.read_line()) for actor in waiting]
    store.transact(increase)
    assert counted(store) == 3 + sum(shares)
    for actor in waiting:
        actor.finish()
    store.close()


def test_the_event_loop_stays_alive_behind_a_process_that_stands_still(
    path: str, programs: ProcessGroup
) -> None:
    store = SQLiteStore(path, patience=1.5)
    stuck = standing(programs, path)

    async def main() -> int:
        beats = 0
        late = asyncio.gather(
            *(store.transact_async(increase) for _ in range(20)), return_exceptions=True
        )
        while not late.done():
            await asyncio.sleep(0.01)
            beats += 1
            assert counted(store) == 0
        answers = await late
        assert {type(answer) for answer in answers} == {StoreBusy}
        assert f"process {stuck.pid} " in str(answers[0])
        stuck.thaw()
        assert await asyncio.to_thread(stuck.read_line) == "done"
        await asyncio.gather(*(store.transact_async(increase) for _ in range(20)))
        return beats

    assert asyncio.run(main()) > 5, "the loop went on beside the commits"
    assert counted(store) == 21, "what was refused never happened"
    store.close()


def test_a_program_waits_once_for_a_process_that_stands_still(
    path: str, programs: ProcessGroup
) -> None:
    """Its call fails in time, and so does all that it does to clean up."""
    store = SQLiteStore(path, patience=2.5)
    fleet = interlock.connect(agent="ada", store=store)
    stuck = standing(programs, path)
    with pytest.raises(StoreBusy, match=f"process {stuck.pid} "):
        fleet.locks.acquire("merge")
    began = time.monotonic()
    fleet.close()
    assert time.monotonic() - began < 2.5, "it waited as long once more"
    stuck.thaw()
    assert stuck.read_line() == "done"


def test_after_a_stopped_process_goes_on_calls_wait_their_full_time_again(
    path: str, programs: ProcessGroup
) -> None:
    store = SQLiteStore(path, patience=0.3)
    stuck = standing(programs, path)
    with pytest.raises(StoreBusy):
        store.transact(increase)
    stuck.thaw()
    assert stuck.read_line() == "done"
    until(lambda: not store._writer.stuck)
    store.transact(increase)
    assert counted(store) == 2
    store.close()


def test_a_database_that_another_program_locked_costs_one_deadline_too(path: str) -> None:
    store = SQLiteStore(path, patience=0.5)
    with closing(apsw.Connection(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        with pytest.raises(StoreBusy):
            store.transact(increase)
        assert time.monotonic() - began < 5
        other.execute("COMMIT")
    assert "keeps" in store._writer.stuck
    store.transact(increase)
    assert not store._writer.stuck
    store.close()


def test_whoever_waits_in_time_goes_on_when_the_stopped_process_does(
    path: str, programs: ProcessGroup
) -> None:
    store = SQLiteStore(path)
    stuck = standing(programs, path)
    threads = [
        threading.Thread(daemon=True, target=store.transact, args=(increase,)) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    until(lambda: len(store._writer._queue) == 5)
    stuck.thaw()
    for thread in threads:
        thread.join(20)
    assert stuck.read_line() == "done"
    assert counted(store) == 6
    store.close()


def test_a_killed_process_frees_its_turn_at_once(path: str, programs: ProcessGroup) -> None:
    store = SQLiteStore(path)
    stuck = standing(programs, path)
    thread = threading.Thread(daemon=True, target=store.transact, args=(increase,))
    thread.start()
    until(lambda: store._writer._queue)
    stuck.kill()
    thread.join(20)
    assert not thread.is_alive()
    assert counted(store) == 1, "half a commit is none"
    store.close()


def test_a_killed_waiter_does_not_hold_up_those_behind_it(
    path: str, programs: ProcessGroup
) -> None:
    store = SQLiteStore(path)
    stuck = standing(programs, path)
    waiters = [programs.start("count", path, 0.01) for _ in range(3)]
    for waiter in waiters:
        assert waiter.read_line() == "ready"
        waiter.write_line()
    until(lambda: all(waiter.state() == "S" for waiter in waiters))
    thread = threading.Thread(daemon=True, target=store.transact, args=(increase,))
    thread.start()
    until(lambda: store._writer._queue)
    for waiter in waiters[:2]:
        waiter.kill()
    stuck.thaw()
    thread.join(20)
    assert not thread.is_alive()
    done = int(waiters[2].read_line())
    assert stuck.read_line() == "done"
    assert counted(store) == 2 + done
    store.close()


def test_a_process_that_stands_still_at_the_gate_is_named_too(
    path: str, programs: ProcessGroup
) -> None:
    store = SQLiteStore(path, patience=0.4)
    stuck = standing(programs, path)
    waiter = programs.start("count", path, 0.01)
    assert waiter.read_line() == "ready"
    waiter.write_line()
    gate = store._write_queue
    until(lambda: _at_the_gate(gate._gate) == waiter.pid)
    waiter.freeze()
    stuck.kill()
    with pytest.raises(StoreBusy, match=f"process {waiter.pid} "):
        store.transact(increase)
    waiter.thaw()
    assert int(waiter.read_line()) >= 1
    waiter.finish()
    store.transact(increase)
    store.close()


def _at_the_gate(descriptor: int) -> int:
    inode = os.fstat(descriptor).st_ino
    with open("/proc/locks", encoding="ascii") as file:
        rows = [line.split() for line in file if "->" not in line]
    return next((int(row[4]) for row in rows if row[5].endswith(f":{inode}")), 0)


def test_commits_go_on_when_somebody_removes_the_folder_of_the_queue(
    path: str, programs: ProcessGroup
) -> None:
    store = SQLiteStore(path)
    store.transact(increase)
    shutil.rmtree(path + "-bells")
    store.transact(increase)
    race(programs, path, 2, 20)
    store.transact(increase)
    assert counted(store) == 3 + 2 * 20
    store.close()


def test_after_the_folder_was_removed_old_and_new_processes_queue_together_again(
    path: str, programs: ProcessGroup
) -> None:
    old = SQLiteStore(path, patience=0.5)
    old.transact(increase)
    shutil.rmtree(path + "-bells")
    stuck = standing(programs, path)
    with pytest.raises(StoreBusy, match=f"process {stuck.pid} "):
        old.transact(increase)  # at the new files, as everybody
    stuck.thaw()
    assert stuck.read_line() == "done"
    old.transact(increase)
    assert counted(old) == 3
    old.close()


def test_two_stores_of_one_process_take_turns_as_well(path: str) -> None:
    stores = [SQLiteStore(path) for _ in range(4)]
    threads = [
        threading.Thread(
            daemon=True, target=lambda s=store: [s.transact(increase) for _ in range(50)]
        )
        for store in stores
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted(stores[0]) == 200
    stores[0].transact(lambda _: put("a"))
    assert stores[3].read("a")["a"] is not None
    for store in stores:
        store.close()


def test_a_lock_on_a_file_of_the_same_number_elsewhere_is_not_taken_for_the_turn(
    store: SQLiteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inode = os.stat(store.path + "-bells/turn").st_ino
    locks = tmp_path / "locks"
    locks.write_text(f"1: FLOCK  ADVISORY  WRITE 4711 ff:fe:{inode} 0 EOF\n")
    monkeypatch.setattr(writer, "_LOCKS", str(locks))
    assert store.held_up_by() is None
