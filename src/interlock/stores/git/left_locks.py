"""The lock of a ref that a killed push left at a remote on this disk.

A push to such a remote is carried out by processes of the pusher: ``receive-pack`` writes the new
commit into ``REF.lock``, and renames that to the ref.  If all of them are killed in between, as
with a container, the file stays, and git refuses the pushes of every host.

A lock is removed only if the process that wrote it is known to be dead:

whose   ``interlock-pushes`` in the remote has a line for each push of Interlock: boot, file, ref
        and commit.  No two pushes of a ref bring the same commit, unless one host makes both, so
        the commit in the lock says which push wrote it.
dead    Git and all that it starts inherit that file with a shared lock, which the kernel releases
        with the last of them.  Its exclusive lock says that they have all ended, in any container
        of this machine; one that is stopped still has it, and could still rename its lock.
here    The remote is on a local disk, the lines are of this boot, and the file is not a copy.  The
        user's configuration leads the push to no other place.

An empty lock names no push: git also makes one to delete or to pack refs.  For that one, and for
all others, messages have the command that a person runs.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from interlock.errors import StoreBusy, StoreUnsuitable
from interlock.stores.sqlite import schema
from interlock.stores.sqlite.files import file_system, refuse_shared

if TYPE_CHECKING:
    from interlock.stores.git.repository import RefMove, Repository

NAME = "interlock-pushes"
OLD = 60.0
"""Seconds after which a lock is one that was left: git holds it for a moment."""
_LONGEST, _KEPT = 64 * 1024, 16 * 1024
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PAUSE = 0.005


class LeftLocks:
    """Notes the pushes to a remote on this disk, and removes the locks of those that are dead."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._place = repository.address.file
        self._notes = f"{self._place}/{NAME}"

    def note(self, moves: Iterable[RefMove], limit: float) -> int | None:
        """Note a push before it begins; git is to inherit this descriptor.

        None if the remote is elsewhere, or this user cannot write there: its locks stay then.
        """
        if not self._place:
            return None
        try:
            fd = os.open(self._notes, _FLAGS | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError:
            return None
        try:
            self._begin(fd, moves, limit)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _begin(self, fd: int, moves: Iterable[RefMove], limit: float) -> None:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise StoreUnsuitable(f"{self._notes} is no file of Interlock; remove it")
        if os.fstat(fd).st_size > _LONGEST and _locked(fd, fcntl.LOCK_EX):
            _shorten(fd)
        ends = time.monotonic() + limit
        while not _locked(fd, fcntl.LOCK_SH):  # a process removes a lock at this moment
            if time.monotonic() > ends:
                raise StoreBusy(f"another program keeps {self._notes} locked; end it and retry")
            time.sleep(_PAUSE)
        here = _here(fd)
        lines = "".join([f"{here} {move.ref} {move.new}\n" for move in moves])
        with suppress(OSError):  # no room: a lock of this push stays
            os.write(fd, lines.encode())

    def clear(self, moves: Iterable[RefMove]) -> bool:
        """Remove the locks of these refs that dead pushes left; whether there was any."""
        refs = [move.ref for move in moves if self._place and self._in_lock(move.ref)]
        if not refs:
            return False
        with self._dead_pushes() as dead:
            found = [ref for ref in refs if (ref, self._in_lock(ref)) in dead]
            for ref in found:
                with suppress(FileNotFoundError):
                    os.unlink(f"{self._place}/{ref}.lock")
        return bool(found)

    def left(self) -> list[str]:
        """The locks that git has left at a remote on this disk, in the order of their names."""
        if not self._place:
            return []
        address, found = self._repository.address, []
        own = [f"{self._place}/{name}.lock" for name in (address.ref, "HEAD", "packed-refs")]
        with suppress(OSError):
            live = f"{self._place}/{address.live}"
            own += sorted([live + name for name in os.listdir(live) if name.endswith(".lock")])
        for path in own:
            with suppress(OSError):
                if abs(time.time() - os.lstat(path).st_mtime) > OLD:
                    found.append(path)
        return found

    def way(self, refs: Iterable[str]) -> str:
        """How a person removes the locks of these refs."""
        names = [f"{ref}.lock" for ref in refs]
        if not self._place:
            command = f"rm {' '.join(map(shlex.quote, names))}"
            return f"if no git runs there, in the folder of the repository on its server: {command}"
        paths = [f"{self._place}/{name}" for name in (*names, "HEAD.lock", "packed-refs.lock")]
        return self.command([path for path in paths if os.path.lexists(path)] or paths[:1])

    @staticmethod
    def command(paths: Iterable[str]) -> str:
        """The command that removes locks, and when."""
        return f"if no git runs there: rm {' '.join(map(shlex.quote, paths))}"

    def _in_lock(self, ref: str) -> str:
        """The commit in the lock of a ref; empty if there is no lock, or nothing in it."""
        with suppress(OSError, UnicodeDecodeError):
            fd = os.open(f"{self._place}/{ref}.lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                return os.read(fd, 100).decode("ascii").strip()
            finally:
                os.close(fd)
        return ""

    @contextmanager
    def _dead_pushes(self) -> Iterator[set[tuple[str, str]]]:
        """Ref and commit of each push that is known to be dead; none begins in this block."""
        try:
            fd = os.open(self._notes, _FLAGS)
        except OSError:
            yield set()
            return
        try:
            here, usable = _here(fd), self._local() and _locked(fd, fcntl.LOCK_EX)
            lines = [line.split(" ") for line in _read(fd).splitlines()] if usable else []
            yield {(line[2], line[3]) for line in lines if " ".join(line[:2]) == here and line[3:]}
        finally:
            os.close(fd)

    def _local(self) -> bool:
        """Whether the remote is on a local disk, and what git pushes to."""
        try:
            refuse_shared(self._place, file_system(self._place))
        except StoreUnsuitable:
            return False
        said = self._repository.run("config", "--null", "--list", limit=10.0)
        for line in said.out.decode(errors="replace").split("\0"):
            name, _, value = line.partition("\n")
            if name.endswith("insteadof") and self._place.startswith(value):
                return False
            if name.startswith(f"remote.{self._place}."):
                return False
        return not said.code


def _here(fd: int) -> str:
    """What says of a line that this kernel wrote it into this file."""
    found = os.fstat(fd)
    return f"{schema.boot_id()} {found.st_dev}:{found.st_ino}"


def _read(fd: int) -> str:
    return os.pread(fd, 2 * _LONGEST, 0).decode("ascii", errors="replace")


def _shorten(fd: int) -> None:
    """Keep the last lines; nothing is pushed at this moment."""
    kept = _read(fd)[-_KEPT:].partition("\n")[2]
    os.ftruncate(fd, 0)
    os.write(fd, kept.encode())


def _locked(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
