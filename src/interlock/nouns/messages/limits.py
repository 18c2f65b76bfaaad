"""What bounds messages: settings, turns to send, and how deep an inbox may be.

Pausing somebody who sends too much, and letting it send again.
"""

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
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Decided, DecideOp, ReadOp, Runner, Unchecked
from interlock.settings import Settings
from interlock.store import Range

_PART = 16
"""A count allows for so small a part of the room that is left,"""
_FIRST = 8
"""for so many at first, and for twice as many each time,"""
COUNTED = 5.0
"""and for so many seconds."""
_BELIEVED = message.RETRY_FULL
"""For so long an inbox is taken to be full without another count,"""
_SHORT = 100
"""unless so few are allowed that counting them costs next to nothing."""


class MessageLimits(Struct, frozen=True, kw_only=True):
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


def message_limits(settings: Settings) -> MessageLimits:
    """The limits that are set, and the usual ones otherwise."""
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
    """How many may still be let in without another count, and until when."""

    left: int = 0
    ends: float = 0.0
    size: int = _FIRST


class DepthCounts:
    """How many items there are under each prefix: counted now and then, more often where many are.

    So a limit may be passed by a few, and nobody fights for a counter.  A count allows for a small
    part of the room that is left, little at first and for a few seconds only: others count as well.
    What this process is about to put counts from the moment it is let in until it is ``settled``,
    done or not: a burst does not pass the limit because none of it stands yet.
    That there are too many is believed for a moment, if it took long to count them.
    """

    def __init__(self, most: int, clock: Clock, counted: float = COUNTED) -> None:
        self.most = most
        self._counted = counted
        self._clock = clock
        self._allowed: dict[str, Allowance] = {}
        self._full: dict[str, float] = {}
        self._entered: Counter[str] = Counter()
        self._settled: Counter[str] = Counter()
        self._guard = threading.Lock()

    def full(self, prefix: str) -> ReadOp[bool]:
        """Whether there are too many under this prefix, as far as we know; else one is let in."""

        def room() -> ReadOp[int]:
            return self.most - (yield from count_items(prefix, self.most))

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
            allowed.ends = self._clock.monotonic() + self._counted
            self._entered[prefix] += free > 0
        return free <= 0

    def settled(self, prefix: str) -> None:
        """Whoever was let in is done: what it put can be counted."""
        with self._guard:
            self._settled[prefix] += 1


def count_items(prefix: str, most: int) -> ReadOp[int]:
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


def used_slots(agent: str) -> ReadOp[dict[int, float | None]]:
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


def pause(runner: Runner, actor: Actor, agent: str, reason: str) -> Op[PausedAgent | UnknownAgent]:
    """Let an agent send nothing from now on."""

    def deciding() -> DecideOp[PausedAgent | UnknownAgent]:
        standing = yield from _standing(agent)
        return send_rules.pause(standing, agent, actor.agent, reason, runner.clock.wall())

    done: Decided[PausedAgent | UnknownAgent] = yield from runner.change(deciding, actor)
    return done.outcome


def resume(runner: Runner, actor: Actor, agent: str) -> Op[Resumed | UnknownAgent]:
    """Let an agent send again."""

    def deciding() -> DecideOp[Resumed | UnknownAgent]:
        return send_rules.resume((yield from _standing(agent)), agent)

    done: Decided[Resumed | UnknownAgent] = yield from runner.change(deciding, actor)
    return done.outcome


def _standing(agent: str) -> ReadOp[send_rules.PauseState]:
    """Whether somebody is known here, and paused."""
    mailbox, key = keys.mailbox(agent), keys.paused(agent)
    snapshot = yield (mailbox, key)
    before = decode.paused(snapshot[key])
    return send_rules.PauseState(known=snapshot[mailbox] is not None, paused=before)
