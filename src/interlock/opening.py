"""Opening a store for a client: what the blocking and the async ``connect`` share."""

from __future__ import annotations

from interlock.clock import Clock
from interlock.places import find_store, settings
from interlock.services.calls import Desk
from interlock.services.runner import Runner
from interlock.store import Store
from interlock.stores import open_store


def open_desk(
    url: str | None,
    agent: str | None,
    *,
    trace: str,
    grant_ttl: float | None,
    clock: Clock | None,
    store: Store | None,
) -> Desk:
    """A client at the store that was given, named, or found."""
    if store is None:
        store = open_store(url) if url else open_store(find_store(), create=False)
    try:
        runner = Runner(store, clock=clock)
        return Desk(store, agent, trace, runner, settings=settings(), grant_ttl=grant_ttl)
    except BaseException:
        store.close()
        raise
