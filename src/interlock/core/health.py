"""Problems that need attention, as values; ``runtime/health.py`` finds them."""

from __future__ import annotations

from typing import ClassVar, Literal

from msgspec import Struct

from interlock.core.outcomes import Listing


class Patience(Struct, frozen=True, kw_only=True):
    """How long is too long, in seconds."""

    dead_after: float = 300.0
    waiting: float = 3600.0
    held: float = 3600.0
    stuck: float = 3600.0


class Problem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem that needs attention: the thing, the agent, since when, and what to do."""

    kind: Literal[
        "dead",
        "silent",
        "stale",
        "stuck",
        "waiting",
        "deadlock",
        "record",
        "overdue",
        "unable",
        "unattended",
        "blocked",
        "dead_letter",
        "failed",
        "leftover",
        "unfinished",
        "unread",
        "full",
        "paused",
        "undecided",
        "damaged",
    ]
    says: str
    remedy: str = ""
    thing: str = ""
    agent: str = ""
    since: float | None = None


class Health(Listing[Problem], frozen=True, kw_only=True):
    """All problems; ``partial`` if the store has more than one pass reads."""

    exit_statuses: ClassVar[str] = "0 or 1"
    listed = "problems"

    healthy: bool
    problems: tuple[Problem, ...]
    partial: bool = False

    def __bool__(self) -> bool:
        """Whether there is no problem."""
        return self.exit_status == 0

    @property
    def exit_status(self) -> int:
        """1 if there is a problem."""
        return 0 if self.healthy else 1
