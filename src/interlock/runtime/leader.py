"""One caller of a process works for all that want the same at the same time; the others sleep.

Commits and watches are dear, and many callers of one process may need the same one: to post to the
same bus, to wait for results on it.  Each of them becomes a ``GroupMember`` of a ``LeaderGroup``.
The first one leads: it does the work of all members, and settles them.  When its own work is
settled, or its time is up, or it is interrupted, it resigns, and another member that is not settled
leads.
No thread and no task runs for this: a caller that is alone simply does its work.

Members may be threads, tasks of an event loop, or both.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from interlock.steps import Op, finish_future, wait_for_future

if TYPE_CHECKING:
    import asyncio

M = TypeVar("M", bound="GroupMember")

FOREVER = 1e9


class Bell:
    """Wakes one operation that sleeps in this process, from any thread; a ring is not lost."""

    def __init__(self) -> None:
        self._guard = threading.RLock()  # a signal handler may need it, too
        self._rung = False
        self._event: threading.Event | None = None
        self._future: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Wake the sleeper, or the next one."""
        with self._guard:
            self._rung = True
            event, future = self._event, self._future
        if event is not None:
            event.set()
        if future is not None:
            _finish(future)

    def sleep(self, seconds: float) -> Op[None]:
        """Sleep until it rings, at most so long."""
        yield _Sleep(self, seconds)

    def begin(
        self, event: threading.Event | None = None, future: asyncio.Future[None] | None = None
    ) -> bool:
        """A sleeper lies down; False if it rang since the last one rose."""
        with self._guard:
            if self._rung:
                self._rung = False
                return False
            self._event, self._future = event, future
            return True

    def end(self) -> None:
        """The sleeper rises."""
        with self._guard:
            self._rung, self._event, self._future = False, None, None


class _Sleep:
    """Sleep until a bell rings."""

    __slots__ = ("_bell", "_seconds")

    def __init__(self, bell: Bell, seconds: float) -> None:
        self._bell = bell
        self._seconds = seconds

    def perform(self, _on: object) -> None:
        """Block this thread."""
        event = threading.Event()
        if self._bell.begin(event=event):
            try:
                event.wait(min(self._seconds, threading.TIMEOUT_MAX))
            finally:
                self._bell.end()

    def perform_async(self, _on: object) -> Awaitable[None]:
        """Sleep in an event loop."""
        return self._asleep()

    async def _asleep(self) -> None:
        import asyncio

        future = asyncio.get_running_loop().create_future()
        if self._bell.begin(future=future):
            try:
                await wait_for_future(future, self._seconds)
            finally:
                self._bell.end()


def _finish(future: asyncio.Future[None]) -> None:
    """Finish a future; in its own loop at once, since waking the loop costs system calls."""
    import asyncio

    loop = future.get_loop()
    if asyncio._get_running_loop() is loop:  # noqa: SLF001 - it asks for nothing
        finish_future(future)
        return
    with suppress(RuntimeError):  # the loop was closed: its callers are gone
        loop.call_soon_threadsafe(finish_future, future)


class GroupMember:
    """A caller in a group; subclasses have what it wants, and the answer."""

    def __init__(self) -> None:
        self.settled = False
        self.bell = Bell()

    def settle(self) -> None:
        """Its work is done."""
        self.settled = True
        self.bell.ring()


class LeaderGroup(Generic[M]):
    """Callers that want the same kind of work; one of them does it for all."""

    def __init__(self) -> None:
        self._guard = threading.RLock()  # a signal handler may need it, too
        self._members: dict[M, None] = {}
        self._leader: M | None = None

    def unsettled(self) -> list[M]:
        """The members whose work is to be done, in the order in which they came."""
        with self._guard:
            return [member for member in self._members if not member.settled]

    def attend(
        self,
        member: M,
        lead: Callable[[], Op[None]],
        left: Callable[[], float] = lambda: FOREVER,
    ) -> Op[None]:
        """Wait until a member is settled, or no time is ``left``; it may have to ``lead`` itself.

        ``lead`` does the work of the members so far.  It is called again while the member is not
        settled; its exceptions are those of this caller, and another one leads then.
        """
        try:
            with self._guard:
                self._members[member] = None
            while not member.settled and (seconds := left()) > 0:
                if self._begin(member):
                    try:
                        yield from lead()
                    finally:
                        self._resign(member)
                else:
                    yield from member.bell.sleep(seconds)
        finally:
            self._leave(member)

    def _begin(self, member: M) -> bool:
        with self._guard:
            if self._leader is None:
                self._leader = member
            return self._leader is member

    def _resign(self, member: M) -> None:
        with self._guard:
            if self._leader is member:
                self._leader = None

    def _leave(self, member: M) -> None:
        """Leave the group; without a leader, wake the member that leads next."""
        with self._guard:
            self._members.pop(member, None)
            if self._leader not in (None, member):
                return
            self._leader = None
            following = next((each for each in self._members if not each.settled), None)
        if following is not None:
            following.bell.ring()
