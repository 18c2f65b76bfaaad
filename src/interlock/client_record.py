"""The record, for programs that may block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from interlock.client import Noun, blocking
from interlock.core.events import Observed
from interlock.core.log import Line
from interlock.drivers import drive
from interlock.nouns.record.calls import RecordCalls
from interlock.nouns.record.service import Following
from interlock.runtime.context import Context
from interlock.runtime.observe import Observing
from interlock.runtime.outage import Outage
from interlock.store import Resync


class Record(Noun[RecordCalls]):
    """What happened."""

    log = blocking(RecordCalls.log)
    explain = blocking(RecordCalls.explain)
    verify = blocking(RecordCalls.verify)
    export = blocking(RecordCalls.export)
    anchor = blocking(RecordCalls.anchor)

    def follow(self, after: int = 0) -> Follower:
        """The entries after a revision, and all that come: iterate, or ``take`` with a time limit.

        A ``Resync`` among them says that history up to its revision is gone: read what is left
        with ``log``.
        """
        return Follower(self.calls.follow(after), self.calls.context)


class Follower:
    """The record as it goes on; use it in a ``with`` block, or close it."""

    def __init__(self, following: Following, context: Context) -> None:
        self._following = following
        self._store = context.store
        self._outage = Outage(context, "following the record")

    def take(self, timeout: float | None = None) -> tuple[Line, ...] | Resync:
        """What came since the last call, as soon as there is anything; none when time is up."""
        return drive(self._outage.feed(self._following.take, timeout), self._store)

    def close(self) -> None:
        """Stop listening."""
        self._following.close()

    def __iter__(self) -> Iterator[Line | Resync]:
        while True:
            found = self.take()
            yield from (found,) if isinstance(found, Resync) else found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Observer:
    """All that happens, as it happens; use it in a ``with`` block, or close it."""

    def __init__(self, observing: Observing, context: Context) -> None:
        self._observing = observing
        self._store = context.store
        self._outage = Outage(context, "observing")

    def take(self, timeout: float | None = None) -> tuple[Observed, ...]:
        """What came since the last call, as soon as there is anything; none when time is up."""
        return drive(self._outage.feed(self._observing.take, timeout), self._store)

    def close(self) -> None:
        """Stop listening."""
        self._observing.close()

    def __iter__(self) -> Iterator[Observed]:
        while True:
            yield from self.take()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
