"""Answers that mean the same for every noun, whatever else each of them says.

A word that several nouns answer with (the JSON field "outcome") is one class here, called after it,
and each noun has its own form of it below that.  So ``case interlock.Full():`` is right for slots
and for an inbox alike, and ``case interlock.InboxFull():`` means the inbox alone.  No two outcomes
of the product have the same name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Generic, Literal, TypeAlias, TypeVar

from msgspec import Struct, field

from interlock.core.decision import Outcome, Refusal, Success

What: TypeAlias = Literal["agent", "message", "query", "decision"]
"""What can be unknown."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


def always(word: T) -> T:
    """The value of a field that is the same for all of a class, and yet stands in its JSON."""
    made: T = field(default_factory=lambda: word)  # a plain default would be left out
    return made


class Listing(Struct, Generic[T_co], frozen=True, kw_only=True):
    """Several things in their order, under the name ``listed``: iterate over it, or take its len.

    Its JSON has their ``count`` beside them.  Without any it is false in a condition, unless it is
    an answer that says yes or no by itself.
    """

    listed: ClassVar[str]
    also_in_json: ClassVar[tuple[str, ...]] = ("count",)

    def __iter__(self) -> Iterator[T_co]:
        """The things."""
        return iter(getattr(self, self.listed))

    def __len__(self) -> int:
        """How many they are."""
        return len(getattr(self, self.listed))

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self)


class Granted(Success, frozen=True, kw_only=True):
    """It is yours: now, or it already was.

    Each noun declares these for itself: the order of its fields is that of its JSON.
    """

    @property
    def holder(self) -> str:
        """In whose name."""
        raise NotImplementedError

    @property
    def token(self) -> int | None:
        """The fencing token."""
        raise NotImplementedError

    @property
    def expires_in(self) -> float | None:
        """How long it lives at least."""
        raise NotImplementedError

    @property
    def grant(self) -> str:
        """Its id."""
        raise NotImplementedError


class Acquired(Granted, frozen=True, kw_only=True):
    """It is yours."""


class Extended(Granted, frozen=True, kw_only=True):
    """You had it and keep it."""


class Busy(Refusal, frozen=True, kw_only=True):
    """Somebody else has it, or came before."""


class Full(Refusal, frozen=True, kw_only=True):
    """There is no room: too few slots are left, or too many messages wait."""


class Deadlock(Refusal, frozen=True, kw_only=True):
    """Waiting would never end: ``cycle`` names who waits for each other, beginning with you.

    Who holds something under another name than that under which it waits is named by both.
    """


class Fenced(Refusal, frozen=True, kw_only=True):
    """Your grant is over."""

    counted = True


class GivenFenced(Fenced, frozen=True, kw_only=True, tag="fenced"):
    """A grant that this relies on (``given``) is over: nothing was changed."""

    given: str
    token: int | None = None


class Broken(Success, frozen=True, kw_only=True):
    """An operator ended the grant of somebody."""


class NotOwner(Refusal, frozen=True, kw_only=True):
    """You do not have it, and never did."""

    counted = True


class Released(Success, frozen=True, kw_only=True):
    """It was yours and is not any more."""


class Waiting(Refusal, frozen=True, kw_only=True):
    """In the queue."""


class Gone(Refusal, frozen=True, kw_only=True):
    """Not in the queue any more, and without what it was for."""


class Exists(Outcome, frozen=True, kw_only=True):
    """There is one of this name or id already, and it stays as it is."""


class Nothing(Refusal, frozen=True, kw_only=True):
    """There is none."""


class Unknown(Refusal, frozen=True, kw_only=True):
    """There is none of these names or ids (``unknown``); ``what`` says what they would be."""

    what: What
    unknown: tuple[str, ...]


class Away(Refusal, frozen=True, kw_only=True):
    """Nobody is there now."""


class Cancelled(Success, frozen=True, kw_only=True):
    """It was called off."""


class Paused(Outcome, frozen=True, kw_only=True):
    """An agent may not send for now."""
