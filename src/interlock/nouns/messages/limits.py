"""What bounds messages: settings, turns to send, and how deep an inbox may be."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping

from msgspec import Struct

from interlock.clock import Clock
from interlock.core import keys
from interlock.nouns.messages import decode, message, query_rules
from interlock.nouns.messages import rate_limit as rate
from interlock.nouns.messages.rate_limit import Rate
from interlock.runtime.runner import ReadOp, Unchecked
from interlock.settings import Settings
from interlock.store import Range

_PART = 16
"""A count allows for so small a part of the room that is left,"""
_FIRST = 8
"""for so many at first, and for twice as many each time,"""
_COUNTED = 5.0
"""and for so many seconds."""
_BELIEVED = message.RETRY_FULL
"""For so long an inbox is taken to be full without another count,"""
_SHORT = 100
"""unless so few are allowed that counting them costs next to nothing."""


class Limits(Struct, frozen=True, kw_only=True):
    """What is allowed, as the settings say."""

    rate: Rate = Rate()
    body: int = message.BODY_LIMIT
    depth: int = message.DEPTH
    keep: float = message.KEEP
    kept: int = message.KEPT
    alerts: int = message.ALERTS_KEPT
    open: int = query_rules.OPEN_LIMIT
    pause_after: int = 0
    """Refusals within a minute after which a sender that is too fast is paused; 0 for never."""


def limits(settings: Settings) -> Limits:
    """The limits that are set, and the usual ones otherwise."""
    found = settings.message()
    return Limits(
        rate=Rate(int(found.get("rate", rate.LIMIT)), found.get("window", rate.WINDOW)),
        body=int(found.get("body", message.BODY_LIMIT)),
        depth=int(found.get("inbox", message.DEPTH)),
        keep=found.get("keep", message.KEEP),
        kept=int(found.get("kept", message.KEPT)),
        alerts=int(found.get("alerts", message.ALERTS_KEPT)),
        open=int(found.get("open_queries", query_rules.OPEN_LIMIT)),
        pause_after=int(settings.limits().get("pause_after", 0)),
    )


class Meter:
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
            if not self._turns or not rate.free(self._turns[0][1], self.rate, now):
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
        both = [at for at in (here, there or 0.0) if not rate.free(at, self.rate, now)]
        return max(both, default=0.0)


class Allowance(Struct):
    """How many may still be let in without another count, and until when."""

    left: int = 0
    ends: float = 0.0
    size: int = _FIRST


class Depths:
    """How many items there are under each prefix: counted now and then, more often where many are.

    So a limit may be passed by a few, and nobody fights for a counter.  A count allows for a small
    part of the room that is left, little at first and for a few seconds only: others count as well.
    What this process is about to put counts from the moment it is let in until it is ``settled``,
    done or not: a burst does not pass the limit because none of it stands yet.
    That there are too many is believed for a moment, if it took long to count them.
    """

    def __init__(self, most: int, clock: Clock) -> None:
        self.most = most
        self._clock = clock
        self._allowed: dict[str, Allowance] = {}
        self._full: dict[str, float] = {}
        self._entered: Counter[str] = Counter()
        self._settled: Counter[str] = Counter()
        self._guard = threading.Lock()

    def full(self, prefix: str) -> ReadOp[bool]:
        """Whether there are too many under this prefix, as far as we know; else one is let in."""

        def room() -> ReadOp[int]:
            return self.most - (yield from counted(prefix, self.most))

        if self._clock.monotonic() < self._full.get(prefix, 0.0):
            return True
        self._full.pop(prefix, None)
        full = yield from self.closed(prefix, room)
        if full and self.most > _SHORT:
            self._full[prefix] = self._clock.monotonic() + _BELIEVED
        return full

    def closed(self, prefix: str, room: Callable[[], ReadOp[int]]) -> ReadOp[bool]:
        """The same, for whoever knows another way to tell how much room there is."""
        with self._guard:
            allowed = self._allowed.setdefault(prefix, Allowance())
            if allowed.left > 0 and self._clock.monotonic() < allowed.ends:
                allowed.left -= 1
                self._entered[prefix] += 1
                return False
            before = self._settled[prefix]
        free = yield from room()
        with self._guard:
            free -= self._entered[prefix] - before  # these may not have been counted
            allowed.left = min(max(free, 0) // _PART, allowed.size)
            allowed.size = 2 * max(allowed.left, _FIRST)
            allowed.ends = self._clock.monotonic() + _COUNTED
            self._entered[prefix] += free > 0
        return free <= 0

    def settled(self, prefix: str) -> None:
        """Whoever was let in is done: what it put can be counted."""
        with self._guard:
            self._settled[prefix] += 1


def counted(prefix: str, most: int) -> ReadOp[int]:
    """How many items there are under a prefix, up to a number."""
    count, after = 0, ""
    while count < most:
        page = Range(prefix, after, min(1000, most - count))
        items = (yield Unchecked((page,))).ranges[page]
        count += len(items)
        if len(items) < page.limit:
            break
        after = items[-1].key
    return count


def turns(agent: str) -> ReadOp[dict[int, float | None]]:
    """When each turn of a sender was used."""
    found: dict[int, float | None] = {}
    after = ""
    while True:
        page = Range(f"{keys.RATES}{keys.part(agent)}/", after)
        items = (yield Unchecked((page,))).ranges[page]
        found.update((int(keys.last(item.key)), decode.moment(item)) for item in items)
        if len(items) < page.limit:
            return found
        after = items[-1].key
