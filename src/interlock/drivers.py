"""Drivers: operations are written once, and driven blocking or async here.

An operation is a generator that yields steps and returns its outcome.  ``drive`` runs it for a
caller that may block, ``drive_async`` for an event loop; nothing else differs.  A step is performed
on the object of the operation: a store for a service, a connection for an engine across a network.
An exception (also a cancellation) is thrown into the operation at the step where it occurred, so
that the operation can clean up with further steps.
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
    """One step of an operation."""

    def perform(self, on: Any) -> Any:  # noqa: ANN401 - each step knows its own answer
        """Perform it, blocking."""

    def perform_async(self, on: Any) -> Awaitable[Any]:  # noqa: ANN401
        """Perform it in an event loop."""


Op: TypeAlias = Generator[Step, Any, T]


class Pause:
    """Wait for a moment, so that other clients get through."""

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

    An exception between two steps is thrown into the operation, too.
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
    """Carry out an operation in an event loop; a cancellation does not cancel its clean-up."""
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
    """Sleep until this future is finished, or the time is up: ``asyncio.wait`` for one future.

    ``asyncio.wait`` would take two more iterations of the loop, and callers need the speed.
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
    """Finish a future, unless it is done."""
    if not future.done():
        future.set_result(None)


async def _undisturbed(awaitable: Awaitable[T]) -> T:
    """Wait to the end, even if the task is cancelled a second time: the first is raised later."""
    import asyncio

    task = asyncio.ensure_future(awaitable)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    return task.result()
