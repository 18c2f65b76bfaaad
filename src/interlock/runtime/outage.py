"""Waiting through an outage: whoever waits goes on waiting, and goes on where it was.

A call that waits for nothing is told of trouble after ten seconds.  A wait is not over then: it is
asked again until its own time is up, or somebody stops it.  The outage is told once, by the log of
an engine across a network, else by ours.  What is wrong with a store for good (it is gone, closed,
damaged, of another version) is no outage, and ends a wait at once.

A session that lapsed meanwhile is followed by a new one under the same name, if it is our own.

What the log of a program is told while somebody listens and the store does not answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, update_wrapper
from itertools import chain, repeat
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

from interlock.core import validate
from interlock.drivers import Op, Pause
from interlock.errors import Lapsed, OutcomeUnknown, StoreAway, StoreBusy, StoreTrouble

if TYPE_CHECKING:
    from interlock.runtime.calls import Calls
    from interlock.runtime.context import Context


P = ParamSpec("P")
T = TypeVar("T")

AGAIN = 0.5
"""Seconds after which a store that is away is asked again."""
PASSING = (StoreAway, StoreBusy, OutcomeUnknown)
"""Troubles that pass by themselves."""


class Outage:
    """What keeps one wait going while the store does not answer."""

    def __init__(self, context: Context, waiting: str) -> None:
        self._context = context

        self._log = OutageLog(waiting)

    def through(self, attempt: Callable[[float], Op[T]], patience: float) -> Op[T]:
        """Carry out an attempt, which is told how much time is left, until it has an answer."""
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
        """Step back; whether there is time for another attempt then.

        One takes ten seconds while the store is away, so who has a session leaves it to the
        keeper to find out when that is over: a wait is to end at its limit.
        """
        clock, context = self._context.runner.clock, self._context
        if not context.store.outage:  # else the store told it
            self._log.tell(trouble)
        while (left := ends - clock.monotonic()) > 0:
            yield Pause(min(context.runner.capabilities.allow(AGAIN), left))
            if context.session_lease is None or not context.store.outage:
                return clock.monotonic() < ends
        return False

    def feed(
        self, take: Callable[[float | None], Op[T]], timeout: float | None
    ) -> Op[T | tuple[()]]:
        """What comes next of a feed, which goes on where it was; nothing when the time is up."""
        if timeout is None:
            return (yield from self.through(lambda _left: take(None), validate.FOREVER))
        try:
            return (yield from self.through(take, timeout))
        except PASSING as trouble:
            if self._context.no_retry:
                raise
            if not self._context.store.outage:
                self._log.tell(trouble)
            return ()

    def revive(self, ends: float) -> Op[None]:
        """See that we have a session that lives."""
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


def patient(waiting: str) -> Callable[[Callable[P, Op[T]]], Callable[P, Op[T]]]:
    """A call with a ``wait``: what waits goes on through outages until its time is up."""

    def decorated(call: Callable[P, Op[T]]) -> Callable[P, Op[T]]:
        def method(*args: P.args, **kwargs: P.kwargs) -> Op[T]:
            op = call(*args, **kwargs)  # its words are checked here and now
            wait = cast("float | str", kwargs.get("wait", 0))
            if not wait or not (patience := validate.wait_time(wait)):
                return op
            again: Callable[..., Op[T]] = partial(call, *args, **kwargs)
            attempts = chain((op,), repeat(None))
            outage = Outage(cast("Calls", args[0]).context, waiting)
            return outage.through(lambda left: next(attempts) or again(wait=left), patience)

        return update_wrapper(method, call)

    return decorated


class OutageLog:
    """Says what keeps a listener from hearing, once until it hears again."""

    def __init__(self, listener: str) -> None:
        self._listener = listener
        self._said = ""

    def tell(self, trouble: StoreTrouble) -> None:
        """It cannot hear for now."""
        if not self._said:
            import logging

            self._said = str(trouble)
            log = logging.getLogger("interlock")
            log.warning("%s goes on when this is over: %s", self._listener, trouble)

    def over(self) -> None:
        """It hears again."""
        self._said = ""
