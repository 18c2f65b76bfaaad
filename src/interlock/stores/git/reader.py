"""A git process that reads objects, kept open: a process for each object would cost far more.

``git cat-file --batch`` gets names and answers each with the id, the kind, the size and the
content.  It looks every name up again, also that of a ref, so an answer is what the repository has
at that moment.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

_PIECE = 1 << 16
_LONGEST_LINE = 1 << 12
_ID = re.compile(rb"[0-9a-f]{40}")


class GitObject(NamedTuple):
    """An object as git gives it."""

    oid: str
    kind: str
    data: bytes


class ObjectReader:
    """One process that answers; after an error it has to be closed.

    ``ask`` raises OSError if the process has ended or takes too long (TimeoutError), and ValueError
    if it says what git would not say, answers another question, or offers more than ``largest``
    bytes.  After any other exception, such as that of Ctrl-C, an answer may be left unread.
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
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(self._from, select.POLLIN)
        self._writable.register(self._to, select.POLLOUT)
        self._read = bytearray()

    def ask(
        self, names: Sequence[str], *, limit: float | None = None, largest: int | None = None
    ) -> list[GitObject | None]:
        """The objects of these names, None for each that there is not."""
        ends = None if limit is None else time.monotonic() + limit
        found: list[GitObject | None] = []
        for part in _parts([name.encode("utf-8", "surrogateescape") for name in names]):
            self._send(b"".join([name + b"\n" for name in part]), ends)
            for name in part:
                answer = self._answer(name, ends, largest)
                if largest is not None and answer is not None:
                    largest -= len(answer.data)
                found.append(answer)
        return found

    def _send(self, lines: bytes, ends: float | None) -> None:
        left = memoryview(lines)
        while left:
            if not self._writable.poll(_milliseconds(ends)):
                raise TimeoutError("no question is taken")
            left = left[os.write(self._to.fileno(), left[: select.PIPE_BUF]) :]

    def _answer(self, name: bytes, ends: float | None, largest: int | None) -> GitObject | None:
        line = self._line(ends)
        if line in (name + b" missing", name + b" ambiguous"):
            return None
        oid, kind, size = line.split()
        if _ID.fullmatch(name) and oid != name:
            raise ValueError("the answer to another question")
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
        if not self._readable.poll(_milliseconds(ends)):
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


def _parts(names: Sequence[bytes]) -> Iterator[list[bytes]]:
    """The names in groups that fit into the smallest pipe, so that a question never waits for room.

    A process that answers may wait until its answer is read, and reads no names while that runs.
    """
    part: list[bytes] = []
    size = 0
    for name in names:
        size += len(name) + 1
        if part and size > select.PIPE_BUF:
            yield part
            part, size = [], len(name) + 1
        part.append(name)
    if part:
        yield part


def _milliseconds(ends: float | None) -> float | None:
    """How long a poll may wait."""
    return None if ends is None else max(0.0, ends - time.monotonic()) * 1000
