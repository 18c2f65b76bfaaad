"""How far long work is; without a listener a report costs one comparison.

Long work reports after each portion.  The command line listens if a person looks at a terminal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Listener: TypeAlias = Callable[[str, int, int], object]
"""Called with what is done, how much of it is, and how much there is in all (0: unknown)."""

_listeners: list[Listener] = []


def report(what: str, done: int, total: int = 0) -> None:
    """Say how far some work is."""
    for listener in _listeners:
        listener(what, done, total)


def listen(listener: Listener) -> Callable[[], None]:
    """Call a function with each report from now on; returns the function that ends that."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)
