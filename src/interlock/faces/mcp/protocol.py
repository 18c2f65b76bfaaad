"""The Model Context Protocol: a message in, messages out.

The protocol has two eras, and each message says by itself which one it is of:

    handshake    2024-11-05 to 2025-11-25.  ``initialize`` agrees on a version; ``ping``.
    stateless    2026-07-28.  No handshake: ``_meta`` of each request names the version and the
                 capabilities of the client; ``server/discover``; a result has a ``resultType``,
                 and a result that can be cached says for how long.

Nothing is kept from one message to the next but the calls that run and the name of the client.  So
a client may send ``initialize`` after ``server/discover`` on one connection, as some in the field
do, and both are answered.

A tool call runs where ``start`` puts it, in a thread for example, since it may wait for long;
all other messages are answered at once, so that no call holds up a ping or a cancellation.
A cancelled call ends without an answer, as the protocol asks for.  At the end of a connection
(``close``) calls that wait stop waiting, and the others are still answered.

An error of the protocol is a JSON-RPC error.  What a model can correct is a result with
``isError``, since only that reaches the model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from interlock.core.safe_text import quoted
from interlock.version import __version__

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Json: TypeAlias = dict[str, Any]
Send: TypeAlias = Callable[[bytes], None]
Id: TypeAlias = str | int

HANDSHAKE = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS = ("2026-07-28",)
_META = "io.modelcontextprotocol/"
_VERSION, _CAPABILITIES = f"{_META}protocolVersion", f"{_META}clientCapabilities"
_CLIENT = f"{_META}clientInfo"

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
NO_METHOD = -32601
INVALID_PARAMS = -32602
INTERNAL = -32603
TOO_MANY = -32000
WRONG_VERSION = -32022

MOST_CALLS = 64
"""Calls of one connection that run at the same time."""
MOST_IN_BATCH = 100
_CACHED = 3_600_000
"""Milliseconds for which a client may keep the list of tools: it changes with the command line."""
_SHORT = 100


class ToolAnswer(NamedTuple):
    """What a model reads; ``undo`` releases what the call acquired, if no model will read it."""

    text: str
    failed: bool = False
    undo: Callable[[], None] | None = None


class ToolCall:
    """A call that runs: which tool, with which arguments, and whether it is to end."""

    def __init__(self, tool: str, arguments: Json, client: str) -> None:
        self.tool = tool
        self.arguments = arguments
        self.client = client
        self.stopped = threading.Event()
        self.cancelled = False

    def stop(self) -> None:
        """Stop waiting."""
        self.stopped.set()

    def cancel(self) -> None:
        """Stop waiting, and return nothing: no caller wants the answer."""
        self.cancelled = True
        self.stopped.set()


class ProtocolError(Exception):
    """A message that cannot be answered with a result."""

    def __init__(self, code: int, message: str, data: Json | None = None) -> None:
        super().__init__(message)
        self.error: Json = {"code": code, "message": message}
        if data is not None:
            self.error["data"] = data


class ToolServer:
    """One connection: answers its messages, and runs its calls.

    ``tools`` lists the tools; ``call`` carries out a call and returns what the model reads, None
    if there is no such tool; ``start`` runs a function without waiting for it.  ``reading`` answers
    methods about prompts and resources, with None for any other one.
    """

    def __init__(
        self,
        *,
        instructions: str,
        tools: Callable[[], Sequence[Json]],
        has_tool: Callable[[str], bool],
        call: Callable[[ToolCall], ToolAnswer],
        start: Callable[[Callable[[], None]], None],
        reading: Callable[..., Json | None] | None = None,
    ) -> None:
        self._instructions = instructions
        self._tools = tools
        self._has_tool = has_tool
        self._call = call
        self._start = start
        self._reading = reading
        self._client = ""
        self._running: dict[tuple[type, Id], ToolCall] = {}
        self._lock = threading.Lock()

    def receive(self, data: bytes, send: Send) -> None:
        """Answer a message, now or when its call is done.

        Each request is one call of ``send``, which gets nothing (``b""``) if it was cancelled.
        """
        try:
            message = msgspec.json.decode(data)
        except (ValueError, RecursionError):
            send(_failed(None, ProtocolError(PARSE_ERROR, "the message is not JSON in UTF-8")))
            return
        if isinstance(message, list):
            self._receive_batch(message, send)
        else:
            self._receive(message, send)

    def refuse(self, message: str, send: Send) -> None:
        """Answer a message that was too long to read."""
        send(_failed(None, ProtocolError(INVALID_REQUEST, message)))

    def close(self) -> None:
        """Let the calls that wait stop waiting; the connection is over."""
        with self._lock:
            running = tuple(self._running.values())
        for call in running:
            call.stop()

    def cancel(self) -> None:
        """Cancel the calls that run: no caller wants their answers."""
        with self._lock:
            running = tuple(self._running.values())
        for call in running:
            call.cancel()

    def _receive_batch(self, messages: list[Any], send: Send) -> None:
        """Answer several messages with one, as version 2025-03-26 has it."""
        if not 0 < len(messages) <= MOST_IN_BATCH:
            self.refuse(f"a batch has 1 to {MOST_IN_BATCH} messages", send)
            return
        batch = _BatchAnswers(sum(map(_is_answered, messages)), send)
        for message in messages:
            self._receive(message, batch.add)

    def _receive(self, message: object, send: Send) -> None:
        id_: Id | None = None
        try:
            found = _object(message)
            id_ = _id(found)
            method, params = _parts(found)
            if method is None:  # an answer, and we asked nothing
                return
            if id_ is None:
                self._notified(method, params)
            elif method == "tools/call":
                self._begin(id_, params, send)
            else:
                send(_answered(id_, self._result(method, params)))
        except ProtocolError as error:
            if _is_answered(message):
                send(_failed(id_, error))
        except Exception as error:  # noqa: BLE001 - a bug must not end the connection
            if _is_answered(message):
                send(_failed(id_, ProtocolError(INTERNAL, f"unexpected {type(error).__name__}")))

    def _notified(self, method: str, params: Json) -> None:
        wanted = params.get("requestId")
        if method != "notifications/cancelled" or not _is_id(wanted):
            return  # nothing else concerns us
        with self._lock:  # the call is cancelled before it is answered, or not at all
            if (call := self._running.get((type(wanted), wanted))) is not None:
                call.cancel()

    def _result(self, method: str, params: Json) -> Json:
        if method == "initialize":
            return self._initialized(params)
        stateless = _is_stateless(method, params)
        if method == "server/discover":
            known = {"supportedVersions": list(STATELESS), **self._about()}
            return {**known, **cacheable()}
        if method == "tools/list":
            if params.get("cursor") is not None:
                raise ProtocolError(INVALID_PARAMS, "all tools are on one page; leave cursor out")
            return {"tools": list(self._tools()), **(cacheable() if stateless else {})}
        if method == "ping" and not stateless:
            return {}
        if self._reading is not None:
            found = self._reading(method, params, stateless=stateless)
            if found is not None:
                return found
        raise ProtocolError(NO_METHOD, f"there is no method {_shown(method)} here")

    def _initialized(self, params: Json) -> Json:
        version = params.get("protocolVersion")
        if not isinstance(version, str):
            raise ProtocolError(INVALID_PARAMS, "initialize needs a protocolVersion")
        self._client = _name(params.get("clientInfo")) or self._client
        agreed = version if version in HANDSHAKE else HANDSHAKE[-1]
        return {"protocolVersion": agreed, **self._about()}

    def _about(self) -> Json:
        return {
            "capabilities": {"tools": {}, **self._readable()},
            "serverInfo": {"name": "interlock", "version": __version__},
            "instructions": self._instructions,
        }

    def _readable(self) -> Json:
        return {} if self._reading is None else {"prompts": {}, "resources": {}}

    def _begin(self, id_: Id, params: Json, send: Send) -> None:
        """Start a call; it is answered when it is done."""
        stateless = _is_stateless("tools/call", params)
        if stateless:
            self._client = _name(params["_meta"].get(_CLIENT)) or self._client
        tool, arguments = params.get("name"), params.get("arguments")
        if not isinstance(tool, str):
            raise ProtocolError(INVALID_PARAMS, "tools/call needs the name of a tool")
        if not isinstance(arguments, dict | None):
            raise ProtocolError(INVALID_PARAMS, "the arguments of a tool are an object")
        if not self._has_tool(tool):
            raise ProtocolError(INVALID_PARAMS, f"there is no tool {_shown(tool)}; see tools/list")
        call = ToolCall(tool, arguments or {}, self._client)
        key = (type(id_), id_)
        with self._lock:
            if key in self._running:
                raise ProtocolError(INVALID_REQUEST, "a request with this id runs already")
            if len(self._running) >= MOST_CALLS:
                raise ProtocolError(TOO_MANY, f"{MOST_CALLS} calls run already; wait for one")
            self._running[key] = call
        self._start(lambda: self._run(key, call, send, stateless=stateless))

    def _run(self, key: tuple[type, Id], call: ToolCall, send: Send, *, stateless: bool) -> None:
        try:
            answer = self._call(call)
        except Exception as error:  # noqa: BLE001 - a bug must not leave a call without an answer
            answer = ToolAnswer(f"unexpected {type(error).__name__}; report it", failed=True)
        with self._lock:
            self._running.pop(key, None)
        if call.cancelled:
            if answer.undo is not None:
                answer.undo()
            send(b"")
            return
        result: Json = {"content": [{"type": "text", "text": answer.text}]}
        if answer.failed:
            result["isError"] = True
        if stateless:
            result["resultType"] = "complete"
        send(_answered(key[1], result))


class _BatchAnswers:
    """Collects the answers to a batch, and sends them together."""

    def __init__(self, expected: int, send: Send) -> None:
        self._left = expected
        self._send = send
        self._answers: list[bytes] = []
        self._lock = threading.Lock()

    def add(self, answer: bytes) -> None:
        """Take an answer; the last one sends all."""
        with self._lock:
            self._answers.append(answer)
            self._left -= 1
            if self._left:
                return
        answers = b",".join(filter(None, self._answers))
        self._send(b"[" + answers + b"]" if answers else b"")


def stateless_version(message: object) -> str | None:
    """The version that a message of the stateless era names; None for any other message."""
    params = message.get("params") if isinstance(message, dict) else None
    meta = params.get("_meta") if isinstance(params, dict) else None
    version = meta.get(_VERSION) if isinstance(meta, dict) else None
    return version if isinstance(version, str) else None


def _is_stateless(method: str, params: Json) -> bool:
    """Whether a request is of the stateless era; raises ProtocolError if it is a wrong one."""
    meta = params.get("_meta")
    if not isinstance(meta, dict):
        meta = {}
    if method != "server/discover" and _VERSION not in meta and _CAPABILITIES not in meta:
        return False
    if missing := [key for key in (_VERSION, _CAPABILITIES) if key not in meta]:
        raise ProtocolError(INVALID_PARAMS, f"params._meta needs {' and '.join(missing)}")
    version = meta[_VERSION]
    if not isinstance(version, str):
        raise ProtocolError(INVALID_PARAMS, f"{_VERSION} is a text")
    if version not in STATELESS:
        known = {"supported": list(STATELESS), "requested": version[:_SHORT]}
        raise ProtocolError(WRONG_VERSION, "this version of the protocol is not supported", known)
    return True


def cacheable(milliseconds: int = _CACHED) -> Json:
    """What a result of the stateless era says about how long it may be kept."""
    return {"resultType": "complete", "ttlMs": milliseconds, "cacheScope": "private"}


def _parts(message: Json) -> tuple[str | None, Json]:
    """The method and the parameters of a message; no method if it is an answer."""
    if message.get("jsonrpc") != "2.0":
        raise ProtocolError(INVALID_REQUEST, 'a message has "jsonrpc": "2.0"')
    if "method" not in message and ("result" in message or "error" in message):
        return None, {}
    method, params = message.get("method"), message.get("params")
    if not isinstance(method, str):
        raise ProtocolError(INVALID_REQUEST, "a message has a method")
    if not isinstance(params, dict | None):
        raise ProtocolError(INVALID_PARAMS, "params is an object")
    return method, params or {}


def _is_id(value: object) -> TypeIs[Id]:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _object(message: object) -> Json:
    if not isinstance(message, dict):
        raise ProtocolError(INVALID_REQUEST, "a message is a JSON object")
    return message


def _id(message: Json) -> Id | None:
    """The id of a request; None for a notification."""
    if "id" in message and not _is_id(message["id"]):
        raise ProtocolError(INVALID_REQUEST, "the id of a request is a text or a whole number")
    return message.get("id")


def _is_answered(message: object) -> bool:
    """Whether a message gets an answer, unless its call is cancelled."""
    if not isinstance(message, dict):
        return True
    if "method" not in message:
        return "result" not in message and "error" not in message
    return "id" in message


def _name(info: object) -> str:
    """The name of a client, from what it says about itself."""
    name = info.get("name") if isinstance(info, dict) else None
    return name if isinstance(name, str) else ""


def _shown(text: str) -> str:
    return quoted(text)


def _answered(id_: Id, result: Json) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id_, "result": result})


def _failed(id_: Id | None, error: ProtocolError) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id_, "error": error.error})
