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

import threading
from collections import deque
from collections.abc import Mapping

from msgspec import Struct

LIMIT = 100
WINDOW = 1.0


class Rate(Struct, frozen=True):
    """So many within a window of so many seconds; none at all if ``limit`` is 0."""

    limit: int = LIMIT
    window: float = WINDOW


def is_free(used: float | None, rate: Rate, now: float) -> bool:
    """Whether a slot that was last used then can be used again."""
    return used is None or abs(now - used) >= rate.window


def retry_in(slots: Mapping[int, float | None], rate: Rate, now: float) -> float:
    """Seconds until the first of the slots is free, if all are in use."""
    used = [slots.get(number) or 0.0 for number in range(rate.limit)]
    return max(0.001, round(min(used) + rate.window - now, 3))


class RateSlots:
    """The turns of one sender, as this process knows them: the one that was free for longest first.

    What others did is learned when a turn that seemed free is not.
    """

    def __init__(self, rate: Rate, first: int) -> None:
        self.rate = rate
        self._turns: deque[tuple[int, float]] = deque(
            ((first + number) % rate.limit, 0.0) for number in range(rate.limit)
        )
        self._guard = threading.Lock()

    def take(self, now: float) -> int | None:
        """A turn that nobody else of this process takes; None if none seems to be free."""
        with self._guard:
            if not self._turns or not is_free(self._turns[0][1], self.rate, now):
                return None
            slot, _ = self._turns.popleft()
            self._turns.append((slot, now))
            return slot

    def give_back(self, slot: int) -> None:
        """Nothing was sent with this turn: it is as free as it was."""
        with self._guard:
            self._turns = deque(turn for turn in self._turns if turn[0] != slot)
            self._turns.appendleft((slot, 0.0))

    def learn(self, slots: Mapping[int, float | None], now: float) -> None:
        """Know when each turn was used last, by whomever; the free ones come first."""
        with self._guard:
            found = [(slot, self._used(used, slots.get(slot), now)) for slot, used in self._turns]
            self._turns = deque(sorted(found, key=lambda turn: turn[1]))

    def _used(self, here: float, there: float | None, now: float) -> float:
        both = [at for at in (here, there or 0.0) if not is_free(at, self.rate, now)]
        return max(both, default=0.0)
