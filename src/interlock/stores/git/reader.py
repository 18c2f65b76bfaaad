"""A git process that reads objects, kept open: a process for each object would cost far more.

``git cat-file --batch`` gets names and answers each with the id, the kind, the size and the
content.  It looks every name up again, also that of a ref, so an answer is what the repository has
at that moment.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

_PIECE = 1 << 16
_LONGEST_LINE = 1 << 12


class GitObject(NamedTuple):
    """An object as git gives it."""

    oid: str
    kind: str
    data: bytes


class ObjectReader:
    """One process that answers; after an error it has to be closed.

    ``ask`` raises OSError if the process has ended or takes too long (TimeoutError), and ValueError
    if it says what git would not say, or offers more than ``largest`` bytes.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - the user's own git, or ssh
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        if self._process.stdin is None or self._process.stdout is None:
            raise ValueError("no pipes")
        self._to, self._from = self._process.stdin, self._process.stdout
        self._poll = select.poll()
        self._poll.register(self._from, select.POLLIN)
        self._read = bytearray()

    def ask(
        self, names: Sequence[str], *, limit: float | None = None, largest: int | None = None
    ) -> list[GitObject | None]:
        """The objects of these names, None for each that there is not; few names at a time."""
        ends = None if limit is None else time.monotonic() + limit
        lines = "".join(f"{name}\n" for name in names)
        self._to.write(lines.encode("utf-8", "surrogateescape"))
        found: list[GitObject | None] = []
        for _ in names:
            found.append(self._answer(ends, largest))
            if largest is not None and found[-1] is not None:
                largest -= len(found[-1].data)
        return found

    def _answer(self, ends: float | None, largest: int | None) -> GitObject | None:
        line = self._line(ends)
        if line.endswith((b" missing", b" ambiguous")):
            return None
        oid, kind, size = line.split()
        length = int(size)
        if length < 0 or (largest is not None and length > largest):
            raise ValueError(f"an object of {length} bytes")
        while len(self._read) <= length:
            self._more(ends)
        data = bytes(self._read[:length])
        del self._read[: length + 1]
        return GitObject(oid.decode(), kind.decode(), data)

    def _line(self, ends: float | None) -> bytes:
        while (end := self._read.find(b"\n")) < 0:
            if len(self._read) > _LONGEST_LINE:
                raise ValueError("a line without an end")
            self._more(ends)
        line = bytes(self._read[:end])
        del self._read[: end + 1]
        return line

    def _more(self, ends: float | None) -> None:
        wait = None if ends is None else max(0.0, ends - time.monotonic()) * 1000
        if not self._poll.poll(wait):
            raise TimeoutError("no answer")
        piece = os.read(self._from.fileno(), _PIECE)
        if not piece:
            raise BrokenPipeError("the reader has ended")
        self._read += piece

    def drop(self) -> None:
        """Leave it to another process: the parent of this one, after a fork."""
        for pipe in (self._to, self._from):
            with suppress(OSError):
                pipe.close()

    def close(self) -> None:
        """End the process."""
        self.kill()
        self.drop()
        self._process.wait()

    def kill(self) -> None:
        """Let the process end; a caller that waits for an answer gets an error."""
        if self._process.returncode is None:  # else its number may be that of another process
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
