"""Ids of which a caller writes only the beginning."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from interlock.core import keys
from interlock.core.outcomes import Unknown
from interlock.drivers import Op, Read
from interlock.errors import BadInput
from interlock.store import Range, Snapshot

T = TypeVar("T")

WHOLE = 32
"""The digits of an id that Interlock made."""
LEAST = 6
"""The fewest digits, or letters of an id that a caller chose, that make a prefix."""
FOLDERS = {
    "dec": keys.DECISIONS,
    "msg": keys.MESSAGES,
    "qry": keys.QUERIES,
    "ses": keys.SESSIONS,
}
"""The folder for each kind of id."""
NAMED = 5
"""The most ids that an error names to choose from."""


def is_prefix(id_: str) -> bool:
    """Whether this may be the beginning of an id, and is no whole id that Interlock made."""
    kind, _, rest = id_.partition("_")
    return kind in FOLDERS and LEAST <= len(rest) < WHOLE


def whole_id(id_: str, *folders: str) -> Op[str]:
    """The one id in these folders that begins like this; the text unchanged if there is none.

    One read, bounded by the number of folders.  If several ids begin like it, the caller has to
    write more of the one that is meant.
    """
    if not is_prefix(id_):
        return id_
    ranges = [Range(folder + id_, limit=NAMED + 1) for folder in folders]
    snapshot: Snapshot = yield Read(*ranges)
    items = [item for each in ranges for item in snapshot.ranges[each]]
    found = sorted({item.key.rpartition("/")[2] for item in items})
    if len(found) > 1 and id_ not in found:
        raise BadInput(
            f"{id_!r} is the beginning of several ids; write more of it:"
            f" {', '.join(found[:NAMED])}{' ...' if len(found) > NAMED else ''}"
        )
    return found[0] if len(found) == 1 else id_


def whole_thing(thing: str) -> Op[str]:
    """A thing of the record (``query/qry_...``) with its whole id, if it is still in the store."""
    kind, _, id_ = thing.partition("/")
    folder = FOLDERS.get(id_.partition("_")[0])
    return thing if folder is None else f"{kind}/{(yield from whole_id(id_, folder))}"


def by_prefix(id_: str, attempt: Callable[[str], Op[T]], *folders: str) -> Op[T]:
    """The outcome of an attempt; if the id is unknown, of one with the id that begins like it."""
    outcome = yield from attempt(id_)
    if not isinstance(outcome, Unknown):
        return outcome
    whole = yield from whole_id(id_, *folders)
    return outcome if whole == id_ else (yield from attempt(whole))
