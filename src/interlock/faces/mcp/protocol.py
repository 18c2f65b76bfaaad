"""The Model Context Protocol: a message in, messages out.

The protocol has two eras, and each message says by itself which one it is of:

    handshake    2024-11-05 to 2025-11-25.  ``initialize`` agrees on a version; ``ping``.
    stateless    2026-07-28.  No handshake: ``_meta`` of each request names the version and the
                 capabilities of the client; ``server/discover``; a result has a ``resultType``,
                 and a result that can be cached says for how long.

Nothing is kept from one message to the next but the calls that run and the name of the client.  So
a client may send ``initialize`` after ``server/discover`` on one connection, as some in the field
do, and both are answered.

A tool call runs where ``start`` puts it, in a thread for example, since it may wait for long, and
so does the reading of a resource; all other messages are answered at once, so that no call holds up
a ping or a cancellation.  Updates of resources (``subscriptions.py``) come from another thread.
A cancelled call ends without an answer, as the protocol asks for.  At the end of a connection
(``close``) calls that wait stop waiting, and the others are still answered.

An error of the protocol is a JSON-RPC error.  What a model can correct is a result with
``isError``, since only that reaches the model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from interlock.core.safe_text import quoted
from interlock.errors import InterlockError
from interlock.faces.mcp.jsonrpc import (
    CLIENT,
    HANDSHAKE,
    INTERNAL,
    INVALID_PARAMS,
    INVALID_REQUEST,
    META,
    NO_METHOD,
    PARSE_ERROR,
    STATELESS,
    TOO_MANY,
    Id,
    Json,
    ProtocolError,
    Send,
    as_object,
    cacheable,
    client_name,
    error_message,
    is_answered,
    is_id,
    is_stateless,
    method_and_params,
    request_id,
    result_message,
)
from interlock.version import __version__

if TYPE_CHECKING:
    from interlock.faces.mcp.subscriptions import Subscriptions

MOST_CALLS = 64
"""Calls of one connection that run at the same time."""
MOST_IN_BATCH = 100
_LISTEN = "subscriptions/listen"
_FROM_STORE = ("resources/", "subscriptions/")
"""These read the store, which may take long: they are answered where calls run."""


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


class ToolServer:
    """One connection: answers its messages, and runs its calls.

    ``tools`` lists the tools; ``call`` carries out a call and returns what the model reads, None
    if there is no such tool; ``start`` runs a function without waiting for it.  ``reading`` answers
    methods about prompts and resources, with None for any other one.  ``subscriptions`` makes what
    answers about updates of resources, when it is first needed.
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
        subscriptions: Callable[[], Subscriptions] | None = None,
    ) -> None:
        self._instructions = instructions
        self._tools = tools
        self._has_tool = has_tool
        self._call = call
        self._start = start
        self._reading = reading
        self._make_subscriptions = subscriptions
        self._subscriptions: Subscriptions | None = None
        self._client = ""
        self._running: dict[tuple[type, Id], ToolCall] = {}
        self._cancelled = False
        self._lock = threading.Lock()

    def receive(self, data: bytes, send: Send) -> None:
        """Answer a message, now or when its call is done.

        Each request is one call of ``send``, which gets nothing (``b""``) if it was cancelled.
        """
        try:
            message = msgspec.json.decode(data)
        except (ValueError, RecursionError):
            wrong = ProtocolError(PARSE_ERROR, "the message is not JSON in UTF-8")
            send(error_message(None, wrong))
            return
        if isinstance(message, list):
            self._receive_batch(message, send)
        else:
            self._receive(message, send)

    def refuse(self, message: str, send: Send) -> None:
        """Answer a message that was too long to read."""
        send(error_message(None, ProtocolError(INVALID_REQUEST, message)))

    def close(self) -> None:
        """Let the calls that wait stop waiting, and end all subscriptions: it is over."""
        with self._lock:
            running = tuple(self._running.values())
            subscriptions = self._subscriptions
        for call in running:
            call.stop()
        if subscriptions is not None:
            subscriptions.close()

    def cancel(self) -> None:
        """Cancel the calls that run, and those that begin later: no caller wants their answers."""
        with self._lock:
            self._cancelled = True
            running = tuple(self._running.values())
        for call in running:
            call.cancel()

    def tell_again(self) -> None:
        """Send an update of all that is subscribed to: earlier ones may not have arrived."""
        if self._subscriptions is not None:
            self._subscriptions.tell_again()

    def _receive_batch(self, messages: list[Any], send: Send) -> None:
        """Answer several messages with one, as version 2025-03-26 has it."""
        if not 0 < len(messages) <= MOST_IN_BATCH:
            self.refuse(f"a batch has 1 to {MOST_IN_BATCH} messages", send)
            return
        batch = _BatchAnswers(sum(map(is_answered, messages)), send)
        for message in messages:
            self._receive(message, batch.add, alone=False)

    def _receive(self, message: object, send: Send, *, alone: bool = True) -> None:
        id_: Id | None = None
        try:
            found = as_object(message)
            id_ = request_id(found)
            method, params = method_and_params(found)
        except ProtocolError as error:
            if is_answered(message):
                send(error_message(id_, error))
            return
        if method is None:  # an answer, and we asked nothing
            return
        if method.startswith(_FROM_STORE):
            self._start(lambda: self._answer(id_, method, params, send, alone=alone))
        else:
            self._answer(id_, method, params, send, alone=alone)

    def _answer(
        self, id_: Id | None, method: str, params: Json, send: Send, *, alone: bool
    ) -> None:
        try:
            if id_ is None:
                self._notified(method, params)
            elif method == "tools/call":
                self._begin(id_, params, send)
            elif method == _LISTEN and is_stateless(method, params) and alone:
                self._subscribed().listen(id_, params, send)
            else:
                send(result_message(id_, self._result(method, params)))
        except Exception as error:  # noqa: BLE001 - a bug must not end the connection
            if id_ is not None:
                send(error_message(id_, _as_protocol_error(error)))

    def _notified(self, method: str, params: Json) -> None:
        wanted = params.get("requestId")
        if method != "notifications/cancelled" or not is_id(wanted):
            return  # nothing else concerns us
        with self._lock:  # the call is cancelled before it is answered, or not at all
            if (call := self._running.get((type(wanted), wanted))) is not None:
                call.cancel()
            subscriptions = self._subscriptions
        if subscriptions is not None:
            subscriptions.cancel(wanted)

    def _result(self, method: str, params: Json) -> Json:
        if method == "initialize":
            return self._initialized(params)
        stateless = is_stateless(method, params)
        if method == "server/discover":
            known = {"supportedVersions": list(STATELESS), **self._about()}
            own = {f"{META}serverInfo": known["serverInfo"]}
            return {**known, **cacheable(), "_meta": own}
        if method == "tools/list":
            if params.get("cursor") is not None:
                raise ProtocolError(INVALID_PARAMS, "all tools are on one page; leave cursor out")
            return {"tools": list(self._tools()), **(cacheable() if stateless else {})}
        if method == "ping" and not stateless:
            return {}
        if method in ("resources/subscribe", "resources/unsubscribe") and not stateless:
            return self._subscribed().change(method, params)
        if self._reading is not None:
            found = self._reading(method, params, stateless=stateless)
            if found is not None:
                return found
        raise ProtocolError(NO_METHOD, f"there is no method {quoted(method)} here")

    def _initialized(self, params: Json) -> Json:
        version = params.get("protocolVersion")
        if not isinstance(version, str):
            raise ProtocolError(INVALID_PARAMS, "initialize needs a protocolVersion")
        self._client = client_name(params.get("clientInfo")) or self._client
        agreed = version if version in HANDSHAKE else HANDSHAKE[-1]
        return {"protocolVersion": agreed, **self._about()}

    def _about(self) -> Json:
        return {
            "capabilities": {"tools": {}, **self._readable()},
            "serverInfo": {"name": "interlock", "version": __version__},
            "instructions": self._instructions,
        }

    def _readable(self) -> Json:
        if self._reading is None:
            return {}
        updated = {} if self._make_subscriptions is None else {"subscribe": True}
        return {"prompts": {}, "resources": updated}

    def _subscribed(self) -> Subscriptions:
        if self._make_subscriptions is None:
            raise ProtocolError(NO_METHOD, "there are no updates of resources here")
        with self._lock:
            if self._subscriptions is None:
                self._subscriptions = self._make_subscriptions()
            return self._subscriptions

    def _begin(self, id_: Id, params: Json, send: Send) -> None:
        """Start a call; it is answered when it is done."""
        stateless = is_stateless("tools/call", params)
        if stateless:
            self._client = client_name(params["_meta"].get(CLIENT)) or self._client
        tool, arguments = params.get("name"), params.get("arguments")
        if not isinstance(tool, str):
            raise ProtocolError(INVALID_PARAMS, "tools/call needs the name of a tool")
        if not isinstance(arguments, dict | None):
            raise ProtocolError(INVALID_PARAMS, "the arguments of a tool are an object")
        if not self._has_tool(tool):
            raise ProtocolError(INVALID_PARAMS, f"there is no tool {quoted(tool)}; see tools/list")
        call = ToolCall(tool, arguments or {}, self._client)
        key = (type(id_), id_)
        with self._lock:
            if key in self._running:
                raise ProtocolError(INVALID_REQUEST, "a request with this id runs already")
            if len(self._running) >= MOST_CALLS:
                raise ProtocolError(TOO_MANY, f"{MOST_CALLS} calls run already; wait for one")
            self._running[key] = call
            if self._cancelled:
                call.cancel()
        self._start(lambda: self._run(key, call, send, stateless=stateless))

    def _run(self, key: tuple[type, Id], call: ToolCall, send: Send, *, stateless: bool) -> None:
        try:
            answer = ToolAnswer("") if call.cancelled else self._call(call)
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
        send(result_message(key[1], result))


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


def _as_protocol_error(error: Exception) -> ProtocolError:
    if isinstance(error, ProtocolError):
        return error
    if isinstance(error, InterlockError):
        return ProtocolError(INTERNAL, f"{error.code}: {error}")
    return ProtocolError(INTERNAL, f"unexpected {type(error).__name__}")
