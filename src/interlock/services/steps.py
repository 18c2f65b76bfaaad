"""What an operation asks of a store, and the two drivers that carry it out.

An operation is written once, as a generator that yields steps and returns its outcome.  ``drive``
runs it for a caller that may block, ``drive_async`` for an event loop; nothing else differs.
An exception (a cancellation too) is thrown into the operation at the step where it struck, so
that it can clean up with further steps.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Generator
from contextlib import suppress
from typing import Any, Protocol, TypeAlias, TypeVar

from interlock.store import (
    Answer,
    Change,
    Committed,
    LocalStore,
    Ref,
    Resync,
    Snapshot,
    Store,
    Txn,
    Watch,
    Work,
)

T = TypeVar("T")


class Step(Protocol):
    """One thing to do with a store."""

    def perform(self, store: Any) -> Any:  # noqa: ANN401 - each step knows its own answer
        """Do it, blocking."""

    def perform_async(self, store: Any) -> Awaitable[Any]:  # noqa: ANN401
        """Do it in an event loop."""


Op: TypeAlias = Generator[Step, Any, T]


class Read:
    """Read these refs at one revision."""

    __slots__ = ("refs",)

    def __init__(self, *refs: Ref) -> None:
        self.refs = refs

    def perform(self, store: Store) -> Snapshot:
        """Answer the refs."""
        return store.read(*self.refs)

    async def perform_async(self, store: Store) -> Snapshot:
        """Local reads take microseconds: there is nothing to wait for."""
        return store.read(*self.refs)


class Commit:
    """Commit this transaction, if its checks hold."""

    __slots__ = ("txn",)

    def __init__(self, txn: Txn) -> None:
        self.txn = txn

    def perform(self, store: Store) -> Answer:
        """Committed or Conflict."""
        return store.commit(self.txn)

    async def perform_async(self, store: Store) -> Answer:
        """The same; only settling commits on a local store, and that is rare."""
        return store.commit(self.txn)


class Transact:
    """Read, decide and commit inside one transaction of a local engine."""

    __slots__ = ("work",)

    def __init__(self, work: Work) -> None:
        self.work = work

    def perform(self, store: LocalStore) -> Committed | None:
        """What was committed, if anything."""
        return store.transact(self.work)

    def perform_async(self, store: LocalStore) -> Awaitable[Committed | None]:
        """The same, grouped with whatever waits in the same event loop."""
        return store.transact_async(self.work)


class Open:
    """Open a watch; whoever yields this closes the watch."""

    __slots__ = ("after", "prefix")

    def __init__(self, prefix: str, after: int) -> None:
        self.prefix = prefix
        self.after = after

    def perform(self, store: Store) -> Watch:
        """The feed."""
        return store.watch(self.prefix, self.after)

    async def perform_async(self, store: Store) -> Watch:
        """The feed."""
        return store.watch(self.prefix, self.after)


class Take:
    """Wait for changes on a watch, at most so long."""

    __slots__ = ("timeout", "watch")

    def __init__(self, watch: Watch, timeout: float | None) -> None:
        self.watch = watch
        self.timeout = timeout

    def perform(self, _store: Store) -> list[Change | Resync]:
        """The changes; none if the time was up."""
        return self.watch.take(self.timeout)

    def perform_async(self, _store: Store) -> Awaitable[list[Change | Resync]]:
        """The same."""
        return self.watch.take_async(self.timeout)


class Pause:
    """Step back for a moment after a conflict, so that others get through."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def perform(self, _store: Store) -> None:
        """Sleep."""
        time.sleep(self.seconds)

    async def perform_async(self, _store: Store) -> None:
        """Sleep."""
        import asyncio

        await asyncio.sleep(self.seconds)


def drive(op: Op[T], store: Store) -> T:
    """Carry out an operation for a caller that may block."""
    answer: Any = None
    struck: BaseException | None = None
    while True:
        try:
            step = op.send(answer) if struck is None else op.throw(struck)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]  # an Op[T] returns T
        answer, struck = None, None
        try:
            answer = step.perform(store)
        except BaseException as error:  # noqa: BLE001 - the operation decides
            struck = error


async def drive_async(op: Op[T], store: Store) -> T:
    """Carry out an operation in an event loop; once cancelled, its clean-up is not."""
    cancelled = False
    try:
        step = next(op)
        while True:
            awaitable = step.perform_async(store)
            try:
                answer = await (_undisturbed(awaitable) if cancelled else awaitable)
            except BaseException as error:  # noqa: BLE001 - the operation decides
                cancelled = cancelled or not isinstance(error, Exception)
                step = op.throw(error)
            else:
                step = op.send(answer)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # an Op[T] returns T


async def _undisturbed(awaitable: Awaitable[T]) -> T:
    """Wait to the end, though the task is cancelled once more: the first time will be raised."""
    import asyncio

    task = asyncio.ensure_future(awaitable)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    return task.result()
