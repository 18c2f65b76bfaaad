"""Interlock for programs that may block.

    with interlock.connect(agent="ada") as fleet:
        with fleet.lock("merge") as held:
            deploy(fencing_token=held.token)

Calls that may find somebody else in the way return what they found (``Acquired | Busy | ...``);
a ``with`` block cannot return, so it raises.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from _queue import Empty, SimpleQueue  # of queue, which imports more than we need
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, Self, TypeVar

from interlock.client_setup import agent_and_session, find_or_open_store, make_context
from interlock.clock import Clock
from interlock.core.decision import Outcome, Proof
from interlock.core.validate import FOREVER
from interlock.drivers import Op, drive
from interlock.errors import InterlockError, Lost
from interlock.nouns.agents.calls import AgentCalls
from interlock.nouns.agents.session import TTL
from interlock.nouns.grants.calls import LockCalls, SemaphoreCalls, SeveralCalls
from interlock.nouns.grants.holding import InHand, take
from interlock.nouns.grants.targets import Aim, LockAim, SeveralAim, SlotsAim, Terms
from interlock.runtime import callers
from interlock.runtime.context import Calls, Context, FleetCalls
from interlock.runtime.given import Given
from interlock.runtime.handover import TICKET, Exit, Ticket
from interlock.runtime.identity import TRACE, Actor
from interlock.runtime.keeper import LOOK
from interlock.store import Store
from interlock.threads import background

if TYPE_CHECKING:
    import logging

    from interlock.client_messages import Messages
    from interlock.client_record import Observer, Record
    from interlock.client_tasks import Tasks
    from interlock.nouns.agents.reports import Pulse

C_co = TypeVar("C_co", bound=Calls, covariant=True)
P = ParamSpec("P")
T = TypeVar("T")


class Noun(Generic[C_co]):
    """The calls of one noun, as methods."""

    def __init__(self, calls: C_co) -> None:
        self.calls = calls


def blocking(
    call: Callable[Concatenate[C_co, P], Op[T]],
) -> Callable[Concatenate[Noun[C_co], P], T]:
    """A call of the services as a method that returns its outcome."""

    def method(self: Noun[C_co], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return drive(call(self.calls, *args, **kwargs), self.calls.context.store)

    return update_wrapper(method, call)


def granting(
    call: Callable[Concatenate[C_co, P], Op[T]],
) -> Callable[Concatenate[Noun[C_co], P], T]:
    """The same for a call that may be granted something: if it raises, nothing was."""

    def method(self: Noun[C_co], /, *args: P.args, **kwargs: P.kwargs) -> T:
        context = self.calls.context
        ticket = Ticket(context.queues)
        drop = context.queues.dropped.append
        try:
            TICKET.set(ticket)
            return drive(call(self.calls, *args, **kwargs), context.store)
        except BaseException:
            drop(ticket)  # first of all: it runs no Python that could be struck again
            if context.queues.collect() and context.queues.owed:
                context.queues.on_owed()
            raise

    return update_wrapper(method, call)


class Locks(Noun[LockCalls]):
    """Locks, by name."""

    acquire = granting(LockCalls.acquire)
    release = blocking(LockCalls.release)
    heartbeat = beat = blocking(LockCalls.heartbeat)
    break_ = blocking(LockCalls.break_)
    list = blocking(LockCalls.list)
    show = blocking(LockCalls.show)


class Semaphores(Noun[SemaphoreCalls]):
    """Semaphores, by name."""

    acquire = granting(SemaphoreCalls.acquire)
    release = blocking(SemaphoreCalls.release)
    heartbeat = beat = blocking(SemaphoreCalls.heartbeat)
    break_ = blocking(SemaphoreCalls.break_)
    resize = blocking(SemaphoreCalls.resize)
    remove = blocking(SemaphoreCalls.remove)
    list = blocking(SemaphoreCalls.list)
    show = blocking(SemaphoreCalls.show)


class Several(Noun[SeveralCalls]):
    """Several locks and slots at once."""

    acquire = granting(SeveralCalls.acquire)
    release = blocking(SeveralCalls.release)


class Agents(Noun[AgentCalls]):
    """Agents, which are their sessions."""

    join = blocking(AgentCalls.join)
    leave = blocking(AgentCalls.leave)
    beat = heartbeat = blocking(AgentCalls.beat)
    status = blocking(AgentCalls.status)
    log = blocking(AgentCalls.log)
    log_file = blocking(AgentCalls.log_file)
    log_files = blocking(AgentCalls.log_files)
    logged = blocking(AgentCalls.logged)
    pause = blocking(AgentCalls.pause)
    resume = blocking(AgentCalls.resume)
    ack = blocking(AgentCalls.ack)
    list = blocking(AgentCalls.list)
    show = blocking(AgentCalls.show)

    def handler(self, level: int | str = 0) -> logging.Handler:
        """A handler for ``logging`` that uploads what is logged to the log of this agent.

        It gathers lines for a second and never waits, whatever the store does; what had to be
        dropped meanwhile is counted, and said in the log.  What is left when the client is closed
        is uploaded then.
        """
        return self.calls.handler(level)


class Held(InHand):
    """A lock, slots, or several things in our hands."""

    def check(self) -> Proof:
        """Ask the store whether we still hold; raises Lost if not.

        The proof can be carried by another commit (``given=[held.check()]``), which then happens
        only while this grant lives.
        """
        return self._drive(self._holding.check())

    def release(self) -> Outcome:
        """Give it back before the block ends."""
        outcome: Outcome = self._drive(self._holding.release())
        return outcome

    def end(self) -> bool:
        """The end of the block: give it back; whether it had been lost."""
        return self._drive(self._holding.end())

    def _drive(self, op: Op[T]) -> T:
        return drive(op, self._holding.context.store)


class Block:
    """``with fleet.lock(...)``: holds it inside, gives it back at the end."""

    def __init__(self, fleet: Fleet, aim: Aim, terms: Terms, *, interrupt: bool) -> None:
        self._fleet = fleet
        self._ticket: Ticket | None = None
        self._aim = aim
        self._interrupt = interrupt
        self._terms = terms
        self._held: Held | None = None
        self._thread = 0
        self._striking = threading.Lock()

    def entering(self, end: Callable[..., None]) -> None:
        """Take a fresh ticket, unless the block has begun."""
        if self._ticket is None or not self._ticket.tied:
            self._ticket = Ticket(self._fleet.calls.context.queues)
            self._ticket.tie(end)

    def __enter__(self) -> Held:
        context = self._fleet.calls.context
        ticket = self._ticket if self._ticket and self._ticket.tied else Ticket(context.queues)
        try:
            self._thread = threading.get_ident()
            on_lost = self._raise_in_thread if self._interrupt else None
            self._fleet.keep(watch=self._interrupt, nudge=False)  # an interrupt leaves it to that
            TICKET.set(ticket)
            holding = drive(take(context, self._aim, on_lost, self._terms), context.store)
            TICKET.set(None)
            self._held = held = Held(holding)
            if holding.leases and holding.leases[-1] is not context.session_lease:
                self._fleet.nudge()
            holding.insist()  # it may have been lost before the block could be told
        except BaseException:
            ticket.abandon()
            with self._striking:
                self._held = None
            raise
        return held

    def leave(self, kind: object, *_: object) -> None:
        """The end of the block: give it back."""
        with self._striking:
            held, self._held = self._held, None
        if held is None:
            return
        lost = held.end()
        if lost and (kind is None or kind is Lost):  # an interrupt could not say what was lost
            raise held.over() from None

    __exit__ = Exit[None]()

    def _raise_in_thread(self) -> None:
        import ctypes

        with self._striking:  # the block may not end between the question and the strike
            if self._held is not None:
                thread, error = ctypes.c_ulong(self._thread), ctypes.py_object(Lost)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, error)


class Fleet(Noun[FleetCalls]):
    """A client of one store: what ``connect`` returns."""

    def __init__(self, context: Context) -> None:
        super().__init__(FleetCalls(context))
        self.locks = Locks(LockCalls(context))
        self.semaphores = Semaphores(SemaphoreCalls(context))
        self.several = Several(SeveralCalls(context))
        self.agents = Agents(AgentCalls(context))
        self._stopped = threading.Event()
        self._bell = SimpleQueue[None]()
        context.queues.ring = self._bell.put
        context.queues.on_owed = self._wake
        context.housekeeping.on_due = self.nudge
        context.on_due = context.housekeeping.on_late = self._wake
        self._waking = threading.RLock()  # a handler of a signal may wake us, too
        self._threads: dict[str, threading.Thread] = {}
        callers.debtors.add(context.queues)
        _open.add(self)

    maintain = blocking(FleetCalls.maintain)
    health = blocking(FleetCalls.health)
    check = blocking(FleetCalls.check)
    why = blocking(FleetCalls.why)
    counters = blocking(FleetCalls.counters)

    def observe(self, *, nouns: Iterable[str] | None = None, after: int | None = None) -> Observer:
        """Every event of the record, from now on or ``after`` a revision: iterate, or ``take``.

        ``nouns`` asks for those of some alone: ``message``, ``query``, ``task``.  An event called
        ``missed`` says that history up to its revision is gone.
        """
        from interlock.client_record import Observer

        observing = self.calls.observing(nouns)
        drive(observing.open(after), self.store)
        return Observer(observing, self.calls.context)

    @cached_property
    def record(self) -> Record:
        """What happened; whoever never asks does not pay for it."""
        from interlock.client_record import Record
        from interlock.nouns.record.calls import RecordCalls

        return Record(RecordCalls(self.calls.context))

    @cached_property
    def tasks(self) -> Tasks:
        """Tasks, likewise."""
        from interlock.client_tasks import Tasks
        from interlock.nouns.tasks.calls import TaskCalls

        return Tasks(TaskCalls(self.calls.context), self)

    @cached_property
    def messages(self) -> Messages:
        """Messages between agents, likewise."""
        from interlock.client_messages import Messages
        from interlock.nouns.messages.calls import MessageCalls

        return Messages(MessageCalls(self.calls.context), self)

    @property
    def session(self) -> str:
        """The id of our session."""
        return self.calls.context.identity.actor.session

    @property
    def closed(self) -> bool:
        """Whether we left."""
        return self._stopped.is_set()

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
        interrupt: bool = False,
    ) -> Block:
        """Hold a lock for a ``with`` block; waits its turn, for ever unless told otherwise.

        A wait that could never end raises Deadlocked at once (``error.outcome.cycle`` says who is
        in the circle) and leaves nothing behind: give back what you hold, then try again.
        If we cannot renew in time, ``held.lost`` turns true and the end of the block raises Lost;
        with ``interrupt`` the exception strikes inside the block, as soon as it runs Python code
        (not inside of a call that sleeps or waits in the system).
        """
        terms = Terms(wait=wait, ttl=ttl, max_hold=max_hold, metadata=metadata, given=given)
        return Block(self, LockAim(name), terms, interrupt=interrupt)

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
        interrupt: bool = False,
    ) -> Block:
        """Hold slots of a semaphore for a ``with`` block; otherwise as ``lock``."""
        terms = Terms(wait=wait, ttl=ttl, max_hold=max_hold, metadata=metadata, given=given)
        return Block(self, SlotsAim(name, weight, capacity), terms, interrupt=interrupt)

    def together(
        self,
        *things: str,
        wait: float | str = FOREVER,
        ttl: float | str | None = None,
        max_hold: float | str | None = None,
        metadata: object = None,
        given: Given = (),
        interrupt: bool = False,
    ) -> Block:
        """Hold several locks and slots for a ``with`` block: all of them, or none.

        A thing is ``lock/merge``, ``sem/builds`` or ``sem/builds=2``; otherwise as ``lock``.
        """
        terms = Terms(wait=wait, ttl=ttl, max_hold=max_hold, metadata=metadata, given=given)
        return Block(self, SeveralAim(things), terms, interrupt=interrupt)

    def close(self) -> None:
        """Leave, giving back whatever lives by our session, and let go of the store."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self.nudge()
        _open.discard(self)
        try:
            with suppress(InterlockError):
                self._end()
            for thread in tuple(self._threads.values()):
                if thread.ident is not None:
                    thread.join(timeout=self.store.capabilities.allow(1.0))
        finally:  # an interrupt, too, lets go of the store
            self.calls.context.store.close()

    def _end(self) -> None:
        context = self.calls.context
        drive(context.keeper.finish(), context.store)
        context.left = True
        if context.began:
            if not self.trouble:  # else it lapses by itself: whoever ends need not wait
                self.agents.leave()
        else:  # a session that goes on without us: nobody else would pay
            drive(context.queues.pay(), context.store)
        if not self._threads and context.housekeeping.due:  # a short life
            drive(context.housekeeping.run(Actor()), context.store)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def keep(self, *, watch: bool = False, nudge: bool = True) -> None:
        """Renew our leases from a thread of their own, and watch over them if asked to."""
        if nudge:
            self.nudge()
        self._start("interlock-beat", self._beat)
        if watch:
            self._start("interlock-watch", self._watch)

    def nudge(self) -> None:
        """Have the keeper see what there is to do; takes no lock."""
        self._bell.put(None)

    def _start(self, name: str, loop: Callable[[], None]) -> None:
        thread = self._threads.get(name)
        if thread is None:
            thread = self._threads.setdefault(name, background(loop, name))
        if thread.ident is None:  # also if an interrupt kept it from being started
            with suppress(RuntimeError):  # another thread does that right now
                thread.start()

    def _wake(self) -> None:
        """There is something to do, whichever thread says so."""
        with self._waking:
            if not self._stopped.is_set():
                self.keep()

    def _beat(self) -> None:
        keeper = self.calls.context.keeper
        pause = 0.0
        while not self._stopped.is_set():
            with suppress(Empty):
                self._bell.get(timeout=max(keeper.wait(), pause))
                while True:  # all that called meanwhile
                    self._bell.get_nowait()
            pause = 0.0
            if not self._stopped.is_set() and keeper.wait() <= 0:
                try:
                    drive(keeper.run_due(), self.calls.context.store)
                except Exception:  # noqa: BLE001 - whatever it was, the next beat must come
                    pause = 0.1
                keeper.expire()

    def _watch(self) -> None:
        keeper = self.calls.context.keeper
        while not self._stopped.wait(min(keeper.time_left(), LOOK)):
            keeper.expire()


_open: weakref.WeakSet[Fleet] = weakref.WeakSet()


@atexit.register
def _leave() -> None:
    """A program that ends without closing still leaves, so that nobody waits for its locks."""
    for fleet in list(_open):
        fleet.close()


def connect(
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
    name, resumed = agent_and_session(agent, session)
    return begun(
        find_or_open_store(url, store),
        name,
        session=resumed,
        inherited=resumed != session,
        ttl=ttl,
        trace=trace,
        join=join,
        grant_ttl=grant_ttl,
        caller=caller,
        no_retry=no_retry,
        clock=clock,
    )


def begun(
    store: Store,
    agent: str | None = None,
    *,
    session: str | None = None,
    inherited: bool = False,
    ttl: float = TTL,
    trace: str = "",
    join: bool = True,
    grant_ttl: float | None = None,
    caller: str = "",
    no_retry: bool = False,
    clock: Clock | None = None,
) -> Fleet:
    """A client of an open store under this name and session, whatever the environment says."""
    try:
        context = make_context(
            store,
            agent,
            trace=trace,
            grant_ttl=grant_ttl,
            caller=caller,
            clock=clock,
            no_retry=no_retry,
        )
        drive(context.begin(session, ttl if join else None, inherited=inherited), store)
    except BaseException:
        store.close()
        raise
    fleet = Fleet(context)
    if context.session_lease is not None:
        fleet.keep()
    return fleet


__all__ = [
    "Agents",
    "Block",
    "Fleet",
    "Held",
    "Locks",
    "Semaphores",
    "Several",
    "connect",
]
