"""Views of an inbox: lists, searches, threads and a wait; none of them acknowledges anything.

A view shows unread messages, urgent ones first, or everything that is kept: unread, read and sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.errors import StoreDamaged
from interlock.nouns.messages import decode, inbox_reader, inbox_service
from interlock.nouns.messages.inbox_reader import InboxEntry
from interlock.nouns.messages.inbox_rules import Cursor
from interlock.nouns.messages.message import (
    ALL,
    Arrived,
    Inbox,
    Kind,
    MailReader,
    NothingUnread,
    Received,
)
from interlock.nouns.messages.presence import ReceiverPresence, is_new, mailboxes
from interlock.nouns.messages.receiver import InboxReceiver
from interlock.runtime.identity import Actor
from interlock.runtime.reads import every, looked_up, readable
from interlock.runtime.runner import Runner
from interlock.steps import Op
from interlock.store import Item

PORTION, LEAST = 100, 8


class InboxFilter(Struct, frozen=True, kw_only=True):
    """Which messages a view shows."""

    kind: Kind | None = None
    senders: tuple[str, ...] = ()
    type: str = ""
    thread: str = ""
    search: str = ""
    limit: int = 100

    def fits(self, message: Received) -> bool:
        """Whether a message passes the filter."""
        return (
            self.kind in (None, message.kind)
            and (not self.senders or message.sender in self.senders)
            and self.type in ("", message.type)
            and self.thread in ("", message.thread)
            and (not self.search or self.search.casefold() in _text(message))
        )


def unread(runner: Runner, actor: Actor, wanted: InboxFilter, can: Iterable[str] = ()) -> Op[Inbox]:
    """The unread messages of an agent, urgent ones first, then in the order of sending."""
    agent = actor.agent
    found, _ = yield from inbox_reader.unread_entries(agent)
    missed: list[Received] = []
    for topic in (yield from inbox_reader.topics_of(agent, can)).values():
        found += (yield from inbox_reader.unread_in_topic(topic))[0]
        missed += [inbox_reader.missed_notice(topic)] if topic.missed else []
    found.sort(key=lambda each: each.order)
    ended = yield from inbox_service.end_expired_questions(
        runner, actor, (yield from inbox_reader.question_lives(found))
    )
    open_ = [each for each in found if each.id not in ended]
    return (yield from _listing(agent, open_, wanted, missed))


def kept(agent: str, wanted: InboxFilter, can: Iterable[str] = (), *, sent: bool) -> Op[Inbox]:
    """All kept messages of an agent, in the order of sending, read or not.

    With ``sent`` only the mail that it sent itself. A thread has only mail.
    """
    marks = yield from every(*([] if sent else [keys.read(agent)]), keys.sent(agent))
    entries = yield from _entries_of({keys.id_of(item.key) for item in marks})
    cursors: dict[str, Cursor] = {}
    if not sent:
        waiting, _ = yield from inbox_reader.unread_entries(agent)
        entries |= {each.id: each for each in waiting}
        for topic in (yield from inbox_reader.topics_of(agent, can)).values():
            if topic.name == ALL or not wanted.thread:
                cursors[topic.name] = topic.cursor
                found = (yield from inbox_reader.unread_in_topic(topic.from_start))[0]
                entries |= {each.id: each for each in found}
    order = sorted(entries.values(), key=lambda each: each.seq)
    listing = yield from _listing(agent, order, wanted, [], last=True)
    read_times = dict(filter(None, map(_read_time, marks)))
    stand = yield from with_states(listing.messages)
    messages_read = [
        replace(
            each,
            read=each.id in read_times or _is_read(each, cursors, agent),
            read_at=read_times.get(each.id),  # not recorded for topics
        )
        for each in stand
    ]
    if sent:
        messages_read = yield from _with_readers(messages_read)
    new = not messages_read and (yield from is_new(agent))
    return replace(listing, messages=tuple(messages_read), view="sent" if sent else "all", new=new)


def _with_readers(mail: Sequence[Received]) -> Op[list[Received]]:
    """Mail with the recipients that have acknowledged it, and when.

    For mail to all, no time is recorded, and the recipients are all other agents with a mailbox.
    """
    some = [(each.id, agent) for each in mail for agent in each.to if agent != ALL]
    marks = yield from looked_up(
        [key for id_, agent in some for key in (keys.read(agent, id_), keys.unread(agent, id_))]
    )
    cursors: dict[str, Cursor] = {}
    if any(ALL in each.to for each in mail):
        agents = yield from mailboxes()
        items = yield from looked_up([keys.cursor(agent, ALL) for agent in agents])
        for agent in agents:
            stored = readable(decode.cursor, items[keys.cursor(agent, ALL)])
            cursors[agent] = stored or Cursor(after=0)

    def reader(id_: str, agent: str) -> MailReader:
        mark = marks[keys.read(agent, id_)]
        at = None if mark is None else readable(decode.read_at, mark)
        gone = marks[keys.unread(agent, id_)] is None  # an old read mark may be deleted
        return MailReader(agent=agent, read=gone, read_at=at if gone else None)

    def readers(each: Received) -> tuple[MailReader, ...]:
        if ALL not in each.to:
            return tuple([reader(each.id, agent) for agent in each.to])
        return tuple(
            MailReader(agent=agent, read=cursor.has(each.seq))
            for agent, cursor in cursors.items()
            if agent != each.sender
        )

    return [replace(each, readers=readers(each)) for each in mail]


def _is_read(message: Received, cursors: Mapping[str, Cursor], reader: str) -> bool:
    """Whether the reader has acknowledged a message of a topic that another agent sent."""
    to_all = message.to == (ALL,)
    cursor = cursors.get(ALL if to_all else message.type if message.kind == "alert" else "")
    own = to_all and message.sender == reader
    return cursor is not None and not own and cursor.has(message.seq)


def with_states(messages: Iterable[Received]) -> Op[list[Received]]:
    """The messages, with the states of questions that have ended."""
    asked = {each.id for each in messages if each.kind == "query" and each.expires_in is None}
    found: dict[str, str] = {}
    for key, item in (yield from looked_up(map(keys.query, asked))).items():
        query = None if item is None else readable(decode.query, item)
        if query is not None:  # an expired question may not be marked as such yet
            found[keys.id_of(key)] = "expired" if query.state == "open" else query.state
    return [replace(each, state=found.get(each.id, "")) for each in messages]


def _read_time(mark: Item) -> tuple[str, float] | None:
    """The message of a mark, and when it was read."""
    with suppress(StoreDamaged):
        if mark.key.startswith(keys.READ):
            return keys.id_of(mark.key), decode.read_at(mark)
    return None


def _entries_of(ids: Iterable[str]) -> Op[dict[str, InboxEntry]]:
    """The entries of these messages, without deleted ones."""
    found: dict[str, InboxEntry] = {}
    wanted = [key for id_ in ids for key in (keys.message(id_), keys.topic(ALL, id_))]
    for start in range(0, len(wanted), PORTION):  # bodies may be large
        for item in (yield from looked_up(wanted[start : start + PORTION])).values():
            if item is not None:
                id_, topic = keys.id_of(item.key), ALL if item.key.startswith(keys.TOPICS) else ""
                found[id_] = InboxEntry(id=id_, seq=item.created, key=item.key, topic=topic)
    return found


def wait(
    receiver: InboxReceiver, presence: ReceiverPresence, timeout: float | None
) -> Op[Arrived | NothingUnread]:
    """Wait until an unread message exists, or until the timeout; nothing is acknowledged."""
    try:
        found = yield from receiver.take(0.0)
        if not found and timeout != 0.0:
            yield from presence.begin()
            found = yield from receiver.take(timeout)
    except GeneratorExit:
        raise
    except BaseException:
        yield from presence.end()
        raise
    finally:
        receiver.close()
    yield from presence.end()
    return Arrived(messages=tuple(found)) if found else NothingUnread()


def _listing(
    agent: str,
    entries: list[InboxEntry],
    wanted: InboxFilter,
    first: list[Received],
    *,
    last: bool = False,
) -> Op[Inbox]:
    """The messages that match, up to the limit, read in portions."""
    found = [each for each in first if wanted.fits(each)]
    seen = len(first)
    order = entries[::-1] if last else entries
    portion = min(PORTION, max(wanted.limit + 1, LEAST))
    for start in range(0, len(order), portion):
        page = order[start : start + portion]
        items = yield from looked_up([each.key for each in page])
        lives = yield from inbox_reader.question_lives(page)
        messages = inbox_reader.decoded_entries(page, items, lives)
        found += [message for _, message in messages if wanted.fits(message)]
        seen += len(messages)
        if len(found) > wanted.limit:
            break
    more = len(found) > wanted.limit
    some = found[: wanted.limit]
    listing = tuple(some[::-1] if last else some)
    return Inbox(agent=agent, messages=listing, more=more, others=0 if found else seen)


def _text(message: Received) -> str:
    body = message.data if isinstance(message.data, str) else codec.encode(message.data).decode()
    return f"{message.subject}\n{body}\n{message.type}\n{message.sender}".casefold()
