"""Connections of blocking callers: the pool, connecting and reconnecting.

``Connection`` is one socket and the parser of its replies.  It knows what can happen to a request
on the way (see network.py), and nothing of pools or event loops.

``RedisTransport`` has all connections of a store, and connects for event loops too.  One thread
has a connection at a time; idle ones wait in a pool.  Nothing is repeated here, and an interrupted
exchange ends its connection, so that its answer cannot be taken for that of another request.

Event loops have connections of their own (async_connections.py), imported only when a loop needs
one: a command that ends after one call does not import asyncio.
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

from interlock.errors import InterlockError, StoreReadOnly, StoreRefused
from interlock.stores.address import Address
from interlock.stores.network import (
    CONNECT,
    LARGEST_REPLY,
    LEAST_REPLY,
    OPENING,
    REPLY,
    Unanswered,
    Unsent,
)
from interlock.stores.reconnect import Reconnects
from interlock.stores.redis.errors import MovedToNode, RequestTooLate, meaning, no_redis
from interlock.stores.redis.scripts import pack
from interlock.stores.redis.server import ServerFacts, greeting, server_facts
from interlock.thread_calls import from_handler

if TYPE_CHECKING:
    from interlock.stores.redis.async_connections import LoopConnections, PipelinedConnection
    from interlock.stores.redis.scripts import CommitPacker
    from interlock.stores.redis.watch import BlockingSubscription


_CHUNK = 65536
LATEST = 10_000_000
"""Microseconds after which a commit that was sent must not take effect any more.

Its sender listens for four seconds, and what it knows of the server's clock is at most as old as
an answer: a later reply has no listener.
"""
MOST_ELEMENTS = 1 << 20
_VALUE, _ARRAY, _LINES = ord("$"), ord("*"), b"+-:"
"""How an answer begins in the version of the protocol that Interlock speaks."""
_IDLE = 16
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_KEEPALIVE = [
    (getattr(socket, name), value)
    for name, value in (
        ("TCP_KEEPIDLE", 30),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", int(REPLY * 1000) + 1000),
    )
    if hasattr(socket, name)
]
"""Not every system has all of them.

The last one ends what the kernel still has of a request that was given up, though its program was
killed: it is not delivered when the network comes back.
"""


def boot_time() -> float:
    """Seconds by a clock that goes on while the machine sleeps."""
    return time.clock_gettime(_CLOCK)


class ReplyReader:
    """Parses replies; ProtocolError if one is larger than Interlock ever asks for.

    The parser makes an array as long as the server announces it, and collects what has no end.  So
    what arrives is looked through first, header by header; payloads are skipped.
    """

    def __init__(self) -> None:
        self._reader = Reader()
        self.has_data = self._reader.has_data
        self._header = b""  # the beginning of one
        self._skipped = 0  # bytes of a payload that are still to come
        self._size = self._elements = 0  # of this reply

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the connection."""
        self._size += len(data)
        try:
            self._look_through(self._header + data)
        except ValueError:
            raise ProtocolError("a length that is no number") from None
        if self._elements > MOST_ELEMENTS:
            raise ProtocolError(f"an answer of more than {MOST_ELEMENTS} elements")
        if max(self._size, self._skipped) > LARGEST_REPLY:
            raise ProtocolError(f"an answer of more than {LARGEST_REPLY >> 20} MiB")
        if len(self._header) > _CHUNK:
            raise ProtocolError("a line without an end")
        self._reader.feed(data)

    def _look_through(self, text: bytes) -> None:
        at, ends, find = self._skipped, len(text), text.find
        while at < ends:
            kind, line = text[at], find(b"\r", at)
            if line < 0:
                break
            if kind == _VALUE:
                size = int(text[at + 1 : line])
                at = line + 4 + size if size >= 0 else line + 2
                continue
            if kind == _ARRAY:
                self._elements += 1 + max(0, int(text[at + 1 : line]))
            elif kind not in _LINES:
                raise ProtocolError("an answer of another kind")
            elif (line := find(b"\r\n", at)) < 0:
                break
            at = line + 2
        self._header, self._skipped = text[at:], max(0, at - ends)

    def gets(self) -> Any:  # noqa: ANN401 - any reply of the server
        """The next reply; False if it is not complete."""
        reply = self._reader.gets()
        if reply is not False:
            self._size = self._elements = 0
        return reply


class Connection:
    """One socket and the parser of what comes from it."""

    def __init__(
        self,
        sock: socket.socket,
        endpoint: tuple[str, int] | None = None,
        *,
        tls: bool = False,
        within: float = REPLY,
    ) -> None:
        self.sock = sock
        self.endpoint = endpoint
        self.made = time.monotonic()
        self.tls = tls
        self.busy = True  # a thread waits for it, and will close it when it ends
        self.reader = ReplyReader()
        self._recv = sock.recv
        self._send = sock.send
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)
        sock.settimeout(None)
        self.wait_for(within)

    def exchange(self, request: bytes, within: float = REPLY) -> Any:  # noqa: ANN401 - any reply of the server
        """Send, and receive one reply."""
        if within != self._within:
            self.wait_for(within)
        self.send(request)
        return self.receive()

    def wait_for(self, seconds: float) -> None:
        """Wait so long for what is received, and no longer."""
        self._within = seconds
        if self.tls:
            self.sock.settimeout(seconds)
        else:  # saves a system call for each that follows
            limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def send(self, request: bytes) -> None:
        """Hand a request to the kernel; Unsent if not one byte of it went."""
        sent = 0
        try:
            sent = self._send(request)
            while sent < len(request):
                sent += self._send(memoryview(request)[sent:])
        except OSError as error:
            if from_handler(error):
                raise
            # How much of the encrypted text went is unknown.
            raise (Unanswered if sent or self.tls else Unsent)(self._reason(error)) from error

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
            if from_handler(error):
                raise
            raise Unanswered(self._reason(error)) from error
        if not data:
            raise Unanswered("it closed the connection")
        try:
            self.reader.feed(data)
        except ProtocolError as error:
            raise Unanswered(f"it does not speak Redis ({error})") from error

    def readable(self, seconds: float) -> bool:
        """Whether there is something to receive, or the end, within this time."""
        return bool(
            (self.tls and self.sock.pending())  # type: ignore[attr-defined]  # of TLS sockets
            or self._poll.poll(seconds * 1000)
        )

    def _reason(self, error: OSError) -> str:
        return reason(error, self._within)

    def cut(self) -> None:
        """End it from another thread: the thread that waits for it wakes and closes it."""
        with suppress(OSError):
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()


def _connected(address: Address, endpoint: tuple[str, int] | None, within: float) -> socket.socket:
    """A socket that is connected to an endpoint, or to the socket that the address names."""
    if endpoint is None:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(within)
            sock.connect(address.socket)
        except BaseException:
            sock.close()
            raise
        return sock
    sock = socket.create_connection(endpoint, within)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # an idle one may be cut
    for option, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    if not address.tls:
        return sock
    from interlock.stores.redis.tls import secured

    return secured(sock, address, *endpoint)


def _left(ends: float) -> float:
    """What is left of the time for an answer, but some time for it in any case."""
    return max(LEAST_REPLY, ends - time.monotonic())


def reason(error: BaseException | None, within: float = REPLY) -> str:
    """What went wrong on the way, in a few words."""
    if isinstance(error, (BlockingIOError, TimeoutError)):
        return f"no answer within {within:.1g} s"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__


class RedisTransport:
    """All connections of a store.

    ``commits`` makes the requests of commits; the store sets it.
    """

    commits: CommitPacker

    def __init__(
        self, address: Address, meta: bytes, welcome: Callable[[ServerFacts], None]
    ) -> None:
        self.where = address.shown
        self._address = address
        self._meta = meta
        self._welcome = welcome
        self._idle = deque[Connection]()
        self._subscriptions: deque[BlockingSubscription] = deque()
        self._all = set[Connection]()
        self._moved: tuple[str, int] | None = None
        self._reconnects = Reconnects()
        self._loops: LoopConnections | None = None
        self.closed = False
        self.doubted = float("-inf")
        """When, by the monotonic clock, a call last met an outage: listeners ping soon."""
        self._learned = (0, 0.0)

    def call(self, request: bytes, within: float = REPLY) -> Any:  # noqa: ANN401
        """The answer to a request."""
        connection, within = self._take(within)
        try:
            reply = connection.exchange(request, within)
        except BaseException as error:
            self.drop(connection)
            if isinstance(error, Unanswered):
                self.fail(connection, error)
                self.empty()  # the idle ones are no better
            raise
        self._give(connection)
        self.note_answer()
        if isinstance(reply, ReplyError):
            raise self.meaning(reply)
        return reply

    def call_async(self, request: bytes, within: float = REPLY) -> Awaitable[Any]:
        """Send from an event loop."""
        loops = self._loops or self.loops()
        return loops.call(request, within)

    def pipeline(self) -> PipelinedConnection | None:
        """The connection that the calls of the running event loop share, if there is one."""
        return None if self._loops is None else self._loops.pipeline()

    def loops(self) -> LoopConnections:
        """The connections of event loops."""
        if self._loops is None:
            from interlock.stores.redis.async_connections import LoopConnections

            self._loops = LoopConnections(self)
        return self._loops

    def latest(self) -> int:
        """By when, by the server's clock, what is sent now must have happened."""
        now, learned = self._learned
        return now + int((boot_time() - learned) * 1_000_000) + LATEST

    def earliest(self) -> int:
        """What the server's clock says now, or a little less: its answer took a while."""
        now, learned = self._learned
        return now + int((boot_time() - learned) * 1_000_000)

    def learn(self, now: int) -> None:
        """Note what the server's clock says; that the answer took a while errs on the safe side."""
        self._learned = (now, boot_time())

    def meaning(self, reply: ReplyError) -> Exception:
        """The exception that an error reply is; where to ask from now on is remembered."""
        error = meaning(str(reply), self._address)
        if isinstance(error, RequestTooLate):
            self.learn(error.now)
        elif isinstance(error, MovedToNode):
            host, port = error.endpoint  # without a host it means its own
            self._moved = (host or self._address.hosts[0][0], port)
            self.empty()
        elif isinstance(error, StoreReadOnly):  # it was the master before
            self._moved = None
            self.empty()
            if len(self._address.hosts) > 1:
                return Unsent("it is a replica now")
        return error

    def leaves(self, reply: ReplyError) -> bool:
        """Whether an error reply means that another server is to be asked."""
        return isinstance(meaning(str(reply), self._address), (MovedToNode, StoreReadOnly))

    def dial(self, within: float = REPLY) -> Connection:
        """A new connection to a suitable server, in time; the caller closes it."""
        self._reconnects.attempt()
        began = time.monotonic()
        try:
            return self._dial(within)
        except (MovedToNode, InterlockError):
            self.note_answer()
            raise
        except Unsent as error:
            self._reconnects.fail(began, str(error))
            raise

    def fail(self, connection: Connection, error: Exception) -> None:
        """A connection failed without an answer: the server may be away."""
        self._reconnects.fail(connection.made, str(error))

    def note_answer(self) -> None:
        """The server answered a request."""
        if self._reconnects.away:
            self._reconnects.succeed()

    def _dial(self, within: float) -> Connection:
        """Of several in the URL the first that is reached and takes writes.

        If there is none, and not all of them are replicas, a failover may be under way.
        """
        moved = self._moved
        endpoints = (moved,) if moved is not None else self._address.hosts or (None,)
        trouble: Unsent | None = None
        replica: StoreReadOnly | None = None
        share = min(within, max(within / len(endpoints), OPENING))  # one may be frozen
        for endpoint in endpoints:
            try:
                return self._reach(endpoint, share)
            except MovedToNode:
                raise
            except Unsent as error:
                trouble = error
            except StoreReadOnly as error:
                replica = error
        self._moved = None  # start over where the URL says
        raise trouble or replica or AssertionError("a URL names an endpoint")

    def drop(self, connection: Connection) -> None:
        """Be done with a connection."""
        self._all.discard(connection)
        connection.close()

    def idle_subscription(self) -> BlockingSubscription | None:
        """A connection that listened before, if there is one."""
        try:
            return self._subscriptions.pop()
        except IndexError:
            return None

    def keep_subscription(self, subscription: BlockingSubscription) -> None:
        """Keep a listening connection for the next who wants one."""
        if len(self._subscriptions) >= _IDLE:
            subscription.close()
        else:
            self._subscriptions.append(subscription)
            if self.closed:
                self.empty()

    def close(self) -> None:
        """Cut everything, from any thread; calls under way are Unanswered."""
        self.closed = True
        self.empty()
        for connection in tuple(self._all):
            connection.cut()
            if not connection.busy:
                self.drop(connection)
        if self._loops is not None:
            self._loops.close()

    async def close_async(self) -> None:
        """Close everything, and wait until nothing is left in this event loop."""
        self.close()
        if self._loops is not None:
            await self._loops.ended()

    def _take(self, within: float) -> tuple[Connection, float]:
        """A connection, and what is left of the time."""
        try:
            while True:
                connection = self._idle.pop()
                if not connection.readable(0):
                    return connection, within
                self.drop(connection)  # ended, or out of step
        except IndexError:
            ends = time.monotonic() + within
            return self.dial(within), _left(ends)

    def _give(self, connection: Connection) -> None:
        if len(self._idle) >= _IDLE:
            self.drop(connection)
        else:
            self._idle.append(connection)
            if self.closed:  # looked at last, so that close() cannot miss it
                self.empty()

    def empty(self) -> None:
        """Close idle connections; threads that do so at the same time get different ones."""
        with suppress(IndexError):
            while True:
                self.drop(self._idle.pop())
        while (subscription := self.idle_subscription()) is not None:
            subscription.close()

    def _reach(self, endpoint: tuple[str, int] | None, within: float) -> Connection:
        ends = time.monotonic() + within
        try:
            sock = _connected(self._address, endpoint, min(CONNECT, within))
            connection = Connection(sock, endpoint, tls=self._address.tls, within=_left(ends))
        except OSError as error:
            if from_handler(error):
                raise
            raise Unsent(reason(error)) from error
        self._all.add(connection)
        try:
            self._greet(connection)
        except BaseException:
            self.drop(connection)
            raise
        return connection

    def _greet(self, connection: Connection) -> None:
        """Ask what it is; nothing else was sent yet, so all trouble is Unsent."""
        if self.closed:
            raise Unsent("closed")
        commands = greeting(self._address, self._meta)
        try:
            connection.send(b"".join([pack(command) for command in commands]))
            replies = [self._first(connection), *(connection.receive() for _ in commands[1:])]
        except Unanswered as error:
            if isinstance(error.__cause__, ProtocolError):
                raise no_redis(self.where) from error
            self._refuse_without_certificate(connection, error)
            raise Unsent(str(error)) from error
        for reply in replies:
            if isinstance(reply, ReplyError) and str(reply).startswith("MOVED "):
                raise self.meaning(reply)
        try:
            server = server_facts(replies, self._address)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise no_redis(self.where) from error
        self.learn(server.now)
        self._welcome(server)

    def _first(self, connection: Connection) -> Any:  # noqa: ANN401
        """The first reply shows whether it is a Redis server and accepts the login."""
        try:
            reply = connection.receive()
        except Unanswered as error:
            self._refuse_plain_text(connection, error)
            raise
        if isinstance(reply, ReplyError):
            raise self.meaning(reply)
        return reply

    def _refuse_plain_text(self, connection: Connection, error: Unanswered) -> None:
        """Refuse a server that hangs up on plain words because it speaks TLS.

        One that answered before does not: it is away, and gets no further connection now.
        """
        answered = self._learned[0] > 0
        hung_up = error.__cause__ is None or isinstance(error.__cause__, ConnectionError)
        if (
            hung_up
            and not answered
            and connection.endpoint is not None
            and not (connection.tls or self.closed)
        ):
            from interlock.stores.redis.tls import spoken

            if spoken(connection.endpoint):
                raise StoreRefused(
                    f"{self.where} speaks TLS; write the URL with rediss://"
                ) from error

    def _refuse_without_certificate(self, connection: Connection, error: Unanswered) -> None:
        """The first read shows whether the server wants a certificate."""
        if self._address.tls and isinstance(error.__cause__, OSError):
            from interlock.stores.redis.tls import complaint, refusal

            refused = refusal(error.__cause__, self.where)
            if refused is None and connection.endpoint is not None and not self.closed:
                refused = complaint(self._address, connection.endpoint)
            if refused is not None:
                raise refused from error
