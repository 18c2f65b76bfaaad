"""Writes, reads and follows the logs of agents, and deletes their oldest chunks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import IO, TypeVar

from interlock.core import codec, keys, validate
from interlock.core.decision import Decision
from interlock.errors import BadInput, StoreDamaged
from interlock.nouns.agents import log_rules
from interlock.runtime.attempt import DecideOp, ReadOp, Unchecked
from interlock.runtime.identity import Actor
from interlock.runtime.reads import every, looked_up
from interlock.runtime.retention_clock import earlier_time
from interlock.runtime.runner import Decided, Runner
from interlock.settings import Settings
from interlock.steps import NextChanges, Op, OpenWatch, Read
from interlock.store import Item, Snapshot, Watch

T = TypeVar("T")

MOST = 100_000
"""Lines in one read at most: more than a log has."""
LONGEST = 64 * 1024
"""Bytes of a line that are read at once: a line may have no end."""
_AT_ONCE = 8
_ASKED = 60.0
"""Seconds for which the agreed time is reused: precise enough for an age of days."""

_book = codec.Decoder(log_rules.Logbook).read_if_present
_file_book = codec.Decoder(log_rules.FileLogbook).read_if_present
_chunk = codec.Decoder(log_rules.Chunk).read_if_present


def decode_logbook(item: Item) -> log_rules.Logbook | log_rules.FileLogbook | None:
    """The index of a log, or of an uploaded file."""
    return _file_book(item) if _owner_and_file(item)[1] else _book(item)


def decode_chunk(item: Item) -> log_rules.Chunk | None:
    """A part of a log or of an uploaded file."""
    return _chunk(item)


def _owner_and_file(book: Item) -> tuple[str, str]:
    """The agent of a log, and the file if the index is that of a file."""
    owner, _, file = book.key.removeprefix(keys.LOGBOOKS).partition("/")
    return keys.decode(owner), keys.decode(file)


class AgentLogService:
    """Every operation on logs, as generators for a driver."""

    def __init__(self, runner: Runner, settings: Settings) -> None:
        self._runner = runner
        self._settings = settings
        self._agreed = (float("-inf"), 0.0)
        self.clock, self.allow = runner.clock, runner.capabilities.allow

    def upload(self, agent: str, texts: Iterable[str], actor: Actor) -> Op[log_rules.Uploaded]:
        """Append lines: one commit for each chunk."""
        if isinstance(texts, str):
            raise BadInput("'lines' takes a list of lines; put brackets around it")
        cleaned = [
            line
            for text in validate.require_iterable(texts, "'lines'")
            for line in log_rules.clean(text)
        ]
        most = min(log_rules.CHUNK, self._runner.capabilities.max_value // 2)
        limits, now = self._limits(), (yield from self._now())
        for portion in log_rules.split(cleaned, most):
            deciding = partial(self._adding, agent, portion, actor, limits, now)
            yield from self._runner.change(deciding, actor)
        return log_rules.Uploaded(agent=agent, lines=len(cleaned))

    def _now(self) -> Op[float]:
        """The time by which lines expire; the engine is asked once a minute at most."""
        here = self._runner.clock.monotonic()
        if here - self._agreed[0] > _ASKED:
            self._agreed = (here, (yield from earlier_time(self._runner)))
        return self._agreed[1] + here - self._agreed[0]

    def _adding(
        self,
        agent: str,
        lines: tuple[str, ...],
        actor: Actor,
        limits: log_rules.LogLimits,
        now: float,
    ) -> DecideOp[log_rules.Uploaded]:
        book = _book((yield (keys.logbook(agent),))[keys.logbook(agent)])
        at = round(self._runner.clock.wall(), 3)
        batch = log_rules.UploadedLines(at=at, lines=lines, session=actor.session)
        size = sum(map(log_rules.line_bytes, lines))
        tail: log_rules.Chunk | None = None
        old: list[log_rules.Chunk | None] = []
        if book is not None and log_rules.fits_last_chunk(book, size):
            last = keys.log_chunk(agent, book.next - 1)
            tail = _chunk((yield (last,))[last])
        if book is not None and log_rules.rotation_due(book, limits, now, size):
            old = yield from _oldest(agent, book, another=tail is None)
        return log_rules.upload(agent, book, batch, limits=limits, now=now, tail=tail, old=old)

    def read(self, agent: str, *, limit: int = 100, after: int = 0) -> Op[list[log_rules.LogLine]]:
        """The last lines of an agent's log after a line number."""
        key = keys.logbook(agent)
        snapshot: Snapshot = yield Read(key)
        book = _book(snapshot[key]) or log_rules.Logbook()
        found: list[log_rules.LogLine] = []
        for end in range(book.next, book.oldest, -_AT_ONCE):
            numbers = range(max(book.oldest, end - _AT_ONCE), end)
            read = yield from _chunks([keys.log_chunk(agent, number) for number in numbers])
            chunks = [chunk for chunk in read if chunk is not None]
            found[:0] = [line for chunk in chunks for line in log_rules.lines(chunk)]
            if len(found) >= limit or (chunks and chunks[0].first <= after + 1):
                break
        return [line for line in found if line.number > after][-limit:]

    def upload_file(
        self, agent: str, file: str, texts: Iterable[str], actor: Actor
    ) -> Op[log_rules.Uploaded]:
        """Upload a whole file; it replaces the last upload under its name."""
        lines, cut = log_rules.last_lines(texts, self._limits().bytes)
        most = min(log_rules.CHUNK, self._runner.capabilities.max_value // 2)
        portions = list(log_rules.split(lines, most)) or [()]
        while not (yield from self._write_file(agent, file, portions, actor)):
            pass  # another upload of it ended: start over, ours is the later one
        return log_rules.Uploaded(agent=agent, lines=len(lines) - bool(cut), file=file, cut=cut)

    def _write_file(
        self, agent: str, file: str, portions: Sequence[tuple[str, ...]], actor: Actor
    ) -> Op[bool]:
        now = yield from self._now()
        sizes = [sum(map(log_rules.line_bytes, portion)) for portion in portions]
        written: tuple[int, ...] = ()
        first = 1
        for index, portion in enumerate(portions):
            batch = log_rules.UploadedLines(at=round(now, 3), lines=portion, session=actor.session)
            chunk = log_rules.Chunk(first=first, bytes=sizes[index], batches=(batch,))
            size = sum(sizes) if index == len(portions) - 1 else None
            upload = partial(log_rules.upload_file, chunk=chunk, written=written, size=size)
            deciding = partial(_decide_on_file, agent, file, upload)
            done: Decided[tuple[int, ...] | None] = yield from self._runner.change(deciding, actor)
            if done.outcome is None:
                return False
            written = done.outcome
            first += len(portion)
        return True

    def read_file(
        self, agent: str, file: str, *, limit: int = 100, after: int = 0
    ) -> Op[list[log_rules.LogLine] | None]:
        """The last lines of an uploaded file after a line number; None without a file."""
        key = keys.file_book(agent, file)
        before: log_rules.FileLogbook | None = None
        while True:
            book = _file_book((yield Read(key))[key])
            if book is None or not book.shown:
                return None
            found: list[log_rules.LogLine] = []
            whole = True
            for start in range(0, len(book.shown), _AT_ONCE):
                numbers = book.shown[start : start + _AT_ONCE]
                chunks = yield from _chunks([keys.file_chunk(agent, file, n) for n in numbers])
                whole &= None not in chunks
                found += [line for chunk in chunks if chunk for line in log_rules.lines(chunk)]
            if whole or book == before:
                return [line for line in found if line.number > after][-limit:]
            before = book  # it was replaced while it was read

    def files(self, agent: str) -> Op[list[log_rules.LogFile]]:
        """The files that an agent uploaded, by name."""
        found = []
        for item in (yield from every(keys.file_book(agent))):
            book, name = _file_book(item), keys.decode(item.key.rpartition("/")[2])
            if book is not None and book.shown:
                found.append(
                    log_rules.LogFile(name=name, lines=book.lines, bytes=book.bytes, at=book.at)
                )
        return found

    def forget(self, actor: Actor) -> Op[int]:
        """Delete old chunks of agents that no longer upload, and old files; counts them."""
        gone, now = 0, (yield from earlier_time(self._runner))
        for item in (yield from every(keys.LOGBOOKS)):
            with suppress(StoreDamaged):  # other logs are not affected; doctor names it
                gone += yield from self._forget_log(item, now, actor)
        return gone

    def _forget_log(self, item: Item, now: float, actor: Actor) -> Op[int]:
        agent, file, limits = *_owner_and_file(item), self._limits()
        if file:
            return (yield from self._delete_old_file(agent, file, item, limits, actor))
        book = _book(item)
        if book is None or not log_rules.rotation_due(book, limits, now):
            return 0
        deciding = partial(_decide_deletion, agent, limits, now)
        done: Decided[int] = yield from self._runner.change(deciding, actor)
        return done.outcome

    def _delete_old_file(
        self, agent: str, file: str, item: Item, limits: log_rules.LogLimits, actor: Actor
    ) -> Op[int]:
        now, gone = (yield from self._now()), 0
        delete = partial(log_rules.delete_old_file, limits=limits, now=now)
        while delete(agent, file, _file_book(item)).outcome:
            deciding = partial(_decide_on_file, agent, file, delete)
            done: Decided[int] = yield from self._runner.change(deciding, actor)
            gone += done.outcome
            if not done.outcome:
                break
        return gone

    def _limits(self) -> log_rules.LogLimits:
        found = self._settings.agent()
        return log_rules.LogLimits(
            bytes=found.get("log_bytes", log_rules.BYTES), age=found.get("log_age", log_rules.AGE)
        )


class LogTail:
    """Follows a log from a line number on; its opener closes it."""

    def __init__(self, logs: AgentLogService, agent: str, after: int) -> None:
        self._logs = logs
        self._agent = agent
        self._after = after
        self._watch: Watch | None = None

    def take(self, timeout: float | None) -> Op[list[log_rules.LogLine]]:
        """The lines since the last call; waits for the first one, at most ``timeout`` seconds."""
        if self._watch is None:
            now: Snapshot = yield Read()
            self._watch = yield OpenWatch(keys.logbook(self._agent), now.revision)
        elif not (yield NextChanges(self._watch, timeout)):
            return []
        found = yield from self._logs.read(self._agent, limit=MOST, after=self._after)
        self._after = found[-1].number if found else self._after
        return found

    def close(self) -> None:
        """Stop listening."""
        if self._watch is not None:
            self._watch.close()


def file_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """The lines of a file, which is opened at once and read lazily."""
    try:
        file = open(path, "rb")  # noqa: SIM115 - it is closed where it ends
    except (OSError, ValueError) as error:
        raise BadInput(f"{os.fspath(path)!r} cannot be read ({error}); name a file") from None
    return _lines_of(file)


def _lines_of(file: IO[bytes]) -> Iterator[str]:
    with file:
        while line := file.readline(LONGEST):
            yield line.decode("utf-8", "replace")


def _decide_on_file(
    agent: str, file: str, decide: Callable[[str, str, log_rules.FileLogbook | None], Decision[T]]
) -> DecideOp[T]:
    key = keys.file_book(agent, file)
    return decide(agent, file, _file_book((yield (key,))[key]))


def _decide_deletion(agent: str, limits: log_rules.LogLimits, now: float) -> DecideOp[int]:
    book = _book((yield (keys.logbook(agent),))[keys.logbook(agent)])
    old = [] if book is None else (yield from _oldest(agent, book))
    return log_rules.delete_old_chunks(agent, book, old, limits, now)


def _oldest(
    agent: str, book: log_rules.Logbook, *, another: bool = False
) -> ReadOp[list[log_rules.Chunk | None]]:
    """The chunks that may be deleted: read unchecked, since the commit checks the logbook."""
    wanted = [
        keys.log_chunk(agent, number) for number in log_rules.oldest_chunks(book, another=another)
    ]
    if not wanted:
        return []
    items = (yield Unchecked(wanted)).items
    return [_chunk(items[key]) for key in wanted]


def _chunks(wanted: Sequence[str]) -> Op[list[log_rules.Chunk | None]]:
    items = yield from looked_up(wanted)
    return [_chunk(items[key]) for key in wanted]
