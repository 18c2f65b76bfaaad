"""Connections for callers that may block, and the way to a new connection for everybody.

One thread has a connection at a time; what is idle waits in a pool.  Nothing is repeated here,
and whatever interrupts an exchange ends the connection, so that no answer can be taken for that
of another request.

Event loops have connections of their own (link.py), imported only when one asks: a command that
ends after one call does not pay for asyncio.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hiredis import ProtocolError, Reader, ReplyError

from interlock.errors import StoreRefused, StoreUnsuitable
from interlock.stores.address import Address
from interlock.stores.network import CONNECT, REPLY, Unanswered, Unsent
from interlock.stores.redis.grade import Grade, graded, greeting
from interlock.stores.redis.packing import pack
from interlock.stores.redis.replies import Late, Moved, meaning

if TYPE_CHECKING:
    from interlock.stores.redis.link import Loops
    from interlock.stores.redis.seat import Line

LATEST = 60_000_000
"""Microseconds after which a commit that was sent must not take effect any more."""
_IDLE = 16
_CHUNK = 65536
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Connection:
    """One socket and the parser of what comes from it."""

    def __init__(
        self, sock: socket.socket, place: tuple[str, int] | None = None, *, tls: bool = False
    ) -> None:
        self.sock = sock
        self.place = place
        self.tls = tls
        self.busy = True  # somebody waits for it, and will close it when it ends
        self.reader = Reader()
        self._recv = sock.recv
        self._send = sock.send
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)
        if tls:
            sock.settimeout(REPLY)
        else:  # saves a system call for each that follows
            sock.settimeout(None)
            limit = struct.pack("ll", int(REPLY), int(REPLY % 1 * 1_000_000))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def exchange(self, request: bytes) -> Any:  # noqa: ANN401 - whatever the server says
        """Send, and receive one reply."""
        self.send(request)
        return self.receive()

    def send(self, request: bytes) -> None:
        """Hand a request to the kernel; Unsent if not one byte of it went."""
        sent = 0
        try:
            sent = self._send(request)
            while sent < len(request):
                sent += self._send(memoryview(request)[sent:])
        except OSError as error:
            # Of what was encrypted, nobody knows how much went.
            raise (Unanswered if sent or self.tls else Unsent)(reason(error)) from error

    def receive(self) -> Any:  # noqa: ANN401
        """The next reply."""
        reader = self.reader
        try:
            reply = reader.gets()
            while reply is False:
                self.feed()
                reply = reader.gets()
        except ProtocolError as error:
            raise Unanswered(f"it does not speak Redis ({error})") from error
        return reply

    def feed(self) -> None:
        """Receive something."""
        try:
            data = self._recv(_CHUNK)
        except OSError as error:
            raise Unanswered(reason(error)) from error
        if not data:
            raise Unanswered("it closed the connection")
        self.reader.feed(data)

    def readable(self, seconds: float) -> bool:
        """Whether there is something to receive, or the end, within this time."""
        return bool(
            (self.tls and self.sock.pending())  # type: ignore[attr-defined]  # of TLS sockets
            or self._poll.poll(seconds * 1000)
        )

    def cut(self) -> None:
        """End it from another thread: whoever waits for it wakes and closes it."""
        with suppress(OSError):
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the socket."""
        self.sock.close()


class Wire:
    """All connections of a store."""

    def __init__(self, address: Address, meta: bytes, welcome: Callable[[Grade], None]) -> None:
        self.where = address.shown
        self._address = address
        self._meta = meta
        self._welcome = welcome
        self._idle = deque[Connection]()
        self._lines: deque[Line] = deque()
        self._all = set[Connection]()
        self._moved: tuple[str, int] | None = None
        self._loops: Loops | None = None
        self.closed = False
        self._learned = (0, 0.0)

    def call(self, request: bytes) -> Any:  # noqa: ANN401
        """The answer to a request."""
        connection = self._take()
        try:
            reply = connection.exchange(request)
        except BaseException:
            self.drop(connection)
            raise
        self._give(connection)
        if isinstance(reply, ReplyError):
            raise self.meaning(reply)
        return reply

    def call_async(self, request: bytes) -> Awaitable[Any]:
        """The same for an event loop."""
        loops = self._loops or self.loops()
        return loops.call(request)

    def loops(self) -> Loops:
        """The connections of event loops."""
        if self._loops is None:
            from interlock.stores.redis.link import Loops

            self._loops = Loops(self)
        return self._loops

    def latest(self) -> int:
        """By when, by the server's clock, what is sent now must have happened."""
        now, learned = self._learned
        return now + int((time.clock_gettime(_CLOCK) - learned) * 1_000_000) + LATEST

    def learn(self, now: int) -> None:
        """Note what the server's clock says; that the answer took a while errs on the safe side."""
        self._learned = (now, time.clock_gettime(_CLOCK))

    def meaning(self, reply: ReplyError) -> Exception:
        """The exception that an error reply is."""
        error = meaning(str(reply), self.where)
        if isinstance(error, Moved):
            host, port = error.place  # without a host it means its own
            self._moved = (host or self._address.hosts[0][0], port)
            while self._idle:
                self.drop(self._idle.pop())
        elif isinstance(error, Late):
            self.learn(error.now)
        return error

    def dial(self) -> Connection:
        """A new connection to a server that will do; whoever gets it drops it."""
        connection = self._reach()
        self._all.add(connection)
        try:
            self._greet(connection)
        except BaseException:
            self.drop(connection)
            raise
        return connection

    def drop(self, connection: Connection) -> None:
        """Be done with a connection."""
        self._all.discard(connection)
        connection.close()

    def idle_line(self) -> Line | None:
        """A connection that listened before, if there is one."""
        try:
            return self._lines.pop()
        except IndexError:
            return None

    def keep_line(self, line: Line) -> None:
        """Keep a listening connection for the next who wants one."""
        if self.closed or len(self._lines) >= _IDLE:
            line.close()
        else:
            self._lines.append(line)

    def close(self) -> None:
        """Cut everything, from whatever thread; calls under way are Unanswered."""
        self.closed = True
        while self._idle:
            self.drop(self._idle.pop())
        while self._lines:
            self._lines.pop().close()
        for connection in tuple(self._all):
            connection.cut()
            if not connection.busy:
                self.drop(connection)
        if self._loops is not None:
            self._loops.close()

    async def close_async(self) -> None:
        """The same, and wait until nothing is left in this event loop."""
        self.close()
        if self._loops is not None:
            await self._loops.ended()

    def _take(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.readable(0):
                return connection
            self.drop(connection)  # ended, or out of step
        return self.dial()

    def _give(self, connection: Connection) -> None:
        if self.closed or len(self._idle) >= _IDLE:
            self.drop(connection)
        else:
            self._idle.append(connection)

    def _reach(self) -> Connection:
        """A connection to where the slot is, or to the first place of the URL that answers."""
        address, moved = self._address, self._moved
        places = (moved,) if moved is not None else address.hosts or (None,)
        trouble: Exception | None = None
        for place in places:
            try:
                return Connection(_connected(address, place), place, tls=address.tls)
            except OSError as error:
                trouble = error
        self._moved = None  # start over where the URL says
        raise Unsent(reason(trouble)) from trouble

    def _greet(self, connection: Connection) -> None:
        """Ask what it is; nothing else was sent yet, so all trouble is Unsent."""
        if self.closed:
            raise Unsent("closed")
        commands = greeting(self._address, self._meta)
        try:
            connection.send(b"".join([pack(command) for command in commands]))
            replies = [self._first(connection), *(connection.receive() for _ in commands[1:])]
        except Unanswered as error:
            self._refused(error)
            raise Unsent(str(error)) from error
        for reply in replies:
            if isinstance(reply, ReplyError) and str(reply).startswith("MOVED "):
                raise self.meaning(reply)
        grade = graded(replies, self.where)
        self.learn(grade.now)
        self._welcome(grade)

    def _first(self, connection: Connection) -> Any:  # noqa: ANN401
        """The first reply tells whether the other side speaks our language, and lets us in."""
        try:
            reply = connection.receive()
        except Unanswered as error:
            if isinstance(error.__cause__, ProtocolError):
                raise StoreUnsuitable(
                    f"{self.where} is not a Redis server; see the host and the port"
                ) from error
            if connection.place is not None and not connection.tls and not self.closed:
                from interlock.stores.redis.tls import spoken

                if spoken(connection.place):
                    raise StoreRefused(
                        f"{self.where} speaks TLS; write the URL with rediss://"
                    ) from error
            raise
        if isinstance(reply, ReplyError):
            raise self.meaning(reply)
        return reply

    def _refused(self, error: Unanswered) -> None:
        """A certificate that the server misses is told when it is first read from."""
        if self._address.tls and isinstance(error.__cause__, OSError):
            from interlock.stores.redis.tls import refusal

            refused = refusal(error.__cause__, self.where)
            if refused is not None:
                raise refused from error


def _connected(address: Address, place: tuple[str, int] | None) -> socket.socket:
    if place is None:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(CONNECT)
            sock.connect(address.socket)
        except BaseException:
            sock.close()
            raise
        return sock
    sock = socket.create_connection(place, CONNECT)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not address.tls:
        return sock
    from interlock.stores.redis.tls import secured

    return secured(sock, address, *place)


def reason(error: BaseException | None) -> str:
    """What went wrong on the way, in a few words."""
    if isinstance(error, (BlockingIOError, TimeoutError)):
        return f"no answer within {REPLY:.0f} s"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
