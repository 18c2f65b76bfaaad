"""Logs of agents on a store: uploaded now, or by the keeper in batches; and read."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from interlock.clock import Clock
from interlock.core import keys
from interlock.core import logs as core
from interlock.driving import Op, Pause
from interlock.errors import BadInput, InterlockError, StoreClosed
from interlock.services import states
from interlock.services.gather import every, looked_up
from interlock.services.runner import Deciding, Done, Glance, Reading, Runner, Who
from interlock.services.steps import Open, Read, Take
from interlock.settings import Settings
from interlock.store import Item, Snapshot, Watch

LINES = 500
"""Lines of a batch, at most."""
AGE = 1.0
"""Seconds that a line waits for others, at most."""
ROOM = 10_000
"""Lines that wait for a store that does not answer; the oldest are dropped above it."""
ROOM_BYTES = 8 * core.CHUNK
SMALL = 1024
"""What is left of a chunk for a word about dropped lines."""
AGAIN = 1.0
NEVER = float("inf")
MOST = 100_000
_AT_ONCE = 8
_PAUSE = 0.01

_BOOK = msgspec.json.Decoder(core.Book)
_CHUNK = msgspec.json.Decoder(core.Chunk)


class Logs:
    """Every operation on logs, as generators for a driver."""

    def __init__(self, runner: Runner, settings: Settings) -> None:
        self._runner = runner
        self._settings = settings

    def upload(self, agent: str, texts: Iterable[str], who: Who) -> Op[core.Uploaded]:
        """Put lines behind those that are there: one commit for each chunk of them."""
        if isinstance(texts, str):
            raise BadInput("'lines' takes a list of lines; put brackets around it")
        cleaned = [line for text in texts for line in core.clean(text)]
        most = min(core.CHUNK, self._runner.capabilities.max_value // 2)
        limits = self._limits()
        for portion in core.split(cleaned, most):
            deciding = partial(self._adding, agent, portion, who, limits)
            yield from self._runner.change(deciding, who)
        return core.Uploaded(agent=agent, lines=len(cleaned))

    def _adding(
        self, agent: str, lines: tuple[str, ...], who: Who, limits: core.Limits
    ) -> Deciding[core.Uploaded]:
        book = _book((yield (keys.logbook(agent),))[keys.logbook(agent)])
        batch = core.Batch(at=round(self._runner.clock.wall(), 3), lines=lines, session=who.session)
        size = sum(map(core.measure, lines))
        tail: core.Chunk | None = None
        old: list[core.Chunk | None] = []
        if book is not None and core.fits(book, size):
            last = keys.log_chunk(agent, book.next - 1)
            tail = _chunk((yield (last,))[last])
        if book is not None and core.due(book, limits, batch.at, size):
            old = yield from _oldest(agent, book, another=tail is None)
        return core.upload(agent, book, batch, limits=limits, tail=tail, old=old)

    def read(self, agent: str, *, limit: int = 100, after: int = 0) -> Op[list[core.LogLine]]:
        """The last lines of an agent's log that stand behind a number."""
        key = keys.logbook(agent)
        snapshot: Snapshot = yield Read(key)
        book = _book(snapshot[key]) or core.Book()
        found: list[core.LogLine] = []
        for end in range(book.next, book.oldest, -_AT_ONCE):
            numbers = range(max(book.oldest, end - _AT_ONCE), end)
            wanted = [keys.log_chunk(agent, number) for number in numbers]
            items = yield from looked_up(wanted)
            chunks = [chunk for each in wanted if (chunk := _chunk(items[each])) is not None]
            found[:0] = [line for chunk in chunks for line in core.lines(chunk)]
            if len(found) >= limit or (chunks and chunks[0].first <= after + 1):
                break
        return [line for line in found if line.number > after][-limit:]

    def forget(self, who: Who) -> Op[int]:
        """Let the oldest chunks go of those who upload no more; how many went."""
        gone = 0
        limits, now = self._limits(), self._runner.clock.wall()
        for item in (yield from every(keys.LOGBOOKS)):
            agent = keys.name(item.key.removeprefix(keys.LOGBOOKS))
            book = _book(item)
            if book is not None and core.due(book, limits, now):
                deciding = partial(self._forgetting, agent, limits)
                done: Done[int] = yield from self._runner.change(deciding, who)
                gone += done.outcome
        return gone

    def _forgetting(self, agent: str, limits: core.Limits) -> Deciding[int]:
        book = _book((yield (keys.logbook(agent),))[keys.logbook(agent)])
        old = [] if book is None else (yield from _oldest(agent, book))
        return core.forget(agent, book, old, limits, self._runner.clock.wall())

    def _limits(self) -> core.Limits:
        found = self._settings.agent()
        return core.Limits(
            bytes=found.get("log_bytes", core.BYTES), age=found.get("log_age", core.AGE)
        )


class Trail:
    """The lines of a log behind a number as they come; whoever began it closes it."""

    def __init__(self, logs: Logs, agent: str, after: int) -> None:
        self._logs = logs
        self._agent = agent
        self._after = after
        self._watch: Watch | None = None

    def take(self, timeout: float | None) -> Op[list[core.LogLine]]:
        """What came since the last call; waits for the first line, at most so long."""
        if self._watch is None:
            now: Snapshot = yield Read()
            self._watch = yield Open(keys.logbook(self._agent), now.revision)
        elif not (yield Take(self._watch, timeout)):
            return []
        found = yield from self._logs.read(self._agent, limit=MOST, after=self._after)
        self._after = found[-1].number if found else self._after
        return found

    def close(self) -> None:
        """Stop listening."""
        if self._watch is not None:
            self._watch.close()


class Uploader:
    """Lines that are uploaded in batches while whoever writes them goes on.

    ``add`` never waits: the keeper uploads what gathered, every ``LINES`` lines or after ``AGE``
    seconds.  While the store does not answer they wait here; above ``ROOM`` the oldest are
    dropped, and the next batch says how many.
    """

    def __init__(
        self, logs: Logs, agent: str, who: Who, clock: Clock, wake: Callable[[], None]
    ) -> None:
        self.failing = False
        self._logs = logs
        self._agent = agent
        self._who = who
        self._clock = clock
        self._wake = wake
        self._guard = threading.Lock()
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
        cleaned = list(core.clean(text))
        with self._guard:
            first = not self._lines
            self._keep(cleaned)
            many = len(self._lines) >= LINES
            now = self._clock.monotonic()
            if not self.failing:
                self._due = now if many else min(self._due, now + AGE)
        if first or many:
            self._wake()

    def hurry(self) -> None:
        """Upload what is there as soon as can be."""
        if self._lines:
            self._due = self._clock.monotonic()
            self._wake()

    def wait_for_room(self) -> None:
        """For a reader that can wait: until there is room, unless the store is in trouble."""
        while self.full and not self.failing:
            self._room.clear()
            self._room.wait(AGE)

    def wait(self) -> float:
        """Seconds until a batch is due."""
        return max(0.0, self._due - self._clock.monotonic())

    def run(self) -> Op[None]:
        """Upload one batch; what could not be uploaded is kept for the next one."""
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
        """Upload all that is left."""
        while self._sending or self._lines or self._dropped:
            yield from self.run()
            if self._sending:  # the keeper is at it
                yield Pause(_PAUSE)

    def finish(self, trouble: str) -> Op[None]:
        """The end: take no more lines, upload what is left, and say so if that fails."""
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
        """The first lines, no more than one commit takes: so none can be uploaded twice."""
        batch: list[str] = []
        room = core.CHUNK - SMALL
        while self._lines and len(batch) < LINES:
            room -= core.measure(self._lines[0])
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
            self._due = self._clock.monotonic() + AGAIN
        self._room.set()

    def _done(self) -> None:
        with self._guard:
            self.failing, self._sending = False, False
            left, now = len(self._lines), self._clock.monotonic()
            if left:
                self._due = now if left >= LINES else min(self._due, now + AGE)
        self._room.set()

    def _keep(self, lines: Iterable[str]) -> None:
        """Have these, too, and drop the oldest where there is no room."""
        for line in lines:
            self._lines.append(line)
            self._bytes += len(line)
        while len(self._lines) > ROOM or self._bytes > ROOM_BYTES:
            self._bytes -= len(self._lines.popleft())
            self._dropped += 1


def _oldest(
    agent: str, book: core.Book, *, another: bool = False
) -> Reading[list[core.Chunk | None]]:
    """The chunks that may go: only looked at, since the book is checked, and goes with them."""
    wanted = [keys.log_chunk(agent, number) for number in core.oldest(book, another=another)]
    if not wanted:
        return []
    items = (yield Glance(wanted)).items
    return [_chunk(items[key]) for key in wanted]


def _book(item: Item | None) -> core.Book | None:
    return None if item is None else states.decoded(_BOOK, item)


def _chunk(item: Item | None) -> core.Chunk | None:
    return None if item is None else states.decoded(_CHUNK, item)
