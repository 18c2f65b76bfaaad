"""Leases: what a liveness key hangs on, and what lets signals vanish by themselves.

Each liveness key has a lease of its own, made right before the commit that puts the key.  If that
commit did not happen, the lease is revoked; if that is unknown, it expires by itself.  The lease
of a key can be read from etcd, so any process can renew or end it.

We choose the number of a lease.  So one whose grant was not answered can be asked for again
under the same number, or revoked, and is never left without an owner who knows it.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from interlock.steps import Op
from interlock.stores.etcd import rpc_pb2 as rpc
from interlock.stores.etcd.channel import (
    GRANT,
    KEEP_ALIVE,
    REVOKE,
    TIME_TO_LIVE,
    RequestBatch,
)
from interlock.stores.etcd.errors import LeaseExists, NoLease
from interlock.stores.etcd.transport import EtcdTransport, SentCall
from interlock.stores.network import REPLY, SendRequest

if TYPE_CHECKING:
    from interlock.stores.network import NetworkStore

SIGNAL_TTL = 60
"""Seconds that a signal stays; long enough for every watch that is open."""
_FRESH, _USABLE = 30.0, 45.0
_SIGNALS = 500
_AT_ONCE = 64
_PREPARED = 0.5
"""Seconds for which a lease that was prepared may be used: its own time has begun."""
_random = random.SystemRandom()


class Leases:
    """The leases that one store makes, renews and ends."""

    def __init__(self, store: NetworkStore, transport: EtcdTransport) -> None:
        self._store = store
        self._transport = transport
        self._least = 0
        self._signal: tuple[int, float] = (0, float("-inf"))
        self._signals = 0
        self._prepared: dict[int, tuple[int, float]] = {}
        """Leases that were asked for in advance: the number and the moment, by their seconds."""
        self._coming: dict[int, Any] = {}
        """Requests for such leases that are not answered yet."""

    def seconds(self, ttl: float) -> int:
        """What etcd grants for a ttl: whole seconds, and never less than it takes to elect."""
        return max(math.ceil(ttl), self._least)

    def prepare(self, ttls: Iterable[float]) -> None:
        """Ask for leases that the next commit is to need, without waiting for the answers."""
        for seconds in {math.ceil(ttl) for ttl in ttls}:
            lease = _number()
            request = rpc.LeaseGrantRequest(id=lease, ttl=seconds)
            for call in self._transport.send_unawaited([(GRANT, request)]):
                self._coming[lease] = call
                call.add_done_callback(lambda _, lease=lease: self._coming.pop(lease, None))
            unused, _ = self._prepared.pop(seconds, (0, 0.0))
            self._prepared[seconds] = (lease, time.monotonic())
            self.revoke((unused,))

    def grant(self, ttls: Iterable[float]) -> Op[list[int]]:
        """A lease for each of these.

        A request for one that was prepared is waited for: a commit might overtake it.  It may have
        failed: the commit finds no lease then, and is made again with another one.
        """
        wanted = [math.ceil(ttl) for ttl in ttls]
        leases = [self._take_prepared(seconds) for seconds in wanted]
        new = [
            (_number(), seconds) for seconds, lease in zip(wanted, leases, strict=True) if not lease
        ]
        try:
            for lease in leases:
                if (call := self._coming.get(lease)) is not None:
                    yield SendRequest(SentCall(call))
            answers = (yield from self._granted(new)) if new else []
        except BaseException:
            self.revoke([*leases, *[lease for lease, _ in new]])  # some of them may exist
            raise
        for (_, seconds), granted in zip(new, answers, strict=True):
            if granted > seconds:
                self._least = granted
        made = iter(new)
        return [lease or next(made)[0] for lease in leases]

    def _take_prepared(self, seconds: int) -> int:
        """The number of a lease that was asked for a moment ago; 0 if there is none."""
        lease, asked = self._prepared.pop(seconds, (0, 0.0))
        if lease and time.monotonic() - asked > _PREPARED:  # much of its time may be over
            self.revoke((lease,))
            return 0
        return lease

    def signal(self, count: int) -> Op[int]:
        """The lease that signals hang on at present; a new one now and then."""
        lease, since = self._signal
        age = time.monotonic() - since
        if age < _FRESH and self._signals < _SIGNALS:
            self._signals += count
            return lease
        if age < _USABLE:  # others go on with the old one while we get the next
            self._signal = (lease, time.monotonic() - _FRESH + 1)
        self._signals = count
        (fresh,) = yield from self.grant((SIGNAL_TTL,))
        self._signal = (fresh, time.monotonic())
        return fresh

    def forget_signal(self) -> None:
        """The lease of signals is gone: another client revoked it."""
        self._signal = (0, float("-inf"))

    def revoke(self, leases: Iterable[int]) -> None:
        """End these; sent without waiting, since they expire in any case."""
        for lease in filter(None, leases):
            if (call := self._coming.pop(lease, None)) is not None:  # not before it is there
                call.add_done_callback(lambda _, lease=lease: self.revoke((lease,)))
            else:
                self._transport.send_unawaited([(REVOKE, rpc.LeaseRevokeRequest(id=lease))])

    def end(self, leases: Iterable[int]) -> Op[None]:
        """End these, and wait for it: a client that keeps them alive must learn that."""
        for lease in leases:
            with suppress(NoLease):
                yield from self._store.request_with_retries(
                    (REVOKE, rpc.LeaseRevokeRequest(id=lease))
                )

    def keep_alive(self, leases: Iterable[int], within: float = REPLY) -> Op[list[int]]:
        """Start these again; the seconds that each has now, 0 if it is gone."""
        requests = [(KEEP_ALIVE, rpc.LeaseKeepAliveRequest(id=lease)) for lease in leases]
        answers = yield from self._store.request_with_retries(RequestBatch(requests, within))
        return [answer.ttl for answer in answers]

    def times(self, leases: Mapping[str, int]) -> Op[dict[str, float | None]]:
        """How long the keys of these leases live at least; None if they are gone by now.

        etcd says it in whole seconds, so 0 in the last one.
        """
        pairs = list(leases.items())
        found: dict[str, float | None] = {}
        for start in range(0, len(pairs), _AT_ONCE):
            some = pairs[start : start + _AT_ONCE]
            requests = [(TIME_TO_LIVE, rpc.LeaseTimeToLiveRequest(id=lease)) for _, lease in some]
            answers = yield from self._store.request_with_retries(RequestBatch(requests))
            for (key, _), answer in zip(some, answers, strict=True):
                found[key] = None if answer.ttl < 0 else float(answer.ttl)
        return found

    def _granted(self, pairs: list[tuple[int, int]]) -> Op[list[int]]:
        requests = [
            (GRANT, rpc.LeaseGrantRequest(id=lease, ttl=seconds)) for lease, seconds in pairs
        ]
        if len(requests) == 1:
            return [(yield from self._one(requests[0]))]
        try:
            answers = yield from self._store.request_with_retries(RequestBatch(requests))
        except LeaseExists:  # one of them was asked for a second time: find out which
            answered: list[int] = []
            for request in requests:
                answered.append((yield from self._one(request)))  # noqa: PERF401 - it yields
            return answered
        return [answer.ttl for answer in answers]

    def _one(self, request: tuple[str, rpc.LeaseGrantRequest]) -> Op[int]:
        try:
            answer = yield from self._store.request_with_retries(request)
        except LeaseExists:
            return request[1].ttl
        return answer.ttl  # type: ignore[no-any-return]


def _number() -> int:
    return _random.randrange(1, 1 << 63)
