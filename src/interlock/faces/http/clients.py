"""The clients through which a server acts: one open store, and one client for each agent.

A request without a session acts as a shell command does: its grants live by their own ttl, and a
wait gets a session for as long as it lasts.  A request with the handle of a session acts in that
session, which lives for its ttl after its last request; a call that waits renews it.

What a caller asks about a guard is answered by what hosts saw last: a question from another host
runs no command here.

If the store is removed or replaced, the next request opens it again, and new clients are made.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from interlock.client import begun
from interlock.client_context import GRANT_TTL
from interlock.core import keys
from interlock.core.decision import Write
from interlock.core.wait import AGENT_CALLER, SESSION_CALLER
from interlock.errors import InterlockError, Lapsed, StoreClosed
from interlock.steps import drive

T = TypeVar("T")

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.store import Store

MOST = 1000
"""Clients that are kept open; the one that was not used for longest is closed first."""
BEATS_PER_TTL = 5
"""How often a session is renewed by its requests within its ttl, at most."""


class SessionClient:
    """The client of one session, which others began; it renews the session when it is used."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._ttl = fleet.context.identity.session_ttl
        self._renewed = fleet.context.runner.clock.monotonic()
        self._lock = threading.Lock()
        self._waits = 0
        self._over = False

    def close(self) -> None:
        """End the threads of the client, as soon as no call waits; its session goes on."""
        with self._lock:
            self._over = True
            if self._waits:
                return
        _close(self.fleet)

    def renew(self) -> None:
        """Renew the session, unless that was done a moment ago; an error if it has expired."""
        context = self.fleet.context
        now = context.runner.clock.monotonic()
        with self._lock:
            if now - self._renewed < self._ttl / BEATS_PER_TTL:
                return
            session = context.identity.actor.session
            if not drive(context.sessions.beat(session), context.store):
                raise Lapsed(f"session {session} is over; begin another one: POST /api/session")
            self._renewed = now

    def beat(self) -> Any:  # noqa: ANN401 - as ``agent beat`` answers
        """Renew the session now."""
        done = self.fleet.agents.beat()
        with self._lock:
            self._renewed = self.fleet.context.runner.clock.monotonic()
        return done

    @contextmanager
    def kept(self) -> Iterator[Fleet]:
        """The client, with its session renewed until the block ends."""
        context = self.fleet.context
        actor = context.identity.actor
        write = Write(keys.live(actor.session), {"agent": actor.agent}, self._ttl)
        with self._lock:
            self._waits += 1
        lease = context.keeper.keep(write, self._renewed)
        self.fleet.keep()
        try:
            yield self.fleet
        finally:
            context.keeper.drop(lease)
            with self._lock:
                self._renewed = context.runner.clock.monotonic() - self._ttl
                self._waits -= 1
                over = self._over and not self._waits
            if over:
                _close(self.fleet)


class Clients:
    """Opens the store, and makes clients of it; any thread may ask for one."""

    def __init__(
        self, open_store: Callable[[], Store], *, via: str = "http", key: str = ""
    ) -> None:
        self._open_store = open_store
        self._via = via
        self._key = key or None
        self._lock = threading.RLock()
        self._store: Store | None = None
        self._closed = False
        self._by_agent: dict[str, Fleet] = {}
        self._by_session: dict[str, SessionClient] = {}
        self.opened = 0
        """How often the store was opened: a reader that sees another number starts again."""

    @property
    def store(self) -> Store:
        """The open store; it is opened again if it was removed or replaced."""
        with self._lock:
            if self._closed:
                raise StoreClosed("the server ends; call again later")
            if self._store is not None and not self._store.missing:
                return self._store
            self._close_all()
            self._store = self._open_store()
            self.opened += 1
            return self._store

    def reader(self) -> Fleet:
        """A client without a name, for what every caller may read."""
        return self.of_agent("")

    def of_agent(self, agent: str) -> Fleet:
        """The client for requests of an agent without a session."""
        with self._lock:
            store = self.store
            if (fleet := self._by_agent.pop(agent, None)) is None:
                fleet = self._made(store, agent, join=False)
            self._by_agent[agent] = fleet
            _trim(self._by_agent)
            return fleet

    @contextmanager
    def joined(self, agent: str) -> Iterator[Fleet]:
        """A client with a session that lasts as long as the block; its grants live on."""
        fleet = self._made(self.store, agent, grant_ttl=GRANT_TTL)
        try:
            yield fleet
        finally:
            with suppress(InterlockError, OSError):  # then the session expires
                fleet.close()

    @contextmanager
    def own(self, agent: str = "") -> Iterator[Fleet]:
        """A client for one user alone, as long as the block lasts; with a name it has a session."""
        fleet = self._made(self.store, agent, join=bool(agent))
        try:
            yield fleet
        finally:
            with suppress(InterlockError, OSError):
                fleet.close()

    def begin(self, agent: str, *, ttl: float, via: str) -> Fleet:
        """A client with a session of its own, which its user closes."""
        return self._begun(self.store, agent, via, ttl=ttl, caller=SESSION_CALLER)

    def of_session(self, session: str, agent: str) -> SessionClient:
        """The client of a session of this agent; an error if it has expired."""
        with self._lock:
            store = self.store
            found = self._by_session.pop(session, None)
        if found is None or found.fleet.closed:
            fleet = self._begun(
                store, None, self._via, session=session, caller=SESSION_CALLER, person=agent
            )
            found = SessionClient(fleet)
        with self._lock:
            self._by_session[session] = found
            old = _trim(self._by_session)
        for each in old:
            each.close()
        found.renew()
        return found

    def forget_session(self, session: str) -> None:
        """The session is over: its client is not needed any more."""
        with self._lock:
            found = self._by_session.pop(session, None)
        if found is not None:
            found.close()

    def close(self) -> None:
        """Close all clients, and the store."""
        with self._lock:
            self._closed = True
            self._close_all()

    def _made(self, store: Store, agent: str, **options: Any) -> Fleet:  # noqa: ANN401 - those of ``begun``
        caller = AGENT_CALLER + os.uname().nodename
        return self._begun(store, agent or None, self._via, caller=caller, **options)

    def _begun(
        self,
        store: Store,
        agent: str | None,
        via: str,
        *,
        person: str = "",
        **options: Any,  # noqa: ANN401
    ) -> Fleet:
        """A client for callers, who may be on another host."""
        name = person or agent or ""
        fleet = begun(store, agent, key=self._key, shared=True, person=lambda: name, **options)
        fleet.context.runner.via = via
        fleet.context.looks = False
        return fleet

    def _close_all(self) -> None:
        fleets = [*self._by_agent.values(), *(each.fleet for each in self._by_session.values())]
        self._by_agent.clear()
        self._by_session.clear()
        store, self._store = self._store, None
        for fleet in fleets:
            with suppress(InterlockError, OSError):
                fleet.close()
        if store is not None:
            with suppress(InterlockError, OSError):
                store.close()


def _trim(clients: dict[str, T]) -> list[T]:
    """Remove the clients that were not used for longest, and return them."""
    old = list(clients)[: max(0, len(clients) - MOST)]
    return [clients.pop(each) for each in old]


def _close(fleet: Fleet) -> None:
    """Close a client: its threads end; a session that others began does not."""
    with suppress(InterlockError, OSError):
        fleet.close()
