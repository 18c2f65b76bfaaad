"""Uploads lines in batches, in the background: those of a program, or what it logs."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable

from interlock.errors import InterlockError, StoreClosed
from interlock.nouns.agents import log_rules
from interlock.nouns.agents.log_service import AgentLogService
from interlock.runtime.identity import Actor
from interlock.steps import Op, Pause

LINES = 500
"""Lines of a batch, at most."""
AGE = 1.0
"""Seconds that a line waits for others, at most."""
ROOM = 10_000
"""Lines that are buffered while the store does not answer; above it the oldest are dropped."""
ROOM_BYTES = 8 * log_rules.CHUNK
SMALL = 1024
"""Bytes of a chunk reserved for the line about dropped lines."""
AGAIN = 1.0
"""Seconds until a failed upload is retried."""
NEVER = float("inf")
_PAUSE = 0.01


class Uploader:
    """Buffers lines, which the keeper uploads in batches.

    ``add`` never blocks: the keeper uploads every ``LINES`` lines or after ``AGE`` seconds.  While
    the store does not answer the lines stay here; above ``ROOM`` the oldest are dropped, and the
    next batch has a line with their number.
    """

    what = "uploads of log lines"

    def __init__(
        self, logs: AgentLogService, agent: str, actor: Actor, wake: Callable[[], None]
    ) -> None:
        self.failing = False
        self._logs = logs
        self._allow = logs.allow
        self._age = self._allow(AGE)
        self._agent = agent
        self._who = actor
        self._clock = logs.clock
        self._wake = wake
        self._guard = threading.RLock()  # a signal handler may log, too
        self._room = threading.Event()
        self._lines: deque[str] = deque()
        self._bytes = 0
        self._dropped = 0
        self._due = NEVER
        self._sending = False
        self._closed = False

    @property
    def full(self) -> bool:
        """Whether another line would push out the oldest."""
        return len(self._lines) >= ROOM or self._bytes >= ROOM_BYTES

    def add(self, text: str) -> None:
        """Take one line, or a text of several."""
        if self._closed:
            raise StoreClosed("the client is closed, and uploads no more lines; connect again")
        cleaned = list(log_rules.clean(text))
        with self._guard:
            first = not self._lines
            self._keep(cleaned)
            many = len(self._lines) >= LINES
            now = self._clock.monotonic()
            if not self.failing:
                self._due = now if many else min(self._due, now + self._age)
        if first or many:
            self._wake()

    def hurry(self) -> None:
        """Upload the buffered lines as soon as possible."""
        if self._lines:
            self._due = self._clock.monotonic()
            self._wake()

    def wait_for_room(self) -> None:
        """Block until there is room, unless the store fails."""
        while self.full and not self.failing:
            self._room.clear()
            self._room.wait(self._age)

    def wait(self) -> float:
        """Seconds until a batch is due."""
        return max(0.0, self._due - self._clock.monotonic())

    def run(self) -> Op[None]:
        """Upload one batch; if that fails, its lines stay for the next one."""
        batch, dropped = self._take()
        if not batch and not dropped:
            return
        said = [f"[{dropped} lines dropped]"] if dropped else []
        try:
            yield from self._logs.upload(self._agent, [*said, *batch], self._who)
        except BaseException:
            self._put_back(batch, dropped)
            raise
        self._done()

    def drain(self) -> Op[None]:
        """Upload all remaining lines."""
        while self._sending or self._lines or self._dropped:
            yield from self.run()
            if self._sending:  # the keeper is at it
                yield Pause(self._allow(_PAUSE))

    def finish(self, trouble: str) -> Op[None]:
        """Take no more lines and upload the rest; log a warning if that fails."""
        self._closed = True
        try:
            if not trouble:
                yield from self.drain()
        except InterlockError as error:
            trouble = str(error)
        if self._lines:
            import logging

            said = "%d lines of the log of %s were not uploaded: %s"
            logging.getLogger("interlock").warning(said, len(self._lines), self._agent, trouble)

    def _take(self) -> tuple[list[str], int]:
        with self._guard:
            if self._sending:
                return [], 0
            batch = self._first()
            self._bytes -= sum(map(len, batch))
            dropped, self._dropped = self._dropped, 0
            self._sending = bool(batch or dropped)
            self._due = NEVER
            return batch, dropped

    def _first(self) -> list[str]:
        """The first lines, at most what one commit takes: so no line can be uploaded twice."""
        batch: list[str] = []
        room = log_rules.CHUNK - SMALL
        while self._lines and len(batch) < LINES:
            room -= log_rules.line_bytes(self._lines[0])
            if room < 0:
                break
            batch.append(self._lines.popleft())
        return batch

    def _put_back(self, batch: list[str], dropped: int) -> None:
        with self._guard:
            self.failing, self._sending = True, False
            self._dropped += dropped
            self._lines.extendleft(reversed(batch))
            self._bytes += sum(map(len, batch))
            self._keep(())
            self._due = self._clock.monotonic() + self._allow(AGAIN)
        self._room.set()

    def _done(self) -> None:
        with self._guard:
            self.failing, self._sending = False, False
            left, now = len(self._lines), self._clock.monotonic()
            if left:
                self._due = now if left >= LINES else min(self._due, now + self._age)
        self._room.set()

    def _keep(self, lines: Iterable[str]) -> None:
        """Add lines, and drop the oldest above the limit."""
        for line in lines:
            self._lines.append(line)
            self._bytes += len(line)
        while len(self._lines) > ROOM or self._bytes > ROOM_BYTES:
            self._bytes -= len(self._lines.popleft())
            self._dropped += 1


class UploadHandler(logging.Handler):
    """Hands lines to an uploader; it never blocks and never raises into the logging code."""

    def __init__(self, uploader: Uploader, level: int | str = logging.NOTSET) -> None:
        super().__init__(level)
        self._uploader = uploader

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record; an error is reported as ``logging`` reports errors of handlers."""
        try:
            self._uploader.add(self.format(record))
        except Exception:  # noqa: BLE001 - as all handlers do
            self.handleError(record)

    def flush(self) -> None:
        """Start the upload of the gathered lines, without waiting for it."""
        self._uploader.hurry()
