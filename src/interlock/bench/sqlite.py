"""SQLite: a file in a folder, and a bare file beside it for the floor.

The floor reads and writes the same rows of the same tables as durably, through one cursor of apsw
and nothing else.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, cast

import apsw

from interlock.bench.engine import ACQUIRE, HASH, AsyncFloor, BenchEngine, FloorCommit
from interlock.stores.sqlite import schema

_READ = "SELECT key, value, revision, created, entry, hash, expires FROM item WHERE key = ?"
_REVISION = """SELECT max((SELECT max(revision) FROM log),
  (SELECT value FROM meta WHERE name = 'quiet'))"""
_PUT = "INSERT OR REPLACE INTO item VALUES (?, ?, ?, ?, ?, ?, NULL)"
_DELETE = "DELETE FROM item WHERE key = ?"
_LOG = "INSERT INTO log VALUES (?, ?, ?, ?, ?)"


class SQLiteEngine(BenchEngine):
    """Files in a folder of their own, on the disk of a path or of the temporary folder."""

    targets: ClassVar[Mapping[str, str]] = {
        "acquire": "at most 1.6",
        "acquire-async": "at most 2.5",
        "share": "under 0.35 of its time",
        "in-flight": "at least 0.25",
        "claim": "at most 1.6",
        "claim-async": "at most 2.5",
        "tasks-in-flight": "at least 0.20",
        "drain": "at least 0.60; ",
        "told": "p95 at most 5 ms",
        "alert": "at most 1.6",
        "messages-in-flight": "at least 0.20",
        "heard-here": "p95 at most 2 ms",
        "heard": "p95 at most 5 ms",
        "query": "p95 at most 10 ms",
        "flooded": "at most 2",
        "crowd": "500 /s, p95 3 ms; ",
        "cold": "at most 5",
        "memory": "60 MB",
    }

    def __init__(self, path: str | None = None) -> None:
        disk = path if path is None or os.path.isdir(path) else os.path.dirname(path) or "."
        self._folder = tempfile.mkdtemp(prefix="interlock-bench-", dir=disk)

    def fresh(self) -> str:
        """The path of a store that does not exist yet."""
        return self._path("bench")

    def floor(self, location: str = "") -> SQLiteFloor:
        """A bare file."""
        return SQLiteFloor(location or self.floor_location())

    def floor_location(self) -> str:
        """The path of a bare file."""
        return self._path("floor")

    async def floor_async(self) -> AsyncSQLiteFloor:
        """A bare file in an event loop; the engine itself never waits."""
        return AsyncSQLiteFloor(self.floor())

    def wipe(self) -> None:
        """Nothing to do: on this engine one commit releases everything."""

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, f"{name}-{os.urandom(4).hex()}.db")


class SQLiteFloor:
    """A bare file beside the measured one."""

    def __init__(self, path: str) -> None:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        self._db = schema.connect(path)
        schema.configure(self._db)
        schema.establish(self._db, path)
        self._execute = self._db.cursor().execute
        self._revision = 0

    def commit(self, *names: str, kind: FloorCommit = ACQUIRE) -> None:
        """Do this for all of the names in one durable commit."""
        execute = self._execute
        execute("BEGIN IMMEDIATE")
        (last,) = cast("tuple[int | None]", execute(_REVISION).fetchone())
        self._revision = last or 0
        for name in names:
            self._one(execute, name, kind)
        execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _one(self, execute: Callable[..., apsw.Cursor], name: str, kind: FloorCommit) -> None:
        self._revision = revision = self._revision + 1
        id_ = f"txn_{revision:032x}"
        for key in kind.reads:
            execute(_READ, (key.format(name),)).fetchone()
        touched = []
        for key, value in kind.puts:
            execute(_PUT, (key.format(name), value, revision, revision, id_, HASH))
            touched.append("+" + key)
        for key in kind.deletes:
            execute(_DELETE, (key.format(name),))
            touched.append("-" + key)
        execute(_LOG, (revision, id_, kind.entry, HASH, "\n".join(touched)))


class AsyncSQLiteFloor(AsyncFloor):
    """The bare file in an event loop; what is under way concurrently is one durable commit."""

    def __init__(self, floor: SQLiteFloor) -> None:
        self._floor = floor

    async def commit(self, name: str, kind: FloorCommit = ACQUIRE) -> None:
        """Do this."""
        self._floor.commit(name, kind=kind)

    async def in_flight(self, rounds: Sequence[Sequence[str]], kind: FloorCommit = ACQUIRE) -> None:
        """One durable commit for each round."""
        for names in rounds:
            self._floor.commit(*names, kind=kind)

    async def aclose(self) -> None:
        """Close the file."""
        self._floor.close()
