"""Methods of the contract that an engine need not write: they follow from its other methods."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from interlock.errors import OutcomeUnknown, StoreAway
from interlock.steps import finish_future
from interlock.store import (
    FAST,
    Answer,
    Capabilities,
    Check,
    Committed,
    Conflict,
    Put,
    Ref,
    Snapshot,
    Txn,
    View,
)

if TYPE_CHECKING:
    import asyncio

A = TypeVar("A")
T = TypeVar("T")


class BlockingStore:
    """A store with blocking methods: the async ones call them.

    A fast engine answers so soon that an event loop calls it directly; a slow one runs in a
    thread.  Only ``transact_async`` is worth more than that, and each engine has its own.
    """

    capabilities: Capabilities

    @property
    def outage(self) -> str:
        """Why nothing is answered; empty while all is well."""
        return ""

    @property
    def missing(self) -> bool:
        """Whether the data that was opened is gone."""
        return False

    def read(
        self, *refs: Ref, times: bool = False, fresh: bool = True, longest: int | None = None
    ) -> Snapshot:
        """All the refs at one revision."""
        raise NotImplementedError

    def commit(self, txn: Txn) -> Answer:
        """Check and write, all or nothing."""
        raise NotImplementedError

    def close(self) -> None:
        """Release all resources."""
        raise NotImplementedError

    def renew(self, puts: tuple[Put, ...]) -> frozenset[str]:
        """Put liveness keys again that are alive; returns which ones were."""
        while puts:
            try:
                answer = self.commit(renewal(puts))
            except OutcomeUnknown as error:  # to renew twice does no harm
                raise StoreAway(str(error)) from error
            if isinstance(answer, Committed):
                break
            puts = alive(puts, answer)
        return frozenset([put.key for put in puts])

    async def read_async(
        self, *refs: Ref, times: bool = False, fresh: bool = True, longest: int | None = None
    ) -> Snapshot:
        """Read in an event loop."""
        if self.capabilities.latency <= FAST:
            return self.read(*refs, times=times, fresh=fresh, longest=longest)
        import asyncio

        return await asyncio.to_thread(self.read, *refs, times=times, fresh=fresh, longest=longest)

    def commit_async(self, txn: Txn) -> Awaitable[Answer]:
        """Commit in an event loop; an engine that transacts only settles this way."""
        return self._in_loop(self.commit, txn)

    def renew_async(self, puts: tuple[Put, ...]) -> Awaitable[frozenset[str]]:
        """Renew in an event loop."""
        return self._in_loop(self.renew, puts)

    async def _in_loop(self, method: Callable[[A], T], argument: A) -> T:
        if self.capabilities.latency <= FAST:
            return method(argument)
        import asyncio

        return await asyncio.to_thread(method, argument)

    async def close_async(self) -> None:
        """Close; an event loop that ends may wait for it."""
        self.close()


def renewal(puts: tuple[Put, ...]) -> Txn:
    """The quiet commit that renews these, if all of them are alive."""
    checks = tuple([Check(put.key, "exists") for put in puts])
    return Txn(id="renewal", checks=checks, puts=puts, quiet=True, ends=True)


def alive(puts: tuple[Put, ...], conflict: Conflict) -> tuple[Put, ...]:
    """Those of these that are left to be renewed."""
    return tuple([put for put in puts if conflict.items[put.key] is not None])


class RenewalWork:
    """The work of a transaction that renews liveness keys; ``alive`` are the keys that it put."""

    def __init__(self, puts: tuple[Put, ...]) -> None:
        self.alive: frozenset[str] = frozenset()
        self.puts = puts

    def __call__(self, view: View) -> Txn | None:
        """Put again what is alive."""
        items = view.read(*[put.key for put in self.puts]).items
        puts = tuple([put for put in self.puts if items[put.key] is not None])
        self.alive = frozenset([put.key for put in puts])
        return Txn(id="renewal", puts=puts, quiet=True, ends=True) if puts else None


def finish_from_thread(sleeper: asyncio.Future[None]) -> None:
    """Finish a future of an event loop, from any thread."""
    with suppress(RuntimeError):  # its loop was closed: no task waits there any more
        sleeper.get_loop().call_soon_threadsafe(finish_future, sleeper)
