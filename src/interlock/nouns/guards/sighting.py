"""Looks at the outside: what a host sees, before it becomes an observation with host and time.

Several looks run side by side, each with its own time limit.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec import Struct

from interlock.core.safe_text import foreign, one_line
from interlock.threads import background

T = TypeVar("T")

AT_ONCE = 8
"""How many looks run at once."""
_SHOWN = 120
_LINE = 160


class Sighting(Struct, frozen=True, kw_only=True):
    """An answer to a need about the outside, as in an ``Observation``."""

    value: bool | int | None
    says: str
    digest: str


def sighting(value: bool | int | None, says: str, seen: bytes) -> Sighting:
    """An answer, with the digest of the bytes that were seen."""
    from hashlib import sha256

    return Sighting(value=value, says=says, digest=sha256(seen).hexdigest())


def unknown(says: str) -> Sighting:
    """No answer; nothing was seen, so the digest is that of the reason."""
    return sighting(None, says, says.encode(errors="replace"))


def shown(name: str) -> str:
    """A name or a command on one line, as it stands in a sentence; empty for none."""
    return foreign(one_line(name), _SHOWN) if name else ""


def last_line(output: bytes) -> str:
    """The last line of an output that is not empty, as it stands in a sentence."""
    lines = output.decode(errors="replace").rstrip().splitlines()
    return foreign(one_line(lines[-1]), _LINE) if lines else ""


# Side by side.


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
        while waiting and len(ends) < AT_ONCE:
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
