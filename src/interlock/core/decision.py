"""What a pure function returns: an outcome, the writes that make it true, and how to record it.

A decision without writes and without a verb changes nothing and needs no commit.
"""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar

from msgspec import Struct

T_co = TypeVar("T_co", covariant=True)


class Outcome(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="outcome", gc=False):
    """An answer as the user sees it; the tag is the word in the JSON field "outcome"."""

    exit_status: ClassVar[int] = 0


class Event(Struct, frozen=True, omit_defaults=True, gc=False):
    """Something that watchers care about, in words that stay the same for ever.

    ``thing`` is left out where it is the thing of the whole entry.
    """

    name: str
    agent: str
    thing: str = ""


class Write(Struct, frozen=True, gc=False):
    """A value to stand under a key; with a ttl the key is a liveness key."""

    key: str
    value: object
    ttl: float | None = None


class Decision(Struct, Generic[T_co], frozen=True, kw_only=True, gc=False):
    """An outcome with the writes that make it true, committed together or not at all.

    ``reads`` are keys that the commit is to bring back; only engines across a network do.
    """

    outcome: T_co
    verb: str = ""
    thing: str = ""
    puts: tuple[Write, ...] = ()
    deletes: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    quiet: bool = False
    reads: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether there is anything to commit."""
        return bool(self.verb or self.puts or self.deletes)
