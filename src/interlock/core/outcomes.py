"""Outcomes that several nouns share.

A word that several nouns answer with (the JSON field "outcome") is one class here, with the name of
the word, and each noun has its own subclass.  So ``case interlock.Full():`` matches slots and
inboxes, and ``case interlock.InboxFull():`` the inbox alone.  No two outcomes have the same name.

Here are those about grants, waits and missing things; ``item_outcomes.py`` has the others, which
the commands for locks need not import.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Generic, Literal, TypeVar

from msgspec import Struct, field

from interlock.core.decision import Refusal, Success

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


def always(word: T) -> T:
    """A constant field of a class that is still written to its JSON."""
    made: T = field(default_factory=lambda: word)  # a plain default would be left out
    return made


class Listing(Struct, Generic[T_co], frozen=True, kw_only=True):
    """An ordered list of things in the field ``listed``: iterate over it, or take its len.

    Its JSON also has their ``count``.  An empty one is false in a condition, unless it is an
    outcome that is true or false by itself.
    """

    listed: ClassVar[str]
    also_in_json: ClassVar[tuple[str, ...]] = ("count",)

    def __iter__(self) -> Iterator[T_co]:
        """The things."""
        return iter(getattr(self, self.listed))

    def __len__(self) -> int:
        """Their number."""
        return len(getattr(self, self.listed))

    @property
    def count(self) -> int:
        """Their number."""
        return len(self)


class Granted(Success, frozen=True, kw_only=True):
    """It is yours: now, or it already was.

    Each noun declares these for itself: the order of its fields is that of its JSON.
    """

    @property
    def holder(self) -> str:
        """The holder."""
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
    """Another client has it, or queued earlier."""


class Deadlock(Refusal, frozen=True, kw_only=True):
    """The wait would never end: ``cycle`` names the waiters, beginning with the caller.

    A waiter that holds under another name is named by both.
    """


class Fenced(Refusal, frozen=True, kw_only=True):
    """Your grant is over."""

    counted = True


class GivenFenced(Fenced, frozen=True, kw_only=True, tag="fenced"):
    """A grant that this relies on (``given``) is over: nothing was changed."""

    given: str
    token: int | None = None


class Broken(Success, frozen=True, kw_only=True):
    """An operator ended the grant of a holder."""


class NotOwner(Refusal, frozen=True, kw_only=True):
    """You do not have it, and never did."""

    counted = True


class Released(Success, frozen=True, kw_only=True):
    """It was yours and is not any more.

    ``later``: a signal handler, or a finaliser, released a grant inside of another call of its
    thread, and the background thread does it as soon as that call has returned.
    """

    later: bool = False


class Waiting(Refusal, frozen=True, kw_only=True):
    """In the queue."""


class Gone(Refusal, frozen=True, kw_only=True):
    """Not in the queue any more, and without what it was for."""


class Nothing(Refusal, frozen=True, kw_only=True):
    """There is none."""

    http_status = 404


class Unknown(Refusal, frozen=True, kw_only=True):
    """There is none of these names or ids (``unknown``); ``what`` says what they would be."""

    http_status = 404

    what: Literal[
        "agent",
        "message",
        "query",
        "decision",
        "pipeline",
        "definition",
        "swarm",
        "request",
        "quarantine",
        "schedule",
        "merge",
        "budget",
        "shared value",
    ]
    unknown: tuple[str, ...]


class Blocked(Refusal, frozen=True, kw_only=True):
    """It cannot go on yet; it has a ``reason``."""


class GuardBlocked(Blocked, frozen=True, kw_only=True, tag="blocked"):
    """A guard does not let the ``thing`` be acquired, begun or completed now.

    ``result`` says whether the guard failed or is unknown; ``leaf`` is the condition that decides
    that, and ``acts`` would clear it.  ``action`` is what the guard asks for: to wait (``block``),
    to retry after ``retry_in`` seconds, or to fail with a ``message``.
    """

    own_words = ("reason",)

    thing: str
    guard: str
    result: Literal["failed", "unknown"]
    leaf: str
    reason: str
    action: Literal["block", "retry", "fail"]
    acts: tuple[str, ...] = ()
    message: str = ""
    retry_in: float | None = None


class NoGuard(Nothing, frozen=True, kw_only=True, tag="nothing"):
    """The store has no guard of this name."""

    guard: str
