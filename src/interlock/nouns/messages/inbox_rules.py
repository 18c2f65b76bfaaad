"""Acknowledging: which messages an agent has read, and its cursor in each topic.

A cursor has ``after``, the revision up to which everything in a topic is acknowledged, and
``also``, revisions beyond it that were acknowledged out of order. A reader that knows what is still
unread (``pending``) as of a revision (``upto``) advances the cursor to just before the first unread
message, or to ``upto`` if there is none. A reader that knows only the acknowledged message adds it
to ``also``.

If messages of a topic are deleted before an agent acknowledged them, it gets a notice. ``told`` is
the revision up to which it has acknowledged such notices; older messages that still exist stay
unread. An agent does not receive its own mail to all, so it cannot miss it.

So acknowledging in order keeps a cursor at one number, however many messages the subscription
filters out, and two receivers with one name only add to each other's cursor.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Event, Write
from interlock.core.thing_names import message_thing_by_id
from interlock.nouns.messages.message import (
    Acknowledged,
    AlertSubscription,
    NotSubscribed,
    Subscribed,
    UnknownMessages,
    Unsubscribed,
)
from interlock.nouns.messages.send_rules import MAILBOX, ack_writes


class Cursor(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How far an agent has acknowledged the messages of a topic."""

    after: int
    also: tuple[int, ...] = ()
    told: int = 0

    def has(self, revision: int) -> bool:
        """Whether the message of this revision is acknowledged."""
        place = bisect_left(self.also, revision)
        return revision <= self.after or self.also[place : place + 1] == (revision,)

    def missed(self, trimmed: TopicTrim | None, without: str = "") -> bool:
        """Whether messages may have been deleted before they were acknowledged."""
        return trimmed is not None and self.lacks(trimmed.missing(without))

    def lacks(self, upto: int) -> bool:
        """Whether a notice of deletions up to this revision is still to be acknowledged."""
        return upto > max(self.after, self.told)


class TopicTrim(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The deletions in a topic: up to which revision, and how many in all.

    ``by`` is the sender of the last deleted message; ``others`` is the last revision deleted of any
    other sender.
    """

    upto: int
    count: int
    by: str = ""
    others: int = 0

    def missing(self, without: str = "") -> int:
        """The last deleted revision of messages that this reader would have received."""
        return self.others if without and without == self.by else self.upto


class TopicAcks(Struct, frozen=True, kw_only=True):
    """Messages of one topic to acknowledge, by id and revision.

    ``pending`` are the revisions of all unread messages as of ``upto``, these included; None if the
    reader does not know them. ``told`` are those of the ids that are notices of deleted messages.
    ``terms`` is the revision of the subscription whose filter was used. ``traces`` are the traces
    of the messages, if known.
    """

    topic: str
    messages: Mapping[str, int]
    pending: Sequence[int] | None = None
    upto: int = 0
    terms: int = 0
    told: AbstractSet[str] = frozenset()
    traces: Mapping[str, str] = {}

    def new(self, cursor: Cursor) -> list[str]:
        """The ids that are not acknowledged yet."""
        return [
            id_
            for id_, revision in self.messages.items()
            if (cursor.lacks(revision) if id_ in self.told else not cursor.has(revision))
        ]


class AckRequest(Struct, frozen=True, kw_only=True):
    """What one commit acknowledges: direct messages, and messages of topics."""

    ids: tuple[str, ...] = ()
    topics: tuple[TopicAcks, ...] = ()


class AckState(Struct, frozen=True, kw_only=True):
    """The stored state: unread messages with their traces, acknowledged ones, and cursors."""

    waiting: Mapping[str, str] = {}
    read: AbstractSet[str] = frozenset()
    cursors: Mapping[str, Cursor] = {}


def acknowledge(
    agent: str, asked: Sequence[str], acks: AckRequest, state: AckState, now: float
) -> Decision[Acknowledged | UnknownMessages]:
    """Acknowledge messages in one commit; they are not delivered again.

    ``asked`` are the ids in the caller's order; an id that is neither unread nor acknowledged is
    unknown.
    """
    direct = [id_ for id_ in acks.ids if id_ in state.waiting]
    of_topics = [topic_acks.new(state.cursors[topic_acks.topic]) for topic_acks in acks.topics]
    done = {*direct, *chain.from_iterable(of_topics)}
    before = {id_ for topic_acks in acks.topics for id_ in topic_acks.messages} | state.read
    outcome = ack_outcome(dict.fromkeys(asked), done, before)
    puts, deletes = ack_writes(agent, direct, now)
    moves = cursor_writes(agent, acks.topics, state.cursors)
    if not done and not moves:
        return Decision(outcome=outcome)
    traces = dict(state.waiting)
    for topic_acks in acks.topics:
        traces |= topic_acks.traces
    ended = [id_ for id_ in asked if id_ in done]
    trace, events = receive_events(agent, ended, traces)
    return Decision(
        outcome=outcome,
        verb="message.ack",
        thing=f"agent/{agent}",
        puts=(*puts, *moves),
        deletes=deletes,
        events=events,
        trace=trace,
    )


def receive_events(
    agent: str, ids: Sequence[str], traces: Mapping[str, str]
) -> tuple[str, tuple[Event, ...]]:
    """The events of acknowledged messages, and their trace if they have only one."""
    under_subscription = {traces.get(id_, "") for id_ in ids}
    one = under_subscription.pop() if len(under_subscription) == 1 else ""
    return one, tuple(
        [
            Event(
                "message:received",
                agent,
                message_thing_by_id(id_),
                "" if one else traces.get(id_, ""),
            )
            for id_ in ids
        ]
    )


def ack_outcome(
    ids: Iterable[str], done: AbstractSet[str], before: AbstractSet[str]
) -> Acknowledged | UnknownMessages:
    """The outcome for these ids, in their order: ``done`` now, acknowledged ``before``, unknown."""
    new = tuple([id_ for id_ in ids if id_ in done])
    already = tuple([id_ for id_ in ids if id_ not in done and id_ in before])
    unknown = tuple([id_ for id_ in ids if id_ not in done and id_ not in before])
    if unknown:
        return UnknownMessages(unknown=unknown, messages=new, already=already)
    return Acknowledged(messages=new, already=already)


def cursor_writes(
    agent: str, topic_acks: Iterable[TopicAcks], cursors: Mapping[str, Cursor]
) -> tuple[Write, ...]:
    """The cursors that change when these are acknowledged."""
    after = {each.topic: advance(cursors[each.topic], each) for each in topic_acks}
    return tuple(
        Write(keys.cursor(agent, topic), cursor)
        for topic, cursor in after.items()
        if cursor != cursors[topic]
    )


def advance(before: Cursor, topic_acks: TopicAcks) -> Cursor:
    """The cursor after these are acknowledged."""
    also = {*before.also, *topic_acks.messages.values()}
    after = before.after
    if topic_acks.pending is not None:
        unread = [each for each in topic_acks.pending if each > after and each not in also]
        after = max(after, min(unread) - 1 if unread else topic_acks.upto)
    told = max([before.told, *[topic_acks.messages[id_] for id_ in topic_acks.told]])
    return Cursor(
        after=after,
        also=tuple(sorted(each for each in also if each > after)),
        told=told if told > after else 0,
    )


def under_subscription(topic_acks: TopicAcks, terms: int) -> TopicAcks:
    """Drop what the reader knows of unread messages if the subscription has changed since."""
    return topic_acks if topic_acks.terms == terms else replace(topic_acks, pending=None)


def current_cursor(stored: Cursor | None, begins: Cursor) -> Cursor:
    """The stored cursor, unless an earlier subscription left it."""
    return begins if stored is None or stored.after < begins.after else stored


def merged(one: Cursor, other: Cursor) -> Cursor:
    """A cursor with everything that either of two has acknowledged."""
    if one == other:
        return one
    after, told = max(one.after, other.after), max(one.told, other.told)
    also = sorted({each for each in (*one.also, *other.also) if each > after})
    return Cursor(after=after, also=tuple(also), told=told if told > after else 0)


def first_cursor(subscription: AlertSubscription, created: int) -> Cursor:
    """The cursor of a new subscription."""
    return Cursor(after=created if subscription.since is None else subscription.since)


def subscribe(
    agent: str, type_: str, wanted: AlertSubscription, before: AlertSubscription | None, last: int
) -> Decision[Subscribed]:
    """Deliver alerts of this type from now on; a repeated call only changes the filters.

    Acknowledged messages are not delivered again, so a repeated call brings no earlier ones. A
    leftover cursor is deleted: a late acknowledgement wrote it after the last unsubscribe.
    """
    outcome = Subscribed(type=type_, last=0 if before else last, already=before is not None)
    if before is not None:
        wanted = AlertSubscription(senders=wanted.senders, where=wanted.where, since=before.since)
        if wanted == before:
            return Decision(outcome=outcome)
    return Decision(
        outcome=outcome,
        verb="alert.subscribe",
        thing=f"alert/{type_}",
        puts=(Write(keys.subscription(agent, type_), wanted), Write(keys.mailbox(agent), MAILBOX)),
        deletes=() if before else (keys.cursor(agent, type_),),
        events=(Event("alert:subscribed", agent),),
    )


def unsubscribe(
    agent: str, type_: str, before: AlertSubscription | None
) -> Decision[Unsubscribed | NotSubscribed]:
    """Stop delivering alerts of this type."""
    if before is None:
        return Decision(outcome=NotSubscribed(type=type_))
    return Decision(
        outcome=Unsubscribed(type=type_),
        verb="alert.unsubscribe",
        thing=f"alert/{type_}",
        deletes=(keys.subscription(agent, type_), keys.cursor(agent, type_)),
        events=(Event("alert:unsubscribed", agent),),
    )
