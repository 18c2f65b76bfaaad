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
from interlock.nouns.messages.inbox_rules import Cursor, Trimmed
from interlock.nouns.messages.message import (
    ABLE,
    ALL,
    Message,
    Received,
    Subscription,
    Unread,
    matches,
)
from interlock.runtime.decode import readable
from interlock.runtime.gather import every, looked_up, paged
from interlock.runtime.steps import Read
from interlock.store import Item, Range, Snapshot

MISSED = "missed:"
"""What the id begins with that somebody acknowledges who missed something."""
EVERYTHING = Subscription(since=0)
"""What everybody hears without asking: mail to all, and questions to what it is able to do."""


class Topic(Struct, frozen=True, kw_only=True):
    """A topic that an agent hears, how far it has read it, and what of it was forgotten."""

    name: str
    wanted: Subscription
    cursor: Cursor
    trimmed: Trimmed | None = None
    terms: int = 0
    """The revision of the subscription."""
    begins: int = 0
    """The revision after which its messages count."""
    without: str = ""
    """Whose messages it leaves out: mail to all is for everybody but its sender."""

    def hears(self, message: Message, revision: int) -> bool:
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
    def whole(self) -> Topic:
        """The same, as if nothing of it had been read, and whoever sent it."""
        return replace(self, cursor=Cursor(after=self.begins), without="")

    @property
    def missed(self) -> bool:
        """Whether something may have been forgotten before it was read."""
        return self.cursor.missed(self.trimmed, self.without)


class Found(Struct, frozen=True, kw_only=True):
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


def folders(agent: str) -> Op[tuple[str, ...]]:
    """Where the messages stand that an agent has received or sent."""
    heard = yield from topics(agent)
    marks = (keys.unread(agent), keys.read(agent), keys.sent(agent))
    return (*marks, *(keys.topic(each) for each in heard))


def topics(agent: str, can: Iterable[str] = ()) -> Op[dict[str, Topic]]:
    """All topics that an agent hears, as they stand."""
    items = yield from every(keys.subscription(agent), keys.cursor(agent))
    asked = yield from questions(can)
    wanted = {ALL: EVERYTHING, **dict.fromkeys(asked, EVERYTHING)}
    begins = dict.fromkeys(wanted, 0)
    cursors: dict[str, Cursor] = {}
    terms: dict[str, int] = {}
    for item in items:
        name = keys.topic_of(item.key)
        if not item.key.startswith(keys.CURSORS):
            wanted[name], begins[name] = subscription(item) or EVERYTHING, item.created
            terms[name] = item.revision
        elif (cursor := readable(decode.cursor, item)) is not None:
            cursors[name] = cursor
    forgot = yield from looked_up([keys.mailbox(agent), *map(keys.trimmed, wanted)])
    if (mailbox := forgot[keys.mailbox(agent)]) is None:
        forgot[keys.trimmed(ALL)] = None  # whoever is not there has missed nothing
    else:
        cursors[ALL] = _newcomer(cursors.get(ALL), mailbox)
    start = {name: inbox_rules.begin(asked_for, begins[name]) for name, asked_for in wanted.items()}
    return {
        name: Topic(
            name=name,
            wanted=asked_for,
            terms=terms.get(name, 0),
            begins=start[name].after,
            cursor=inbox_rules.standing(cursors.get(name), start[name]),
            trimmed=readable(decode.trimmed, forgot[keys.trimmed(name)]),
            without=agent if name == ALL else "",
        )
        for name, asked_for in wanted.items()
    }


def subscription(item: Item | None) -> Subscription | None:
    """What somebody asked to hear of; if that cannot be read, all of it: rather more than less."""
    return None if item is None else readable(decode.subscription, item) or Subscription()


def _newcomer(stored: Cursor | None, mailbox: Item) -> Cursor:
    """How far somebody is with mail to all; what was sent before it was there it has not missed."""
    cursor = stored or Cursor(after=0)
    return replace(cursor, told=max(cursor.told, mailbox.created))


def questions(can: Iterable[str]) -> Op[list[str]]:
    """The topics of the questions that somebody of these abilities can answer.

    Whoever can do everything hears of those that there are.
    """
    abilities = tuple(can)
    if ANYTHING not in abilities:
        return [ABLE + each for each in abilities]
    items = yield from every(keys.TOPICS + ABLE)
    return list(dict.fromkeys(keys.topic_of(item.key) for item in items))


def waiting(agent: str) -> Op[tuple[list[Found], int]]:
    """What waits for an agent alone, in order, and the revision at which that was so."""
    found: list[Found] = []
    after, revision = "", 0
    while True:
        page = Range(keys.unread(agent), after)
        snapshot: Snapshot = yield Read(page)
        revision = revision or snapshot.revision
        items = snapshot.ranges[page]
        found.extend(map(mark, items))
        if len(items) < page.limit:
            return sorted(found, key=lambda each: each.order), revision
        after = items[-1].key


def mark(item: Item) -> Found:
    """The message that a mark stands for."""
    id_ = keys.last(item.key)
    try:
        said = decode.unread(item)
    except StoreDamaged:
        said = Unread()
    key = keys.message(id_)
    return Found(id=id_, seq=item.created, key=key, urgent=said.urgent, trace=said.trace)


def trace(item: Item) -> str:
    """The trace of a message of a topic, or of the question that a mark there stands for."""
    if keys.topic_of(item.key).startswith(ABLE):
        return mark(item).trace
    message = readable(decode.message, item)
    return "" if message is None else message.trace


def unheard(topic: Topic) -> Op[tuple[list[Found], int]]:
    """What an agent has not acknowledged of a topic, in order, as of a revision."""
    found: list[Found] = []
    folder = keys.topic(topic.name)
    revision, _ = yield from paged(folder, lambda items: found.extend(heard(topic, items)))
    return sorted(found, key=lambda each: each.order), revision


def pending(topic: Topic, most: int | None) -> Op[tuple[list[int] | None, int]]:
    """The revisions of these; None if the topic has more than ``most`` bytes."""
    found: list[int] = []

    def look(items: Sequence[Item]) -> None:
        found.extend([each.seq for each in heard(topic, items)])

    revision, whole = yield from paged(keys.topic(topic.name), look, most)
    return found if whole else None, revision


def heard(topic: Topic, items: Iterable[Item]) -> Iterator[Found]:
    """Those of some messages of a topic that its reader wants, and has not acknowledged."""
    for item in items:
        if topic.cursor.has(item.created):
            continue
        id_ = keys.last(item.key)
        found = Found(id=id_, seq=item.created, key=item.key, topic=topic.name)
        if topic.name.startswith(ABLE):
            said = mark(item)
            yield replace(found, key=keys.message(id_), urgent=said.urgent, trace=said.trace)
            continue
        message = readable(decode.message, item)
        if message is None:  # nobody knows whether it is wanted, so it is told
            yield found
        elif topic.hears(message, item.created):
            yield replace(found, urgent=message.urgent, trace=message.trace)


def along(agent: str, marks: Iterable[str]) -> tuple[str, ...]:
    """What is needed beside these marks and messages of topics to give them out at once."""
    found: list[str] = []
    for key in marks:
        topic = keys.topic_of(key) if key.startswith(keys.TOPICS) else ""
        found += standing(agent, topic) if topic else ()
        if not topic or topic.startswith(ABLE):
            found.append(keys.message(keys.last(key)))
    return tuple(found)


def standing(agent: str, topic: str) -> tuple[str, ...]:
    """What says how far an agent has read a topic, and what it asked to hear of it."""
    if topic == ALL or topic.startswith(ABLE):
        return (keys.cursor(agent, topic),)
    return keys.cursor(agent, topic), keys.subscription(agent, topic)


def outdated(topics: Mapping[str, Topic], items: Mapping[str, Item | None]) -> bool:
    """Whether an agent asks to hear something else of a topic than is known here."""
    return any(
        topics[keys.topic_of(key)].terms != (0 if item is None else item.revision)
        for key, item in items.items()
        if key.startswith(keys.SUBSCRIPTIONS)
    )


def bodies(wanted: Sequence[Found]) -> Op[list[tuple[Found, Received]]]:
    """These messages with what they say; without those that are gone."""
    items = yield from looked_up([each.key for each in wanted])
    return told(wanted, items, (yield from lives(wanted)))


def lives(wanted: Iterable[Found]) -> Op[dict[str, Item | None]]:
    """How long the questions among these may still be answered."""
    asked = [keys.live(each.id) for each in wanted if each.key.startswith(keys.QUERIES)]
    return (yield from looked_up(asked, times=True)) if asked else {}


def told(
    wanted: Iterable[Found], items: Mapping[str, Item | None], lives: Mapping[str, Item | None]
) -> list[tuple[Found, Received]]:
    """The same of what was read."""
    found: list[tuple[Found, Received]] = []
    for each in wanted:
        item = items[each.key]
        if item is None:
            continue
        left = lives.get(keys.live(each.id))
        expires = None if left is None else left.expires_in
        message = readable(decode.message, item)
        if message is None:
            found.append((each, unreadable(each)))
        else:
            found.append((each, decode.received(message, each.seq, expires_in=expires)))
    return found


def unreadable(found: Found) -> Received:
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


def missed(topic: Topic) -> Received:
    """What somebody is told who comes too late for some messages of a topic.

    They are gone, so nobody can tell which of them a filter would have left out.
    """
    forgot = topic.trimmed or Trimmed(upto=0, count=0)
    upto = forgot.missing(topic.without)
    return Received(
        id=f"{MISSED}{topic.name}:{upto}",
        kind="missed",
        sender="",
        at=0.0,
        seq=upto,
        type=topic.name,
        data={"upto": upto, "trimmed": forgot.count, "filtered": topic.filtered},
    )


def missed_of(id_: str) -> tuple[str, int] | None:
    """The topic and the revision in such an id."""
    topic, _, upto = id_.removeprefix(MISSED).rpartition(":")
    return (topic, int(upto)) if id_.startswith(MISSED) and upto.isdecimal() else None


def told_of(ids: Iterable[str]) -> frozenset[str]:
    """Those that only say that something was missed."""
    return frozenset(id_ for id_ in ids if missed_of(id_) is not None)


def find(agent: str, id_: str) -> Op[Message | None]:
    """A message that an agent sent or was sent, while it is kept."""
    wanted = (keys.message(id_), keys.topic(ALL, id_))
    snapshot: Snapshot = yield Read(*wanted)
    for key in wanted:
        if (item := snapshot[key]) is not None:
            message = decode.message(item)
            concerned = agent in (message.sender, *message.to) or ALL in message.to
            return message if concerned else None
    return None
