"""Interlock for event loops: the same names as ``interlock.connect``, awaited.

    async with await aio.connect(agent="ada") as fleet:
        async with fleet.lock("merge") as held:
            await deploy(fencing_token=held.token)

If a lock is lost inside its block, the block is cancelled in time and raises Lost.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from interlock.client_setup import agent_and_session, find_or_open_store_async, make_context
from interlock.clock import Clock
from interlock.core.decision import Outcome, Proof
from interlock.core.validate import FOREVER
from interlock.drivers import Op, drive_async
from interlock.errors import InterlockError
from interlock.nouns.agents.calls import AgentCalls
from interlock.nouns.agents.session import TTL
from interlock.nouns.grants.calls import LockCalls, SemaphoreCalls, SeveralCalls
from interlock.nouns.grants.holding import InHand, take
from interlock.nouns.grants.targets import Aim, LockAim, SeveralAim, SlotsAim, Terms
from interlock.runtime import callers
from interlock.runtime.context import Calls, Context, FleetCalls
from interlock.runtime.given import Given
from interlock.runtime.identity import TRACE, Actor
from interlock.runtime.keeper import LOOK
from interlock.store import Store

if TYPE_CHECKING:
    import logging

    from interlock.aio_messages import Messages
    from interlock.aio_record import Observer, Record
    from interlock.aio_tasks import Tasks
    from interlock.nouns.agents.reports import Pulse

C_co = TypeVar("C_co", bound=Calls, covariant=True)
P = ParamSpec("P")
T = TypeVar("T")


class Noun(Generic[C_co]):
    """The calls of one noun, as methods."""

    def __init__(self, calls: C_co) -> None:
        self.calls = calls


def awaited(
    call: Callable[Concatenate[C_co, P], Op[T]],
) -> Callable[Concatenate[Noun[C_co], P], Coroutine[Any, Any, T]]:
    """A call of the services as a method to await."""

    def method(self: Noun[C_co], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return drive_async(call(self.calls, *args, **kwargs), self.calls.context.store)

    return update_wrapper(method, call)


class Locks(Noun[LockCalls]):
    """Locks, by name."""

    acquire = awaited(LockCalls.acquire)
    release = awaited(LockCalls.release)
    heartbeat = beat = awaited(LockCalls.heartbeat)
    break_ = awaited(LockCalls.break_)
    list = awaited(LockCalls.list)
    show = awaited(LockCalls.show)


class Semaphores(Noun[SemaphoreCalls]):
    """Semaphores, by name."""

    acquire = awaited(SemaphoreCalls.acquire)
    release = awaited(SemaphoreCalls.release)
    heartbeat = beat = awaited(SemaphoreCalls.heartbeat)
    break_ = awaited(SemaphoreCalls.break_)
    resize = awaited(SemaphoreCalls.resize)
    remove = awaited(SemaphoreCalls.remove)
    list = awaited(SemaphoreCalls.list)
    show = awaited(SemaphoreCalls.show)


class Several(Noun[SeveralCalls]):
    """Several locks and slots at once."""

    acquire = awaited(SeveralCalls.acquire)
    release = awaited(SeveralCalls.release)


class Agents(Noun[AgentCalls]):
    """Agents, which are their sessions."""

    join = awaited(AgentCalls.join)
    leave = awaited(AgentCalls.leave)
    beat = heartbeat = awaited(AgentCalls.beat)
    status = awaited(AgentCalls.status)
    log = awaited(AgentCalls.log)
    log_file = awaited(AgentCalls.log_file)
    log_files = awaited(AgentCalls.log_files)
    logged = awaited(AgentCalls.logged)
    pause = awaited(AgentCalls.pause)
    resume = awaited(AgentCalls.resume)
    ack = awaited(AgentCalls.ack)
    list = awaited(AgentCalls.list)
    show = awaited(AgentCalls.show)

    def handler(self, level: int | str = 0) -> logging.Handler:
        """A handler for ``logging`` that uploads what is logged to the log of this agent.

        It gathers lines for a second and never waits, whatever the store does; what had to be
        dropped meanwhile is counted, and said in the log.  What is left when the client is closed
        is uploaded then.
        """
        return self.calls.handler(level)


class Held(InHand):
    """A lock, slots, or several things in our hands."""

    def check(self) -> Awaitable[Proof]:
        """Ask the store whether we still hold; raises Lost if not.

        The proof can be carried by another commit (``given=[await held.check()]``), which then
        happens only while this grant lives.
        """
        return drive_async(self._holding.check(), self._holding.context.store)

    def release(self) -> Awaitable[Outcome]:
        """Give it back before the block ends."""
        return drive_async(self._holding.release(), self._holding.context.store)

    def end(self) -> Awaitable[bool]:
        """The end of the block: give it back; whether it had been lost."""
        return drive_async(self._holding.end(), self._holding.context.store)


class Block:
    """``async with fleet.lock(...)``: holds it inside, gives it back at the end."""

    def __init__(self, fleet: Fleet, aim: Aim, terms: Terms) -> None:
        self._fleet = fleet
        self._aim = aim
        self._terms = terms
        self._held: Held | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False

    async def __aenter__(self) -> Held:
        context = self._fleet.calls.context
        self._task = asyncio.current_task()
        holding = await drive_async(
            take(context, self._aim, self._cancel, self._terms), context.store
        )
        self._held = Held(holding)
        self._fleet.keep()
        return self._held

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        held, self._held = self._held, None
        if held is None or self._task is None:
            return
        ours = self._cancelled and self._task.uncancel() == 0
        lost = await held.end()
        if (ours and kind is asyncio.CancelledError) or (lost and kind is None):
            raise held.over() from None

    def _cancel(self) -> None:
        if self._held is not None and self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()


class Fleet(Noun[FleetCalls]):
    """A client of one store: what ``connect`` returns."""

    def __init__(self, context: Context) -> None:
        super().__init__(FleetCalls(context))
        self.locks = Locks(LockCalls(context))
        self.semaphores = Semaphores(SemaphoreCalls(context))
        self.several = Several(SeveralCalls(context))
        self.agents = Agents(AgentCalls(context))
        self._closed = False
        self._nudge = asyncio.Event()
        context.queues.on_owed = context.housekeeping.on_due = self._nudge.set
        context.queues.ring = self._ring
        self._loop = asyncio.get_running_loop()
        context.on_due = context.housekeeping.on_late = self._wake
        callers.debtors.add(context.queues)
        self._tasks: list[asyncio.Task[None]] = []

    maintain = awaited(FleetCalls.maintain)
    health = awaited(FleetCalls.health)
    check = awaited(FleetCalls.check)
    why = awaited(FleetCalls.why)
    counters = awaited(FleetCalls.counters)

    async def observe(
        self, *, nouns: Iterable[str] | None = None, after: int | None = None
    ) -> Observer:
        """Every event of the record, from now on or ``after`` a revision: iterate, or ``take``.

        ``nouns`` asks for those of some alone: ``message``, ``query``, ``task``.  An event called
        ``missed`` says that history up to its revision is gone.
        """
        from interlock.aio_record import Observer

        observing = self.calls.observing(nouns)
        await drive_async(observing.open(after), self.store)
        return Observer(observing, self.calls.context)

    @cached_property
    def record(self) -> Record:
        """What happened; whoever never asks does not pay for it."""
        from interlock.aio_record import Record
        from interlock.nouns.record.calls import RecordCalls

        return Record(RecordCalls(self.calls.context))

    @cached_property
    def tasks(self) -> Tasks:
        """Tasks, likewise."""
        from interlock.aio_tasks import Tasks
        from interlock.nouns.tasks.calls import TaskCalls

        return Tasks(TaskCalls(self.calls.context), self)

    @cached_property
    def messages(self) -> Messages:
        """Messages between agents, likewise."""
        from interlock.aio_messages import Messages
        from interlock.nouns.messages.calls import MessageCalls

        return Messages(MessageCalls(self.calls.context), self)

    @property
    def session(self) -> str:
        """The id of our session."""
        return self.calls.context.identity.actor.session

    @property
    def closed(self) -> bool:
        """Whether we left."""
        return self._closed

    @property
    def store(self) -> Store:
        """The store that we are connected to."""
        return self.calls.context.store

    @property
    def trace(self) -> str:
        """The trace id that the record keeps beside what we do here."""
        return TRACE.get() or self.calls.context.trace

    @property
    def trouble(self) -> str:
        """Why the store does not answer at the moment, and since when; empty while it does."""
        return self.calls.context.store.outage

    @property
    def pulse(self) -> Pulse:
        """What we say of ourselves as we go on: ``fleet.pulse.be("busy", doing="task/t1")``."""
        return self.calls.context.pulse

    def lock(
        self,
        name: str,
        *,
        wait: float | str = FOREVER,
        ttl: float | str | None = None,
        max_hold: float | str | None = None,
        metadata: object = None,
        given: Given = (),
    ) -> Block:
        """Hold a lock for an ``async with`` block; waits its turn, for ever unless told otherwise.

        A wait that could never end raises Deadlocked at once (``error.outcome.cycle`` says who is
        in the circle) and leaves nothing behind: give back what you hold, then try again.
        If we cannot renew in time, the block is cancelled before anybody else may start, and
        raises Lost.
        """
        terms = Terms(wait=wait, ttl=ttl, max_hold=max_hold, metadata=metadata, given=given)
        return Block(self, LockAim(name), terms)

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
    ) -> Block:
        """Hold slots of a semaphore for an ``async with`` block; otherwise as ``lock``."""
        terms = Terms(wait=wait, ttl=ttl, max_hold=max_hold, metadata=metadata, given=given)
        return Block(self, SlotsAim(name, weight, capacity), terms)

    def together(
        self,
        *things: str,
        wait: float | str = FOREVER,
        ttl: float | str | None = None,
        max_hold: float | str | None = None,
        metadata: object = None,
        given: Given = (),
    ) -> Block:
        """Hold several locks and slots for an ``async with`` block: all of them, or none.

        A thing is ``lock/merge``, ``sem/builds`` or ``sem/builds=2``; otherwise as ``lock``.
        """
        terms = Terms(wait=wait, ttl=ttl, max_hold=max_hold, metadata=metadata, given=given)
        return Block(self, SeveralAim(things), terms)

    async def close(self) -> None:
        """Leave, giving back whatever lives by our session, and let go of the store."""
        if self._closed:
            return
        self._closed = True
        self._nudge.set()
        try:
            if self._tasks and not self.trouble:  # what is half done would be done again
                await asyncio.wait(self._tasks[:1], timeout=self.store.capabilities.allow(1.0))
            self._cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            with suppress(InterlockError):
                await self._end()
        finally:  # a cancellation, too, lets go of the store
            self._cancel()
            await self.calls.context.store.close_async()

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _end(self) -> None:
        context = self.calls.context
        await drive_async(context.keeper.finish(), context.store)
        context.left = True
        if context.began:
            if not self.trouble:  # else it lapses by itself: whoever ends need not wait
                await self.agents.leave()
        else:  # a session that goes on without us: nobody else would pay
            await drive_async(context.queues.pay(), context.store)
        if not self._tasks and context.housekeeping.due:  # a short life
            await drive_async(context.housekeeping.run(Actor()), context.store)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def keep(self) -> None:
        """Renew our leases from a task, and watch over them from another."""
        self._nudge.set()
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._beat()), asyncio.create_task(self._watch())]

    def _wake(self) -> None:
        """There is something to do, whichever thread says so."""
        if not self._closed:
            self._loop.call_soon_threadsafe(self._keep_on)

    def _ring(self, *_: object) -> None:
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._nudge.set)

    def _keep_on(self) -> None:
        if not self._closed:
            self.keep()

    async def _beat(self) -> None:
        keeper = self.calls.context.keeper
        pause = 0.0
        while not self._closed:
            with suppress(TimeoutError):  # not wait_for: that of 3.11 may swallow a cancellation
                async with asyncio.timeout(max(keeper.wait(), pause)):
                    await self._nudge.wait()
            self._nudge.clear()
            pause = 0.0
            if keeper.wait() <= 0 and not self._closed:
                try:
                    await drive_async(keeper.run_due(), self.calls.context.store)
                except Exception:  # noqa: BLE001 - whatever it was, the next beat must come
                    pause = 0.1

    async def _watch(self) -> None:
        keeper = self.calls.context.keeper
        while True:
            await asyncio.sleep(min(keeper.time_left(), LOOK))
            keeper.expire()


async def connect(
    url: str | os.PathLike[str] | None = None,
    agent: str | None = None,
    *,
    session: str | None = None,
    ttl: float = TTL,
    trace: str = "",
    join: bool = True,
    grant_ttl: float | None = None,
    caller: str = "",
    no_retry: bool = False,
    clock: Clock | None = None,
    store: Store | None = None,
) -> Fleet:
    """Connect to a store; with an agent's name, begin a session under it.

    Without a URL the store is found as the command line finds it: INTERLOCK_STORE, else the
    nearest ``.interlock`` folder.  A URL that is given creates the store if need be.
    Without ``agent`` and ``session`` the environment names them: INTERLOCK_SESSION is spoken for
    and kept alive until ``close``, which does not end it; else a session begins under
    INTERLOCK_AGENT.  ``agent=NAME`` always begins a session of its own.
    With ``grant_ttl`` a grant lives by that rather than by our session, and so outlives it.
    ``caller`` is who waits when we do, if that is more than one task or thread of ours.
    What waits goes on through an outage of the store; with ``no_retry`` it ends with the error.
    ``trace`` stands in the record beside what we do; without one INTERLOCK_TRACE, else a fresh id.
    """
    store = await find_or_open_store_async(url, store)
    try:
        name, resumed = agent_and_session(agent, session)
        context = make_context(
            store,
            name,
            trace=trace,
            grant_ttl=grant_ttl,
            caller=caller,
            clock=clock,
            no_retry=no_retry,
        )
        context.runner.via = "python-async"
        term, inherited = ttl if join else None, resumed != session
        await drive_async(context.begin(resumed, term, inherited=inherited), store)
    except BaseException:
        await store.close_async()
        raise
    fleet = Fleet(context)
    if context.session_lease is not None:
        fleet.keep()
    return fleet
