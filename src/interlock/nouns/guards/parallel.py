"""Looks at the outside, side by side, each with its own time limit."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from interlock.threads import background

T = TypeVar("T")

MOST = 8
"""How many run at once."""


def in_parallel(works: Sequence[tuple[Callable[[], T], float]]) -> list[T | None]:
    """Carry out each work, which has a limit in seconds; None for one that does not end in time.

    A thread cannot be stopped: one that is late, as a file of a dead network disk can make it, is
    left behind, and ends with the program.  An exception of a work is raised here.
    """
    from queue import Empty, SimpleQueue

    done: SimpleQueue[tuple[int, Callable[[], T]]] = SimpleQueue()
    results: list[T | None] = [None] * len(works)
    waiting, ends = deque(range(len(works))), dict[int, float]()

    def start(number: int) -> None:
        work, seconds = works[number]
        background(lambda: done.put((number, _outcome(work))), "interlock-look").start()
        ends[number] = time.monotonic() + seconds

    while waiting or ends:
        while waiting and len(ends) < MOST:
            start(waiting.popleft())
        try:
            number, outcome = done.get(timeout=max(min(ends.values()) - time.monotonic(), 0.0))
        except Empty:
            now = time.monotonic()
            ends = {number: end for number, end in ends.items() if end > now}
        else:
            if ends.pop(number, None) is not None:
                results[number] = outcome()
    return results


def _outcome(work: Callable[[], T]) -> Callable[[], T]:
    """Carry out a work; returns a function that returns its result, or raises its exception."""
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
        raised = error
    else:
        return lambda: result

    def fail() -> T:
        raise raised

    return fail
