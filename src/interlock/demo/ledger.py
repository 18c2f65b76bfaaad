"""What the lock of the demo protects: the list of what was merged, numbered, in a plain file.

An agent reads how long the list is, works for a moment, and writes the next line.  Nothing here
keeps two agents apart in between: without the lock they would write the same number twice.

The file does one thing that every system behind a lock should do: it refuses a write whose
fencing token is older than one it has seen.  That comparison and the write are one step, which is
all that the file lock below is for.
"""

from __future__ import annotations

import fcntl
import os

from msgspec import Struct


class Written(Struct, frozen=True):
    """A write that the file accepted: its number, under which token, and what was merged."""

    count: int
    token: int
    task: str


class Ledger:
    """The file, one line for each write that it accepted."""

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, count: int, *, token: int, task: str) -> bool:
        """Store a line, unless a later token was here already."""
        with open(self._path, "a+", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            if any(line.token > token for line in _parse(file.read())):
                return False
            os.write(file.fileno(), f"{count} {token} {task}\n".encode())
            return True

    def lines(self) -> list[Written]:
        """Every write, in order."""
        try:
            with open(self._path, encoding="ascii") as file:
                return _parse(file.read())
        except FileNotFoundError:
            return []


def _parse(text: str) -> list[Written]:
    fields = (line.split() for line in text.splitlines())
    return [Written(int(count), int(token), task) for count, token, task in fields]
