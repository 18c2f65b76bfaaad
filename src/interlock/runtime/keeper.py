"""Keeps sessions and grants alive, and knows in time when it failed to.

A lease that was renewed by a request sent at time t lives at least until t + ttl by the store's
clock, even if the answer is lost.  So its holder may work until t + ttl - margin by its own
monotonic clock, and must stop then, before another client can start.  The keeper renews all leases
of a client in one quiet commit, two and a half times in the shortest ttl: there is time for a
second try, and 500 idle agents with 30 s each cost their engine 42 requests a second.

A live session does not prove that a grant is still there: the engine may have lost its last
commits, the store may be a restored copy, or another caller may have released it with its token.
So each beat also reads the locks and slots that the client holds.

The keeper does no I/O of its own: ``run_due`` is an operation, and a thread (blocking) or a task
(async) drives it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from interlock.clock import Clock
from interlock.core import keys
from interlock.core.decision import Write
from interlock.core.thing_names import key_of
from interlock.runtime.client_housekeeping import ClientHousekeeping
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Runner
from interlock.runtime.setbacks import FIRST, NO_ANSWER, Setbacks
from interlock.steps import Op, Read
from interlock.store import Store

BEATS_PER_TTL = 2.5
IDLE = 3600.0
"""Seconds that the keeper sleeps while it has no lease; new work wakes it."""
SOON = 0.5
"""Seconds between two tries to settle and release."""
_READS = "reads"
LOOK = 0.4
"""Seconds between two checks for a lease that ends: less than the shortest lease has."""


def margin(ttl: float, allow: Callable[[float], float] = float) -> float:
    """Seconds before the end of a lease at which its holder stops, so that its work ends in time.

    ``allow`` makes a time limit long enough for a slow engine.
    """
    return min(max(ttl / 10, allow(0.05)), allow(2.0))


class Lease:
    """A liveness key that must not expire while the client relies on it."""

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
        self.ends = sent + self._seconds - margin
        """The monotonic moment at which work that relies on it must be over."""

    @property
    def due(self) -> float:
        """The monotonic moment of the next renewal."""
        return self._sent + self._seconds / BEATS_PER_TTL

    def renewed(self, sent: float) -> None:
        """A renewal sent at this moment succeeded."""
        self._sent = max(self._sent, sent)
        self.ends = self._sent + self._seconds - self._margin

    def alive(self) -> bool:
        """Whether the client may still rely on it."""
        return not self.lost and self._clock.monotonic() < self.ends

    def lose(self) -> None:
        """The lease has ended: notify the listeners, once."""
        if not self.lost:
            self.lost = True
            for listener in tuple(self.listeners):
                unharmed(listener)


def unharmed(listener: Callable[..., None], *about: object) -> None:
    """Notify a listener; what it raises is logged, and keeps no other one from being notified."""
    try:
        listener(*about)
    except Exception:
        import logging

        logging.getLogger("interlock").exception("a listener for lost grants failed")


class WatchedGrant(Struct, frozen=True, eq=False):
    """A grant that the client relies on; ``lose`` is called if the store no longer has it."""

    things: tuple[str, ...]
    grant: str
    lose: Callable[[Any], None]

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that say who has it."""
        return tuple(map(key_of, self.things))

    @property
    def notes(self) -> tuple[str, ...]:
        """The keys of the notes that an operator leaves who ends it."""
        return tuple([keys.broken(thing, self.grant) for thing in self.things])


if TYPE_CHECKING:

    class BackgroundJob(Protocol):
        """Periodic work that no caller waits for."""

        what: str
        """In the log and in ``trouble``."""

        def wait(self) -> float:
            """Seconds until it is due."""

        def run(self) -> Op[None]:
            """Do a bounded part of it; a failed run is not due again at once."""

        def finish(self, trouble: str) -> Op[None]:
            """The client closes: do what must not be lost, unless the store is in trouble."""

    class HeldGrants(Protocol):
        """The grants of a client, and its pending releases."""

        on_abandoned_grant: Callable[[str], None]

        @property
        def has_new_pending(self) -> object:
            """Whether a release was added since the last attempt."""

        @property
        def has_pending(self) -> bool:
            """Whether a release is pending, or the outcome of a change unknown."""

        def collect_abandoned(self) -> object:
            """Add the grants of interrupted callers to the pending releases."""

        def release_pending(self) -> Op[Exception | None]:
            """Settle unknown outcomes, then release what is pending; what failed is returned."""

        def grants_in(
            self, wanted: list[str], *, fresh: bool = True
        ) -> Op[Collection[tuple[str, str]]]:
            """The key and the id of every grant in these items."""

        def break_note(self, notes: tuple[str, ...]) -> Op[Any]:
            """The note of an operator who ended a grant, if there is one."""


class Keeper:
    """All leases of one client, and the grants that it holds."""

    def __init__(
        self,
        runner: Runner,
        store: Store,
        grants: HeldGrants,
        housekeeping: ClientHousekeeping,
    ) -> None:
        self._runner = runner
        self._clock = runner.clock
        self._allow = runner.capabilities.allow
        self._store = store
        self._grants = grants
        self._housekeeping = housekeeping
        self._tried = float("-inf")
        self._setbacks = Setbacks(runner.clock, lambda: store.outage)
        # By identity.  A signal handler may change them at any moment, so each change is one step,
        # and who goes through them takes a copy, which is one step, too.
        self._kept: dict[int, Lease] = {}
        self._watched: dict[int, WatchedGrant] = {}
        self._jobs: dict[int, BackgroundJob] = {}
        grants.on_abandoned_grant = self.drop_grant

    def keep(self, write: Write, sent: float, *, renewable: bool = True) -> Lease:
        """Keep this alive from now on; ``sent`` is the time at which the put was sent."""
        before = margin(write.ttl or 0.0, self._allow)
        lease = Lease(self._clock, write, sent, renewable=renewable, margin=before)
        self._kept[id(lease)] = lease
        return lease

    def drop(self, lease: Lease) -> None:
        """Stop relying on it."""
        self._kept.pop(id(lease), None)

    def drop_grant(self, grant: str) -> None:
        """Stop relying on the leases of a grant, and on the grant."""
        own = (keys.live(grant), keys.max_hold(grant))
        for lease in self._leases:
            if lease.write.key in own:
                self.drop(lease)
        for watched in self._watched.copy().values():
            if watched.grant == grant:
                self.unwatch_grant(watched)

    def watch_grant(self, watched: WatchedGrant) -> None:
        """Check at every beat that this grant is still there."""
        self._watched[id(watched)] = watched

    def unwatch_grant(self, watched: WatchedGrant) -> None:
        """Stop relying on it."""
        self._watched.pop(id(watched), None)

    def add_job(self, job: BackgroundJob) -> None:
        """Run this job when it is due."""
        self._jobs[id(job)] = job

    def remove_job(self, job: BackgroundJob) -> None:
        """Stop running this job."""
        self._jobs.pop(id(job), None)
        self._setbacks.forget(job.what)

    @property
    def jobs(self) -> tuple[BackgroundJob, ...]:
        """Other periodic work."""
        return tuple(self._jobs.copy().values())

    @property
    def trouble(self) -> str:
        """What of its work fails at the moment, and why; empty while all goes well."""
        return self._setbacks.trouble

    def wait(self) -> float:
        """Seconds until there is something to do, or until what failed is tried again."""
        jobs = () if self._store.outage else self.jobs
        wait = min([self._wait(), *(job.wait() for job in jobs)])
        # A renewal that failed is tried again before its lease ends.
        return max(wait, self._setbacks.wait(max(self.time_left() / 4, FIRST)))

    def run_due(self) -> Op[None]:
        """Run everything that is due: a beat, and jobs.  What fails is tried again later."""
        with suppress(*NO_ANSWER):
            if self._wait() <= 0:
                yield from self.beat()
            for job in self.jobs:
                if job.wait() <= 0:
                    yield from self._setbacks.attempt(job.what, job.run())
        self._setbacks.end_pass()

    def finish(self) -> Op[None]:
        """Finish all jobs."""
        for job in self.jobs:
            yield from job.finish(self._store.outage)

    def _wait(self) -> float:
        """Seconds until the next renewal, or until the next try to settle and release."""
        self._grants.collect_abandoned()
        if self._grants.has_new_pending and not self._store.outage:
            return 0.0
        if self._housekeeping.due and not self._store.outage:
            return 0.0
        due = self._until(lease.due for lease in self._leases if lease.renewable and not lease.lost)
        if not self._grants.has_pending and not self._store.outage:
            return due
        return min(due, max(0.0, self._tried + self._allow(SOON) - self._clock.monotonic()))

    def time_left(self) -> float:
        """Seconds until the first lease must be given up."""
        return self._until(lease.ends for lease in self._leases if not lease.lost)

    def beat(self) -> Op[None]:
        """Renew all leases, check that the grants exist, settle, and run the pending releases."""
        attempt = self._setbacks.attempt
        lost = (yield from attempt("renewals", self._renew())) or []
        try:  # before the listeners run: it may find the reason
            yield from attempt("checks of held grants", self._look())
        finally:
            for lease in lost:
                lease.lose()
        self._tried = self._clock.monotonic()
        if self._store.outage:
            yield from attempt(_READS, self._read())
        else:
            self._setbacks.forget(_READS)
        yield from attempt("pending releases", self._release_pending())
        if self._housekeeping.due:
            yield from self._housekeeping.run(Actor())

    def _read(self) -> Op[None]:
        yield Read()  # is the store back?  There may be nothing left to renew

    def _renew(self) -> Op[list[Lease]]:
        """Renew all leases; returns the leases that the store no longer has."""
        leases = [lease for lease in self._leases if lease.renewable and lease.alive()]
        if not leases:
            return []
        sent = self._clock.monotonic()
        alive = yield from self._runner.renew([lease.write for lease in leases])
        for lease in leases:
            if lease.write.key in alive:
                lease.renewed(sent)
        return [
            lease for lease in leases if lease.write.key not in alive and id(lease) in self._kept
        ]

    def _look(self) -> Op[None]:
        """Find the grants that the store no longer has."""
        all_watched = tuple(self._watched.copy().values())
        wanted = [key for watched in all_watched for key in watched.keys]
        standing = yield from self._grants.grants_in(wanted, fresh=False)
        for watched in all_watched:
            there = all((key, watched.grant) in standing for key in watched.keys)
            if not there and id(watched) in self._watched:
                unharmed(watched.lose, (yield from self._grants.break_note(watched.notes)))

    def _release_pending(self) -> Op[None]:
        if (failed := (yield from self._grants.release_pending())) is not None:
            raise failed

    def expire(self) -> None:
        """Lose every lease whose time is over, and all of them if their store is gone."""
        now = float("inf") if self._store.missing else self._clock.monotonic()
        for lease in self._leases:
            if lease.ends <= now:
                lease.lose()

    @property
    def _leases(self) -> tuple[Lease, ...]:
        return tuple(self._kept.copy().values())

    def _until(self, moments: Iterable[float]) -> float:
        first = min(moments, default=None)
        return IDLE if first is None else max(0.0, first - self._clock.monotonic())
