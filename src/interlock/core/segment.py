"""The digest over all entries of the record, and the segments that sealed entries are packed into.

Some entries are linked by no other entry.  So one digest is rolled over all entries in order, from
the first one on; a checkpoint in the log, a segment of sealed entries and an anchor outside of the
store each keep the digest after some entry, which proves every entry and their order up to there.

Sealed entries have left the log for a segment, ``segments/{last}``; ``meta/sealed`` says how far
that goes, and ``meta/checkpoint`` how far the digest was rolled last.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from msgspec import Struct

from interlock.core import codec

_DIGITS = 16
_MOST = 64 << 20
"""Bytes of the entries of a segment; those of two thousand large ones are less."""
_LEVEL = 3
"""Hashes do not compress, so a higher level gains nothing."""

SealedEntry: TypeAlias = tuple[int, str, bytes]
"""The revision of an entry, its id and its stored bytes."""


class RecordMark(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rolled digest after a number of entries, the last of which has this revision."""

    revision: int = 0
    entries: int = 0
    digest: str = ""


class SealedMark(RecordMark, frozen=True, kw_only=True, omit_defaults=True):
    """How far the log was sealed, and up to where retention dropped the sealed segments.

    ``bytes`` is what the segments that are kept take together, and nothing in them is older than
    ``since``, so that retention need not read them to know whether it is due.
    """

    dropped: RecordMark | None = None
    bytes: int = 0
    since: float = 0.0


class MoveNote(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last move of the record to another store: from where, to where, and when.

    ``loose``: an engine wrote entries whose revisions do not count commits one by one.
    """

    source: str
    target: str
    move: str
    at: float
    loose: bool = False


class Segment(Struct, frozen=True, kw_only=True):
    """Entries that left the log: ``packed`` is base64 of zlib of one line for each.

    A line is the revision, the id and the stored bytes of the entry, with a blank between them;
    stored bytes are JSON without a line feed.  ``begins`` is where the digest stood before.
    """

    begins: RecordMark
    ends: RecordMark
    since: float
    until: float
    packed: str


def roll(digest: str, revision: int, hash_: str) -> str:
    """The digest over all entries, after one more."""
    return codec.digest(f"{digest}{revision}:{hash_}".encode("ascii"))


def pack(entries: Iterable[SealedEntry]) -> str:
    """Entries as a segment keeps them."""
    import zlib  # hardly any command needs it

    lines = (b"%d %b %b" % (revision, id_.encode(), stored) for revision, id_, stored in entries)
    return base64.b64encode(zlib.compress(b"\n".join(lines), _LEVEL)).decode("ascii")


def unpack(packed: str) -> Iterator[SealedEntry]:
    """The entries of a segment in their order; ValueError if it is damaged."""
    lines = _inflated(base64.b64decode(packed, validate=True))
    for line in lines.split(b"\n") if lines else ():
        revision, id_, stored = line.split(b" ", 2)
        yield int(revision), id_.decode(), stored


def _inflated(packed: bytes) -> bytes:
    """Inflate at most ``_MOST`` bytes: a few packed bytes could fill all memory."""
    import zlib

    inflate = zlib.decompressobj()
    try:
        found = inflate.decompress(packed, _MOST)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not inflate.eof or inflate.unused_data:
        raise ValueError(f"it was cut, or holds more than {_MOST >> 20} MiB")
    return found


def last_revision(name: str) -> int | None:
    """The revision that a segment is named after; None for another name."""
    sound = len(name) == _DIGITS and name.isascii() and name.isdigit()
    return int(name) if sound else None


def adds_up(segment: Segment, entries: Sequence[tuple[int, bytes]], last: int) -> bool:
    """Whether the marks of a segment match its entries: their revisions and stored bytes.

    Its packed entries have a checksum of their own, so a bit that flipped elsewhere shows here.
    """
    begins, ends = segment.begins, segment.ends
    if not entries or not begins.revision < entries[0][0] <= entries[-1][0] == ends.revision:
        return False
    if last != ends.revision or ends.entries - begins.entries != len(entries):
        return False
    from hashlib import sha256  # it loads OpenSSL, which hardly any command needs

    digest = begins.digest
    for revision, stored in entries:  # as ``roll``, which a whole record would call too often
        hash_ = sha256(stored).hexdigest()
        digest = sha256(f"{digest}{revision}:{hash_}".encode()).hexdigest()
    return digest == ends.digest
