"""Operations are written once; this is where they are driven, blocking or async.

An operation is a generator that yields steps and returns its outcome.  ``drive`` runs it for a
caller that may block, ``drive_async`` for an event loop; nothing else differs.  A step is performed
on whatever the operation is about: a store for a service, a wire for an engine across a network.
An exception (a cancellation too) is thrown into the operation at the step where it struck, so
that it can clean up with further steps.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class Step(Protocol):
    """One thing to do."""

    def perform(self, on: Any) -> Any:  # noqa: ANN401 - each step knows its own answer
        """Do it, blocking."""

    def perform_async(self, on: Any) -> Awaitable[Any]:  # noqa: ANN401
        """Do it in an event loop."""


Op: TypeAlias = Generator[Step, Any, T]


class Pause:
    """Step back for a moment, so that others get through."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def perform(self, _on: object) -> None:
        """Sleep."""
        time.sleep(self.seconds)

    async def perform_async(self, _on: object) -> None:
        """Sleep."""
        import asyncio

        await asyncio.sleep(self.seconds)


def drive(op: Op[T], on: object) -> T:
    """Carry out an operation for a caller that may block.

    What strikes in here, between two steps, is thrown into the operation as well.
    """
    answer: Any = None
    struck: BaseException | None = None
    while True:
        try:
            while True:
                step = op.send(answer) if struck is None else op.throw(struck)
                answer, struck = None, None
                try:
                    answer = step.perform(on)
                except BaseException as error:  # noqa: BLE001 - the operation decides
                    struck = error
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]  # an Op[T] returns T
        except BaseException as error:
            if getattr(op, "gi_frame", None) is None:  # it is over: the error is its own
                raise
            struck = error


async def drive_async(op: Op[T], on: object) -> T:
    """Carry out an operation in an event loop; once cancelled, its clean-up is not."""
    cancelled = False
    try:
        step = next(op)
        while True:
            try:
                awaitable = step.perform_async(on)
                answer = await (_undisturbed(awaitable) if cancelled else awaitable)
            except BaseException as error:  # noqa: BLE001 - the operation decides
                cancelled = cancelled or not isinstance(error, Exception)
                step = op.throw(error)
            else:
                step = op.send(answer)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # an Op[T] returns T


async def wait_for_future(until: asyncio.Future[None], timeout: float | None) -> None:
    """Sleep until somebody finishes this future, or the time is up: ``asyncio.wait`` for one.

    That would take two more turns of the loop, and who sleeps here is to be quick afterwards.
    """
    if timeout is None:
        await until
        return
    timer = until.get_loop().call_later(timeout, finish_future, until)
    try:
        await until
    finally:
        timer.cancel()


def finish_future(future: asyncio.Future[None]) -> None:
    """Wake whoever sleeps until this is done."""
    if not future.done():
        future.set_result(None)


async def _undisturbed(awaitable: Awaitable[T]) -> T:
    """Wait to the end, though the task is cancelled once more: the first time will be raised."""
    import asyncio

    task = asyncio.ensure_future(awaitable)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    return task.result()
