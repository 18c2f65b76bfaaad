"""Answers that mean the same for every noun, whatever else each of them says.

``isinstance(outcome, interlock.Acquired)`` is true for a lock, for slots and for several at once.
"""

from __future__ import annotations

from interlock.core.decision import Outcome


class Acquired(Outcome, frozen=True, kw_only=True):
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
