"""Operations that sleep, and end soon after another thread or a signal stops them.

A stop does not wake a watch, so a long sleep is cut into slices.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from interlock.core import validate
from interlock.steps import NextChanges, Op, OpenWatch
from interlock.store import Change, Resync, Watch

T = TypeVar("T")

SLICE = 0.25
"""Seconds at most until a sleeping operation notices that it must stop."""


class _Stop(BaseException):
    """Ends an operation where it sleeps."""


class ExtraWatch(Protocol):
    """A second scope on the watch of an operation that sleeps."""

    def opened(self, step: OpenWatch) -> Op[Watch]:
        """Open the watch with the second scope added."""

    def heard(self, changes: list[Change | Resync]) -> Op[list[Change | Resync]]:
        """Take the changes of the second scope; returns the others."""


def stoppable(
    op: Op[T],
    stopped: Callable[[], bool],
    extra: ExtraWatch | None = None,
    *,
    drops: bool = False,
) -> Op[T | None]:
    """Run an operation whose sleep ends soon after ``stopped`` is true; None then.

    An operation that ``drops`` what has arrived by then looks at everything when it begins again.
    """
    slices = partial(_sliced, stopped=stopped, extra=extra, drops=drops)
    try:
        step = next(op)
        while True:
            try:
                answer = yield from _done(step, extra, slices)
            except BaseException as error:  # noqa: BLE001 - the operation decides
                step = op.throw(error)
            else:
                step = op.send(answer)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # an Op[T] returns T
    except _Stop:
        return None


def _done(step: Any, extra: ExtraWatch | None, slices: Callable[[NextChanges], Op[Any]]) -> Op[Any]:  # noqa: ANN401
    """Perform a step; one that waits is cut into slices."""
    if isinstance(step, NextChanges):
        return (yield from slices(step))
    if isinstance(step, OpenWatch) and extra is not None:
        return (yield from extra.opened(step))
    return (yield step)


def _sliced(
    step: NextChanges, stopped: Callable[[], bool], extra: ExtraWatch | None, *, drops: bool
) -> Op[Any]:
    left = validate.FOREVER if step.timeout is None else step.timeout
    while not stopped():
        answer = yield NextChanges(step.watch, min(left, SLICE))
        if answer and extra is not None:
            answer = yield from extra.heard(answer)
        if drops and stopped():
            break
        left -= SLICE
        if answer or left <= 0:
            return answer
    raise _Stop
