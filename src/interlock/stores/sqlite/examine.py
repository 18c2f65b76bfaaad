"""What ``doctor`` looks at in a store on one SQLite file, one look a function."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING

import apsw

from interlock.errors import StoreUnsuitable
from interlock.store import Finding
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
    yield Finding(verdict="ok", name="format", fact=str(info["format"]))
    yield _wal(info["wal_bytes"])
    yield _notifier(str(info["doorbells"]))
    yield _integrity(store.check())
    yield _queue(store.held_up_by())


def _sqlite() -> Finding:
    version = apsw.sqlite_lib_version()
    if tuple(map(int, version.split(".")[:3])) < LEAST_SQLITE:
        fact = f"{version} can damage a shared store"
        return _bad("sqlite", fact, "install apsw 3.51.3 or newer")
    return Finding(verdict="ok", name="sqlite", fact=version)


def _file_system(path: str) -> Finding:
    kind = files.file_system(path)
    try:
        files.refuse_shared(path, kind)
    except StoreUnsuitable as error:
        return _bad("file system", *str(error).split("; ", 1))
    if kind in files.VOLATILE:
        return _warn("file system", f"{kind} is gone with the machine", "move it to a disk")
    return Finding(verdict="ok", name="file system", fact=kind or "unknown")


def _permissions(path: str) -> Iterator[Finding]:
    folder = os.path.dirname(path)
    wanted = {path: 0o600, path + "-wal": 0o600, path + "-shm": 0o600}
    if os.path.basename(folder) == FOLDER:
        wanted[folder] = 0o700
    clean = True
    if (found := os.stat(folder).st_mode) & stat.S_IWOTH and not found & stat.S_ISVTX:
        clean = False
        fact = f"every user can replace files in {folder}"
        yield _warn("permissions", fact, f"chmod o-w {folder}")
    for name, mode in wanted.items():
        if os.path.exists(name) and (found := os.stat(name).st_mode & 0o777) & 0o077:
            clean = False
            fact = f"{name} is open to others ({found:o})"
            yield _warn("permissions", fact, f"chmod {mode:o} {name}")
    if clean:
        yield Finding(verdict="ok", name="permissions", fact="for you only")


def _wal(size: object) -> Finding:
    if isinstance(size, int) and size > LARGEST_WAL:
        fact = f"the write-ahead log has {size >> 20} MB"
        return _warn("write-ahead log", fact, "end long readers, then run 'interlock maintain'")
    return Finding(verdict="ok", name="write-ahead log", fact="within 64 MB")


def _notifier(trouble: str) -> Finding:
    if trouble == "ok":
        return Finding(verdict="ok", name="doorbells", fact="waiters are woken at once")
    return _warn("doorbells", trouble, "waiters look once a second instead; allow Unix sockets")


def _integrity(problems: list[str]) -> Finding:
    if problems:
        fact = f"{problems[0]} ({len(problems)} in all)"
        return _bad("file", fact, "stop all agents and restore a copy")
    return Finding(verdict="ok", name="file", fact="whole")


def _queue(pid: int | None) -> Finding:
    """A process that was stopped with the write lock blocks all writers."""
    if pid is not None and _stopped(pid):
        remedy = f"let it go on with 'kill -CONT {pid}', or end it"
        return _bad("queue", f"process {pid} is stopped while it writes", remedy)
    return Finding(verdict="ok", name="queue", fact="no process blocks it")


def _stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in (b"T", b"t")
    except OSError:
        return False


def _warn(name: str, fact: str, remedy: str) -> Finding:
    return Finding(verdict="warn", name=name, fact=fact, remedy=remedy)


def _bad(name: str, fact: str, remedy: str = "") -> Finding:
    return Finding(verdict="bad", name=name, fact=fact, remedy=remedy)
