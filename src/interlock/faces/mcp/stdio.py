"""``interlock mcp``: the tools over standard input and output, one message a line.

Standard output belongs to the protocol alone: this process keeps a private copy, and what anything
else prints there goes to standard error.  Standard input is private, too, so that no tool can read
the messages of the host.

Each call runs in a thread.  The end of the input, SIGTERM and Ctrl-C end the session; a server that
is killed leaves a session that expires.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING

from interlock.core import validate
from interlock.core.wait import SESSION_CALLER
from interlock.faces.cli.command import note, stoppable
from interlock.faces.cli.connect import CommandIdentity, opened, speak_up, tell_if_new
from interlock.faces.mcp.agent import ConnectedAgent
from interlock.faces.mcp.jsonrpc import Json, Send
from interlock.faces.mcp.protocol import MOST_CALLS, ToolServer
from interlock.faces.mcp.tools import ToolSet
from interlock.faces.mcp.words import INSTRUCTIONS
from interlock.threads import background

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.faces.cli.parse import Parsed
    from interlock.faces.mcp.subscriptions import Subscriptions
    from interlock.nouns.fleet.server_noun import McpRequest

LONGEST_LINE = 8 * 1024 * 1024
_CHUNK = 1 << 16
_PATIENCE = 2.0
"""Seconds that calls have to end when the input ends."""


def serve(parsed: Parsed) -> int:
    """Answer messages until the input ends."""
    request: McpRequest = parsed.request
    identity = CommandIdentity(parsed.common, anew=True)
    name = validate.own_agent_name(identity.agent) if identity.agent else ""
    ttl = validate.duration(request.ttl, "ttl")
    tools = ToolSet(request.tools, local=request.local)

    def connect(agent: str) -> Fleet:
        fleet = opened(
            identity.store,
            agent=agent,
            ttl=ttl,
            caller=SESSION_CALLER,
            trace=identity.trace,
            key=identity.key,
            no_retry=parsed.common.no_retry,
        )
        fleet.context.runner.via = "mcp"
        tell_if_new(fleet.store)
        speak_up()
        return fleet

    longest = validate.duration(request.longest_wait, "longest wait")
    agent = ConnectedAgent(tools, connect, name=name, local=request.local, longest_wait=longest)
    source, sink = _private(0, os.devnull), _Sink(_private(1, None))
    workers = Workers(MOST_CALLS)
    server = ToolServer(
        instructions=INSTRUCTIONS,
        tools=tools.listed,
        has_tool=tools.has,
        call=agent.call,
        start=workers.start,
        reading=lambda *args, **named: _reading(agent, *args, **named),
        subscriptions=lambda: _subscriptions(agent, sink.send),
    )
    stoppable()
    if os.isatty(source):
        note("waiting for the messages of an MCP host on standard input; end with Ctrl-D")
    try:
        for line in lines(source):
            if line is None:
                server.refuse(f"a message has at most {LONGEST_LINE} bytes", sink.send)
            elif line.strip():
                server.receive(line, sink.send)
    finally:
        server.close()
        workers.finish(_PATIENCE)
        agent.leave()
    return 0


def _reading(agent: ConnectedAgent, method: str, params: Json, *, stateless: bool) -> Json | None:
    """Prompts and resources, which most hosts never ask for: imported when one does."""
    if not method.startswith(("prompts/", "resources/")):
        return None
    from interlock.faces.mcp.reading import Reading

    return Reading(agent.client).answer(method, params, stateless=stateless)


def _subscriptions(agent: ConnectedAgent, send: Send) -> Subscriptions:
    """Updates of resources, which few hosts ask for."""
    from interlock.faces.mcp.subscriptions import Subscriptions
    from interlock.faces.mcp.updates import ResourceUpdates

    def name() -> str:
        agent.client()
        return agent.name

    return Subscriptions(ResourceUpdates(agent.store), name, send)


def lines(source: int, longest: int = LONGEST_LINE) -> Iterator[bytes | None]:
    """The lines of a file descriptor; None for one that is too long, whose bytes are dropped."""
    parts: list[bytes] = []
    size = 0
    while chunk := os.read(source, _CHUNK):
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            yield b"".join((*parts, part)) if size + len(part) <= longest else None
            parts, size = [], 0
        size += len(rest)
        if size <= longest:
            parts.append(rest)
        else:
            parts = []
    if size:
        yield b"".join(parts) if size <= longest else None


class Workers:
    """Threads that carry out calls; an idle one is used again."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._work = SimpleQueue[Callable[[], None]]()
        self._changed = threading.Condition()
        self._threads = 0
        self._unfinished = 0

    def start(self, work: Callable[[], None]) -> None:
        """Carry this out in a thread."""
        with self._changed:
            self._unfinished += 1
            more = self._threads < min(self._unfinished, self._most)
            self._threads += more
        self._work.put(work)
        if more:
            background(self._run, "interlock-call").start()

    def finish(self, seconds: float) -> None:
        """Wait until all is done, at most this long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unfinished, seconds)

    def _run(self) -> None:
        while True:
            work = self._work.get()
            try:
                work()
            finally:
                with self._changed:
                    self._unfinished -= 1
                    self._changed.notify_all()


class _Sink:
    """Writes lines to a file descriptor, from any thread; a reader that is gone is no error."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._lock = threading.Lock()

    def send(self, message: bytes) -> None:
        """Write a message as one line."""
        left = memoryview(message + b"\n" if message else b"")
        with self._lock, suppress(OSError):
            while left:
                left = left[os.write(self._file, left) :]


def _private(stream: int, instead: str | None) -> int:
    """A copy of a standard stream for the protocol alone; others get a file, or standard error."""
    file = os.dup(stream)
    os.set_blocking(file, True)
    if instead is None:
        sys.stdout.flush()
        os.dup2(2, stream)
    else:
        empty = os.open(instead, os.O_RDONLY)
        os.dup2(empty, stream)
        os.close(empty)
    return file
