"""What ``doctor`` looks at in a store on one SQLite file, one look a function."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING

import apsw

from interlock.errors import StoreUnsuitable
from interlock.store import Finding, finding
from interlock.stores.sqlite import files

if TYPE_CHECKING:
    from interlock.stores.sqlite.store import SQLiteStore

LEAST_SQLITE = (3, 51, 3)
LARGEST_WAL = 64 * 1024 * 1024
FOLDER = ".interlock"


def findings(store: SQLiteStore) -> Iterator[Finding]:
    """Every look, in the order in which one builds on the other."""
    info = store.info()
    yield _sqlite()
    yield _file_system(store.path)
    yield from _permissions(store.path)
    yield finding("format", str(info["format"]))
    yield _wal(info["wal_bytes"])
    yield _notifier(str(info["doorbells"]))
    yield _integrity(store.check())
    yield _queue(store.held_up_by())


def replica_findings(store: SQLiteStore) -> Iterator[Finding]:
    """The looks at a file that is only the copy of a store."""
    yield _sqlite()
    yield _file_system(store.path)
    yield from _permissions(store.path)
    yield _integrity(store.check())
    yield _queue(store.held_up_by())


def _sqlite() -> Finding:
    version = apsw.sqlite_lib_version()
    if tuple(map(int, version.split(".")[:3])) < LEAST_SQLITE:
        fact = f"{version} can damage a shared store"
        return finding("sqlite", fact, "install apsw 3.51.3 or newer", wrong="bad")
    return finding("sqlite", version)


def _file_system(path: str) -> Finding:
    kind = files.file_system(path)
    try:
        files.refuse_shared(path, kind)
    except StoreUnsuitable as error:
        return finding("file system", *str(error).split("; ", 1), wrong="bad")
    if kind in files.VOLATILE:
        return finding("file system", f"{kind} is gone with the machine", "move it to a disk")
    return finding("file system", kind or "unknown")


def _permissions(path: str) -> Iterator[Finding]:
    folder = os.path.dirname(path)
    wanted = {path: 0o600, path + "-wal": 0o600, path + "-shm": 0o600}
    if os.path.basename(folder) == FOLDER:
        wanted[folder] = 0o700
    clean = True
    if (found := os.stat(folder).st_mode) & stat.S_IWOTH and not found & stat.S_ISVTX:
        clean = False
        fact = f"every user can replace files in {folder}"
        yield finding("permissions", fact, f"chmod o-w {folder}")
    for name, mode in wanted.items():
        if os.path.exists(name) and (found := os.stat(name).st_mode & 0o777) & 0o077:
            clean = False
            fact = f"{name} is open to others ({found:o})"
            yield finding("permissions", fact, f"chmod {mode:o} {name}")
    if clean:
        yield finding("permissions", "for you only")


def _wal(size: object) -> Finding:
    if isinstance(size, int) and size > LARGEST_WAL:
        fact = f"the write-ahead log has {size >> 20} MB"
        return finding("write-ahead log", fact, "end long readers, then run 'interlock maintain'")
    return finding("write-ahead log", "within 64 MB")


def _notifier(trouble: str) -> Finding:
    if trouble == "ok":
        return finding("doorbells", "waiters are woken at once")
    return finding("doorbells", trouble, "waiters look once a second instead; allow Unix sockets")


def _integrity(problems: list[str]) -> Finding:
    if problems:
        fact = f"{problems[0]} ({len(problems)} in all)"
        return finding("file", fact, "stop all agents and restore a copy", wrong="bad")
    return finding("file", "whole")


def _queue(pid: int | None) -> Finding:
    """A process that was stopped with the write lock blocks all writers."""
    if pid is not None and _stopped(pid):
        remedy = f"let it go on with 'kill -CONT {pid}', or end it"
        return finding("queue", f"process {pid} is stopped while it writes", remedy, wrong="bad")
    return finding("queue", "no process blocks it")


def _stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in (b"T", b"t")
    except OSError:
        return False
