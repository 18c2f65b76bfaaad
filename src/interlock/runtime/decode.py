"""Items as typed values; an item that does not fit its type raises StoreDamaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from interlock.core import codec, keys
from interlock.core.wait import UnqueuedWait
from interlock.errors import StoreDamaged
from interlock.store import Item

T = TypeVar("T")
Given = TypeVar("Given", Item, Item | None)

_KEYS = msgspec.json.Decoder(tuple[str, ...])
_WAIT: msgspec.json.Decoder[tuple[str, ...] | UnqueuedWait] = msgspec.json.Decoder(
    tuple[str, ...] | UnqueuedWait
)


def decoded(decoder: msgspec.json.Decoder[T], item: Item) -> T:
    """The value of an item; StoreDamaged if the decoder cannot read it."""
    try:
        return decoder.decode(item.value)
    except codec.UNREADABLE as error:
        raise unreadable(item, error) from error


def readable(read: Callable[[Given], T | None], item: Given) -> T | None:
    """The value of an item in a pass over many; None for a damaged one, which others survive."""
    try:
        return read(item)
    except StoreDamaged:
        return None


def unreadable(item: Item, error: Exception) -> StoreDamaged:
    """The error for an item that cannot be decoded."""
    derived = item.key.startswith(keys.DERIVED)
    then = "run 'interlock maintain'" if derived else "restore a copy of the store"
    return StoreDamaged(f"{item.key} does not read as what it should be ({error}); {then}")


def decode_wait(item: Item) -> tuple[str, ...] | UnqueuedWait:
    """A listed wait: the keys of the pools where it queues, or a wait without a queue."""
    return decoded(_WAIT, item)


def readable_wait(item: Item) -> tuple[str, ...] | UnqueuedWait | None:
    """A listed wait in a pass over many; None for a damaged one."""
    try:
        return decode_wait(item)
    except StoreDamaged:
        return None


def waited_for(item: Item) -> tuple[str, ...]:
    """The keys that a listed wait is for."""
    found = decode_wait(item)
    return (found.wants,) if isinstance(found, UnqueuedWait) else found


def decode_keys(item: Item) -> tuple[str, ...]:
    """An item that is a list of keys."""
    return decoded(_KEYS, item)


def with_bytes(item: Item) -> Item:
    """The item with its value as bytes: a SQLite file that was edited by hand may hold text."""
    if type(item.value) is bytes:
        return item
    return msgspec.structs.replace(item, value=str(item.value).encode("utf-8", "replace"))
