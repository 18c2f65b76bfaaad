"""Signal handlers and finalisers run inside of calls; they block no other process, nor themselves.

A handler is called here where Python would call it: by the work of a commit, or at one moment after
the other of a call.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.for_each import for_each
from tests.processes.helpers import ProcessGroup, until
from tests.stores.sqlite.store_programs import increase, put

import interlock
from interlock import outcomes
from interlock.client import Fleet
from interlock.client_blocks import Held
from interlock.errors import StoreBusy, StoreInUse
from interlock.store import Txn
from interlock.stores.memory import MemoryStore
from interlock.stores.sqlite import SQLiteStore, wal

PATIENCE = 3.0
"""Seconds that a call of these tests waits for its turn, if it waits."""
OURS = str(Path(interlock.__file__).parent)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.fixture(params=["sqlite", "memory"])
def fleet(request: pytest.FixtureRequest, path: str) -> Iterator[Fleet]:
    memory = request.param == "memory"
    store = MemoryStore() if memory else SQLiteStore(path, patience=PATIENCE)
    with closing(store), interlock.connect(agent="ada", store=store) as connected:
        yield connected


def inside(fleet: Fleet, handler: Callable[[], object]) -> None:
    """Run a handler inside of a commit; it must not wait for anything."""
    took: list[float] = []

    def work(_: object) -> Txn:
        began = time.monotonic()
        handler()
        took.append(time.monotonic() - began)
        return put("k/inside")

    assert fleet.store.transact(work) is not None  # type: ignore[attr-defined]  # both have it
    assert took[-1] < PATIENCE / 2, "the handler waited for its own caller"


def is_free(fleet: Fleet, lock: str) -> bool:
    return fleet.locks.show(lock).state == "free"


def test_a_release_inside_of_a_commit_is_carried_out_right_after_it(fleet: Fleet) -> None:
    held = fleet.lock("merge").__enter__()
    assert isinstance(fleet.locks.acquire("deploy"), outcomes.Acquired)
    assert isinstance(fleet.semaphores.acquire("builds", capacity=2), outcomes.Acquired)
    answers: list[object] = []

    def handler() -> None:
        answers.append(held.release())
        answers.append(fleet.locks.release("deploy"))
        answers.append(fleet.semaphores.release("builds"))

    inside(fleet, handler)
    assert answers == [
        outcomes.LockReleased(lock="merge", later=True),
        outcomes.LockReleased(lock="deploy", later=True),
        outcomes.SlotsReleased(semaphore="builds", later=True),
    ]
    until(lambda: is_free(fleet, "merge") and is_free(fleet, "deploy"))
    until(lambda: not any(each.holders for each in fleet.semaphores.list()))


def test_a_release_that_was_left_for_later_ends_no_later_grant(fleet: Fleet) -> None:
    fleet.locks.acquire("merge")
    fleet.context.grants.on_pending = lambda: None  # the background thread is slow
    inside(fleet, lambda: fleet.locks.release("merge"))
    fleet.locks.release("merge")
    again = fleet.locks.acquire("merge")
    fleet.context.grants.on_pending = fleet._wake
    fleet._wake()
    until(lambda: not fleet.context.grants.pending)
    assert isinstance(again, outcomes.Acquired)
    assert fleet.locks.show("merge").token == again.token


def test_a_release_inside_of_a_read_that_waits_for_the_disk_is_carried_out_after_it(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        interlock.connect(path, agent="ada") as fleet,
        interlock.connect(path, agent="bea") as other,
    ):
        fleet.locks.acquire("merge")
        other.locks.acquire("deploy")
        assert isinstance(fleet.store, SQLiteStore)
        log, sync, main = fleet.store._engine.wal, wal._sync, threading.get_ident()
        monkeypatch.setattr(log, "_note", -1)  # no process noted that the disk has what we read
        monkeypatch.setattr(log, "_durable", 0)

        def interrupted(fd: int) -> None:
            if threading.get_ident() == main and not answers:
                answers.append(None)
                answers[0] = fleet.locks.release("merge")
            sync(fd)

        monkeypatch.setattr(wal, "_sync", interrupted)
        fleet.locks.show("deploy")
        assert answers == [outcomes.LockReleased(lock="merge", later=True)]
        until(lambda: is_free(fleet, "merge"))
        monkeypatch.undo()


def test_the_end_of_a_block_inside_of_a_commit_releases(fleet: Fleet) -> None:
    """As of a generator that was dropped, and is collected there."""
    fleet.tasks.publish("build")

    def working() -> Iterator[None]:
        with fleet.lock("merge"), fleet.tasks.hold("build"):
            yield

    program = [working()]
    next(program[0])

    def drop() -> None:
        program.clear()
        gc.collect()

    inside(fleet, drop)
    until(lambda: is_free(fleet, "merge"))
    until(lambda: fleet.tasks.show("build").state == "pending")


def test_a_claim_that_is_released_inside_of_a_commit_goes_back(fleet: Fleet) -> None:
    fleet.tasks.publish("build")
    with fleet.tasks.hold("build") as claim:
        inside(fleet, lambda: answers.append(claim.release()))
        assert answers == [outcomes.TaskReleased(task="build", later=True)]
    until(lambda: fleet.tasks.show("build").state == "pending")


answers: list[object] = []


@pytest.fixture(autouse=True)
def _no_answers() -> None:
    answers.clear()


def test_anything_else_is_refused_at_once_and_nothing_is_done(fleet: Fleet) -> None:
    fleet.tasks.publish("build")
    refused: list[type] = []

    def handler() -> None:
        for call in (
            lambda: fleet.locks.acquire("merge"),
            lambda: fleet.locks.acquire("merge", wait=60),
            lambda: fleet.locks.release("of another process"),
            lambda: fleet.tasks.claim("build"),
            lambda: fleet.messages.send("bea", "hello"),
        ):
            with pytest.raises(StoreInUse, match="signal handler or a finaliser; nothing was done"):
                call()
            refused.append(StoreInUse)

    inside(fleet, handler)
    assert len(refused) == 5
    assert is_free(fleet, "merge")
    assert fleet.tasks.show("build").state == "pending"


def test_a_completion_that_was_refused_is_made_by_the_end_of_the_block(fleet: Fleet) -> None:
    fleet.tasks.publish("build")
    with fleet.tasks.hold("build") as claim:

        def handler() -> None:
            with pytest.raises(StoreInUse):
                claim.complete()

        inside(fleet, handler)
    assert fleet.tasks.show("build").state == "complete"


def test_a_close_inside_of_a_commit_ends_the_session_right_after_it(path: str) -> None:
    with interlock.connect(path, agent="bea") as other:
        fleet = interlock.connect(path, agent="ada")
        fleet.locks.acquire("merge")
        inside(fleet, fleet.close)
        until(lambda: fleet.closed)
        fleet.close()  # waits for the thread that closes it
        assert is_free(other, "merge")
        assert isinstance(other.locks.acquire("merge"), outcomes.Acquired)


def test_another_client_of_the_thread_is_refused_too(path: str) -> None:
    """It has a queue file of its own, so it would wait for the turn of its own thread."""
    with (
        closing(SQLiteStore(path, patience=PATIENCE)) as one,
        closing(SQLiteStore(path, patience=PATIENCE)) as two,
        interlock.connect(agent="ada", store=one) as fleet,
        interlock.connect(agent="bea", store=two) as other,
    ):
        other.locks.acquire("merge")

        def handler() -> None:
            with pytest.raises(StoreInUse):
                other.locks.acquire("deploy")
            assert other.locks.release("merge") == outcomes.LockReleased(lock="merge", later=True)

        inside(fleet, handler)
        until(lambda: is_free(fleet, "merge"))


def moments(call: Callable[[], object], handler: Callable[[], object], moment: int) -> bool:
    """Call it, with the handler at this moment of the call; False if it has not so many.

    That is when Python looks for signals: as calls return, and as functions begin.
    """
    left = [moment]

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event in {"call", "c_return"} and frame.f_code.co_filename.startswith(OURS):
            left[0] -= 1
            if left[0] == 0:
                sys.setprofile(None)
                handler()

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return left[0] <= 0


def test_a_handler_may_release_at_every_moment_of_a_call(path: str) -> None:
    """It neither waits for its own caller nor hangs in a lock of it."""
    slowest = [0.0]
    with (
        closing(SQLiteStore(path, patience=PATIENCE)) as one,
        closing(SQLiteStore(path, patience=PATIENCE)) as two,
        interlock.connect(agent="ada", store=one) as fleet,
        interlock.connect(agent="bea", store=two) as other,
    ):

        def call() -> None:
            fleet.locks.acquire("merge", wait=1)
            fleet.locks.release("merge")

        spare: list[Held] = []

        def handler() -> None:
            began = time.monotonic()
            assert isinstance(spare[-1].release(), outcomes.Released)
            slowest[0] = max(slowest[0], time.monotonic() - began)

        def every_moment() -> None:
            for moment in range(1, 5000, 3):
                spare.append(fleet.lock("spare").__enter__())
                if not moments(call, handler, moment):
                    spare[-1].release()
                    return
                until(lambda: not fleet.context.grants.pending)

        call()
        thread = threading.Thread(target=every_moment, daemon=True)
        thread.start()
        thread.join(120)
        assert not thread.is_alive(), "a handler hangs in its own caller"
        assert slowest[0] < PATIENCE / 2
        assert is_free(other, "spare")
        assert is_free(other, "merge")


@for_each("act", ["release", "close", "acquire"])
def test_real_signals_stall_nobody(act: str, tmp_path: Path) -> None:
    path = str(tmp_path / f"{act}.db")
    with (
        ProcessGroup("tests.handler_programs") as programs,
        interlock.connect(path, agent="bea") as fleet,
    ):
        program = programs.start("interrupted", path, act)
        assert program.read_line() == "ready"
        program.write_line()
        slowest = 0.0
        while not program.has_line():
            began = time.monotonic()
            fleet.locks.acquire("ours")
            fleet.locks.release("ours")
            slowest = max(slowest, time.monotonic() - began)
        assert program.read_line() == "done"
        program.finish()
        assert slowest < 5, "the other process held the store up"
        until(lambda: is_free(fleet, "spare"))


def test_a_process_that_only_waits_is_never_named(path: str) -> None:
    with ProcessGroup("tests.stores.sqlite.store_programs") as programs:
        ours = SQLiteStore(path)
        behind = SQLiteStore(path, patience=0.5)
        ours.transact(increase)
        waiter = programs.start("count", path, 0.01)
        assert waiter.read_line() == "ready"
        said: list[str] = []

        def ask() -> None:
            try:
                behind.transact(increase)
            except StoreBusy as error:
                said.append(str(error))

        def work(view: Any) -> Txn:
            waiter.write_line()
            until(lambda: waiter.states() == {"S"})
            thread = threading.Thread(target=ask)
            thread.start()
            thread.join()
            return increase(view)

        ours.transact(work)
        assert said == ["the store was held up for 0.5 s; retry"]
        waiter.read_line()
        waiter.finish()
        behind.close()
        ours.close()
