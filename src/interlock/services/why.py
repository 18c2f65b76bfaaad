"""Why something does not go on: what blocks it, who can clear it, since when."""

from __future__ import annotations

from msgspec import Struct

from interlock.core.session import Session
from interlock.driving import Op
from interlock.services.lock import Locks, Shown
from interlock.services.semaphore import Semaphores
from interlock.services.semaphore import Shown as SemaphoreShown
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

    def __init__(self, locks: Locks, semaphores: Semaphores, sessions: Sessions) -> None:
        self._locks = locks
        self._semaphores = semaphores
        self._sessions = sessions

    def lock(self, name: str) -> Op[Why]:
        """What keeps this lock from the next one who asks."""
        shown: Shown = yield from self._locks.show(name)
        thing = f"lock/{name}"
        if shown.state == "free":
            return Why(thing=thing, blocked=False, because="free", clear="acquire it")
        if shown.state == "reserved":
            return _reserved(thing, shown)
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

    def semaphore(self, name: str) -> Op[Why]:
        """What keeps a slot of this semaphore from the next one who asks."""
        shown = yield from self._semaphores.show(name)
        thing = f"sem/{name}"
        if not isinstance(shown, SemaphoreShown):
            return Why(
                thing=thing,
                blocked=False,
                because="there is no such semaphore yet",
                clear=f"acquire it with a capacity: interlock sem acquire {name} --capacity N",
            )
        because, clear, blocked = _slots(shown)
        holders = [slots for slots in shown.holders if slots.state == "held"]
        lives = [slots.expires_in for slots in holders if slots.expires_in is not None]
        return Why(
            thing=thing,
            blocked=blocked,
            because=because,
            clear=clear,
            by=", ".join(dict.fromkeys(slots.holder for slots in holders)),
            since=min((slots.since for slots in holders if slots.since), default=None),
            expires_in=min(lives, default=None),
            waiters=tuple(waiter.agent for waiter in shown.waiters),
        )


def _reserved(thing: str, shown: Shown) -> Why:
    first = shown.waiters[0]
    return Why(
        thing=thing,
        blocked=True,
        because=f"kept for {first}, who waits for something else as well",
        clear=f"{first} gets all that it waits for, or gives up",
        by=first,
        waiters=shown.waiters,
    )


def _slots(shown: SemaphoreShown) -> tuple[str, str, bool]:
    """Why there is no slot, what clears that, and whether there is none."""
    taken = f"{shown.available} of {shown.capacity} slots are free"
    stale = [slots for slots in shown.holders if slots.state == "stale"]
    if stale:
        return (
            f"{taken}, and {stale[0].holder} is stale",
            "acquire, or run 'interlock maintain'",
            False,
        )
    if shown.waiters:
        first = shown.waiters[0]
        because = f"{taken}, and {first.agent} waits for {first.weight} before you"
        return because, "those who hold release, and those who wait are served", True
    if shown.available:
        return taken, "acquire them", False
    names = ", ".join(f"{slots.holder} ({slots.weight})" for slots in shown.holders[:5])
    return f"all {shown.capacity} slots are held: {names}", "one of them releases, or lapses", True


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
