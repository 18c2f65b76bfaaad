"""Rates: at most ``limit`` events in any window of time, as a true sliding window.

Two forms, for two situations; neither is a counter that restarts, which would let through twice the
limit at its edge.

**Slots**, for many events a second from many processes of one sender (messages).  A sender has
``limit`` slots, an item each, with the time of their last use; a slot is free one window later.
Two processes conflict only if they pick the same slot.  The times come from the sender's clocks,
and only the sender is limited by them.

**A log**, for few events an hour that two parties count (requests between swarms).  The sender
and the receiver keep one item each, with the times at which the requests were *made*, and both
apply ``admit`` to the same signed times.  So the receiver refuses no request of an honest sender,
although an outage of hours may deliver all of its requests within a second.  A sender that dates
its requests back gains only what it could have sent in that time.

The log is bounded by twice the limit.  ``floor`` is the newest time that was dropped: a request
that is less than a window newer than that cannot be counted any more and is refused.  The requests
of an honest sender may still overtake each other by ``limit`` places: any ``limit`` + 1 times of it
span a window, so the late one is more than a window newer than the floor.

Both forms treat a time of the future in the same way.  Less than a window ahead, it counts: another
machine of the sender has a fast clock.  Further ahead, it was written before a clock was set back,
and is ignored.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

_LEAST = 0.001
"""A refusal never asks to retry after no time."""


class Rate(Struct, frozen=True):
    """At most ``limit`` events in a window of seconds; no limit if it is 0."""

    limit: int = 100
    window: float = 1.0


# Slots.


def slot_is_free(used: float | None, rate: Rate, now: float) -> bool:
    """Whether a slot with this last use is free."""
    return used is None or abs(now - used) >= rate.window


def slot_retry_in(slots: Mapping[int, float | None], rate: Rate, now: float) -> float:
    """Seconds until the first slot is free, if all are in use."""
    used = [slots.get(number) or 0.0 for number in range(rate.limit)]
    return max(_LEAST, round(min(used) + rate.window - now, 3))


# A log.


class RateLog(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The times of the last events in milliseconds, in order, and the newest one that was dropped.

    A ``floor`` of 0 means that none was dropped.
    """

    times: tuple[int, ...] = ()
    floor: int = 0


EMPTY = RateLog()


def admit(log: RateLog, made: int, rate: Rate, now: int) -> RateLog | None:
    """The log with an event that was made at this time (ms); None if it exceeds the rate."""
    if not rate.limit:
        return log
    log = _believable(log, rate, now)
    if not _fits(log, made, rate):
        return None
    at = bisect_right(log.times, made)
    times = (*log.times[:at], made, *log.times[at:])
    dropped = len(times) - 2 * rate.limit
    if dropped <= 0:
        return replace(log, times=times)
    return RateLog(times=times[dropped:], floor=max(log.floor, times[dropped - 1]))


def retry_in(log: RateLog, rate: Rate, now: int) -> float:
    """Seconds until an event that is made then fits; 0 if one fits now."""
    log = _believable(log, rate, now)
    window = _milliseconds(rate)
    ends = (log.floor + window, *[each + window for each in log.times])
    moments = (now, *sorted(each for each in ends if each > now))
    return next(each - now for each in moments if _fits(log, each, rate)) / 1000


def in_window(log: RateLog, rate: Rate, now: int) -> int:
    """How many events the window that ends now has."""
    window = _milliseconds(rate)
    return sum(now - window < each <= now for each in log.times)


def _fits(log: RateLog, made: int, rate: Rate) -> bool:
    """Whether each window that contains this event has at most ``limit`` events with it."""
    if not rate.limit:
        return True
    window = _milliseconds(rate)
    if log.floor and made < log.floor + window:
        return False
    at = bisect_right(log.times, made)
    near: Iterable[int] = log.times[max(0, at - rate.limit) : at + rate.limit]
    times = sorted((*near, made))
    return all(
        last - first >= window for first, last in zip(times, times[rate.limit :], strict=False)
    )


def _believable(log: RateLog, rate: Rate, now: int) -> RateLog:
    """The log without times that a clock wrote before it was set back."""
    latest = now + _milliseconds(rate)
    if log.floor <= latest and (not log.times or log.times[-1] <= latest):
        return log
    times = tuple([each for each in log.times if each <= latest])
    return RateLog(times=times, floor=log.floor if log.floor <= latest else 0)


def _milliseconds(rate: Rate) -> int:
    return round(rate.window * 1000)
