"""Which caller of this process speaks: a task of an event loop, or a thread.

A deadlock is about who goes on with what, so a grant remembers which task or thread took it, and
a wait which one sleeps.  Two tasks of one session are two callers, and one task that is connected
twice is one.

Who took a lock is taken for who gives it back.  In a pool of threads that is not so: the thread
that took it for one job goes on with another.  So a thread of a pool is nobody in particular
(None), and never part of a circle; nor is one that was not started by Python.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Collection
from collections.abc import Set as AbstractSet
from typing import Literal, Protocol
from weakref import WeakKeyDictionary, WeakSet

from msgspec import Struct

POOLS = ("concurrent.futures.", "multiprocessing.pool", "anyio.", "trio.")
"""Where threads come from that do the jobs of others."""


class LocalCaller:
    """A task or a thread: its name, the same for as long as it runs, and what it holds.

    ``holds`` may have too much, never too little: what is lost or lapses may stay.  It has all
    for which others may wait: grants, claims, and whether it serves an inbox.  ``works`` are the
    names of claims that somebody else made for it to work on.
    """

    __slots__ = ("holds", "name", "works")

    def __init__(self, name: str) -> None:
        self.name = name
        self.holds: set[object] = set()
        self.works: dict[str, None] = {}

    def has(self, keys: Collection[str]) -> bool:
        """Whether it holds one of these, in whatever name, as far as that is remembered."""
        return any(isinstance(each, tuple) and each[1] in keys for each in tuple(self.holds))


class HasPendingGrants(Protocol):
    """Somebody of this process who gives back later what it could not give back yet."""

    def pending_grants(self) -> AbstractSet[str]:
        """The grants that are as good as given back, whatever who took them waits for."""


grant_services: WeakSet[HasPendingGrants] = WeakSet()
_tasks: WeakKeyDictionary[object, LocalCaller] = WeakKeyDictionary()
_numbers = itertools.count(1)
_process = ""


def current() -> LocalCaller | None:
    """Whoever runs this; None for nobody in particular."""
    task = _task()
    if task is not None:
        caller = _tasks.get(task)
        if caller is None:
            caller = _tasks[task] = _new()
        return caller
    try:
        return _local.caller
    except AttributeError:  # asked once in a thread: what it is does not change
        _local.caller = None if _is_of_a_pool(threading.current_thread()) else _new()
        return _local.caller


def holding(keys: Collection[str]) -> Literal["thread", "task", ""]:
    """What runs this, if it holds one of these in whatever name."""
    caller = current()
    if caller is None or not caller.has(keys):
        return ""
    return "thread" if _task() is None else "task"


class CallerTerms(Struct, frozen=True, gc=False):
    """How a wait is told of who waits: see ``core/wait.py``."""

    caller: str
    indexed: bool
    also: tuple[str, ...]


def caller_terms(named: str, caller: LocalCaller | None) -> CallerTerms:
    """Whoever was named speaks, or a task or thread of ours, or nobody in particular."""
    if named or caller is None:
        return CallerTerms(named, bool(named), ())
    return CallerTerms(caller.name, bool(caller.holds or caller.works), tuple(caller.works))


def new_name() -> str:
    """A name that nobody goes by yet: for a claim that is made for somebody else to work on."""
    return _new().name


def pending_grants() -> set[str]:
    """The grants of this process that nobody has to act for any more."""
    return {grant for service in tuple(grant_services) for grant in service.pending_grants()}


class _Local(threading.local):
    """What each thread knows of itself."""

    caller: LocalCaller | None


_local = _Local()


def _new() -> LocalCaller:
    return LocalCaller(f"{_of_process()}.{next(_numbers)}")


def _of_process() -> str:
    """What no other process has: one session may have several of them."""
    global _process  # noqa: PLW0603 - once in a process
    _process = _process or os.urandom(5).hex()
    return _process


def _forked() -> None:
    global _process, _local
    _process, _local = "", _Local()
    _tasks.clear()


os.register_at_fork(after_in_child=_forked)


def _task() -> object | None:
    if "asyncio" not in sys.modules:
        return None
    import asyncio  # another thread may have imported half of it: this waits for that

    if asyncio._get_running_loop() is None:  # noqa: SLF001 - it asks for nothing
        return None
    return asyncio.current_task()


def _is_of_a_pool(thread: threading.Thread) -> bool:
    work = getattr(thread, "_target", None)  # a pool lists its threads only after they began
    homes = (type(thread).__module__, getattr(work, "__module__", None) or "")
    foreign = isinstance(thread, threading._DummyThread)  # noqa: SLF001 - nothing else tells
    return foreign or any(home.startswith(POOLS) for home in homes)
