"""Sending: one commit, and across a network one round trip.

The common case is believed and checked: the id is fresh, the reader has a mailbox, nobody paused
us, and a turn of ours is free.  Whatever of that is wrong comes back with the conflict.

What is likely to be refused is looked at before anybody's turn to write is taken: so whoever sends
too much, or to an inbox that is full, holds up nobody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import codec, inbox, keys, post, rate
from interlock.core.decision import Write
from interlock.core.inbox import Cursor, Seen
from interlock.core.message import Exists, Message, Refused, SendOutcome, Sent
from interlock.core.post import MAILBOX, Facts, Terms
from interlock.driving import Op
from interlock.services.gather import outside
from interlock.services.message import cursors, journal, states
from interlock.services.message.limits import Depths, Limits, Meter, turns
from interlock.services.runner import Deciding, Done, Glance, Reading, Runner, Who
from interlock.store import Item, Ref, Snapshot

T = TypeVar("T")

_MAILBOX = codec.encode(MAILBOX)


class Turn:
    """The turn that one message is to take, over all attempts to send it.

    ``needed`` is whether it takes one at all: what was sent before does not.
    """

    __slots__ = ("needed", "slot")

    def __init__(self, slot: int | None) -> None:
        self.slot = slot
        self.needed = True


class Errand(Struct, frozen=True, kw_only=True):
    """What is to be looked at before something is sent; ``full`` is whose inbox takes no more."""

    sender: str
    key: str
    to: tuple[str, ...] = ()
    acks: tuple[str, ...] = ()
    full: str = ""
    turn: Turn

    @property
    def refs(self) -> tuple[str, ...]:
        """The items that its commit relies on."""
        slot = self.turn.slot
        return (
            self.key,
            keys.paused(self.sender),
            *[keys.mailbox(agent) for agent in self.to],
            *[keys.unread(self.sender, id_) for id_ in self.acks],
            *([] if slot is None else [keys.rate(self.sender, slot)]),
        )


class Heard(Struct, frozen=True):
    """Messages of topics that end with what is sent; ``begins`` are the cursors of those."""

    seen: tuple[Seen, ...] = ()
    begins: Mapping[str, Cursor] = {}


HEARD = Heard()


class Posting:
    """Sends messages, as generators for a driver."""

    def __init__(self, runner: Runner, limits: Limits) -> None:
        self._runner = runner
        self.limits = limits
        self._meters: dict[str, Meter] = {}
        self._depths = Depths(limits.depth)
        self._registered: set[str] = set()

    def post(
        self, who: Who, message: Message, terms: Terms, heard: Heard = HEARD
    ) -> Op[SendOutcome]:
        """Send it; returns when it is durable, or with what is in the way."""
        topic = post.topic(message)
        key = keys.topic(topic, message.id) if topic else keys.message(message.id)
        to = () if topic else message.to
        full = yield from self.full(to)
        errand = self.errand(message.sender, key, to, terms.acks, full)

        def deciding() -> Deciding[SendOutcome]:
            snapshot = yield errand.refs
            now = self._runner.clock.wall()
            facts = yield from self.facts(errand, snapshot, now)
            acked = [i for i in terms.acks if snapshot[keys.unread(message.sender, i)] is not None]
            decision = post.post(message, facts, now, terms, acked)
            if not heard.seen or not isinstance(decision.outcome, Sent):
                return decision
            moves = yield from _moves(message.sender, heard)
            return replace(decision, puts=(*decision.puts, *moves))

        done: Done[SendOutcome] = yield from self.carry_out(errand, deciding, who)
        if isinstance(done.outcome, Sent):
            journal.sent(message.sender, done.outcome)
        return done.outcome

    def carry_out(
        self, errand: Errand, deciding: Callable[[], Deciding[T]], who: Who
    ) -> Op[Done[T]]:
        """Commit what sends something; a turn with which nothing was sent is given back."""
        done: Done[T] | None = None
        try:
            done = yield from self._change(errand, deciding, who)
            return done
        finally:
            sent = done is not None and not isinstance(done.outcome, Refused | Exists)
            if done is not None and done.revision is not None and sent and errand.turn.needed:
                self._registered.add(errand.sender)
            elif (slot := errand.turn.slot) is not None:
                self._meters[errand.sender].give_back(slot)

    def _change(self, errand: Errand, deciding: Callable[[], Deciding[T]], who: Who) -> Op[Done[T]]:
        if errand.full or (self.limits.rate.limit and errand.turn.slot is None):
            refused = yield from outside(deciding())
            if not refused.changes:
                return Done(refused.outcome, None)
        return (yield from self._runner.change(deciding, who, self._guess(errand)))

    def full(self, to: Iterable[str]) -> Op[str]:
        """Somebody of these whose inbox takes no more; nobody as a rule."""
        found = ""
        for agent in to:
            if (yield from outside(self._depths.full(keys.unread(agent)))):
                found = agent
        return found

    def errand(
        self,
        sender: str,
        key: str,
        to: Iterable[str],
        acks: tuple[str, ...] = (),
        full: str = "",
    ) -> Errand:
        """What to look at, with a turn that seems to be free."""
        meter = self._meter(sender)
        slot = None if meter is None else meter.take(self._runner.clock.wall())
        return Errand(sender=sender, key=key, to=tuple(to), acks=acks, full=full, turn=Turn(slot))

    def _guess(self, errand: Errand) -> dict[str, Item | None] | None:
        """What we believe of it, if that is enough to send without a look."""
        limited = self.limits.rate.limit and errand.turn.slot is None
        if self._runner.capabilities.local or errand.acks or limited:
            return None
        known: dict[str, Item | None] = dict.fromkeys(errand.refs)
        for agent in errand.to:
            key = keys.mailbox(agent)
            known[key] = Item(key, _MAILBOX, 0, 0)
        if errand.turn.slot is not None:
            known |= self._runner.recall(keys.rate(errand.sender, errand.turn.slot))
        return known

    def facts(self, errand: Errand, snapshot: Snapshot, now: float) -> Reading[Facts]:
        """All that decides whether it can be sent."""
        unknown = tuple([each for each in errand.to if snapshot[keys.mailbox(each)] is None])
        facts = Facts(
            paused=states.paused(snapshot[keys.paused(errand.sender)]),
            exists=snapshot[errand.key] is not None,
            registered=errand.sender in self._registered,
            unknown=unknown,
            rate=self.limits.rate,
        )
        errand.turn.needed = not facts.exists
        if facts.paused or facts.exists:
            return facts
        if errand.full:
            facts = replace(facts, full=(errand.full, self.limits.depth))
        facts = yield from self._with_turn(errand, snapshot, facts, now)
        if facts.full or (facts.rate.limit and facts.slot is None):
            mark = post.mark(errand.sender)
            return replace(facts, marked=(yield Glance((mark,)))[mark] is not None)
        return facts

    def _with_turn(
        self, errand: Errand, snapshot: Snapshot, facts: Facts, now: float
    ) -> Reading[Facts]:
        meter, slot = self._meter(errand.sender), errand.turn.slot
        if meter is None:
            return facts
        if slot is not None:
            used = states.moment(snapshot[keys.rate(errand.sender, slot)])
            if rate.free(used, meter.rate, now):
                return replace(facts, slot=slot)
            meter.give_back(slot)  # another process was quicker
        slots = yield from turns(errand.sender)
        meter.learn(slots)
        slot = errand.turn.slot = meter.take(now)
        if slot is None:
            return replace(facts, slots=slots)
        again: tuple[Ref, ...] = (keys.rate(errand.sender, slot),)
        used = states.moment((yield again)[keys.rate(errand.sender, slot)])
        found = slot if rate.free(used, meter.rate, now) else None
        return replace(facts, slots=slots, slot=found)

    def _meter(self, sender: str) -> Meter | None:
        if not self.limits.rate.limit:
            return None
        if sender not in self._meters:
            first = self._runner.random_below(self.limits.rate.limit)
            self._meters[sender] = Meter(self.limits.rate, first)
        return self._meters[sender]


def _moves(agent: str, heard: Heard) -> Reading[tuple[Write, ...]]:
    """The cursors that move with what is sent."""
    items = (yield cursors.refs(agent, heard.seen)).items
    return inbox.moves_of(agent, *cursors.standing(agent, heard.seen, heard.begins, items))
