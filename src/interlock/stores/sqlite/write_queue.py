"""Processes queue for the write lock in the kernel, in order, without sleeping.

SQLite's own busy handler sleeps and polls: up to 100 ms are lost, and a process that comes at the
right moment overtakes all others.  So no process asks SQLite before it is first in this queue.
The queue is two file locks, *gate* and *turn*: a process waits for the gate, then for the turn, and
releases the gate only when it has the turn.  A process that just had the turn and wants it again
waits at the gate behind the others, so it cannot overtake them.  The kernel keeps the waiters of a
file lock in order and drops the locks of a killed process.

A process that is stopped while it has the turn blocks all others: the caller bounds its wait, and
``holder`` names the process.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from functools import partial

from interlock.errors import StoreUnsuitable
from interlock.stores.sqlite.files import make_side_folder

_LOCKS = "/proc/locks"
_MOUNTS = "/proc/self/mountinfo"


class WriteQueue:
    """The queue for one store, seen from one process."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._gate, self._turn = self._open("gate"), self._open("turn")
        # No Python inside: an exception that strikes (Ctrl-C) would keep the lock from all others.
        self.leave = partial(fcntl.flock, self._turn, fcntl.LOCK_UN)
        """Pass the turn to the next process; harmless if this one does not have it."""

    def try_enter(self) -> bool:
        """Take the turn if no process has it or waits for it."""
        try:
            fcntl.flock(self._gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            fcntl.flock(self._gate, fcntl.LOCK_UN)
        return True

    def enter(self) -> None:
        """Wait for the turn, behind all processes that wait already."""
        try:
            fcntl.flock(self._gate, fcntl.LOCK_EX)
            fcntl.flock(self._turn, fcntl.LOCK_EX)
        finally:
            fcntl.flock(self._gate, fcntl.LOCK_UN)

    def holder(self) -> int | None:
        """The process that has the turn, else the one at the gate, where the system says so."""
        try:
            with open(_LOCKS, encoding="ascii") as file:
                rows = [line.split() for line in file if "->" not in line]
            files = [_name(fd) for fd in (self._turn, self._gate)]
        except OSError:
            return None
        pids = {row[5]: int(row[4]) for row in rows}
        found = (pids.get(file, 0) for file in files)
        return next((pid for pid in found if pid > 0 and pid != os.getpid()), None)

    def reopen_if_removed(self) -> None:
        """If our files were removed, queue at the files that the other processes see now."""
        if os.fstat(self._turn).st_nlink and os.fstat(self._gate).st_nlink:
            return
        # In place: a thread that waits at the old files must not meet a stranger's descriptor.
        with suppress(OSError, StoreUnsuitable):  # SQLite's own lock remains
            make_side_folder(self._folder)
            for fd, name in ((self._gate, "gate"), (self._turn, "turn")):
                fresh = self._open(name)
                os.dup2(fresh, fd, inheritable=False)
                os.close(fresh)

    def close(self) -> None:
        """Leave the queue for good; also drops a turn that a parent of a fork had."""
        both, self._gate, self._turn = (self._gate, self._turn), -1, -1
        self.leave = partial(_nothing)
        for fd in both:
            if fd >= 0:
                os.close(fd)

    def _open(self, name: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(f"{self._folder}/{name}", flags, 0o600)


def _name(fd: int) -> str:
    """How /proc/locks names a file: device and inode."""
    found = os.fstat(fd)
    major, minor = _device(fd) or (os.major(found.st_dev), os.minor(found.st_dev))
    return f"{major:02x}:{minor:02x}:{found.st_ino}"


def _device(fd: int) -> tuple[int, int] | None:
    """The device of the mount: on Btrfs and on overlays, a file itself claims another one."""
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
        mount = next((line.split()[1] for line in file if line.startswith("mnt_id:")), "")
    with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields = line.split(" ", 3)
            if fields[0] == mount:
                major, minor = fields[2].split(":")
                return int(major), int(minor)
    return None


def _nothing() -> None: ...
