"""The bus of a client: the second store of a swarm, which carries signed envelopes.

A client has one home store, and its operations are driven on that.  The bus is opened when an
operation first needs it, with a ``Runner`` of its own: every change there has its entry in the
record of the bus, and an unknown outcome is settled there.

    own = yield from own_swarm()                                    # swarm/self, at home
    bus = context.bus
    snapshot = yield from bus.on(own, lambda _: read_bus(...))      # steps on the bus
    done = yield from bus.on(own, lambda runner: runner.change(deciding, bus.actor(own)))

``on`` takes a function of the bus's runner that returns an operation, and carries that operation
out on the store of the bus, with either driver (``steps.On``).  Steps on both stores never mix in
one operation: what belongs together is one commit at home, or one commit on the bus.

**Errors.**  Every ``StoreTrouble`` of the bus becomes ``BusTrouble``, which is no ``StoreTrouble``:
a caller distinguishes a bus that is away from a home that is away, and a wait that goes on through
an outage of home does not take one for the other.  Everything else is raised unchanged.

**Outages.**  After an error of the connection, ``on`` fails at once for ``RECONNECT`` seconds: a
sender spools in microseconds while the bus is away, and does not wait ten seconds each time.
``urgent`` tries at once; the link that looks whether the bus is back uses it.  ``trouble`` says why
the bus does not answer, since when, and is empty while it does.

**Which bus.**  A bus has an id of its own (``meta/bus``), and every head names it, so that nothing
counts on another bus.  It is compared when the bus is opened: an empty or another store under the
same URL raises ``BusTrouble``.  A missing file is never created; ``reach`` creates it when a swarm
registers.  ``INTERLOCK_BUS`` names another URL of the same bus, for a host that reaches it in
another way.

**Closing and forks.**  The client closes its bus with its home store.  In the child of a fork both
raise as every store does; the child connects again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from interlock.clock import Clock, SystemClock
from interlock.core import codec, keys
from interlock.core.decision import Decision, Write
from interlock.core.safe_text import foreign
from interlock.core.validate import quote
from interlock.errors import (
    BusTrouble,
    OutcomeUnknown,
    StoreAway,
    StoreBusy,
    StoreClosed,
    StoreMissing,
    StoreMoved,
    StoreRefused,
    StoreTrouble,
)
from interlock.runtime.client_housekeeping import ClientHousekeeping
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Runner
from interlock.settings import Settings
from interlock.steps import On, Op, Read
from interlock.store import Snapshot, Store

if TYPE_CHECKING:
    from interlock.nouns.swarms.swarm import OwnSwarm
    from interlock.runtime.attempt import DecideOp

T = TypeVar("T")

RECONNECT = 10.0
"""Seconds between two attempts to reach a bus that does not answer."""
URL = "INTERLOCK_BUS"
"""The environment variable that names another URL of the same bus."""
_OUTAGES = (StoreAway, StoreBusy, StoreClosed, StoreMissing, StoreRefused, OutcomeUnknown)
"""Errors of the connection; others are about one request, and the next one may succeed."""
_ID = codec.Decoder(str)


if TYPE_CHECKING:

    class Opener(Protocol):
        """How a client opens a store, blocking or in an event loop."""

        def place(self, url: str) -> tuple[str, str]:
            """The URL by which any process finds it, and how to show it, without a password."""

        def blocking(self, url: str, *, create: bool) -> Store:
            """Open it."""

        def awaited(self, url: str, *, create: bool) -> Awaitable[Store]:
            """Open it in an event loop."""


class BusLink:
    """A bus that is open: its store, the runner that writes there, and its id."""

    def __init__(self, store: Store, runner: Runner, url: str, settings: Settings) -> None:
        self.store = store
        self.runner = runner
        self.url = url
        self.id = ""
        self.housekeeping = ClientHousekeeping(runner, store, settings)


class Bus:
    """The bus of one client; see the head of this module."""

    def __init__(self, home: Runner, opener: Opener, settings: Settings) -> None:
        self._home = home
        self._opener = opener
        self._settings = settings
        self._guard = threading.RLock()  # a signal handler may need it, too
        self._link: BusLink | None = None
        self._closed = False
        self._trouble = ""
        self._failed = float("-inf")

    @property
    def trouble(self) -> str:
        """Why the bus does not answer, and since when; empty while it does, or was not needed."""
        return self._trouble

    def place(self, url: str) -> tuple[str, str]:
        """The URL by which any process finds this bus, and how to show it, without a password."""
        return self._opener.place(url)

    def actor(self, own: OwnSwarm) -> Actor:
        """In whose name our home writes on the bus: that of the swarm."""
        return Actor(own.name)

    def on(self, own: OwnSwarm, work: Callable[[Runner], Op[T]], *, urgent: bool = False) -> Op[T]:
        """Carry out an operation on the bus; BusTrouble if it does not answer.

        ``work`` gets the runner of the bus.
        """
        url = os.environ.get(URL) or own.bus
        waits = self._failed + RECONNECT - self._home.clock.monotonic()
        if self._trouble and waits > 0 and not urgent:
            raise BusTrouble(f"{self._trouble}; it is tried again in {waits:.0f} s")
        try:
            link = yield from self._linked(url, create=False)
            if link.id != own.bus_id:
                raise _other_bus(own, link.id)
            answer: T = yield On(link.store, work(link.runner))
        except StoreMissing as error:  # its advice is for a home, where a new store may do
            raise (yield from self._failing(error, _gone(own))) from error
        except StoreTrouble as error:
            raise (yield from self._failing(error)) from error
        self._trouble = ""
        return answer

    def reach(self, url: str) -> Op[str]:
        """Open a bus, create it if it is new, and return its id: for a swarm that registers."""
        try:
            link = yield from self._linked(url, create=True)
            if not link.id:
                link.id = yield On(link.store, _named(link.runner))
        except StoreTrouble as error:
            raise (yield from self._failing(error)) from error
        self._trouble = ""
        return link.id

    def tidy(self) -> Op[None]:
        """The share of this client in the housekeeping of the bus, if it is due."""
        link = self._link
        if link is not None and link.housekeeping.due and not self._trouble:
            yield On(link.store, link.housekeeping.run(Actor()))

    def close(self) -> None:
        """Close the store of the bus, if it is open."""
        self._closed = True
        link, self._link = self._link, None
        if link is not None:
            link.store.close()

    async def close_async(self) -> None:
        """Close it, and wait until nothing is left in this event loop."""
        self._closed = True
        link, self._link = self._link, None
        if link is not None:
            await link.store.close_async()

    def _linked(self, url: str, *, create: bool) -> Op[BusLink]:
        link = self._link
        if link is not None and link.url == url and not link.store.missing:
            return link
        store: Store = yield _Opened(self._opener, url, create=create)
        fresh = BusLink(store, self._runner(store), url, self._settings)
        try:
            snapshot: Snapshot = yield On(store, _read_id())
        except BaseException:
            yield _Closed(store)
            raise
        item = snapshot[keys.BUS]
        fresh.id = "" if item is None else _ID.read(item)
        with self._guard:  # a keeper and a caller may have opened it at the same time
            link = self._link
            unwanted: BusLink | None = fresh
            if self._closed:
                link = None
            elif link is None or link.url != url or link.store.missing:
                unwanted, self._link = link, fresh
                link = fresh
        if unwanted is not None:
            yield _Closed(unwanted.store)
        if link is None:
            raise StoreClosed("this client is closed; connect again")
        return link

    def _runner(self, store: Store) -> Runner:
        """A writer of the bus's record, with the key and the clock of the one at home.

        The clock of a remote engine goes on while this machine is suspended, so ours must, too.
        """
        clock: Clock = self._home.clock
        if isinstance(clock, SystemClock):
            clock = SystemClock(suspends=store.capabilities.one_machine)
        runner = Runner(store, clock=clock, signer=self._home.signer)
        runner.settings, runner.via = self._settings, self._home.via
        return runner

    def _failing(self, error: StoreTrouble, why: str = "") -> Op[BusTrouble]:
        """The error for callers; an error of the connection is remembered, for ``RECONNECT``."""
        if isinstance(error, StoreMoved):
            said = (
                f"the bus was moved to {error.place}; register the swarm there, with its key:"
                " interlock swarm register NAME --bus URL --key KEY"
            )
            return BusTrouble(said, error)
        said = f"the bus does not answer: {why or error}"
        if not isinstance(error, _OUTAGES):
            return BusTrouble(f"the bus refuses this: {error}", error)
        with self._guard:
            if not self._trouble:
                self._trouble = said
            self._failed = self._home.clock.monotonic()
            gone = self._link if self._link is not None and self._link.store.missing else None
            if gone is not None:  # every call of it would fail: the next one opens it again
                self._link = None
        if gone is not None:
            yield _Closed(gone.store)
        return BusTrouble(said, error)


def _read_id() -> Op[Snapshot]:
    snapshot: Snapshot = yield Read(keys.BUS)
    return snapshot


def _named(runner: Runner) -> Op[str]:
    """Give a new bus its id; the first one stays."""
    fresh = runner.new_id("bus")

    def naming() -> DecideOp[str]:
        item = (yield (keys.BUS,))[keys.BUS]
        if item is not None:
            return Decision(outcome=_ID.read(item))
        puts = (Write(keys.BUS, fresh),)
        return Decision(outcome=fresh, verb="swarm.create_bus", thing="swarm/bus", puts=puts)

    return (yield from runner.change(naming, Actor())).outcome


def bus_here() -> Op[str]:
    """The id of the bus that this store is; empty if it is none."""
    item = (yield Read(keys.BUS))[keys.BUS]
    return "" if item is None else _ID.read(item)


def _other_bus(own: OwnSwarm, found: str) -> BusTrouble:
    what = (
        f"another bus than the one where {foreign(own.name)} registered"
        if found
        else "no bus any more"
    )
    return BusTrouble(
        f"{own.bus_shown} is {what}; if that is right, run:"
        f" interlock swarm register {quote(own.name)} --bus URL --key KEY"
    )


def _gone(own: OwnSwarm) -> str:
    place = os.environ.get(URL) or own.bus_shown
    return (
        f"there is nothing at {foreign(place)} any more; put the bus back, or set {URL} to where it"
        " is"
        f" now; for another bus: interlock swarm register {quote(own.name)} --bus URL --key KEY"
    )


class _Opened:
    """Open a store; the answer is the store."""

    def __init__(self, opener: Opener, url: str, *, create: bool) -> None:
        self._opener = opener
        self._url = url
        self._create = create

    def perform(self, _on: object) -> Store:
        """Open it."""
        return self._opener.blocking(self._url, create=self._create)

    def perform_async(self, _on: object) -> Awaitable[Store]:
        """Open it in an event loop."""
        return self._opener.awaited(self._url, create=self._create)


class _Closed:
    """Close a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def perform(self, _on: object) -> Any:  # noqa: ANN401
        """Close it."""
        self._store.close()

    def perform_async(self, _on: object) -> Awaitable[Any]:
        """Close it in an event loop."""
        return self._store.close_async()
