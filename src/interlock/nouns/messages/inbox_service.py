"""The inbox: acknowledge messages, skip those that no longer matter, subscribe to alerts.

As many messages are acknowledged in one commit as the store takes.

A message that a subscription filters out becomes unread when the filter changes. So the commit that
moves a cursor reads and checks the subscription: if it has changed, only acknowledged messages are
passed, and the next read of the topic advances the cursor.

An entry of a question that has expired leaves the inbox without being delivered: the receiver that
finds it ends the question.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.errors import StoreDamaged
from interlock.nouns.messages import decode, inbox_reader, inbox_rules, log_lines, query_rules
from interlock.nouns.messages.decode import query_with_answer
from interlock.nouns.messages.inbox_reader import TopicState
from interlock.nouns.messages.inbox_rules import AckRequest, AckState, Cursor, TopicAcks
from interlock.nouns.messages.message import (
    Acknowledged,
    AlertSubscription,
    NotSubscribed,
    Subscribed,
    SubscriptionView,
    UnknownMessages,
    Unsubscribed,
)
from interlock.nouns.messages.query import AskOutcome, TakenBack
from interlock.runtime.attempt import DecideOp
from interlock.runtime.identity import Actor
from interlock.runtime.reads import Pages, every, looked_up, readable
from interlock.runtime.runner import Runner
from interlock.steps import Op
from interlock.store import Item

_OPERATIONS_EACH = 5
"""Operations that one message may need: two checks, a delete, a put, and one to spare."""
_FEW, _LOOKUPS = 10, 1000
"""Up to this number of ids and lookups, messages are looked up by key; beyond, topics are read."""
_BYTES = 500_000
_LONG_CURSOR = 100
"""A larger topic is read to the end only for a cursor with more entries than this."""


def ack(
    runner: Runner, actor: Actor, ids: Sequence[str], can: Iterable[str]
) -> Op[Acknowledged | UnknownMessages]:
    """Acknowledge messages by id, after looking up where they are."""
    wanted = tuple(dict.fromkeys(ids))
    found, begins = yield from topic_acks(actor.agent, wanted, can)
    return (yield from acknowledge(runner, actor, wanted, found, begins))


def topic_acks(
    agent: str, ids: Sequence[str], can: Iterable[str]
) -> Op[tuple[tuple[TopicAcks, ...], dict[str, Cursor]]]:
    """Which of these are messages of topics, and the first cursors of those topics."""
    marks = yield from looked_up([keys.unread(agent, id_) for id_ in ids])
    others = [id_ for id_ in ids if marks[keys.unread(agent, id_)] is None]
    if not others:
        return (), {}
    topics = yield from inbox_reader.topics_of(agent, can)
    found: list[TopicAcks] = []
    for name, found_ids in (yield from _find_in_topics(others, topics)).items():
        found.append((yield from _topic_acks(topics[name], found_ids)))
    return tuple(found), {name: topic.cursor for name, topic in topics.items()}


def acknowledge(
    runner: Runner,
    actor: Actor,
    ids: Sequence[str],
    topic_acks: tuple[TopicAcks, ...] = (),
    begins: Mapping[str, Cursor] = {},
    *,
    notes: tuple[Write, ...] = (),
) -> Op[Acknowledged | UnknownMessages]:
    """Acknowledge messages whose location is known; ``begins`` are the first cursors.

    The ``notes`` are written in each commit.
    """
    of_topics = {id_ for each in topic_acks for id_ in each.messages}
    direct = [id_ for id_ in ids if id_ not in of_topics]
    portion = max(1, (runner.capabilities.max_operations - 16) // _OPERATIONS_EACH)
    done: list[Acknowledged | UnknownMessages] = []
    for start in range(0, len(direct) + len(topic_acks), portion):
        ends = start + portion
        topics = topic_acks[max(start - len(direct), 0) : max(ends - len(direct), 0)]
        acks = AckRequest(ids=tuple(direct[start:ends]), topics=topics)
        done.append((yield from _commit(runner, actor, acks, begins, notes)))
    return combine(ids, done)


def _commit(
    runner: Runner,
    actor: Actor,
    acks: AckRequest,
    begins: Mapping[str, Cursor],
    notes: tuple[Write, ...],
) -> Op[Acknowledged | UnknownMessages]:
    agent = actor.agent
    asked = (*acks.ids, *[id_ for each in acks.topics for id_ in each.messages])

    def deciding() -> DecideOp[Acknowledged | UnknownMessages]:
        marks = {keys.unread(agent, id_): id_ for id_ in acks.ids}
        items = (yield (*marks, *cursor_keys(agent, acks.topics))).items
        waiting = {
            id_: inbox_reader.entry_of_mark(item).trace
            for key, id_ in marks.items()
            if (item := items[key]) is not None
        }
        read: frozenset[str] = frozenset()
        if gone := [id_ for id_ in acks.ids if id_ not in waiting]:
            before = (yield tuple(keys.read(agent, id_) for id_ in gone)).items
            read = frozenset(keys.id_of(key) for key, item in before.items() if item is not None)
        topics, current = current_cursors(agent, acks.topics, begins, items)
        known = AckState(waiting=waiting, read=read, cursors=current)
        now = runner.clock.wall()
        decision = inbox_rules.acknowledge(agent, asked, replace(acks, topics=topics), known, now)
        return replace(decision, puts=(*decision.puts, *notes)) if decision.changes else decision

    outcome = (yield from runner.change(deciding, actor)).outcome
    log_lines.received(agent, outcome.messages)
    return outcome


def _topic_acks(topic: TopicState, found_ids: Mapping[str, tuple[int, str]]) -> Op[TopicAcks]:
    """What else is unread in a topic, unless that is much to read and the cursor is short."""
    messages = {id_: revision for id_, (revision, _) in found_ids.items()}
    long = len(topic.cursor.also) + len(messages) > _LONG_CURSOR
    most = None if long else _BYTES
    unread, upto, whole = yield from inbox_reader.unread_in_topic(topic, most)
    return TopicAcks(
        topic=topic.name,
        messages=messages,
        pending=[each.seq for each in unread] if whole else None,
        upto=upto,
        told=inbox_reader.missed_ids(messages),
        terms=topic.terms,
        traces={id_: trace for id_, (_, trace) in found_ids.items()},
    )


def _find_in_topics(
    ids: Sequence[str], topics: Mapping[str, TopicState]
) -> Op[dict[str, dict[str, tuple[int, str]]]]:
    """Which of these are in a topic of the reader, with their revisions and traces."""
    found: dict[str, dict[str, tuple[int, str]]] = {}
    for id_ in ids:
        if (notice := inbox_reader.parse_missed_id(id_)) is not None and notice[0] in topics:
            trimmed = topics[notice[0]].trimmed
            if trimmed is not None and notice[1] <= trimmed.upto:
                found.setdefault(notice[0], {})[id_] = notice[1], ""
    wanted = set(ids) - inbox_reader.missed_ids(ids)

    def collect(items: Iterable[Item | None]) -> None:
        for item in items:
            if item is not None and (id_ := keys.id_of(item.key)) in wanted:
                entries = found.setdefault(keys.topic_of(item.key), {})
                entries[id_] = item.created, inbox_reader.trace(item)

    if len(wanted) <= _FEW and len(wanted) * len(topics) <= _LOOKUPS:
        some = yield from looked_up(keys.topic(name, id_) for name in topics for id_ in wanted)
        collect(some.values())
    else:
        for name in topics:
            pages = Pages(keys.topic(name))
            while not pages.finished:
                collect((yield from pages.read()))
    return found


def combine(
    ids: Sequence[str], parts: Sequence[Acknowledged | UnknownMessages]
) -> Acknowledged | UnknownMessages:
    """The outcome of all commits, in the caller's order."""
    done = {id_ for each in parts for id_ in each.messages}
    before = {id_ for each in parts for id_ in each.already}
    return inbox_rules.ack_outcome(ids, done, before)


def cursor_keys(agent: str, topic_acks: Iterable[TopicAcks]) -> tuple[str, ...]:
    """The keys to read before these are acknowledged."""
    topics = [each.topic for each in topic_acks]
    cursors = [keys.cursor(agent, topic) for topic in topics]
    return (*cursors, *[keys.subscription(agent, topic) for topic in topics])


def current_cursors(
    agent: str,
    topic_acks: Iterable[TopicAcks],
    begins: Mapping[str, Cursor],
    items: Mapping[str, Item | None],
) -> tuple[tuple[TopicAcks, ...], dict[str, Cursor]]:
    """What is still known of unread messages, and the cursors; ``begins`` if none is stored."""
    still: list[TopicAcks] = []
    cursors: dict[str, Cursor] = {}
    for each in topic_acks:
        item, begin = items[keys.subscription(agent, each.topic)], begins[each.topic]
        if item is not None and (asked := readable(decode.subscription, item)) is not None:
            begin = inbox_rules.first_cursor(asked, item.created)
        stored = readable(decode.cursor, items[keys.cursor(agent, each.topic)])
        cursors[each.topic] = inbox_rules.current_cursor(stored, begin)
        terms = 0 if item is None else item.revision  # no subscription for mail and questions
        still.append(inbox_rules.under_subscription(each, terms))
    return tuple(still), cursors


def end_expired_questions(
    runner: Runner, actor: Actor, lives: Mapping[str, Item | None]
) -> Op[set[str]]:
    """End the expired questions among these; unreadable ones are left alone."""
    found: set[str] = set()
    for key in [key for key, item in lives.items() if item is None]:
        with suppress(StoreDamaged):
            yield from expire_query(runner, actor, keys.id_of(key))
            found.add(keys.id_of(key))
    return found


def expire_query(runner: Runner, actor: Actor, id_: str) -> Op[AskOutcome]:
    """End a question that has expired; return the outcome of any other."""
    decision_id = runner.new_id("dec")

    def deciding() -> DecideOp[AskOutcome]:
        query = yield from query_with_answer((yield (keys.query(id_),))[keys.query(id_)])
        if query is None:
            return Decision(outcome=TakenBack(query=id_))
        if (yield (keys.live(id_),))[keys.live(id_)] is not None:
            return Decision(outcome=query_rules.outcome_of(query))
        return query_rules.expire(query, runner.clock.wall(), decision_id)

    return (yield from runner.change(deciding, actor)).outcome


def subscribe(
    runner: Runner, actor: Actor, type_: str, wanted: AlertSubscription, last: int
) -> Op[Subscribed]:
    """Deliver alerts of this type from now on, after the ``last`` earlier ones."""
    if last:
        everything = TopicState(name=type_, wanted=wanted, cursor=Cursor(after=0))
        found, upto, _ = yield from inbox_reader.unread_in_topic(everything)
        places = sorted(each.seq for each in found)[-last:]
        wanted = replace(wanted, since=places[0] - 1 if places else upto)
    key = keys.subscription(actor.agent, type_)

    def deciding() -> DecideOp[Subscribed]:
        before = inbox_reader.stored_subscription((yield (key,))[key])
        return inbox_rules.subscribe(actor.agent, type_, wanted, before, last)

    return (yield from runner.change(deciding, actor)).outcome


def unsubscribe(runner: Runner, actor: Actor, type_: str) -> Op[Unsubscribed | NotSubscribed]:
    """Stop delivering alerts of this type."""
    key = keys.subscription(actor.agent, type_)

    def deciding() -> DecideOp[Unsubscribed | NotSubscribed]:
        before = inbox_reader.stored_subscription((yield (key,))[key])
        return inbox_rules.unsubscribe(actor.agent, type_, before)

    return (yield from runner.change(deciding, actor)).outcome


def subscriptions(agent: str) -> Op[tuple[SubscriptionView, ...]]:
    """The subscriptions of an agent, by type."""
    items = yield from every(keys.subscription(agent))
    found = {keys.topic_of(item.key): inbox_reader.stored_subscription(item) for item in items}
    return tuple(
        SubscriptionView(type=type_, senders=each.senders, where=each.where)
        for type_, each in found.items()
        if each is not None
    )


def subscribed_types() -> Op[set[str]]:
    """The types of alerts that have a subscriber."""
    return {keys.topic_of(item.key) for item in (yield from every(keys.SUBSCRIPTIONS))}
