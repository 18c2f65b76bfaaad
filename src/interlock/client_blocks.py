"""Blocks of the blocking client: streams, and what a ``with`` block holds.

A command does not import this module.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from interlock.client import catch_up, offered
from interlock.client_context import Context
from interlock.errors import InterlockError, Lost, StoreClosed, StoreTrouble
from interlock.nouns.grants.handover import HANDOVER, BlockExit, Handover
from interlock.nouns.grants.held_grant import GrantHandle, take
from interlock.nouns.grants.request import GrantTarget, GrantTerms
from interlock.runtime.calls import Blocking
from interlock.steps import drive
from interlock.threads import background, going_on

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.runtime.calls import StreamSource

T = TypeVar("T")
R = TypeVar("R")


class Stream(Generic[T, R]):
    """Values as they come; use it in a ``with`` block, or close it."""

    def __init__(self, source: StreamSource[T, R], context: Context) -> None:
        self._source = source
        self._context = context
        self._outage = context.outage(source.about)
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        callback = getattr(source, "callback", None)
        if callback is not None:
            loop = going_on(lambda: self._call(callback), "interlock-events", self._closed)
            self._thread = background(loop, "interlock-events")
            self._thread.start()

    def take(self, timeout: float | None = None) -> R:
        """The values that came since the last call, as soon as there are any.

        Returns none when the time is up.
        """
        taken: Any = drive(self._outage.feed(self._source.take, timeout), self._context.store)
        return taken  # type: ignore[no-any-return]  # an empty tuple is of any such type

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=1.0)
        self._source.close()
        if (leave := getattr(self._source, "leave", None)) is not None:
            with suppress(InterlockError):  # what it would give up expires
                drive(leave(), self._context.store)

    def __iter__(self) -> Iterator[T]:
        while True:
            yield from self._source.each(self.take())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, callback: Callable[[T], object]) -> None:
        from interlock.runtime.outage import AGAIN, OutageLog
        from interlock.runtime.stoppable import SLICE

        complaints = OutageLog(self._source.about)
        while not self._closed.is_set():
            try:
                taken = self.take(SLICE)
            except StoreClosed:
                return
            except StoreTrouble as trouble:  # it resumes at the same position
                complaints.warn(trouble)
                self._closed.wait(self._context.store.capabilities.allow(AGAIN))
                continue
            complaints.over()
            for value in self._source.each(taken):
                try:
                    callback(value)
                except Exception:
                    import logging

                    logging.getLogger("interlock").exception("a callback failed with %s", value)


@offered
class Held(GrantHandle[Blocking]):
    """A lock, slots, or several things that this client holds."""


class HandoverBlock:
    """A block whose grant no interrupt can lose: ``BlockExit`` ties a handover to it."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._handover: Handover | None = None

    def entering(self, end: Callable[..., None]) -> None:
        """Take a fresh handover, unless the block has begun."""
        if self._handover is None or not self._handover.tied:
            self._handover = Handover(self._fleet.context.grants)
            self._handover.tie(end)

    def _current(self) -> Handover:
        """The handover of the block; without a ``with`` statement, one that is tied to nothing."""
        catch_up(self._fleet.context)
        if self._handover and self._handover.tied:
            return self._handover
        return Handover(self._fleet.context.grants)


class Block(HandoverBlock):
    """``with fleet.lock(...)``: holds it inside the block, releases it at the end."""

    def __init__(
        self, fleet: Fleet, target: GrantTarget, terms: GrantTerms, *, interrupt: bool
    ) -> None:
        super().__init__(fleet)
        self._target = target
        self._interrupt = interrupt
        self._terms = terms
        self._held: Held | None = None
        self._thread = 0
        self._interrupting = threading.Lock()

    def __enter__(self) -> Held:
        context = self._fleet.context
        handover = self._current()
        try:
            self._thread = threading.get_ident()
            on_lost = self._raise_in_thread if self._interrupt else None
            self._fleet.keep(watch=self._interrupt, nudge=False)  # it releases after an interrupt
            HANDOVER.set(handover)
            holding = drive(take(context, self._target, on_lost, self._terms), context.store)
            HANDOVER.set(None)
            self._held = held = Held(holding)
            if holding.leases and holding.leases[-1] is not context.session_lease:
                self._fleet.nudge()
            holding.raise_if_lost()  # it may have been lost before the block could be notified
        except BaseException:
            handover.abandon()
            with self._interrupting:
                self._held = None
            raise
        return held

    def leave(self, kind: object, *_: object) -> None:
        """End the block: release it."""
        with self._interrupting:
            held, self._held = self._held, None
        if held is None:
            return
        lost = held.end()
        if lost and (kind is None or kind is Lost):  # an interrupt has no text
            raise held.over() from None

    __exit__ = BlockExit[None]()

    def _raise_in_thread(self) -> None:
        import ctypes

        with self._interrupting:  # the block must not end between the check and the exception
            if self._held is not None:
                thread, error = ctypes.c_ulong(self._thread), ctypes.py_object(Lost)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, error)
