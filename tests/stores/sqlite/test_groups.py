"""Many transactions, one durable commit; and each one stands or falls for itself."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import apsw
import pytest
from tests.processes.helpers import until
from tests.stores.sqlite.store_programs import increase, put

import interlock
from interlock.errors import OutcomeUnknown, StoreBusy, StoreClosed, StoreTrouble
from interlock.store import Committed, Put, Range, Snapshot, Txn, View, Work
from interlock.stores.sqlite import SQLiteStore
from interlock.stores.sqlite import connection as engine_module
from interlock.stores.sqlite.notify import CommitNote
from interlock.stores.sqlite.writer import PATIENCE, WriteQueue


def putting(key: str, value: bytes = b"x", ttl: float | None = None) -> Work:
    return lambda _: put(key, value, ttl=ttl)


def count_durable(store: SQLiteStore) -> list[None]:
    """Grows by one with each durable commit of this store object."""
    seen: list[None] = []

    def hook() -> bool:
        seen.append(None)
        return False  # go on

    store._engine.db.set_commit_hook(hook)
    return seen


@contextmanager
def turn_taken(store: SQLiteStore) -> Iterator[None]:
    """As if another process were in its turn."""
    other = WriteQueue(store.path + "-bells")
    other.enter()
    try:
        yield
    finally:
        other.leave()
        other.close()


@contextmanager
def turn_taken_at_first(store: SQLiteStore) -> Iterator[None]:
    """The turn is not to be had at once, so that the writer thread has to wait for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store._write_queue, "try_enter", lambda: False)
        yield


async def soon(condition: Callable[[], object]) -> None:
    """Let the loop turn until this is so."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - there is no event for what we look at
            await asyncio.sleep(0)


async def gather(store: SQLiteStore, *works: Work) -> list[Committed | BaseException | None]:
    return await asyncio.gather(*map(store.transact_async, works), return_exceptions=True)


def revisions(answers: list[Committed | BaseException | None]) -> list[int]:
    return sorted(answer.revision for answer in answers if isinstance(answer, Committed))


@pytest.mark.parametrize("contended", [False, True])
def test_64_commits_of_one_loop_share_few_durable_ones_and_have_64_revisions(
    store: SQLiteStore, *, contended: bool
) -> None:
    durable = count_durable(store)

    async def main() -> list[Committed | BaseException | None]:
        works = [putting(f"k/{number}") for number in range(64)]
        if not contended:
            return await gather(store, *works)
        with turn_taken(store):
            task = asyncio.ensure_future(gather(store, *works))
            await soon(lambda: len(store._writer._queue) == 64)
        return await task

    answers = asyncio.run(main())
    assert revisions(answers) == list(range(1, 65))
    assert len(durable) <= 8
    assert store.info()["entries"] == 64


def test_every_transaction_of_a_group_sees_those_before_it(store: SQLiteStore) -> None:
    asyncio.run(gather(store, *[increase] * 64))
    item = store.read("counter")["counter"]
    assert item is not None
    assert item.value == b"64"
    assert item.created == 1
    assert item.revision == 64


def test_a_transaction_reads_any_number_of_keys_and_entries_among_them(store: SQLiteStore) -> None:
    wanted = [f"key/{number:03}" for number in range(engine_module._AT_ONCE * 2 + 1)]
    written = [putting(key) for key in wanted[::2]]
    for work in written:
        store.transact(work)
    entries = [f"log/{item.entry}" for item in store.read(*wanted).items.values() if item]
    refs = (*wanted, entries[0], "log/txn_none", entries[-1])
    seen: list[Snapshot] = []

    def look(view: View) -> None:
        seen.extend((view.read(*refs), view.read(*refs[:3]), view.read(*refs[1:], Range("key/"))))

    store.transact(look)
    for snapshot, asked in zip(seen, (refs, refs[:3], refs[1:]), strict=True):
        assert list(snapshot.items) == list(asked)
        there = [key for key, item in snapshot.items.items() if item is not None]
        assert there == [key for key in asked if key in wanted[::2] or key in entries]
        assert all(item is None or item.key == key for key, item in snapshot.items.items())
    assert [item.key for item in seen[2].ranges[Range("key/")]] == wanted[::2]


def test_a_transaction_that_raises_does_not_hurt_its_neighbours(store: SQLiteStore) -> None:
    def broken(view: View) -> Txn:
        view.read("k/0")
        raise ZeroDivisionError("mine alone")

    answers = asyncio.run(gather(store, putting("k/0"), broken, putting("k/1"), lambda _: None))
    assert revisions(answers) == [1, 2]
    assert isinstance(answers[1], ZeroDivisionError)
    assert answers[3] is None
    assert store.info()["items"] == 2


@pytest.mark.parametrize(
    "bad",
    [
        Txn(id="t", entry=b"", puts=(Put("k/good", b""), Put("k/\ud800", b""))),
        Txn(id="t", entry=b"", puts=(Put("k/good", b""), Put("live/x", b"", float("inf")))),
        Txn(id="t", entry=b"", puts=(Put("k/good", b""), Put("k/bad", object()))),  # type: ignore[arg-type]
        Txn(id="same", entry=b"", puts=(Put("k/good", b""),)),
    ],
    ids=["no text", "no time", "no bytes", "an id that is taken"],
)
def test_a_transaction_that_the_engine_cannot_take_fails_alone_and_leaves_nothing(
    store: SQLiteStore, bad: Txn
) -> None:
    store.transact(lambda _: Txn(id="same", entry=b""))
    notes: list[CommitNote] = []
    store._engine.notify = notes.extend
    answers = asyncio.run(gather(store, putting("k/0"), lambda _: bad, putting("k/1")))
    assert revisions(answers) == [2, 3]
    assert isinstance(answers[1], Exception)
    assert store.read("k/good")["k/good"] is None
    assert [note.lines for note in notes] == [["+k/0"], ["+k/1"]], (
        "a watcher of a neighbour is woken"
    )
    with pytest.raises(type(answers[1])):
        store.transact(lambda _: bad)
    assert store.transact(putting("k/2")) is not None


def test_threads_and_tasks_together_lose_nothing(path: str) -> None:
    store = SQLiteStore(path)
    answers: list[Committed | None] = []

    def block() -> None:
        answers.extend(store.transact(increase) for _ in range(25))

    async def main() -> None:
        for _ in range(10):
            answers.append(await store.transact_async(increase))
            found = await asyncio.gather(*(store.transact_async(increase) for _ in range(15)))
            answers.extend(found)

    threads = [threading.Thread(daemon=True, target=block) for _ in range(8)]
    for thread in threads:
        thread.start()
    asyncio.run(main())
    for thread in threads:
        thread.join()
    total = 8 * 25 + 10 * 16
    assert revisions(list(answers)) == list(range(1, total + 1))
    store.close()
    store = SQLiteStore(path)
    item = store.read("counter")["counter"]
    assert item is not None
    assert int(item.value) == total
    store.close()


def test_a_task_cancelled_before_its_group_ran_leaves_no_trace(store: SQLiteStore) -> None:
    ran: list[str] = []

    def work(name: str) -> Work:
        def inner(_: View) -> Txn:
            ran.append(name)
            return put(f"k/{name}")

        return inner

    async def main() -> None:
        early = asyncio.ensure_future(store.transact_async(work("early")))
        await soon(lambda: store._writer._gathered)
        early.cancel()
        with turn_taken(store):
            tasks = [asyncio.ensure_future(store.transact_async(work(name))) for name in "abc"]
            await soon(lambda: len(store._writer._queue) == 3)
            tasks[1].cancel()
            await asyncio.sleep(0)
        done = await asyncio.gather(early, *tasks, return_exceptions=True)
        assert [type(answer).__name__ for answer in done] == [
            "CancelledError",
            "Committed",
            "CancelledError",
            "Committed",
        ]

    asyncio.run(main())
    assert ran == ["a", "c"]
    assert store.info()["items"] == 2


def test_a_thread_that_gave_up_has_withdrawn_its_work(path: str) -> None:
    store = SQLiteStore(path, patience=0.2)
    with turn_taken(store), pytest.raises(StoreBusy):
        store.transact(putting("k/late"))
    store._writer._patience = PATIENCE
    assert store.transact(putting("k/after")) is not None
    assert store.read("k/late")["k/late"] is None
    store.close()


def test_closing_answers_everybody_who_still_waits(path: str) -> None:
    store = SQLiteStore(path)
    errors: list[Exception] = []

    def block() -> None:
        try:
            store.transact(putting("k/a"))
        except StoreClosed as error:
            errors.append(error)

    async def main() -> None:
        with turn_taken(store):
            thread = threading.Thread(daemon=True, target=block)
            thread.start()
            until(lambda: store._writer._queue)
            task = asyncio.ensure_future(store.transact_async(putting("k/b")))
            await soon(lambda: len(store._writer._queue) == 2)
            late = asyncio.ensure_future(store.transact_async(putting("k/c")))
            await soon(lambda: store._writer._gathered)
            store.close()
            thread.join(20)
            done = await asyncio.wait_for(
                asyncio.gather(task, late, return_exceptions=True), timeout=20
            )
        assert [type(answer) for answer in done] == [StoreClosed, StoreClosed]

    asyncio.run(main())
    assert [type(error) for error in errors] == [StoreClosed]
    thread = store._writer._thread
    assert thread is not None
    thread.join(20)
    assert not thread.is_alive()
    store = SQLiteStore(path)
    assert store.info()["items"] == 0
    store.close()


def test_one_store_serves_event_loops_one_after_the_other(store: SQLiteStore) -> None:
    async def main(number: int) -> None:
        watch = store.watch("k/", store.read("a").revision)
        task = asyncio.create_task(watch.take_async(20))
        await asyncio.sleep(0)
        await store.transact_async(putting(f"k/{number}"))
        assert [getattr(change, "key", "") for change in await task] == [f"k/{number}"]
        watch.close()

    for number in range(3):
        asyncio.run(main(number))


def test_a_failed_checkpoint_does_not_repeat_the_commit(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "JOBS_BETWEEN_LOOKS", 1)
    monkeypatch.setattr(engine_module, "WAL_TO_RESTART", 1)
    engine, tried = store._engine, list[object]()

    class Broken:
        def __getattr__(self, name: str) -> object:
            return getattr(db, name)

        def wal_checkpoint(self, **how: object) -> None:
            tried.append(how)
            raise apsw.CantOpenError("no more descriptors")

    db, engine.db = engine.db, Broken()  # type: ignore[assignment]
    for _ in range(5):
        store.transact(increase)
    engine.db = db
    assert len(tried) == 5
    item = store.read("counter")["counter"]
    assert item is not None
    assert item.value == b"5"


@pytest.mark.parametrize("happened", [True, False])
def test_a_commit_with_an_unknown_outcome_is_settled_before_anybody_is_answered(
    path: str, *, happened: bool
) -> None:
    store = SQLiteStore(path)
    fleet = interlock.connect(agent="ada", store=store)
    engine, execute, failures = store._engine, store._engine._execute, [1]

    def failing(sql: str, *bindings: object) -> object:
        if sql == "COMMIT" and failures:
            failures.pop()
            if happened:
                execute(sql)
            raise apsw.IOError("the cable came off")
        return execute(sql, *bindings)  # type: ignore[arg-type]

    engine._execute = failing  # type: ignore[assignment]
    with pytest.raises(OutcomeUnknown):
        store.transact(putting("k/a"))
    failures.append(1)
    outcome = fleet.locks.acquire("merge")
    assert isinstance(outcome, interlock.Acquired)
    shown = fleet.locks.show("merge")
    assert (shown.state, shown.token) == ("held", outcome.token)
    verbs = [line.verb for line in fleet.record.log() if line.thing == "lock/merge"]
    assert verbs == ["lock.acquire"]
    fleet.close()


def test_no_more_than_one_commit_for_a_group_that_cannot_begin(path: str) -> None:
    """Somebody else keeps the file locked, without our queue."""
    store = SQLiteStore(path)
    other = apsw.Connection(path)
    other.execute("BEGIN IMMEDIATE")
    answers: list[Committed | None] = []
    thread = threading.Thread(
        daemon=True, target=lambda: answers.append(store.transact(putting("k/a")))
    )
    thread.start()
    until(lambda: store._writer._thread is not None)
    other.execute("COMMIT")
    thread.join(20)
    other.close()
    assert revisions(list(answers)) == [1]
    assert os.path.exists(path)
    store.close()


def test_a_turn_that_cannot_be_taken_fails_its_jobs_and_not_those_that_follow(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter, broken = WriteQueue.enter, [OSError(37, "No locks available")]

    def fail_once(self: WriteQueue) -> None:
        if broken:
            raise broken.pop()
        enter(self)

    monkeypatch.setattr(WriteQueue, "enter", fail_once)
    with turn_taken_at_first(store), pytest.raises(OSError, match="No locks"):
        store.transact(putting("k/1"))
    with turn_taken_at_first(store):
        assert isinstance(store.transact(putting("k/2")), Committed)


def test_a_writer_thread_that_died_is_replaced(store: SQLiteStore) -> None:
    dead = threading.Thread(target=lambda: None)
    dead.start()
    dead.join()
    store._writer._thread = dead
    with turn_taken_at_first(store):
        assert isinstance(store.transact(putting("k/1")), Committed)


def test_who_only_looked_is_not_answered_from_a_group_whose_commit_failed(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, failures, seen = store._engine.commit, [apsw.IOError("no")], list[bool]()

    def fail_once() -> None:
        if failures:
            raise failures.pop()
        commit()

    def look(view: View) -> None:
        seen.append(view.read("k/1")["k/1"] is not None)

    def refuse(view: View) -> None:
        if view.read("k/1")["k/1"] is not None:
            raise ValueError("it is there")

    monkeypatch.setattr(store._engine, "commit", fail_once)
    answers = asyncio.run(gather(store, putting("k/1"), look, refuse))
    assert isinstance(answers[0], OutcomeUnknown)
    assert answers[1:] == [None, None]
    assert seen == [True, False]


def test_upkeep_whose_commit_failed_is_told_so(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise apsw.IOError("no")

    monkeypatch.setattr(store._engine, "commit", fail)
    with pytest.raises(StoreTrouble):
        store.sweep()
