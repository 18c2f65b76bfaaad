"""A connection of an event loop: bytes out at once, replies in as they come.

A plain socket under ``add_reader``, not a transport: whoever closes the store may be in another
thread, or come when the loop is gone, and must be able to let go of it all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hiredis import ProtocolError

from interlock.stores.redis.connection import Connection, reason

if TYPE_CHECKING:
    from interlock.stores.redis.wire import Wire

_CHUNK = 1 << 18
_WANT = frozenset(("SSLWantReadError", "SSLWantWriteError"))


class Stream:
    """One socket in one event loop; subclasses say what to do with replies and with the end."""

    def __init__(self, wire: Wire, loop: asyncio.AbstractEventLoop, connection: Connection) -> None:
        self.loop = loop
        self.ended = ""
        self._wire = wire
        self._connection = connection
        self._sock = connection.sock
        self._reader = connection.reader
        self._out: list[bytes] = []
        self._rest = b""
        self._sock.setblocking(False)
        loop.add_reader(self._sock.fileno(), self._readable)

    @property
    def usable(self) -> bool:
        """Whether something new can be asked over it."""
        return not self.ended

    def received(self, reply: Any) -> None:  # noqa: ANN401 - whatever the server says
        """One reply came."""
        raise NotImplementedError

    def finished(self, why: str) -> None:
        """It is over; there will be no further reply."""
        raise NotImplementedError

    def write(self, data: bytes) -> None:
        """Send at once."""
        if self._rest:
            self._rest += data
        else:
            self._send(data)

    def write_soon(self, data: bytes) -> None:
        """Send together with whatever else is written in this turn of the loop."""
        if not self._out:
            self.loop.call_soon(self._flush)
        self._out.append(data)

    def end(self, why: str) -> None:
        """Close it, in its own loop; or in any thread if that does not run."""
        if self.ended:
            return
        self.ended = why
        if not self.loop.is_closed():
            fileno = self._sock.fileno()
            with suppress(Exception):  # a loop may be half gone
                self.loop.remove_reader(fileno)
                self.loop.remove_writer(fileno)
        self._wire.drop(self._connection)
        self.finished(why)

    def _flush(self) -> None:
        if not self.ended:
            data, self._out = b"".join(self._out), []
            self.write(data)

    def _send(self, data: bytes) -> None:
        """Hand over what goes; the rest waits until the socket takes more."""
        try:
            sent = self._sock.send(data)
        except OSError as error:
            if not _later(error):
                self.end(reason(error))
                return
            sent = 0
        if sent < len(data) and not self._rest:
            self.loop.add_writer(self._sock.fileno(), self._writable)
        elif sent == len(data) and self._rest:
            self.loop.remove_writer(self._sock.fileno())
        self._rest = data[sent:]

    def _writable(self) -> None:
        self._send(self._rest)

    def _readable(self) -> None:
        try:
            data = self._sock.recv(_CHUNK)
        except OSError as error:
            if not _later(error):
                self.end(reason(error))
            return
        if not data:
            self.end("it closed the connection")
            return
        reader = self._reader
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                self.received(reply)
        except (ProtocolError, LookupError, TypeError) as error:
            self.end(f"it does not speak our language ({error})")
            return
        if self._connection.tls and not self.ended and self._connection.sock.pending():  # type: ignore[attr-defined]
            self.loop.call_soon(self._again)  # decrypted already: the selector sees nothing

    def _again(self) -> None:
        if not self.ended:
            self._readable()


def within(loop: asyncio.AbstractEventLoop, act: Callable[[], object]) -> None:
    """Do something with what belongs to a loop, where that is safe."""
    try:
        here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is loop or not loop.is_running():
        act()
    else:
        try:
            loop.call_soon_threadsafe(act)
        except RuntimeError:  # closed this very moment
            act()


def _later(error: OSError) -> bool:
    return isinstance(error, BlockingIOError) or type(error).__name__ in _WANT
