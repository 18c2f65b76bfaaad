"""Rules for the logs of agents: lines are uploaded in batches, and the oldest are deleted.

    logbooks/{agent}        the count of all lines ever, and the range of chunks that exist
    logs/{agent}/{number}   a chunk: some batches, each with its time and its session

A chunk is bulk data: its entry in the record has only its digest.  Every upload writes the logbook,
so two uploads cannot take the same next chunk, and a reader of the logbook knows the keys of all
chunks without listing them.  A batch of a few lines is added to the last chunk while that is small
(``SMALL``), so an agent that logs one line a second leaves few items; a larger chunk would be
rewritten too often.

Line numbers start at 1 and never repeat, so a reader asks for the lines after the last it has read.

An upload deletes the oldest chunks in the same commit, a bounded number, while the log exceeds its
bytes or a chunk exceeds its age.  ``until`` is a lower bound of the age of all chunks, so an upload
that has nothing to delete reads no old chunk.  The last chunk always stays.

A whole file is kept beside the log, under its base name:

    logbooks/{agent}/{file}       the chunks of its last upload
    logs/{agent}/{file}/{number}  a chunk of it

An upload writes its chunks first and publishes them all with its last commit, so a reader never
sees half a file, and a second upload replaces the first.  Chunks older than the published ones are
deleted, a bounded number with each commit.  When two uploads overlap, the end of one may delete
chunks of the other, which detects that (``oldest``) and starts over.

No loss is silent: a line that is too long is cut and marked, and an uploader that dropped lines
adds a line with their number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.core.decision import Decision, Success, Write
from interlock.errors import BadInput

LINE = 16 * 1024
CHUNK = 256 * 1024
SMALL = 4 * 1024
BYTES = 4 * 1024 * 1024
AGE = 7 * 86400.0
ROTATED = 8
"""Chunks that one upload deletes at most: more than it adds, so it catches up."""


class LogLimits(Struct, frozen=True, kw_only=True):
    """What is kept of the log of one agent."""

    bytes: float = BYTES
    age: float = AGE


class UploadedLines(Struct, frozen=True, kw_only=True):
    """Lines that were uploaded together."""

    at: float
    lines: tuple[str, ...]
    session: str = ""


class Chunk(Struct, frozen=True, kw_only=True):
    """Batches in one item; ``first`` is the number of its first line."""

    first: int
    bytes: int
    batches: tuple[UploadedLines, ...]

    @property
    def until(self) -> float:
        """When the last of it was uploaded."""
        return self.batches[-1].at


class Logbook(Struct, frozen=True, kw_only=True):
    """The extent of a log: the chunks from ``oldest`` to before ``next``."""

    lines: int = 0
    oldest: int = 1
    next: int = 1
    bytes: int = 0
    tail: int = 0
    until: float = 0.0


class LogLine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of an agent's log; ``at`` is when it was uploaded."""

    number: int
    at: float
    text: str
    session: str = ""


class Uploaded(Success, frozen=True, kw_only=True, tag="uploaded"):
    """The lines are in the log, or are a ``file`` of the agent without its first ``cut`` lines."""

    agent: str
    lines: int
    file: str = ""
    cut: int = 0


class LogFile(Struct, frozen=True, kw_only=True):
    """A file that an agent uploaded; ``at`` is when."""

    name: str
    lines: int
    bytes: int
    at: float


class FileLogbook(Struct, frozen=True, kw_only=True):
    """The extent of a file: ``shown`` are the chunks of its last complete upload."""

    oldest: int = 1
    next: int = 1
    shown: tuple[int, ...] = ()
    lines: int = 0
    bytes: int = 0
    at: float = 0.0


def upload(
    agent: str,
    book: Logbook | None,
    batch: UploadedLines,
    *,
    limits: LogLimits,
    now: float | None = None,
    tail: Chunk | None = None,
    old: Sequence[Chunk | None] = (),
) -> Decision[Uploaded]:
    """Append a batch, and delete the oldest chunks.

    ``tail`` is the last chunk if the batch may be added to it, ``old`` are chunks that may be
    deleted.  ``now`` decides which are too old; by default the time of the batch.
    """
    before = book or Logbook(until=batch.at)
    size = sum(map(line_bytes, batch.lines))
    start = Chunk(first=before.lines + 1, bytes=0, batches=())
    chunk = tail or start
    chunk = replace(chunk, bytes=chunk.bytes + size, batches=(*chunk.batches, batch))
    number = before.next if tail is None else before.next - 1
    after = replace(
        before,
        lines=before.lines + len(batch.lines),
        next=number + 1,
        bytes=before.bytes + size,
        tail=chunk.bytes,
    )
    after = rotated(after, old, limits, batch.at if now is None else now)
    gone = range(before.oldest, after.oldest)
    return Decision(
        outcome=Uploaded(agent=agent, lines=len(batch.lines)),
        verb="agent.log",
        thing=f"agent/{agent}",
        puts=(Write(keys.logbook(agent), after), Write(keys.log_chunk(agent, number), chunk)),
        deletes=tuple(keys.log_chunk(agent, each) for each in gone),
    )


def delete_old_chunks(
    agent: str, book: Logbook | None, old: Sequence[Chunk | None], limits: LogLimits, now: float
) -> Decision[int]:
    """Delete old chunks of an agent that no longer uploads: maintenance."""
    after = None if book is None else rotated(book, old, limits, now)
    if book is None or after is None or after.oldest == book.oldest:
        return Decision(outcome=0)
    gone = range(book.oldest, after.oldest)
    return Decision(
        outcome=len(gone),
        verb="agent.log",
        thing=f"agent/{agent}",
        puts=(Write(keys.logbook(agent), after),),
        deletes=tuple(keys.log_chunk(agent, each) for each in gone),
    )


def upload_file(
    agent: str,
    file: str,
    book: FileLogbook | None,
    chunk: Chunk,
    *,
    written: tuple[int, ...],
    size: int | None,
) -> Decision[tuple[int, ...] | None]:
    """Write one chunk of a file, after those that are ``written``; the last one publishes all.

    ``size`` is that of the whole file, with its last chunk.  The outcome is None if another upload
    ended and deleted chunks of this one.
    """
    before = book or FileLogbook()
    if written and written[0] < before.oldest:
        return Decision(outcome=None)
    number = before.next
    written = (*written, number)
    after = replace(before, next=number + 1, at=chunk.until)
    if size is not None:
        lines = chunk.first - 1 + len(chunk.batches[0].lines)
        after = replace(after, shown=written, lines=lines, bytes=size)
    after = _swept(after, min(after.shown, default=0))
    return Decision(
        outcome=written,
        verb="agent.log",
        thing=f"agent/{agent}",
        puts=(
            Write(keys.file_book(agent, file), after),
            Write(keys.file_chunk(agent, file, number), chunk),
        ),
        deletes=_file_chunks(agent, file, before, after),
    )


def delete_old_file(
    agent: str, file: str, book: FileLogbook | None, limits: LogLimits, now: float
) -> Decision[int]:
    """Delete a file that is too old and leftovers of earlier uploads; counts the chunks."""
    if book is None:
        return Decision(outcome=0)
    expired = book.at < now - limits.age
    shown = () if expired else book.shown
    after = _swept(replace(book, shown=shown), book.next if expired else min(shown, default=0))
    if after == book:
        return Decision(outcome=0)
    own = keys.file_book(agent, file)
    gone = _file_chunks(agent, file, book, after)
    empty = after.oldest == after.next
    return Decision(
        outcome=len(gone),
        verb="agent.log",
        thing=f"agent/{agent}",
        puts=() if empty else (Write(own, after),),
        deletes=(*gone, own) if empty else gone,
    )


def _swept(book: FileLogbook, end: int) -> FileLogbook:
    """The logbook without chunks before this one, up to the number that one commit deletes."""
    return replace(book, oldest=min(book.oldest + ROTATED, max(end, book.oldest)))


def _file_chunks(agent: str, file: str, before: FileLogbook, after: FileLogbook) -> tuple[str, ...]:
    numbers = range(before.oldest, after.oldest)
    return tuple([keys.file_chunk(agent, file, number) for number in numbers])


def rotated(book: Logbook, old: Sequence[Chunk | None], limits: LogLimits, now: float) -> Logbook:
    """The logbook without the oldest chunks that are due; a missing chunk is deleted already."""
    for chunk in old:
        if chunk is not None:
            book = replace(book, until=chunk.until)
            if not rotation_due(book, limits, now):
                break
            book = replace(book, bytes=max(book.bytes - chunk.bytes, 0))
        book = replace(book, oldest=book.oldest + 1)
    return book


def rotation_due(book: Logbook, limits: LogLimits, now: float, more: int = 0) -> bool:
    """Whether the oldest chunks may have to be deleted once ``more`` bytes are added."""
    return book.bytes + more > limits.bytes or book.until < now - limits.age


def oldest_chunks(book: Logbook, *, another: bool = False) -> range:
    """The chunks to read when rotation is due: the last one only if ``another`` follows."""
    end = book.next if another else book.next - 1
    return range(book.oldest, min(book.oldest + ROTATED, end))


def fits_last_chunk(book: Logbook | None, size: int) -> bool:
    """Whether a batch goes into the last chunk."""
    return book is not None and book.next > book.oldest and book.tail + size <= SMALL


def lines(chunk: Chunk) -> Iterator[LogLine]:
    """The lines of a chunk, with their numbers."""
    number = chunk.first
    for batch in chunk.batches:
        for text in batch.lines:
            yield LogLine(number=number, at=batch.at, text=text, session=batch.session)
            number += 1


def split(texts: Iterable[str], most: int = CHUNK) -> Iterator[tuple[str, ...]]:
    """Lines in portions that each fit into one chunk."""
    portion: list[str] = []
    size = 0
    for text in texts:
        if portion and size + line_bytes(text) > most:
            yield tuple(portion)
            portion, size = [], 0
        portion.append(text)
        size += line_bytes(text)
    if portion:
        yield tuple(portion)


def last_lines(texts: Iterable[str], most: float) -> tuple[list[str], int]:
    """The last lines of a file that fit into ``most`` bytes, and the number of those before."""
    kept: deque[str] = deque()
    size = cut = 0
    for text in texts:
        for line in clean(text):
            kept.append(line)
            size += line_bytes(line)
        while size > most and len(kept) > 1:
            size -= line_bytes(kept.popleft())
            cut += 1
    said = [f"[{cut} lines before these were cut]"] if cut else []
    return [*said, *kept], cut


def clean(text: str) -> Iterator[str]:
    """A text as lines that can be stored: without line ends, none too long, in UTF-8."""
    if not isinstance(text, str):
        raise BadInput(f"a line of a log is text, not {text!r:.40}")
    for line in text.rstrip("\r\n").split("\n"):
        data = line.rstrip("\r").encode("utf-8", "replace")
        cut = len(data) - LINE
        kept = data[:LINE].decode("utf-8", "ignore")
        yield f"{kept} [{cut} bytes cut]" if cut > 0 else kept


def line_bytes(line: str) -> int:
    """The bytes of a line in a chunk."""
    return len(codec.encode(line)) + 1
