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
    """An entry that was read: ``vouched`` if another one, or an item, carries its hash.

    It is the ``number``-th of its writer since the beginning or a gap; ``linked`` by its writer.
    """

    revision: int
    id: str
    hash: str
    number: int = 0
    vouched: bool = False
    linked: bool = False
    undone: bool = False


class Open(Struct, gc=False):
    """A link to a hash that was not met: who has it, and who stands where it should lead."""

    revision: int
    key: str
    instead: Known | None


class Doubt(Struct, gc=False):
    """A link that may lead to before a gap, of an entry that is not the first of its writer."""

    link: str
    known: Known
    before: Known

    @property
    def founded(self) -> bool:
        """Whether an entry is missing in between: it alone would have linked the one before."""
        return self.known.linked and not self.before.linked


decode = msgspec.json.Decoder(Lean).decode
