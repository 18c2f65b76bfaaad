"""Requests at one home: the parts of this folder, put together for a client.

``tend`` is all that a process does for the requests of its whole swarm: it takes in what
the bus has, answers, drains the outbox, and does the steps that time brings.  ``follow`` does so
for as long as a worker serves: at once when something arrives on the bus, else every few seconds.

One process of a swarm takes in at once, the one with the lease ``live/intake``; the others look
every second, and step in for an envelope that they saw before.  So ten processes that serve do not
verify each request ten times, and none waits long for one that died.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from interlock.core import keys
from interlock.errors import BusTrouble, InterlockError, NotAllowed, StoreTrouble
from interlock.nouns.requests.acknowledgements import Acknowledgements
from interlock.nouns.requests.answer_service import Answers
from interlock.nouns.requests.attempts import Attempts
from interlock.nouns.requests.home import Home
from interlock.nouns.requests.incoming import Incoming, folders_of
from interlock.nouns.requests.posting import Outbox
from interlock.nouns.requests.request_intake import RequestIntake
from interlock.nouns.requests.result_intake import ResultIntake
from interlock.nouns.requests.result_waits import ResultWaits
from interlock.nouns.requests.retention import RequestRetention
from interlock.nouns.requests.send_service import TEND_EVERY, RequestSender
from interlock.nouns.swarms.bus import RECONNECT
from interlock.runtime.identity import Actor
from interlock.runtime.process_lease import ProcessLease
from interlock.steps import NextChanges, Op, OpenWatch, Pause, Read
from interlock.store import Change, Range, Resync, Snapshot, Watch

if TYPE_CHECKING:
    from interlock.nouns.swarms.bus import Bus
    from interlock.nouns.swarms.registry_service import SwarmRegistry
    from interlock.nouns.swarms.swarm import OwnSwarm
    from interlock.nouns.tasks.service import TaskService
    from interlock.runtime.runner import Runner

SHORTEST_LEASE, LONGEST_LEASE, IN_LEAST_TTLS = 5.0, 60.0, 10
"""Seconds that the lease of the intake lives, and how many of the least ttls of the home."""
STEP_IN = 1.0
"""Seconds after which a process without the lease takes in what is still there; so a long lease of
a process that died delays nothing.
"""
NOT_TAKEN_IN = "requests are not taken in"
NOT_KEPT = "the swarm is not kept on its bus"
SLICE = 0.25
"""Seconds at most until a process that waits for the bus notices that it is to stop."""
ROUNDS = 100
"""Batches that one call takes in at most."""


class RequestService:
    """The requests of one home."""

    def __init__(self, runner: Runner, bus: Bus, tasks: TaskService, swarms: SwarmRegistry) -> None:
        self.home = Home(runner, bus, swarms)
        self.outbox = Outbox(self.home)
        self.cleanup = self.outbox.cleanup
        self.incoming = Incoming(self.home, self.cleanup)
        self.answers = Answers(self.home, self.outbox)
        self.request_intake = RequestIntake(self.home, self.incoming, self.answers, tasks)
        self.result_intake = ResultIntake(self.home, self.incoming, self.cleanup)
        self.waits = ResultWaits(self.home, self.incoming, self.result_intake)
        self.sender = RequestSender(self.home, self.outbox, self.waits, self._tend_waiting)
        self.acknowledgements = Acknowledgements(self.home)
        self.attempts = Attempts(self.home, self.outbox, tasks.moment)
        self.retention = RequestRetention(runner)
        self._followed: set[Watch] = set()
        """The watches of this process by which what arrives is taken in."""
        self._unsigned = ""
        """Why something could not be signed, when that was last tried."""
        self._stopped: dict[str, str] = {}
        """Why work in the background failed the last time, by what does not go on."""

    def begin(self, actor: Actor) -> Op[None]:
        """See that this process can serve; NotAllowed if it is in no swarm, or has no key."""
        own = yield from self.home.own()
        yield from self.home.ready(own, actor)

    def close(self) -> Op[None]:
        """The client is closed: delete now all that would have been deleted soon."""
        self.cleanup.stop()
        self.waits.stop()
        if not self.home.bus.trouble:
            with suppress(InterlockError):  # other processes of the swarm do it
                yield from self.cleanup.finish()

    def take_in(
        self, actor: Actor, own: OwnSwarm, changes: Sequence[Change | Resync] | None = None
    ) -> Op[int]:
        """Take in what these changes brought, or all that the bus has for us; how much that was."""
        done = 0
        for _ in range(ROUNDS):
            found = yield from self.incoming.changed(own, changes)
            changes = None
            done += found.count
            again = yield from self.request_intake.take(actor, own, found.requests)
            for swarm, request in again:
                yield from self._signing(self.answers.repeat(actor, own, swarm, request))
            yield from self.result_intake.take(actor, own, found.results)
            yield from self.result_intake.receipts(actor, own, found.receipts)
            if not found.full:
                break
            yield from self.cleanup.remove_taken()  # else they would fill the next page
        return done

    def tend(self, actor: Actor) -> Op[int]:
        """Do everything that is due for the requests of this swarm; how much that was."""
        own = yield from self.home.own(fresh=True)
        return (yield from self._tend(actor, own))

    def _tend_waiting(self, actor: Actor, own: OwnSwarm) -> Op[int]:
        """What a caller that waits does for the swarm, unless a worker of its process does it."""
        if self._followed:
            return 0
        return (yield from self._tend(actor, own))

    def _tend(self, actor: Actor, own: OwnSwarm) -> Op[int]:
        done = yield from self._keep_up(actor, own)
        try:
            done += yield from self.take_in(actor, own)
        except BusTrouble:
            return done
        return done

    def _keep_up(self, actor: Actor, own: OwnSwarm) -> Op[int]:
        """The part that goes on while the bus is away."""
        done = yield from self._signing(self.attempts.step(actor, own))
        done += yield from self._signing(self.answers.sweep(actor, own))
        yield from self.home.room.record_dropped(actor)
        yield from self.retention.some(actor)
        try:
            done += yield from self.outbox.drain_all(actor, own)
            done += yield from self.acknowledgements.look(actor, own)
        except BusTrouble:
            return done
        return done

    def _signing(self, work: Op[int | None]) -> Op[int]:
        """Work that signs; it is left for later if the key cannot be used now.

        What needs no key goes on: an ssh-agent that is gone stops neither the outbox nor the
        intake.
        """
        try:
            done = yield from work
        except NotAllowed as error:
            if str(error) != self._unsigned:
                logging.getLogger("interlock").warning("requests wait for a key: %s", error)
            self._unsigned = str(error)
            return 0
        self._unsigned = ""
        return done or 0

    @contextmanager
    def going_on(self, what: str) -> Iterator[None]:
        """For work in the background, which is retried after any error; each is logged once.

        Without intake a worker would wait without end, and nothing would say why.
        """
        try:
            yield
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            if said != self._stopped.get(what):
                expected = isinstance(error, InterlockError)
                logging.getLogger("interlock").warning(
                    "%s, and this is tried again: %s",
                    what,
                    said,
                    exc_info=None if expected else error,
                )
            self._stopped[what] = said

    def follow(self, actor: Actor, stopped: Callable[[], bool]) -> Op[None]:
        """Take in and tend until the caller is to stop."""
        runner = self.home.runner
        ttl = lease_time(runner.capabilities.min_ttl)
        lease = ProcessLease(runner, keys.INTAKE, runner.new_id("itk"), ttl)
        while not stopped():
            own = yield from self.home.own(fresh=True)
            try:
                watch = yield from self.home.bus.on(own, lambda _: _opened(own))  # noqa: B023 - runs now
                self._followed.add(watch)
                try:
                    yield from self._follow(actor, own, watch, lease, stopped)
                finally:
                    self._followed.discard(watch)
                    watch.close()
            except BusTrouble:
                yield from _rest(RECONNECT, stopped)

    def _follow(
        self,
        actor: Actor,
        own: OwnSwarm,
        watch: Watch,
        lease: ProcessLease,
        stopped: Callable[[], bool],
    ) -> Op[None]:
        """Take in what arrives, as long as our swarm stays the same."""
        clock = self.home.runner.clock
        tended = led = float("-inf")
        leads = False
        changes: Sequence[Change | Resync] | None = None
        """What arrived since the last look; everything must be looked at if that is unknown."""
        while not stopped():
            now = clock.monotonic()
            if now - led >= lease.ttl / 3:
                led, leads = now, (yield from lease.take(actor))
            if now - tended >= TEND_EVERY:
                tended, changes = now, None
                if (yield from self.home.own(fresh=True)) != own:
                    return
                yield from self.home.stay_ready(own, actor)
                yield from self._keep_up(actor, own)
            arrived = changes is None or any(map(_arrives, changes))
            if arrived and leads:
                yield from self.take_in(actor, own, changes)
            elif arrived:
                yield from self._step_in(actor, own)
            try:
                changes = yield NextChanges(watch, SLICE)
            except StoreTrouble as error:  # the watch is one of the bus
                raise BusTrouble(f"the bus does not answer: {error}", error) from error

    def _step_in(self, actor: Actor, own: OwnSwarm) -> Op[None]:
        """Take in what another process has left for a second."""
        before = yield from self.home.bus.on(own, lambda _: _present(own))
        if before:
            yield Pause(STEP_IN)
            if before & (yield from self.home.bus.on(own, lambda _: _present(own))):
                yield from self.take_in(actor, own)


def lease_time(least: float) -> float:
    """Seconds that the lease of the intake lives in a home with this least ttl.

    Each renewal is a commit, which is dear where that ttl is long: on git it is a push.
    """
    return min(max(SHORTEST_LEASE, IN_LEAST_TTLS * least), LONGEST_LEASE)


def _arrives(change: Change | Resync) -> bool:
    return isinstance(change, Resync) or not change.deleted


def _present(own: OwnSwarm) -> Op[frozenset[str]]:
    """The keys of the first envelopes for us."""
    pages = [Range(folder, limit=8) for folder in folders_of(own)]
    ranges = (yield Read(*pages, longest=0)).ranges
    return frozenset(item.key for page in pages for item in ranges[page])


def _opened(own: OwnSwarm) -> Op[Watch]:
    """A watch of what arrives for us from now on."""
    snapshot: Snapshot = yield Read(keys.BUS)
    watch: Watch = yield OpenWatch(folders_of(own), snapshot.revision)
    return watch


def _rest(seconds: float, stopped: Callable[[], bool]) -> Op[None]:
    while seconds > 0 and not stopped():
        yield Pause(SLICE)
        seconds -= SLICE
