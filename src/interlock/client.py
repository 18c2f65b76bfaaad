"""The blocking client.

    with interlock.connect(agent="ada") as fleet:
        with fleet.lock("merge") as held:
            deploy(fencing_token=held.token)

A call that may be refused returns its outcome (``Acquired | Busy | ...``); a ``with`` block cannot
return one, so it raises.
"""

from __future__ import annotations

import atexit
import os
import threading
from _queue import Empty, SimpleQueue  # the module queue imports more than the client needs
from _weakref import ref  # the module weakref makes classes that no command needs
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, Self

from interlock import registry
from interlock.client_context import SESSION_TTL, Context
from interlock.client_setup import (
    FleetProperties,
    agent_and_session,
    find_or_open_store,
    make_context,
    wants_looks,
)
from interlock.clock import Clock
from interlock.core.validate import FOREVER
from interlock.descriptors import by_name, is_refused, named
from interlock.errors import InterlockError
from interlock.nouns.fleet.calls import FleetCalls
from interlock.nouns.grants.handover import HANDOVER, Handover
from interlock.runtime import callers
from interlock.runtime.calls import Blocking, Calls, driven
from interlock.runtime.given import Given
from interlock.runtime.keeper import LOOK
from interlock.steps import Op, drive
from interlock.store import Store
from interlock.thread_calls import in_call

if TYPE_CHECKING:
    from interlock.client_blocks import Block, Stream
    from interlock.client_messages import Messages
    from interlock.client_requests import Requests
    from interlock.client_tasks import Tasks
    from interlock.core.signing import Signer
    from interlock.nouns.guards.poller import OutsidePoller
    from interlock.runtime.calls import StreamSource
    from interlock.runtime.noun import Noun
    from interlock.runtime.operation import Request


_BEAT = "interlock-beat"
"""The thread that renews the leases."""


def catch_up(context: Context) -> None:
    """Do what this thread has put off, before it does anything else."""
    act = context.put_off.get(threading.get_ident())
    if act is not None and not in_call():
        act()


def blocking(function: Callable[..., Op[Any]]) -> Callable[..., Any]:
    """A call as a method that returns its outcome."""

    def method(self: Calls[Blocking], /, *args: object, **kwargs: object) -> object:
        context = self.context
        if context.put_off:
            catch_up(context)
        try:
            return drive(function(self, *args, **kwargs), context.store)
        except OSError as error:  # of the import of a module that the call needs
            raise named(error) from error.__cause__

    return update_wrapper(method, function)


def granting(function: Callable[..., Op[Any]]) -> Callable[..., Any]:
    """A call that may return a grant, as a method: if it raises, nothing stays granted."""

    def method(self: Calls[Blocking], /, *args: object, **kwargs: object) -> object:
        context = self.context
        if context.put_off:
            catch_up(context)
        grants = context.grants
        handover = Handover(grants)
        drop = grants.abandoned.append
        try:
            HANDOVER.set(handover)
            return drive(function(self, *args, **kwargs), context.store)
        except BaseException as error:
            drop(handover)  # first of all: it runs no Python that could be interrupted again
            if grants.collect_abandoned() and grants.pending:
                grants.on_pending()
            if is_refused(error):
                raise named(error) from error
            raise

    return update_wrapper(method, function)


def streaming(function: Callable[..., StreamSource[Any, Any]]) -> Callable[..., Stream[Any, Any]]:
    """A call that returns a source, as a method that returns a stream."""

    def method(self: Calls[Blocking], /, *args: object, **kwargs: object) -> Stream[Any, Any]:
        if self.context.put_off:
            catch_up(self.context)
        try:
            from interlock.client_blocks import Stream

            return Stream(function(self, *args, **kwargs), self.context)
        except OSError as error:
            raise named(error) from error.__cause__

    return update_wrapper(method, function)


def opening(function: Callable[..., Op[StreamSource[Any, Any]]]) -> Callable[..., Stream[Any, Any]]:
    """A call that reads and then returns a source, as a method that returns a stream."""

    def method(self: Calls[Blocking], /, *args: object, **kwargs: object) -> Stream[Any, Any]:
        if self.context.put_off:
            catch_up(self.context)
        try:
            from interlock.client_blocks import Stream

            source = drive(function(self, *args, **kwargs), self.context.store)
            return Stream(source, self.context)
        except OSError as error:
            raise named(error) from error.__cause__

    return update_wrapper(method, function)


METHODS: dict[str, Callable[..., Any]] = {
    "call": blocking,
    "grants": granting,
    "stream": streaming,
    "opened": opening,
}
offered = partial(driven, methods=METHODS)
_classes: dict[type, type[Calls[Blocking]]] = {}


@offered
class Fleet(FleetProperties[Blocking]):
    """A client of one store, as ``connect`` returns it."""

    if TYPE_CHECKING:
        messages: Messages
        requests: Requests
        tasks: Tasks

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        context.client = self
        self._stopped = threading.Event()
        self._bell = SimpleQueue[None]()
        context.grants.wake_keeper = self._bell.put
        context.grants.on_pending = self._wake
        context.housekeeping.on_due = self.nudge
        context.on_due = context.housekeeping.on_late = self._wake
        self._waking = threading.RLock()  # a signal handler may wake the client, too
        self._closing = threading.RLock()
        self._to_close = False
        """Whether the background thread is to close this client."""
        self._threads: dict[str, threading.Thread] = {}
        self._poller: OutsidePoller | None = None
        callers.add_grant_service(context.grants)
        _open.add(ref(self, _open.discard))

    def _calls(self, noun: Noun) -> Calls[Blocking]:
        kind: type[Calls[Blocking]] = registry.load(noun.blocking or noun.calls)
        if kind not in _classes:
            _classes[kind] = offered(kind)
        return _classes[kind](self.context)

    def act(self, request: Request, *, remote: bool = False) -> Any:  # noqa: ANN401
        """Carry out any declared operation, and return its outcome.

        ``remote`` says that the request comes from another host: ``NotAllowed`` if it would use
        files or programs of this one.
        """
        operation = registry.operation_of(request)
        return METHODS["grants" if operation.grants else "call"](operation.carry_out)(
            FleetCalls(self.context), request, remote=remote
        )

    @property
    def closed(self) -> bool:
        """Whether the client was closed."""
        return self._stopped.is_set()

    @by_name
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
        interrupt: bool = False,
    ) -> Block:
        """Hold a lock for a ``with`` block; waits in the queue, without limit by default.

        A wait that could never end raises Deadlocked at once (``error.outcome.cycle`` names the
        agents in the cycle) and leaves nothing behind: release what you hold, then retry.
        With ``guard``, the name of a guard of the store or several, it also waits for those to
        pass; one that asks to fail raises Unavailable.
        If the lock cannot be renewed in time, ``held.lost`` becomes true and the end of the block
        raises Lost; with ``interrupt`` the exception is raised inside the block, as soon as it runs
        Python code (not inside a call that sleeps or waits in the system).
        """
        from interlock.client_blocks import Block
        from interlock.nouns.grants.lock import LockTarget
        from interlock.nouns.grants.request import GrantTerms

        terms = GrantTerms(
            wait=wait, ttl=ttl, max_hold=max_hold, metadata=metadata, given=given, guard=guard
        )
        return Block(self, LockTarget(name), terms, interrupt=interrupt)

    @by_name
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
        interrupt: bool = False,
    ) -> Block:
        """Hold slots of a semaphore for a ``with`` block; otherwise as ``lock``."""
        from interlock.client_blocks import Block
        from interlock.nouns.grants.request import GrantTerms
        from interlock.nouns.grants.semaphore import SlotsTarget

        terms = GrantTerms(
            wait=wait, ttl=ttl, max_hold=max_hold, metadata=metadata, given=given, guard=guard
        )
        return Block(self, SlotsTarget(name, weight, capacity), terms, interrupt=interrupt)

    @by_name
    def together(
        self,
        *things: str,
        wait: float | str = FOREVER,
        ttl: float | str | None = None,
        max_hold: float | str | None = None,
        metadata: object = None,
        given: Given = (),
        guard: str | Sequence[str] = (),
        interrupt: bool = False,
    ) -> Block:
        """Hold several locks and slots for a ``with`` block: all of them, or none.

        A thing is ``lock/merge``, ``sem/builds`` or ``sem/builds=2``; otherwise as ``lock``.
        """
        from interlock.client_blocks import Block
        from interlock.nouns.grants.request import GrantTerms
        from interlock.nouns.grants.several import target_of

        terms = GrantTerms(
            wait=wait, ttl=ttl, max_hold=max_hold, metadata=metadata, given=given, guard=guard
        )
        return Block(self, target_of(things), terms, interrupt=interrupt)

    def close(self) -> None:
        """End the session, which releases all its grants, and close the store if we opened it.

        A signal handler, or a finaliser, that runs inside of another call of its thread leaves it
        to the background thread, which does it when that call has returned.
        """
        if in_call():
            self._to_close = True
            self._wake()
            return
        with self._closing:  # a second thread waits for the first
            if not self._stopped.is_set():
                self._close()

    def _close(self) -> None:
        for end_all in tuple(self.context.loops):  # also those of other threads
            end_all()
        self._stopped.set()
        if self._poller is not None:
            self._poller.stop()
        self.nudge()
        try:
            with suppress(InterlockError):
                drive(self._end(kept=_BEAT in self._threads), self.store)
            for thread in tuple(self._threads.values()):
                if thread.ident is not None and thread is not threading.current_thread():
                    thread.join(timeout=self.store.capabilities.allow(1.0))
        finally:  # an interrupt must close the stores, too
            self.context.close_store()
            if "bus" in self.context.__dict__:
                self.context.bus.close()
            _open.discard(ref(self))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def keep(self, *, watch: bool = False, nudge: bool = True) -> None:
        """Renew the leases from a background thread; with ``watch`` another one checks them."""
        if nudge:
            self.nudge()
        self._start(_BEAT, self._beat)
        if watch:
            self._start("interlock-watch", self._watch)

    def keep_looking(self) -> None:
        """Look at the outside from a background thread, for gates that wait for it."""
        from interlock.nouns.guards.poller import OutsidePoller

        if self._poller is None:
            self._poller = OutsidePoller(self.context)
            self._start("interlock-looks", self._look)

    def keep_doing(self, name: str, work: Callable[[Callable[[], bool]], Op[None]]) -> None:
        """Do this in a background thread of that name until the client is closed."""
        self._start(name, lambda: drive(work(self._stopped.is_set), self.context.store))

    def _look(self) -> None:
        if self._poller is not None:
            drive(self._poller.run(patient=True), self.context.store)

    def nudge(self) -> None:
        """Wake the keeper, which does all due work; takes no lock."""
        self._bell.put(None)

    def _start(self, name: str, loop: Callable[[], None]) -> None:
        thread = self._threads.get(name)
        if thread is None:
            from interlock.threads import background, going_on

            work = going_on(loop, name, self._stopped)
            thread = self._threads.setdefault(name, background(work, name))
        if thread.ident is None:  # also if an interrupt prevented its start
            with self._waking, suppress(RuntimeError):  # it was started while we waited
                thread.start()

    def _wake(self) -> None:
        """Wake the keeper from any thread."""
        with self._waking:
            if not self._stopped.is_set():
                self.keep()

    def _beat(self) -> None:
        keeper = self.context.keeper
        while not self._stopped.is_set():
            with suppress(Empty):
                self._bell.get(timeout=max(keeper.wait(), 0.0))
                while True:  # one pass answers all calls so far
                    self._bell.get_nowait()
            if self._to_close:
                self.close()
                return
            if not self._stopped.is_set() and keeper.wait() <= 0:
                drive(keeper.run_due(), self.context.store)
                keeper.expire()

    def _watch(self) -> None:
        keeper = self.context.keeper
        while not self._stopped.wait(min(keeper.time_left(), LOOK)):
            keeper.expire()


_open: set[ref[Fleet]] = set()
"""Each reference removes itself."""


@atexit.register
def _leave() -> None:
    """Close every client at exit, so that other agents need not wait for its locks to expire."""
    # A list of references, since another thread may connect during an iteration.
    for reference in list(_open):
        if (fleet := reference()) is not None:
            fleet.close()


@by_name
def connect(
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

    Without a URL the store is found as the command line finds it: INTERLOCK_STORE, else the
    nearest ``.interlock`` folder.  A URL that is given creates the store if need be.
    Without ``agent`` and ``session`` the environment names them: the client acts in the session
    INTERLOCK_SESSION and keeps it alive until ``close``, which does not end it; else a session
    begins under INTERLOCK_AGENT.  ``agent=NAME`` always begins a new session.
    With ``grant_ttl`` a grant has its own lifetime and so outlives the session.
    ``caller`` names the caller for deadlock detection, if several tasks or threads act as one.
    A wait continues through an outage of the store; with ``no_retry`` it ends with the error.
    With ``look`` a background thread looks at branches, files and commands, for things that wait
    for guards which this host allows; without the argument, ``look`` of ``[guard]`` in the settings
    says whether a client with a session does that.
    ``trace`` is the trace id of this client's entries in the record; without one it is
    INTERLOCK_TRACE, else a new id.
    ``key`` signs this client's entries in the record: the name of a key, or the path of its file;
    without one it is INTERLOCK_KEY, else they are not signed.
    An open ``store`` stays open after ``close``: its caller closes it.
    """
    name, resumed = agent_and_session(agent, session)
    return begun(
        find_or_open_store(url, store),
        name,
        session=resumed,
        inherited=resumed != session,
        ttl=ttl,
        trace=trace,
        key=key,
        join=join,
        grant_ttl=grant_ttl,
        caller=caller,
        no_retry=no_retry,
        look=look,
        shared=store is not None,
        clock=clock,
    )


def begun(
    store: Store,
    agent: str | None = None,
    *,
    session: str | None = None,
    inherited: bool = False,
    ttl: float = SESSION_TTL,
    join: bool = True,
    look: bool | None = False,
    shared: bool = False,
    **options: Any,  # noqa: ANN401 - those of ``make_context``
) -> Fleet:
    """A client of an open store under this name and session; it ignores the environment.

    A ``shared`` store belongs to the caller, and stays open after ``close``.
    """
    try:
        context = make_context(store, agent, **options)
        drive(context.begin(session, ttl if join else None, inherited=inherited), store)
        looks = wants_looks(context, look)
    except BaseException:
        if not shared:
            store.close()
        raise
    context.shares_store = shared
    fleet = Fleet(context)
    if context.session_lease is not None:
        fleet.keep()
    if looks:
        fleet.keep_looking()
    return fleet
