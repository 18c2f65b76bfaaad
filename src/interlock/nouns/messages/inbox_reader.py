"""Reading an inbox: an agent's direct messages, and the unread messages of its topics.

The stored state is all that counts: a receiver that is woken, and one that restarts after a crash,
read the same. Everything read at one revision has an order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.validate import ALL_ABILITIES as ANYTHING
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
from interlock.runtime.reads import MOST_PAGE, Pages, every, looked_up, readable
from interlock.steps import Op, Read
from interlock.store import Change, Item, Snapshot

MISSED_PREFIX = "missed:"
"""The prefix of the id of a notice of missed messages."""
ALL_MESSAGES = AlertSubscription(since=0)
"""The subscription that needs no call: mail to all, and questions to one's abilities."""


_ASKING = (keys.QUERIES, keys.TOPICS + ABLE)
"""The folders of questions."""


class TopicState(Struct, frozen=True, kw_only=True):
    """A topic that an agent reads: its filter, its cursor and its deletions."""

    name: str
    wanted: AlertSubscription
    cursor: Cursor
    trimmed: TopicTrim | None = None
    terms: int = 0
    """The revision of the subscription."""
    begins: int = 0
    """The revision after which its messages count."""
    without: str = ""
    """The sender to leave out: mail to all is not for its sender."""

    def wants(self, message: StoredMessage, revision: int) -> bool:
        """Whether a message is unread and passes the filter."""
        if self.cursor.has(revision) or message.sender == self.without:
            return False
        if not self.filtered:
            return True
        return matches(self.wanted, message, msgspec.json.decode(message.data))

    @property
    def filtered(self) -> bool:
        """Whether it filters by sender or by data."""
        return bool(self.wanted.senders or self.wanted.where)

    @property
    def from_start(self) -> TopicState:
        """The topic as if nothing had been read, with the reader's own messages."""
        return replace(self, cursor=Cursor(after=self.begins), without="")

    @property
    def missed(self) -> bool:
        """Whether messages may have been deleted before they were read."""
        return self.cursor.missed(self.trimmed, self.without)


class InboxEntry(Struct, frozen=True, kw_only=True):
    """An unread message: its key, and its place in the order."""

    id: str
    seq: int
    key: str
    topic: str = ""
    urgent: bool = False
    trace: str = ""

    @property
    def order(self) -> tuple[bool, int]:
        """Urgent ones first, then in the order of sending."""
        return not self.urgent, self.seq


def message_folders(agent: str) -> Op[tuple[str, ...]]:
    """The prefixes of the messages that an agent has received or sent."""
    topic_entries = yield from topics_of(agent)
    marks = (keys.unread(agent), keys.read(agent), keys.sent(agent))
    return (*marks, *(keys.topic(each) for each in topic_entries))


def topics_of(agent: str, can: Iterable[str] = ()) -> Op[dict[str, TopicState]]:
    """All topics that an agent reads."""
    items = yield from every(keys.subscription(agent), keys.cursor(agent))
    wanted = dict.fromkeys((ALL, *(yield from _question_topics(can))), ALL_MESSAGES)
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
    trims = yield from looked_up([keys.mailbox(agent), *map(keys.trimmed, wanted)])
    if (mailbox := trims[keys.mailbox(agent)]) is None:
        trims[keys.trimmed(ALL)] = None  # an unknown agent has missed nothing
    else:
        cursor = cursors.get(ALL) or Cursor(after=0)  # mail from before the mailbox is not missed
        cursors[ALL] = replace(cursor, told=max(cursor.told, mailbox.created))
    start = {name: inbox_rules.first_cursor(asked, begins[name]) for name, asked in wanted.items()}
    return {
        name: TopicState(
            name=name,
            wanted=asked_for,
            terms=terms.get(name, 0),
            begins=start[name].after,
            cursor=inbox_rules.current_cursor(cursors.get(name), start[name]),
            trimmed=readable(decode.trimmed, trims[keys.trimmed(name)]),
            without=agent if name == ALL else "",
        )
        for name, asked_for in wanted.items()
    }


def stored_subscription(item: Item | None) -> AlertSubscription | None:
    """A subscription; an unreadable one counts as one without a filter."""
    return None if item is None else readable(decode.subscription, item) or AlertSubscription()


def _question_topics(can: Iterable[str]) -> Op[list[str]]:
    """The topics of questions to these abilities.

    An agent that can do everything reads all that exist.
    """
    abilities = tuple(can)
    if ANYTHING not in abilities:
        return [ABLE + each for each in abilities]
    items = yield from every(keys.TOPICS + ABLE)
    return list(dict.fromkeys(keys.topic_of(item.key) for item in items))


def unread_entries(agent: str) -> Op[tuple[list[InboxEntry], int]]:
    """The unread direct messages of an agent, in order, and the revision of the read."""
    found: list[InboxEntry] = []
    pages = Pages(keys.unread(agent), limit=MOST_PAGE)
    while not pages.finished:
        found.extend(map(entry_of_mark, (yield from pages.read())))
    return sorted(found, key=lambda each: each.order), pages.revision


def entry_of_mark(item: Item) -> InboxEntry:
    """The entry of an unread mark."""
    id_ = keys.id_of(item.key)
    try:
        said = decode.unread(item)
    except StoreDamaged:
        said = Unread()
    key = keys.message(id_)
    return InboxEntry(id=id_, seq=item.created, key=key, urgent=said.urgent, trace=said.trace)


def trace(item: Item) -> str:
    """The trace of a message of a topic, or of a question."""
    if keys.topic_of(item.key).startswith(ABLE):
        return entry_of_mark(item).trace
    message = readable(decode.message, item)
    return "" if message is None else message.trace


def unread_in_topic(
    topic: TopicState, most: int | None = None
) -> Op[tuple[list[InboxEntry], int, bool]]:
    """The unread messages of a topic, in order, and the revision of the read.

    The last value is whether these are all: with ``most``, it ends after this number of bytes.
    """
    found: list[InboxEntry] = []
    pages = Pages(keys.topic(topic.name))
    while not pages.finished and (most is None or pages.bytes <= most):
        found.extend(topic_entries(topic, (yield from pages.read())))
    return sorted(found, key=lambda each: each.order), pages.revision, pages.finished


def topic_entries(topic: TopicState, items: Iterable[Item]) -> Iterator[InboxEntry]:
    """The entries of messages that pass the filter and are not acknowledged."""
    for item in items:
        if topic.cursor.has(item.created):
            continue
        id_ = keys.id_of(item.key)
        found = InboxEntry(id=id_, seq=item.created, key=item.key, topic=topic.name)
        if topic.name.startswith(ABLE):
            said = entry_of_mark(item)
            yield replace(found, key=keys.message(id_), urgent=said.urgent, trace=said.trace)
            continue
        message = readable(decode.message, item)
        if message is None:  # it may be wanted, so it is delivered as unreadable
            yield found
        elif topic.wants(message, item.created):
            yield replace(found, urgent=message.urgent, trace=message.trace)


def sent_along(changes: Iterable[Change]) -> dict[str, Item] | None:
    """The items of new messages, as the engine sent them; None unless it sent all that is needed.

    The commit that sends a message creates its items, and they are unread at its revision.
    """
    found: dict[str, Item] = {}
    for change in changes:
        wanted: tuple[str, ...] = (change.key,)
        if change.key.startswith(keys.UNREAD):
            wanted = (change.key, keys.message(keys.id_of(change.key)))
        if not change.written or wanted[-1].startswith(_ASKING):
            return None
        told = {item.key: item for item in change.written}
        for key in wanted:
            if (item := told.get(key)) is None:
                return None
            found[key] = replace(item, created=change.revision)
    return found


def keys_to_deliver(agent: str, marks: Iterable[str]) -> tuple[str, ...]:
    """Keys to read with these marks and messages, so that they can be delivered at once."""
    found: list[str] = []
    for key in marks:
        topic = keys.topic_of(key) if key.startswith(keys.TOPICS) else ""
        found += topic_state_keys(agent, topic) if topic else ()
        if not topic or topic.startswith(ABLE):
            found.append(own := keys.message(keys.id_of(key)))
            if own.startswith(keys.QUERIES):
                found.append(keys.live(keys.id_of(key)))
    return tuple(found)


def topic_state_keys(agent: str, topic: str) -> tuple[str, ...]:
    """The keys of an agent's cursor and subscription in a topic."""
    if topic == ALL or topic.startswith(ABLE):
        return (keys.cursor(agent, topic),)
    return keys.cursor(agent, topic), keys.subscription(agent, topic)


def subscriptions_changed(
    topics: Mapping[str, TopicState], items: Mapping[str, Item | None]
) -> bool:
    """Whether a subscription differs from the known one."""
    for key, item in items.items():
        if key.startswith(keys.SUBSCRIPTIONS):
            known = topics[keys.topic_of(key)].terms
            if known != (0 if item is None else item.revision):
                return True
    return False


def question_lives(
    wanted: Iterable[InboxEntry], known: Mapping[str, Item | None] = {}
) -> Op[dict[str, Item | None]]:
    """The liveness keys of the questions among these, with the time left; some may be known."""
    names = [keys.live(each.id) for each in wanted if each.key.startswith(keys.QUERIES)]
    unknown = [name for name in names if name not in known]
    found = {name: known[name] for name in names if name in known}
    return found | (yield from looked_up(unknown, times=True))


def decoded_entries(
    wanted: Iterable[InboxEntry], items: Mapping[str, Item | None], lives: Mapping[str, Item | None]
) -> list[tuple[InboxEntry, Received]]:
    """Messages of entries whose items were read."""
    found: list[tuple[InboxEntry, Received]] = []
    for each in wanted:
        item = items[each.key]
        if item is None:
            continue
        left = lives.get(keys.live(each.id)) if lives else None
        expires = None if left is None else left.expires_in
        message = readable(decode.message, item)
        if message is None:
            found.append((each, unreadable_notice(each)))
        else:
            found.append((each, decode.received(message, each.seq, expires)))
    return found


def unreadable_notice(found: InboxEntry) -> Received:
    """The notice in place of a damaged message."""
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
    """The notice of messages of a topic that were deleted before they were read.

    They are gone, so it is unknown which of them a filter would have dropped.
    """
    trims = topic.trimmed or TopicTrim(upto=0, count=0)
    upto = trims.missing(topic.without)
    return Received(
        id=f"{MISSED_PREFIX}{topic.name}:{upto}",
        kind="missed",
        sender="",
        at=0.0,
        seq=upto,
        type=topic.name,
        data={"upto": upto, "trimmed": trims.count, "filtered": topic.filtered},
    )


def parse_missed_id(id_: str) -> tuple[str, int] | None:
    """The topic and the revision in the id of a notice."""
    topic, _, upto = id_.removeprefix(MISSED_PREFIX).rpartition(":")
    return (topic, int(upto)) if id_.startswith(MISSED_PREFIX) and upto.isdecimal() else None


def missed_ids(ids: Iterable[str]) -> frozenset[str]:
    """Those of the ids that are notices."""
    return frozenset(id_ for id_ in ids if parse_missed_id(id_) is not None)


def find_message(agent: str, id_: str) -> Op[StoredMessage | None]:
    """A message that an agent sent or received, while it is kept."""
    wanted = (keys.message(id_), keys.topic(ALL, id_))
    snapshot: Snapshot = yield Read(*wanted)
    for key in wanted:
        if (item := snapshot[key]) is not None:
            message = decode.message(item)
            concerned = agent in (message.sender, *message.to) or ALL in message.to
            return message if concerned else None
    return None
