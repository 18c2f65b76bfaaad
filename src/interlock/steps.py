"""Steps and drivers: operations are written once, and driven blocking or async here.

An operation is a generator that yields steps and returns its outcome.  ``drive`` runs it for a
caller that may block, ``drive_async`` for an event loop; nothing else differs.  A step is performed
on the object of the operation: a store for a service, a connection for an engine across a network.
``On`` takes a whole operation to another store, as one step: a swarm has its home and a bus.
An exception (also a cancellation) is thrown into the operation at the step where it occurred, so
that the operation can clean up with further steps.

``CALL`` is the time of the call that is being driven: all its requests share one limit while the
store does not answer, the settling of an unknown outcome included.
"""

from __future__ import annotations

import time
from _contextvars import ContextVar  # the module contextvars only copies its names
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from msgspec import Struct

from interlock.descriptors import is_refused, named

if TYPE_CHECKING:
    import asyncio
    from typing import Protocol

    from interlock.store import (
        Answer,
        Change,
        Committed,
        Maintenance,
        Put,
        Ref,
        Resync,
        Scope,
        Snapshot,
        Store,
        StoreMark,
        TransactingStore,
        Txn,
        Watch,
        Work,
    )

else:
    Protocol = object  # to make a class of a protocol takes a tenth of a millisecond

T = TypeVar("T")


class Step(Protocol):
    """One step of an operation."""

    def perform(self, on: Any) -> Any:  # noqa: ANN401 - each step knows its own answer
        """Perform it, blocking."""

    def perform_async(self, on: Any) -> Awaitable[Any]:  # noqa: ANN401
        """Perform it in an event loop."""


Op: TypeAlias = Generator[Step, Any, T]


UNDER_WAY = 4.0
"""Seconds beyond its limit for which a wait waits for a request that is under way then."""


NEVER = float("inf")  # math has it, too, and would be one more module for a short command


class CallTime(Struct, gc=False):
    """The time of one call.

    began    when it began
    until    when its wait ends, if it waits
    ends     when it gives up, while a store does not answer
    over     whether it has ended: a task or a thread that it started may still see this
    """

    began: float
    until: float = NEVER
    ends: float = NEVER
    over: bool = False

    def restart(self) -> None:
        """A store answered, or was given up: an operation that goes on has its full time again."""
        self.began = time.monotonic()
        self.ends = NEVER

    def gives_up(self, since: float, patience: float) -> float:
        """When it gives up on a store that does not answer since then: no repetition after it."""
        self.ends = min(self.ends, max(self.began, since) + patience)
        # An outage that begins at the end of a wait may be a short one.
        return min(self.ends, self.until + UNDER_WAY, max(self.until, since + UNDER_WAY))

    def left(self) -> float:
        """Seconds until nothing is waited for any more, not even an answer that is under way."""
        return min(self.ends, self.until + UNDER_WAY) - time.monotonic()


CALL: ContextVar[CallTime | None] = ContextVar("interlock_call", default=None)


def restart_call() -> None:
    """The call that is being driven has its full time again, if there is one with less."""
    call = CALL.get()
    if call is not None and call.ends < NEVER:
        call.restart()


@contextmanager
def wait_limit(seconds: float) -> Iterator[None]:
    """The call that is being driven is a wait of so long."""
    call = CALL.get()
    if call is None:
        yield
        return
    before, call.until = call.until, min(call.until, time.monotonic() + seconds)
    try:
        yield
    finally:
        call.until = before


class Pause:
    """Wait for a moment, so that other clients get through."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def perform(self, _on: object) -> None:
        """Sleep."""
        time.sleep(self.seconds)

    async def perform_async(self, _on: object) -> None:
        """Sleep."""
        import asyncio

        await asyncio.sleep(self.seconds)


def drive(op: Op[T], on: object) -> T:
    """Carry out an operation for a caller that may block.

    An exception between two steps is thrown into the operation, too.
    """
    answer: Any = None
    struck: BaseException | None = None
    token, call = None, CALL.get()
    if call is None or call.over:
        token = CALL.set(call := CallTime(time.monotonic()))
    try:
        while True:
            try:
                while True:
                    step = op.send(answer) if struck is None else op.throw(struck)
                    answer, struck = None, None
                    try:
                        answer = step.perform(on)
                    except BaseException as error:  # noqa: BLE001 - the operation decides
                        struck = named(error)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]  # an Op[T] returns T
            except BaseException as error:
                if getattr(op, "gi_frame", None) is None:  # it is over: the error is its own
                    if is_refused(error):
                        raise named(error) from error
                    raise
                struck = error
    finally:
        if token is not None:
            call.over = True
            CALL.reset(token)


async def drive_async(op: Op[T], on: object) -> T:
    """Carry out an operation in an event loop; a cancellation does not cancel its clean-up."""
    cancelled = False
    token, call = None, CALL.get()
    if call is None or call.over:
        token = CALL.set(call := CallTime(time.monotonic()))
    try:
        step = next(op)
        while True:
            try:
                awaitable = step.perform_async(on)
                answer = await (_undisturbed(awaitable) if cancelled else awaitable)
            except BaseException as error:  # noqa: BLE001 - the operation decides
                cancelled = cancelled or not isinstance(error, Exception)
                step = op.throw(named(error))
            else:
                step = op.send(answer)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # an Op[T] returns T
    finally:
        if token is not None:
            call.over = True
            with suppress(ValueError):  # the coroutine was closed from elsewhere
                CALL.reset(token)


async def drive_apart(op: Op[T], on: object) -> T:
    """Carry out an operation in a task of its own, which outlives the call that starts it."""
    CALL.set(None)
    return await drive_async(op, on)


async def wait_for_future(until: asyncio.Future[None], timeout: float | None) -> None:
    """Sleep until this future is finished, or the time is up: ``asyncio.wait`` for one future.

    ``asyncio.wait`` would take two more iterations of the loop, and callers need the speed.
    """
    if timeout is None:
        await until
        return
    timer = until.get_loop().call_later(timeout, finish_future, until)
    try:
        await until
    finally:
        timer.cancel()


def finish_future(future: asyncio.Future[None]) -> None:
    """Finish a future, unless it is done."""
    if not future.done():
        future.set_result(None)


async def _undisturbed(awaitable: Awaitable[T]) -> T:
    """Wait to the end, even if the task is cancelled a second time: the first is raised later."""
    import asyncio

    task = asyncio.ensure_future(awaitable)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    return task.result()


class Read:
    """Read these refs at one revision; with ``times`` also how long liveness keys live.

    A read that need not be ``fresh`` is for people, or is repeated soon.  Values of more than
    ``longest`` bytes are left out.
    """

    __slots__ = ("fresh", "longest", "refs", "times")

    def __init__(
        self, *refs: Ref, times: bool = False, fresh: bool = True, longest: int | None = None
    ) -> None:
        self.refs = refs
        self.times = times
        self.fresh = fresh
        self.longest = longest

    def perform(self, store: Store) -> Snapshot:
        """Answer the refs."""
        return store.read(*self.refs, times=self.times, fresh=self.fresh, longest=self.longest)

    def perform_async(self, store: Store) -> Awaitable[Snapshot]:
        """As ``perform``."""
        return store.read_async(
            *self.refs, times=self.times, fresh=self.fresh, longest=self.longest
        )


class Commit:
    """Commit this transaction, if its checks hold."""

    __slots__ = ("txn",)

    def __init__(self, txn: Txn) -> None:
        self.txn = txn

    def perform(self, store: Store) -> Answer:
        """Committed or Conflict."""
        return store.commit(self.txn)

    def perform_async(self, store: Store) -> Awaitable[Answer]:
        """As ``perform``."""
        return store.commit_async(self.txn)


class Renew:
    """Renew liveness keys that are alive; the answer is which ones were."""

    __slots__ = ("puts",)

    def __init__(self, puts: tuple[Put, ...]) -> None:
        self.puts = puts

    def perform(self, store: Store) -> frozenset[str]:
        """Renew them."""
        return store.renew(self.puts)

    def perform_async(self, store: Store) -> Awaitable[frozenset[str]]:
        """Renew them in an event loop."""
        return store.renew_async(self.puts)


class Transact(Struct, frozen=True, eq=False):
    """Read, decide and commit inside one transaction of a local engine."""

    work: Work

    def perform(self, store: TransactingStore) -> Committed | None:
        """The commit, if there was one."""
        return store.transact(self.work)

    def perform_async(self, store: TransactingStore) -> Awaitable[Committed | None]:
        """As ``perform``, grouped with other transactions of the same event loop."""
        return store.transact_async(self.work)


class PrepareLiveness:
    """Say that the next commit is to put new liveness keys with these ttls.

    An engine that needs a request for each of them has a method ``prepare``: these are under way
    while the caller does its reads.  Elsewhere nothing happens.
    """

    __slots__ = ("ttls",)

    def __init__(self, *ttls: float) -> None:
        self.ttls = ttls

    def perform(self, store: Store) -> None:
        """Prepare it, without a wait."""
        from interlock.store import can_prepare

        if can_prepare(store):
            store.prepare(self.ttls)

    async def perform_async(self, store: Store) -> None:
        """As ``perform``."""
        self.perform(store)


class OpenWatch:
    """Open a watch; the operation that yields this closes it."""

    __slots__ = ("after", "scope")

    def __init__(self, scope: Scope, after: int) -> None:
        self.scope = scope
        self.after = after

    def perform(self, store: Store) -> Watch:
        """The feed."""
        return store.watch(self.scope, self.after)

    async def perform_async(self, store: Store) -> Watch:
        """The feed; nothing is asked of a server yet."""
        return store.watch(self.scope, self.after)


class NextChanges:
    """Wait for changes on a watch, up to a timeout."""

    __slots__ = ("timeout", "watch")

    def __init__(self, watch: Watch, timeout: float | None) -> None:
        self.watch = watch
        self.timeout = timeout

    def perform(self, _store: Store) -> list[Change | Resync]:
        """The changes; none after the timeout."""
        return self.watch.take(self.timeout)

    def perform_async(self, _store: Store) -> Awaitable[list[Change | Resync]]:
        """As ``perform``."""
        return self.watch.take_async(self.timeout)


class StoreCall:
    """Call a method of the store that is rarely used: maintenance, or information."""

    __slots__ = ("args", "name")

    def __init__(
        self, name: Literal["sweep", "info", "examine", "trim", "extent", "wall"], *args: object
    ) -> None:
        self.name = name
        self.args = args

    def perform(self, store: Maintenance) -> object:
        """Its answer."""
        return getattr(store, self.name)(*self.args)

    async def perform_async(self, store: Maintenance) -> object:
        """As ``perform``, in a thread, since it may take long."""
        import asyncio

        return await asyncio.to_thread(getattr(store, self.name), *self.args)


class StandingMark:
    """Read why the store accepts no commits: its mark; None without one."""

    __slots__ = ()

    def perform(self, store: Maintenance) -> StoreMark | None:
        """The mark; a store that cannot be moved has none."""
        from interlock.store import can_be_moved

        return store.mark() if can_be_moved(store) else None

    async def perform_async(self, store: Maintenance) -> StoreMark | None:
        """As ``perform``, in a thread."""
        import asyncio

        return await asyncio.to_thread(self.perform, store)


class InThread:
    """Work beside the store that would block an event loop: long computing, a file."""

    __slots__ = ("work",)

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work

    def perform(self, _store: Store) -> Any:  # noqa: ANN401 - as the work answers
        """Its answer."""
        return self.work()

    async def perform_async(self, _store: Store) -> Any:  # noqa: ANN401
        """As ``perform``, in a thread."""
        import asyncio

        return await asyncio.to_thread(self.work)


class On:
    """A whole operation on another store, as one step; both drivers carry it out.

    An exception, also an interrupt or a cancellation, first reaches the inner operation, which
    cleans up on its own store; then the outer one.
    """

    __slots__ = ("op", "store")

    def __init__(self, store: Store, op: Op[Any]) -> None:
        self.store = store
        self.op = op

    def perform(self, _store: object) -> Any:  # noqa: ANN401 - as the operation answers
        """Carry it out, blocking."""
        return drive(self.op, self.store)

    def perform_async(self, _store: object) -> Awaitable[Any]:
        """Carry it out in an event loop."""
        return drive_async(self.op, self.store)
