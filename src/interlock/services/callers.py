"""Which caller of this process speaks: a task of an event loop, or a thread.

A deadlock is about who goes on with what, so a grant remembers which task or thread took it, and
a wait which one sleeps.  Two tasks of one session are two callers.

Somebody who took a lock may leave it to somebody else to give it back.  In a pool of threads that
is the rule: the thread that took it for one job goes on with another.  So a thread of a pool is
nobody in particular (empty), and never part of a circle.
"""

from __future__ import annotations

import itertools
import sys
import threading
from weakref import WeakKeyDictionary

_names: WeakKeyDictionary[object, str] = WeakKeyDictionary()
_numbers = itertools.count(1)


def current() -> str:
    """A name for whoever runs this, the same for as long as it runs; empty for nobody."""
    someone = _task() or _thread()
    if someone is None:
        return ""
    name = _names.get(someone)
    if name is None:
        name = _names[someone] = str(next(_numbers))
    return name


def _task() -> object | None:
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return None
    try:
        return asyncio.current_task()  # type: ignore[no-any-return]
    except RuntimeError:  # no loop runs in this thread
        return None


def _thread() -> threading.Thread | None:
    thread = threading.current_thread()
    pools = sys.modules.get("concurrent.futures.thread")
    pooled = pools is not None and thread in getattr(pools, "_threads_queues", ())
    return None if pooled else thread
