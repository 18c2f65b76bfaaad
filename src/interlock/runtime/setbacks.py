"""What fails in the background is logged once, and keeps nothing else from being done.

A pass of the keeper has several parts, and each is tried although another one failed: a damaged
item of one grant must not end the renewals of the others.  Only while the store does not answer the
pass ends, since every part would wait for it.

After a pass in which something failed, the next one comes after a pause, which grows, as across a
network: on a local store a failed commit takes no time, and each takes the turn of other processes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from interlock.clock import Clock
from interlock.errors import OutcomeUnknown, StoreAway, StoreBusy, StoreClosed, StoreMoving
from interlock.steps import Op

T = TypeVar("T")

FIRST, LONGEST = 0.1, 0.5
"""Seconds until the next pass: after the first one in which something failed, and after many."""
NO_ANSWER = (StoreAway, StoreBusy, OutcomeUnknown)
"""The store does not answer, or not now: the next attempt would wait as long."""


class Setbacks:
    """What fails at the moment, and when the next attempt is due."""

    def __init__(self, clock: Clock, outage: Callable[[], str]) -> None:
        self._clock = clock
        self._outage = outage
        self._failing: dict[str, str] = {}
        self._failed = False
        """Whether something failed in this pass."""
        self._passes = 0
        """Passes in a row in which something failed."""
        self._next = float("-inf")

    @property
    def trouble(self) -> str:
        """What fails, and why; empty while all goes well."""
        return "; ".join([f"{what}: {why}" for what, why in tuple(self._failing.items())])

    def wait(self, longest: float) -> float:
        """Seconds until the next pass, so many at most."""
        return min(self._next - self._clock.monotonic(), longest)

    def attempt(self, what: str, work: Op[T]) -> Op[T | None]:
        """Do one part; what fails is noted, and raised only while the store does not answer."""
        try:
            done = yield from work
        except NO_ANSWER as error:
            self._note(what, error)
            raise
        except Exception as error:  # noqa: BLE001 - the other parts go on
            self._note(what, error)
            return None
        self._failing.pop(what, None)
        return done

    def forget(self, what: str) -> None:
        """It is no longer done."""
        self._failing.pop(what, None)

    def end_pass(self) -> None:
        """All parts were tried, or the store did not answer."""
        self._passes = self._passes + 1 if self._failed else 0
        self._failed = False
        pause = min(FIRST * 2 ** min(self._passes - 1, 10), LONGEST) if self._passes else 0.0
        self._next = self._clock.monotonic() + pause

    def _note(self, what: str, error: Exception) -> None:
        why = str(error) or repr(error)
        self._failed = True
        new, self._failing[what] = self._failing.get(what) != why, why
        # A store logs its outage itself, the calls that wait for the end of a copy say so, and a
        # client that closes may close the store in the midst.
        if new and not (self._outage() or isinstance(error, StoreClosed | StoreMoving)):
            import logging

            logging.getLogger("interlock").warning(
                "%s failed, and will be tried again: %s", what, why
            )
