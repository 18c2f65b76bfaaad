"""Looks at the remote: shared by readers, and repeated while a process waits for a change.

A look is one ``ls-remote``.  A reader may use any look that began after its call, so readers that
come together share one.

While a watch waits, one process of the host looks at the remote every half second (``LookAhead``
holds a file lock for that; if that process is stopped, the others look).  A commit that it fetches
wakes the watches of all processes through the notifications of the replica.  While none waits,
nothing looks.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from interlock.errors import StoreClosed, StoreTrouble
from interlock.stores.sqlite.watch import ChangeFeed, SQLiteWatch
from interlock.threads import background

if TYPE_CHECKING:
    import asyncio

EVERY = 0.5
"""Seconds between two looks while a watch waits."""
OVERDUE = 5.0
"""Seconds without a look of the process that looks, after which others look, too."""


class SharedLook:
    """Readers that ask at the same time share one look."""

    def __init__(self, look: Callable[[], dict[str, str]]) -> None:
        self._look = look
        self._changed = threading.Condition()
        self._begun = self._done = 0
        self._running = False
        self._found: dict[str, str] = {}

    def refs(self) -> dict[str, str]:
        """The refs of the remote by a look that began after this call."""
        with self._changed:
            wanted = self._begun + 1
            while self._running and self._done < wanted:
                self._changed.wait()
            if self._done >= wanted:
                return self._found
            self._begun += 1
            mine, self._running = self._begun, True
        found: dict[str, str] | None = None
        try:
            found = self._look()
            return found
        finally:
            with self._changed:
                self._running = False
                if found is not None:
                    self._found, self._done = found, mine
                self._changed.notify_all()


class LookAhead:
    """The thread that looks at the remote while a watch of this process waits."""

    def __init__(
        self, path: str, refresh: Callable[[], None], waiting: Callable[[], bool], pace: float
    ) -> None:
        self._path = path
        self._refresh = refresh
        self._waiting = waiting
        self._every = max(EVERY, pace / 4)
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def want(self) -> None:
        """A watch begins to wait."""
        if self._wanted.is_set():
            return
        with self._starting:
            self._wanted.set()
            if self._thread is None and not self._closing.is_set():
                thread = background(self._serve, "interlock-look")
                thread.start()
                self._thread = thread

    def close(self) -> None:
        """End the thread."""
        with self._starting:
            self._closing.set()
            self._wanted.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=1.0)

    def _serve(self) -> None:
        while not self._closing.is_set():
            self._wanted.wait()
            with suppress(OSError):
                self._look_while_waiting()
            self._wanted.clear()
            if self._waiting():  # it began in this moment
                self._wanted.set()

    def _look_while_waiting(self) -> None:
        """Look again and again, unless another process of the host does."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            mine = False
            while self._waiting() and not self._closing.is_set():
                mine = mine or _locked(fd)
                if mine or _age(fd) > OVERDUE + 2 * self._every:  # the other one is stopped
                    with suppress(StoreTrouble):
                        self._refresh()
                    os.utime(fd)
                self._closing.wait(self._every)
        except StoreClosed:
            self._closing.set()
        finally:
            os.close(fd)


class GitFeed(ChangeFeed):
    """The feed of the replica; while a watch waits, the remote is looked at."""

    ahead: LookAhead
    _blocked = 0

    def waiting(self) -> bool:
        """Whether any watch waits for a change at this moment."""
        watches = list(self._index.watches)
        return self._blocked > 0 or any(watch.sleeper is not None for watch in watches)

    def wait(self, watch: SQLiteWatch, timeout: float | None) -> None:
        """Block until the watch has something, at most so long."""
        with self._lock:
            self._blocked += 1
        try:
            self.ahead.want()
            super().wait(watch, timeout)
        finally:
            with self._lock:
                self._blocked -= 1

    def sleep(self, watch: SQLiteWatch, loop: asyncio.AbstractEventLoop) -> None:
        """Have the event loop wake this watch."""
        self.ahead.want()
        super().sleep(watch, loop)


def _age(fd: int) -> float:
    """Seconds since a process of the host looked, which the time of the lock file says."""
    return abs(time.time() - os.fstat(fd).st_mtime)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
