"""Items as typed state, shared by the services."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from interlock.core.lock import Lock
from interlock.core.lock import seen as lock_seen
from interlock.core.session import Session
from interlock.errors import StoreDamaged
from interlock.store import Item

T = TypeVar("T")

_LOCK = msgspec.json.Decoder(Lock)
_SESSION = msgspec.json.Decoder(Session)


def lock(item: Item | None, base: int) -> Lock | None:
    """The lock that an item is, with the token of its grant."""
    if item is None:
        return None
    return lock_seen(decoded(_LOCK, item), base + item.revision)


def readable_lock(item: Item, base: int) -> Lock | None:
    """The same, for a pass over many: one that cannot be read is nobody else's trouble."""
    try:
        return lock(item, base)
    except StoreDamaged:
        return None


def session(item: Item | None) -> Session | None:
    """The session that an item is."""
    return None if item is None else decoded(_SESSION, item)


def decoded(decoder: msgspec.json.Decoder[T], item: Item) -> T:
    """What an item says; an item that does not say it is damage."""
    try:
        return decoder.decode(item.value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise StoreDamaged(
            f"{item.key} does not read as what it should be ({error}); restore a copy of the store"
        ) from error
