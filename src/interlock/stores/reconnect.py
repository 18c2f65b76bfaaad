"""When a client may connect again: one attempt at a time, and pauses that grow.

A client has several connections: of its threads, of its event loops, and of what waits.  While the
server is away all of them together try it once after each pause; the others fail at once, and ask
again soon.  So a dead server, and a proxy that resets what it accepts, gets few connections.

A pause is at most a quarter of the outage so far: what waits is late by little.  Only the answer to
a request ends the outage, not a connection: a proxy may accept what it cannot serve.
"""

from __future__ import annotations

import random
import threading
import time

from interlock.stores.network import CONNECT, REPLY, Unsent

FIRST = 0.05
"""Seconds before the second attempt; then twice as many each time, up to ``SOON``."""
SOON = 0.75
LONGEST = 5.0
SHARE = 4
"""Beyond ``SOON`` a pause is this part of the outage so far."""
ABANDONED = CONNECT + REPLY
"""Seconds after which an attempt without a result keeps no other one waiting."""


class Reconnects:
    """The attempts of one client to reach its server, or one of several in turn."""

    def __init__(self, endpoints: int = 1) -> None:
        self.away = False
        """Whether the server did not answer since the last failure."""
        self._endpoints = endpoints
        self._lock = threading.RLock()  # a signal handler may call, too
        self._why = ""
        self._since = self._failed = float("-inf")
        self._next = 0.0
        self._count = 0

    def attempt(self) -> None:
        """Begin to connect; Unsent if another attempt is under way, or the pause is not over."""
        with self._lock:
            if self.away:
                now = time.monotonic()
                if now < self._next:
                    raise Unsent(self._why)
                self._next = now + ABANDONED

    def fail(self, began: float, why: str) -> None:
        """A connection that was begun at this moment failed.

        One that is older than the last failure says nothing new: connections fail together.
        """
        with self._lock:
            if began < self._failed:
                return
            self._failed = now = time.monotonic()
            if not self.away:
                self.away, self._since, self._count = True, now, 0
            self._why = why
            self._count += 1
            rounds, rest = divmod(self._count, self._endpoints)
            pause = 0.0 if rest else _pause(rounds, now - self._since)
            self._next = now + pause

    def succeed(self) -> None:
        """A request was answered: others may connect."""
        self.away = False


def _pause(attempts: int, outage: float) -> float:
    """Seconds until the next attempt, by chance somewhat less, so that a fleet spreads."""
    grown = max(SOON, min(outage / SHARE, LONGEST))
    doubled = FIRST * (1 << min(attempts - 1, 10))
    return min(doubled, grown) * random.uniform(0.7, 1.0)  # noqa: S311 - spreading, not hiding
