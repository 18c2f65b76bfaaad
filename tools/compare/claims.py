"""Queues: a contender publishes tasks, and its processes claim, run and complete each of them once.

A task does nothing but note its number, so the cost of the queue is all that is measured.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from typing import Any, ClassVar

from tools.compare.peer import TEXT, Peer, Work

_AT_ONCE = 256
"""Tasks that are published together, before the run."""
_BUSY = 60.0
"""Seconds that a connection waits for the lock of a SQLite file."""
_current: Work | None = None
"""The run of this process: rq finds the function of a task by its name, not by an object."""


class Claims(Peer):
    """A queue of tasks, each with a number and a text."""

    def publish(self, work: Work) -> None:
        """Publish ``work.count`` tasks, before the run."""
        raise NotImplementedError

    def drain(self, work: Work) -> None:
        """Claim and complete tasks, and note each, until none is left or the run is stopped."""
        raise NotImplementedError


class Interlock(Claims):
    """Interlock on SQLite: the plain loop of a blocking worker, which ends each task by itself."""

    name = "interlock"
    title = "Interlock, SQLite, plain loop"
    lacks = ""
    ahead: int | None = None
    """How many tasks are claimed and ended together; None if the user does not say."""
    packages = ("interlock", "apsw")
    ours = True

    def publish(self, work: Work) -> None:
        """Many at once: they share their commits."""
        asyncio.run(self._publish(work.count))

    async def _publish(self, count: int) -> None:
        from interlock import aio

        async with await aio.connect(self.place, agent="publisher") as fleet:
            for first in range(0, count, _AT_ONCE):
                some = range(first, min(first + _AT_ONCE, count))
                await asyncio.gather(
                    *(fleet.tasks.publish(f"task.{n}", {"number": n, "text": TEXT}) for n in some)
                )

    def drain(self, work: Work) -> None:
        import interlock

        with interlock.connect(self.place, agent=f"worker.{work.worker}") as fleet:
            worker = fleet.tasks.work(ahead=self.ahead)
            _when_stopped(work, worker.stop)
            work.begin()
            for claim in worker:
                with claim:
                    work.note(claim.data["number"])


class InterlockAhead(Interlock):
    """Interlock on SQLite: a loop that claims and ends short tasks together."""

    name = "ahead"
    title = "Interlock, SQLite, ahead=16"
    lacks = "after a kill, up to 16 finished tasks of the worker are done again"
    ahead = 16


class InterlockOneByOne(Interlock):
    """Interlock on SQLite: a call for each task, which completes it and claims the next one."""

    name = "one-by-one"
    title = "Interlock, SQLite, a call for each task"

    def drain(self, work: Work) -> None:
        import interlock
        from interlock.outcomes import Claimed, TaskCompleted

        with interlock.connect(self.place, agent=f"worker.{work.worker}") as fleet:
            work.begin()
            claim: object = fleet.tasks.next()
            while isinstance(claim, Claimed) and not work.stopped.is_set():
                work.note(claim.data["number"])
                done = fleet.tasks.complete(claim.task, token=claim.token, then_next=True)
                claim = done.next if isinstance(done, TaskCompleted) else None


class InterlockRedis(Interlock):
    """Interlock on Redis."""

    name = "interlock-redis"
    title = "Interlock, Redis, plain loop"
    server = "redis"
    packages = ("interlock", "hiredis")
    beside = "interlock-redis"


class InterlockInFlight(Interlock):
    """Interlock on SQLite: one process that works on many tasks at once."""

    name = "in-flight"
    title = "Interlock, SQLite, 64 in flight"

    def drain(self, work: Work) -> None:
        asyncio.run(self._drain(work))

    async def _drain(self, work: Work) -> None:
        from interlock import aio
        from interlock.aio_tasks import Claim

        async with await aio.connect(self.place, agent=f"worker.{work.worker}") as fleet:
            worker = fleet.tasks.work(concurrency=work.at_once)
            loop = asyncio.get_running_loop()
            _when_stopped(work, lambda: loop.call_soon_threadsafe(worker.stop))
            work.begin()

            async def handle(claim: Claim) -> None:
                work.note(claim.data["number"])

            await worker.serve(handle)


class InterlockInFlightRedis(InterlockInFlight):
    """Interlock on Redis: one process that works on many tasks at once."""

    name = "in-flight-redis"
    title = "Interlock, Redis, 64 in flight"
    server = "redis"
    packages = ("interlock", "hiredis")
    beside = "interlock-redis"


class BareSql(Claims):
    """A table in SQLite, written by hand: one commit claims a task, another completes it."""

    name = "sql"
    title = "SQL by hand, SQLite"
    lacks = "lease, fairness, fencing, record; no wake-up of waiting workers"

    def publish(self, work: Work) -> None:
        connection = self._connect()
        connection.execute("PRAGMA journal_mode = wal")
        connection.execute("CREATE TABLE task (id INTEGER PRIMARY KEY, text, state, worker)")
        connection.execute("CREATE INDEX ready ON task (id) WHERE state = 'ready'")
        rows = ((n, TEXT) for n in range(work.count))
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO task VALUES (?, ?, 'ready', NULL)", rows)
        connection.execute("COMMIT")
        connection.close()

    def drain(self, work: Work) -> None:
        connection = self._connect()
        work.begin()
        while not work.stopped.is_set():
            if (number := self._claim(connection, work.worker)) is None:
                break
            work.note(number)
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("UPDATE task SET state = 'done' WHERE id = ?", (number,))
            connection.execute("COMMIT")
        connection.close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.place, timeout=_BUSY, isolation_level=None)
        connection.execute("PRAGMA synchronous = full")
        return connection

    def _claim(self, connection: sqlite3.Connection, worker: int) -> int | None:
        connection.execute("BEGIN IMMEDIATE")
        first = "SELECT id, text FROM task WHERE state = 'ready' ORDER BY id LIMIT 1"
        found = connection.execute(first).fetchone()
        if found is not None:
            claimed = "UPDATE task SET state = 'claimed', worker = ? WHERE id = ?"
            connection.execute(claimed, (worker, found[0]))
        connection.execute("COMMIT")
        return None if found is None else int(found[0])


class Huey(Claims):
    """huey on SQLite: the loop of its consumer's worker."""

    name = "huey"
    title = "huey, SQLite"
    lacks = "lease, fairness, fencing, record; a task is lost if its worker dies"
    packages = ("huey",)
    result: ClassVar[object] = True
    """What its tasks return: it is stored, so that a task is known to be complete."""

    def publish(self, work: Work) -> None:
        huey, task = self._open(work)
        for number in range(work.count):
            huey.enqueue(task.s(number, TEXT))

    def drain(self, work: Work) -> None:
        """``huey_consumer`` runs this loop in each of its worker processes."""
        from huey.consumer import Worker

        huey, _ = self._open(work)
        # The delays are the defaults of huey_consumer.
        worker = Worker(huey, work.stopped, default_delay=0.1, max_delay=10.0, backoff=1.15)
        work.begin()
        while not work.stopped.is_set():
            worker.loop()

    def _open(self, work: Work) -> tuple[Any, Any]:
        from huey import SqliteHuey

        huey = SqliteHuey(filename=self.place, fsync=True, timeout=_BUSY)

        def run(number: int, _text: str) -> object:
            work.note(number)
            return self.result

        return huey, huey.task(name="run")(run)


class HueyWithoutResults(Huey):
    """huey on SQLite with tasks that return nothing: the commit that claims is the only one."""

    name = "huey-no-result"
    title = "huey, SQLite, no results"
    lacks = f"{Huey.lacks}; whether a task was completed"
    result = None


class Rq(Claims):
    """rq on Redis: its worker that does not fork for each task, which is the quicker one."""

    name = "rq"
    title = "rq (SimpleWorker), Redis"
    lacks = "fencing, record; a task fails if its worker dies"
    server = "redis"
    packages = ("rq", "redis")
    beside = "interlock-redis"

    def publish(self, work: Work) -> None:
        queue = self._queue()
        queue.enqueue_many([queue.prepare_data(noted, (n, TEXT)) for n in range(work.count)])

    def drain(self, work: Work) -> None:
        from rq import SimpleWorker

        global _current  # noqa: PLW0603 - see there
        _current = work
        queue = self._queue()
        worker = SimpleWorker([queue], connection=queue.connection)
        worker.log.setLevel(logging.WARNING)
        work.begin()
        worker.work(burst=True, logging_level="WARNING")

    def _queue(self) -> Any:  # noqa: ANN401 - not installed where types are checked
        from redis import Redis
        from rq import Queue

        return Queue("compare", connection=Redis.from_url(self.place.partition("?")[0]))


def noted(number: int, _text: str) -> bool:
    """The task of rq."""
    assert _current is not None  # noqa: S101 - set before the worker starts
    _current.note(number)
    return True


class Procrastinate(Claims):
    """procrastinate on PostgreSQL: a worker of its app."""

    name = "procrastinate"
    title = "procrastinate, PostgreSQL"
    lacks = "fairness, fencing, record; a user's own task looks for those of dead workers"
    server = "postgres"
    packages = ("procrastinate", "psycopg")

    def publish(self, work: Work) -> None:
        asyncio.run(self._publish(work))

    async def _publish(self, work: Work) -> None:
        app, task = self._open(work)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            many = [{"number": n, "text": TEXT} for n in range(work.count)]
            await task.batch_defer_async(*many)

    def drain(self, work: Work) -> None:
        asyncio.run(self._drain(work))

    async def _drain(self, work: Work) -> None:
        app, _ = self._open(work)
        async with app.open_async():
            work.begin()
            await app.run_worker_async(wait=False)

    def _open(self, work: Work) -> tuple[Any, Any]:
        from procrastinate import App, PsycopgConnector

        app = App(connector=PsycopgConnector(conninfo=self.place))

        async def run(number: int, text: str) -> bool:  # noqa: ARG001 - as a task is written
            work.note(number)
            return True

        return app, app.task(name="run")(run)


def _when_stopped(work: Work, stop: Any) -> None:  # noqa: ANN401 - any function
    def wait() -> None:
        work.stopped.wait()
        stop()

    threading.Thread(target=wait, daemon=True).start()


PEERS: tuple[type[Claims], ...] = (
    Interlock,
    InterlockAhead,
    InterlockOneByOne,
    BareSql,
    Huey,
    HueyWithoutResults,
    InterlockRedis,
    Rq,
    Procrastinate,
)
