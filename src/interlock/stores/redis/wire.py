"""Connections for callers that may block, and the way to a new connection for everybody.

One thread has a connection at a time; what is idle waits in a pool.  Nothing is repeated here,
and whatever interrupts an exchange ends the connection, so that no answer can be taken for that
of another request.

Event loops have connections of their own (link.py), imported only when one asks: a command that
ends after one call does not pay for asyncio.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hiredis import ProtocolError, ReplyError

from interlock.errors import StoreReadOnly, StoreRefused, StoreUnsuitable
from interlock.stores.address import Address
from interlock.stores.network import Unanswered, Unsent
from interlock.stores.redis.connection import Connection, connect, reason
from interlock.stores.redis.grade import Grade, graded, greeting
from interlock.stores.redis.packing import pack
from interlock.stores.redis.replies import Late, Moved, meaning

if TYPE_CHECKING:
    from interlock.stores.redis.link import Loops
    from interlock.stores.redis.seat import Line

LATEST = 10_000_000
"""Microseconds after which a commit that was sent must not take effect any more.

Its sender listens for four seconds, and what it knows of the server's clock is at most as old as
an answer: whatever comes later has no listener.
"""
_IDLE = 16
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


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
        self.doubted = float("-inf")
        """When, by the monotonic clock, a call last met trouble: whoever listens asks soon."""
        self._learned = (0, 0.0)

    def call(self, request: bytes) -> Any:  # noqa: ANN401
        """The answer to a request."""
        connection = self._take()
        try:
            reply = connection.exchange(request)
        except BaseException as error:
            self.drop(connection)
            if isinstance(error, Unanswered):
                self.empty()  # the idle ones are no better
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
        """The exception that an error reply is; where to ask from now on is remembered."""
        error = meaning(str(reply), self._address)
        if isinstance(error, Late):
            self.learn(error.now)
        elif isinstance(error, Moved):
            host, port = error.place  # without a host it means its own
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
        return isinstance(meaning(str(reply), self._address), (Moved, StoreReadOnly))

    def dial(self) -> Connection:
        """A new connection to a server that will do; whoever gets it drops it.

        Of several in the URL the first that is reached and takes writes.  If there is none, and
        not all of them are replicas, it may be that one takes over this very moment.
        """
        moved = self._moved
        places = (moved,) if moved is not None else self._address.hosts or (None,)
        trouble: Unsent | None = None
        replica: StoreReadOnly | None = None
        for place in places:
            try:
                return self._reach(place)
            except Moved:
                raise
            except Unsent as error:
                trouble = error
            except StoreReadOnly as error:
                replica = error
        self._moved = None  # start over where the URL says
        raise trouble or replica or AssertionError("a URL names a place")

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
        if len(self._lines) >= _IDLE:
            line.close()
        else:
            self._lines.append(line)
            if self.closed:
                self.empty()

    def close(self) -> None:
        """Cut everything, from whatever thread; calls under way are Unanswered."""
        self.closed = True
        self.empty()
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
        try:
            while True:
                connection = self._idle.pop()
                if not connection.readable(0):
                    return connection
                self.drop(connection)  # ended, or out of step
        except IndexError:
            return self.dial()

    def _give(self, connection: Connection) -> None:
        if len(self._idle) >= _IDLE:
            self.drop(connection)
        else:
            self._idle.append(connection)
            if self.closed:  # looked at last, so that close() cannot miss it
                self.empty()

    def empty(self) -> None:
        """Drop what is idle; whoever else drops something at the same time gets something else."""
        with suppress(IndexError):
            while True:
                self.drop(self._idle.pop())
        while (line := self.idle_line()) is not None:
            line.close()

    def _reach(self, place: tuple[str, int] | None) -> Connection:
        try:
            connection = connect(self._address, place)
        except OSError as error:
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
            self._refused(connection, error)
            raise Unsent(str(error)) from error
        for reply in replies:
            if isinstance(reply, ReplyError) and str(reply).startswith("MOVED "):
                raise self.meaning(reply)
        grade = graded(replies, self._address)
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
            self._secretive(connection, error)
            raise
        if isinstance(reply, ReplyError):
            raise self.meaning(reply)
        return reply

    def _secretive(self, connection: Connection, error: Unanswered) -> None:
        """Refuse a server that hangs up on plain words because it speaks TLS."""
        hung_up = error.__cause__ is None or isinstance(error.__cause__, ConnectionError)
        if hung_up and connection.place is not None and not (connection.tls or self.closed):
            from interlock.stores.redis.tls import spoken

            if spoken(connection.place):
                raise StoreRefused(
                    f"{self.where} speaks TLS; write the URL with rediss://"
                ) from error

    def _refused(self, connection: Connection, error: Unanswered) -> None:
        """A certificate that the server misses is told when it is first read from."""
        if self._address.tls and isinstance(error.__cause__, OSError):
            from interlock.stores.redis.tls import complaint, refusal

            refused = refusal(error.__cause__, self.where)
            if refused is None and connection.place is not None and not self.closed:
                refused = complaint(self._address, connection.place)
            if refused is not None:
                raise refused from error
