"""The connections of event loops: in each loop one that is pipelined, and one that listens.

A connection is a plain socket under ``add_reader``, not an asyncio transport: the store may be
closed by another thread, or when the loop is gone, and the socket must be closed then too.

All calls of a loop share a connection.  Each leaves a slot in a queue, and replies come in the
order of the requests; a cancelled call leaves its slot behind, so the reply that comes later is
not taken for that of another call.  One timer watches the head of the queue.  All watches of a
loop share the connection that listens.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hiredis import ProtocolError, ReplyError

from interlock.stores.network import REPLY, Unanswered, Unsent
from interlock.stores.redis.scripts import PackedCommit, pack
from interlock.stores.redis.transport import Connection, boot_time, reason
from interlock.stores.redis.watch import LATE, PING, PING_REQUEST, Silence

if TYPE_CHECKING:
    from interlock.stores.redis.transport import Connection, RedisTransport


_CHUNK = 1 << 18
_WANT = frozenset(("SSLWantReadError", "SSLWantWriteError"))


class LoopConnection:
    """One socket in one event loop; subclasses say what to do with replies and with the end."""

    def __init__(
        self, transport: RedisTransport, loop: asyncio.AbstractEventLoop, connection: Connection
    ) -> None:
        self.loop = loop
        self.ended = ""
        self._transport = transport
        self._connection = connection
        self._sock = connection.sock
        self._reader = connection.reader
        self._out: list[bytes] = []
        self._rest = b""
        self._timer: asyncio.TimerHandle | None = None
        self._sock.setblocking(False)
        loop.add_reader(self._sock.fileno(), self._readable)

    @property
    def usable(self) -> bool:
        """Whether something new can be asked over it."""
        return not self.ended

    def received(self, reply: Any) -> None:  # noqa: ANN401 - any reply of the server
        """One reply came."""
        raise NotImplementedError

    def finished(self, why: str) -> None:
        """It is over; there will be no further reply.  Not called if its loop is closed."""
        raise NotImplementedError

    def write(self, data: bytes) -> None:
        """Send at once."""
        if self._rest:
            self._rest += data
        else:
            self._send(data)

    def write_soon(self, data: bytes) -> None:
        """Send together with all else that is written in this iteration of the loop."""
        if not self._out:
            self.loop.call_soon(self._flush)
        self._out.append(data)

    def fail(self, why: str) -> None:
        """End it: the server may be away."""
        self._transport.fail(self._connection, Unanswered(why))
        self.end(why)

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
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._transport.drop(self._connection)
        if not self.loop.is_closed():
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
                self.fail(reason(error))
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
                self.fail(reason(error))
            return
        if not data:
            self.fail("it closed the connection")
            return
        reader = self._reader
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                self.received(reply)
        except (ProtocolError, LookupError, TypeError) as error:
            self.fail(f"it does not speak Redis ({error})")
            return
        self._transport.note_answer()
        if self._connection.tls and not self.ended and self._connection.sock.pending():  # type: ignore[attr-defined]
            self.loop.call_soon(self._again)  # decrypted already: the selector sees nothing

    def _again(self) -> None:
        if not self.ended:
            self._readable()


def run_in_loop(loop: asyncio.AbstractEventLoop, act: Callable[[], object]) -> None:
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


S = TypeVar("S", bound=LoopConnection)
T = TypeVar("T")


MOST = 16
"""Commits in one request: the server works on them while the client prepares the next ones."""
LARGEST = 1 << 15
"""Bytes after which a request takes no further commit."""


class GatheredCommits:
    """Commits that are to be one request, and its place among those that are to be sent."""

    __slots__ = ("commits", "futures", "place", "size")

    def __init__(self, place: int) -> None:
        self.place = place
        self.commits: list[PackedCommit] = []
        self.futures: list[asyncio.Future[Any]] = []
        self.size = 0

    @property
    def full(self) -> bool:
        """Whether it takes no further commit."""
        return len(self.commits) >= MOST or self.size >= LARGEST

    def add(self, commit: PackedCommit, future: asyncio.Future[Any]) -> None:
        """Add one; each gets its own answer."""
        self.commits.append(commit)
        self.futures.append(future)
        self.size += len(commit.packed)


class PipelinedConnection(LoopConnection):
    """The pipelined connection of a loop."""

    def __init__(
        self, transport: RedisTransport, loop: asyncio.AbstractEventLoop, connection: Connection
    ) -> None:
        super().__init__(transport, loop, connection)
        self._waiting = deque[list[asyncio.Future[Any]]]()
        self._gathered: list[GatheredCommits] = []
        self._open: dict[bool, GatheredCommits] = {}
        self._since = 0.0
        self._retired = False

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
        self._send_request(request, [future])
        return future

    def commit(self, commit: PackedCommit) -> asyncio.Future[Any]:
        """The answer to a commit; what commits in one iteration of the loop is sent together."""
        future = self.loop.create_future()
        if self.ended:
            future.set_exception(Unsent(self.ended))
        elif not self._waiting:
            self._send_request(self._request([commit]), [future])
        else:
            gathered = self._open.get(commit.room)
            if gathered is None:
                gathered = self._open[commit.room] = GatheredCommits(len(self._out))
                self._gathered.append(gathered)
                self._send_request(b"", gathered.futures)
            gathered.add(commit, future)
            if gathered.full:
                del self._open[commit.room]
        return future

    def _send_request(self, request: bytes, futures: list[asyncio.Future[Any]]) -> None:
        """Send it at once if it is alone, else with all others of this iteration."""
        waiting = self._waiting
        waiting.append(futures)
        if len(waiting) == 1:
            self._since = self.loop.time()
            if self._timer is None:
                self._timer = self.loop.call_later(REPLY, self._watch)
            self.write(request)
        else:
            self.write_soon(request)

    def _flush(self) -> None:
        gathered, self._gathered = self._gathered, []
        self._open.clear()
        for each in gathered:
            self._out[each.place] = self._request(each.commits)
        super()._flush()

    def _request(self, commits: list[PackedCommit]) -> bytes:
        return self._transport.commits.request(commits, self._transport.latest())

    def received(self, reply: Any) -> None:  # noqa: ANN401 - any reply of the server
        """The reply to the calls at the head of the queue."""
        self._since = self.loop.time()
        futures = self._waiting.popleft()
        if len(futures) == 1:
            self._answer(futures[0], reply)
        else:  # commits: the script answers each of them, or refuses all at once
            whole = isinstance(reply, ReplyError)
            for number, future in enumerate(futures):
                self._answer(future, reply if whole else reply[number])
        if self._retired and not self._waiting:
            self.end("it sent us elsewhere")

    def _answer(self, future: asyncio.Future[Any], reply: Any) -> None:  # noqa: ANN401
        if isinstance(reply, ReplyError):
            if not future.done():
                future.set_exception(self._transport.meaning(reply))
            self._retired = self._retired or self._transport.leaves(reply)
        elif not future.done():
            future.set_result(reply)

    def finished(self, why: str) -> None:
        """The calls that wait get no answer."""
        while self._waiting:
            for future in self._waiting.popleft():
                if not future.done():
                    future.set_exception(Unanswered(why))

    def _watch(self) -> None:
        """Whether the head of the queue has waited for too long."""
        self._timer = None
        if self._waiting:
            left = self._since + REPLY - self.loop.time()
            if left <= 0:
                self.fail(f"no answer within {REPLY:.0f} s")
            else:
                self._timer = self.loop.call_later(left, self._watch)


_INBOX = 1000
"""Payloads kept for a watch that does not ask; one that is further behind reads the log."""


class LoopSubscriptions(LoopConnection):
    """The listening connection of a loop, and who listens on which of its channels."""

    def __init__(
        self, transport: RedisTransport, loop: asyncio.AbstractEventLoop, connection: Connection
    ) -> None:
        super().__init__(transport, loop, connection)
        self._by_channel: dict[bytes, set[LoopSubscription]] = {}
        self._unconfirmed: dict[bytes, int] = {}
        self._joining: dict[bytes, list[asyncio.Future[None]]] = {}
        self._silence = Silence(transport, loop.time())
        self._timer = loop.call_later(PING, self._watch)

    async def join(self, channels: tuple[bytes, ...]) -> LoopSubscription:
        """Listen on these channels, from when this returns on."""
        subscription = LoopSubscription(self, channels)
        try:
            self._subscribe(subscription)
            for channel in channels:
                if self._unconfirmed.get(channel):
                    await self._confirmed(channel)
        except BaseException:
            self.leave(subscription)
            raise
        return subscription

    def _subscribe(self, subscription: LoopSubscription) -> None:
        fresh = [channel for channel in subscription.channels if channel not in self._by_channel]
        for channel in subscription.channels:
            self._by_channel.setdefault(channel, set()).add(subscription)
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

    def has_unread(self) -> bool:
        """Whether something has arrived that the loop has not read yet."""
        return not self.ended and self._connection.readable(0.0)

    def leave(self, subscription: LoopSubscription) -> None:
        """Listen no more for this one; in the thread of the loop."""
        subscription.wake()
        silent = [
            channel
            for channel in subscription.channels
            if self._by_channel.get(channel) == {subscription}
        ]
        for channel in subscription.channels:
            self._by_channel.get(channel, set()).discard(subscription)
        for channel in silent:
            del self._by_channel[channel]
        if silent and not self.ended:
            self.write(pack(("UNSUBSCRIBE", *silent)))

    def received(self, reply: Any) -> None:  # noqa: ANN401 - any reply of the server
        """A message, a confirmation, or a sign of life."""
        self._silence.end(self.loop.time())
        if isinstance(reply, ReplyError):
            self.end(str(self._transport.meaning(reply)))
            return
        kind, channel = reply[0], reply[1]
        if kind == b"message":
            self._silence.patience = 1
            for subscription in self._by_channel.get(channel, ()):
                subscription.published(reply[2])
        elif kind == b"subscribe":
            self._unconfirmed[channel] -= 1
            if not self._unconfirmed[channel]:
                del self._unconfirmed[channel]
                for future in self._joining.pop(channel, ()):
                    if not future.done():
                        future.set_result(None)

    def finished(self, why: str) -> None:
        """All who listen must start over."""
        for futures in self._joining.values():
            for future in futures:
                if not future.done():
                    future.set_exception(Unanswered(why))
        self._joining.clear()
        for subscriptions in self._by_channel.values():
            for subscription in subscriptions:
                subscription.wake()

    def _watch(self) -> None:
        """Ask for a sign of life after a while of silence, and end if none comes."""
        now = self.loop.time()
        if now >= self._silence.due():
            try:
                self._silence.ask(now)
            except Unanswered as error:
                self._timer = None
                self.fail(str(error))
                return
            self.write(PING_REQUEST)
            if self.ended:
                return
        # Not later than this: another call may meet an outage first.
        soon = min(self._silence.due(), now + PING)
        self._timer = self.loop.call_at(max(soon, now + 0.01), self._watch)


class LoopSubscription:
    """Where one watch listens."""

    def __init__(self, subscriptions: LoopSubscriptions, channels: tuple[bytes, ...]) -> None:
        self.channels = channels
        self._subscriptions = subscriptions
        self._inbox = deque[bytes]()
        self._sleeper: asyncio.Future[None] | None = None
        self._overrun = False
        self.slept = False
        """Whether the last call slept until something came, and not for too long."""

    def serves(self, loop: object) -> bool:
        """Whether a caller in this loop can go on with it."""
        return (
            loop is self._subscriptions.loop and not self._subscriptions.ended and not self._overrun
        )

    def published(self, payload: bytes) -> None:
        """Something was published."""
        if len(self._inbox) >= _INBOX:
            self._overrun = True
        else:
            self._inbox.append(payload)
        self.wake()

    def wake(self) -> None:
        """Wake the task that waits."""
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    async def receive_async(self, seconds: float) -> list[bytes]:
        """The payloads that were published; none if the time is up.  Unanswered if it ended."""
        self.slept = False
        if not self._inbox and not self._subscriptions.ended and seconds > 0:
            started, at_hand = boot_time(), self._subscriptions.has_unread()
            self._sleeper = self._subscriptions.loop.create_future()
            timer = self._subscriptions.loop.call_later(seconds, self.wake)
            try:
                await self._sleeper
            finally:
                timer.cancel()
                self._sleeper = None
            self.slept = not at_hand and boot_time() < started + seconds + LATE
        if self._subscriptions.ended:
            raise Unanswered(self._subscriptions.ended)
        if self._overrun:
            raise Unanswered("it published faster than its reader took")
        payloads = list(self._inbox)
        self._inbox.clear()
        return payloads

    def leave(self, *, well: bool) -> None:  # noqa: ARG002 - others share the connection
        """Stop listening."""
        subscriptions = self._subscriptions
        if not subscriptions.loop.is_closed():
            run_in_loop(subscriptions.loop, lambda: subscriptions.leave(self))


class LoopConnections:
    """What a store has in each event loop."""

    def __init__(self, transport: RedisTransport) -> None:
        self._transport = transport
        self._pipelines: OnePerLoop[PipelinedConnection] = OnePerLoop(
            transport, PipelinedConnection
        )
        self._listeners: OnePerLoop[LoopSubscriptions] = OnePerLoop(transport, LoopSubscriptions)

    def call(self, request: bytes, within: float) -> Awaitable[Any]:
        """The answer to a request; over the link of the running loop."""
        link = self.pipeline()
        if link is None:
            return _in_time(self._first_call(request), within)
        answer = link.call(request)
        return answer if within >= REPLY else _in_time(answer, within)

    def pipeline(self) -> PipelinedConnection | None:
        """The connection that the calls of the running loop share, if it can be used."""
        link = self._pipelines.connected.get(asyncio.get_running_loop())
        return link if link is not None and link.usable else None

    async def join(self, channels: tuple[bytes, ...], within: float) -> LoopSubscription:
        """Listen on these channels: it gets everything that is published from now on."""
        return await _in_time(self._join(channels), within)

    def close(self) -> None:
        """Cut everything, in every loop."""
        self._pipelines.close()
        self._listeners.close()

    async def ended(self) -> None:
        """Wait until nothing is left in this loop."""
        await self._pipelines.ended()
        await self._listeners.ended()

    async def _first_call(self, request: bytes) -> Any:  # noqa: ANN401
        link = await self._pipelines.get()
        return await link.call(request)

    async def _join(self, channels: tuple[bytes, ...]) -> LoopSubscription:
        subscriptions = await self._listeners.get()
        return await subscriptions.join(channels)


async def _in_time(answer: Awaitable[T], within: float) -> T:
    """The answer, if it comes in time; others that share the connection wait for theirs."""
    try:
        async with asyncio.timeout(within):  # not wait_for: that of 3.11 may swallow a cancellation
            return await answer
    except TimeoutError:
        raise Unanswered(f"no answer within {within:.1g} s") from None


class OnePerLoop(Generic[S]):
    """One connection of a kind for each loop, connected when it is first wanted."""

    def __init__(
        self,
        transport: RedisTransport,
        make: Callable[[RedisTransport, asyncio.AbstractEventLoop, Connection], S],
    ) -> None:
        self.connected: dict[asyncio.AbstractEventLoop, S] = {}
        self._transport = transport
        self._make = make
        self._coming: dict[asyncio.AbstractEventLoop, asyncio.Task[S]] = {}

    async def get(self) -> S:
        """The connection of the running loop; calls at the same time share one attempt."""
        loop = asyncio.get_running_loop()
        connection = self.connected.get(loop)
        if connection is not None and connection.usable:
            return connection
        task = self._coming.get(loop)
        if task is None or task.done():
            self._forget_closed()
            task = self._coming[loop] = loop.create_task(self._connect(loop))
            task.add_done_callback(_retrieved)
        return await asyncio.shield(task)

    def close(self) -> None:
        """End all of them, from any thread."""
        # Who is about to connect finds out by itself: the connection is cut.
        for loop, connection in tuple(self.connected.items()):
            run_in_loop(loop, partial(connection.end, "closed"))

    async def ended(self) -> None:
        """Wait until the attempt to connect of this loop is over, if there is one."""
        task = self._coming.get(asyncio.get_running_loop())
        if task is not None:
            await asyncio.wait((task,))

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> S:
        """Connect in a thread: host lookup, TLS and the greeting are blocking code."""
        dialled: list[Connection] = []
        abandoned = False

        def dial() -> Connection:
            dialled.append(self._transport.dial())
            if abandoned:  # the loop did not wait for it
                self._transport.drop(dialled[0])
            return dialled[0]

        try:
            connection = await loop.run_in_executor(None, dial)
        except BaseException:
            abandoned = True
            for each in dialled:  # to drop it twice does no harm
                self._transport.drop(each)
            raise
        if self._transport.closed:
            self._transport.drop(connection)
            raise Unsent("closed")
        made = self.connected[loop] = self._make(self._transport, loop, connection)
        return made

    def _forget_closed(self) -> None:
        for loop in [loop for loop in tuple(self.connected) if loop.is_closed()]:
            self.connected.pop(loop).end("its event loop is gone")
        for loop in [loop for loop in tuple(self._coming) if loop.is_closed()]:
            self._coming.pop(loop, None)


def _retrieved(task: asyncio.Task[Any]) -> None:
    """An attempt that failed may have no waiter left."""
    if not task.cancelled():
        task.exception()
