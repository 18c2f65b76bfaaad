"""The output of a program goes where this command's goes, and its lines somewhere else, too."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_PATIENCE = 2.0
"""Seconds that the rest of an output may take, which a daemon may keep open."""
_LONGEST = 1 << 16


class OutputTee:
    """Two pipes: a program writes to them as its standard output and its standard error."""

    def __init__(self) -> None:
        self._pipes = {number: os.pipe() for number in (1, 2)}
        self._threads: list[threading.Thread] = []

    @contextmanager
    def inherited(self) -> Iterator[None]:
        """A process that is forked inside has the pipes as its output."""
        sys.stdout.flush()
        sys.stderr.flush()
        saved = {number: os.dup(number) for number in self._pipes}
        for number, (_, end) in self._pipes.items():
            os.dup2(end, number)
        try:
            yield
        finally:
            for number, (_, end) in self._pipes.items():
                os.dup2(saved[number], number)
                os.close(saved[number])
                os.close(end)

    def start(self, add: Callable[[str], None]) -> None:
        """Pass on what arrives from now on, and each line to ``add``."""
        for number, (end, _) in self._pipes.items():
            thread = threading.Thread(target=self._pass_on, args=(end, number, add), daemon=True)
            thread.start()
            self._threads.append(thread)

    def finish(self) -> None:
        """Wait for the rest, for a while."""
        for thread in self._threads:
            thread.join(_PATIENCE)

    def _pass_on(self, end: int, number: int, add: Callable[[str], None]) -> None:
        line = b""
        while part := os.read(end, _LONGEST):
            with suppress(OSError):  # the reader of this command has gone; the log goes on
                os.write(number, part)
            *whole, line = (line + part).split(b"\n")
            for each in whole:
                add(each.decode("utf-8", "replace"))
            if len(line) > _LONGEST:
                add(line.decode("utf-8", "replace"))
                line = b""
        if line:
            add(line.decode("utf-8", "replace"))
