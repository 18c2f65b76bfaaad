"""Reading an inbox: what waits for an agent alone, and what is new of the topics that it hears.

All that is read at one revision is known in its order.  The state is the truth: whoever was woken,
or comes back after a crash, reads the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.validate import EVERYTHING as ANYTHING
from interlock.drivers import Op
from interlock.errors import StoreDamaged
from interlock.nouns.messages import decode, inbox_rules
from interlock.nouns.messages.inbox_rules import Cursor, TopicTrim
from interlock.nouns.messages.message import (
    ABLE,
    ALL,
    AlertSubscription,
    Received,
    StoredMessage,
    Unread,
    matches,
)
from interlock.runtime.decode import readable
from interlock.runtime.gather import every, looked_up, paged
from interlock.runtime.steps import Read
from interlock.store import Item, Range, Snapshot

MISSED_PREFIX = "missed:"
"""What the id begins with that somebody acknowledges who missed something."""
ALL_MESSAGES = AlertSubscription(since=0)
"""What everybody hears without asking: mail to all, and questions to what it is able to do."""


class TopicState(Struct, frozen=True, kw_only=True):
    """A topic that an agent hears, how far it has read it, and what of it was forgotten."""

    name: str
    wanted: AlertSubscription
    cursor: Cursor
    trimmed: TopicTrim | None = None
    terms: int = 0
    """The revision of the subscription."""
    begins: int = 0
    """The revision after which its messages count."""
    without: str = ""
    """Whose messages it leaves out: mail to all is for everybody but its sender."""

    def hears(self, message: StoredMessage, revision: int) -> bool:
        """Whether a message is one to be read."""
        if self.cursor.has(revision) or message.sender == self.without:
            return False
        if not self.filtered:
            return True
        return matches(self.wanted, message, msgspec.json.decode(message.data))

    @property
    def filtered(self) -> bool:
        """Whether it leaves out some messages by who sent them, or by what they say."""
        return bool(self.wanted.senders or self.wanted.where)

    @property
    def whole(self) -> TopicState:
        """The same, as if nothing of it had been read, and whoever sent it."""
        return replace(self, cursor=Cursor(after=self.begins), without="")

    @property
    def missed(self) -> bool:
        """Whether something may have been forgotten before it was read."""
        return self.cursor.missed(self.trimmed, self.without)


class InboxEntry(Struct, frozen=True, kw_only=True):
    """A message that waits to be read: where, and its place in the order."""

    id: str
    seq: int
    key: str
    topic: str = ""
    urgent: bool = False
    trace: str = ""

    @property
    def order(self) -> tuple[bool, int]:
        """Urgent ones first, then as they were sent."""
        return not self.urgent, self.seq


def message_folders(agent: str) -> Op[tuple[str, ...]]:
    """Where the messages stand that an agent has received or sent."""
    topic_entries = yield from topics_of(agent)
    marks = (keys.unread(agent), keys.read(agent), keys.sent(agent))
    return (*marks, *(keys.topic(each) for each in topic_entries))


def topics_of(agent: str, can: Iterable[str] = ()) -> Op[dict[str, TopicState]]:
    """All topics that an agent hears, as they stand."""
    items = yield from every(keys.subscription(agent), keys.cursor(agent))
    asked = yield from question_topics(can)
    wanted = {ALL: ALL_MESSAGES, **dict.fromkeys(asked, ALL_MESSAGES)}
    begins = dict.fromkeys(wanted, 0)
    cursors: dict[str, Cursor] = {}
    terms: dict[str, int] = {}
    for item in items:
        name = keys.topic_of(item.key)
        if not item.key.startswith(keys.CURSORS):
            wanted[name], begins[name] = stored_subscription(item) or ALL_MESSAGES, item.created
            terms[name] = item.revision
        elif (cursor := readable(decode.cursor, item)) is not None:
            cursors[name] = cursor
    forgot = yield from looked_up([keys.mailbox(agent), *map(keys.trimmed, wanted)])
    if (mailbox := forgot[keys.mailbox(agent)]) is None:
        forgot[keys.trimmed(ALL)] = None  # whoever is not there has missed nothing
    else:
        cursors[ALL] = _newcomer(cursors.get(ALL), mailbox)
    start = {
        name: inbox_rules.first_cursor(asked_for, begins[name])
        for name, asked_for in wanted.items()
    }
    return {
        name: TopicState(
            name=name,
            wanted=asked_for,
            terms=terms.get(name, 0),
            begins=start[name].after,
            cursor=inbox_rules.current_cursor(cursors.get(name), start[name]),
            trimmed=readable(decode.trimmed, forgot[keys.trimmed(name)]),
            without=agent if name == ALL else "",
        )
        for name, asked_for in wanted.items()
    }


def stored_subscription(item: Item | None) -> AlertSubscription | None:
    """What somebody asked to hear of; if that cannot be read, all of it: rather more than less."""
    return None if item is None else readable(decode.subscription, item) or AlertSubscription()


def _newcomer(stored: Cursor | None, mailbox: Item) -> Cursor:
    """How far somebody is with mail to all; what was sent before it was there it has not missed."""
    cursor = stored or Cursor(after=0)
    return replace(cursor, told=max(cursor.told, mailbox.created))


def question_topics(can: Iterable[str]) -> Op[list[str]]:
    """The topics of the questions that somebody of these abilities can answer.

    Whoever can do everything hears of those that there are.
    """
    abilities = tuple(can)
    if ANYTHING not in abilities:
        return [ABLE + each for each in abilities]
    items = yield from every(keys.TOPICS + ABLE)
    return list(dict.fromkeys(keys.topic_of(item.key) for item in items))


def unread_entries(agent: str) -> Op[tuple[list[InboxEntry], int]]:
    """What waits for an agent alone, in order, and the revision at which that was so."""
    found: list[InboxEntry] = []
    after, revision = "", 0
    while True:
        page = Range(keys.unread(agent), after)
        snapshot: Snapshot = yield Read(page)
        revision = revision or snapshot.revision
        items = snapshot.ranges[page]
        found.extend(map(entry_of_mark, items))
        if len(items) < page.limit:
            return sorted(found, key=lambda each: each.order), revision
        after = items[-1].key


def entry_of_mark(item: Item) -> InboxEntry:
    """The message that a mark stands for."""
    id_ = keys.last(item.key)
    try:
        said = decode.unread(item)
    except StoreDamaged:
        said = Unread()
    key = keys.message(id_)
    return InboxEntry(id=id_, seq=item.created, key=key, urgent=said.urgent, trace=said.trace)


def trace(item: Item) -> str:
    """The trace of a message of a topic, or of the question that a mark there stands for."""
    if keys.topic_of(item.key).startswith(ABLE):
        return entry_of_mark(item).trace
    message = readable(decode.message, item)
    return "" if message is None else message.trace


def unread_in_topic(topic: TopicState) -> Op[tuple[list[InboxEntry], int]]:
    """What an agent has not acknowledged of a topic, in order, as of a revision."""
    found: list[InboxEntry] = []
    folder = keys.topic(topic.name)
    revision, _ = yield from paged(folder, lambda items: found.extend(topic_entries(topic, items)))
    return sorted(found, key=lambda each: each.order), revision


def pending_revisions(topic: TopicState, most: int | None) -> Op[tuple[list[int] | None, int]]:
    """The revisions of these; None if the topic has more than ``most`` bytes."""
    found: list[int] = []

    def look(items: Sequence[Item]) -> None:
        found.extend([each.seq for each in topic_entries(topic, items)])

    revision, whole = yield from paged(keys.topic(topic.name), look, most)
    return found if whole else None, revision


def topic_entries(topic: TopicState, items: Iterable[Item]) -> Iterator[InboxEntry]:
    """Those of some messages of a topic that its reader wants, and has not acknowledged."""
    for item in items:
        if topic.cursor.has(item.created):
            continue
        id_ = keys.last(item.key)
        found = InboxEntry(id=id_, seq=item.created, key=item.key, topic=topic.name)
        if topic.name.startswith(ABLE):
            said = entry_of_mark(item)
            yield replace(found, key=keys.message(id_), urgent=said.urgent, trace=said.trace)
            continue
        message = readable(decode.message, item)
        if message is None:  # nobody knows whether it is wanted, so it is told
            yield found
        elif topic.hears(message, item.created):
            yield replace(found, urgent=message.urgent, trace=message.trace)


def keys_to_deliver(agent: str, marks: Iterable[str]) -> tuple[str, ...]:
    """What is needed beside these marks and messages of topics to give them out at once."""
    found: list[str] = []
    for key in marks:
        topic = keys.topic_of(key) if key.startswith(keys.TOPICS) else ""
        found += topic_state_keys(agent, topic) if topic else ()
        if not topic or topic.startswith(ABLE):
            found.append(keys.message(keys.last(key)))
    return tuple(found)


def topic_state_keys(agent: str, topic: str) -> tuple[str, ...]:
    """What says how far an agent has read a topic, and what it asked to hear of it."""
    if topic == ALL or topic.startswith(ABLE):
        return (keys.cursor(agent, topic),)
    return keys.cursor(agent, topic), keys.subscription(agent, topic)


def subscriptions_changed(
    topics: Mapping[str, TopicState], items: Mapping[str, Item | None]
) -> bool:
    """Whether an agent asks to hear something else of a topic than is known here."""
    return any(
        topics[keys.topic_of(key)].terms != (0 if item is None else item.revision)
        for key, item in items.items()
        if key.startswith(keys.SUBSCRIPTIONS)
    )


def with_bodies(wanted: Sequence[InboxEntry]) -> Op[list[tuple[InboxEntry, Received]]]:
    """These messages with what they say; without those that are gone."""
    items = yield from looked_up([each.key for each in wanted])
    return decoded_entries(wanted, items, (yield from question_lives(wanted)))


def question_lives(wanted: Iterable[InboxEntry]) -> Op[dict[str, Item | None]]:
    """How long the questions among these may still be answered."""
    asked = [keys.live(each.id) for each in wanted if each.key.startswith(keys.QUERIES)]
    return (yield from looked_up(asked, times=True)) if asked else {}


def decoded_entries(
    wanted: Iterable[InboxEntry], items: Mapping[str, Item | None], lives: Mapping[str, Item | None]
) -> list[tuple[InboxEntry, Received]]:
    """The same of what was read."""
    found: list[tuple[InboxEntry, Received]] = []
    for each in wanted:
        item = items[each.key]
        if item is None:
            continue
        left = lives.get(keys.live(each.id))
        expires = None if left is None else left.expires_in
        message = readable(decode.message, item)
        if message is None:
            found.append((each, unreadable_notice(each)))
        else:
            found.append((each, decode.received(message, each.seq, expires_in=expires)))
    return found


def unreadable_notice(found: InboxEntry) -> Received:
    """What somebody is told instead of a message that is damaged."""
    return Received(
        id=found.id,
        kind="missed",
        sender="",
        at=0.0,
        seq=found.seq,
        type=found.topic,
        urgent=found.urgent,
        data={"unreadable": found.key},
    )


def missed_notice(topic: TopicState) -> Received:
    """What somebody is told who comes too late for some messages of a topic.

    They are gone, so nobody can tell which of them a filter would have left out.
    """
    forgot = topic.trimmed or TopicTrim(upto=0, count=0)
    upto = forgot.missing(topic.without)
    return Received(
        id=f"{MISSED_PREFIX}{topic.name}:{upto}",
        kind="missed",
        sender="",
        at=0.0,
        seq=upto,
        type=topic.name,
        data={"upto": upto, "trimmed": forgot.count, "filtered": topic.filtered},
    )


def parse_missed_id(id_: str) -> tuple[str, int] | None:
    """The topic and the revision in such an id."""
    topic, _, upto = id_.removeprefix(MISSED_PREFIX).rpartition(":")
    return (topic, int(upto)) if id_.startswith(MISSED_PREFIX) and upto.isdecimal() else None


def missed_ids(ids: Iterable[str]) -> frozenset[str]:
    """Those that only say that something was missed."""
    return frozenset(id_ for id_ in ids if parse_missed_id(id_) is not None)


def find_message(agent: str, id_: str) -> Op[StoredMessage | None]:
    """A message that an agent sent or was sent, while it is kept."""
    wanted = (keys.message(id_), keys.topic(ALL, id_))
    snapshot: Snapshot = yield Read(*wanted)
    for key in wanted:
        if (item := snapshot[key]) is not None:
            message = decode.message(item)
            concerned = agent in (message.sender, *message.to) or ALL in message.to
            return message if concerned else None
    return None
