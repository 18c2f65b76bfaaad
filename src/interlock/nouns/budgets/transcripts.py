"""The usage in transcripts of coding agents: pure functions over lines of JSON.

Claude Code writes each assistant message several times while it grows, with one ``message.id``: the
last usage of an id counts.  Sub-agents have transcripts of their own.  Codex writes
``token_count`` events with the total of the session: the difference to the last one counts.  Lines
of other kinds, damaged lines and unknown shapes count for nothing.

A transcript is known by its path and its first line, so a file that was rotated is another one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from interlock.nouns.budgets.budget import NO_USAGE, TokenUsage, TranscriptPlace

REMEMBERED = 16
"""Messages whose usage is remembered: a message is repeated soon, or never."""
PORTION = 8 << 20
"""Bytes of a transcript that are read at once; a longer line counts for nothing."""
LONGEST_FIRST = 1 << 16
"""Bytes of the first line by which a transcript is known."""
_USAGE = (b'"usage"', b'"token_count"')
"""What lines that count contain; the others, which may be large, are not parsed."""


class TranscriptLines(Struct, frozen=True, kw_only=True):
    """Whole lines of a transcript, and whether a shorter file replaced it."""

    lines: tuple[bytes, ...]
    replaced: bool


def counted(lines: Iterable[bytes], place: TranscriptPlace) -> tuple[TokenUsage, TranscriptPlace]:
    """The usage of these lines beyond that of earlier calls, and the place after them."""
    added, last, total, size = NO_USAGE, dict(place.last), place.total, 0
    for line in lines:
        size += len(line)
        found = _parsed(line) if any(word in line for word in _USAGE) else {}
        if (claude := _claude(found)) is not None:
            id_, usage = claude
            added = added.plus(usage.beyond(last.pop(id_, NO_USAGE)))
            last[id_] = usage
        elif (codex := _codex(found)) is not None:
            # A total that shrinks is that of a new session in the same file.
            began_again = codex.tokens < total.tokens
            added = added.plus(codex if began_again else codex.beyond(total))
            total = codex
    kept = tuple(last.items())[-REMEMBERED:]
    return added, TranscriptPlace(offset=place.offset + size, last=kept, total=total)


def first_line(path: str) -> bytes:
    """The first line of a file with its end; empty while its writer is not done with it."""
    data = _read(path, 0, LONGEST_FIRST)[0]
    return (
        data if len(data) == LONGEST_FIRST and b"\n" not in data else data[: data.find(b"\n") + 1]
    )


def read_lines(path: str, offset: int) -> TranscriptLines:
    """The whole lines of a file after an offset.

    A line without its end is left for the next time: its writer is not done.
    """
    data, size = _read(path, offset, PORTION)
    replaced = size < offset
    if replaced:
        data, size = _read(path, 0, PORTION)
    end = data.rfind(b"\n") + 1
    if not end and len(data) == PORTION:  # a part of a line without an end in sight
        end = len(data)
    lines = [line + b"\n" for line in data[:end].split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return TranscriptLines(lines=tuple(filter(None, lines)), replaced=replaced)


def _read(path: str, offset: int, most: int) -> tuple[bytes, int]:
    """A part of a file, and the size of all of it; OSError if it is no plain file."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would block
    with open(number, "rb") as file:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(0, "it is no plain file")
        file.seek(offset)
        return file.read(most), found.st_size


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _claude(line: dict[str, Any]) -> tuple[str, TokenUsage] | None:
    message = line.get("message")
    if line.get("type") != "assistant" or not isinstance(message, dict):
        return None
    usage, id_ = message.get("usage"), message.get("id")
    if not isinstance(usage, dict) or not isinstance(id_, str):
        return None
    cost = line.get("costUSD", 0.0)
    return id_, TokenUsage(
        input=_number(usage, "input_tokens"),
        output=_number(usage, "output_tokens"),
        cache_write=_number(usage, "cache_creation_input_tokens"),
        cache_read=_number(usage, "cache_read_input_tokens"),
        cost=float(cost) if isinstance(cost, int | float) and 0 <= cost < 1e9 else 0.0,  # noqa: PLR2004
    )


def _codex(line: dict[str, Any]) -> TokenUsage | None:
    payload = line.get("payload")
    if not isinstance(payload, dict) or payload.get("type") != "token_count":
        return None
    info = payload.get("info")
    usage = info.get("total_token_usage") if isinstance(info, dict) else None
    if not isinstance(usage, dict):
        return None
    cached = _number(usage, "cached_input_tokens")  # a part of the input
    return TokenUsage(
        input=max(_number(usage, "input_tokens") - cached, 0),
        output=_number(usage, "output_tokens"),
        cache_read=cached,
    )


def _number(usage: dict[str, Any], name: str) -> int:
    value = usage.get(name, 0)
    return value if isinstance(value, int) and 0 <= value < 10**12 else 0
