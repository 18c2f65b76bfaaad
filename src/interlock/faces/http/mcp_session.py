"""The session of a model over HTTP: its agent, its calls, and the messages that wait for it.

Messages of the server are updates of resources.  They wait until a stream is there.  Equal ones
that wait become one, so a client that is slow, or never comes, costs the memory of a few messages.
One reader at a time: a new connection takes over, since the old one may be dead and not yet closed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from interlock.faces.http.access import Caller, require
from interlock.faces.http.events import HEARTBEAT
from interlock.faces.mcp.jsonrpc import INVALID_PARAMS, ProtocolError
from interlock.faces.mcp.protocol import ToolAnswer, ToolCall, ToolServer
from interlock.faces.mcp.reading import Reading
from interlock.faces.mcp.subscriptions import Subscriptions
from interlock.faces.mcp.words import INSTRUCTIONS

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.faces.mcp.agent import ConnectedAgent
    from interlock.faces.mcp.tools import ToolSet
    from interlock.faces.mcp.updates import ResourceUpdates

_NAMELESS = (
    "say who you are: connect to /mcp?agent=NAME, or use a token of an agent, so that your locks"
    " and tasks are yours alone"
)


class MessageStream:
    """What waits for a client; any thread may send.

    ``tell_again`` is called when another reader takes over: the last one may have lost something.
    """

    def __init__(self, tell_again: Callable[[], None] | None = None) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[bytes, None] = {}
        self._wake: Callable[[], object] | None = None
        self._readers = 0
        self._tell_again = tell_again
        self.ended = False

    def send(self, message: bytes) -> None:
        """Add a message."""
        if message:
            with self._lock:
                self._waiting[message] = None
            self._notify()

    def first(self) -> bytes:
        """The message that waits for longest; it goes on waiting."""
        with self._lock:
            return next(iter(self._waiting), b"")

    def taken(self) -> tuple[bytes, ...]:
        """The messages that wait; they are the caller's now."""
        with self._lock:
            waiting, self._waiting = tuple(self._waiting), {}
        return waiting

    def close(self) -> None:
        """End the stream, after the messages that wait."""
        self.ended = True
        self._notify()

    async def events(self) -> AsyncIterator[bytes]:
        """The stream for a new reader, in the event loop; an earlier reader's stream ends."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        before, self._wake = self._wake, lambda: loop.call_soon_threadsafe(changed.set)
        self._readers += 1
        reader = self._readers
        if before is not None:
            before()
            if self._tell_again is not None:
                self._tell_again()
        yield b": updates\n\n"
        while reader == self._readers:
            changed.clear()
            ended = self.ended  # first: messages before the end are still delivered
            if messages := self.taken():
                yield b"".join(b"event: message\ndata: %s\n\n" % each for each in messages)
            if ended:
                return
            try:
                async with asyncio.timeout(HEARTBEAT):
                    await changed.wait()
            except TimeoutError:
                yield b": still here\n\n"

    def _notify(self) -> None:
        if (wake := self._wake) is not None:
            with suppress(RuntimeError):  # the loop was closed: the server has ended
                wake()


class OpenStream:
    """A stream of messages to a client, and the session that it belongs to."""

    def __init__(self, session: McpSession, messages: MessageStream, server: ToolServer) -> None:
        self.messages = messages
        self.session = session
        self._server = server

    def end(self) -> None:
        """End a subscription of the stateless era in good order: the server ends."""
        self._server.close()
        self.messages.close()

    def close(self) -> None:
        """The client is gone, and so is a subscription that this stream was the answer to."""
        if self._server is not self.session.server:
            self._server.close()


class McpSession:
    """The agent behind a handle or a name, and the calls that run for it."""

    def __init__(
        self,
        caller: Caller,
        agent: ConnectedAgent,
        tools: ToolSet,
        updates: ResourceUpdates,
        *,
        named: bool,
    ) -> None:
        self.caller = caller
        self.agent = agent
        self.used = time.monotonic()
        self.running = 0
        self.messages: MessageStream | None = None
        """What waits for the client of a handle."""
        self._tools = tools
        self._updates = updates
        self._named = named
        self._calls: set[ToolCall] = set()
        self._changed = threading.Condition()
        self._stopped = False
        self.server = self.tool_server()

    def stop(self) -> None:
        """Let all calls stop waiting: the session is about to end."""
        with self._changed:
            self._stopped = True
            calls = tuple(self._calls)
        for call in calls:
            call.stop()

    def finish(self, seconds: float) -> None:
        """Wait until no call runs, at most this long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._calls, max(0.0, seconds))

    def tool_server(self) -> ToolServer:
        """The protocol in front of this agent; a request that stands alone has one of its own."""
        return ToolServer(
            instructions=INSTRUCTIONS,
            tools=self._tools.listed,
            has_tool=self._tools.has,
            call=self._call,
            start=lambda work: work(),
            reading=Reading(self._reader).answer,
            subscriptions=self._subscriptions,
        )

    def _subscriptions(self) -> Subscriptions:
        send = None if self.messages is None else self.messages.send
        return Subscriptions(self._updates, self._subscriber, send)

    def _subscriber(self) -> str:
        """The agent whose inbox an update is about; its session need not begin for that."""
        self._check_reader()
        if not self.agent.name:
            self.agent.client()
        return self.agent.name

    def _reader(self) -> Fleet:
        self._check_reader()
        return self.agent.client()

    def _check_reader(self) -> None:
        if not self._named:
            raise ProtocolError(INVALID_PARAMS, _NAMELESS)
        require(self.caller, "act", "an agent")

    def _call(self, call: ToolCall) -> ToolAnswer:
        if not self.caller.may("act"):
            said = f"wrong_role: {call.tool} needs a token with the role act"
            return ToolAnswer(said, failed=True)
        if not self._named:
            return ToolAnswer(_NAMELESS, failed=True)
        with self._changed:
            self._calls.add(call)
            if self._stopped:
                call.stop()
        try:
            return self.agent.call(call)
        finally:
            with self._changed:
                self._calls.discard(call)
                self._changed.notify_all()
