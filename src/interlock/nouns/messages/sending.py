"""Sending a message: one commit, and one round trip over a network.

The common case is assumed and checked by the commit: the id is new, the recipient has a mailbox,
the sender is not paused and one of its rate slots is free. The conflict returns the true state.

A probable refusal is decided before the write lock is taken, so a sender that exceeds its rate or
writes to a full inbox does not delay others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.drivers import Op
from interlock.nouns.messages import acknowledging, decode, inbox_rules, log_lines, rate_limit
from interlock.nouns.messages import send_rules as post
from interlock.nouns.messages.inbox_rules import Cursor, TopicAcks
from interlock.nouns.messages.limits import COUNTED, DepthCounts, MessageLimits, used_slots
from interlock.nouns.messages.message import (
    MessageExists,
    Refused,
    SendOutcome,
    Sent,
    StoredMessage,
)
from interlock.nouns.messages.rate_limit import RateSlots
from interlock.nouns.messages.send_rules import MAILBOX, NO_ACKS, AckPlan, SenderState, SendOptions
from interlock.runtime.gather import outside
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Decided, DecideOp, ReadOp, Runner, Unchecked
from interlock.store import Item, Snapshot

T = TypeVar("T")

_MAILBOX = codec.encode(MAILBOX)


class SendAttempt:
    """The rate slot of one message, over all attempts to commit it.

    ``needed`` is false if the message was sent before. ``entered`` are the recipients whose inboxes
    have admitted it, ``full`` is one whose inbox is full.
    """

    __slots__ = ("entered", "full", "needed", "slot")

    def __init__(self, slot: int | None) -> None:
        self.slot = slot
        self.needed = True
        self.entered: list[str] = []
        self.full = ""


class SendPlan(Struct, frozen=True, kw_only=True):
    """What a send reads and checks.

    ``places`` are keys that exist if it was sent before, ``room`` keys that it takes and that must
    be free.
    """

    sender: str
    places: tuple[str, ...]
    to: tuple[str, ...] = ()
    acks: tuple[str, ...] = ()
    room: tuple[str, ...] = ()
    turn: SendAttempt

    @property
    def refs(self) -> tuple[str, ...]:
        """The keys that its commit depends on."""
        slot = self.turn.slot
        return (
            *self.places,
            keys.paused(self.sender),
            *[keys.mailbox(agent) for agent in self.to],
            *[keys.unread(self.sender, id_) for id_ in self.acks],
            *([] if slot is None else [keys.rate(self.sender, slot)]),
            *self.room,
        )


class TopicAckSet(Struct, frozen=True):
    """Messages of topics that a send acknowledges, and the first cursors of those topics."""

    seen: tuple[TopicAcks, ...] = ()
    begins: Mapping[str, Cursor] = {}


NO_TOPIC_ACKS = TopicAckSet()


class MessageSender:
    """Sends messages; its methods are generators for a driver."""

    def __init__(self, runner: Runner, limits: MessageLimits) -> None:
        self._runner = runner
        self.limits = limits
        self._meters: dict[str, RateSlots] = {}
        self._depths = DepthCounts(limits.depth, runner.clock, runner.capabilities.allow(COUNTED))
        self._registered: set[str] = set()

    def post(
        self,
        actor: Actor,
        message: StoredMessage,
        terms: SendOptions,
        heard: TopicAckSet = NO_TOPIC_ACKS,
    ) -> Op[SendOutcome]:
        """Send a message; return when it is durable, or with the refusal."""
        topic = post.topic_of(message)
        place = keys.topic(topic, message.id) if topic else keys.message(message.id)
        places = (place, keys.taken(message.id)) if terms.chosen else (place,)
        to = () if topic else message.to
        errand = self.errand(message.sender, places, to, terms.acks)

        def deciding() -> DecideOp[SendOutcome]:
            snapshot = yield errand.refs
            facts = yield from self.facts(errand, snapshot)
            now = self.moment()
            ends = NO_ACKS
            if terms.acks and not facts.exists:
                ends = yield from _ends(message.sender, terms.acks, snapshot, heard)
            return post.send(message, facts, now, terms, ends)

        done: Decided[SendOutcome] = yield from self.carry_out(errand, deciding, actor)
        if isinstance(done.outcome, Sent):
            log_lines.sent(message.sender, done.outcome)
        return done.outcome

    def moment(self) -> float:
        """The time that both the message and its rate slot carry."""
        return round(self._runner.clock.wall(), 3)

    def carry_out(
        self, errand: SendPlan, deciding: Callable[[], DecideOp[T]], actor: Actor
    ) -> Op[Decided[T]]:
        """Commit a send; return an unused rate slot."""
        done: Decided[T] | None = None
        try:
            done = yield from self._change(errand, deciding, actor)
            return done
        finally:
            sent = done is not None and not isinstance(done.outcome, Refused | MessageExists)
            if done is not None and done.revision is not None and sent and errand.turn.needed:
                self._registered.add(errand.sender)
            elif (slot := errand.turn.slot) is not None:
                self._meters[errand.sender].give_back(slot)
            for agent in errand.turn.entered:
                self._depths.settled(keys.unread(agent))

    def _change(
        self, errand: SendPlan, deciding: Callable[[], DecideOp[T]], actor: Actor
    ) -> Op[Decided[T]]:
        """A sender that exceeds its rate is refused before any inbox is counted."""
        if not (limited := self._limited(errand)):
            yield from self._enter(errand)
        if limited or errand.turn.full:
            refused = yield from outside(deciding())
            if not refused.changes:
                yield from self._runner.counted(refused.outcome, actor)
                return Decided(refused.outcome, None)
            if limited and not self._limited(errand):
                yield from self._enter(errand)
        return (yield from self._runner.change(deciding, actor, self._guess(errand)))

    def _limited(self, errand: SendPlan) -> bool:
        return bool(self.limits.rate.limit) and errand.turn.slot is None

    def _enter(self, errand: SendPlan) -> Op[None]:
        """Take space in the inboxes of all recipients until the send has ended."""
        for agent in errand.to:
            if (yield from outside(self._depths.full(keys.unread(agent)))):
                errand.turn.full = agent
                return
            errand.turn.entered.append(agent)

    def errand(
        self,
        sender: str,
        places: tuple[str, ...],
        to: Iterable[str],
        acks: tuple[str, ...] = (),
        *,
        room: tuple[str, ...] = (),
    ) -> SendPlan:
        """The plan of a send, with a rate slot that seems free."""
        meter = self._meter(sender)
        slot = None if meter is None else meter.take(self.moment())
        return SendPlan(
            sender=sender, places=places, to=tuple(to), acks=acks, room=room, turn=SendAttempt(slot)
        )

    def _guess(self, errand: SendPlan) -> dict[str, Item | None] | None:
        """The assumed state, if it is enough to send without a read."""
        if self._runner.capabilities.transacts or errand.acks or self._limited(errand):
            return None
        known: dict[str, Item | None] = dict.fromkeys(errand.refs)
        for agent in errand.to:
            key = keys.mailbox(agent)
            known[key] = Item(key, _MAILBOX, 0, 0)
        if errand.turn.slot is not None:
            known |= self._runner.recall(keys.rate(errand.sender, errand.turn.slot))
        return known

    def facts(self, errand: SendPlan, snapshot: Snapshot) -> ReadOp[SenderState]:
        """The stored state that decides whether the message can be sent."""
        unknown = tuple([each for each in errand.to if snapshot[keys.mailbox(each)] is None])
        facts = SenderState(
            paused=decode.paused(snapshot[keys.paused(errand.sender)]),
            exists=any(snapshot[place] is not None for place in errand.places),
            registered=errand.sender in self._registered,
            unknown=unknown,
            rate=self.limits.rate,
        )
        errand.turn.needed = not facts.exists
        if facts.paused or facts.exists:
            return facts
        if errand.turn.full:
            facts = replace(facts, full=(errand.turn.full, self.limits.depth))
        facts = yield from self._with_turn(errand, snapshot, facts)
        limited = bool(facts.rate.limit) and facts.slot is None
        if facts.full or limited:
            mark, counts = post.refusal_key(errand.sender), limited and self.limits.pause_after
            found = (yield (mark,) if counts else Unchecked((mark,)))[mark]
            facts = replace(facts, marked=found is not None)
            if counts:
                facts = replace(facts, pause_after=counts, violations=decode.violations(found))
        return facts

    def _with_turn(
        self, errand: SendPlan, snapshot: Snapshot, facts: SenderState
    ) -> ReadOp[SenderState]:
        """Add a free rate slot, if there is one; the clock is read after each store read."""
        meter, slot = self._meter(errand.sender), errand.turn.slot
        slots: dict[int, float | None] = {}
        while meter is not None:
            if slot is not None:
                used = decode.moment(snapshot[keys.rate(errand.sender, slot)])
                if rate_limit.is_free(used, meter.rate, self.moment()):
                    return replace(facts, slots=slots, slot=slot)
                meter.give_back(slot)  # another process took it first
            slots = yield from used_slots(errand.sender)
            now = self.moment()
            meter.learn(slots, now)
            slot = errand.turn.slot = meter.take(now)
            if slot is None:
                return replace(facts, slots=slots)
            snapshot = yield (keys.rate(errand.sender, slot),)
        return facts

    def _meter(self, sender: str) -> RateSlots | None:
        if not self.limits.rate.limit:
            return None
        if sender not in self._meters:
            first = self._runner.random_below(self.limits.rate.limit)
            self._meters[sender] = RateSlots(self.limits.rate, first)
        return self._meters[sender]


def _ends(
    agent: str, acks: tuple[str, ...], snapshot: Snapshot, heard: TopicAckSet
) -> ReadOp[AckPlan]:
    """The state of the messages that this send acknowledges."""
    waiting = tuple([id_ for id_ in acks if snapshot[keys.unread(agent, id_)] is not None])
    items = (yield acknowledging.cursor_keys(agent, heard.seen)).items
    seen, stand = acknowledging.current_cursors(agent, heard.seen, heard.begins, items)
    of_topics = {
        id_: stand[each.topic].has(revision)
        for each in heard.seen
        for id_, revision in each.messages.items()
    }
    others = tuple([id_ for id_ in acks if id_ not in waiting and id_ not in of_topics])
    marks = (yield tuple([keys.read(agent, id_) for id_ in others])).items
    read = {id_: marks[keys.read(agent, id_)] is not None for id_ in others}
    return AckPlan(
        waiting=waiting,
        heard=tuple([id_ for id_, before in of_topics.items() if not before]),
        moves=inbox_rules.cursor_writes(agent, seen, stand),
        already=tuple([id_ for id_ in acks if of_topics.get(id_) or read.get(id_)]),
        unknown=tuple([id_ for id_ in others if not read[id_]]),
    )
