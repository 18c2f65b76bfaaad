"""The rate limit of a sender: a number of messages in a sliding window.

A sender has ``limit`` slots. A slot is an item that holds the time of its last use, and is free one
window later. Sending takes a free slot in the same commit, so no window has more than ``limit``
messages, from any number of processes of one sender. Two processes conflict only if they pick the
same slot.

A slot holds exactly the time of the message that took it, so the times that messages show keep the
rate too.

The times come from the sender's own clocks, and only the sender is limited by them. A time less
than a window ahead counts as used: another machine of the sender has a fast clock. A time further
ahead was written before a clock was set back, and is ignored.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping

from msgspec import Struct

LIMIT = 100
WINDOW = 1.0


class Rate(Struct, frozen=True):
    """At most ``limit`` messages in a window of seconds; no limit if it is 0."""

    limit: int = LIMIT
    window: float = WINDOW


def is_free(used: float | None, rate: Rate, now: float) -> bool:
    """Whether a slot with this last use is free."""
    return used is None or abs(now - used) >= rate.window


def retry_in(slots: Mapping[int, float | None], rate: Rate, now: float) -> float:
    """Seconds until the first slot is free, if all are in use."""
    used = [slots.get(number) or 0.0 for number in range(rate.limit)]
    return max(0.001, round(min(used) + rate.window - now, 3))


class RateSlots:
    """The slots of one sender as this process knows them, least recently used first.

    Use by other processes is read when a slot that seemed free is not.
    """

    def __init__(self, rate: Rate, first: int) -> None:
        self.rate = rate
        self._slots: deque[tuple[int, float]] = deque(
            ((first + number) % rate.limit, 0.0) for number in range(rate.limit)
        )
        self._guard = threading.Lock()

    def take(self, now: float) -> int | None:
        """A slot that no other thread of this process takes; None if none seems free."""
        with self._guard:
            if not self._slots or not is_free(self._slots[0][1], self.rate, now):
                return None
            slot, _ = self._slots.popleft()
            self._slots.append((slot, now))
            return slot

    def release(self, slot: int) -> None:
        """Return a slot that was not used."""
        with self._guard:
            self._slots = deque(turn for turn in self._slots if turn[0] != slot)
            self._slots.appendleft((slot, 0.0))

    def update(self, slots: Mapping[int, float | None], now: float) -> None:
        """Update the last use of each slot; free slots come first."""
        with self._guard:
            found = [(slot, self._used(used, slots.get(slot), now)) for slot, used in self._slots]
            self._slots = deque(sorted(found, key=lambda turn: turn[1]))

    def _used(self, here: float, there: float | None, now: float) -> float:
        both = [at for at in (here, there or 0.0) if not is_free(at, self.rate, now)]
        return max(both, default=0.0)
