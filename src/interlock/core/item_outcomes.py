"""Outcomes that several nouns share, about the things that they keep; see ``outcomes.py``."""

from __future__ import annotations

from interlock.core.decision import Outcome, Refusal, Success


class Allowed(Success, frozen=True, kw_only=True):
    """It is allowed from now on."""


class Denied(Success, frozen=True, kw_only=True):
    """It is not allowed any more."""


class Defined(Success, frozen=True, kw_only=True):
    """The definitions are in the store."""


class Answered(Success, frozen=True, kw_only=True):
    """The answer to a question or to a request."""


class Full(Refusal, frozen=True, kw_only=True):
    """There is no room: too few slots are left, or too many messages wait."""

    http_status = 429


class Exists(Outcome, frozen=True, kw_only=True):
    """There is one of this name or id already, and it stays as it is."""


class Away(Refusal, frozen=True, kw_only=True):
    """No agent is there now."""


class Cancelled(Success, frozen=True, kw_only=True):
    """It was cancelled."""


class Completed(Success, frozen=True, kw_only=True):
    """It is complete."""


class Failed(Outcome, frozen=True, kw_only=True):
    """It failed."""


class Paused(Outcome, frozen=True, kw_only=True):
    """An agent may not send for now, or a schedule publishes nothing for now."""


class Resumed(Success, frozen=True, kw_only=True):
    """An agent may send again, or a schedule goes on."""


class Dropped(Success, frozen=True, kw_only=True):
    """It is deleted."""
