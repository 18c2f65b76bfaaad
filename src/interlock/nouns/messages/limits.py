"""Limits on senders: the settings, the depth of inboxes, and pausing an agent."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from msgspec import Struct

from interlock.clock import Clock
from interlock.core import keys
from interlock.drivers import Op
from interlock.nouns.messages import decode, message, query_rules, send_rules
from interlock.nouns.messages import rate_limit as rate
from interlock.nouns.messages.message import PausedAgent, Resumed, UnknownAgent
from interlock.nouns.messages.rate_limit import Rate
from interlock.runtime.decide import DecideOp, ReadOp, Unchecked
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Decided, Runner
from interlock.settings import Settings
from interlock.store import Range

_FRACTION = 16
"""A count admits this fraction of the space that is left,"""
_FIRST = 8
"""at most this number at first, and twice the number each time,"""
COUNTED = 5.0
"""for this number of seconds."""
_FULL_CACHED = message.RETRY_FULL
"""An inbox counts as full for this number of seconds without another count,"""
_CHEAP_LIMIT = 100
"""unless its limit is so low that counting is cheap."""


class MessageLimits(Struct, frozen=True, kw_only=True):
    """The limits on messages, as configured."""

    rate: Rate = Rate()
    body: int = message.BODY_LIMIT
    depth: int = message.DEPTH
    keep: float = message.KEEP
    kept: int = message.KEPT
    alerts: int = message.ALERTS_KEPT
    open: int = query_rules.OPEN_LIMIT
    pause_after: int = 0
    """Refusals within a minute that pause a sender which exceeds its rate; 0 for never."""


def message_limits(settings: Settings) -> MessageLimits:
    """The configured limits, with defaults."""
    found = settings.message()
    return MessageLimits(
        rate=Rate(int(found.get("rate", rate.LIMIT)), found.get("window", rate.WINDOW)),
        body=int(found.get("body", message.BODY_LIMIT)),
        depth=int(found.get("inbox", message.DEPTH)),
        keep=found.get("keep", message.KEEP),
        kept=int(found.get("kept", message.KEPT)),
        alerts=int(found.get("alerts", message.ALERTS_KEPT)),
        open=int(found.get("open_queries", query_rules.OPEN_LIMIT)),
        pause_after=int(settings.limits().get("pause_after", 0)),
    )


class Allowance(Struct):
    """How many messages are admitted without another count, and until when."""

    left: int = 0
    ends: float = 0.0
    size: int = _FIRST


class DepthCounts:
    """How many items are under each prefix, counted periodically and more often near the limit.

    A few items may exceed the limit, and senders do not compete for a counter. A count admits a
    small fraction of the space that is left, for a few seconds, since other processes count too.
    Items that this process is about to put count from admission until ``settled``, so a burst does
    not pass the limit before its commits are visible. A full result is cached for a moment if
    counting is expensive.
    """

    def __init__(self, most: int, clock: Clock, counted: float = COUNTED) -> None:
        self.most = most
        self._counted = counted
        self._clock = clock
        self._allowed: dict[str, Allowance] = {}
        self._full: dict[str, float] = {}
        self._entered: Counter[str] = Counter()
        self._settled: Counter[str] = Counter()
        self._lock = threading.Lock()

    def full(self, prefix: str) -> ReadOp[bool]:
        """Whether the prefix is full; if not, one item is admitted."""

        def space() -> ReadOp[int]:
            return self.most - (yield from count_items(prefix, self.most))

        if self._clock.monotonic() < self._full.get(prefix, 0.0):
            return True
        self._full.pop(prefix, None)
        full = yield from self.is_full(prefix, space)
        if full and self.most > _CHEAP_LIMIT:
            self._full[prefix] = self._clock.monotonic() + _FULL_CACHED
        return full

    def is_full(self, prefix: str, space: Callable[[], ReadOp[int]]) -> ReadOp[bool]:
        """Whether the prefix is full, with ``room`` to measure the space that is left."""
        with self._lock:
            allowed = self._allowed.setdefault(prefix, Allowance())
            if allowed.left > 0 and self._clock.monotonic() < allowed.ends:
                allowed.left -= 1
                self._entered[prefix] += 1
                return False
            before = self._settled[prefix]
        free = yield from space()
        with self._lock:
            free -= self._entered[prefix] - before  # the count may not include these
            allowed.left = min(max(free, 0) // _FRACTION, allowed.size)
            allowed.size = 2 * max(allowed.left, _FIRST)
            allowed.ends = self._clock.monotonic() + self._counted
            self._entered[prefix] += free > 0
        return free <= 0

    def settled(self, prefix: str) -> None:
        """End an admission: the item, if it was put, is visible to a count."""
        with self._lock:
            self._settled[prefix] += 1


def count_items(prefix: str, most: int) -> ReadOp[int]:
    """The number of items under a prefix, up to ``most``."""
    count, after = 0, ""
    while count < most:
        page = Range(prefix, after, min(1000, most - count))
        items = (yield Unchecked((page,))).ranges[page]
        count += len(items)
        if len(items) < page.limit:
            break
        after = items[-1].key
    return count


def used_slots(agent: str) -> ReadOp[dict[int, float | None]]:
    """When each rate slot of a sender was used."""
    found: dict[int, float | None] = {}
    after = ""
    while True:
        page = Range(f"{keys.RATES}{keys.encode(agent)}/", after)
        items = (yield Unchecked((page,))).ranges[page]
        found.update((int(keys.id_of(item.key)), decode.slot_used_at(item)) for item in items)
        if len(items) < page.limit:
            return found
        after = items[-1].key


def pause(runner: Runner, actor: Actor, agent: str, reason: str) -> Op[PausedAgent | UnknownAgent]:
    """Do not let an agent send."""

    def deciding() -> DecideOp[PausedAgent | UnknownAgent]:
        current = yield from _pause_state(agent)
        return send_rules.pause(current, agent, actor.agent, reason, runner.clock.wall())

    done: Decided[PausedAgent | UnknownAgent] = yield from runner.change(deciding, actor)
    return done.outcome


def resume(runner: Runner, actor: Actor, agent: str) -> Op[Resumed | UnknownAgent]:
    """Let an agent send again."""

    def deciding() -> DecideOp[Resumed | UnknownAgent]:
        return send_rules.resume((yield from _pause_state(agent)), agent)

    done: Decided[Resumed | UnknownAgent] = yield from runner.change(deciding, actor)
    return done.outcome


def _pause_state(agent: str) -> ReadOp[send_rules.PauseState]:
    mailbox, key = keys.mailbox(agent), keys.paused(agent)
    snapshot = yield (mailbox, key)
    before = decode.paused(snapshot[key])
    return send_rules.PauseState(known=snapshot[mailbox] is not None, paused=before)
