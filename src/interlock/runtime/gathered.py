"""Lines that the processes of a host gather in a file, to be committed together now and then.

Where a commit is a push, it is too dear for a count.  The first line in a while is due at once, and
those that follow within ``EVERY`` seconds later, all together: for any process of the host.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

EVERY = 60.0
"""Seconds between two times at which the lines are due."""
_LONGEST = 1 << 20
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def add(path: str, lines: Iterable[str]) -> None:
    """Keep more lines; a file that has grown too long takes no more."""
    with _locked(path) as fd:
        size = os.fstat(fd).st_size
        if size > _LONGEST:
            return
        begun = size and os.pread(fd, 1, size - 1) == b"\n"
        text = "".join([f"{line}\n" for line in lines])
        os.pwrite(fd, (text if begun else f"\n{text}").encode(), size)


def take(path: str, now: float) -> list[str]:
    """The lines, if they are due; they are no longer kept."""
    if not os.path.exists(path):
        return []
    with _locked(path) as fd:
        text = os.pread(fd, 2 * _LONGEST, 0).decode(errors="replace")
        before, *lines = text.split("\n")[:-1] or [""]
        if not lines or abs(now - _time(before)) < EVERY:
            return []
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{now}\n".encode(), 0)
        return lines


def _time(line: str) -> float:
    """When lines were last taken; 0 if they never were, or the file is damaged."""
    try:
        return float(line)
    except ValueError:
        return 0.0


@contextmanager
def _locked(path: str) -> Iterator[int]:
    fd = os.open(path, _FLAGS, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)
