"""Operations that sleep, and are to end soon after somebody says so: from another thread, a signal.

A watch is not woken by that, so a long sleep is slept in slices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from interlock.core import words
from interlock.driving import Op
from interlock.services.steps import Take

T = TypeVar("T")

SLICE = 0.25
"""How long at most until whoever sleeps notices that it is to stop."""


class _Stop(BaseException):
    """Ends an operation where it sleeps."""


def stoppable(op: Op[T], stopped: Callable[[], bool]) -> Op[T | None]:
    """An operation whose sleep ends soon after it is to stop: None then."""
    try:
        step = next(op)
        while True:
            try:
                answer = yield from _sliced(step, stopped) if isinstance(step, Take) else _as(step)
            except BaseException as error:  # noqa: BLE001 - the operation decides
                step = op.throw(error)
            else:
                step = op.send(answer)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # an Op[T] returns T
    except _Stop:
        return None


def _as(step: Any) -> Op[Any]:  # noqa: ANN401 - each step knows its own answer
    return (yield step)


def _sliced(step: Take, stopped: Callable[[], bool]) -> Op[Any]:
    left = words.FOREVER if step.timeout is None else step.timeout
    while not stopped():
        answer = yield Take(step.watch, min(left, SLICE))
        left -= SLICE
        if answer or left <= 0:
            return answer
    raise _Stop
