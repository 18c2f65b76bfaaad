"""The circuit breaker of a peer: three timeouts in a row stop new requests for a time.

    closed ──third timeout in a row──> open ──time is up──> half open ──the probe times out──> open
       ^                                │                       │                       (for longer)
       └──────────an answer, also a late one, from any state────┘

Open, requests are refused at once with the time to retry, so that callers do not wait for a swarm
that does not answer.  Half open, exactly one request of all processes goes through: the caller
takes the probe's lease, a liveness key in the home store, in the commit that sends the request.
The lease is a fact here (``probing``).  If the process with the probe dies, the lease expires and
the next request is the probe.

A timeout counts, since no process of the swarm may be there.  A refusal does not: the swarm is
there and does not want this request.  An answer with the status ``error`` closes the breaker like
every other answer: the swarm works.

Requests that were in flight when the breaker opened time out one after the other.  These neither
open it again nor extend the time: only the probe does.

Each failed probe doubles the time, from ``FIRST`` to ``LONGEST`` seconds, plus up to a quarter at
random, so that swarms which lost a peer together do not return together.  The time is that of the
clients' wall clocks.  If they disagree, a probe comes early, and the lease still bounds the probes;
an end that is further away than any breaker stays open was written before a clock was set back.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

TIMEOUTS = 3
FIRST, LONGEST = 60.0, 300.0
JITTER = 0.25
"""The time is longer by up to this part of it, at random."""
PROBE_LEASE = 60.0
"""Seconds for which one request is the probe, at least the time that it waits for its answer."""

BreakerState: TypeAlias = Literal["closed", "open", "half_open"]


class Breaker(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A breaker as it is stored; the default value is closed.

    ``timeouts`` in a row while closed; ``opened`` is how often in a row it opened without an answer
    in between; it is open until the time ``until``.
    """

    timeouts: int = 0
    opened: int = 0
    until: float = 0.0


CLOSED = Breaker()


class BreakerPass(Struct, frozen=True, kw_only=True):
    """The request may be sent; a ``probe`` must take the probe's lease in the same commit."""

    probe: bool


class BreakerOpen(Struct, frozen=True, kw_only=True):
    """The request is refused; ``retry_in`` is in seconds, ``opened`` says how often in a row."""

    retry_in: float
    opened: int


def state(breaker: Breaker, now: float) -> BreakerState:
    """Its state now."""
    if not breaker.opened:
        return "closed"
    return "open" if _left(breaker, now) > 0 else "half_open"


def check(breaker: Breaker, now: float, *, probing: bool) -> BreakerPass | BreakerOpen:
    """Whether a request may be sent; ``probing`` is whether the probe's lease exists."""
    match state(breaker, now):
        case "closed":
            return BreakerPass(probe=False)
        case "open":
            return BreakerOpen(retry_in=round(_left(breaker, now), 3), opened=breaker.opened)
        case "half_open":
            if probing:
                return BreakerOpen(retry_in=PROBE_LEASE, opened=breaker.opened)
            return BreakerPass(probe=True)


def after_timeout(breaker: Breaker, now: float, jitter: float, *, probe: bool = False) -> Breaker:
    """A request timed out; ``jitter`` is a random number from [0, 1)."""
    if not breaker.opened:
        timeouts = breaker.timeouts + 1
        if timeouts < TIMEOUTS:
            return replace(breaker, timeouts=timeouts)
        return _open(1, now, jitter)
    if probe and state(breaker, now) == "half_open":
        return _open(breaker.opened + 1, now, jitter)
    return breaker


def after_answer(breaker: Breaker) -> Breaker:
    """An answer came, in time or late, with any status."""
    del breaker
    return CLOSED


def _open(times: int, now: float, jitter: float) -> Breaker:
    base = min(FIRST * 2.0 ** min(times - 1, 16), LONGEST)
    return Breaker(opened=times, until=now + base * (1 + JITTER * jitter))


def _left(breaker: Breaker, now: float) -> float:
    """Seconds for which it stays open; 0 for an end that only a wrong clock can have written."""
    left = breaker.until - now
    return left if 0 < left <= LONGEST * (1 + JITTER) else 0.0
