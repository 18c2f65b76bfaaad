"""Keeps things alive, and knows in time when it failed to.

A lease that was renewed by a request sent at time t lives at least until t + ttl by the store's
clock, whatever became of the answer.  So its holder may work until t + ttl - margin by its own
monotonic clock, and must stop then, before anybody else can start.  The keeper renews all leases
of a client in one quiet commit, every third of the shortest ttl.

It does no I/O of its own: ``beat`` is an operation, and a thread (blocking) or a task (async)
drives it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from interlock.clock import Clock
from interlock.core.decision import Write
from interlock.services.session import Sessions
from interlock.services.steps import Op

BEATS_PER_TTL = 3
IDLE = 3600.0


def margin(ttl: float) -> float:
    """How long before the end the holder stops, so that its work is over in time."""
    return min(max(ttl / 10, 0.05), 2.0)


class Lease:
    """Something that must not lapse while we rely on it."""

    def __init__(
        self, keeper: Keeper, write: Write, sent: float, *, renewable: bool, seconds: float
    ) -> None:
        self.write = write
        self.renewable = renewable
        self.lost = threading.Event()
        self._keeper = keeper
        self._seconds = seconds
        self._sent = sent

    @property
    def ends(self) -> float:
        """The monotonic moment at which work that relies on it must be over."""
        return self._sent + self._seconds - margin(self._seconds)

    @property
    def due(self) -> float:
        """The monotonic moment of the next renewal."""
        return self._sent + self._seconds / BEATS_PER_TTL

    def renewed(self, sent: float) -> None:
        """A renewal sent at this moment succeeded."""
        self._sent = max(self._sent, sent)

    def alive(self) -> bool:
        """Whether we may still rely on it."""
        return not self.lost.is_set() and self._keeper.clock.monotonic() < self.ends


class Keeper:
    """All leases of one client."""

    def __init__(self, sessions: Sessions, clock: Clock) -> None:
        self.clock = clock
        self._sessions = sessions
        self._guard = threading.Lock()
        self._leases: list[tuple[Lease, Callable[[], None]]] = []

    def keep(
        self,
        write: Write,
        sent: float,
        on_lost: Callable[[], None] = lambda: None,
        *,
        renewable: bool = True,
    ) -> Lease:
        """Keep this alive from now on; ``sent`` is when the request that put it was sent."""
        lease = Lease(self, write, sent, renewable=renewable, seconds=write.ttl or 0.0)
        with self._guard:
            self._leases.append((lease, on_lost))
        return lease

    def drop(self, lease: Lease) -> None:
        """Rely on it no more."""
        with self._guard:
            self._leases = [pair for pair in self._leases if pair[0] is not lease]

    def wait(self) -> float:
        """Seconds until the next renewal is due."""
        with self._guard:
            dues = [lease.due for lease, _ in self._leases if lease.renewable]
        return max(0.0, min(dues) - self.clock.monotonic()) if dues else IDLE

    def time_left(self) -> float:
        """Seconds until the first lease must be given up."""
        with self._guard:
            ends = [lease.ends for lease, _ in self._leases if not lease.lost.is_set()]
        return max(0.0, min(ends) - self.clock.monotonic()) if ends else IDLE

    def beat(self) -> Op[None]:
        """Renew everything; what the store no longer knows is lost."""
        with self._guard:
            leases = [pair for pair in self._leases if pair[0].renewable and pair[0].alive()]
        if not leases:
            return
        sent = self.clock.monotonic()
        alive = yield from self._sessions.renew(tuple(lease.write for lease, _ in leases))
        for lease, on_lost in leases:
            if lease.write.key in alive:
                lease.renewed(sent)
            else:
                self._lose(lease, on_lost)

    def expire(self) -> None:
        """Give up every lease whose time is over."""
        now = self.clock.monotonic()
        with self._guard:
            over = [pair for pair in self._leases if pair[0].ends <= now]
        for lease, on_lost in over:
            self._lose(lease, on_lost)

    def _lose(self, lease: Lease, on_lost: Callable[[], None]) -> None:
        with self._guard:
            if lease.lost.is_set() or all(kept is not lease for kept, _ in self._leases):
                return
            lease.lost.set()
        on_lost()
