"""Bytes, hashes and ids.

State is JSON, encoded from typed structs, so that a person can read a store with any tool.
What is hashed or signed is always the exact bytes that were stored, never a re-encoding.

An id is a UUIDv7 (48 bits of wall-clock milliseconds, 74 random bits) in hex behind a prefix that
says what it is.  Ids say roughly when; the order of events is the revision's job.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from interlock.errors import StoreDamaged

if TYPE_CHECKING:
    from typing import Protocol

    class StoredItem(Protocol):
        """An item of a store."""

        @property
        def key(self) -> str:
            """Its key."""

        @property
        def value(self) -> bytes:
            """Its bytes."""


try:
    if sys.version_info >= (3, 12):
        from _sha2 import sha256 as _small_sha256
    else:
        from _sha256 import sha256 as _small_sha256  # type: ignore[import-not-found]  # builtin
except ImportError:  # a Python built without them
    from hashlib import sha256 as _small_sha256

encode = msgspec.json.Encoder(decimal_format="number").encode

T = TypeVar("T")

UNREADABLE = (ValueError, TypeError, RecursionError)
"""What decoding raises where bytes are not what they should be: no JSON, another shape, no UTF-8
(which is found late, and is a plain ValueError), text where bytes should stand, nested too deep."""

_in_order = msgspec.json.Encoder(order="deterministic").encode


class Decoder(Generic[T]):
    """A JSON decoder for a type, built when it is first used: a cold command needs few of them."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind

    @cached_property
    def decode(self) -> Callable[[bytes], T]:
        """Decode bytes; see ``UNREADABLE``."""
        return msgspec.json.Decoder(self._kind).decode

    def read(self, item: StoredItem) -> T:
        """The value of an item; StoreDamaged if it does not read as this type."""
        try:
            return self.decode(item.value)
        except UNREADABLE as error:
            raise unreadable(item, error) from error

    def read_if_present(self, item: StoredItem | None) -> T | None:
        """The value of an item, if there is one."""
        return None if item is None else self.read(item)


def unreadable(item: StoredItem, error: Exception) -> StoreDamaged:
    """The error for an item that cannot be decoded."""
    from interlock.core import keys

    derived = item.key.startswith(keys.DERIVED)
    then = "run 'interlock maintain'" if derived else "restore a copy of the store"
    return StoreDamaged(f"{item.key} does not read as what it should be ({error}); {then}")


RANDOM_BYTES = 10
"""What an id needs."""

_left = 8
"""How many more are hashed by the plain function."""
_sha256: Callable[[bytes], Any] = _small_sha256


def digest(data: bytes) -> str:
    """SHA-256 in hex.

    A command hashes twice and ends; hashlib, which loads OpenSSL, would be a tenth of its time.
    So the first few go to the plain function that comes with Python, and only a process that
    hashes more pays for the quick one.
    """
    if _left:
        _count_down()
    return _sha256(data).hexdigest()  # type: ignore[no-any-return]


def _count_down() -> None:
    global _left, _sha256  # noqa: PLW0603 - the choice of function depends on no caller
    _left = max(0, _left - 1)
    if not _left:
        try:
            from hashlib import sha256
        except OSError:  # there is no free file descriptor: a later call may find one
            _left = 1
        else:
            _sha256 = sha256


def canonical(data: bytes) -> bytes:
    """JSON with its keys in order, so that equal values have equal bytes."""
    return _in_order(msgspec.json.decode(data))


def make_id(prefix: str, milliseconds: int, randomness: bytes) -> str:
    """A fresh id from a moment and ten random bytes."""
    return f"{prefix}_{milliseconds:012x}{id_tail(randomness)}"


def id_tail(randomness: bytes) -> str:
    """The part of an id behind its moment, from ten random bytes."""
    tail = randomness.hex()
    variant = "89ab"[randomness[2] & 3]
    return f"7{tail[:3]}{variant}{tail[5:20]}"
