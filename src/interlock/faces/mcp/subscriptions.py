"""The subscriptions of one connection to resources, in both eras of the protocol.

    handshake   ``resources/subscribe`` and ``resources/unsubscribe``; updates go to the connection
    stateless   ``subscriptions/listen``: the answer comes when the subscription ends; until then
                come its updates, which carry the id of that request

An update (``notifications/resources/updated``) names the resource and has no content.  All
subscriptions end with the connection, or with its session.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from interlock.core.safe_text import quoted
from interlock.faces.mcp.jsonrpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    META,
    TOO_MANY,
    Id,
    Json,
    ProtocolError,
    Send,
    notification,
    result_message,
)
from interlock.faces.mcp.updates import BOARD, INBOX, PRIMER, Listener

if TYPE_CHECKING:
    from interlock.faces.mcp.updates import ResourceUpdates

MOST = 16
"""Subscriptions of the stateless era that one connection has at the same time."""
_LONGEST_FILTER = 100
_ID = f"{META}subscriptionId"
_NO_SESSION = "updates come on the stream of a session; begin with initialize"
_KNOWN = (BOARD, INBOX, PRIMER)


class Subscriptions:
    """What one connection has subscribed to; any thread may call it.

    ``agent`` returns the agent of the connection, and raises ProtocolError for a client that may
    not read; ``send`` takes the updates of the handshake era, None if there is no place for them.
    """

    def __init__(
        self, updates: ResourceUpdates, agent: Callable[[], str], send: Send | None
    ) -> None:
        self._updates = updates
        self._agent = agent
        self._send = send
        self._lock = threading.Lock()
        self._subscribed: dict[str, Listener] = {}
        self._listening: dict[tuple[type, Id], _Listening] = {}
        self._closed = False

    def change(self, method: str, params: Json) -> Json:
        """Carry out ``resources/subscribe`` or ``resources/unsubscribe``."""
        uri, send = params.get("uri"), self._send
        if send is None:
            raise ProtocolError(INVALID_REQUEST, _NO_SESSION)
        if not isinstance(uri, str) or uri not in _KNOWN:
            said = f"there is no resource {quoted(str(uri)[:100])}; see resources/list"
            raise ProtocolError(INVALID_PARAMS, said, {"uri": str(uri)[:200]})
        with self._lock:
            before = self._subscribed.pop(uri, None)
        if before is not None:
            self._updates.remove(before)
        if method.endswith("/subscribe"):
            self._subscribe(uri, send)
        return {}

    def tell_again(self) -> None:
        """Send an update of everything: earlier ones may not have arrived."""
        with self._lock:
            listeners = tuple(self._subscribed.values())
        for listener in listeners:
            listener.tell()

    def listen(self, id_: Id, params: Json, send: Send) -> None:
        """Begin a subscription of the stateless era; ``send`` gets all that belongs to it."""
        uris = _asked_for(params)
        key, listening = (type(id_), id_), _Listening(id_, send)
        with self._lock:
            if self._closed or key in self._listening:
                raise ProtocolError(INVALID_REQUEST, "a request with this id runs already")
            if len(self._listening) >= MOST:
                raise ProtocolError(TOO_MANY, f"{MOST} subscriptions are open already; end one")
            self._listening[key] = listening
        try:
            with listening.lock:  # no update before the acknowledgement
                for uri in uris:
                    self._updates.add(listening.listener(uri, self._agent()))
                listening.acknowledge(uris)
        except BaseException:
            self.cancel(id_)
            raise

    def cancel(self, id_: Id) -> None:
        """End the subscription that began with this request, without an answer."""
        with self._lock:
            listening = self._listening.pop((type(id_), id_), None)
        if listening is not None:
            self._remove(listening)

    def close(self) -> None:
        """End all of them; those of the stateless era are answered."""
        with self._lock:
            self._closed = True
            listening, self._listening = tuple(self._listening.values()), {}
            subscribed, self._subscribed = tuple(self._subscribed.values()), {}
        for listener in subscribed:
            self._updates.remove(listener)
        for each in listening:
            self._remove(each)
            each.end()

    def _subscribe(self, uri: str, send: Send) -> None:
        listener = Listener(uri, self._agent(), partial(send, updated(uri)))
        self._updates.add(listener)
        with self._lock:
            closed = self._closed
            if not closed:
                self._subscribed[uri] = listener
        if closed:
            self._updates.remove(listener)

    def _remove(self, listening: _Listening) -> None:
        with listening.lock:
            listening.over = True
            listeners = tuple(listening.listeners)
        for listener in listeners:
            self._updates.remove(listener)


class _Listening:
    """One subscription of the stateless era; its lock orders what is sent."""

    def __init__(self, id_: Id, send: Send) -> None:
        self.lock = threading.Lock()
        self.listeners: list[Listener] = []
        self.over = False
        self._id = id_
        self._send = send
        self._meta = {_ID: id_}

    def listener(self, uri: str, agent: str) -> Listener:
        message = updated(uri, self._meta)
        made = Listener(uri, agent, lambda: self._tell(message))
        self.listeners.append(made)
        return made

    def acknowledge(self, uris: tuple[str, ...]) -> None:
        wanted: Json = {"resourceSubscriptions": list(uris)} if uris else {}
        params = {"notifications": wanted, "_meta": self._meta}
        self._send(notification("notifications/subscriptions/acknowledged", params))

    def end(self) -> None:
        self._send(result_message(self._id, {"resultType": "complete", "_meta": self._meta}))

    def _tell(self, message: bytes) -> None:
        with self.lock:
            if not self.over:
                self._send(message)


def updated(uri: str, meta: Json | None = None) -> bytes:
    """The notification that a resource has changed."""
    about: Json = {"uri": uri} if meta is None else {"uri": uri, "_meta": meta}
    return notification("notifications/resources/updated", about)


def _asked_for(params: Json) -> tuple[str, ...]:
    """The resources that a client wants updates of, and that exist: only these are promised."""
    wanted: Any = params.get("notifications")
    if not isinstance(wanted, dict):
        raise ProtocolError(INVALID_PARAMS, "subscriptions/listen needs notifications, an object")
    uris = wanted.get("resourceSubscriptions")
    uris = [] if uris is None else uris
    if not isinstance(uris, list) or len(uris) > _LONGEST_FILTER:
        said = f"resourceSubscriptions is a list of at most {_LONGEST_FILTER} addresses"
        raise ProtocolError(INVALID_PARAMS, said)
    return tuple(uri for uri in _KNOWN if uri in uris)
