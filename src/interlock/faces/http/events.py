"""The stream of events: one ring for all readers, and each event is encoded once.

A thread follows the record and adds each event to the ring, as the bytes that readers get.  A
reader has a position in the ring; a wake-up brings it everything since then, in writes of bounded
size, so that a reader that does not read has no more than one of them.  A reader that is slower
than the events holds up no other: it finds what the ring still has, and a ``resync`` if that is not
everything.

    event: hello    the first: the revision from which the stream goes on, and its reader
    event: change   an event of the record, as ``interlock observe --json`` prints it
    event: resync   something is missing; read everything again
    event: store    the store is ``away`` or ``back``

The id of an event is its revision.  The events of one commit share a revision, and only the last of
them has the id: a reader that was cut off between two of them gets both again, and misses none.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from interlock.errors import InterlockError
from interlock.faces.json_output import encoded
from interlock.runtime.observe import MISSED, Observed
from interlock.threads import background

if TYPE_CHECKING:
    from interlock.faces.http.clients import Clients

MOST_EVENTS = 20_000
MOST_BYTES = 16 * 1024 * 1024
MOST_WRITTEN = 256 * 1024
"""Bytes after which a write takes no further event."""
HEARTBEAT = 15.0
"""Seconds between two moments at which a silent stream says that it lives."""
TOGETHER = 0.05
"""Seconds between two wake-ups: a busy fleet costs a write a wake-up, not a write an event."""
_SLICE = 0.25
"""Seconds after which the thread looks whether the store still answers."""
_AGAIN = 0.5


class RingEvent(NamedTuple):
    """One event, encoded; ``noun`` is empty for what every reader gets."""

    revision: int
    noun: str
    data: bytes


class EventRing:
    """The latest events; all but ``publish`` is for the event loop."""

    def __init__(self) -> None:
        self._events: deque[RingEvent] = deque()
        self._size = 0
        self._first = 0
        """The number of the first event in the ring; each event has the next number."""
        self._floor = 0
        """The ring has all events after this revision."""
        self.revision = 0
        self.state = "away"
        self.ended = False
        self._waiters: list[asyncio.Future[None]] = []
        self._heartbeat: asyncio.TimerHandle | None = None
        self._joined: tuple[int, int, tuple[bytes, int]] = (0, 0, (b"", 0))

    @property
    def end(self) -> int:
        """The number of the next event."""
        return self._first + len(self._events)

    def add(self, events: list[RingEvent], revision: int) -> None:
        """Add events, and wake all readers."""
        self._events.extend(events)
        self._size += sum(len(each.data) for each in events)
        self.revision = max(self.revision, revision)
        while len(self._events) > MOST_EVENTS or self._size > MOST_BYTES:
            gone = self._events.popleft()
            self._first += 1
            self._size -= len(gone.data)
            self._floor = max(self._floor, gone.revision)
        self._notify()

    def restart(self, revision: int) -> None:
        """Begin at this revision: what came before is unknown."""
        self._first = self.end
        self._events.clear()
        self._size = 0
        self._floor = self.revision = revision

    def close(self) -> None:
        """End all streams."""
        self.ended = True
        self._notify()

    def position(self, after: int | None) -> int | None:
        """Where a reader goes on that has all up to a revision; None if the ring has a gap."""
        if after is None:
            return self.end
        if not self._floor <= after <= self.revision:
            return None
        number = self.end
        for event in reversed(self._events):
            if event.revision <= after:
                break
            number -= 1
        return number

    def since(self, number: int, nouns: Collection[str] = ()) -> tuple[bytes, int] | None:
        """One write of the events from this number on, and where the next write begins.

        None if some of them are gone.
        """
        if number < self._first:
            return None
        if nouns:
            return self._write(number, nouns)
        if self._joined[:2] != (number, self.end):  # most readers are at the same position
            self._joined = (number, self.end, self._write(number))
        return self._joined[2]

    async def wait(self, number: int) -> bool:
        """Wait until there is an event of this number; False if it is time for a heartbeat.

        All readers share one timer, and each wait is one future: with a hundred readers of a busy
        fleet most of the time of the server is spent here.
        """
        if self._has(number):
            return True
        loop = asyncio.get_running_loop()
        if self._heartbeat is None:
            self._heartbeat = loop.call_later(HEARTBEAT, self._beat)
        waiter = loop.create_future()
        self._waiters.append(waiter)
        await waiter
        return self._has(number)

    def _has(self, number: int) -> bool:
        return self.ended or number < self.end

    def _write(self, number: int, nouns: Collection[str] = ()) -> tuple[bytes, int]:
        found: list[bytes] = []
        size = 0
        for event in islice(self._events, number - self._first, None):
            if size >= MOST_WRITTEN:
                break
            number += 1
            if not nouns or not event.noun or event.noun in nouns:
                found.append(event.data)
                size += len(event.data)
        return b"".join(found), number

    def _beat(self) -> None:
        self._heartbeat = None
        self._notify()

    def _notify(self) -> None:
        waiters, self._waiters = self._waiters, []
        for each in waiters:
            if not each.done():  # its reader has left
                each.set_result(None)


async def stream(
    ring: EventRing, about: dict[str, Any], after: int | None, nouns: Collection[str] = ()
) -> AsyncIterator[bytes]:
    """What one reader gets, a write at a time, until the server ends."""
    number = ring.position(after)
    begin = ring.revision if after is None or number is None else after
    yield b"retry: 1000\n" + message("hello", {"revision": begin, **about})
    if number is None:
        number = ring.end
        yield message("resync", {"revision": ring.revision}, ring.revision)
    if ring.state == "away":
        yield message("store", {"state": "away"})
    clock = asyncio.get_running_loop().time
    written = clock()
    while not ring.ended:
        data = b""
        if await ring.wait(number):
            found = ring.since(number, nouns)
            data, number = (_missed(ring), ring.end) if found is None else found
        if not data and clock() - written >= HEARTBEAT / 2:
            data = b": still here\n\n"
        if data:
            written = clock()
            yield data


def _missed(ring: EventRing) -> bytes:
    """What a reader gets that was too slow; also what the ring said about the store may be gone."""
    state = message("store", {"state": ring.state})
    return state + message("resync", {"revision": ring.revision}, ring.revision)


def message(event: str, data: object, revision: int | None = None) -> bytes:
    """One message of a stream."""
    id_ = b"" if revision is None else b"id: %d\n" % revision
    return id_ + b"event: %s\ndata: %s\n\n" % (event.encode(), msgspec.json.encode(data))


def ring_events(observed: Collection[Observed]) -> list[RingEvent]:
    """Events of the record as the ring has them."""
    lines = list(observed)
    found = []
    for index, each in enumerate(lines):
        if each.event == MISSED:
            data = message("resync", {"revision": each.revision}, each.revision)
            found.append(RingEvent(each.revision, "", data))
            continue
        last = index + 1 == len(lines) or lines[index + 1].revision != each.revision
        id_ = b"id: %d\n" % each.revision if last else b""
        data = id_ + b"event: change\ndata: %s\n\n" % encoded(each)
        found.append(RingEvent(each.revision, each.event.partition(":")[0], data))
    return found


class EventFeed:
    """The thread that follows the record and fills the ring."""

    def __init__(self, clients: Clients, ring: EventRing, loop: asyncio.AbstractEventLoop) -> None:
        self._clients = clients
        self._ring = ring
        self._loop = loop
        self._stopped = threading.Event()
        self._thread = background(self._run, "interlock-events")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, at once."""
        self._stopped.set()

    def join(self, seconds: float) -> None:
        """Wait until it has ended, at most this long."""
        self._thread.join(seconds)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._follow()
            except InterlockError:
                self._say("away")
            except Exception as error:  # noqa: BLE001 - readers must not be left alone
                from interlock.faces.http.operations import log

                log(error)
                self._say("away")
            self._stopped.wait(_AGAIN)

    def _follow(self) -> None:
        fleet, opened = self._clients.reader(), self._clients.opened
        revision = fleet.store.read().revision
        with fleet.observe(after=revision) as events:
            self._on_loop(self._begin, revision)
            while not self._stopped.is_set() and opened == self._clients.opened:
                taken = events.take(_SLICE)
                if taken:
                    found = ring_events(taken)
                    self._on_loop(self._ring.add, found, taken[-1].revision)
                    self._stopped.wait(TOGETHER)
                self._say("away" if fleet.store.missing or fleet.store.outage else "back")
                if fleet.store.missing:
                    return

    def _begin(self, revision: int) -> None:
        """The store is open: earlier readers may have missed events."""
        ring = self._ring
        ring.restart(revision)
        ring.state = "back"
        said = [message("store", {"state": "back"}), message("resync", {"revision": revision})]
        ring.add([RingEvent(revision, "", each) for each in said], revision)

    def _say(self, state: str) -> None:
        if self._ring.state != state:
            self._on_loop(self._changed, state)

    def _changed(self, state: str) -> None:
        ring = self._ring
        if ring.state != state:
            ring.state = state
            ring.add(
                [RingEvent(ring.revision, "", message("store", {"state": state}))], ring.revision
            )

    def _on_loop(self, call: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:  # the loop was closed: the server has ended
            self._stopped.set()
