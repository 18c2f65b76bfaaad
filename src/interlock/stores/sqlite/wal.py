"""How far the write-ahead log is on the disk; nothing is answered that rests on less.

SQLite would synchronise the log before COMMIT returns (``synchronous=FULL``), while all other
writers wait.  Here a process does it after its own COMMIT, when the next one already has the write
lock.  The log is one file that only grows until SQLite restarts it, and SQLite writes it home
durably before that.  So a synchronisation makes durable all that was committed before it began, and
processes that wait for the disk wait together.

Between its COMMIT and its synchronisation a commit can be read, and a power cut would undo it.  So
everything that gives an answer asks here first, with the highest revision that it has read:

    a commit       synchronises, before its caller gets the answer and before the watchers wake
    a read         waits until the log is durable up to its revision; so does a transaction that
                   changed nothing, such as a claim that was refused, and the feed of the watches

Each process notes the revision up to which it knows the log durable in a file beside the store.  A
reader that finds a lower revision there than its own does not wait for the process that committed,
which may be stopped or dead: it synchronises the log itself, once for all of its threads that wait.

A number in that note is true for good, since the disk has what it had.  If the store is younger
than its note, then another store stood here, and the note is replaced.

If the disk refuses, the content of the file is unknown, and a retry would succeed although data
was dropped.  So this object commits nothing from then on, and reads nothing that is not known to be
durable.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from interlock.descriptors import is_refused
from interlock.errors import StoreAway, StoreClosed
from interlock.thread_calls import from_handler

SLOW = 0.005
"""Seconds that a quick disk does not take."""
_NUMBER = 8

_sync = getattr(os, "fdatasync", os.fsync)


class Wal:
    """The write-ahead log of one connection, as a file."""

    def __init__(self, path: str) -> None:
        self.path = path + "-wal"
        self.trouble = ""
        """Why nothing can be made durable any more."""
        self.slow = False
        """Whether the disk is so slow that an event loop leaves it to a thread."""
        self.using = threading.RLock()
        """Held while the log is synchronised or closed, and during a fork; taken after all others,
        and by a thread twice if a signal handler reads."""
        self._durable = 0
        self._read = 0
        """The highest revision that is in the log, as far as this process has looked."""
        self.fd = -1
        """The log, while it is open."""
        self._note = -1
        self._closed = False

    def share(self, note: str, opened_at: int, revision: Callable[[], int]) -> None:
        """Learn from other processes how far the log is durable, and note it for them.

        The store had the revision ``opened_at``, and others may commit at this moment.
        """
        with suppress(OSError):  # without it this process synchronises by itself
            self._note = _opened(note)
            noted = self._noted()
            if noted > opened_at and noted > revision():
                os.unlink(note)
                os.close(self._note)
                self._note = _opened(note)

    def is_durable(self, revision: int) -> bool:
        """Whether a power cut leaves this revision, as far as any process has noted."""
        if revision > self._durable:
            self._durable = max(self._durable, self._noted())
        return revision <= self._durable

    def wait(self, revision: int) -> None:
        """Return when all up to a revision, which this process has read, is durable."""
        if not self.is_durable(revision):
            self._read = max(self._read, revision)
            with self.using:
                if revision > self._durable:
                    self._synchronise()

    def sync(self, revision: int) -> None:
        """Make everything durable that is in the log by now: up to this revision at least."""
        self._read = max(self._read, revision)
        with self.using:
            self._synchronise()

    def prepare(self) -> None:
        """Open the log, so that no commit that stands lacks a file descriptor."""
        try:
            with self.using:
                self._open()
        except OSError as error:
            if is_refused(error) or from_handler(error):
                raise

    def reopen(self) -> None:
        """The next connection may have another log."""
        with self.using:
            fd, self.fd = self.fd, -1
            if fd >= 0:
                with suppress(OSError):
                    os.close(fd)

    def close(self) -> None:
        """Close both files for good."""
        with self.using:
            self.abandon()

    def abandon(self) -> None:
        """Close both files in the child of a fork, where no thread is left to wait for."""
        self._closed = True
        fds, self.fd, self._note = (self.fd, self._note), -1, -1
        for fd in fds:
            if fd >= 0:
                with suppress(OSError):
                    os.close(fd)

    def _synchronise(self) -> None:
        if self._closed:
            raise StoreClosed("this store was closed; connect again")
        if self.trouble:
            raise StoreAway(self.trouble)
        read, started = self._read, time.monotonic()
        try:
            if self.fd < 0:
                self._open()
            _sync(self.fd)
        except OSError as error:
            # Nothing was asked of the disk, or its answer is not known: the next call asks again.
            if is_refused(error) or from_handler(error):
                raise
            self.trouble = (
                f"{self.path} could not be made durable ({error.strerror}); the disk may have"
                " lost the last writes: check it, then connect again"
            )
            raise StoreAway(self.trouble) from error
        self.slow = time.monotonic() - started > SLOW
        self._durable = max(self._durable, read)
        if self._note >= 0:
            try:
                os.pwrite(self._note, self._durable.to_bytes(_NUMBER) * 2, 0)
            except OSError as error:  # a full disk
                if from_handler(error):
                    raise

    def _open(self) -> None:
        if self.fd < 0:
            self.fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)

    def _noted(self) -> int:
        """The revision in the note; it is there twice, so that no half of a number counts."""
        try:
            found = os.pread(self._note, 2 * _NUMBER, 0)
        except OSError as error:  # there is none
            if from_handler(error):
                raise
            return 0
        number = found[:_NUMBER]
        return int.from_bytes(number) if number == found[_NUMBER:] else 0


class RemoteWal(Wal):
    """The log of a copy: what a remote has is durable, and that is all that is read here."""

    def share(self, note: str, opened_at: int, revision: Callable[[], int]) -> None:
        """Have no note."""

    def is_durable(self, revision: int) -> bool:  # noqa: ARG002
        """All of it is."""
        return True

    def prepare(self) -> None:
        """Open nothing."""

    def sync(self, revision: int) -> None:
        """Leave it to the system when the copy is written."""


def _opened(note: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(note, flags, 0o600)
    if os.geteuid() == 0:  # beside the store of another user, whose processes write it, too
        owner = os.stat(os.path.dirname(note))
        os.fchown(fd, owner.st_uid, owner.st_gid)
    return fd
