"""Handles: how a caller over HTTP acts in a session of its own.

``POST /api/session`` begins a session and returns its handle, a secret that the caller sends with
each request (``Interlock-Session``).  The session lives for its ttl after the last request, so it
belongs to no connection, and any server of the store knows its handle: the session has the hash of
the secret.

A caller speaks for its own agent and for the sub-agents of that (``ada/tests`` for ``ada``); the
role admin may begin a session under any name.  Each sub-agent that begins a session has locks and
tasks of its own.
"""

from __future__ import annotations

import hmac
import os
import threading
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from interlock.core import codec, validate
from interlock.errors import BadInput, Lapsed
from interlock.faces.http.access import Caller, Refused
from interlock.faces.json_output import complete
from interlock.steps import drive

if TYPE_CHECKING:
    from interlock.faces.http.clients import Clients

HEADER = "interlock-session"
AGENT_HEADER = "interlock-agent"
LONGEST_TTL = 24 * 3600.0
_REMEMBERED = 10_000
_OVER = "this session is over, or its handle is wrong; begin another one: POST /api/session"


class SessionRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``POST /api/session`` takes."""

    agent: str = ""
    ttl: str | float = 60.0
    can: tuple[str, ...] = ()


class Handles:
    """Begins sessions, and finds them by their handles."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, str]] = {}
        """The agent of a session and the hash of its secret, by its id; a session keeps both."""

    def begin(self, caller: Caller, asked: SessionRequest) -> dict[str, Any]:
        """Begin a session; the answer is that of ``agent join``, with the handle."""
        agent = validate.own_agent_name(asked.agent or caller.agent, proven=caller.agent)
        require_speaker(caller, agent)
        ttl = validate.duration(asked.ttl, "ttl")
        if ttl > LONGEST_TTL:
            raise BadInput("a session over HTTP lives for at most a day; give a shorter ttl")
        secret = os.urandom(32).hex()
        metadata = {"via": "http", "handle": codec.digest(secret.encode())}
        fleet = self._clients.of_agent(agent)
        joined = fleet.agents.join(ttl=ttl, metadata=metadata, can=asked.can)
        said: Any = complete(joined)
        return {**said, "handle": f"{joined.session}.{secret}"}

    def session(self, caller: Caller, handle: str) -> tuple[str, str]:
        """The session of a handle, and its agent; an error if there is none."""
        session, _, secret = handle.partition(".")
        known = self._known.get(session) or self._read(session)
        presented = codec.digest(secret.encode("utf-8", "replace"))
        if known is None or not hmac.compare_digest(known[1], presented):
            raise Lapsed(_OVER)
        require_speaker(caller, known[0])
        return session, known[0]

    def end(self, caller: Caller, handle: str) -> Any:  # noqa: ANN401 - as ``agent leave`` answers
        """End a session, which releases what it holds."""
        session, agent = self.session(caller, handle)
        fleet = self._clients.of_session(session, agent).fleet
        left = fleet.agents.leave()
        self.forget(session)
        return left

    def forget(self, session: str) -> None:
        """The session is over."""
        with self._lock:
            self._known.pop(session, None)
        self._clients.forget_session(session)

    def _read(self, session: str) -> tuple[str, str] | None:
        if not session.startswith("ses_") or not session.isascii():
            return None
        fleet = self._clients.reader()
        found = drive(fleet.context.sessions.find(validate.name(session, "session")), fleet.store)
        said = None if found is None else found.metadata
        if found is None or not isinstance(said, dict) or not isinstance(said.get("handle"), str):
            return None
        with self._lock:
            while len(self._known) >= _REMEMBERED:
                self._known.pop(next(iter(self._known)))
            self._known[session] = found.agent, said["handle"]
        return self._known[session]


def session_request(body: bytes) -> SessionRequest:
    """What a body asks for."""
    try:
        return msgspec.json.decode(body or b"{}", type=SessionRequest)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"a session is begun with agent, ttl and can ({error})") from None


def require_speaker(caller: Caller, agent: str) -> None:
    """Refuse a caller that would speak for another agent."""
    if caller.role != "admin" and not caller.speaks_for(agent):
        raise Refused(
            403, "wrong_agent",
            f"this token speaks for {caller.agent} and for {caller.agent}/..., not for {agent}",
        )  # fmt: skip


def require_named(said: str | None, agent: str) -> None:
    """Refuse a request whose header names another agent than the one that it acts as."""
    if said is not None and said != agent:
        raise Refused(
            403, "wrong_agent",
            f"this request acts as {agent}; to act as another agent, begin a session under its"
            " name: POST /api/session",
        )  # fmt: skip
