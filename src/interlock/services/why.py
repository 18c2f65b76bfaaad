"""Why something does not go on: what blocks it, who can clear it, since when."""

from __future__ import annotations

from msgspec import Struct

from interlock.core.session import Session
from interlock.driving import Op
from interlock.services.lock import Locks, Shown
from interlock.services.session import Sessions

_MINUTES = 120


class Why(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An explanation for a person, with its parts for a program."""

    thing: str
    blocked: bool
    because: str
    clear: str
    by: str = ""
    since: float | None = None
    expires_in: float | None = None
    waiters: tuple[str, ...] = ()


class Explain:
    """Explanations, as generators for a driver."""

    def __init__(self, locks: Locks, sessions: Sessions) -> None:
        self._locks = locks
        self._sessions = sessions

    def lock(self, name: str) -> Op[Why]:
        """What keeps this lock from the next one who asks."""
        shown: Shown = yield from self._locks.show(name)
        thing = f"lock/{name}"
        if shown.state == "free":
            return Why(thing=thing, blocked=False, because="free", clear="acquire it")
        session = yield from self._sessions.find(shown.session)
        because, clear = _stale(shown) if shown.state == "stale" else _held(shown, session)
        return Why(
            thing=thing,
            blocked=shown.state == "held",
            because=because,
            clear=clear,
            by=shown.holder,
            since=shown.since,
            expires_in=shown.expires_in,
            waiters=shown.waiters,
        )


def _stale(shown: Shown) -> tuple[str, str]:
    because = f"{shown.holder} stopped beating and its grant {shown.token} is stale"
    return because, "acquire it, or run 'interlock maintain'"


def _held(shown: Shown, session: Session | None) -> tuple[str, str]:
    where = f" (process {session.pid} on {session.host})" if session else ""
    queue = f", {len(shown.waiters)} wait" if shown.waiters else ""
    because = f"held by {shown.holder}{where} with token {shown.token}{queue}"
    span = _words(shown.expires_in)
    return because, f"{shown.holder} releases it, or does not renew it for {span}"


def _words(seconds: float | None) -> str:
    """A span of time as a person says it."""
    left = seconds or 0.0
    return f"{left:.0f} s" if left < _MINUTES else f"{left / 60:.0f} min"
