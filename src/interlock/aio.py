"""The asyncio client: it has the names of the blocking client, and its calls are awaited.

    async with await aio.connect(agent="ada") as fleet:
        async with fleet.lock("merge") as held:
            await deploy(fencing_token=held.token)

If a lock is lost inside its block, the block is cancelled in time and raises Lost.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar
from weakref import WeakSet

from interlock import registry
from interlock.client_context import SESSION_TTL, Context
from interlock.client_setup import (
    FleetProperties,
    agent_and_session,
    find_or_open_store_async,
    make_context,
    wants_looks,
)
from interlock.clock import Clock
from interlock.core.validate import FOREVER
from interlock.descriptors import named
from interlock.errors import BadInput, InterlockError, StoreClosed, StoreTrouble
from interlock.nouns.fleet.calls import FleetCalls
from interlock.nouns.grants.held_grant import GrantHandle, take
from interlock.nouns.grants.lock import LockTarget
from interlock.nouns.grants.request import GrantTarget, GrantTerms
from interlock.runtime import callers
from interlock.runtime.calls import Awaiting, Calls, driven
from interlock.runtime.given import Given
from interlock.runtime.keeper import LOOK
from interlock.steps import CALL, Op, drive_apart, drive_async
from interlock.store import Store
from interlock.threads import going_on_async

if TYPE_CHECKING:
    from interlock.aio_messages import Messages
    from interlock.aio_requests import Requests
    from interlock.aio_tasks import Tasks
    from interlock.core.signing import Signer
    from interlock.runtime.calls import StreamSource
    from interlock.runtime.noun import Noun
    from interlock.runtime.operation import Request

T = TypeVar("T")
R = TypeVar("R")


def awaited(function: Callable[..., Op[Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """A call as a method to await."""

    def method(
        self: Calls[Awaiting], /, *args: object, **kwargs: object
    ) -> Coroutine[Any, Any, Any]:
        try:
            return drive_async(function(self, *args, **kwargs), self.context.store)
        except OSError as error:  # of the import of a module that the call needs
            raise named(error) from error.__cause__

    return update_wrapper(method, function)


def streaming(function: Callable[..., StreamSource[Any, Any]]) -> Callable[..., Stream[Any, Any]]:
    """A call that returns a source, as a method that returns a stream."""

    def method(self: Calls[Awaiting], /, *args: object, **kwargs: object) -> Stream[Any, Any]:
        try:
            return Stream(function(self, *args, **kwargs), self.context)
        except OSError as error:
            raise named(error) from error.__cause__

    return update_wrapper(method, function)


def opening(
    function: Callable[..., Op[StreamSource[Any, Any]]],
) -> Callable[..., Coroutine[Any, Any, Stream[Any, Any]]]:
    """A call that reads and then returns a source, as a method that returns a stream."""

    async def method(self: Calls[Awaiting], /, *args: object, **kwargs: object) -> Stream[Any, Any]:
        try:
            source = await drive_async(function(self, *args, **kwargs), self.context.store)
            return Stream(source, self.context)
        except OSError as error:
            raise named(error) from error.__cause__

    return update_wrapper(method, function)


METHODS: dict[str, Callable[..., Any]] = {
    "call": awaited,
    "grants": awaited,
    "stream": streaming,
    "opened": opening,
}
offered = partial(driven, methods=METHODS)
_classes: dict[type, type[Calls[Awaiting]]] = {}
_at_end: WeakSet[asyncio.Task[None]] = WeakSet()
"""The tasks that close a client at the end of its event loop."""


class Stream(Generic[T, R]):
    """Values as they come; use it in an ``async with`` block, or close it."""

    def __init__(self, source: StreamSource[T, R], context: Context) -> None:
        self._source = source
        self._context = context
        self._outage = context.outage(source.about)
        self._task: asyncio.Task[None] | None = None
        callback = getattr(source, "callback", None)
        if callback is not None:
            loop = going_on_async(partial(self._call, callback), "interlock-events")
            self._task = asyncio.create_task(loop)

    def take(self, timeout: float | None = None) -> Awaitable[R]:
        """The values that came since the last call, as soon as there are any.

        Returns none when the time is up.
        """
        op: Op[Any] = self._outage.feed(self._source.take, timeout)
        return drive_async(op, self._context.store)

    async def close(self) -> None:
        """Stop watching."""
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
            await asyncio.wait((self._task,))
        self._source.close()
        if (leave := getattr(self._source, "leave", None)) is not None:
            with suppress(InterlockError):  # what it would give up expires
                await drive_async(leave(), self._context.store)

    async def __aiter__(self) -> AsyncIterator[T]:
        while True:
            for value in self._source.each(await self.take()):
                yield value

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _call(self, callback: Callable[[T], object]) -> None:
        from interlock.runtime.outage import AGAIN, OutageLog

        complaints = OutageLog(self._source.about)
        while True:
            try:
                taken = await self.take()
            except StoreClosed:
                return
            except StoreTrouble as trouble:  # it resumes at the same position
                complaints.warn(trouble)
                await asyncio.sleep(self._context.store.capabilities.allow(AGAIN))
                continue
            complaints.over()
            for value in self._source.each(taken):
                await self._one(callback, value)

    async def _one(self, callback: Callable[[T], object], value: T) -> None:
        try:
            answer = callback(value)
            if isinstance(answer, Awaitable):
                await answer
        except Exception:
            import logging

            logging.getLogger("interlock").exception("a callback failed with %s", value)


@offered
class Held(GrantHandle[Awaiting]):
    """A lock, slots, or several things that this client holds."""


class BlockTask:
    """The task that works inside of a block, to be cancelled once."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._cancelled = False

    def cancel(self) -> None:
        """Cancel the block, since what it holds is lost."""
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    def end(self) -> bool:
        """Whether only this block cancelled the task."""
        return self._cancelled and self._task is not None and self._task.uncancel() == 0


class Block:
    """``async with fleet.lock(...)``: holds it inside the block, releases it at the end."""

    def __init__(self, fleet: Fleet, target: GrantTarget, terms: GrantTerms) -> None:
        self._fleet = fleet
        self._target = target
        self._terms = terms
        self._entered: tuple[Held, BlockTask] | None = None

    async def __aenter__(self) -> Held:
        context = self._fleet.context
        holding = await drive_async(
            take(context, self._target, self._cancel, self._terms), context.store
        )
        held = Held(holding)
        self._entered = held, BlockTask()
        self._fleet.keep()
        return held

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        entered, self._entered = self._entered, None
        if entered is None:
            return
        held, task = entered
        ours = task.end()
        lost = await held.end()
        if (ours and kind is asyncio.CancelledError) or (lost and kind is None):
            raise held.over() from None

    def _cancel(self) -> None:
        if self._entered is not None:
            self._entered[1].cancel()


@offered
class Fleet(FleetProperties[Awaiting]):
    """A client of one store, as ``connect`` returns it."""

    if TYPE_CHECKING:
        messages: Messages
        requests: Requests
        tasks: Tasks

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        context.client = self
        self._closed = False
        self._nudge = asyncio.Event()
        context.grants.on_pending = context.housekeeping.on_due = self._nudge.set
        context.grants.wake_keeper = self._ring
        self._loop = asyncio.get_running_loop()
        context.on_due = context.housekeeping.on_late = self._wake
        callers.add_grant_service(context.grants)
        self._tasks: list[asyncio.Task[None]] = []
        self._looking: asyncio.Task[None] | None = None
        self._doing: dict[str, asyncio.Task[None]] = {}
        self._at_end = self._close_at_end()
        self._ending = False
        """Whether that generator closes the client."""

    def _calls(self, noun: Noun) -> Calls[Awaiting]:
        kind: type[Calls[Awaiting]] = registry.load(noun.awaiting or noun.calls)
        if kind not in _classes:
            _classes[kind] = offered(kind)
        return _classes[kind](self.context)

    def act(self, request: Request, *, remote: bool = False) -> Coroutine[Any, Any, Any]:
        """Carry out any declared operation, and return its outcome.

        ``remote`` says that the request comes from another host: ``NotAllowed`` if it would use
        files or programs of this one.
        """
        operation = registry.operation_of(request)
        op = operation.carry_out(FleetCalls(self.context), request, remote=remote)
        return drive_async(op, self.context.store)

    @property
    def closed(self) -> bool:
        """Whether the client was closed."""
        return self._closed

    def lock(
        self,
        name: str,
        *,
        wait: float | str = FOREVER,
        ttl: float | str | None = None,
        max_hold: float | str | None = None,
        metadata: object = None,
        given: Given = (),
        guard: str | Sequence[str] = (),
    ) -> Block:
        """Hold a lock for an ``async with`` block; waits in the queue, without limit by default.

        A wait that could never end raises Deadlocked at once (``error.outcome.cycle`` names the
        agents in the cycle) and leaves nothing behind: release what you hold, then retry.
        With ``guard``, the name of a guard of the store or several, it also waits for those to
        pass; one that asks to fail raises Unavailable.
        If the lock cannot be renewed in time, the block is cancelled before another agent can
        acquire it, and raises Lost.
        """
        terms = GrantTerms(
            wait=wait, ttl=ttl, max_hold=max_hold, metadata=metadata, given=given, guard=guard
        )
        return Block(self, LockTarget(name), terms)

    def slots(
        self,
        name: str,
        *,
        weight: int = 1,
        capacity: int | None = None,
        wait: float | str = FOREVER,
        ttl: float | str | None = None,
        max_hold: float | str | None = None,
        metadata: object = None,
        given: Given = (),
        guard: str | Sequence[str] = (),
    ) -> Block:
        """Hold slots of a semaphore for an ``async with`` block; otherwise as ``lock``."""
        from interlock.nouns.grants.semaphore import SlotsTarget

        terms = GrantTerms(
            wait=wait, ttl=ttl, max_hold=max_hold, metadata=metadata, given=given, guard=guard
        )
        return Block(self, SlotsTarget(name, weight, capacity), terms)

    def together(
        self,
        *things: str,
        wait: float | str = FOREVER,
        ttl: float | str | None = None,
        max_hold: float | str | None = None,
        metadata: object = None,
        given: Given = (),
        guard: str | Sequence[str] = (),
    ) -> Block:
        """Hold several locks and slots for an ``async with`` block: all of them, or none.

        A thing is ``lock/merge``, ``sem/builds`` or ``sem/builds=2``; otherwise as ``lock``.
        """
        from interlock.nouns.grants.several import target_of

        terms = GrantTerms(
            wait=wait, ttl=ttl, max_hold=max_hold, metadata=metadata, given=given, guard=guard
        )
        return Block(self, target_of(things), terms)

    async def close(self) -> None:
        """End the session, which releases all its grants, and close the store if we opened it.

        ``asyncio.run`` does it at its end for a client that is still open.
        """
        if self._closed:
            return
        here = asyncio.get_running_loop() is self._loop
        if not here and not self._loop.is_closed():
            raise BadInput(
                "this client belongs to another event loop; close it there, as with"
                " asyncio.run_coroutine_threadsafe(fleet.close(), loop)"
            )
        self._closed = True
        if here:
            self._nudge.set()
        tasks = self._all_tasks if here else []  # those of a closed loop never go on
        try:
            if self._tasks and here and not self.store.outage:  # let a pass that has begun finish
                await asyncio.wait(self._tasks[:1], timeout=self.store.capabilities.allow(1.0))
            _cancel(tasks)
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(InterlockError):
                await drive_async(self._end(kept=bool(self._tasks)), self.store)
        finally:  # a cancellation must close the stores, too
            _cancel(tasks)
            await self.context.close_store_async()
            if "bus" in self.context.__dict__:
                await self.context.bus.close_async()
            if here and not self._ending:
                await self._at_end.aclose()

    async def begin(self) -> None:
        """Have the event loop close the client at its end."""
        await anext(self._at_end)

    async def _close_at_end(self) -> AsyncGenerator[None, None]:
        """An event loop that ends closes its generators, after its tasks were cancelled."""
        try:
            yield
        finally:
            if not self._closed:
                self._ending = True
                await self._let_others_end()
                await self.close()

    async def _let_others_end(self) -> None:
        """Wait for the other generators of the loop, whose blocks release what they hold."""
        if (own := asyncio.current_task()) is not None:
            _at_end.add(own)
        await asyncio.sleep(0)  # until they have begun to close
        if others := asyncio.all_tasks() - set(_at_end) - set(self._all_tasks):
            await asyncio.wait(others, timeout=self.store.capabilities.allow(1.0))

    @property
    def _all_tasks(self) -> list[asyncio.Task[None]]:
        looking = [] if self._looking is None else [self._looking]
        return [*self._tasks, *looking, *self._doing.values()]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def keep(self) -> None:
        """Renew the leases from one background task, and check them from another."""
        self._nudge.set()
        if not self._tasks:
            self._tasks = [
                self._going_on("interlock-beat", self._beat),
                self._going_on("interlock-watch", self._watch),
            ]

    def keep_looking(self) -> None:
        """Look at the outside from a background task, for gates that wait for it."""
        from interlock.nouns.guards.poller import OutsidePoller

        if self._looking is None:
            poller, store = OutsidePoller(self.context), self.context.store
            self._looking = self._going_on(
                "interlock-looks", lambda: drive_apart(poller.run(patient=True), store)
            )

    def keep_doing(self, name: str, work: Callable[[Callable[[], bool]], Op[None]]) -> None:
        """Do this in a background task of that name until the client is closed."""
        if name not in self._doing:
            store = self.context.store
            self._doing[name] = self._going_on(
                name, lambda: drive_apart(work(lambda: self._closed), store)
            )

    def _going_on(self, name: str, loop: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        return self._loop.create_task(going_on_async(loop, name, lambda: self._closed))

    def _wake(self) -> None:
        """Wake the keeper from any thread."""
        if not self._closed:
            self._loop.call_soon_threadsafe(self._keep_on)

    def _ring(self, *_: object) -> None:
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._nudge.set)

    def _keep_on(self) -> None:
        if not self._closed:
            self.keep()

    async def _beat(self) -> None:
        CALL.set(None)  # it outlives the call that starts it
        keeper = self.context.keeper
        while not self._closed:
            with suppress(TimeoutError):  # not wait_for: that of 3.11 may swallow a cancellation
                async with asyncio.timeout(max(keeper.wait(), 0.0)):
                    await self._nudge.wait()
            self._nudge.clear()
            if keeper.wait() <= 0 and not self._closed:
                await drive_async(keeper.run_due(), self.context.store)

    async def _watch(self) -> None:
        keeper = self.context.keeper
        while True:
            await asyncio.sleep(min(keeper.time_left(), LOOK))
            keeper.expire()


def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()


async def connect(
    url: str | os.PathLike[str] | None = None,
    agent: str | None = None,
    *,
    session: str | None = None,
    ttl: float = SESSION_TTL,
    trace: str = "",
    key: str | Signer | None = None,
    join: bool = True,
    grant_ttl: float | None = None,
    caller: str = "",
    no_retry: bool = False,
    look: bool | None = None,
    clock: Clock | None = None,
    store: Store | None = None,
) -> Fleet:
    """Connect to a store; with an agent's name, begin a session under it.

    The parameters are those of ``interlock.connect``.
    """
    used = await find_or_open_store_async(url, store)
    try:
        name, resumed = agent_and_session(agent, session)
        context = make_context(
            used,
            name,
            trace=trace,
            key=key,
            grant_ttl=grant_ttl,
            caller=caller,
            clock=clock,
            no_retry=no_retry,
        )
        context.runner.via = "python-async"
        term, inherited = ttl if join else None, resumed != session
        await drive_async(context.begin(resumed, term, inherited=inherited), used)
        looks = wants_looks(context, look)
    except BaseException:
        if store is None:
            await used.close_async()
        raise
    context.shares_store = store is not None
    fleet = Fleet(context)
    await fleet.begin()
    if context.session_lease is not None:
        fleet.keep()
    if looks:
        fleet.keep_looking()
    return fleet
