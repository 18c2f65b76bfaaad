"""Keeps things alive, and knows in time when it failed to.

A lease that was renewed by a request sent at time t lives at least until t + ttl by the store's
clock, whatever became of the answer.  So its holder may work until t + ttl - margin by its own
monotonic clock, and must stop then, before anybody else can start.  The keeper renews all leases
of a client in one quiet commit, twice and a half in the shortest ttl: there is time for a second
try, and 500 idle agents with 30 s each cost their engine 42 requests a second.

A live session does not prove that a grant is still there: an engine that lost its last commits, a
restored copy, or whoever released with our token may have taken it.  So each beat also looks at
the locks and slots that we hold.

It does no I/O of its own: ``beat`` is an operation, and a thread (blocking) or a task (async)
drives it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from msgspec import Struct

from interlock.clock import Clock
from interlock.core import keys
from interlock.core.decision import Write
from interlock.drivers import Op
from interlock.nouns.agents.session_service import Sessions
from interlock.nouns.grants.pool import BreakNote
from interlock.nouns.grants.service import GrantService
from interlock.runtime.housekeeping import Housekeeping
from interlock.runtime.identity import Actor
from interlock.runtime.steps import Read

BEATS_PER_TTL = 2.5
IDLE = 3600.0
SOON = 0.5
LOOK = 0.4
"""How often to look for a lease that ends: sooner than the shortest one can, margin included."""


def margin(ttl: float, allow: Callable[[float], float] = float) -> float:
    """How long before the end the holder stops, so that its work is over in time.

    ``allow`` makes a time limit long enough for a slow engine.
    """
    return min(max(ttl / 10, allow(0.05)), allow(2.0))


class Lease:
    """Something that must not lapse while we rely on it."""

    def __init__(
        self, clock: Clock, write: Write, sent: float, *, renewable: bool, margin: float
    ) -> None:
        self.write = write
        self.renewable = renewable
        self.lost = False
        self.listeners: list[Callable[[], None]] = []
        self._clock = clock
        self._seconds = write.ttl or 0.0
        self._margin = margin
        self._sent = sent

    @property
    def ends(self) -> float:
        """The monotonic moment at which work that relies on it must be over."""
        return self._sent + self._seconds - self._margin

    @property
    def due(self) -> float:
        """The monotonic moment of the next renewal."""
        return self._sent + self._seconds / BEATS_PER_TTL

    def renewed(self, sent: float) -> None:
        """A renewal sent at this moment succeeded."""
        self._sent = max(self._sent, sent)

    def alive(self) -> bool:
        """Whether we may still rely on it."""
        return not self.lost and self._clock.monotonic() < self.ends

    def lose(self) -> None:
        """It is over: tell everybody who relies on it, once."""
        if not self.lost:
            self.lost = True
            for listener in tuple(self.listeners):
                listener()


class WatchedGrant(Struct, frozen=True, eq=False):
    """A grant that we rely on, and who must know if the store no longer has it.

    ``notes`` are the keys where an operator who ends it says why.
    """

    keys: tuple[str, ...]
    grant: str
    notes: tuple[str, ...]
    lose: Callable[[BreakNote | None], None]


class BackgroundJob(Protocol):
    """Something to be done now and then where nobody waits for it."""

    def wait(self) -> float:
        """Seconds until it is due."""

    def run(self) -> Op[None]:
        """Do a bounded part of it; whatever fails is not due again at once."""

    def finish(self, trouble: str) -> Op[None]:
        """The client closes: do what must not be lost, unless the store is in trouble."""


class Keeper:
    """All leases of one client, and the grants that it holds."""

    def __init__(
        self,
        sessions: Sessions,
        grants: GrantService,
        clock: Clock,
        trouble: Callable[[], str],
        missing: Callable[[], bool],
        *,
        allow: Callable[[float], float] = float,
    ) -> None:
        self._clock = clock
        self._trouble = trouble
        self._missing = missing
        self._allow = allow
        self._sessions = sessions
        self._grants = grants
        self._tried = float("-inf")
        self.housekeeping: Housekeeping | None = None
        """What we do for the record now and then, where nobody waits for it."""
        self.jobs: tuple[BackgroundJob, ...] = ()
        """What else there is to do, likewise."""
        self._guard = threading.Lock()
        self._leases: tuple[Lease, ...] = ()
        self._watched: tuple[WatchedGrant, ...] = ()
        grants.on_abandoned_grant = self.drop_grant

    def keep(self, write: Write, sent: float, *, renewable: bool = True) -> Lease:
        """Keep this alive from now on; ``sent`` is when the request that put it was sent."""
        before = margin(write.ttl or 0.0, self._allow)
        lease = Lease(self._clock, write, sent, renewable=renewable, margin=before)
        with self._guard:
            self._leases = (*self._leases, lease)
        return lease

    def drop(self, lease: Lease) -> None:
        """Rely on it no more."""
        with self._guard:
            self._leases = tuple(kept for kept in self._leases if kept is not lease)

    def drop_grant(self, grant: str) -> None:
        """Rely no more on whatever belongs to a grant."""
        own = (keys.live(grant), keys.max_hold(grant))
        with self._guard:
            self._leases = tuple(kept for kept in self._leases if kept.write.key not in own)
            self._watched = tuple(kept for kept in self._watched if kept.grant != grant)

    def watch_grant(self, watched: WatchedGrant) -> None:
        """Look after this grant from now on."""
        with self._guard:
            self._watched = (*self._watched, watched)

    def unwatch_grant(self, watched: WatchedGrant) -> None:
        """Rely on it no more."""
        with self._guard:
            self._watched = tuple(kept for kept in self._watched if kept is not watched)

    def add_job(self, job: BackgroundJob) -> None:
        """Do this, too, whenever it is due."""
        with self._guard:
            self.jobs = (*self.jobs, job)

    def remove_job(self, job: BackgroundJob) -> None:
        """Do it no more."""
        with self._guard:
            self.jobs = tuple(kept for kept in self.jobs if kept is not job)

    def wait(self) -> float:
        """Seconds until there is something to do."""
        jobs = () if self._trouble() else self.jobs
        return min([self._wait(), *(job.wait() for job in jobs)])

    def run_due(self) -> Op[None]:
        """Whatever is due: a beat, and chores."""
        if self._wait() <= 0:
            yield from self.beat()
        for job in self.jobs:
            if job.wait() <= 0:
                yield from job.run()

    def finish(self) -> Op[None]:
        """The end of all chores."""
        for job in self.jobs:
            yield from job.finish(self._trouble())

    def _wait(self) -> float:
        """Seconds until the next renewal is due, or what is unsettled or owed is tried again."""
        self._grants.collect_abandoned()
        if self._grants.has_new_pending and not self._trouble():
            return 0.0
        if self.housekeeping is not None and self.housekeeping.due and not self._trouble():
            return 0.0
        due = self._until(lease.due for lease in self._leases if lease.renewable and not lease.lost)
        if not self._grants.has_pending and not self._trouble():
            return due
        return min(due, max(0.0, self._tried + self._allow(SOON) - self._clock.monotonic()))

    def time_left(self) -> float:
        """Seconds until the first lease must be given up."""
        return self._until(lease.ends for lease in self._leases if not lease.lost)

    def beat(self) -> Op[None]:
        """Renew everything, see that our grants are there, settle, and take back what is owed."""
        lost = yield from self._renew()
        try:
            yield from self._look()  # before anybody is told: it may say why
        finally:
            for lease in lost:
                lease.lose()
        self._tried = self._clock.monotonic()
        if self._trouble():
            yield Read()  # is it back?  There may be nothing left to renew
        yield from self._grants.release_pending()
        if self.housekeeping is not None and self.housekeeping.due:
            yield from self.housekeeping.run(Actor())

    def _renew(self) -> Op[list[Lease]]:
        """Renew everything; what the store no longer knows is lost."""
        leases = [lease for lease in self._leases if lease.renewable and lease.alive()]
        if not leases:
            return []
        sent = self._clock.monotonic()
        alive = yield from self._sessions.renew(tuple(lease.write for lease in leases))
        for lease in leases:
            if lease.write.key in alive:
                lease.renewed(sent)
        return [
            lease
            for lease in leases
            if lease.write.key not in alive and any(kept is lease for kept in self._leases)
        ]

    def _look(self) -> Op[None]:
        """A grant that the store no longer has is lost."""
        all_watched = self._watched
        wanted = [key for watched in all_watched for key in watched.keys]
        standing = yield from self._grants.grants_in(wanted)
        for watched in all_watched:
            there = all((key, watched.grant) in standing for key in watched.keys)
            if not there and any(kept is watched for kept in self._watched):
                watched.lose((yield from self._grants.break_note(watched.notes)))

    def expire(self) -> None:
        """Give up every lease whose time is over, and all of them if their store is gone."""
        now = float("inf") if self._missing() else self._clock.monotonic()
        for lease in self._leases:
            if lease.ends <= now:
                lease.lose()

    def _until(self, moments: Iterable[float]) -> float:
        first = min(moments, default=None)
        return IDLE if first is None else max(0.0, first - self._clock.monotonic())
