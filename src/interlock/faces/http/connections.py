"""The connections of a server: how many, how long they may be silent, and what is said about them.

Any program that reaches the port may connect, with or without a token.  So a connection that has no
request in work is worth little: it has ``HEAD`` seconds for the head of its request, and above the
limit the one that has waited for longest makes room for a new one.  A request in work, as a stream
or a wait, is never interrupted.  A new caller sends its head at once, so it waits for a moment
only, and gets in while a flood of silent connections goes on.
"""

from __future__ import annotations

import errno
import logging
import resource
import socket
import sys
import time
from asyncio import Transport
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from interlock.faces.cli.command import note

if TYPE_CHECKING:
    from asyncio import TimerHandle
    from collections.abc import Callable

HEAD = 10.0
"""Seconds in which the head of a request has to arrive, from its first byte or the connection."""
BACKLOG = 128
"""Connections that the kernel keeps until they are accepted, and most that one round accepts."""
_MOST = 2000
_FILES = 8192
"""Open files that are enough for all connections, and for the threads that call the store."""
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_QUIET = 60.0


def most_connections() -> int:
    """Connections that this process can have; it first raises its limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _FILES:
        wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
        with suppress(ValueError, OSError):  # then the limit is as it was
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    # A quarter is for the store; one round accepts BACKLOG connections before it ends others.
    return min(_MOST, max(soft * 3 // 4 - BACKLOG, soft // 4))


class Connections:
    """All connections of one server."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open = 0
        self._waiting: dict[Connection, None] = {}
        """Those without a request in work; the one that has waited for longest is the first."""

    def opened(self, connection: Connection) -> None:
        """A new one, which waits; the oldest of those that wait makes room, if it has to."""
        self._open += 1
        self._waiting[connection] = None
        if self._open > self._most:
            self.make_room()

    def make_room(self, count: int = 1) -> None:
        """End the connections that have waited for longest."""
        for oldest in list(islice(self._waiting, count)):
            del self._waiting[oldest]
            oldest.transport.abort()

    def waits(self, connection: Connection) -> None:
        """It has no request in work."""
        self._waiting[connection] = None

    def works(self, connection: Connection) -> None:
        """It has a request in work, or is over."""
        self._waiting.pop(connection, None)

    def lost(self) -> None:
        """One is over."""
        self._open -= 1


class Connection(H11Protocol):
    """A connection that knows whether it has a request in work, and waits for one with a limit."""

    def __init__(self, connections: Connections, **options: Any) -> None:  # noqa: ANN401 - uvicorn's
        super().__init__(**options)
        self._all = connections
        self._ends: TimerHandle | None = None
        """The end of it, unless the head of a request arrives; uvicorn ends one that is silent."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Wait for a head."""
        super().connection_made(transport)
        self._limit_head()
        self._all.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the others."""
        self._works()
        self._all.lost()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; they may be the end of a head, or the begin of one."""
        super().data_received(data)
        if not getattr(self.cycle, "response_complete", True):  # before the first one it is None
            self._works()
        elif self._ends is None:
            self._limit_head()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._all.waits(self)
        super().on_response_complete()  # may begin the next request, which has arrived already
        if not self.cycle.response_complete:
            self._works()

    def _works(self) -> None:
        self._all.works(self)
        if self._ends is not None:
            self._ends.cancel()
            self._ends = None

    def _limit_head(self) -> None:
        self._ends = self.loop.call_later(HEAD, self.transport.close)


class Listener(socket.socket):
    """A socket that listens; without resources it fails once, and is asked again in a second.

    The event loop accepts until nothing waits, so it would report every failure of a full table of
    files, and set a timer for each of them.
    """

    exhausted: Callable[[], None]
    """What is called when a connection cannot be accepted."""
    _failed = False

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection."""
        if self._failed:
            self._failed = False
            raise BlockingIOError
        try:
            return super().accept()
        except OSError as error:
            if error.errno in _EXHAUSTED:
                self._failed = True
                self.exhausted()
            raise


class OnceAMinute(logging.Handler):
    """Says what the event loop and uvicorn report, each kind once a minute.

    Callers without a token cause many of these reports, and they would fill a disk.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said: dict[tuple[object, ...], float] = {}

    def attach(self) -> None:
        """Say what these loggers report from here on."""
        for name in ("asyncio", "uvicorn.error"):
            logger = logging.getLogger(name)
            logger.addHandler(self)
            logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        """Say it, unless one of its kind was said within the minute."""
        error = record.exc_info[1] if record.exc_info else None
        kind = (record.pathname, record.lineno, type(error), getattr(error, "errno", None))
        now = time.monotonic()
        if now - self._said.get(kind, float("-inf")) < _QUIET:
            return
        self._said[kind] = now
        said = record.getMessage().partition("\n")[0]
        note(f"{said}: {error}" if error else said)
        if record.exc_info and not isinstance(error, OSError):  # a defect, to be reported
            sys.stderr.write(logging.Formatter().formatException(record.exc_info) + "\n")
