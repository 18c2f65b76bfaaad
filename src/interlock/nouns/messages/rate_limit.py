"""How often somebody may send: so many turns in a window that slides.

A sender has ``limit`` slots.  A slot is an item that says when it was last used, and is free again
a window later.  Sending takes a free slot in the same commit; so within any window no more than
``limit`` messages are sent, by however many processes of one sender, and none of them fights with
another unless both pick the same slot.

The moment of a slot is the time of the message that took it, to the same digit: so the rate is kept
by the times that messages show, and not only by those of their commits.

The moments are those of the sender's own clocks, which alone are limited by them.  One that lies
less than a window ahead counts as used: another machine of the sender has a clock that is ahead of
ours.  Further ahead it was written before a clock was set back, and says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

LIMIT = 100
WINDOW = 1.0


class Rate(Struct, frozen=True):
    """So many within a window of so many seconds; none at all if ``limit`` is 0."""

    limit: int = LIMIT
    window: float = WINDOW


def free(used: float | None, rate: Rate, now: float) -> bool:
    """Whether a slot that was last used then can be used again."""
    return used is None or abs(now - used) >= rate.window


def retry_in(slots: Mapping[int, float | None], rate: Rate, now: float) -> float:
    """Seconds until the first of the slots is free, if all are in use."""
    used = [slots.get(number) or 0.0 for number in range(rate.limit)]
    return max(0.001, round(min(used) + rate.window - now, 3))
