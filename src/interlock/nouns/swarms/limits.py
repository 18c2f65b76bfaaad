"""Limits of requests between swarms, for each peer: how often, how many wait, how many are known.

**Rate.**  An agent makes at most ``rate`` requests to one swarm in a window; both swarms count the
times at which the requests were made (``core/rate.py``, the log).  The id of a message has that
time and is signed, and it stays the same when the message is sent again, which costs nothing.  A
time from before the longest deadline, or after the timestamp of the head, is refused: it would open
windows in which no agent ever lived.

A name costs a hostile swarm nothing, so a receiver also counts what arrives from a whole swarm: no
more than ``AGENTS_LIMIT`` agents may send, since no entry can list more.

**Queue.**  The depth of a peer's queue is the envelopes for it on the bus plus the requests that
its home store has not finished, which it publishes.  From ``queue`` on no new request is made.
Up to ``queue_most`` an envelope that a swarm already promised is still posted: a repeated request,
or one from the outbox; above that it waits in the outbox.  Results and receipts are posted
at any depth, since they make the queue shorter.  The depth is seconds old and senders do not
compete for a counter, so a burst may pass a limit; the distance between the two limits is for that.
A receiver takes in no more than ``queue_most`` unfinished requests of one peer.

**Marks against replay.**  A receiver remembers up to ``marks`` messages of a peer until their
deadlines.  At the bound it refuses new messages; a mark that made room for another one would let a
message in twice.  The marks are counted by the hour in which they end, so a count needs no list of
them, and nothing has to be subtracted when they are deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from interlock.core.rate import Rate
from interlock.nouns.swarms.envelope import SKEW
from interlock.nouns.swarms.head import AGENTS_LIMIT, LONGEST_DEADLINE, RequestHead, milliseconds

REQUEST_RATE = Rate(100, 3600.0)
QUEUE_LIMIT = 80_000
QUEUE_MOST = 100_000
LARGEST_QUEUE = 1_000_000
"""The largest limit that an operator can set."""
MARKS_LIMIT = 300_000
"""A hundred agents at their full rate for a day, the usual deadline, and a quarter more."""
QUEUE_NOTICE, QUEUE_ALERT = 1_000, 10_000
"""Depths that ``health`` reports: more than a quick swarm should have, and far too many."""
REPEATS = 4
"""How many later attempts are answered for each request that the rate allows."""
_SHORTEST, _UNKNOWN, _LONGEST = 1.0, 60.0, 300.0
"""Seconds to retry: the bounds, and the time if it is not known how quick the peer is."""
_HOUR = 3600.0
_PARTS = 12
"""Parts of a window in which arrivals are counted; the oldest part counts as a whole."""
_TIME = slice(4, 16)
"""The digits of the time in an id (``core/codec.py``)."""

Posting: TypeAlias = Literal["new", "promised", "answer"]
"""A new request; one that was made before; a result or a receipt."""


class PeerLimits(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits between our swarm and one peer, in both directions; 0 as a rate is no limit."""

    rate: int = REQUEST_RATE.limit
    window: float = REQUEST_RATE.window
    queue: int = QUEUE_LIMIT
    marks: int = MARKS_LIMIT

    @property
    def requests(self) -> Rate:
        """How often one agent makes requests."""
        return Rate(self.rate, self.window)

    @property
    def repeats(self) -> Rate:
        """How many later attempts of one agent are answered."""
        return Rate(REPEATS * self.rate, self.window)

    @property
    def queue_most(self) -> int:
        """The depth from which nothing but answers is posted, and nothing is taken in."""
        return self.queue + (QUEUE_MOST - QUEUE_LIMIT) * self.queue // QUEUE_LIMIT


DEFAULT_LIMITS = PeerLimits()


# The time of a request.


def id_time(message: str) -> int:
    """The time in the id of a message, in milliseconds."""
    return int(message[_TIME], 16)


def made_at(head: RequestHead) -> int | Literal["future", "backdated"]:
    """When a request was made, in milliseconds, by the signed id of its message; or what is wrong.

    ``future`` is after the head was signed, ``backdated`` before any deadline reaches.
    """
    made = id_time(head.message_id)
    if made > head.timestamp + milliseconds(SKEW):
        return "future"
    if made < head.deadline - milliseconds(LONGEST_DEADLINE + SKEW):
        return "backdated"
    return made


# Queues.


class QueueFull(Struct, frozen=True, kw_only=True):
    """The queue of a peer is too long; ``retry_in`` seconds from now it may have room."""

    depth: int
    limit: int
    retry_in: float


def queue_depth(on_bus: int, published: int) -> int:
    """The requests that wait for a peer, on the bus and in its home store."""
    return on_bus + published


def queue_check(
    depth: int,
    posting: Posting,
    per_second: float | None = None,
    limits: PeerLimits = DEFAULT_LIMITS,
) -> QueueFull | None:
    """Why an envelope is not posted; ``per_second`` is how many requests the peer finishes."""
    if posting == "answer":
        return None
    limit = limits.queue if posting == "new" else limits.queue_most
    if depth < limit:
        return None
    wait = _UNKNOWN if not per_second else (depth - limit + 1) / per_second
    retry_in = round(min(max(wait, _SHORTEST), _LONGEST), 3)
    return QueueFull(depth=depth, limit=limit, retry_in=retry_in)


def queue_level(depth: int) -> Literal["", "notice", "alert"]:
    """Whether a depth is worth a report."""
    if depth > QUEUE_ALERT:
        return "alert"
    return "notice" if depth > QUEUE_NOTICE else ""


# What a receiver counts of a whole swarm.


class PeerCounts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Requests that one swarm sent: marks by the hour of their end, arrivals by their time.

    ``marks`` has hours since 1970, ``arrived`` parts of the window since then.
    """

    marks: Mapping[int, int] = {}
    arrived: Mapping[int, int] = {}


NO_COUNTS = PeerCounts()


def marks_kept(counts: PeerCounts, now: float) -> int:
    """How many marks have not ended; one counts until the hour of its end is over."""
    return sum(count for hour, count in counts.marks.items() if hour * _HOUR > now)


def arrived_lately(counts: PeerCounts, limits: PeerLimits, now: float) -> int:
    """How many requests arrived within the last window."""
    last = _part(limits, now)
    return sum(n for part, n in counts.arrived.items() if last - _PARTS <= part <= last)


def swarm_limit(limits: PeerLimits) -> int:
    """How many requests a whole swarm makes within a window; 0 is no limit."""
    return limits.rate * AGENTS_LIMIT


def count_arrival(counts: PeerCounts, limits: PeerLimits, until: float, now: float) -> PeerCounts:
    """The counts with one more request, whose mark is kept until a moment; old ones are dropped."""
    hour, part = ceil(until / _HOUR), _part(limits, now)
    marks = {each: count for each, count in counts.marks.items() if each * _HOUR > now}
    arrived = {
        each: count for each, count in counts.arrived.items() if part - _PARTS <= each <= part
    }
    marks[hour] = marks.get(hour, 0) + 1
    arrived[part] = arrived.get(part, 0) + 1
    return replace(counts, marks=marks, arrived=arrived)


def _part(limits: PeerLimits, now: float) -> int:
    return int(now // (limits.window / _PARTS))
