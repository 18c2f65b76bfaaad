"""Packs sealed entries into a segment, and unpacks them."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from interlock.core.log import Segment

_DIGITS = 16
_MOST = 64 << 20
"""Bytes of the entries of a segment; those of two thousand large ones are less."""
_LEVEL = 3
"""Hashes do not compress, so a higher level gains nothing."""

Sealed: TypeAlias = tuple[int, str, bytes]
"""The revision of an entry, its id and its stored bytes."""


def pack(entries: Iterable[Sealed]) -> str:
    """Entries as a segment keeps them: one line for each, compressed."""
    lines = (b"%d %b %b" % (revision, id_.encode(), stored) for revision, id_, stored in entries)
    return base64.b64encode(zlib.compress(b"\n".join(lines), _LEVEL)).decode("ascii")


def number(name: str) -> int | None:
    """The revision that a segment is named after, if that is what it is named after."""
    sound = len(name) == _DIGITS and name.isascii() and name.isdigit()
    return int(name) if sound else None


def unpack(packed: str) -> Iterator[Sealed]:
    """The entries of a segment in their order; ValueError if it is damaged."""
    lines = _inflated(base64.b64decode(packed, validate=True))
    for line in lines.split(b"\n") if lines else ():
        revision, id_, stored = line.split(b" ", 2)
        yield int(revision), id_.decode(), stored


def adds_up(segment: Segment, entries: Sequence[tuple[int, bytes]], last: int) -> bool:
    """Whether the marks of a segment match its entries: their revisions and stored bytes.

    Its packed entries have a checksum of their own, so a bit that flipped elsewhere shows here.
    """
    begins, ends = segment.begins, segment.ends
    if not entries or not begins.revision < entries[0][0] <= entries[-1][0] == ends.revision:
        return False
    if last != ends.revision or ends.entries - begins.entries != len(entries):
        return False
    digest = begins.digest
    for revision, stored in entries:  # as ``core.log.roll`` does
        hash_ = sha256(stored).hexdigest()
        digest = sha256(f"{digest}{revision}:{hash_}".encode()).hexdigest()
    return digest == ends.digest


def _inflated(packed: bytes) -> bytes:
    """Inflate at most ``_MOST`` bytes: a few packed bytes could fill all memory."""
    inflate = zlib.decompressobj()
    try:
        found = inflate.decompress(packed, _MOST)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not inflate.eof or inflate.unused_data:
        raise ValueError(f"it was cut, or holds more than {_MOST >> 20} MiB")
    return found
