"""A thread makes one call of a store at a time.

Python runs signal handlers and finalisers (``__del__``, the end of a generator that was dropped)
between any two instructions of a thread, so also inside of a commit.  A second call from
there would wait for the first one, which cannot go on before the second has returned; all other
processes wait for the write lock of the store until then.

So each call is made ``with one_call()``, which refuses a second one of the same thread at once.
``in_call`` asks without a refusal: a client then leaves a release, and its end, to its background
thread.

A handler may also raise, and so end the call.  Its exception is the caller's, of any type:
``from_handler`` distinguishes a ``TimeoutError`` of an alarm from one of a disk or a server.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from interlock.errors import StoreInUse


class _Call(threading.local):
    """The call of a thread: a lock that only this thread takes.

    A lock, because nothing can interrupt a ``with`` on one: an exception of a handler between the
    beginning of a call and a flag for it would leave the flag set.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.owned: Callable[[], bool] = self.lock._is_owned  # type: ignore[attr-defined]  # noqa: SLF001 - as Condition asks


_call = _Call()
_OURS = frozenset({*sys.stdlib_module_names, "interlock"})


def one_call() -> threading.RLock:
    """What a call holds until it returns; StoreInUse inside of another call of this thread."""
    if _call.owned():
        raise StoreInUse(
            "this thread is in the midst of another call of a store, in which Python ran a signal"
            " handler or a finaliser; nothing was done: take a note there, and call later"
        )
    return _call.lock


def in_call() -> bool:
    """Whether this thread is inside of a call of a store."""
    return _call.owned()


def from_handler(error: BaseException) -> bool:
    """Whether a signal handler of the program raised this, inside of a call that catches it.

    The code that catches it called nothing but Interlock, Python's modules and the system.
    """
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_globals.get("__name__") or ""
        if name.partition(".")[0] not in _OURS:
            return True
        trace = trace.tb_next
    return False
