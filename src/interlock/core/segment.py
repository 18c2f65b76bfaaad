"""Sealed entries: how a segment packs them, and how they come out again."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Iterator
from typing import TypeAlias

_LEVEL = 3
"""Hashes do not compress, so trying harder is in vain."""

Sealed: TypeAlias = tuple[int, str, bytes]
"""The revision of an entry, its id and its stored bytes."""


def pack(entries: Iterable[Sealed]) -> str:
    """Entries as a segment keeps them: one line for each, compressed."""
    lines = (b"%d %b %b" % (revision, id_.encode(), stored) for revision, id_, stored in entries)
    return base64.b64encode(zlib.compress(b"\n".join(lines), _LEVEL)).decode("ascii")


def unpack(packed: str) -> Iterator[Sealed]:
    """The entries of a segment in their order; ValueError if it is damaged."""
    try:
        lines = zlib.decompress(base64.b64decode(packed, validate=True))
    except zlib.error as error:
        raise ValueError(str(error)) from error
    for line in lines.split(b"\n") if lines else ():
        revision, id_, stored = line.split(b" ", 2)
        yield int(revision), id_.decode(), stored
