"""The connections of event loops: in each one that is pipelined, and one that listens.

All calls of a loop share a connection.  Each leaves a slot in a queue, and replies come in the
order of the requests; a call that is cancelled leaves its slot behind, so the reply that comes
later is not taken for that of another call.  One timer watches the head of the queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hiredis import ReplyError

from interlock.stores.network import REPLY, Unanswered, Unsent
from interlock.stores.redis.bells import Bells, Place
from interlock.stores.redis.stream import Stream, within

if TYPE_CHECKING:
    from interlock.stores.redis.connection import Connection
    from interlock.stores.redis.wire import Wire

S = TypeVar("S", bound=Stream)


class Link(Stream):
    """The pipelined connection of a loop."""

    def __init__(self, wire: Wire, loop: asyncio.AbstractEventLoop, connection: Connection) -> None:
        super().__init__(wire, loop, connection)
        self._waiting = deque[asyncio.Future[Any]]()
        self._since = 0.0
        self._retired = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def usable(self) -> bool:
        """Whether it is the way to go; not after the server has sent us elsewhere."""
        return not (self.ended or self._retired)

    def call(self, request: bytes) -> asyncio.Future[Any]:
        """The answer to a request, in time."""
        future = self.loop.create_future()
        if self.ended:
            future.set_exception(Unsent(self.ended))
            return future
        waiting = self._waiting
        waiting.append(future)
        if len(waiting) == 1:  # alone: at once
            self._since = self.loop.time()
            if self._timer is None:
                self._timer = self.loop.call_later(REPLY, self._watch)
            self.write(request)
        else:
            self.write_soon(request)
        return future

    def received(self, reply: Any) -> None:  # noqa: ANN401 - whatever the server says
        """The reply to the call at the head of the queue."""
        self._since = self.loop.time()
        future = self._waiting.popleft()
        if isinstance(reply, ReplyError):
            if not future.done():
                future.set_exception(self._wire.meaning(reply))
            self._retired = self._retired or self._wire.leaves(reply)
        elif not future.done():
            future.set_result(reply)
        if self._retired and not self._waiting:
            self.end("it sent us elsewhere")

    def finished(self, why: str) -> None:
        """Nobody who waits will get an answer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.loop.is_closed():
            return
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(Unanswered(why))

    def _watch(self) -> None:
        """Whether the head of the queue has waited for too long."""
        self._timer = None
        if self._waiting:
            left = self._since + REPLY - self.loop.time()
            if left <= 0:
                self.end(f"no answer within {REPLY:.0f} s")
            else:
                self._timer = self.loop.call_later(left, self._watch)


class Loops:
    """What a store has in each event loop."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._links: Kind[Link] = Kind(wire, Link)
        self._bells: Kind[Bells] = Kind(wire, Bells)

    def call(self, request: bytes) -> Awaitable[Any]:
        """The answer to a request; over the link of the running loop."""
        link = self._links.there.get(asyncio.get_running_loop())
        if link is not None and link.usable:
            return link.call(request)
        return self._first_call(request)

    async def join(self, channels: tuple[bytes, ...]) -> Place:
        """Listen on these channels: everything that is published from now on will be heard."""
        bells = await self._bells.get()
        return await bells.join(channels)

    def close(self) -> None:
        """Cut everything, in whatever loop."""
        self._links.close()
        self._bells.close()

    async def ended(self) -> None:
        """Wait until nothing is left in this loop."""
        await self._links.ended()
        await self._bells.ended()

    async def _first_call(self, request: bytes) -> Any:  # noqa: ANN401
        link = await self._links.get()
        return await link.call(request)


class Kind(Generic[S]):
    """One stream of a kind for each loop, connected when it is first wanted."""

    def __init__(
        self,
        wire: Wire,
        make: Callable[[Wire, asyncio.AbstractEventLoop, Connection], S],
    ) -> None:
        self.there: dict[asyncio.AbstractEventLoop, S] = {}
        self._wire = wire
        self._make = make
        self._coming: dict[asyncio.AbstractEventLoop, asyncio.Task[S]] = {}

    async def get(self) -> S:
        """That of the running loop; whoever come at the same time share one attempt."""
        loop = asyncio.get_running_loop()
        stream = self.there.get(loop)
        if stream is not None and stream.usable:
            return stream
        task = self._coming.get(loop)
        if task is None or task.done():
            self._forget_closed()
            task = self._coming[loop] = loop.create_task(self._connect(loop))
            task.add_done_callback(_retrieved)
        return await asyncio.shield(task)

    def close(self) -> None:
        """End all of them, from whatever thread."""
        # Who is about to connect finds out by itself: the connection is cut.
        for loop, stream in tuple(self.there.items()):
            within(loop, partial(stream.end, "closed"))

    async def ended(self) -> None:
        """Wait until the attempt to connect of this loop is over, if there is one."""
        task = self._coming.get(asyncio.get_running_loop())
        if task is not None:
            await asyncio.wait((task,))

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> S:
        """Dial in a thread: finding a host, TLS and the greeting are one text for everybody."""
        handover = Handover(self._wire)
        try:
            connection = await loop.run_in_executor(None, handover.dial)
        except BaseException:
            handover.abandon()
            raise
        if self._wire.closed:
            self._wire.drop(connection)
            raise Unsent("closed")
        stream = self.there[loop] = self._make(self._wire, loop, connection)
        return stream

    def _forget_closed(self) -> None:
        for loop in [loop for loop in tuple(self.there) if loop.is_closed()]:
            self.there.pop(loop).end("its event loop is gone")
        for loop in [loop for loop in tuple(self._coming) if loop.is_closed()]:
            self._coming.pop(loop, None)


class Handover:
    """A connection on its way from the thread that dials to a loop that may not wait for it."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._connection: Connection | None = None
        self._abandoned = False

    def dial(self) -> Connection:
        """In the thread."""
        connection = self._connection = self._wire.dial()
        if self._abandoned:
            self._wire.drop(connection)
        return connection

    def abandon(self) -> None:
        """In the loop; closing twice is fine."""
        self._abandoned = True
        if self._connection is not None:
            self._wire.drop(self._connection)


def _retrieved(task: asyncio.Task[Any]) -> None:
    """Nobody may be left who waits for an attempt that failed."""
    if not task.cancelled():
        task.exception()
