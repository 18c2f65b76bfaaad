"""The floor of SQLite: the engine's own client doing what an acquisition does, and nothing else.

The same tables, the same rows under the same keys read and written, the same durability, through
one cursor of apsw and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import apsw

from interlock.stores.sqlite import schema

_LOCK = b"x" * 200
_ENTRY = b"x" * 540
_HASH = "0" * 64
_READ = "SELECT key, value, revision, created, entry, hash, expires FROM item WHERE key = ?"
_REVISION = """SELECT max((SELECT max(revision) FROM log),
  (SELECT value FROM meta WHERE name = 'quiet'))"""
_PUT = "INSERT OR REPLACE INTO item VALUES (?, ?, ?, ?, ?, ?, NULL)"
_LOG = "INSERT INTO log VALUES (?, ?, ?, ?, ?)"


class SQLiteFloor:
    """A bare file beside the measured one."""

    def __init__(self, folder: str) -> None:
        path = os.path.join(folder, f"floor-{os.urandom(4).hex()}.db")
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        self._db = schema.connect(path)
        schema.configure(self._db)
        schema.establish(self._db, path)
        self._execute = self._db.cursor().execute
        self._revision = 0

    def commit(self, *names: str) -> None:
        """Acquisitions of these locks in one durable commit."""
        execute = self._execute
        execute("BEGIN IMMEDIATE")
        execute(_REVISION).fetchone()
        for name in names:
            self._one(execute, name)
        execute("COMMIT")

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def _one(self, execute: Callable[..., apsw.Cursor], name: str) -> None:
        self._revision = revision = self._revision + 1
        key, id_ = f"locks/{name}", f"txn_{revision:032x}"
        execute(_READ, (key,)).fetchone()
        execute(_READ, ("live/session",)).fetchone()
        execute(_PUT, (key, _LOCK, revision, revision, id_, _HASH))
        execute(_LOG, (revision, id_, _ENTRY, _HASH, "+" + key))
