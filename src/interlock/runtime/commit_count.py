"""How many commits there were, where revisions do not tell: those of Redis are times."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from interlock.core import keys
from interlock.core.log import SealedMark
from interlock.drivers import Op
from interlock.runtime.decode import decoded, readable
from interlock.runtime.steps import Read, StoreCall
from interlock.store import Extent, Item

_SEALED = msgspec.json.Decoder(SealedMark)


class CommitPosition(Struct, frozen=True, kw_only=True, gc=False):
    """A moment in the life of a store: its revision, and the entries that the record had by then.

    The latter are 0 if nobody knows: an engine had to let go of some by itself, or the mark of
    what is sealed cannot be read.
    """

    revision: int
    entries: int = 0


def commit_position(revision: int) -> Op[CommitPosition]:
    """This moment, or a little later as far as entries are concerned."""
    extent: Extent = yield StoreCall("extent")
    item = (yield Read(keys.SEALED))[keys.SEALED]
    sealed = SealedMark() if item is None else readable(_sealed, item)
    if sealed is None or extent.trimmed > sealed.revision:
        return CommitPosition(revision=revision)
    return CommitPosition(revision=revision, entries=sealed.entries + extent.entries)


def commits_since(before: CommitPosition, revision: int, enough: int) -> Op[int]:
    """How many commits there were at most from a moment to a revision.

    What is no more than ``enough`` is told at no cost.
    """
    came = revision - before.revision
    if came <= enough or not before.entries:
        return came
    entries = (yield from commit_position(revision)).entries
    return min(came, entries - before.entries) if entries else came


def _sealed(item: Item) -> SealedMark:
    return decoded(_SEALED, item)
