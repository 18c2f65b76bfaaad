"""The record, for programs in an event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Self

from interlock.aio import Noun, awaited
from interlock.core.events import Observed
from interlock.core.log import Line
from interlock.drivers import drive_async
from interlock.nouns.record.calls import RecordCalls
from interlock.nouns.record.service import Following
from interlock.runtime.context import Context
from interlock.runtime.observe import Observing
from interlock.runtime.outage import Outage
from interlock.store import Resync


class Record(Noun[RecordCalls]):
    """What happened."""

    log = awaited(RecordCalls.log)
    explain = awaited(RecordCalls.explain)
    verify = awaited(RecordCalls.verify)
    export = awaited(RecordCalls.export)
    anchor = awaited(RecordCalls.anchor)

    def follow(self, after: int = 0) -> Follower:
        """The entries after a revision, and all that come: iterate, or ``take`` with a time limit.

        A ``Resync`` among them says that history up to its revision is gone: read what is left
        with ``log``.
        """
        return Follower(self.calls.follow(after), self.calls.context)


class Follower:
    """The record as it goes on; use it in an ``async with`` block, or close it."""

    def __init__(self, following: Following, context: Context) -> None:
        self._following = following
        self._store = context.store
        self._outage = Outage(context, "following the record")

    def take(self, timeout: float | None = None) -> Awaitable[tuple[Line, ...] | Resync]:
        """What came since the last call, as soon as there is anything; none when time is up."""
        return drive_async(self._outage.feed(self._following.take, timeout), self._store)

    async def close(self) -> None:
        """Stop listening."""
        self._following.close()

    async def __aiter__(self) -> AsyncIterator[Line | Resync]:
        while True:
            found = await self.take()
            for each in (found,) if isinstance(found, Resync) else found:
                yield each

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Observer:
    """All that happens, as it happens; use it in an ``async with`` block, or close it."""

    def __init__(self, observing: Observing, context: Context) -> None:
        self._observing = observing
        self._store = context.store
        self._outage = Outage(context, "observing")

    def take(self, timeout: float | None = None) -> Awaitable[tuple[Observed, ...]]:
        """What came since the last call, as soon as there is anything; none when time is up."""
        return drive_async(self._outage.feed(self._observing.take, timeout), self._store)

    async def close(self) -> None:
        """Stop listening."""
        self._observing.close()

    async def __aiter__(self) -> AsyncIterator[Observed]:
        while True:
            for each in await self.take():
                yield each

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
