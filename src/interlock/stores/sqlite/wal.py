"""Making commits durable: the write-ahead log is synchronised after the turn was given on.

SQLite would do it before COMMIT returns (``synchronous=FULL``), that is, while everybody else waits
for the turn.  The log of SQLite is one file that only ever grows until it begins anew, and before
that it is written home durably.  So whoever synchronises the file after its own COMMIT has made
durable its commit and all before it, whoever wrote them; and processes that wait for the disk wait
together, while the next one already decides.

Nobody is answered before that.  What can be seen a moment sooner, a read of another process may
see; what that process commits then is never durable without what it saw.

If the disk refuses, nobody can tell any more what is on it, and asking again would get a yes for
what was dropped.  So this connection commits nothing from then on.
"""

from __future__ import annotations

import os
from contextlib import suppress

_sync = getattr(os, "fdatasync", os.fsync)


class Wal:
    """The write-ahead log of one connection, as a file."""

    def __init__(self, path: str) -> None:
        self.path = path + "-wal"
        self.trouble = ""
        """Why nothing can be made durable any more."""
        self._fd = -1

    def sync(self) -> None:
        """Make everything durable that was committed by now."""
        try:
            if self._fd < 0:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            _sync(self._fd)
        except OSError as error:
            self.trouble = (
                f"{self.path} could not be made durable ({error.strerror}); the disk may have"
                " lost what was written last: look after it, then connect again"
            )
            raise

    def close(self) -> None:
        """Let go of the file: the next connection may have another one."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)
