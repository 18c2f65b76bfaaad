"""Items as typed state, shared by the services."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from interlock.core import codec, keys
from interlock.core.wait import UnqueuedWait
from interlock.errors import StoreDamaged
from interlock.nouns.agents.session_rules import Death, Session
from interlock.nouns.grants.pool import BreakNote, Pool, with_token
from interlock.store import Item

T = TypeVar("T")
Given = TypeVar("Given", Item, Item | None)


class Living(msgspec.Struct):
    """Anything that was granted: its id, and what keeps it alive."""

    id: str
    live: tuple[str, ...]


_POOL = msgspec.json.Decoder(Pool)
_SESSION = msgspec.json.Decoder(Session)
_DEATH = msgspec.json.Decoder(Death)
_BREAK = msgspec.json.Decoder(BreakNote)
_LIVING = msgspec.json.Decoder(Living)
_KEYS = msgspec.json.Decoder(tuple[str, ...])
_LISTED: msgspec.json.Decoder[tuple[str, ...] | UnqueuedWait] = msgspec.json.Decoder(
    tuple[str, ...] | UnqueuedWait
)


def pool(item: Item | None, base: int = 0) -> Pool | None:
    """The lock or semaphore that an item is, with the tokens of its grants."""
    if item is None:
        return None
    return with_token(decoded(_POOL, item), base + item.revision)


def readable_pool(item: Item, base: int) -> Pool | None:
    """The same, for a pass over many."""
    return readable(lambda known: pool(known, base), item)


def readable(read: Callable[[Given], T | None], item: Given) -> T | None:
    """What an item is, for a pass over many: one that cannot be read is nobody else's trouble."""
    try:
        return read(item)
    except StoreDamaged:
        return None


def granted(item: Item) -> tuple[str, ...]:
    """The ids of the grants that an item has: those of a pool, or the claim of a task."""
    if item.key.startswith(keys.TASKS):
        return (decoded(_LIVING, item).id,)
    found = readable_pool(item, 0)
    return () if found is None else tuple(grant.id for grant in found.grants)


def lives_by(item: Item | None, grant: str) -> tuple[str, ...] | None:
    """What keeps a grant of this item alive, as ``granted`` finds them; None if it is not there."""
    if item is None:
        return None
    if item.key.startswith(keys.TASKS):
        claim = decoded(_LIVING, item)
        return claim.live if claim.id == grant else None
    found = decoded(_POOL, item).grant(grant)
    return None if found is None else found.live


def lives_by_token(item: Item, token: int, base: int, agent: str) -> tuple[str, ...] | None:
    """What keeps the grant with this token alive; None if it is not there.

    A token of a semaphore means one grant only together with the name of its holder.
    """
    if item.key.startswith(keys.TASKS):
        return decoded(_LIVING, item).live if token == base + item.revision else None
    known = pool(item, base)
    grants = () if known is None else known.grants
    if agent and item.key.startswith(keys.SEMAPHORES):
        grants = tuple([grant for grant in grants if grant.agent == agent])
    return next((grant.live for grant in grants if grant.token == token), None)


def session(item: Item | None) -> Session | None:
    """The session that an item is."""
    return None if item is None else decoded(_SESSION, item)


def death(item: Item | None) -> Death | None:
    """The trace of a session that an item is."""
    return None if item is None else decoded(_DEATH, item)


def broken(item: Item | None) -> BreakNote | None:
    """The note about a grant that an operator ended."""
    return None if item is None else decoded(_BREAK, item)


def listed_wait(item: Item) -> tuple[str, ...] | UnqueuedWait:
    """A wait that is listed: the pools where it stands in a queue, or all that there is of it."""
    return decoded(_LISTED, item)


def readable_wait(item: Item) -> tuple[str, ...] | UnqueuedWait | None:
    """The same, for a pass over many."""
    try:
        return listed_wait(item)
    except StoreDamaged:
        return None


def waited_for(item: Item) -> tuple[str, ...]:
    """What a wait that is listed is for."""
    found = listed_wait(item)
    return (found.wants,) if isinstance(found, UnqueuedWait) else found


def keys_in(item: Item) -> tuple[str, ...]:
    """An item that is nothing but keys."""
    return decoded(_KEYS, item)


def decoded(decoder: msgspec.json.Decoder[T], item: Item) -> T:
    """What an item says; an item that does not say it is damage."""
    try:
        return decoder.decode(item.value)
    except codec.UNREADABLE as error:
        raise unreadable(item, error) from error


def unreadable(item: Item, error: Exception) -> StoreDamaged:
    """The finding that an item does not say what it should."""
    mended = item.key.startswith(keys.DERIVED)
    then = "run 'interlock maintain'" if mended else "restore a copy of the store"
    return StoreDamaged(f"{item.key} does not read as what it should be ({error}); {then}")


def exact(item: Item) -> Item:
    """The item with its value as bytes: whoever edits SQLite by hand leaves text behind."""
    if type(item.value) is bytes:
        return item
    return msgspec.structs.replace(item, value=str(item.value).encode("utf-8", "replace"))
