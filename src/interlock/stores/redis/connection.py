"""One connection: a socket, and the parser of what comes from it.

It knows what can happen to a request on the way (see network.py), and nothing of pools or loops.
"""

from __future__ import annotations

import select
import socket
import struct
from contextlib import suppress
from typing import Any

from hiredis import ProtocolError, Reader

from interlock.stores.address import Address
from interlock.stores.network import CONNECT, REPLY, Unanswered, Unsent

_CHUNK = 65536

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


def connect(address: Address, place: tuple[str, int] | None) -> Connection:
    """A connection to a place, or to the socket that the address names; OSError if none."""
    return Connection(_connected(address, place), place, tls=address.tls)


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
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # an idle one may be cut unheard
    for option, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
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
