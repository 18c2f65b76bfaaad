"""Limits of requests between swarms: how often an agent asks, and how many requests wait.

**Rate.**  An agent makes at most ``REQUEST_RATE`` requests to one swarm; both swarms count the
times at which the requests were made (``core/rate.py``, the log).  The id of a request has that
time and is signed, and it stays the same when the request is sent again, which costs nothing.

**Queue.**  The depth of a peer's queue is the envelopes for it on the bus plus the requests that
its home store has not finished, which it publishes.  Above ``QUEUE_LIMIT`` no new request is made.
Up to ``QUEUE_MOST`` an envelope that a swarm already promised is still posted: a repeated request,
or one from the outbox; above that it waits in the outbox.  Results and acknowledgements are posted
at any depth, since they make the queue shorter.  The depth is minutes old and senders do not
compete for a counter, so a burst may pass a limit; the distance between the two limits is for that.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from interlock.core.rate import Rate

REQUEST_RATE = Rate(100, 3600.0)
QUEUE_LIMIT = 80_000
QUEUE_MOST = 100_000
QUEUE_NOTICE, QUEUE_ALERT = 1_000, 10_000
"""Depths that ``health`` reports: more than a quick swarm should have, and far too many."""
_SHORTEST, _UNKNOWN, _LONGEST = 1.0, 60.0, 300.0
"""Seconds to retry: the bounds, and the time if it is not known how quick the peer is."""

Posting: TypeAlias = Literal["new", "promised", "answer"]
"""A new request; one that was made before; a result or an acknowledgement."""


class QueueFull(Struct, frozen=True, kw_only=True):
    """The queue of a peer is too long; ``retry_in`` seconds from now it may have room."""

    depth: int
    limit: int
    retry_in: float


def queue_depth(on_bus: int, published: int) -> int:
    """The requests that wait for a peer, on the bus and in its home store."""
    return on_bus + published


def queue_check(depth: int, posting: Posting, per_second: float | None = None) -> QueueFull | None:
    """Why an envelope is not posted; ``per_second`` is how many requests the peer finishes."""
    if posting == "answer":
        return None
    limit = QUEUE_LIMIT if posting == "new" else QUEUE_MOST
    if depth < limit:
        return None
    wait = _UNKNOWN if not per_second else (depth - limit + 1) / per_second
    return QueueFull(depth=depth, limit=limit, retry_in=min(max(wait, _SHORTEST), _LONGEST))


def queue_level(depth: int) -> Literal["", "notice", "alert"]:
    """Whether a depth is worth a report."""
    if depth > QUEUE_ALERT:
        return "alert"
    return "notice" if depth > QUEUE_NOTICE else ""
