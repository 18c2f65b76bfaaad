"""The functions of a worker, by the type of their tasks.

The type of a task is what it requires.  So a worker with a function for ``build`` is one that can
do ``build``, and a task of a type for which it has no function stays in the queue for another
worker: no task can come to a worker that does not know it.  A function without a type is for tasks
of no type, and for all others that the worker can do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Generic, NamedTuple, TypeVar

from interlock.core import validate
from interlock.errors import BadInput
from interlock.nouns.tasks.task import ONLY

H = TypeVar("H", bound=Callable[..., object])


class TaskHandler(NamedTuple, Generic[H]):
    """A function for tasks, and how many seconds it may take."""

    function: H
    timeout: float | None

    @property
    def too_late(self) -> str:
        """The reason of an attempt that took too long."""
        return f"the handler took longer than {validate.span(self.timeout)}"


class HandlersByType(Generic[H]):
    """The functions of one worker."""

    def __init__(self) -> None:
        self._typed: dict[str, TaskHandler[H]] = {}
        self._other: TaskHandler[H] | None = None

    def add(self, types: tuple[str, ...], function: H, timeout: float | str | None) -> None:
        """Use a function for tasks of these types; without a type, for all others."""
        if not callable(function):
            raise BadInput(f"a handler is a function, not {type(function).__name__}")
        limit = None if timeout is None else validate.duration(timeout, "timeout")
        handler = TaskHandler(function, limit)
        wanted = validate.names(types, "type", validate.CAN_LIMIT)
        taken = [each for each in wanted if each in self._typed]
        if taken or (not wanted and self._other is not None):
            what = f"tasks of type {taken[0]!r}" if taken else "tasks of no type"
            raise BadInput(f"{what} have a handler already; keep one of the two")
        if not wanted:
            self._other = handler
        self._typed.update(dict.fromkeys(wanted, handler))

    def abilities(self) -> tuple[str, ...]:
        """What a worker with these functions can do, and that it does nothing else."""
        if not self._typed and self._other is None:
            raise BadInput("this worker has no handler; serve(handler), or add some: @worker.on()")
        only = () if self._other is not None else [f"{ONLY}{each}" for each in self._typed]
        return (*self._typed, *only)

    def find(self, requires: Collection[str]) -> TaskHandler[H]:
        """The function for a task; of several types, the one that was added first."""
        found = self._other
        for name, each in self._typed.items():
            if name in requires:
                found = each
                break
        if found is None:
            raise BadInput(f"no handler of this worker is for {', '.join(requires) or 'no type'}")
        return found
