"""How many requests wait for each peer: envelopes on the bus, and those that it published.

A sender asks before each request, so the answer must cost nothing.  It stands in a liveness key of
the home (``live/queue/{swarm}``), which the decision reads together with the rest that it knows of
a peer; without it the queue is short.  A process counts after it posted something, outside of any
decision, and rarely:

    interval   the time in which senders at full speed could fill what is left of the queue, between
               ``SHORTEST`` and ``LONGEST`` seconds, and 20 times the time that the last count took
    shared     a count above ``QUEUE_NOTICE`` is put in the home, where other processes find it
    own        a process adds what it has posted since

So the depth is seconds old, and near a limit two seconds; other swarms may post in that time, for
which the distance between the two limits is made.

A client with the credentials of the bus can put rubbish into the folder of a receiver, and a sender
then sees a long queue.  It could delete all requests as well; the receiver deletes the rubbish when
it takes in.  What a peer publishes is signed, and concerns requests to that peer alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from interlock.core import codec, keys
from interlock.core.decision import Decision, Write
from interlock.errors import BusTrouble, StoreDamaged
from interlock.nouns.swarms.limits import (
    DEFAULT_LIMITS,
    QUEUE_NOTICE,
    PeerLimits,
    Posting,
    QueueFull,
    queue_check,
    queue_depth,
)
from interlock.nouns.swarms.swarm import decode_floor, decode_peer
from interlock.runtime.identity import Actor
from interlock.runtime.reads import MOST_PAGE, Pages, readable
from interlock.steps import Op, Read

if TYPE_CHECKING:
    from interlock.nouns.swarms.bus import Bus
    from interlock.nouns.swarms.registry_service import SwarmRegistry
    from interlock.nouns.swarms.swarm import OwnSwarm
    from interlock.runtime.attempt import DecideOp
    from interlock.runtime.runner import Runner
    from interlock.store import Item

SHORTEST, LONGEST = 2.0, 30.0
"""Seconds between two counts of one queue by one process."""
FULL_SPEED = 2000.0
"""Requests a second that senders together may post for one swarm."""
_PART_OF_TIME = 20.0
"""A process spends at most the twentieth part of its time with counting."""
_WHILE_COUNTING = 10.0
"""Seconds for which a count in progress keeps other processes from counting, too."""


class PeerQueue(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What waits for a peer, as it was counted; ``per_second`` is how many it finishes, about."""

    on_bus: int
    published: int
    per_second: float = 0.0

    @property
    def depth(self) -> int:
        """All of it."""
        return queue_depth(self.on_bus, self.published)


class QueueCount(Struct, kw_only=True):
    """The last count of this process, when the next one is due, and how many were posted since."""

    at: float
    due: float
    queue: PeerQueue
    posted: int = 0


_QUEUE = codec.Decoder(PeerQueue)


def decode_queue(item: Item | None) -> PeerQueue | None:
    """The item of a peer's queue; None if there is none, or its value is not known."""
    if item is None or not item.value:
        return None
    try:
        return _QUEUE.read(item)
    except StoreDamaged:
        return None  # it expires soon


class PeerQueues:
    """The queues of the peers of one home; its methods are generators for a driver."""

    def __init__(self, runner: Runner, bus: Bus, swarms: SwarmRegistry) -> None:
        self._runner = runner
        self._bus = bus
        self._swarms = swarms
        self._counts: dict[str, QueueCount] = {}

    def check(
        self, swarm: str, item: Item | None, posting: Posting, limits: PeerLimits
    ) -> QueueFull | None:
        """Why nothing more is posted for a peer; ``item`` is its key in the home."""
        found, own = decode_queue(item), self._counts.get(swarm)
        depth = 0 if found is None else found.depth
        per_second = 0.0 if found is None else found.per_second
        if own is not None and self._runner.clock.monotonic() < own.due + LONGEST:
            depth = max(depth, own.queue.depth + own.posted)
            per_second = max(per_second, own.queue.per_second)
        return queue_check(depth, posting, per_second, limits)

    def full(self, swarm: str) -> Op[QueueFull | None]:
        """Why an envelope that was promised is not posted now."""
        own, key = keys.peer(swarm), keys.peer_queue(swarm)
        items = (yield Read(own, key)).items
        return self.check(swarm, items[key], "promised", _limits(items[own]))

    def posted(self, own: OwnSwarm, swarm: str, number: int) -> Op[None]:
        """Requests were posted for a swarm: count its queue again, if that is due."""
        count = self._counts.get(swarm)
        if count is not None:
            count.posted += number
            if self._runner.clock.monotonic() < count.due:
                return
        trust, key = keys.peer(swarm), keys.peer_queue(swarm)
        items = (yield Read(trust, key)).items
        limits, shared = _limits(items[trust]), decode_queue(items[key])
        if shared is not None:  # another process has counted
            self._keep(swarm, shared, limits, 0.0)
            return
        began = self._runner.clock.monotonic()
        try:
            found = yield from self._count(own, swarm, limits)
        except BusTrouble:
            return
        took = self._runner.clock.monotonic() - began
        due = self._keep(swarm, found, limits, took)
        if found.depth > QUEUE_NOTICE:
            yield from self._share(swarm, found, 2 * (due - self._runner.clock.monotonic()))

    def _count(self, own: OwnSwarm, swarm: str, limits: PeerLimits) -> Op[PeerQueue]:
        """Count the envelopes of a swarm on the bus, and read what it published."""
        published = yield from self._published(own, swarm, fresh=False)
        before = self._counts.get(swarm)
        long = published > QUEUE_NOTICE or (before and before.queue.depth > QUEUE_NOTICE)
        on_bus, pages = 0, Pages(keys.bus_request(swarm), longest=0)
        while not pages.finished and on_bus + published < limits.queue_most:
            on_bus += len((yield from self._bus.on(own, lambda _: pages.read(MOST_PAGE))))
            if on_bus > QUEUE_NOTICE and not long:
                long = True
                yield from self._share(
                    swarm, PeerQueue(on_bus=on_bus, published=published), _WHILE_COUNTING
                )
        if long:
            published = yield from self._published(own, swarm, fresh=True)
        return PeerQueue(
            on_bus=on_bus, published=published, per_second=self._speed(swarm, on_bus + published)
        )

    def _published(self, own: OwnSwarm, swarm: str, *, fresh: bool) -> Op[int]:
        if fresh:
            yield from self._swarms.refresh(own, only=[swarm], force=True)
        key = keys.floor(swarm)
        item = (yield Read(key))[key]
        floor = None if item is None else readable(decode_floor, item)
        return 0 if floor is None or floor.entry is None else floor.entry.depth

    def _speed(self, swarm: str, depth: int) -> float:
        """How many requests the peer finished in a second since the last count, at least."""
        before = self._counts.get(swarm)
        if before is None:
            return 0.0
        passed = self._runner.clock.monotonic() - before.at
        finished = before.queue.depth + before.posted - depth
        return max(0.0, finished / passed) if passed > 0 else 0.0

    def _keep(self, swarm: str, found: PeerQueue, limits: PeerLimits, took: float) -> float:
        """Keep a count; when the next one is due."""
        now = self._runner.clock.monotonic()
        left = (limits.queue - found.depth) / FULL_SPEED
        pause = max(min(max(left, SHORTEST), LONGEST), _PART_OF_TIME * took)
        self._counts[swarm] = QueueCount(at=now, due=now + pause, queue=found)
        return now + pause

    def _share(self, swarm: str, found: PeerQueue, seconds: float) -> Op[None]:
        ttl = max(seconds, self._runner.capabilities.min_ttl)

        def deciding() -> DecideOp[None]:
            yield from ()
            put = Write(keys.peer_queue(swarm), found, ttl)
            return Decision(outcome=None, puts=(put,), quiet=True)

        yield from self._runner.change(deciding, Actor())


def _limits(item: Item | None) -> PeerLimits:
    peer = None if item is None else readable(decode_peer, item)
    return DEFAULT_LIMITS if peer is None else peer.limits
