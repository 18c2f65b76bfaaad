"""Sending a message: one commit, and one round trip over a network.

The common case is assumed and checked by the commit: the id is new, the recipient has a mailbox,
the sender is not paused and one of its rate slots is free. The conflict returns the true state.

A probable refusal is decided before the write lock is taken, so a sender that exceeds its rate or
writes to a full inbox does not delay others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.core.rate import slot_is_free
from interlock.nouns.messages import decode, inbox_rules, inbox_service, log_lines, send_rules
from interlock.nouns.messages.inbox_rules import Cursor, TopicAcks
from interlock.nouns.messages.limits import (
    COUNTED,
    DepthCounts,
    MessageLimits,
    RateSlots,
    used_slots,
)
from interlock.nouns.messages.message import (
    MessageExists,
    Refused,
    SendOutcome,
    Sent,
    StoredMessage,
)
from interlock.nouns.messages.send_rules import MAILBOX, NO_ACKS, AckPlan, SenderState, SendOptions
from interlock.runtime.attempt import DecideOp, ReadOp, Unchecked
from interlock.runtime.identity import Actor
from interlock.runtime.reads import outside
from interlock.runtime.runner import Decided, Runner
from interlock.steps import Op
from interlock.store import Item, Snapshot

T = TypeVar("T")

_MAILBOX = codec.encode(MAILBOX)
_NOT_SENT = (Refused, MessageExists)


class SendPlan(Struct, kw_only=True):
    """What a send reads and checks, over all attempts to commit it.

    ``id_keys`` exist if it was sent before, and then it is not ``needed``. ``paused`` is the key of
    the sender's pause, ``mailboxes`` has each recipient with the key of its mailbox, and ``others``
    are further keys that its commit depends on. It takes the rate ``slot``. ``entered`` are the
    inboxes that have admitted it, in the order of the recipients; ``full`` is a recipient whose
    inbox is full.
    """

    sender: str
    id_keys: tuple[str, ...]
    paused: str
    to: tuple[str, ...] = ()
    mailboxes: tuple[tuple[str, str], ...] = ()
    acks: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    slot: int | None = None
    slot_key: str = ""
    needed: bool = True
    entered: list[str] = []
    full: str = ""

    def take(self, slot: int | None) -> None:
        """Take a rate slot, or none."""
        self.slot = slot
        self.slot_key = "" if slot is None else keys.rate_slot(self.sender, slot)

    @property
    def refs(self) -> tuple[str, ...]:
        """The keys that its commit depends on."""
        refs = [*self.id_keys, self.paused]
        if self.mailboxes:
            refs += [key for _, key in self.mailboxes]
        if self.slot is not None:
            refs.append(self.slot_key)
        return (*refs, *self.others)


class MessageSender:
    """Sends messages; its methods are generators for a driver."""

    def __init__(self, runner: Runner, limits: MessageLimits) -> None:
        self._runner = runner
        self.limits = limits
        self._rate_slots: dict[str, RateSlots] = {}
        self._depths = DepthCounts(limits.depth, runner.clock, runner.capabilities.allow(COUNTED))
        self._registered: set[str] = set()

    def send(
        self,
        actor: Actor,
        message: StoredMessage,
        options: SendOptions,
        topic_acks: tuple[TopicAcks, ...] = (),
        begins: Mapping[str, Cursor] = {},
    ) -> Op[SendOutcome]:
        """Send a message; return when it is durable, or with the refusal.

        ``topic_acks`` are the messages of topics among those that it acknowledges, and ``begins``
        the first cursors of those topics.
        """
        topic = send_rules.topic_of(message)
        id_key = keys.topic(topic, message.id) if topic else keys.message(message.id)
        id_keys = (id_key, keys.chosen_id(message.id)) if options.chosen else (id_key,)
        to = () if topic else message.to
        plan = self.plan(message.sender, id_keys, to, options.acks)

        def deciding() -> DecideOp[SendOutcome]:
            snapshot = yield plan.refs
            state = yield from self.sender_state(plan, snapshot)
            now = self.moment()
            seen = NO_ACKS
            if options.acks and not state.exists:
                seen = yield from _ack_plan(plan, snapshot, topic_acks, begins)
            return send_rules.send(message, state, now, options, seen)

        done: Decided[SendOutcome] = yield from self.commit(plan, deciding, actor)
        if isinstance(done.outcome, Sent):
            log_lines.sent(message.sender, done.outcome)
        return done.outcome

    def moment(self) -> float:
        """The time that both the message and its rate slot carry."""
        return round(self._runner.clock.wall(), 3)

    def commit(
        self, plan: SendPlan, deciding: Callable[[], DecideOp[T]], actor: Actor
    ) -> Op[Decided[T]]:
        """Commit a send; return an unused rate slot."""
        done: Decided[T] | None = None
        try:
            if self._admitted(plan):
                done = yield from self._runner.change(deciding, actor, self._guess(plan))
            else:
                done = yield from self._change(plan, deciding, actor)
            return done
        finally:
            sent = done is not None and not isinstance(done.outcome, _NOT_SENT)
            if done is not None and done.revision is not None and sent and plan.needed:
                self._registered.add(plan.sender)
            elif (slot := plan.slot) is not None:
                self._rate_slots[plan.sender].release(slot)
            for inbox in plan.entered:
                self._depths.settled(inbox)

    def _admitted(self, plan: SendPlan) -> bool:
        """Whether nothing has to be counted: the rate and all inboxes have room, as far as known.

        The inboxes that have room are entered.
        """
        if self._limited(plan):
            return False
        for agent in plan.to:
            if not self._depths.admit(inbox := keys.unread(agent)):
                return False
            plan.entered.append(inbox)
        return True

    def _change(
        self, plan: SendPlan, deciding: Callable[[], DecideOp[T]], actor: Actor
    ) -> Op[Decided[T]]:
        """A sender that exceeds its rate is refused before any inbox is counted."""
        if not (limited := self._limited(plan)):
            yield from self._enter(plan)
        if limited or plan.full:
            refused = yield from outside(deciding())
            if not refused.changes:
                yield from self._runner.counted(refused.outcome, actor)
                return Decided(refused.outcome, None)
            if limited and not self._limited(plan):
                yield from self._enter(plan)
        return (yield from self._runner.change(deciding, actor, self._guess(plan)))

    def _limited(self, plan: SendPlan) -> bool:
        return bool(self.limits.rate.limit) and plan.slot is None

    def _enter(self, plan: SendPlan) -> Op[None]:
        """Take space in the inboxes of all recipients until the send has ended."""
        for agent in plan.to[len(plan.entered) :]:
            inbox = keys.unread(agent)
            if (yield from outside(self._depths.full(inbox))):
                plan.full = agent
                return
            plan.entered.append(inbox)

    def plan(
        self,
        sender: str,
        id_keys: tuple[str, ...],
        to: tuple[str, ...],
        acks: tuple[str, ...] = (),
        *,
        free_keys: tuple[str, ...] = (),
    ) -> SendPlan:
        """The plan of a send, with a rate slot that seems free.

        It checks that the ``free_keys`` do not exist.
        """
        unread = tuple([keys.unread(sender, id_) for id_ in acks]) if acks else ()
        plan = SendPlan(
            sender=sender, id_keys=id_keys, paused=keys.paused(sender), others=(*unread, *free_keys)
        )
        if to:
            plan.to = to
            plan.mailboxes = tuple([(agent, keys.mailbox(agent)) for agent in to])
        if acks:
            plan.acks = acks
        if self.limits.rate.limit:
            plan.take(self._slots_of(sender).take(self.moment()))
        return plan

    def _guess(self, plan: SendPlan) -> dict[str, Item | None] | None:
        """The assumed state, if it is enough to send without a read."""
        if self._runner.capabilities.transacts or plan.acks or self._limited(plan):
            return None
        known: dict[str, Item | None] = dict.fromkeys(plan.refs)
        for _, key in plan.mailboxes:
            known[key] = Item(key, _MAILBOX, 0, 0)
        if plan.slot is not None:
            known |= self._runner.recall(plan.slot_key)
        return known

    def sender_state(self, plan: SendPlan, snapshot: Snapshot) -> ReadOp[SenderState]:
        """The stored state that decides whether the message can be sent."""
        items, sender, limits = snapshot.items, plan.sender, self.limits
        paused, exists, slot = items[plan.paused], False, plan.slot
        slots: dict[int, float | None] = {}
        for id_key in plan.id_keys:
            exists = exists or items[id_key] is not None
        plan.needed = not exists
        may_send = paused is None and not exists
        if may_send and limits.rate.limit and (slot is None or not self._is_free(plan, snapshot)):
            slot, slots = yield from self._other_slot(plan)
        state = SenderState(
            paused=None if paused is None else decode.paused(paused),
            exists=exists,
            registered=sender in self._registered,
            unknown=tuple([agent for agent, key in plan.mailboxes if items[key] is None]),
            full=(plan.full, limits.depth) if plan.full and may_send else None,
            rate=limits.rate,
            slots=slots,
            slot=slot if may_send else None,
        )
        limited = bool(limits.rate.limit) and slot is None and may_send
        if state.full or limited:
            mark, counts = send_rules.refusal_key(plan.sender), limited and self.limits.pause_after
            found = (yield (mark,) if counts else Unchecked((mark,)))[mark]
            state = replace(state, marked=found is not None)
            if counts:
                state = replace(state, pause_after=counts, violations=decode.violations(found))
        return state

    def _is_free(self, plan: SendPlan, snapshot: Snapshot) -> bool:
        """Whether the planned slot is free; the clock is read after the store."""
        item = snapshot.items[plan.slot_key]
        return item is None or slot_is_free(
            decode.slot_used_at(item), self.limits.rate, self.moment()
        )

    def _other_slot(self, plan: SendPlan) -> ReadOp[tuple[int | None, dict[int, float | None]]]:
        """A free rate slot instead of the planned one, if there is one, and the use of all."""
        rate_slots = self._slots_of(plan.sender)
        while True:
            if plan.slot is not None:
                rate_slots.release(plan.slot)  # another process took it first
            slots = yield from used_slots(plan.sender)
            now = self.moment()
            rate_slots.update(slots, now)
            plan.take(rate_slots.take(now))
            if plan.slot is None:
                return None, slots
            if self._is_free(plan, (yield (plan.slot_key,))):
                return plan.slot, slots

    def _slots_of(self, sender: str) -> RateSlots:
        """The rate slots of a sender, if there is a limit."""
        found = self._rate_slots.get(sender)
        if found is None:
            first = self._runner.random_below(self.limits.rate.limit)
            found = self._rate_slots[sender] = RateSlots(self.limits.rate, first)
        return found


def _ack_plan(
    plan: SendPlan,
    snapshot: Snapshot,
    topic_acks: tuple[TopicAcks, ...],
    begins: Mapping[str, Cursor],
) -> ReadOp[AckPlan]:
    """The state of the messages that this send acknowledges."""
    agent, acks = plan.sender, plan.acks
    waiting = tuple([id_ for id_ in acks if snapshot[keys.unread(agent, id_)] is not None])
    items = (yield inbox_service.cursor_keys(agent, topic_acks)).items
    seen, current = inbox_service.current_cursors(agent, topic_acks, begins, items)
    of_topics = {
        id_: current[each.topic].has(revision)
        for each in topic_acks
        for id_, revision in each.messages.items()
    }
    others = tuple([id_ for id_ in acks if id_ not in waiting and id_ not in of_topics])
    marks = (yield tuple([keys.read(agent, id_) for id_ in others])).items
    read = {id_: marks[keys.read(agent, id_)] is not None for id_ in others}
    return AckPlan(
        waiting=waiting,
        from_topics=tuple([id_ for id_, before in of_topics.items() if not before]),
        moves=inbox_rules.cursor_writes(agent, seen, current),
        already=tuple([id_ for id_ in acks if of_topics.get(id_) or read.get(id_)]),
        unknown=tuple([id_ for id_ in others if not read[id_]]),
    )
