"""How the watches of an event loop listen: all on one connection."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from hiredis import ReplyError

from interlock.stores.network import REPLY, Unanswered
from interlock.stores.redis.packing import pack
from interlock.stores.redis.seat import LONGEST, PING
from interlock.stores.redis.stream import Stream, within

if TYPE_CHECKING:
    from interlock.stores.redis.connection import Connection
    from interlock.stores.redis.wire import Wire

_PING = pack(("PING",))
_INBOX = 1000
"""Payloads kept for a watch that does not ask; one that is further behind reads the log."""


class Bells(Stream):
    """The listening connection of a loop, and who listens on which of its channels."""

    def __init__(self, wire: Wire, loop: asyncio.AbstractEventLoop, connection: Connection) -> None:
        super().__init__(wire, loop, connection)
        self._places: dict[bytes, set[Place]] = {}
        self._unconfirmed: dict[bytes, int] = {}
        self._joining: dict[bytes, list[asyncio.Future[None]]] = {}
        self._heard = loop.time()
        self._pinged: float | None = None
        self._patience = 1
        self._timer: asyncio.TimerHandle | None = loop.call_later(PING, self._watch)

    async def join(self, channels: tuple[bytes, ...]) -> Place:
        """Listen on these channels, from when this returns on."""
        place = Place(self, channels)
        try:
            self._subscribe(place)
            for channel in channels:
                if self._unconfirmed.get(channel):
                    await self._confirmed(channel)
        except BaseException:
            self.leave(place)
            raise
        return place

    def _subscribe(self, place: Place) -> None:
        fresh = [channel for channel in place.channels if channel not in self._places]
        for channel in place.channels:
            self._places.setdefault(channel, set()).add(place)
        for channel in fresh:
            # Counted: the confirmation of an earlier one says nothing about this one.
            self._unconfirmed[channel] = self._unconfirmed.get(channel, 0) + 1
        if fresh:
            self.write(pack(("SUBSCRIBE", *fresh)))

    async def _confirmed(self, channel: bytes) -> None:
        if self.ended:
            raise Unanswered(self.ended)
        future: asyncio.Future[None] = self.loop.create_future()
        self._joining.setdefault(channel, []).append(future)
        await future

    def leave(self, place: Place) -> None:
        """Listen no more for this one; in the thread of the loop."""
        place.wake()
        silent = [channel for channel in place.channels if self._places.get(channel) == {place}]
        for channel in place.channels:
            self._places.get(channel, set()).discard(place)
        for channel in silent:
            del self._places[channel]
        if silent and not self.ended:
            self.write(pack(("UNSUBSCRIBE", *silent)))

    def received(self, reply: Any) -> None:  # noqa: ANN401 - whatever the server says
        """A message, a confirmation, or a sign of life."""
        self._heard, self._pinged = self.loop.time(), None
        if isinstance(reply, ReplyError):
            self.end(str(self._wire.meaning(reply)))
            return
        kind, channel = reply[0], reply[1]
        if kind == b"message":
            self._patience = 1
            for place in self._places.get(channel, ()):
                place.told(reply[2])
        elif kind == b"subscribe":
            self._unconfirmed[channel] -= 1
            if not self._unconfirmed[channel]:
                del self._unconfirmed[channel]
                for future in self._joining.pop(channel, ()):
                    if not future.done():
                        future.set_result(None)

    def finished(self, why: str) -> None:
        """All who listen must start over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.loop.is_closed():
            return
        for futures in self._joining.values():
            for future in futures:
                if not future.done():
                    future.set_exception(Unanswered(why))
        self._joining.clear()
        for places in self._places.values():
            for place in places:
                place.wake()

    def _watch(self) -> None:
        """Ask for a sign of life after a while of silence, and end if none comes."""
        now = self.loop.time()
        if self._pinged is not None and now >= self._alarm():
            self._timer = None
            self.end(f"no sign of life for {REPLY:.0f} s")
            return
        if self._pinged is None and now >= self._alarm():
            self._pinged = now
            self._patience = min(2 * self._patience, LONGEST)
            self.write(_PING)
            if self.ended:
                return
        # Not later than this: another call may meet trouble meanwhile.
        soon = min(self._alarm(), now + PING)
        self._timer = self.loop.call_at(max(soon, now + 0.01), self._watch)

    def _alarm(self) -> float:
        if self._pinged is None:
            doubted = self._wire.doubted > self._heard
            return self._heard + PING * (1 if doubted else self._patience)
        # A loop that was blocked for a while asks first, and gives the answer its time.
        return max(self._heard + REPLY, self._pinged + REPLY - PING)


class Place:
    """Where one watch listens."""

    def __init__(self, bells: Bells, channels: tuple[bytes, ...]) -> None:
        self.channels = channels
        self._bells = bells
        self._inbox = deque[bytes]()
        self._sleeper: asyncio.Future[None] | None = None
        self._overrun = False

    def serves(self, loop: object) -> bool:
        """Whether a caller in this loop can go on with it."""
        return loop is self._bells.loop and not self._bells.ended and not self._overrun

    def told(self, payload: bytes) -> None:
        """Something was published."""
        if len(self._inbox) >= _INBOX:
            self._overrun = True
        else:
            self._inbox.append(payload)
        self.wake()

    def wake(self) -> None:
        """End the sleep of whoever hears."""
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    async def hear_async(self, seconds: float) -> list[bytes]:
        """What was published; nothing if the time is up.  Unanswered if it ended."""
        if not self._inbox and not self._bells.ended and seconds > 0:
            self._sleeper = self._bells.loop.create_future()
            timer = self._bells.loop.call_later(seconds, self.wake)
            try:
                await self._sleeper
            finally:
                timer.cancel()
                self._sleeper = None
        if self._bells.ended:
            raise Unanswered(self._bells.ended)
        if self._overrun:
            raise Unanswered("it told more than was listened to")
        heard = list(self._inbox)
        self._inbox.clear()
        return heard

    def leave(self, *, well: bool) -> None:  # noqa: ARG002 - others share the connection
        """Stop listening."""
        bells = self._bells
        if not bells.loop.is_closed():
            within(bells.loop, lambda: bells.leave(self))
