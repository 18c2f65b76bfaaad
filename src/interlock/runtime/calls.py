"""The calls of a noun: written once, offered by both clients.

A noun writes each call as a method that returns an operation (``Op``), and marks it:

    class LockCalls(Calls[D]):
        @call
        def release(self, name: str, *, token: int | None = None) -> Op[ReleaseOutcome]: ...

``driven`` makes the class of a client from that: a blocking client returns the outcome, an async
client returns a coroutine of it, and without a client the method returns the operation itself.
Type checkers see the three signatures through ``Calls[Blocking]``, ``Calls[Awaiting]`` and
``Calls[Steps]``.

The marks: ``call`` for a plain call; ``grants`` for a call that may return a grant, which is
released if the caller is interrupted; ``stream`` for a call that returns a source of values, and
``opened`` for a source that reads before its first value; ``plain`` for a method that both clients
offer unchanged.

A call never calls another marked call of the same object: inside a client that one is driven.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial, update_wrapper
from itertools import chain, repeat
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Self,
    TypeVar,
    cast,
)

from msgspec.structs import replace

from interlock.core import validate
from interlock.runtime.given import Given, fenced, proofs
from interlock.steps import Op

if TYPE_CHECKING:
    from typing import Protocol, overload

    from typing_extensions import TypeVar as TypeVarWithDefault

    from interlock.aio import Stream as AsyncStream
    from interlock.client_blocks import Stream
    from interlock.client_context import Context
    from interlock.core.decision import Proof
    from interlock.core.outcomes import GivenFenced
    from interlock.runtime.identity import Identity

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class Steps:
    """No client: a call returns its operation."""


class Blocking:
    """The blocking client."""


class Awaiting:
    """The asyncio client."""


if TYPE_CHECKING:
    D = TypeVarWithDefault("D", default=Steps)
else:
    D = TypeVar("D")


class Calls(Generic[D]):
    """The calls of one noun, on behalf of one client."""

    given: tuple[Proof, ...] = ()
    """Grants that every call of this object relies on: those of one request."""

    def __init__(self, context: Context) -> None:
        self.context = context

    @property
    def steps(self) -> Calls[Steps]:
        """These calls without a client: each returns its operation, for the caller to drive."""
        view = object.__new__(getattr(self, "_undriven", type(self)))
        view.__dict__ = self.__dict__
        return cast("Calls[Steps]", view)

    def _identity(self, given: Given) -> Identity:
        """The caller's identity, with the grants that the call relies on."""
        identity = self.context.me()
        if not given and not self.given:
            return identity
        relied = (*self.given, *proofs(given))
        return replace(identity, actor=replace(identity.actor, given=relied))

    def _fenced(self, identity: Identity, op: Op[T]) -> Op[T | GivenFenced]:
        return fenced(op, self.context.runner, identity.actor) if identity.actor.given else op


def patient(waiting: str) -> Callable[[Callable[P, Op[T]]], Callable[P, Op[T]]]:
    """Decorate a call with a ``wait``: the wait goes on through outages until its time is up."""

    def decorated(call: Callable[P, Op[T]]) -> Callable[P, Op[T]]:
        def method(*args: P.args, **kwargs: P.kwargs) -> Op[T]:
            if not kwargs.get("wait"):
                return call(*args, **kwargs)
            wait = cast("float | str", kwargs["wait"])
            context = cast("Calls[Any]", args[0]).context
            attempt: Callable[..., Op[T]] = partial(call, *args, **kwargs)
            return patiently(context, waiting, lambda left: attempt(wait=left), wait)

        return update_wrapper(method, call)

    return decorated


def patiently(
    context: Context, waiting: str, attempt: Callable[[float | str], Op[T]], wait: float | str
) -> Op[T]:
    """An attempt, which gets the time to wait; a wait goes on through outages until it is up."""
    op = attempt(wait)  # this validates the arguments at once
    if not wait or not (patience := validate.wait_time(wait)):
        return op
    attempts = chain((op,), repeat(None))
    outage = context.outage(waiting)
    return outage.through(lambda left: next(attempts) or attempt(left), patience)


if TYPE_CHECKING:
    T_co = TypeVar("T_co", covariant=True)
    R_co = TypeVar("R_co", covariant=True)

    class StreamSource(Protocol[T_co, R_co]):
        """What a stream reads from."""

        @property
        def about(self) -> str:
            """The name of the stream in log lines about a store that does not answer."""

        def take(self, timeout: float | None) -> Op[R_co]:
            """Return the next values as soon as there are some; none when the time is up."""

        def each(self, taken: Any) -> Iterable[T_co]:  # noqa: ANN401 - what ``take`` returned
            """The values one by one."""

        def close(self) -> None:
            """Stop watching."""

    class Call(Generic[P, T]):
        """A call, as each client offers it."""

        @overload
        def __get__(self, calls: Calls[Blocking], owner: object = ...) -> Callable[P, T]: ...
        @overload
        def __get__(
            self, calls: Calls[Awaiting], owner: object = ...
        ) -> Callable[P, Coroutine[Any, Any, T]]: ...
        @overload
        def __get__(self, calls: Calls[Steps], owner: object = ...) -> Callable[P, Op[T]]: ...
        @overload
        def __get__(self, calls: None, owner: object = ...) -> Self: ...
        def __get__(self, calls: object, owner: object = None) -> Any: ...

    class StreamCall(Generic[P, T, R]):
        """A call that returns a stream."""

        @overload
        def __get__(
            self, calls: Calls[Blocking], owner: object = ...
        ) -> Callable[P, Stream[T, R]]: ...
        @overload
        def __get__(
            self, calls: Calls[Awaiting], owner: object = ...
        ) -> Callable[P, AsyncStream[T, R]]: ...
        @overload
        def __get__(
            self, calls: Calls[Steps], owner: object = ...
        ) -> Callable[P, StreamSource[T, R]]: ...
        @overload
        def __get__(self, calls: None, owner: object = ...) -> Self: ...
        def __get__(self, calls: object, owner: object = None) -> Any: ...

    class OpenedCall(Generic[P, T, R]):
        """A call that returns a stream after it has read."""

        @overload
        def __get__(
            self, calls: Calls[Blocking], owner: object = ...
        ) -> Callable[P, Stream[T, R]]: ...
        @overload
        def __get__(
            self, calls: Calls[Awaiting], owner: object = ...
        ) -> Callable[P, Coroutine[Any, Any, AsyncStream[T, R]]]: ...
        @overload
        def __get__(
            self, calls: Calls[Steps], owner: object = ...
        ) -> Callable[P, Op[StreamSource[T, R]]]: ...
        @overload
        def __get__(self, calls: None, owner: object = ...) -> Self: ...
        def __get__(self, calls: object, owner: object = None) -> Any: ...

    def call(function: Callable[Concatenate[Any, P], Op[T]]) -> Call[P, T]:
        """Mark a call."""

    def grants(function: Callable[Concatenate[Any, P], Op[T]]) -> Call[P, T]:
        """Mark a call that may return a grant."""

    def stream(function: Callable[Concatenate[Any, P], StreamSource[T, R]]) -> StreamCall[P, T, R]:
        """Mark a call that returns a source."""

    def opened(
        function: Callable[Concatenate[Any, P], Op[StreamSource[T, R]]],
    ) -> OpenedCall[P, T, R]:
        """Mark a call that returns a source after it has read."""

else:

    def _mark(mark: str) -> Callable[[Any], Any]:
        def marked(function: Any) -> Any:  # noqa: ANN401
            function.mark = mark
            return function

        return marked

    call, grants, stream, opened = map(_mark, ("call", "grants", "stream", "opened"))


def plain(function: F) -> F:
    """Mark a method that both clients offer unchanged."""
    function.mark = "plain"  # type: ignore[attr-defined]
    return function


C = TypeVar("C", bound=Calls[Any])


def driven(kind: type[C], methods: Mapping[str, Callable[..., Any]]) -> type[C]:
    """The class of a client: every marked call becomes the method that its mark asks for."""
    members = {}
    for base in reversed(kind.__mro__):
        for name, value in vars(base).items():
            if (mark := getattr(value, "mark", "")) in methods:
                members[name] = methods[mark](value)
            elif name in members:
                del members[name]
    own = {"__doc__": kind.__doc__, "__module__": kind.__module__, "_undriven": kind}
    return type(kind.__name__, (kind,), {**own, **members})
