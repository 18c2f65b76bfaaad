"""What the blocking and the async client share: how they are set up, and what they know."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from interlock.client_context import Context
from interlock.clock import Clock, SystemClock
from interlock.core import validate
from interlock.errors import BadInput
from interlock.fork_imports import wait_for_imports
from interlock.nouns.fleet.calls import FleetCalls
from interlock.runtime.calls import D
from interlock.runtime.identity import TRACE, Actor
from interlock.runtime.runner import Runner
from interlock.steps import Op
from interlock.store import Store
from interlock.store_location import (
    find_store,
    named_store,
    open_place,
    open_place_async,
    settings,
)

if TYPE_CHECKING:
    from interlock.core.signing import Signer
    from interlock.nouns.agents.report_service import StatusReporter


os.register_at_fork(before=wait_for_imports)


class FleetProperties(FleetCalls[D]):
    """What a client knows without asking the store."""

    @property
    def session(self) -> str:
        """The id of this client's session."""
        return self.context.identity.actor.session

    @property
    def store(self) -> Store:
        """The store of this client."""
        return self.context.opened

    @property
    def trace(self) -> str:
        """The trace id of this client's entries in the record."""
        return TRACE.get() or self.context.trace

    @property
    def trouble(self) -> str:
        """Why the store does not answer at the moment, and since when.

        While it answers: what fails in the background, such as renewals on a full disk.
        Empty while all is well.
        """
        return self.context.store.outage or self.context.keeper.trouble

    @property
    def pulse(self) -> StatusReporter:
        """Reports the status of this agent: ``fleet.pulse.be("busy", doing="task/t1")``."""
        return self.context.pulse

    def _end(self, *, kept: bool) -> Op[None]:
        """End the session; ``kept`` if a keeper did the housekeeping of this client."""
        context = self.context
        if "requests" in context.__dict__:
            yield from context.requests.close()
        yield from context.keeper.finish()
        context.left = True
        if not context.began:  # the session continues, and only this client knows what to release
            yield from context.grants.release_pending()
        elif not self.store.outage:  # else the session expires: close() does not wait for the store
            yield from context.leave()
        if not kept and context.housekeeping.due:
            yield from context.housekeeping.run(Actor())


def find_or_open_store(url: str | os.PathLike[str] | None, store: Store | None) -> Store:
    """The open store, or the one that is named, or the one that is found."""
    if store is not None:
        return _only(store, url)
    place = named_store(url) if url else find_store()
    return _noted_if_new(open_place(place, create=bool(url)))


async def find_or_open_store_async(
    url: str | os.PathLike[str] | None, store: Store | None
) -> Store:
    """As ``find_or_open_store``, in an event loop."""
    if store is not None:
        return _only(store, url)
    if url:
        return _noted_if_new(await open_place_async(named_store(url), create=True))
    return _noted_if_new(await open_place_async(find_store()))


def _noted_if_new(store: Store) -> Store:
    """A new store across a network is logged: its name may be mistyped.

    The logger prints nothing by itself, since a program that begins a store does no wrong.
    """
    if not getattr(store, "made", True):
        import logging

        log = logging.getLogger("interlock.store")
        if not log.handlers:
            log.addHandler(logging.NullHandler())
        where = getattr(store, "where", "")
        log.warning("there was no store at %s, so this begins one; check the name", where)
    return store


def agent_and_session(agent: str | None, session: str | None) -> tuple[str | None, str | None]:
    """The agent and the session of a client: from its arguments, else from the environment.

    An agent that is named by an argument gets a session of its own, even if the environment has
    one: a program that connects under several names means several holders.
    """
    if agent is not None or session is not None:
        return agent, session
    found = os.environ.get("INTERLOCK_AGENT"), os.environ.get("INTERLOCK_SESSION")
    return found[0] or None, found[1] or None


def _only(store: Store, url: str | os.PathLike[str] | None) -> Store:
    """The open store, if it is one, and no other was named."""
    if isinstance(store, FleetProperties):
        raise BadInput("store= takes an open store, and this is a client; give its .store")
    if url:
        raise BadInput("a URL and store= name two stores; give one of them")
    if isinstance(store, str | os.PathLike):
        path = os.fspath(store)
        raise BadInput(f"store= takes an open store; a path or URL comes first: connect({path!r})")
    return store


def entry_signer(key: str | Signer | None) -> Signer | None:
    """The key that signs the entries of a client; one that is named wrongly is refused at once."""
    if key is None:
        if not (named := os.environ.get("INTERLOCK_KEY")):
            return None
        from interlock.nouns.swarms.key_files import RecordSigner

        return RecordSigner(named)
    if not isinstance(key, str):
        return key
    from interlock.nouns.swarms.key_files import record_signer

    return record_signer(key)


def wants_looks(context: Context, look: bool | None) -> bool:
    """Whether a client looks at the outside for gates: if it says so, else by the settings.

    The settings are for agents that live: those with a session.
    """
    if look is not None:
        return validate.flag(look, "look")
    return context.session_lease is not None and context.settings.looks()


def make_context(
    store: Store,
    agent: str | None,
    *,
    trace: str = "",
    clock: Clock | None = None,
    key: str | Signer | None = None,
    **options: Any,  # noqa: ANN401 - those of a context
) -> Context:
    """The context of a client at a store; trace and key are arguments, else of the environment.

    The clock of a remote engine goes on while this machine is suspended, so the client's must, too.
    """
    if clock is None:
        clock = SystemClock(suspends=store.capabilities.one_machine)
    trace = trace or os.environ.get("INTERLOCK_TRACE", "")
    kind = traced_runner() if os.environ.get("INTERLOCK_OTEL") else Runner
    runner = kind(store, clock=clock, signer=entry_signer(key))
    return Context(store, agent, trace, runner, settings=settings(), **options)


def traced_runner() -> type[Runner]:
    """The runner whose changes have spans; BadInput if what makes them is not installed."""
    try:
        from interlock.runtime.tracing import TracedRunner
    except ImportError as error:
        raise BadInput(
            "INTERLOCK_OTEL is set, which needs opentelemetry: pip install 'interlock[otel]'"
            f" ('.[otel]' in a clone), or unset it ({error})"
        ) from None
    return TracedRunner
