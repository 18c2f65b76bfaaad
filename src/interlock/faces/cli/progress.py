"""One line on a terminal that says how far long work is, and disappears when it is done."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from interlock.core.safe_text import one_line
from interlock.runtime import progress

BETWEEN = 0.1
"""Seconds between two changes of the line."""
PATIENCE = 0.5
"""Seconds before the line appears: most work is done by then."""
_ERASE = "\r\x1b[K"


class ProgressLine:
    """Writes over its own line, ten times a second at most."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._began = time.monotonic()
        self._next = self._began + PATIENCE
        self._what, self._since = "", self._began
        self._shown = False

    def show(self, what: str, done: int, total: int = 0) -> None:
        """Show it, unless the line is younger than a tenth of a second."""
        now = time.monotonic()
        if what != self._what:
            self._what, self._since = what, now
        if now < self._next:
            return
        self._next = now + BETWEEN
        part = f"{done:,} of {max(total, done):,} ({done / max(total, done, 1):.0%})"
        rate = f", {done / (now - self._since):,.0f}/s" if now - self._since > 1 else ""
        text = f"{one_line(what)}: {part if total else f'{done:,}'}{rate}"
        self._write(_ERASE + text[: shutil.get_terminal_size().columns - 1])
        self._shown = True

    def clear(self) -> None:
        """Remove the line, before anything else is written."""
        if self._shown:
            self._write(_ERASE)
            self._shown = False

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # the work goes on without its line
            self._out.write(text)
            self._out.flush()


_lines: list[ProgressLine] = []


def clear() -> None:
    """Remove the line of this command, if there is one."""
    for line in _lines:
        line.clear()


@contextmanager
def shown() -> Iterator[bool]:
    """Show reports of progress on stderr until the block ends, if that is a terminal."""
    if not sys.stderr.isatty():
        yield False
        return
    line = ProgressLine(sys.stderr)
    end = progress.listen(line.show)
    _lines.append(line)
    try:
        yield True
    finally:
        end()
        _lines.remove(line)
        line.clear()
