"""Ends of claims that one commit carries out together, in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from interlock.errors import InterlockError, StoreDamaged, StoreTrouble

if TYPE_CHECKING:
    from typing import Protocol

    from interlock.nouns.tasks.task import TaskEnd

    class WaitingEnd(Protocol):
        """The end of a claim that waits for a commit."""

        def ended(self, *, complete: bool) -> None:
            """The commit is over; unless it was completed, the task is to end by itself."""

        def failed(self, error: BaseException) -> None:
            """The commit failed, or was broken off."""


class EndsTogether:
    """The ends of claims that come in the same iteration of an event loop, or during a commit.

    One commit carries out all of them.  An end that is taken back before the commit has begun is
    left out.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        commit: Callable[[Sequence[TaskEnd]], Awaitable[frozenset[str]]],
        over: Callable[[], None],
        at_once: int,
    ) -> None:
        self._loop = loop
        self._commit = commit
        self._at_once = at_once
        self._over = over
        """Called when all claims of a commit are settled."""
        self._waiting: dict[WaitingEnd, TaskEnd] = {}
        self._running: asyncio.Task[None] | None = None
        self.committed = False
        """Whether the commit is made, and its claims are being settled."""
        self.claiming = 0
        """The slots that the commit under way is to fill, beside those of the ends."""

    def add(self, waiting: WaitingEnd, end: TaskEnd) -> None:
        """Complete a task with others."""
        if not self._waiting and self._running is None:
            self._loop.call_soon(self._begin)
        self._waiting[waiting] = end

    def take_back(self) -> list[WaitingEnd]:
        """Leave out the ends for which the commit has not begun; returns them."""
        waiting, self._waiting = self._waiting, {}
        return list(waiting)

    @property
    def busy(self) -> bool:
        """Whether an end is not carried out yet."""
        return bool(self._waiting) or self._running is not None

    async def all_ended(self) -> None:
        """Wait until all ends are carried out."""
        while self.busy:
            if self._running is None:
                await asyncio.sleep(0)
            else:
                await asyncio.wait((self._running,))

    def step(self, end: TaskEnd) -> EndStep:
        """The step of an operation that ends a claim; its answer is whether that is done."""
        return EndStep(self, end)

    async def end(self, end: TaskEnd) -> bool:
        """Complete a task with others; False if it is to be completed alone.

        If the caller is cancelled before the commit has begun, the end is left out; later, the
        caller waits for the commit.
        """
        waiting = _AwaitedEnd(self._loop.create_future())
        self.add(waiting, end)
        try:
            return await waiting.future
        except asyncio.CancelledError:
            if self._waiting.pop(waiting, None) is None and self._running is not None:
                await asyncio.wait((self._running,))
            raise

    def _begin_after(self, iterations: int) -> None:
        """Begin after so many iterations of the loop."""
        if iterations:
            self._loop.call_soon(self._begin_after, iterations - 1)
        else:
            self._begin()

    def _begin(self) -> None:
        """Begin a commit with those that wait."""
        some = dict(islice(self._waiting.items(), self._at_once))
        if some and self._running is None:
            for waiting in some:
                del self._waiting[waiting]
            self._running = self._loop.create_task(self._run(some))

    async def _run(self, some: Mapping[WaitingEnd, TaskEnd]) -> None:
        try:
            ended = await self._commit(tuple(some.values()))
        except BaseException as error:  # noqa: BLE001 - it goes to those that wait
            alone = isinstance(error, StoreDamaged) or not isinstance(error, StoreTrouble)
            for waiting in some:
                if isinstance(error, InterlockError) and alone:  # one of them must not harm others
                    waiting.ended(complete=False)
                else:
                    waiting.failed(error)
        else:
            self.committed = True
            for waiting, end in some.items():
                waiting.ended(complete=end.claimant.task in ended)
        finally:
            self.committed = False
            self._over()
            self._running = None
            # The tasks that came with this commit may end at once: with those that wait already.
            self._begin_after(3)


class _AwaitedEnd:
    """An end for which its caller waits."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[bool]) -> None:
        self.future = future

    def ended(self, *, complete: bool) -> None:
        """Return to the caller."""
        if not self.future.done():
            self.future.set_result(complete)

    def failed(self, error: BaseException) -> None:
        """Raise at the caller."""
        if self.future.done():
            return
        if isinstance(error, Exception):
            self.future.set_exception(error)
        else:
            self.future.cancel()


class EndStep:
    """Ends a claim together with others."""

    __slots__ = ("_end", "_ends")

    def __init__(self, ends: EndsTogether, end: TaskEnd) -> None:
        self._ends = ends
        self._end = end

    def perform(self, _on: object) -> bool:
        """No thread does this."""
        raise NotImplementedError

    def perform_async(self, _on: object) -> Awaitable[bool]:
        """Whether the task is complete."""
        return self._ends.end(self._end)
