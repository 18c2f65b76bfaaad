"""Ends of claims that one commit carries out together, in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from interlock.errors import InterlockError, StoreDamaged, StoreTrouble
from interlock.nouns.tasks.task import CLAIMED_AT_ONCE, TaskEnd

if TYPE_CHECKING:
    pass


class EndsTogether:
    """The ends of claims that come in the same iteration of an event loop, or during a commit.

    One commit carries out all of them.  An end that is cancelled before the commit has begun is
    left out; later, its caller waits for the commit.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        commit: Callable[[Sequence[TaskEnd]], Awaitable[frozenset[str]]],
    ) -> None:
        self._loop = loop
        self._commit = commit
        self._waiting: dict[asyncio.Future[bool], TaskEnd] = {}
        self._running: asyncio.Task[None] | None = None
        self.claiming = 0
        """The slots that the commit under way is to fill, beside those of the ends."""

    def step(self, end: TaskEnd) -> EndStep:
        """The step of an operation that ends a claim; its answer is whether that is done."""
        return EndStep(self, end)

    async def end(self, end: TaskEnd) -> bool:
        """Complete a task with others; False if it is to be completed alone."""
        future: asyncio.Future[bool] = self._loop.create_future()
        if not self._waiting and self._running is None:
            self._loop.call_soon(self._begin)
        self._waiting[future] = end
        try:
            return await future
        except asyncio.CancelledError:
            if self._waiting.pop(future, None) is None and self._running is not None:
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
        some = dict(islice(self._waiting.items(), CLAIMED_AT_ONCE))
        if some and self._running is None:
            for future in some:
                del self._waiting[future]
            self._running = self._loop.create_task(self._run(some))

    async def _run(self, some: Mapping[asyncio.Future[bool], TaskEnd]) -> None:
        try:
            ended = await self._commit(tuple(some.values()))
        except BaseException as error:  # noqa: BLE001 - it goes to those that wait
            alone = isinstance(error, StoreDamaged) or not isinstance(error, StoreTrouble)
            for future in some:
                if future.done():
                    continue
                if isinstance(error, InterlockError) and alone:  # one of them must not harm others
                    future.set_result(False)
                elif isinstance(error, Exception):
                    future.set_exception(error)
                else:
                    future.cancel()
        else:
            for future, end in some.items():
                if not future.done():
                    future.set_result(end.claimant.task in ended)
        finally:
            self._running = None
            # The tasks that came with this commit may end at once: with those that wait already.
            self._begin_after(3)


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
