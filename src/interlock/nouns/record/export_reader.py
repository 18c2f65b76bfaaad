"""Reading an export: its head, and its entries as they hash."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import closing
from typing import IO, Any

import msgspec
from msgspec import Struct

from interlock.core import codec
from interlock.core.log import Mark
from interlock.errors import BadInput

FORMAT = 1


class Head(Struct, frozen=True, kw_only=True):
    """The first line.

    ``strict``: an entry stands right above the revision that it was decided on.
    ``whole``: nothing was before the beginning.
    """

    interlock: int = FORMAT
    begins: Mark
    strict: bool
    whole: bool


class Copy(Struct, frozen=True):
    """An entry of an export: where it stands, and the hash of its bytes."""

    revision: int
    hash: str


def copies(path: str) -> Iterator[Copy | Head]:
    """The head of an export and its entries; BadInput if it is none, or if it was cut."""
    try:
        with closing(open(path, "rb")) as file:
            yield from _copies(file, path)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; name an export") from None


class _Told(Struct, frozen=True, kw_only=True):
    """The line of an entry: its text, or what is none in base64."""

    revision: int
    entry: str = ""
    base64: str = ""


def _copy(told: _Told) -> Copy:
    raw = base64.b64decode(told.base64) if told.base64 else told.entry.encode()
    return Copy(told.revision, codec.digest(raw))


def _copies(file: IO[bytes], path: str) -> Iterator[Copy | Head]:
    ended = False
    for number, text in enumerate(file, 1):
        try:
            line: dict[str, Any] = msgspec.json.decode(text, type=dict)
            if number == 1:
                yield msgspec.convert(line, Head)
            elif "id" in line:
                yield _copy(msgspec.convert(line, _Told))
        except codec.UNREADABLE:
            raise BadInput(
                f"line {number} of {path} is none of an export; name an export"
            ) from None
        ended = "ends" in line
    if not ended:
        raise BadInput(f"{path} was cut before its end; export it again")
