"""A command on a real terminal: what it writes there, byte by byte, and the keys that it gets."""

from __future__ import annotations

import errno
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faces.shell import Shell

PATIENCE = 30.0


class Terminal:
    """The other side of a terminal."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self._master = master
        self._process = process
        self._pressed = 0
        self.seen = b""

    def shows(self, words: bytes) -> None:
        """Wait until the command has written these words, since the last key."""
        ends = time.monotonic() + PATIENCE
        while words not in self.seen[self._pressed :]:
            assert time.monotonic() < ends, (words, self.seen[-3000:])
            assert self._read(0.1), (words, self.seen[-3000:])

    def press(self, keys: bytes) -> None:
        """Type."""
        self._pressed = len(self.seen)
        os.write(self._master, keys)

    def ends(self) -> int:
        """Read to the end; the exit status."""
        ends = time.monotonic() + PATIENCE
        while self._read(0.1):
            assert time.monotonic() < ends, self.seen[-3000:]
        return self._process.wait(PATIENCE)

    def _read(self, seconds: float) -> bool:
        """Read what is there; whether more may come."""
        if not select.select([self._master], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError as error:  # the other side is closed
            if error.errno != errno.EIO:
                raise
            return False
        self.seen += data
        return bool(data)


@contextmanager
def on_terminal(shell: Shell, *words: str) -> Iterator[Terminal]:
    """Run a command on a terminal of its own, until the block ends."""
    master, slave = pty.openpty()
    environment = {**os.environ, **shell.exported, "TERM": "xterm-256color", "COLUMNS": "100"}
    command = [str(Path(sys.executable).parent / "interlock"), *words]
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, cwd=shell.folder, env=environment
    )
    os.close(slave)
    try:
        yield Terminal(master, process)
    finally:
        process.kill()
        process.wait()
        os.close(master)
