"""The steps that an operation yields to use its store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

from interlock.store import (
    Answer,
    Change,
    Committed,
    Maintenance,
    Put,
    Ref,
    Resync,
    Scope,
    Snapshot,
    Store,
    TransactingStore,
    Txn,
    Watch,
    Work,
)


class Read:
    """Read these refs at one revision; with ``times`` also how long liveness keys live.

    A read that need not be ``fresh`` is for people, or is repeated soon.
    """

    __slots__ = ("fresh", "refs", "times")

    def __init__(self, *refs: Ref, times: bool = False, fresh: bool = True) -> None:
        self.refs = refs
        self.times = times
        self.fresh = fresh

    def perform(self, store: Store) -> Snapshot:
        """Answer the refs."""
        return store.read(*self.refs, times=self.times, fresh=self.fresh)

    def perform_async(self, store: Store) -> Awaitable[Snapshot]:
        """As ``perform``."""
        return store.read_async(*self.refs, times=self.times, fresh=self.fresh)


class Commit:
    """Commit this transaction, if its checks hold."""

    __slots__ = ("txn",)

    def __init__(self, txn: Txn) -> None:
        self.txn = txn

    def perform(self, store: Store) -> Answer:
        """Committed or Conflict."""
        return store.commit(self.txn)

    def perform_async(self, store: Store) -> Awaitable[Answer]:
        """As ``perform``."""
        return store.commit_async(self.txn)


class Renew:
    """Renew liveness keys that are alive; the answer is which ones were."""

    __slots__ = ("puts",)

    def __init__(self, puts: tuple[Put, ...]) -> None:
        self.puts = puts

    def perform(self, store: Store) -> frozenset[str]:
        """Renew them."""
        return store.renew(self.puts)

    def perform_async(self, store: Store) -> Awaitable[frozenset[str]]:
        """Renew them in an event loop."""
        return store.renew_async(self.puts)


class Transact:
    """Read, decide and commit inside one transaction of a local engine."""

    __slots__ = ("work",)

    def __init__(self, work: Work) -> None:
        self.work = work

    def perform(self, store: TransactingStore) -> Committed | None:
        """The commit, if there was one."""
        return store.transact(self.work)

    def perform_async(self, store: TransactingStore) -> Awaitable[Committed | None]:
        """As ``perform``, grouped with other transactions of the same event loop."""
        return store.transact_async(self.work)


class OpenWatch:
    """Open a watch; the operation that yields this closes it."""

    __slots__ = ("after", "scope")

    def __init__(self, scope: Scope, after: int) -> None:
        self.scope = scope
        self.after = after

    def perform(self, store: Store) -> Watch:
        """The feed."""
        return store.watch(self.scope, self.after)

    async def perform_async(self, store: Store) -> Watch:
        """The feed; nothing is asked of a server yet."""
        return store.watch(self.scope, self.after)


class NextChanges:
    """Wait for changes on a watch, up to a timeout."""

    __slots__ = ("timeout", "watch")

    def __init__(self, watch: Watch, timeout: float | None) -> None:
        self.watch = watch
        self.timeout = timeout

    def perform(self, _store: Store) -> list[Change | Resync]:
        """The changes; none after the timeout."""
        return self.watch.take(self.timeout)

    def perform_async(self, _store: Store) -> Awaitable[list[Change | Resync]]:
        """As ``perform``."""
        return self.watch.take_async(self.timeout)


class StoreCall:
    """Call a method of the store that is rarely used: maintenance, or information."""

    __slots__ = ("args", "name")

    def __init__(
        self, name: Literal["sweep", "info", "examine", "trim", "extent", "wall"], *args: object
    ) -> None:
        self.name = name
        self.args = args

    def perform(self, store: Maintenance) -> object:
        """Its answer."""
        return getattr(store, self.name)(*self.args)

    async def perform_async(self, store: Maintenance) -> object:
        """As ``perform``, in a thread, since it may take long."""
        import asyncio

        return await asyncio.to_thread(getattr(store, self.name), *self.args)


class InThread:
    """Work beside the store that would block an event loop: long computing, a file."""

    __slots__ = ("work",)

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work

    def perform(self, _store: Store) -> Any:  # noqa: ANN401 - as the work answers
        """Its answer."""
        return self.work()

    async def perform_async(self, _store: Store) -> Any:  # noqa: ANN401
        """As ``perform``, in a thread."""
        import asyncio

        return await asyncio.to_thread(self.work)
