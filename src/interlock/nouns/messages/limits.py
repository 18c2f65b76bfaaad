"""Limits on senders: the settings, the rate, the depth of inboxes, and the quota of open questions.

**Rate** (``RateSlots``): a sender has a slot for each message of a window. A slot is an item, and
sending takes a free one in the same commit (``core/rate.py``).

**Depth** (``DepthCounts``): an inbox is counted periodically, so a few messages may exceed the
limit, and senders do not compete for a counter.

**Open questions** (``QueryQuota``): a limit for all agents, and half of it for one agent. Each open
question holds two slots, one of all and one of its agent. The commit that asks takes them, and the
commit that ends the question frees them. A slot is an item, and asking checks that it does not
exist: so the limits are exact, and two askers conflict only if they pick the same slot. An expired
question keeps its slots if its asker is gone. So does a question that a client of an older version
ended, which knows no slots. A client that finds no free slot ends some expired questions and frees
the slots of both kinds; so does maintenance.

An operator can also pause a sender.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from interlock.clock import Clock
from interlock.core import keys
from interlock.core.decision import Decision
from interlock.core.rate import Rate, slot_is_free
from interlock.nouns.messages import decode, message, send_rules
from interlock.nouns.messages.inbox_service import expire_query
from interlock.nouns.messages.message import AgentResumed, PausedAgent, UnknownAgent
from interlock.nouns.messages.query import OPEN_LIMIT, TooMany, agent_share
from interlock.runtime.attempt import DecideOp, ReadOp
from interlock.runtime.identity import Actor
from interlock.runtime.reads import every, every_inside, looked_up, readable
from interlock.runtime.runner import Runner
from interlock.settings import Settings
from interlock.steps import Op
from interlock.store import Item

_FRACTION = 16
"""After a count, a sender may use this fraction of the free space before it counts again."""
_FIRST = 8
"""The most messages after the first count; the number doubles with each count."""
COUNTED = 5.0
"""Seconds after which a count is outdated."""
_FULL_CACHED = message.RETRY_FULL
"""Seconds for which an inbox counts as full without another count."""
_CHEAP_LIMIT = 100
"""A full inbox with a limit up to this is counted each time, since that is cheap."""
_AT_ONCE = 32
"""Expired questions that a client ends when it finds no free slot."""
_TIMED = 64
"""Open questions whose time left is read for a refusal."""
_LOOK_EVERY = 1.0
"""Seconds until the next look for expired questions, if there were none."""
_LEAST = 0.1
_NAMED = 3


class MessageLimits(Struct, frozen=True, kw_only=True):
    """The limits on messages, as configured."""

    rate: Rate = Rate()
    body: int = message.BODY_LIMIT
    depth: int = message.DEPTH
    keep: float = message.KEEP
    kept: int = message.KEPT
    alerts: int = message.ALERTS_KEPT
    open: int = OPEN_LIMIT
    pause_after: int = 0
    """Refusals within a minute that pause a sender which exceeds its rate; 0 for never."""


def message_limits(settings: Settings) -> MessageLimits:
    """The configured limits, with defaults."""
    found = settings.message()
    rate = Rate()
    return MessageLimits(
        rate=Rate(int(found.get("rate", rate.limit)), found.get("window", rate.window)),
        body=int(found.get("body", message.BODY_LIMIT)),
        depth=int(found.get("inbox", message.DEPTH)),
        keep=found.get("keep", message.KEEP),
        kept=int(found.get("kept", message.KEPT)),
        alerts=int(found.get("alerts", message.ALERTS_KEPT)),
        open=int(found.get("open_queries", OPEN_LIMIT)),
        pause_after=int(settings.limits().get("pause_after", 0)),
    )


class RateSlots:
    """The slots of one sender as this process knows them, least recently used first.

    Use by other processes is read when a slot that seemed free is not.
    """

    def __init__(self, rate: Rate, first: int) -> None:
        self.rate = rate
        self._slots: deque[tuple[int, float]] = deque(
            ((first + number) % rate.limit, 0.0) for number in range(rate.limit)
        )
        self._guard = threading.RLock()  # a signal handler may send, too

    def take(self, now: float) -> int | None:
        """A slot that no other thread of this process takes; None if none seems free."""
        with self._guard:
            if not self._slots or not slot_is_free(self._slots[0][1], self.rate, now):
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
        both = [at for at in (here, there or 0.0) if not slot_is_free(at, self.rate, now)]
        return max(both, default=0.0)


def used_slots(agent: str) -> ReadOp[dict[int, float | None]]:
    """When each rate slot of a sender was used."""
    items = yield from every_inside(f"{keys.RATES}{keys.encode(agent)}/")
    return {int(keys.id_of(item.key)): decode.slot_used_at(item) for item in items}


class Allowance(Struct):
    """How many messages are admitted without another count, and until when."""

    left: int = 0
    ends: float = 0.0
    size: int = _FIRST


class DepthCounts:
    """How many items are under each prefix, counted periodically and more often near the limit.

    A count admits a small fraction of the space that is left, for a few seconds, since other
    processes count too.
    Items that this process is about to put count from admission until ``settled``, so a burst does
    not pass the limit before its commits are visible. A full result is cached for a moment if
    counting is expensive.
    """

    def __init__(self, most: int, clock: Clock, counted: float) -> None:
        self.most = most
        self._counted = counted
        self._clock = clock
        self._allowed: dict[str, Allowance] = {}
        self._full: dict[str, float] = {}
        self._entered: Counter[str] = Counter()
        self._settled: Counter[str] = Counter()
        self._lock = threading.RLock()  # a signal handler may send, too

    def admit(self, prefix: str) -> bool:
        """Admit one item without a count, if the last count allows for it."""
        with self._lock:
            allowed = self._allowed.get(prefix)
            if allowed is None or allowed.left <= 0 or prefix in self._full:
                return False
            if self._clock.monotonic() >= allowed.ends:
                return False
            allowed.left -= 1
            self._entered[prefix] += 1
            return True

    def full(self, prefix: str) -> ReadOp[bool]:
        """Whether the prefix is full; if not, one item is admitted."""
        if self._clock.monotonic() < self._full.get(prefix, 0.0):
            return True
        self._full.pop(prefix, None)
        if self.admit(prefix):
            return False
        with self._lock:
            allowed = self._allowed.setdefault(prefix, Allowance())
            before = self._settled[prefix]
        free = self.most - len((yield from every_inside(prefix, most=self.most)))
        with self._lock:
            free -= self._entered[prefix] - before  # the count may not include these
            allowed.left = min(max(free, 0) // _FRACTION, allowed.size)
            allowed.size = 2 * max(allowed.left, _FIRST)
            allowed.ends = self._clock.monotonic() + self._counted
            self._entered[prefix] += free > 0
        if free <= 0 and self.most > _CHEAP_LIMIT:
            self._full[prefix] = self._clock.monotonic() + _FULL_CACHED
        return free <= 0

    def settled(self, prefix: str) -> None:
        """End an admission: the item, if it was put, is visible to a count."""
        with self._lock:
            self._settled[prefix] += 1


class QueryQuota:
    """The quota as one client knows it."""

    def __init__(self, runner: Runner, limit: int) -> None:
        self._runner = runner
        self._limit = limit
        self._last_look = float("-inf")

    def guess(self, agent: str) -> tuple[str, ...]:
        """Two slots that are probably free; none if the limit is 0."""
        if not self._limit:
            return ()
        return tuple(
            keys.query_slot(whose, self._runner.random_below(most))
            for whose, most in self._folders(agent).items()
        )

    def take(
        self, agent: str, guess: Sequence[str], items: Mapping[str, Item | None]
    ) -> ReadOp[tuple[str, ...]]:
        """Two free slots, those of the guess if they are free; none if the quota is used up."""
        found: list[str] = []
        for key, (whose, most) in zip(guess, self._folders(agent).items(), strict=True):
            slot: str | None = key
            if items[key] is not None:
                slot = yield from self._free(whose, most)
            if slot is None:
                return ()
            found.append(slot)
        return tuple(found)

    def _folders(self, agent: str) -> dict[str, int]:
        """The folders of slots, for all and for one agent, and their sizes."""
        return {"": self._limit, agent: agent_share(self._limit)}

    def _free(self, whose: str, most: int) -> ReadOp[str | None]:
        while True:
            used = {item.key for item in (yield from every_inside(keys.query_slot(whose)))}
            every_one = (keys.query_slot(whose, number) for number in range(most))
            free = [key for key in every_one if key not in used]
            if not free:
                return None
            slot = free[self._runner.random_below(len(free))]
            if (yield (slot,))[slot] is None:  # else another process took it
                return slot

    def clear_expired(self, actor: Actor) -> Op[bool]:
        """End some expired questions; return whether there were any."""
        now = self._runner.clock.monotonic()
        if now < self._last_look + self._runner.capabilities.allow(_LOOK_EVERY):
            return False
        slots = yield from every(keys.ASKING)
        used = {item.key: id_ for item in slots if (id_ := readable(decode.slot_query, item))}
        lives = yield from looked_up([keys.live(id_) for id_ in used.values()])
        expired = {id_: None for id_ in used.values() if lives[keys.live(id_)] is None}
        if not expired:
            self._last_look = now
        for id_ in list(expired)[:_AT_ONCE]:
            yield from expire_query(self._runner, actor, id_)
            own = tuple([key for key, query in used.items() if query == id_])
            yield from self._runner.change(partial(_free_slots, own, id_), actor)
        return bool(expired)

    def refusal(self, agent: str) -> Op[TooMany]:
        """The refusal: who has open questions, and when the first of them expires."""
        items = yield from every(keys.OPEN, most=self._limit)
        listed = [keys.open_query_of(item.key) for item in items]
        by, own = Counter(asker for asker, _ in listed), agent_share(self._limit)
        some = [keys.live(id_) for _, id_ in listed[:_TIMED]]
        lives = (yield from looked_up(some, times=True)).values()
        left = [each.expires_in or 0.0 for each in lives if each is not None]
        grain = self._runner.capabilities.grain
        retry_in = round(max(min(left) + grain, _LEAST), 3) if left else None
        if own <= by[agent] < self._limit:
            refused = TooMany(open=by[agent], limit=own, agent=agent, by={agent: by[agent]})
        else:
            most = dict(by.most_common(_NAMED))
            refused = TooMany(open=len(listed), limit=self._limit, by=most)
        return replace(refused, retry_in=retry_in)


def _free_slots(slots: tuple[str, ...], query: str) -> DecideOp[None]:
    """Free the slots of a question that has ended: a client of an older version left them."""
    items = (yield (keys.query(query), *slots)).items
    own = [(key, items[key]) for key in slots]
    gone = [key for key, item in own if item and decode.slot_query(item) == query]
    if not gone or decode.is_open_query(items[keys.query(query)]):
        return Decision(outcome=None)
    return Decision(outcome=None, verb="query.forget", thing=f"query/{query}", deletes=tuple(gone))


def pause(runner: Runner, actor: Actor, agent: str, reason: str) -> Op[PausedAgent | UnknownAgent]:
    """Do not let an agent send."""

    def deciding() -> DecideOp[PausedAgent | UnknownAgent]:
        current = yield from _pause_state(agent)
        return send_rules.pause(current, agent, actor.agent, reason, runner.clock.wall())

    return (yield from runner.change(deciding, actor)).outcome


def resume(runner: Runner, actor: Actor, agent: str) -> Op[AgentResumed | UnknownAgent]:
    """Let an agent send again."""

    def deciding() -> DecideOp[AgentResumed | UnknownAgent]:
        return send_rules.resume((yield from _pause_state(agent)), agent)

    return (yield from runner.change(deciding, actor)).outcome


def _pause_state(agent: str) -> ReadOp[send_rules.PauseState]:
    mailbox, key = keys.mailbox(agent), keys.paused(agent)
    snapshot = yield (mailbox, key)
    before = decode.paused(snapshot[key])
    return send_rules.PauseState(known=snapshot[mailbox] is not None, paused=before)
