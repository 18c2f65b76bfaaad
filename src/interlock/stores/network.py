"""The base of engines across a network: requests, retries, and when a retry would be wrong.

An engine's operations are generators over its *transport* (see steps.py), so that the blocking
and the async side are one text.  A transport sends one request and returns one answer; a request
that gets no answer is one of two things:

    Unsent       it cannot have had an effect: a retry is always right
    Unanswered   it may have had one, or may have it yet: a retry is right for reads only

Nothing below this line retries by itself.  Reads and unsent requests are retried with a growing,
jittered pause until the patience is over; then the store is away.  A commit that was sent and not
answered is an unknown outcome, which the runner settles.

The patience is that of a call, not of each of its requests: it begins with the first request that
got no answer, or with the call if the engine was away before, and the last request is not waited
for beyond it.

``outage`` describes an engine that does not answer.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from interlock.descriptors import are_free, out_of_descriptors
from interlock.errors import OutcomeUnknown, StoreAway, StoreClosed, StoreMoved
from interlock.steps import CALL, Op, Pause, drive, drive_async, restart_call
from interlock.store import (
    Answer,
    Capabilities,
    Committed,
    Put,
    Ref,
    Snapshot,
    Txn,
)
from interlock.stores.derived import alive, renewal

P = ParamSpec("P")
S = TypeVar("S", bound="NetworkStore")
T = TypeVar("T")

CONNECT = 3.0
"""Seconds for a connection to come about."""
REPLY = 4.0
"""Seconds for an answer: an engine that is silent for longer is taken for frozen."""
LARGEST_REPLY = 1 << 28
"""Bytes of an answer: no commit has more, and a page of items has far fewer."""
PATIENCE = 10.0
"""Seconds that a call goes on asking while the engine is away."""
LEAST_REPLY = 0.2
"""Seconds for an answer at the end of a call's time."""
OPENING = 2.0
"""Seconds for the first answer: a slip in a host or a port shows soon."""
FIRST_PAUSE = 0.01
LONGEST_PAUSE = 0.5

_log = logging.getLogger("interlock")
_forks = 0
"""How many forks led to this process since this module was imported.  (To ask for the id of the
process at each operation would be a system call.)"""


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - it describes the process
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class Unsent(Exception):
    """The request cannot have had an effect."""


class Unanswered(Exception):
    """The request left, and no answer came."""


class Transport(Protocol):
    """Carries requests to an engine, each once."""

    def call(self, request: Any, within: float = REPLY) -> Any:  # noqa: ANN401 - each engine knows its own
        """The answer; Unsent, Unanswered or a StoreTrouble otherwise."""

    def call_async(self, request: Any, within: float = REPLY) -> Awaitable[Any]:  # noqa: ANN401
        """Send from an event loop; a cancelled call is like an unanswered one."""

    def close(self) -> None:
        """Cut everything, from any thread; calls under way are Unanswered."""

    def close_async(self) -> Awaitable[None]:
        """Cut everything, and wait until nothing is left in this event loop."""


class SendRequest:
    """Carry one request over the transport."""

    __slots__ = ("request", "within")

    def __init__(self, request: object, within: float = REPLY) -> None:
        self.request = request
        self.within = within

    def perform(self, transport: Transport) -> Any:  # noqa: ANN401
        """Its answer."""
        return transport.call(self.request, self.within)

    def perform_async(self, transport: Transport) -> Awaitable[Any]:
        """Its answer, awaited."""
        return transport.call_async(self.request, self.within)


class NetworkStore:
    """An engine across a network.

    Subclasses write ``_open``, ``_read`` and ``_commit``, ``watch``, and the methods of maintenance
    as ``driven`` operations.  ``where`` names the engine in messages; it never holds a password.
    """

    capabilities: Capabilities
    movable = True
    made = True
    """Whether something was ever written there, as a new connection found it."""
    missing = False
    """Whether everything is in another store, as the answer to a commit said.  (A server that comes
    back with other data is known by its answers.)"""

    def __init__(self, transport: Transport, where: str, *, patience: float = PATIENCE) -> None:
        self.where = where
        self.transport = transport
        self.patience = patience
        self._forks = _forks
        self._closed = False
        self._away: tuple[float, str] | None = None
        self._moved = ""

    @property
    def inherited(self) -> bool:
        """Whether this process was forked from the one that opened the store."""
        return self._forks != _forks

    @property
    def outage(self) -> str:
        """Why the engine does not answer, and since when; empty while it does."""
        away = self._away
        if away is None:
            return self._moved
        return f"{self.where} does not answer for {time.monotonic() - away[0]:.0f} s ({away[1]})"

    def open(self) -> None:
        """Connect, and refuse an engine that cannot keep the promises."""
        drive(self._opening(), self.transport)

    async def open_async(self) -> None:
        """Connect in an event loop."""
        await drive_async(self._opening(), self.transport)

    def read(
        self,
        *refs: Ref,
        times: bool = False,
        fresh: bool = True,  # noqa: ARG002 - always
        longest: int | None = None,
    ) -> Snapshot:
        """All the refs at one revision."""
        self.check()
        return drive(self._read(refs, times=times, longest=longest), self.transport)

    def read_async(
        self,
        *refs: Ref,
        times: bool = False,
        fresh: bool = True,  # noqa: ARG002 - always
        longest: int | None = None,
    ) -> Awaitable[Snapshot]:
        """Read in an event loop."""
        self.check()
        return drive_async(self._read(refs, times=times, longest=longest), self.transport)

    def commit(self, txn: Txn) -> Answer:
        """Check and write, all or nothing, in one request."""
        self.check()
        return drive(self._commit(txn), self.transport)

    def commit_async(self, txn: Txn) -> Awaitable[Answer]:
        """Commit in an event loop."""
        self.check()
        return drive_async(self._commit(txn), self.transport)

    def renew(self, puts: tuple[Put, ...]) -> frozenset[str]:
        """Put liveness keys again that are alive; returns which ones were."""
        self.check()
        return drive(self._renew(puts), self.transport)

    def renew_async(self, puts: tuple[Put, ...]) -> Awaitable[frozenset[str]]:
        """Renew in an event loop."""
        self.check()
        return drive_async(self._renew(puts), self.transport)

    def close(self) -> None:
        """Close all connections; acknowledged commits stay."""
        if not self._closed and not self.inherited:
            self._closed = True
            self.transport.close()

    async def close_async(self) -> None:
        """Close, and wait until nothing is left in this event loop."""
        if not self._closed and not self.inherited:
            self._closed = True
            await self.transport.close_async()

    def check(self) -> None:
        """Raise if this store is closed, or belongs to the parent of a fork."""
        if self._closed:
            raise StoreClosed("this store was closed; connect again")
        if self._forks != _forks:
            raise StoreClosed("this store was opened before a fork; connect again in the child")

    def request_with_retries(self, request: object, once: str | None = None) -> Op[Any]:
        """The answer to a request, which is repeated until the patience is over.

        ``once`` is for a request that must not be repeated once it has left: the transaction whose
        outcome is unknown then.
        """
        sent = time.monotonic()
        delays: Iterator[float] | None = None
        telling: Unanswered | Unsent | None = None
        while True:
            within = self.reply_within()
            try:
                answer = yield SendRequest(request, within)
            except (Unanswered, Unsent) as error:
                trouble: Unanswered | Unsent = error
                if telling is None or within == REPLY:  # what had little time says little
                    telling = error
            else:
                if self._away is not None:
                    self.note_answer()
                restart_call()
                return answer
            if once is not None and isinstance(trouble, Unanswered):
                raise self.unknown_outcome(trouble, once, sent) from trouble
            self.check()  # closed in the meantime: that is why
            if not are_free(1):
                raise out_of_descriptors() from trouble
            self.note_outage(trouble, sent)
            delays = delays or pauses()
            delay = next(delays)
            if time.monotonic() + delay > self.gives_up(sent):
                restart_call()
                raise self.away_error(telling) from trouble
            yield Pause(delay)

    def reply_within(self) -> float:
        """How long the next request is waited for: not beyond the time of its call."""
        call = CALL.get()
        if self._away is None or call is None:
            return REPLY
        self.gives_up(time.monotonic())
        return max(LEAST_REPLY, min(REPLY, call.left()))

    def gives_up(self, sent: float) -> float:
        """When the call gives up whose request was sent at this moment: no repetition after it."""
        call = CALL.get()
        if call is None:
            return sent + self.patience
        return call.gives_up(sent if self._away is None else self._away[0], self.patience)

    def unknown_outcome(self, error: Unanswered, txn: str, sent: float) -> OutcomeUnknown:
        """The error of a commit that was sent at a moment and not answered."""
        self.check()  # closed in the meantime: that is why
        self.note_outage(error, sent)
        self.gives_up(sent)
        return OutcomeUnknown(f"{self.where} did not answer ({error})", txn)

    def note_outage(self, error: Exception, since: float | None = None) -> None:
        """Note that the engine did not answer; logged once, until it answers again."""
        if self._away is None:
            self._away = (time.monotonic() if since is None else since, str(error))
            _log.warning("%s does not answer (%s); trying again", self.where, error)

    def note_moved(self, error: StoreMoved) -> None:
        """Note that a commit was refused, since everything is in another store."""
        self.missing, self._moved = True, str(error)

    def note_answer(self) -> None:
        """Note that the engine answered."""
        if self._away is not None:
            seconds = time.monotonic() - self._away[0]
            self._away = None
            _log.warning("%s answers again after %.1f s", self.where, seconds)

    def away_error(self, error: Exception) -> StoreAway:
        """The error that says so."""
        return StoreAway(
            f"{self.where} does not answer ({error}); see that it runs and can be reached"
        )

    def _opening(self) -> Op[None]:
        patience, self.patience = self.patience, min(self.patience, OPENING)
        try:
            yield from self._open()
        finally:
            self.patience = patience

    def _open(self) -> Op[None]:
        raise NotImplementedError

    def _read(self, refs: tuple[Ref, ...], *, times: bool, longest: int | None) -> Op[Snapshot]:
        raise NotImplementedError

    def _commit(self, txn: Txn) -> Op[Answer]:
        raise NotImplementedError

    def _renew(self, puts: tuple[Put, ...]) -> Op[frozenset[str]]:
        """One quiet commit, and another one if some of them are gone."""
        ends, delays = time.monotonic() + self.patience, pauses()
        while puts:
            try:
                answer = yield from self._commit(renewal(puts))
            except OutcomeUnknown as error:
                if time.monotonic() > ends:
                    raise self.away_error(error) from error
                yield Pause(next(delays))  # to renew twice does no harm
                continue
            if isinstance(answer, Committed):
                break
            puts = alive(puts, answer)
        return frozenset([put.key for put in puts])


def driven(operation: Callable[Concatenate[S, P], Op[T]]) -> Callable[Concatenate[S, P], T]:
    """The blocking method that carries out an operation of an engine."""

    @wraps(operation)
    def method(store: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        store.check()
        return drive(operation(store, *args, **kwargs), store.transport)

    return method


def pauses() -> Iterator[float]:
    """Growing random pauses, so that a fleet does not reconnect all at once."""
    longest = FIRST_PAUSE
    while True:
        yield random.uniform(longest / 2, longest)  # noqa: S311 - spreading, not hiding
        longest = min(longest * 2, LONGEST_PAUSE)


def stamped(value: bytes, stamp: bytes) -> bytes:
    """A JSON object with its stamp as the last member, so that people can read it as it stands."""
    comma = b"" if value == b"{}" else b","
    return b'%b%b%b%b"}' % (value[:-1], comma, STAMP, stamp)


def unstamped(kept: bytes) -> tuple[bytes, bytes]:
    """The object as it was given, and its stamp; ValueError if it has none."""
    at = kept.rindex(STAMP)
    head = kept[:at].removesuffix(b",") if at > 1 else kept[:at]
    return head + b"}", kept[at + len(STAMP) : -2]


STAMP = b'"stamp":"'
"""How the last member begins."""
