"""Counts the commits between two revisions, also where revisions are times, as in Redis."""

from __future__ import annotations

from msgspec import Struct

from interlock.core import codec, keys
from interlock.core.log import SealedMark
from interlock.drivers import Op, Read, StoreCall
from interlock.runtime.reads import decoded, readable
from interlock.store import Extent, Item

_SEALED = codec.Decoder(SealedMark)


class CommitPosition(Struct, frozen=True, kw_only=True, gc=False):
    """A revision of a store, and the number of entries that the record had at it.

    The number is 0 if it is unknown: the engine trimmed unsealed entries, or the sealed mark is
    damaged.
    """

    revision: int
    entries: int = 0


def commit_position(revision: int) -> Op[CommitPosition]:
    """The current position; its entries may be slightly newer than the revision."""
    extent: Extent = yield StoreCall("extent")
    item = (yield Read(keys.SEALED))[keys.SEALED]
    sealed = SealedMark() if item is None else readable(_sealed, item)
    if sealed is None or extent.trimmed > sealed.revision:
        return CommitPosition(revision=revision)
    return CommitPosition(revision=revision, entries=sealed.entries + extent.entries)


def commits_since(before: CommitPosition, revision: int, enough: int) -> Op[int]:
    """The most commits that can have happened between a position and a revision.

    A difference of at most ``enough`` needs no read.
    """
    came = revision - before.revision
    if came <= enough or not before.entries:
        return came
    entries = (yield from commit_position(revision)).entries
    return min(came, entries - before.entries) if entries else came


def _sealed(item: Item) -> SealedMark:
    return decoded(_SEALED, item)
