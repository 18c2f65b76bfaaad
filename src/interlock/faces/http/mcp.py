"""The tools for models over HTTP: ``POST /mcp``, the core of ``interlock mcp`` behind each request.

Both eras of the protocol are served, and each request says by itself which one it is of.

    handshake   ``initialize`` returns a handle (``Mcp-Session-Id``), which later requests carry;
                ``DELETE`` ends it
    stateless   a request stands alone: its headers repeat its version, method and name, and must be
                equal to its body

The agent is the one of the address (``/mcp?agent=ada``), else that of the token; a client of the
handshake era gets a name of its own if its caller is the user who started the server.  Its session
begins with its first call, and ends when the handle is deleted or was not used for a quarter of an
hour: it belongs to no connection.  Sub-agents take addresses of their own
(``/mcp?agent=ada/tests``), and so sessions of their own.

Updates of resources come on streams, which count as use of the session while they are open:
``GET`` with the handle, or the answer to ``subscriptions/listen``.
"""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from interlock.core import validate
from interlock.errors import BadInput, InterlockError
from interlock.faces.http.access import Caller, Refused
from interlock.faces.http.mcp_session import McpSession, MessageStream, OpenStream
from interlock.faces.http.roles import permit
from interlock.faces.http.sessions import require_speaker
from interlock.faces.mcp.agent import ConnectedAgent
from interlock.faces.mcp.jsonrpc import (
    HANDSHAKE,
    INVALID_PARAMS,
    NO_METHOD,
    PARSE_ERROR,
    STATELESS,
    WRONG_VERSION,
    Json,
    stateless_version,
)
from interlock.faces.mcp.protocol import ToolServer
from interlock.faces.mcp.tools import ToolSet
from interlock.faces.mcp.updates import ResourceUpdates

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.faces.http.clients import Clients

K = TypeVar("K")

HEADER = "mcp-session-id"
IDLE = 900.0
"""Seconds after its last request at which the session of a model ends."""
MOST = 1000
"""Sessions of all callers; none has more than it leaves to the others."""
TTL = 30.0
"""Seconds after which the session of a model expires if this server is killed."""
LOOK = 5.0
_LAST_CALLS = 0.5
"""Seconds that calls have to be answered when the server ends."""
_WITH_BATCHES = "2025-03-26"
_MISMATCH = -32020
_STATUS = {PARSE_ERROR: 400, INVALID_PARAMS: 400, WRONG_VERSION: 400, NO_METHOD: 404}
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_START, _END = "=?base64?", "?="


class McpAnswer(NamedTuple):
    """What a POST is answered with: no body for a message that gets no answer, or a stream."""

    status: int
    body: bytes
    session: str = ""
    stream: OpenStream | None = None


class McpSessions:
    """All sessions of models at one server."""

    def __init__(self, clients: Clients, *, longest: float) -> None:
        self._clients = clients
        self._longest = longest
        self._tools = ToolSet(("default",))
        self._lock = threading.Lock()
        self._by_handle: dict[str, McpSession] = {}
        self._by_agent: dict[tuple[Caller, str], McpSession] = {}
        self._swept: dict[tuple[Caller, str], None] = {}
        """Agents without a handle whose sessions were ended here: their next answer says so."""
        self._stopped = False
        self._updates = ResourceUpdates(lambda: clients.store)
        self._streams: set[OpenStream] = set()

    def may_wait(self, body: bytes) -> bool:
        """Whether a POST asks to wait; all others are answered soon."""
        message = _decoded_body(body)
        return any(map(self._asks_to_wait, message if isinstance(message, list) else [message]))

    def _asks_to_wait(self, message: object) -> bool:
        if not isinstance(message, dict) or message.get("method") != "tools/call":
            return False
        params = message.get("params")
        params = params if isinstance(params, dict) else {}
        tool, arguments = self._tools.find(str(params.get("name"))), params.get("arguments")
        return tool is not None and tool.may_wait(arguments if isinstance(arguments, dict) else {})

    def receive(
        self,
        body: bytes,
        headers: dict[str, str],
        caller: Caller,
        agent: str,
        gone: threading.Event,
    ) -> McpAnswer:
        """Answer a POST; a call that waits ends when its client is ``gone``."""
        message, said = _decoded_body(body), headers.get("mcp-protocol-version")
        if stateless_version(message) is not None or said in STATELESS:
            with self._of_agent(caller, agent) as session:
                return self._stateless(body, message, headers, session, gone)
        if isinstance(message, dict) and message.get("method") == "initialize":
            return self._begin(body, caller, agent)
        if said is not None and said not in HANDSHAKE:
            raise BadInput(f"MCP-Protocol-Version is one of {', '.join((*HANDSHAKE, *STATELESS))}")
        if isinstance(message, list) and said not in (None, _WITH_BATCHES):
            raise BadInput(f"a batch is of version {_WITH_BATCHES}; send one message at a time")
        handle = headers.get(HEADER)
        using = self._of_agent(caller, agent) if handle is None else self._of_handle(caller, handle)
        with using as session:
            if isinstance(message, list):  # its client may leave long before its last call
                return self._cancelled_when(gone, session.tool_server(), body, errors=False)
            return _answered(session.server, body, errors=False)

    def stream(self, caller: Caller, handle: str | None) -> OpenStream:
        """The stream of the session of a handle, for ``GET``."""
        if handle is None:
            raise Refused(405, "wrong_method", "a stream is that of a session; send its handle")
        with self._of_handle(caller, handle) as session:
            if session.messages is None:
                raise Refused(405, "wrong_method", "this session has no stream")
            return self._opened(OpenStream(session, session.messages, session.server))

    def closed(self, stream: OpenStream) -> None:
        """The connection of a stream is over."""
        with self._lock:
            self._streams.discard(stream)
            stream.session.running -= 1
            stream.session.used = time.monotonic()
        stream.close()

    def stop(self) -> None:
        """End all streams and waits: the server ends, and its sessions soon after."""
        with self._lock:
            self._stopped = True
            streams, sessions = tuple(self._streams), self._all()
        for each in streams:
            each.end()
        for session in sessions:
            session.stop()

    def end(self, caller: Caller, handle: str | None) -> bool:
        """End the session of a handle; False if there is none."""
        with self._lock:
            session = self._by_handle.get(handle or "")
            if session is None or session.caller != caller:
                return False
            del self._by_handle[handle or ""]
        _leave(session)
        return True

    def sweep(self, idle: float = IDLE) -> None:
        """End the sessions that were not used for so long."""
        before = time.monotonic() - idle
        with self._lock:
            named = _taken_out(self._by_agent, before)
            old = [*_taken_out(self._by_handle, before).values(), *named.values()]
            self._swept |= dict.fromkeys(key for key, each in named.items() if each.agent.joined)
            while len(self._swept) > MOST:
                del self._swept[next(iter(self._swept))]
        for session in old:
            _leave(session)

    def keep_sweeping(self, _: Fleet, stopped: threading.Event) -> None:
        """End idle sessions until the server ends, and then all of them."""
        while not stopped.wait(LOOK):
            self.sweep()
        with self._lock:
            left = self._all()
            self._by_handle.clear()
            self._by_agent.clear()
        ends = time.monotonic() + _LAST_CALLS
        for session in left:
            session.stop()
        for session in left:  # a call that is answered may still need its session
            session.finish(ends - time.monotonic())
            _leave(session)

    def _begin(self, body: bytes, caller: Caller, agent: str) -> McpAnswer:
        session = self._made(caller, agent or self._own_name(caller), named=True)
        done = _answered(session.server, body, errors=False)
        if not done.body or _error_code(done.body) is not None:
            return done
        handle = os.urandom(24).hex()
        session.messages = MessageStream(session.server.tell_again)
        with self._lock:
            self._make_room(self._by_handle, caller)
            self._by_handle[handle] = session
        return done._replace(session=handle)

    def _stateless(
        self,
        body: bytes,
        message: Any,  # noqa: ANN401 - any JSON
        headers: dict[str, str],
        session: McpSession,
        gone: threading.Event,
    ) -> McpAnswer:
        if isinstance(message, dict) and (wrong := _mismatch(message, headers)):
            error = {"code": _MISMATCH, "message": f"{wrong} is not that of the body"}
            answer = {"jsonrpc": "2.0", "id": _id(message), "error": error}
            return McpAnswer(400, msgspec.json.encode(answer))
        if isinstance(message, dict) and message.get("method") == "initialize":
            error = {"code": NO_METHOD, "message": "there is no initialize in this version"}
            answer = {"jsonrpc": "2.0", "id": _id(message), "error": error}
            return McpAnswer(404, msgspec.json.encode(answer))
        server = session.tool_server()
        if isinstance(message, dict) and message.get("method") == "subscriptions/listen":
            return self._listening(session, server, body)
        if isinstance(message, dict) and message.get("method") == "tools/call":
            return self._cancelled_when(gone, server, body, errors=True)
        return _answered(server, body, errors=True)

    def _cancelled_when(
        self, gone: threading.Event, server: ToolServer, body: bytes, *, errors: bool
    ) -> McpAnswer:
        """Let the core answer; what runs is cancelled when the client is gone."""
        if gone.is_set():
            server.cancel()
        watch = threading.Thread(target=_cancel_when, args=(gone, server), daemon=True)
        watch.start()
        try:
            return _answered(server, body, errors=errors)
        finally:
            gone.set()

    def _listening(self, session: McpSession, server: ToolServer, body: bytes) -> McpAnswer:
        """Begin a subscription, whose messages are a stream; an error is an ordinary answer."""
        messages = MessageStream()
        server.receive(body, messages.send)
        first = messages.first()
        if not first or _error_code(first) is not None:
            return _answer(first, errors=True)
        return McpAnswer(200, b"", stream=self._opened(OpenStream(session, messages, server)))

    def _opened(self, stream: OpenStream) -> OpenStream:
        with self._lock:
            self._streams.add(stream)
            stream.session.running += 1
        return stream

    @contextmanager
    def _of_handle(self, caller: Caller, handle: str) -> Iterator[McpSession]:
        """The session of a handle; it is in use until the block ends."""
        with self._lock:
            session = self._by_handle.get(handle)
            if session is None or session.caller != caller:
                raise Refused(404, "no_route", "this session is over; begin with initialize again")
            session.running += 1
        yield from self._in_use(session)

    @contextmanager
    def _of_agent(self, caller: Caller, agent: str) -> Iterator[McpSession]:
        """The session of an agent without a handle; it is in use until the block ends."""
        key = caller, agent or self._own_name(caller)
        with self._lock:
            session = self._by_agent.get(key)
            if session is None:
                expired = key in self._swept
                session = self._made(*key, named=bool(key[1]), expired=expired)
                self._make_room(self._by_agent, caller)
                self._swept.pop(key, None)
                self._by_agent[key] = session
            session.running += 1
        yield from self._in_use(session)

    def _in_use(self, session: McpSession) -> Iterator[McpSession]:
        try:
            yield session
        finally:
            with self._lock:
                session.running -= 1
                session.used = time.monotonic()

    def _make_room(self, kept: dict[K, McpSession], caller: Caller) -> None:
        """Refuse one session more, if that cannot be: no caller may use up what all share."""
        if self._stopped:
            raise Refused(503, "stopped", "the server ends; call again later")
        own = [key for key, each in kept.items() if each.caller == caller]
        left = MOST - len(kept)
        if len(own) < left:
            return
        unused = [key for key, each in kept.items() if not (each.running or each.agent.joined)]
        spare = [key for key in unused if kept[key].caller == caller]
        if not left:  # of any caller: it never did anything, and its client begins again
            spare = spare or unused
        if not spare:
            taken = f"{len(own)} sessions are yours, and the other {left} places are for others"
            raise Refused(503, "too_many", f"{taken}; end one of yours, or call again later")
        del kept[min(spare, key=lambda key: kept[key].used)]

    def _all(self) -> list[McpSession]:
        return [*self._by_handle.values(), *self._by_agent.values()]

    def _own_name(self, caller: Caller) -> str:
        """The name of an agent whose address has none; empty for one that is made up."""
        return "" if caller.owner else caller.agent

    def _made(self, caller: Caller, name: str, *, named: bool, expired: bool = False) -> McpSession:
        if name:
            require_speaker(caller, validate.own_agent_name(name, proven=caller.agent))
        agent = ConnectedAgent(
            self._tools,
            self._connect,
            name=name,
            longest_wait=self._longest,
            expired=expired,
            permit=partial(permit, caller, changes=True),
        )
        return McpSession(caller, agent, self._tools, self._updates, named=named)

    def _connect(self, agent: str) -> Fleet:
        return self._clients.begin(agent, ttl=TTL, via="mcp")


def _taken_out(kept: dict[K, McpSession], before: float) -> dict[K, McpSession]:
    """Remove the sessions that were last used before a moment, and return them."""
    old = [key for key, each in kept.items() if each.used < before and not each.running]
    return {key: kept.pop(key) for key in old}


def _decoded_body(body: bytes) -> Any:  # noqa: ANN401 - any JSON
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return None  # the core refuses it


def _mismatch(message: Json, headers: dict[str, str]) -> str:
    """The header that is missing or not equal to its place in the body; empty if all are."""
    params = message.get("params")
    params = params if isinstance(params, dict) else {}
    version = stateless_version(message)
    if version is not None and headers.get("mcp-protocol-version") != version:
        return "MCP-Protocol-Version"
    if "id" in message and headers.get("mcp-method") != message.get("method"):
        return "Mcp-Method"
    field = _NAMED.get(str(message.get("method")))
    if field is not None and params.get(field) is not None:
        return "" if _decoded(headers.get("mcp-name")) == params[field] else "Mcp-Name"
    return ""


def _decoded(value: str | None) -> str | None:
    """A header as it was meant: what is no plain ASCII is sent in base64."""
    if value is None or not (value.startswith(_START) and value.endswith(_END)):
        return value
    with suppress(ValueError):
        return base64.b64decode(value[len(_START) : -len(_END)], validate=True).decode()
    return None


def _id(message: Json) -> str | int | None:
    found = message.get("id")
    return found if isinstance(found, str | int) else None


def _error_code(data: bytes) -> int | None:
    answer = msgspec.json.decode(data)
    error = answer.get("error") if isinstance(answer, dict) else None
    return error.get("code") if isinstance(error, dict) else None


def _answered(server: ToolServer, body: bytes, *, errors: bool) -> McpAnswer:
    """Let the core answer."""
    found: list[bytes] = []
    server.receive(body, found.append)
    return _answer(b"".join(found), errors=errors)


def _answer(data: bytes, *, errors: bool) -> McpAnswer:
    """A message as the answer to a POST; an error of the protocol has a status of its own."""
    if not data:
        return McpAnswer(202, b"")
    code = _error_code(data)
    if code == PARSE_ERROR or (errors and code in _STATUS):
        return McpAnswer(_STATUS[code], data)
    return McpAnswer(200, data)


def _cancel_when(gone: threading.Event, server: ToolServer) -> None:
    gone.wait()
    server.cancel()


def _leave(session: McpSession) -> None:
    session.stop()
    session.server.close()
    if session.messages is not None:
        session.messages.close()
    with suppress(InterlockError, OSError):
        session.agent.leave()
