"""A TCP proxy that fails as networks do: it cuts, freezes, delays, and loses replies.

    with RedisServer(folder) as redis, Proxy("127.0.0.1", redis.port) as proxy:
        fleet = interlock.connect(proxy.through(redis.url()), agent="ada")
        proxy.drop_replies()     # the next request happens, and its reply is lost

It knows no protocol: a request is the data of one read from the client, a reply the data of one
read from the server.  On loopback, a small request that is sent at once is read at once.

One thread uses the sockets.  A method returns when that thread has done its work, so that the next
line of a test can rely on it.  A link is a client's connection and the one to the
server that goes with it; each of its two flows is a queue of chunks with the moment at which
each is due.

A request that was held back reaches the server even when its client has closed.  Such a link stays
until the server has been silent for a while: gRPC drops a request whose connection is closed
right behind it.
"""

from __future__ import annotations

import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

from interlock.testing.servers.process import HOST, Port, listener

Verdict: TypeAlias = Literal["drop reply", "cut", "hold"] | None
Direction: TypeAlias = Literal["both", "requests", "replies"]

_CHUNK = 65536
_QUEUE_LIMIT = 1 << 20
_BACKLOG = 128
_QUIET = 0.5
_PATIENCE = 10.0
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, kw_only=True)
class ProxyCounts:
    """Connections and bytes so far."""

    connections: int
    open: int
    requests: int
    replies: int
    held_requests: int
    held_replies: int


class _Flow:
    """One direction of a link."""

    def __init__(self) -> None:
        self.queue: deque[tuple[float, bytes]] = deque()
        self.size = 0
        self.held = False
        self.ended = False
        self.passed_end = False

    def add(self, due: float, data: bytes) -> None:
        self.queue.append((due, data))
        self.size += len(data)

    def drain(self, sink: socket.socket, now: float) -> None:
        """Send the chunks that are due, as far as the other side accepts them."""
        while self.queue and self.queue[0][0] <= now:
            due, data = self.queue[0]
            sent = sink.send(data)
            self.size -= sent
            if sent < len(data):
                self.queue[0] = (due, data[sent:])
            else:
                self.queue.popleft()

    def wait(self, now: float) -> float | None:
        """Seconds until the next chunk is due."""
        return max(0.0, self.queue[0][0] - now) if self.queue else None


class _Link:
    """One client, and the connection to the server on its behalf."""

    def __init__(self, client: socket.socket, server: socket.socket | None) -> None:
        self.client: socket.socket | None = client
        self.server = server
        self.connecting = server is not None
        self.requests = _Flow()
        self.replies = _Flow()
        self.loses_reply = False
        self.swallowed = server is None
        self.lingers = False
        self.quiet_at = 0.0


class Proxy:
    """Stands between clients and one server, on a free loopback port; see the module's text."""

    def __init__(self, target_host: str, target_port: int) -> None:
        self.target = (target_host, target_port)
        self._port = Port()
        self._selector = selectors.DefaultSelector()
        self._links: list[_Link] = []
        self._connections = 0
        self._bytes = {"requests": 0, "replies": 0}
        self._callback: Callable[[bytes], Verdict] | None = None
        self._orders: deque[Callable[[], None]] = deque()
        self._wake_writer, self._wake_reader = socket.socketpair()
        self._listener: socket.socket | None = None
        self._closed = False
        self._failed: BaseException | None = None
        self._drops_from: list[_Link] | None = None
        self._reset_faults()
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._listen()
        self._thread = threading.Thread(target=self._run, name=f"proxy-{self.port}", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def port(self) -> int:
        """Where clients connect; it stays the same until ``close``."""
        return self._port.number

    def through(self, url: str) -> str:
        """The URL of the server, with the proxy in its place."""
        host, port = self.target
        return url.replace(f"{host}:{port}", f"{HOST}:{self.port}")

    @property
    def counts(self) -> ProxyCounts:
        """Connections and bytes so far."""
        found: list[ProxyCounts] = []
        self._do(lambda: found.append(self._count()))
        return found[0]

    def cut(self) -> None:
        """Reset all connections, and refuse new ones until ``heal``."""
        self._do(self._stop_listening)
        self.cut_once()

    def cut_once(self) -> None:
        """Reset all connections; new ones are welcome."""

        def order() -> None:
            for link in list(self._links):
                self._lose_client(link)

        self._do(order)

    def half_open(self) -> None:
        """Drop all data until ``heal``: connections stay open, new ones succeed, none delivers."""
        self._half_open = True
        self._sync()

    def delay(self, seconds: float, direction: Direction = "both") -> None:
        """Delay all data from now on by these seconds."""
        for flow in self._delays:
            if direction in ("both", flow):
                self._delays[flow] = seconds
        self._sync()

    def drop_replies(self, count: int = 1, connections: Literal["any", "open"] = "any") -> None:
        """Pass the next requests on, drop the reply to each, and reset its connection.

        ``open`` spares the connections that are made later.
        """

        def order() -> None:
            self._drops_from = list(self._links) if connections == "open" else None
            self._drops = count

        self._do(order)

    def hold_requests(self) -> None:
        """Keep what clients send until ``release_requests``, even if they close or are cut off."""
        self._holds_requests = True
        self._sync()

    def release_requests(self) -> None:
        """Deliver the data that was held, late."""
        self._do(self._release_requests)

    def hold_replies(self) -> None:
        """Keep what the server sends until ``release_replies``."""
        self._holds_replies = True
        self._sync()

    def release_replies(self) -> None:
        """Deliver the data that was held, late."""
        self._holds_replies = False
        self._sync()

    def on_request(self, callback: Callable[[bytes], Verdict] | None) -> None:
        """Let a callback decide about each request.

        None lets it pass, "drop reply" as ``drop_replies``, "cut" resets the connection before
        the server sees the request, and "hold" keeps it and what follows on its connection until
        ``release_requests``.  The callback runs in the thread of the proxy; what it raises cuts
        the connection, and is raised again by ``close``.
        """
        self._callback = callback
        self._sync()

    def heal(self) -> None:
        """Pass all data again, and deliver the data that was held.

        Connections that lost bytes in the meantime are reset.
        """

        def order() -> None:
            self._reset_faults()
            self._release_requests()
            for link in list(self._links):
                if link.swallowed:
                    self._close(link)
            if self._listener is None:
                self._listen()

        self._do(order)

    def close(self) -> None:
        """Reset all connections and end the thread."""

        def order() -> None:
            self._closed = True

        if self._closed:
            return
        self._do(order)
        self._thread.join(_PATIENCE)
        self._port.close()
        if self._failed is not None:
            raise self._failed

    def _run(self) -> None:
        try:
            while not self._closed:
                for key, events in self._selector.select(self._prepare()):
                    if key.fileobj is self._wake_reader:
                        self._carry_out_orders()
                    elif key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.fileobj, socket.socket):
                        self._serve(key.data, key.fileobj, events)
        finally:
            self._stop_listening()
            for link in list(self._links):
                self._close(link)
            self._selector.close()
            self._wake_reader.close()
            self._wake_writer.close()

    def _sync(self) -> None:
        """Return when the thread has seen the settings."""
        self._do(lambda: None)

    def _do(self, order: Callable[[], object]) -> None:
        """Let the thread carry out an order; return when it has."""
        if self._closed:
            raise ValueError("the proxy is closed")
        if threading.current_thread() is self._thread:  # A callback.
            order()
            return
        done = threading.Event()
        failed: list[BaseException] = []

        def carry_out() -> None:
            try:
                order()
            except BaseException as error:  # noqa: BLE001 - raised where it was asked for
                failed.append(error)
            done.set()

        self._orders.append(carry_out)
        self._wake_writer.send(b"!")
        if not done.wait(_PATIENCE):
            raise TimeoutError("the proxy does not answer; does a callback of it wait?")
        if failed:
            raise failed[0]

    def _carry_out_orders(self) -> None:
        self._wake_reader.recv(_CHUNK)
        while self._orders:
            self._orders.popleft()()

    def _reset_faults(self) -> None:
        self._half_open = False
        self._holds_requests = False
        self._holds_replies = False
        self._delays = {"requests": 0.0, "replies": 0.0}
        self._drops = 0

    def _release_requests(self) -> None:
        self._holds_requests = False
        for link in self._links:
            link.requests.held = False
            link.quiet_at = time.monotonic() + _QUIET

    def _count(self) -> ProxyCounts:
        return ProxyCounts(
            connections=self._connections,
            open=sum(link.client is not None for link in self._links),
            requests=self._bytes["requests"],
            replies=self._bytes["replies"],
            held_requests=sum(
                link.requests.size for link in self._links if self._holds(link.requests, link)
            ),
            held_replies=sum(link.replies.size for link in self._links if self._holds_replies),
        )

    def _listen(self) -> None:
        self._listener = listener(self.port)
        self._listener.listen(_BACKLOG)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            client, _ = self._listener.accept()
        except OSError:  # Gone again before we came.
            return
        self._connections += 1
        server = None if self._half_open else socket.socket()
        for own in (client, server):
            if own is not None:
                own.setblocking(False)
                own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if server is not None:
            server.connect_ex(self.target)
        self._links.append(_Link(client, server))

    def _holds(self, flow: _Flow, link: _Link) -> bool:
        if flow is link.requests:
            return flow.held or self._holds_requests
        return self._holds_replies

    def _prepare(self) -> float | None:
        """Register for the events that matter; the seconds until something is due."""
        waits: list[float] = []
        for link in list(self._links):
            now = time.monotonic()
            self._settle(link, now)
            if link in self._links:
                waits += self._watch(link, now)
        return min(waits, default=None)

    def _settle(self, link: _Link, now: float) -> None:
        """Pass on the ends of streams, and close links that have ended."""
        if self._half_open or link.connecting:
            return
        if link.client is None:
            ended = not link.requests.queue and now >= link.quiet_at
            if link.server is None or link.replies.ended or ended:
                self._close(link, reset=False)
            return
        for flow, sink in ((link.requests, link.server), (link.replies, link.client)):
            waits = flow is link.requests and link.lingers and now < link.quiet_at
            idle = flow.ended and not flow.queue and not self._holds(flow, link)
            if idle and not waits and not flow.passed_end and sink is not None:
                flow.passed_end = True
                with suppress(OSError):
                    sink.shutdown(socket.SHUT_WR)
        if link.requests.passed_end and link.replies.passed_end:
            self._close(link, reset=False)

    def _watch(self, link: _Link, now: float) -> list[float]:
        waits: list[float] = []
        if link.quiet_at > now:
            waits.append(link.quiet_at - now)
        for own, source, sink in (
            (link.client, link.requests, link.replies),
            (link.server, link.replies, link.requests),
        ):
            if own is None:
                continue
            events = 0
            if not source.ended and (source.size < _QUEUE_LIMIT or self._holds(source, link)):
                events |= selectors.EVENT_READ
            if own is link.server and link.connecting:
                events = selectors.EVENT_WRITE
            elif not self._half_open and not self._holds(sink, link):
                wait = sink.wait(now)
                if wait == 0.0:
                    events |= selectors.EVENT_WRITE
                elif wait is not None:
                    waits.append(wait)
            self._register(own, link, events)
        return waits

    def _register(self, own: socket.socket, link: _Link | None, events: int) -> None:
        known = self._selector.get_map().get(own)
        if known is None:
            if events:
                self._selector.register(own, events, link)
        elif not events:
            self._selector.unregister(own)
        elif known.events != events:
            self._selector.modify(own, events, link)

    def _serve(self, link: _Link, own: socket.socket, events: int) -> None:
        """Something happened at one of a link's sockets."""
        if link not in self._links:  # Cut by what happened just before.
            return
        if own is link.server and link.connecting:
            if own.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):  # it does not accept
                self._break(link, own)
            else:
                link.connecting = False
            return
        try:
            if events & selectors.EVENT_READ:
                read = self._read_request if own is link.client else self._read_reply
                read(link, own.recv(_CHUNK))
            if events & selectors.EVENT_WRITE:
                self._write(link, own)
        except BlockingIOError:
            pass
        except OSError:
            self._break(link, own)

    def _write(self, link: _Link, own: socket.socket) -> None:
        # Checked again: a read just before may have changed or cut it.
        if self._half_open or link not in self._links:
            return
        now = time.monotonic()
        if own is link.client and not self._holds_replies:
            link.replies.drain(own, now)
        elif own is link.server and not self._holds(link.requests, link):
            link.requests.drain(own, now)
            link.quiet_at = now + _QUIET

    def _break(self, link: _Link, own: socket.socket) -> None:
        """One side is closed; in a half-open network the other side does not notice."""
        if own is link.client:
            self._lose_client(link)
        elif self._half_open:
            self._discard(own)
            link.server = None
            link.swallowed = True
        else:
            self._close(link)

    def _read_request(self, link: _Link, data: bytes) -> None:
        self._bytes["requests"] += len(data)
        if self._half_open or link.server is None:
            link.swallowed = True
            link.requests.ended = link.requests.ended or not data
            return
        if not data:
            link.requests.ended = True
            return
        verdict = self._judge(data)
        if link not in self._links:  # The callback itself cut it.
            return
        if verdict == "cut":
            self._close(link)
            return
        if verdict == "hold":
            link.requests.held = True
        if verdict == "drop reply" or self._takes_drop(link):
            link.loses_reply = True
        link.lingers = link.lingers or self._holds(link.requests, link)
        link.requests.add(time.monotonic() + self._delays["requests"], data)

    def _judge(self, data: bytes) -> Verdict:
        if self._callback is None:
            return None
        try:
            return self._callback(data)
        except BaseException as error:  # noqa: BLE001 - raised by close
            self._failed = self._failed or error
            return "cut"

    def _takes_drop(self, link: _Link) -> bool:
        if not self._drops or (self._drops_from is not None and link not in self._drops_from):
            return False
        self._drops -= 1
        return True

    def _read_reply(self, link: _Link, data: bytes) -> None:
        self._bytes["replies"] += len(data)
        link.quiet_at = time.monotonic() + _QUIET
        if self._half_open:
            link.swallowed = True
            link.replies.ended = link.replies.ended or not data
        elif not data:
            link.replies.ended = True
        elif link.loses_reply and not link.requests.queue and link.client is not None:
            self._discard(link.client)
            link.client = None
        elif link.client is not None:
            link.replies.add(time.monotonic() + self._delays["replies"], data)

    def _lose_client(self, link: _Link) -> None:
        """The client is closed; its requests under way still arrive."""
        if link.client is None:
            return
        if self._half_open or (link.requests.queue and link.server is not None):
            self._discard(link.client)
            link.client = None
            link.swallowed = link.swallowed or self._half_open
        else:
            self._close(link)

    def _close(self, link: _Link, *, reset: bool = True) -> None:
        """Close both sides; a link that has ended needs no reset."""
        for own in (link.client, link.server):
            if own is not None:
                self._discard(own, reset=reset)
        self._links.remove(link)

    def _discard(self, own: socket.socket, *, reset: bool = True) -> None:
        self._register(own, None, 0)
        with suppress(OSError):
            if reset:
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        own.close()
