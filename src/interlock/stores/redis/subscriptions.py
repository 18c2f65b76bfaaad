"""Pub/sub for blocking callers: each watch listens on a connection of its own.

In an event loop all watches share one connection (async_connections.py).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hiredis import ProtocolError, ReplyError

from interlock.stores.network import REPLY, Unanswered, Unsent
from interlock.stores.redis.scripts import pack

if TYPE_CHECKING:
    from interlock.stores.redis.transport import Connection, RedisTransport


PING = 1.5
"""Seconds of silence after which a listener asks whether the server is still there; twice as many
each time that it was for nothing, up to ``LONGEST`` times as many, unless another call is in
trouble."""
LONGEST = 14
_PING = pack(("PING",))


class BlockingSubscription:
    """A connection that listens on some channels; an idle one may listen on others later."""

    def __init__(self, transport: RedisTransport, connection: Connection) -> None:
        self._transport = transport
        self._connection = connection
        self._channels: frozenset[bytes] = frozenset()
        self._left = False
        self._heard = time.monotonic()
        self._pinged: float | None = None
        self._patience = 1

    @classmethod
    def join(cls, transport: RedisTransport, channels: tuple[bytes, ...]) -> BlockingSubscription:
        """Listen on these channels: it gets everything that is published from now on."""
        line = transport.idle_line() or cls(transport, transport.dial())
        try:
            line.listen(channels)
        except BaseException as error:
            line.close()
            if isinstance(error, (Unsent, Unanswered)):
                transport.empty()  # the idle ones are no better
            raise
        return line

    def listen(self, channels: tuple[bytes, ...]) -> None:
        """Subscribe, and wait until that is confirmed for each of them."""
        connection = self._connection
        connection.busy = True
        self._channels = frozenset(channels)
        unconfirmed = set(channels)
        connection.send(pack(("SUBSCRIBE", *channels)))
        while unconfirmed:
            reply = connection.receive()
            if isinstance(reply, ReplyError):
                raise self._transport.meaning(reply)
            if reply[0] == b"subscribe":
                unconfirmed.discard(reply[1])
        self._heard, self._pinged = time.monotonic(), None
        connection.busy = False

    def serves(self, loop: object) -> bool:
        """Whether a caller can go on with it: not one in an event loop."""
        return loop is None

    def receive(self, seconds: float) -> list[bytes]:
        """The published payloads; none if the time is up.  Unanswered if the server is silent."""
        self._connection.busy = True
        try:
            return self._listened(time.monotonic() + seconds)
        finally:
            self._connection.busy = False
            if self._left:
                self.close()

    def _listened(self, ends: float) -> list[bytes]:
        while True:
            payloads = self._parsed()
            if payloads:
                self._patience = 1
                return payloads
            now = time.monotonic()
            # Not longer than this: another call may meet an outage first.
            if self._connection.readable(max(0.0, min(ends, self._alarm(), now + PING) - now)):
                self._connection.feed()
                self._heard, self._pinged = time.monotonic(), None
                continue
            now = time.monotonic()
            if now >= self._alarm():
                self._stir(now)
            if now >= ends:
                return []

    def leave(self, *, well: bool) -> None:
        """Stop listening; a good line is kept for the next watch."""
        if self._connection.busy:  # a thread listens: wake it, and it will close
            self._left = True
            self._connection.cut()
        elif well and self._parting():
            self._transport.keep_line(self)
        else:
            self.close()

    def close(self) -> None:
        """End the connection."""
        self._transport.drop(self._connection)

    def _parting(self) -> bool:
        try:
            self._connection.send(pack(("UNSUBSCRIBE", *self._channels)))
        except (Unsent, Unanswered):
            return False
        return True

    def _alarm(self) -> float:
        if self._pinged is None:
            doubted = self._transport.doubted > self._heard
            return self._heard + PING * (1 if doubted else self._patience)
        # Who did not listen for a while asks first, and gives the answer its time.
        return max(self._heard + REPLY, self._pinged + REPLY - PING)

    def _stir(self, now: float) -> None:
        if self._pinged is not None:
            raise Unanswered(f"no sign of life for {REPLY:.0f} s")
        self._pinged = now
        self._patience = min(2 * self._patience, LONGEST)
        self._connection.send(_PING)

    def _parsed(self) -> list[bytes]:
        """The payloads that have arrived in full; what earlier channels left is dropped."""
        found: list[bytes] = []
        reader = self._connection.reader
        try:
            while (reply := reader.gets()) is not False:
                if reply[0] == b"message" and reply[1] in self._channels:
                    found.append(reply[2])
        except ProtocolError as error:
            raise Unanswered(str(error)) from error
        return found
