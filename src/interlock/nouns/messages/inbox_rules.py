"""Acknowledging, and how far somebody has read what is for all.

A cursor is two things: ``after``, the revision up to which everything of a topic is acknowledged,
and ``also``, the revisions beyond it that were acknowledged out of turn.  What a reader knows to be
still unread (``pending``), as of the revision that it has seen (``upto``), moves the cursor on: it
stands right before the first that is unread, or at ``upto`` if there is none.

What was forgotten of a topic before it was acknowledged is told, and ``told`` is how far somebody
has acknowledged that: what is still there of before stays unread.  Nobody is told of mail to all
that it sent itself, so nobody misses it either.

Whoever knows the message alone, and not what else is unread, only adds to ``also``.

So acknowledging in order keeps a cursor at one number, whatever the filter of its subscription
leaves out; and two readers under one name only ever add to each other's cursor.
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
    """How far somebody has acknowledged the messages of a topic."""

    after: int
    also: tuple[int, ...] = ()
    told: int = 0

    def has(self, revision: int) -> bool:
        """Whether the message of this revision was acknowledged."""
        place = bisect_left(self.also, revision)
        return revision <= self.after or self.also[place : place + 1] == (revision,)

    def missed(self, trimmed: TopicTrim | None, without: str = "") -> bool:
        """Whether something may have been forgotten before it was acknowledged."""
        return trimmed is not None and self.lacks(trimmed.missing(without))

    def lacks(self, upto: int) -> bool:
        """Whether it is still to be acknowledged that messages up to here were forgotten."""
        return upto > max(self.after, self.told)


class TopicTrim(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Up to which revision some messages of a topic were forgotten, and how many in all.

    The last of them was sent ``by`` somebody; ``others`` is how far those of all others were.
    """

    upto: int
    count: int
    by: str = ""
    others: int = 0

    def missing(self, without: str = "") -> int:
        """The same for a reader who is not told what one agent, itself, has sent."""
        return self.others if without and without == self.by else self.upto


class TopicAcks(Struct, frozen=True, kw_only=True):
    """Messages of one topic that somebody acknowledges, by id and revision.

    ``pending`` are the revisions of all that were unread, as of ``upto``, these included.  ``told``
    are those of these ids that only say that some were forgotten, up to their revision.  ``terms``
    is the revision of the subscription that says what is left out.  Who does not know what else is
    unread knows no ``pending``.  ``traces`` are those of the messages, as far as they are known.
    """

    topic: str
    messages: Mapping[str, int]
    pending: Sequence[int] | None = None
    upto: int = 0
    terms: int = 0
    told: AbstractSet[str] = frozenset()
    traces: Mapping[str, str] = {}

    def new(self, cursor: Cursor) -> list[str]:
        """Those of them that were not acknowledged before."""
        return [
            id_
            for id_, revision in self.messages.items()
            if (cursor.lacks(revision) if id_ in self.told else not cursor.has(revision))
        ]


class AckRequest(Struct, frozen=True, kw_only=True):
    """What somebody acknowledges at once: messages to it alone, and messages of topics."""

    ids: tuple[str, ...] = ()
    topics: tuple[TopicAcks, ...] = ()


class AckState(Struct, frozen=True, kw_only=True):
    """What is known of them: which still wait, which were acknowledged before, the cursors.

    Those that still wait come with their traces.
    """

    waiting: Mapping[str, str] = {}
    read: AbstractSet[str] = frozenset()
    cursors: Mapping[str, Cursor] = {}


def acknowledge(
    agent: str, asked: Sequence[str], acks: AckRequest, known: AckState, now: float
) -> Decision[Acknowledged | UnknownMessages]:
    """Let these never come again: all of them with one commit.

    ``asked`` are the ids as they were given; whatever is neither waiting nor was acknowledged
    before is not this agent's.
    """
    direct = [id_ for id_ in acks.ids if id_ in known.waiting]
    of_topics = [seen.new(known.cursors[seen.topic]) for seen in acks.topics]
    done = {*direct, *chain.from_iterable(of_topics)}
    before = {id_ for seen in acks.topics for id_ in seen.messages} | known.read
    outcome = _outcome(asked, done, before)
    puts, deletes = ack_writes(agent, direct, now)
    moves = cursor_writes(agent, acks.topics, known.cursors)
    if not done and not moves:
        return Decision(outcome=outcome)
    traces = dict(known.waiting)
    for seen in acks.topics:
        traces |= seen.traces
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
    """What is told of messages that are acknowledged: under their trace, if they have but one."""
    under_subscription = {traces.get(id_, "") for id_ in ids}
    one = under_subscription.pop() if len(under_subscription) == 1 else ""
    return one, tuple(
        [
            Event("message:received", agent, keys.said(id_), "" if one else traces.get(id_, ""))
            for id_ in ids
        ]
    )


def _outcome(
    asked: Iterable[str], done: AbstractSet[str], before: AbstractSet[str]
) -> Acknowledged | UnknownMessages:
    ids = tuple(dict.fromkeys(asked))
    new = tuple([id_ for id_ in ids if id_ in done])
    already = tuple([id_ for id_ in ids if id_ not in done and id_ in before])
    unknown = tuple([id_ for id_ in ids if id_ not in done and id_ not in before])
    if unknown:
        return UnknownMessages(unknown=unknown, messages=new, already=already)
    return Acknowledged(messages=new, already=already)


def cursor_writes(
    agent: str, seen: Iterable[TopicAcks], cursors: Mapping[str, Cursor]
) -> tuple[Write, ...]:
    """The cursors that move when these are acknowledged."""
    after = {each.topic: advance(cursors[each.topic], each) for each in seen}
    return tuple(
        Write(keys.cursor(agent, topic), cursor)
        for topic, cursor in after.items()
        if cursor != cursors[topic]
    )


def advance(before: Cursor, seen: TopicAcks) -> Cursor:
    """A cursor after these were acknowledged."""
    also = {*before.also, *seen.messages.values()}
    after = before.after
    if seen.pending is not None:
        unread = [each for each in seen.pending if each > after and each not in also]
        after = max(after, min(unread) - 1 if unread else seen.upto)
    told = max([before.told, *[seen.messages[id_] for id_ in seen.told]])
    return Cursor(
        after=after,
        also=tuple(sorted(each for each in also if each > after)),
        told=told if told > after else 0,
    )


def under_subscription(seen: TopicAcks, terms: int) -> TopicAcks:
    """What holds of it under these terms: under others than it was seen, only what is acked."""
    return seen if seen.terms == terms else replace(seen, pending=None)


def current_cursor(stored: Cursor | None, begins: Cursor) -> Cursor:
    """How far somebody is; a cursor that was left by an earlier subscription says nothing."""
    return begins if stored is None or stored.after < begins.after else stored


def merged(one: Cursor, other: Cursor) -> Cursor:
    """All that was acknowledged by either of two."""
    if one == other:
        return one
    after, told = max(one.after, other.after), max(one.told, other.told)
    also = sorted({each for each in (*one.also, *other.also) if each > after})
    return Cursor(after=after, also=tuple(also), told=told if told > after else 0)


def first_cursor(subscription: AlertSubscription, created: int) -> Cursor:
    """The cursor of somebody who has acknowledged nothing yet."""
    return Cursor(after=created if subscription.since is None else subscription.since)


def subscribe(
    agent: str, type_: str, wanted: AlertSubscription, before: AlertSubscription | None, last: int
) -> Decision[Subscribed]:
    """Deliver alerts of this type from now on; asked again, only the terms change.

    What was acknowledged does not come again, so none of the last ones come then.

    A cursor that is left from before was moved by somebody who acknowledged too late.
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
        puts=(
            Write(keys.subscription(agent, type_), wanted),
            Write(keys.mailbox(agent), MAILBOX),
        ),
        deletes=() if before else (keys.cursor(agent, type_),),
        events=(Event("alert:subscribed", agent),),
    )


def unsubscribe(
    agent: str, type_: str, before: AlertSubscription | None
) -> Decision[Unsubscribed | NotSubscribed]:
    """Deliver no more of them."""
    if before is None:
        return Decision(outcome=NotSubscribed(type=type_))
    return Decision(
        outcome=Unsubscribed(type=type_),
        verb="alert.unsubscribe",
        thing=f"alert/{type_}",
        deletes=(keys.subscription(agent, type_), keys.cursor(agent, type_)),
        events=(Event("alert:unsubscribed", agent),),
    )
