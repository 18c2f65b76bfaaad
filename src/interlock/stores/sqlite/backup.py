"""Backup and restore of a SQLite store.

A backup is made by ``VACUUM INTO``: one read transaction, while others commit.  It has a mark, so
that it is never used as a store by itself: it would grant the same tokens a second time.

A restore makes a new file and puts it in the place of the store, in this order:

    build      a file beside the store, with the content of the backup.  No session lives in it, and
               its revisions go on ``JUMP`` above the highest one that is known: above every token
               that can have been granted since the backup, though the store may be lost
    close in   the turn to write, which keeps all commits out; then no other connection may be open
    replace    the old file gets a second name, and the new one replaces it in one step

A crash before the last step leaves the store as it was, and one after it leaves it restored.
A client that connects in this moment has the old file open: it commits nothing while we have the
turn, and finds its file replaced after that (``OpenFiles``), before any commit is acknowledged.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from typing import TypedDict

import apsw
from msgspec.structs import replace

from interlock.errors import (
    BadInput,
    NotAllowed,
    StoreBusy,
    StoreDamaged,
    StoreGone,
    StoreMissing,
    StoreNewer,
    StoreReadOnly,
)
from interlock.store import StoreMark
from interlock.stores.marks import encode_mark, refusal
from interlock.stores.sqlite import files, schema
from interlock.stores.sqlite.connection import ReadConnection
from interlock.stores.sqlite.store import SQLiteStore
from interlock.stores.sqlite.writer import WriteQueue

JUMP = 1 << 36
"""Revisions that a restored store skips: more than a store commits in months at full speed."""
PATIENCE = 10.0
"""Seconds to wait for the turn to write."""
_PAUSE = 0.01


class BackupFacts(TypedDict):
    """What a backup has."""

    revision: int
    items: int
    entries: int
    bytes: int


class RestoreFacts(TypedDict):
    """What a restore did; ``kept`` is where the replaced store is."""

    backup: int
    revision: int
    lost: int
    kept: str


def back_up(store: str, path: str, *, force: bool = False) -> BackupFacts:
    """Write a consistent copy of a store to a file, while others use the store.

    ``force`` replaces an earlier backup, never a store.
    """
    files.prepare(store, create=False)
    _refuse_target(store, path, force=force)
    part = path + ".part"
    with _alone(part), _translating(path):
        with closing(_ours(store)) as source:
            mark = ReadConnection(source).standing()[1]
            if mark is not None:
                raise NotAllowed(str(refusal(mark, store)))
            source.execute("VACUUM INTO ?", (part,))
        facts = _finish_backup(part, store)
        _synchronize(part)
        _place(part, path, force=force)
    return facts


def restore(
    store: str, path: str, *, force: bool = False, before: Callable[[SQLiteStore], None]
) -> RestoreFacts:
    """Put the content of a backup in the place of a store, which no client may have open.

    ``force`` replaces a store that is there.  ``before`` gets the restored store before any client
    can open it, to note the restore in its record.
    """
    there = os.path.lexists(store)
    if there and not force:
        raise BadInput(
            f"there is a store at {store}; --force replaces it (and keeps it beside the new one),"
            " --store PATH restores to another place"
        )
    part = store + ".restoring"
    with _alone(part), _closed_in(store) if there else _nothing() as current:
        found = _built(part, path, current)
        revision = _opened_once(part, before)
        kept = _replace(part, store, keep=there)
    return RestoreFacts(
        backup=found, revision=revision, lost=max(0, current - found) if there else 0, kept=kept
    )


# ---- the parts of a backup ----------------------------------------------------------------------


def _refuse_target(store: str, path: str, *, force: bool) -> None:
    if os.path.realpath(path) == store:
        raise BadInput(f"{path} is the store itself; name another file")
    if not os.path.isdir(os.path.dirname(path)):
        raise StoreMissing(f"there is no folder {os.path.dirname(path)}; make it first")
    if not os.path.lexists(path):
        return
    if not force:
        raise BadInput(f"{path} exists; name another file, or replace it with --force")
    with suppress(apsw.Error, StoreDamaged, StoreNewer), closing(_ours(path)) as db:
        if (mark := ReadConnection(db).standing()[1]) is None or mark.state != "backup":
            raise NotAllowed(f"{path} is a store and not a backup; name another file")


def _finish_backup(part: str, store: str) -> BackupFacts:
    """Check the copy, and mark it as what it is."""
    with closing(apsw.Connection(part)) as db:
        _check(db, part)
        reader = ReadConnection(db)
        revision = reader.revision()
        mark = StoreMark(
            state="backup",
            place=store,
            move=f"bak_{time.time_ns():x}",
            at=round(time.time(), 3),
            revision=revision,
        )
        db.execute("UPDATE meta SET value = ? WHERE name = 'quiet'", (encode_mark(mark),))
        items, entries = reader.one(
            "SELECT (SELECT count(*) FROM item), (SELECT count(*) FROM log)"
        )
    return BackupFacts(revision=revision, items=items, entries=entries, bytes=os.path.getsize(part))


def _place(part: str, path: str, *, force: bool) -> None:
    """Give the complete file its name, in one step; without ``force`` no file is replaced."""
    if force:
        os.replace(part, path)
    else:
        try:
            os.link(part, path)
        except FileExistsError:
            raise BadInput(f"{path} exists; name another file") from None
        except OSError:  # a file system without links
            if os.path.lexists(path):
                raise BadInput(f"{path} exists; name another file") from None
            os.replace(part, path)
        else:
            os.unlink(part)
    _synchronize(os.path.dirname(path))


# ---- the parts of a restore ---------------------------------------------------------------------


@contextmanager
def _closed_in(store: str) -> Iterator[int]:
    """The highest revision of a store, while its clients are kept out; 0 if it is damaged."""
    files.prepare(store, create=False)
    folder = store + files.SIDE
    files.make_side_folder(folder)
    queue = WriteQueue(folder)
    try:
        _enter(queue, store)
        yield _highest(store)
    finally:
        queue.leave()
        queue.close()


@contextmanager
def _nothing() -> Iterator[int]:
    yield 0


def _enter(queue: WriteQueue, store: str) -> None:
    ends = time.monotonic() + PATIENCE
    while not queue.try_enter():
        if time.monotonic() > ends:
            raise StoreBusy(
                f"process {queue.holder()} has been writing to {store} for {PATIENCE:g} s; end it,"
                " and every agent that uses this store, then restore"
            )
        time.sleep(_PAUSE)


def _highest(store: str) -> int:
    """The revision of a store that no other process has open; raises if one has."""
    try:
        with closing(_ours(store)) as db:
            db.set_busy_timeout(0)
            revision, mark = ReadConnection(db).standing()
            if mark is not None and mark.state in ("moving", "moved", "filling"):
                raise NotAllowed(
                    f"{refusal(mark, store)}; a restore here would make two stores of one: restore"
                    " to another place (--store PATH), or remove this file first"
                )
            # It succeeds only without any other connection, and leaves no log behind.
            alone = db.pragma("journal_mode", "delete") == "delete"
    except (apsw.BusyError, apsw.LockedError):
        raise _in_use(store) from None
    except (apsw.CorruptError, apsw.NotADBError, apsw.CantOpenError, StoreDamaged, StoreGone):
        alone, revision = not _users(store), 0
    if not alone:
        raise _in_use(store)
    return revision


def _in_use(store: str) -> NotAllowed:
    pids = ", ".join(map(str, _users(store)))
    who = f"processes {pids} have" if pids else "another process has"
    return NotAllowed(
        f"{who} {store} open; stop every agent that uses it, then restore (a restore ends all"
        " sessions)"
    )


def _users(store: str) -> list[int]:
    """The other processes that have a file open, as far as the system shows them."""
    found = []
    with suppress(OSError):
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                folder = f"/proc/{pid}/fd"
                if int(pid) != os.getpid() and any(
                    os.readlink(f"{folder}/{each}") == store for each in os.listdir(folder)
                ):
                    found.append(int(pid))
    return sorted(found)


def _built(part: str, path: str, current: int) -> int:
    """Make the new file; returns the revision of the backup."""
    if not os.path.isfile(path):
        raise StoreMissing(f"there is no backup at {path}; name the file of 'store backup'")
    if os.path.exists(path + "-wal") and os.path.getsize(path + "-wal"):
        raise BadInput(
            f"{path} has a write-ahead log beside it, so it is a store and not a backup; make a"
            " backup of it with 'interlock store backup'"
        )
    with _translating(path), closing(_ours(path, reads=True)) as backup:
        found, mark = ReadConnection(backup).standing()
        if mark is not None and mark.state != "backup":
            raise NotAllowed(str(refusal(mark, path)))
        _check(backup, path)
        backup.execute("VACUUM INTO ?", (part,))
    with _translating(part), closing(apsw.Connection(part)) as db:
        db.execute("BEGIN IMMEDIATE")
        db.execute("DELETE FROM item WHERE expires IS NOT NULL")
        value = max(found, current) + JUMP
        db.execute("UPDATE meta SET value = ? WHERE name = 'quiet'", (value,))
        db.execute("COMMIT")
    return found


def _opened_once(part: str, before: Callable[[SQLiteStore], None]) -> int:
    """Let the caller note the restore; returns the revision of the new store."""
    with closing(SQLiteStore(part, create=False)) as store:
        before(store)
        return store.read().revision


def _replace(part: str, store: str, *, keep: bool) -> str:
    """Put the new file in the place of the store; returns the other name of the old one."""
    os.chmod(part, 0o600)
    _synchronize(part)
    kept = _kept_name(store) if keep else ""
    if keep:
        os.link(store, kept)
    for beside in files.BESIDE:  # also of a store that is gone: SQLite would play the log
        with suppress(FileNotFoundError):
            os.unlink(store + beside)
    if not keep:
        _place(part, store, force=False)
        return kept
    os.replace(part, store)
    _synchronize(os.path.dirname(store))
    _retire(kept, store)
    return kept


def _kept_name(store: str) -> str:
    number, name = 1, f"{store}.before-restore"
    while os.path.lexists(name):
        number += 1
        name = f"{store}.before-restore-{number}"
    return name


def _retire(kept: str, store: str) -> None:
    """The replaced file is no store any more: it would grant tokens beside the new one."""
    mark = StoreMark(state="moved", place=store, move=f"bak_{time.time_ns():x}", at=time.time())
    with suppress(apsw.Error), closing(apsw.Connection(kept)) as db:  # a damaged one stays as it is
        text = encode_mark(replace(mark, revision=ReadConnection(db).revision()))
        db.execute("UPDATE meta SET value = ? WHERE name = 'quiet'", (text,))


# ---- shared -------------------------------------------------------------------------------------


def _ours(path: str, *, reads: bool = False) -> apsw.Connection:
    """A connection to a store or a backup, of this format or an earlier one.

    ``reads`` is for a file that no process changes: nothing is written there or beside it.
    """
    with nullcontext() if reads else files.own_logs(path):
        if reads:
            from urllib.parse import quote

            flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
            db = apsw.Connection(f"file:{quote(path)}?immutable=1", flags=flags)
        else:
            db = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
            db.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
            schema.refuse_foreign(db, path)
        except BaseException:
            db.close()
            raise
    return db


def _check(db: apsw.Connection, path: str) -> None:
    found = [str(row[0]) for row in db.execute("PRAGMA integrity_check(1)").fetchall()]
    if found != ["ok"]:
        raise StoreDamaged(f"{path} is damaged ({found[0]}); use another backup")


@contextmanager
def _alone(part: str) -> Iterator[None]:
    """One process at a time makes this file; the remains of one that was killed are removed."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(part, flags, 0o600)
    except OSError as error:
        raise StoreReadOnly(f"{part} cannot be written ({error.strerror})") from None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreBusy(f"another process is writing {part}; retry") from None
        if files.identity(part) != (os.fstat(fd).st_dev, os.fstat(fd).st_ino):
            raise StoreBusy(f"another process has just written {part}; retry")
        _remove_beside(part)
        os.ftruncate(fd, 0)  # SQLite takes an empty file for a new one
        try:
            yield
        except BaseException:
            _remove_beside(part)
            with suppress(FileNotFoundError):
                os.unlink(part)
            raise
        _remove_beside(part)
    finally:
        os.close(fd)  # last: it drops the locks that SQLite has on this file


def _remove_beside(part: str) -> None:
    for beside in files.BESIDE:
        with suppress(FileNotFoundError):
            os.unlink(part + beside)
    shutil.rmtree(part + files.SIDE, ignore_errors=True)


@contextmanager
def _translating(path: str) -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        raise schema.translated(error, path) from error
    except OSError as error:
        if error.errno in files.FULL:
            raise files.full(path) from None
        raise


def _synchronize(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
