"""Tables, the format number, and how an older file becomes a newer one.

    item   what stands under a key now; a row that has ``expires`` is a liveness key
    log    one row for each recorded commit, in order; ``touched`` lists its keys for the watchers,
           one a line, behind + (put), - (deleted) or ! (signal)
    meta   format facts: the highest quiet revision, how far the log was trimmed, the boot that
           liveness times belong to, and the version that wrote the format

The format number is SQLite's user_version and the application_id says that the file is ours.
Liveness times are nanoseconds of CLOCK_MONOTONIC, which all processes of one boot share; after
a reboot no session is alive, so the first process that opens the file deletes them all.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

import apsw

from interlock.descriptors import are_free, out_of_descriptors
from interlock.errors import (
    InterlockError,
    StoreBusy,
    StoreDamaged,
    StoreMissing,
    StoreNewer,
    StoreReadOnly,
    StoreTrouble,
    StoreUnsuitable,
)
from interlock.stores.sqlite.files import FULL, away, beginning, full, mark_logs, no_room, own_logs

if TYPE_CHECKING:
    Migration = Callable[[apsw.Connection], None]

APPLICATION = 0x494C434B  # "ILCK"
FORMAT = 1
SAFE_SQLITE = 3_051_003
PATIENCE = 10.0
"""Seconds to wait for a process that creates or migrates the same store."""
STATEMENT_SLOTS = 512
"""The cache of prepared statements.  Each execution moves its statement to the next slot, so the
cache keeps the statements of the last so many executions; a commit of 64 tasks makes 450."""

AT_ONCE = 4
"""File descriptors that the engine takes at once, at most: those that it got it has given back by
the time it reports that one was refused."""

TABLES = """
CREATE TABLE item (
  key TEXT NOT NULL PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL,
  created INTEGER NOT NULL, entry TEXT NOT NULL, hash TEXT NOT NULL, expires INTEGER
) WITHOUT ROWID;
CREATE TABLE log (
  revision INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, value BLOB NOT NULL,
  hash TEXT NOT NULL, touched TEXT NOT NULL
);
CREATE TABLE meta (name TEXT NOT NULL PRIMARY KEY, value) WITHOUT ROWID;
INSERT INTO meta VALUES ('quiet', 0), ('trimmed', 0);
"""

MIGRATIONS: Mapping[int, Migration] = {}
"""From a format to the next one: each runs inside the transaction that also raises the number."""


def open_connection(path: str) -> apsw.Connection:
    """A connection with the promises switched on: WAL, and durable when COMMIT returns."""
    if _number(apsw.sqlite_lib_version()) < SAFE_SQLITE:
        raise StoreUnsuitable(
            f"SQLite {apsw.sqlite_lib_version()} can damage a store with several writers;"
            " install apsw 3.51.3 or newer"
        )
    db = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE, statementcachesize=STATEMENT_SLOTS)
    db.set_busy_timeout(10_000)
    # The file is data, even if another program wrote it: a schema may call nothing.
    db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    db.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    # Else SQLite prepares the query of a range again for each range, with the same plan.
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    return db


def open_first(path: str) -> apsw.Connection:
    """The first connection of a process, beside no file that a commit may have written."""
    with own_logs(path) as marked:
        db = open_connection(path)
        try:
            if marked:
                db.pragma("user_version")
        except BaseException:
            db.close()
            raise
    return db


def configure(db: apsw.Connection) -> None:
    """The settings of a connection that do not depend on what is in the file."""
    db.execute("PRAGMA synchronous=FULL").fetchall()
    db.execute("PRAGMA mmap_size=0").fetchall()
    db.execute("PRAGMA journal_size_limit=8388608").fetchall()
    db.wal_autocheckpoint(1_000)


def establish(
    db: apsw.Connection,
    path: str,
    *,
    target: int = FORMAT,
    migrations: Mapping[int, Migration] = MIGRATIONS,
) -> None:
    """Create the tables in an empty file, migrate an older one, refuse a newer or foreign one."""
    if _established(db, target):
        return
    with _alone(path):  # switching to WAL does not wait for others who do the same: it fails
        if not _established(db, target):
            _establish(db, path, target, migrations)


def _established(db: apsw.Connection, target: int) -> bool:
    return _marks(db) == (target, APPLICATION) and db.pragma("journal_mode") == "wal"


@contextmanager
def _alone(path: str) -> Iterator[None]:
    """Keeps other processes from creating a store in this folder; leaves nothing behind."""
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        ends = time.monotonic() + PATIENCE
        while not _locked(folder):
            if time.monotonic() > ends:
                raise StoreBusy(
                    f"another process has been creating or migrating {path} for {PATIENCE:g} s"
                    " (is it stopped?); let it go on with 'kill -CONT', or end it"
                )
            time.sleep(0.01)
        yield
    finally:
        os.close(folder)


def _locked(folder: int) -> bool:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _establish(
    db: apsw.Connection, path: str, target: int, migrations: Mapping[int, Migration]
) -> None:
    db.execute("BEGIN")
    with _transaction(db):  # a snapshot of a file that another process may be creating
        _refuse(db, path, target)
    if db.pragma("journal_mode", "wal") != "wal":
        raise StoreUnsuitable(
            f"{path} cannot use write-ahead logging here; move it to a local disk"
        )
    db.execute("BEGIN IMMEDIATE")
    with _transaction(db):
        mark_logs(path)
        found, application = _marks(db)
        if application == APPLICATION and found == target:
            return
        if application == 0 and found == 0 and not db.pragma("schema_version"):
            _create(db, target)
            return
        _refuse(db, path, target)
        _backup(path, found)
        for step in range(found, target):
            migrations[step](db)
        _write_version(db)
        db.execute(f"PRAGMA user_version={target}")


def start_boot(db: apsw.Connection, boot: str) -> None:
    """Delete the liveness keys of an earlier boot: no process survived it."""
    if _boot(db) == boot:
        return
    db.execute("BEGIN IMMEDIATE")
    with _transaction(db):
        if _boot(db) != boot:  # Asked again: a faster process may have live sessions by now.
            db.execute("DELETE FROM item WHERE expires IS NOT NULL")
            db.execute("INSERT OR REPLACE INTO meta VALUES ('boot', ?)", (boot,))


def boot_id() -> str:
    """What distinguishes this boot of the machine from all others."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return _boot_time()


def translated(error: apsw.Error, path: str, db: apsw.Connection | None = None) -> InterlockError:
    """The engine's complaint in words that say what to do; ``db`` knows what the system said."""
    said = " ".join(str(error).split())  # it may quote what it read, over several lines
    if (lack := _lack(error, path, db)) is not None:
        return lack
    match error:
        case apsw.CorruptError() | apsw.NotADBError():
            return StoreDamaged(
                f"{path} is damaged or not a store ({said});"
                f" move it away ({away(path)}), then restore a copy,"
                f" or start over: {beginning(path)}"
            )
        case apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.AuthError():
            return StoreReadOnly(f"{path} cannot be written by you; change its permissions")
        case apsw.CantOpenError():
            return StoreMissing(f"{path} cannot be opened; check that it exists and is yours")
        case apsw.BusyError() | apsw.LockedError():
            return StoreBusy(f"another program keeps {path} locked; close it and retry")
        case _:
            return StoreTrouble(f"the engine failed on {path}: {said}; run 'interlock doctor'")


def found_no_room(error: apsw.Error, db: apsw.Connection) -> bool:
    """Whether this was a write that the system refused for a limit: nothing is committed by it.

    SQLite says FULL for a full disk alone.  The last write of a commit is that of its last page.
    """
    write = getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_WRITE
    return write and db.system_errno in FULL


def _lack(error: apsw.Error, path: str, db: apsw.Connection | None) -> InterlockError | None:
    """What the system has no more of, if that is the reason.

    Of the files beside the store, the engine does not say why they cannot be opened or written.
    """
    if db is not None and found_no_room(error, db):
        return full(path, db.system_errno)
    beside = isinstance(error, apsw.IOError | apsw.CantOpenError)
    if beside and not are_free(AT_ONCE):
        return out_of_descriptors()
    if isinstance(error, apsw.FullError) or (beside and no_room(os.path.dirname(path))):
        return full(path)
    return None


class _transaction:  # noqa: N801 - reads as a statement
    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, *_: object) -> None:
        if self._db.in_transaction:
            self._db.execute("COMMIT" if kind is None else "ROLLBACK")


def _create(db: apsw.Connection, target: int) -> None:
    db.execute(TABLES)
    _write_version(db)
    db.execute(f"PRAGMA application_id={APPLICATION}")
    db.execute(f"PRAGMA user_version={target}")


def _write_version(db: apsw.Connection) -> None:
    """The version that wrote the format, for the message of an older one."""
    from interlock.version import __version__

    db.execute("INSERT OR REPLACE INTO meta VALUES ('version', ?)", (__version__,))


def refuse_foreign(db: apsw.Connection, path: str) -> None:
    """Raise if a file is not a store, or one of a later format."""
    if _marks(db)[1] != APPLICATION:
        raise StoreDamaged(f"{path} is not a store of Interlock; name another file")
    _refuse(db, path, FORMAT)


def _refuse(db: apsw.Connection, path: str, target: int) -> None:
    """Raise if the file is not ours, or not ours yet."""
    found, application = _marks(db)
    if application != APPLICATION and (application or found or db.pragma("schema_version")):
        raise StoreDamaged(f"{path} is some other program's database; name another file")
    if application == APPLICATION and found > target:
        raise _newer(db, path, found, target)


def _backup(path: str, found: int) -> None:
    """A copy of the file as it is, made by the one process that holds the write lock."""
    part = f"{path}.format{found}.part"
    for left in (part, part + "-journal"):
        with suppress(FileNotFoundError):
            os.unlink(left)  # of a process that was killed here
    os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    # A connection of its own: SQLite does not copy from one that is about to write.
    with (
        closing(open_connection(path)) as source,
        closing(apsw.Connection(part)) as copy,
        copy.backup("main", source, "main") as backup,
    ):
        backup.step(-1)
    os.replace(part, part.removesuffix(".part"))


def _newer(db: apsw.Connection, path: str, found: int, target: int) -> StoreNewer:
    row = db.execute("SELECT value FROM meta WHERE name='version'").fetchone()
    version = row[0] if row else "a later version"
    return StoreNewer(
        f"{path} has format {found}, this Interlock knows {target};"
        f" install interlock {version} or newer"
    )


def _boot(db: apsw.Connection) -> str | None:
    row = db.execute("SELECT value FROM meta WHERE name='boot'").fetchone()
    return None if row is None else str(row[0])


def _marks(db: apsw.Connection) -> tuple[int, int]:
    return int(db.pragma("user_version")), int(db.pragma("application_id"))


def _number(version: str) -> int:
    major, minor, patch = (int(part) for part in version.split(".")[:3])
    return major * 1_000_000 + minor * 1_000 + patch


def _boot_time() -> str:
    if sys.platform == "darwin":
        import subprocess

        return subprocess.run(
            ["/usr/sbin/sysctl", "-n", "kern.boottime"], capture_output=True, text=True, check=True
        ).stdout.strip()
    return "unknown"
