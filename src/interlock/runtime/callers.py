"""The callers of this process: tasks of an event loop, and threads.

A deadlock is about callers, so a grant stores the task or thread that took it, and a wait the one
that sleeps.  Two tasks of one session are two callers, and one task that is connected twice is one.

The task or thread that took a lock is expected to release it.  In a thread pool that is not so: the
thread that took it for one job goes on with another.  So a thread of a pool has no identity (None)
and is never part of a cycle; nor is a thread that Python did not start.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from _weakref import ref  # the module weakref makes classes that no command needs
from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Literal, Protocol

from msgspec import Struct

MOST_REMEMBERED = 4096
"""Grants of one client whose holders are remembered."""
POOLS = ("concurrent.futures.", "multiprocessing.pool", "anyio.", "trio.")
"""The modules of thread pools."""


class LocalCaller(Struct, eq=False):
    """A task or a thread: its name, which stays while it runs, and what it holds.

    ``holds`` has everything that others may wait for: grants, claims, and a place as a receiver.
    It may have too much, never too little: a lost or expired grant may stay.  ``works`` are the
    names of claims that another caller made for it to work on.
    """

    name: str
    holds: set[object] = set()
    works: dict[str, None] = {}

    def has(self, keys: Collection[str]) -> bool:
        """Whether it holds one of these keys as any agent, as far as this process knows."""
        return any(isinstance(each, tuple) and each[1] in keys for each in tuple(self.holds))


if TYPE_CHECKING:

    class HasPendingGrants(Protocol):
        """A service of this process with pending releases."""

        def pending_grants(self) -> AbstractSet[str]:
            """The grants that are to be released, even if their caller waits."""


_grant_services: set[ref[HasPendingGrants]] = set()
_tasks: dict[ref[object], LocalCaller] = {}
"""Each reference removes itself, in both; a ``WeakKeyDictionary`` runs Python code for that."""
_numbers = itertools.count(1)
_running_loop: Callable[[], Any] | None = None
_current_task: Callable[[Any], object | None]
"""Functions of ``asyncio``, once that is imported."""
_process = ""


def current() -> LocalCaller | None:
    """The current task or thread; None in a thread pool."""
    task = _task()
    if task is not None:
        caller = _tasks.get(ref(task))
        if caller is None:
            caller = _tasks[ref(task, _tasks.pop)] = LocalCaller(new_name())
        return caller
    try:
        return _local.caller
    except AttributeError:  # once in a thread: it does not change
        pooled = _is_of_a_pool(threading.current_thread())
        _local.caller = None if pooled else LocalCaller(new_name())
        return _local.caller


def holding(keys: Collection[str]) -> Literal["thread", "task", ""]:
    """The kind of the current caller, if it holds one of these as any agent."""
    caller = current()
    if caller is None or not caller.has(keys):
        return ""
    return "thread" if _task() is None else "task"


class LocalHolders:
    """Which task or thread of this process holds which grant: those of one client."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], LocalCaller] = {}

    def add(self, caller: LocalCaller | None, wanted: tuple[str, ...], token: int) -> None:
        """The caller, if it has an identity, holds these."""
        if caller is None:
            return
        if len(self._held) >= MOST_REMEMBERED:
            caller.holds.add(self)  # from now on it counts as a holder
            return
        for key in wanted:
            self._held[key, token] = caller
            caller.holds.add((self, key, token))

    def remove(self, wanted: tuple[str, ...], token: int | None) -> None:
        """These are released; a release without a token means the last grant of the pool."""
        for key in wanted:
            last = self.last_token(key) if token is None else token
            if last is not None and (caller := self._held.pop((key, last), None)) is not None:
                caller.holds.discard((self, key, last))

    def last_token(self, key: str) -> int | None:
        """The token of the last grant of this pool; None if no caller is known to have one."""
        return max([token for held, token in tuple(self._held) if held == key], default=None)


class CallerTerms(Struct, frozen=True, gc=False):
    """The fields of a wait that name its caller: see ``core/wait.py``."""

    caller: str
    indexed: bool
    also: tuple[str, ...]


def caller_terms(named: str, caller: LocalCaller | None) -> CallerTerms:
    """The fields for a named caller, or a task or thread of this process, or neither."""
    if named or caller is None:
        return CallerTerms(named, bool(named), ())
    return CallerTerms(caller.name, bool(caller.holds or caller.works), tuple(caller.works))


def new_name() -> str:
    """A new name of a caller, or of a claim that another caller is to work on."""
    return f"{_process or _of_process()}.{next(_numbers)}"


def pending_grants() -> set[str]:
    """The grants of this process that are to be released."""
    # A list of references, since another thread may add a service during an iteration.
    services = [reference() for reference in list(_grant_services)]
    return {grant for each in services if each is not None for grant in each.pending_grants()}


def add_grant_service(service: HasPendingGrants) -> None:
    """Count the grants of a client that are to be released, as long as it lives."""
    _grant_services.add(ref(service, _grant_services.discard))


class _Local(threading.local):
    """The caller of each thread."""

    caller: LocalCaller | None


_local = _Local()


def _of_process() -> str:
    """A name that no other process has: one session may have several processes."""
    global _process  # noqa: PLW0603 - once in a process
    _process = _process or os.urandom(5).hex()
    return _process


def _forked() -> None:
    global _process, _local, _tasks
    _process, _local, _tasks = "", _Local(), {}


os.register_at_fork(after_in_child=_forked)


def _task() -> object | None:
    """The current task, if an event loop runs in this thread; it does not import ``asyncio``."""
    global _running_loop, _current_task  # noqa: PLW0603 - once in a process
    if _running_loop is None:
        if "asyncio" not in sys.modules:
            return None
        import asyncio  # another thread may have imported half of it: this waits for that

        _current_task = asyncio.current_task
        _running_loop = asyncio._get_running_loop  # noqa: SLF001 - it asks for nothing
    loop = _running_loop()
    return None if loop is None else _current_task(loop)


def _is_of_a_pool(thread: threading.Thread) -> bool:
    work = getattr(thread, "_target", None)  # a pool lists its threads only after they began
    homes = (type(thread).__module__, getattr(work, "__module__", None) or "")
    foreign = isinstance(thread, threading._DummyThread)  # noqa: SLF001 - there is no other way
    return foreign or any(home.startswith(POOLS) for home in homes)
