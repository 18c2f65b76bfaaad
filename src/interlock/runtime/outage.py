"""Waiting through an outage: a wait goes on until its own time is up.

A call that does not wait gets an error after ten seconds without an answer.  A wait is repeated
until its own time is up, or the caller stops it.  The outage is logged once, by a store across a
network, else here.  A permanent problem (the store is gone, closed, damaged, or of another version)
is no outage, and ends a wait at once.

A session that expires during the outage is followed by a new one under the same name, if this
client began it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from interlock.core import validate
from interlock.errors import (
    InterlockError,
    Lapsed,
    OutcomeUnknown,
    StoreAway,
    StoreBusy,
    StoreTrouble,
)
from interlock.runtime.stoppable import SLICE
from interlock.steps import Op, Pause, wait_limit

if TYPE_CHECKING:
    from interlock.client_context import Context


T = TypeVar("T")

AGAIN = 0.5
"""Seconds between two attempts at a store that does not answer."""
PASSING = (StoreAway, StoreBusy, OutcomeUnknown)
"""Errors that may pass without a change."""


class OutageRetry:
    """Keeps one wait going while the store does not answer."""

    def __init__(self, context: Context, waiting: str) -> None:
        self._context = context
        self._log = OutageLog(waiting)

    def through(self, attempt: Callable[[float], Op[T]], patience: float) -> Op[T]:
        """Repeat an attempt, which gets the remaining time, until it has an answer."""
        with wait_limit(patience):
            return (yield from self._through(attempt, patience))

    def _through(self, attempt: Callable[[float], Op[T]], patience: float) -> Op[T]:
        clock = self._context.runner.clock
        ends = clock.monotonic() + patience
        left = patience
        last: StoreTrouble | None = None
        while True:
            identity = self._context.identity
            try:
                found = yield from attempt(left)
            except PASSING as trouble:
                last = trouble
                if self._context.no_retry or not (yield from self._over(trouble, ends)):
                    raise
            except Lapsed:
                if last is not None and clock.monotonic() >= ends:
                    raise last from None
                if self._context.no_retry or not self._context.rejoins(identity):
                    raise
                yield from self._rejoined(identity, ends)
            else:
                self._log.over()
                return found
            left = max(0.0, ends - clock.monotonic())

    def _over(self, trouble: StoreTrouble, ends: float) -> Op[bool]:
        """Pause; returns whether there is time for another attempt.

        A client with a session waits for its keeper to find the store back, instead of asking too.
        """
        clock, context = self._context.runner.clock, self._context
        if not context.store.outage:  # else the store logged it
            self._log.warn(trouble)
        while (left := ends - clock.monotonic()) > 0:
            yield Pause(min(context.runner.capabilities.allow(AGAIN), left))
            if context.session_lease is None or not context.store.outage:
                return clock.monotonic() < ends
        return False

    def feed(
        self, take: Callable[[float | None], Op[T]], timeout: float | None
    ) -> Op[T | tuple[()]]:
        """The next changes of a feed, which resumes where it was; nothing when the time is up."""
        context = self._context
        if timeout is None and not context.shares_store:
            return (yield from self.through(lambda _left: take(None), validate.FOREVER))
        if timeout is None:  # a store that is closed would wake us
            taken: T | tuple[()] = ()
            while not taken:
                context.check_open()
                taken = yield from self.through(lambda _left: take(SLICE), validate.FOREVER)
            return taken
        context.check_open()
        try:
            return (yield from self.through(take, timeout))
        except PASSING as trouble:
            if self._context.no_retry:
                raise
            if not self._context.store.outage:
                self._log.warn(trouble)
            return ()

    def revive(self, ends: float) -> Op[None]:
        """Make sure that the client has a live session."""
        identity, lease = self._context.identity, self._context.session_lease
        if lease is not None and not lease.alive():
            yield from self._rejoined(identity, ends)

    def _rejoined(self, identity: object, ends: float) -> Op[None]:
        while True:
            try:
                yield from self._context.rejoin(identity)
            except PASSING as trouble:
                if not (yield from self._over(trouble, ends)):
                    raise
            else:
                return


class OutageLog:
    """Logs the reason why a listener gets no changes, once per outage."""

    def __init__(self, listener: str) -> None:
        self._listener = listener
        self._said = ""

    def warn(self, trouble: InterlockError) -> None:
        """The listener gets no changes for now."""
        if not self._said:
            import logging

            self._said = str(trouble)
            log = logging.getLogger("interlock")
            log.warning("%s goes on when this is over: %s", self._listener, trouble)

    def over(self) -> None:
        """The outage is over."""
        self._said = ""
