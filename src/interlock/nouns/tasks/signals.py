"""Polite signals for workers: the first asks to stop, the second not to finish, either.

Only the main thread of a process can hear them.  Whoever listens is called in the order of
coming; when nobody listens any more, what was there before is put back.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self, TypeAlias

SIGNALS = (signal.SIGINT, signal.SIGTERM)
Listener: TypeAlias = Callable[[int], None]

_listeners: list[Listener] = []
_before: dict[int, Any] = {}


class Listening:
    """``with Listening(callback):`` calls it with the number of each signal that comes."""

    def __init__(self, callback: Listener, *, wanted: bool = True) -> None:
        self._callback = callback
        self._wanted = wanted and threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Self:
        self._wanted = self._wanted and self._callback not in _listeners
        if self._wanted:
            _listeners.append(self._callback)
            if not _before:
                _begin()
        return self

    def __exit__(self, *_: object) -> None:
        if self._wanted:
            _listeners.remove(self._callback)
            if not _listeners and threading.current_thread() is threading.main_thread():
                _end()


def strike(listener: Listener) -> bool:
    """Have the main thread call a listener, whatever it waits for; False if it hears no signals."""
    main = threading.main_thread().ident
    if listener not in _listeners or signal.SIGTERM not in _before or main is None:
        return False
    signal.pthread_kill(main, signal.SIGTERM)
    return True


def _begin() -> None:
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            _before[number] = signal.signal(number, _heard)


def _end() -> None:
    for number, handler in _before.items():
        signal.signal(number, handler)
    _before.clear()


def _heard(number: int, _frame: FrameType | None) -> None:
    for listener in tuple(_listeners):
        listener(number)
    if not _listeners:  # whoever listened last left in another thread, which may not change this
        _end()
        signal.raise_signal(number)
