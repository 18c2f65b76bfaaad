"""What is read of a record to judge it, and what is remembered: as little as will do."""

from __future__ import annotations

from typing import Protocol

import msgspec
from msgspec import Struct


class Stored(Protocol):
    """What a store gives for an entry: its place, its bytes, and the stamp beside them."""

    @property
    def key(self) -> str:
        """``log/`` and the id."""

    @property
    def value(self) -> bytes:
        """The bytes that are hashed."""

    @property
    def created(self) -> int:
        """When it was first written: its place in the order."""

    @property
    def revision(self) -> int:
        """When it was last written, which is the same."""

    @property
    def hash(self) -> str:
        """What its bytes are said to hash to."""


class Lean(Struct, gc=False):
    """An entry, as far as it can be judged."""

    id: str = ""
    writer: str = ""
    on: int = 0
    after: tuple[str, ...] = ()
    saw: dict[str, str | None] = {}
    put: dict[str, str] = {}
    deleted: tuple[str, ...] = ()


class Known(Struct, gc=False):
    """An entry that was read: ``vouched`` if another one, or an item, carries its hash."""

    revision: int
    id: str
    hash: str
    vouched: bool = False
    undone: bool = False


class Open(Struct, gc=False):
    """A link to a hash that was not met: who has it, and who stands where it should lead."""

    revision: int
    key: str
    instead: Known | None


decode = msgspec.json.Decoder(Lean).decode
