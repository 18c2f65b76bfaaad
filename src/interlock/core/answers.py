"""Answers that mean the same for every noun, whatever else each of them says.

``isinstance(outcome, interlock.Acquired)`` is true for a lock, for slots and for several at once.
"""

from __future__ import annotations

from interlock.core.decision import Outcome


class Granted(Outcome, frozen=True, kw_only=True):
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


class Busy(Outcome, frozen=True, kw_only=True):
    """Somebody else has it, or came before."""

    exit_status = 1


class Deadlock(Outcome, frozen=True, kw_only=True):
    """Waiting would never end: ``cycle`` names who waits for each other, beginning with you."""

    exit_status = 1


class Fenced(Outcome, frozen=True, kw_only=True):
    """Your grant is over."""

    exit_status = 1


class NotOwner(Outcome, frozen=True, kw_only=True):
    """You do not have it, and never did."""

    exit_status = 1


class Released(Outcome, frozen=True, kw_only=True):
    """It was yours and is not any more."""


class Waiting(Outcome, frozen=True, kw_only=True):
    """In the queue."""

    exit_status = 1


class Gone(Outcome, frozen=True, kw_only=True):
    """Not in the queue any more, and without what it was for."""

    exit_status = 1
