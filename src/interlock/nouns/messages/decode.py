"""Stored items of messages: decode them, and repair those that only repeat other items.

An unread mark repeats its message; the listing of an open query repeats the query. A repair returns
the value to write again, or None to delete the item.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.codec import Decoder
from interlock.nouns.agents.session_rules import SenderPause
from interlock.nouns.messages.decision import HumanDecision
from interlock.nouns.messages.inbox_rules import Cursor, TopicTrim
from interlock.nouns.messages.message import (
    ABLE,
    AlertSubscription,
    ReadMark,
    Received,
    StoredMessage,
    Unread,
)
from interlock.nouns.messages.query import CachedAnswer, Query, QuotaSlot
from interlock.nouns.messages.send_rules import MAILBOX
from interlock.runtime.attempt import ReadOp
from interlock.runtime.reads import readable
from interlock.store import Item

_MESSAGE = Decoder(StoredMessage)
_UNREAD = Decoder(Unread)
_READ = Decoder(ReadMark)
_SUBSCRIPTION = Decoder(AlertSubscription)
_CURSOR = Decoder(Cursor)
_TRIMMED = Decoder(TopicTrim)
_PAUSED = Decoder(SenderPause)
_QUERY = Decoder(Query)
_QUOTA_SLOT = Decoder(QuotaSlot)
_CACHED_ANSWER = Decoder(CachedAnswer)
_DECISION = Decoder(HumanDecision)
_SLOT_TIME = Decoder(float)
_NOTE = Decoder(dict[str, Any])

_ALL: dict[str, Decoder[Any]] = {
    keys.MESSAGES: _MESSAGE,
    keys.UNREAD: _UNREAD,
    keys.READ: _READ,
    keys.SENT: _READ,
    keys.IDS: _READ,
    keys.TOPICS: _MESSAGE,
    keys.SUBSCRIPTIONS: _SUBSCRIPTION,
    keys.CURSORS: _CURSOR,
    keys.TRIMMED: _TRIMMED,
    keys.PAUSED: _PAUSED,
    keys.QUERIES: _QUERY,
    keys.ANSWERS: _CACHED_ANSWER,
    keys.DECISIONS: _DECISION,
    keys.RATES: _SLOT_TIME,
    keys.MAILBOXES: _NOTE,
    keys.OPEN: _NOTE,
    keys.ASKING: _QUOTA_SLOT,
}


subscription = _SUBSCRIPTION.read_if_present
cursor = _CURSOR.read_if_present
trimmed = _TRIMMED.read_if_present
paused = _PAUSED.read_if_present
query = _QUERY.read_if_present
cached_answer = _CACHED_ANSWER.read_if_present
decision = _DECISION.read_if_present
slot_used_at = _SLOT_TIME.read_if_present


def message(item: Item) -> StoredMessage:
    """The message in an item; for a query, the question as a message."""
    if not item.key.startswith(keys.QUERIES):
        return _MESSAGE.read(item)
    query = _QUERY.read(item)
    return StoredMessage(
        id=query.id,
        kind="query",
        sender=query.agent,
        session=query.session,
        at=query.at,
        to=(query.to,),
        type=query.type,
        urgent=query.urgent,
        data=query.question,
    )


def received(message: StoredMessage, seq: int, expires_in: float | None) -> Received:
    """A message as its receiver gets it."""
    return Received(
        id=message.id,
        kind=message.kind,
        sender=message.sender,
        at=message.at,
        seq=seq,
        to=message.to,
        type=message.type,
        subject=message.subject,
        thread=message.thread,
        reply_to=message.reply_to,
        urgent=message.urgent,
        data=msgspec.json.decode(message.data),
        file=message.file,
        expires_in=expires_in,
    )


def unread(item: Item) -> Unread:
    """The mark of an unread message."""
    return _UNREAD.read(item)


def read_at(item: Item) -> float:
    """When a message was acknowledged or sent, or an id was taken."""
    return _READ.read(item).at


def sent_at(item: Item) -> float:
    """When a message was sent."""
    return message(item).at


def slot_query(item: Item) -> str:
    """The open question that holds a quota slot."""
    return _QUOTA_SLOT.read(item).query


def violations(item: Item | None) -> tuple[float, ...]:
    """When a sender exceeded its rate, as recorded in its refusal mark."""
    return () if item is None else tuple(_NOTE.read(item).get("times", ()))


def is_open_query(item: Item | None) -> bool:
    """Whether a question is open; an unreadable one may be."""
    if item is None:
        return False
    found = readable(query, item)
    return found is None or found.state == "open"


def query_with_answer(item: Item | None) -> ReadOp[Query | None]:
    """The question in an item, with an answer that is stored separately."""
    found = query(item)
    if found is None or not found.apart:
        return found
    key = keys.reply(found.id)
    reply = (yield (key,))[key]
    return found if reply is None else replace(found, answer=Raw(reply.value))


def examine(item: Item) -> None:
    """Raise StoreDamaged if an item of messages cannot be decoded."""
    folder = item.key.partition("/")[0] + "/"
    asked = folder == keys.TOPICS and keys.topic_of(item.key).startswith(ABLE)
    decoder = _UNREAD if asked else _ALL.get(folder)
    if decoder is not None:  # other items hold no value that matters
        decoder.read(item)


def repair_unread(item: Item, _now: float) -> ReadOp[object | None]:
    """An unread mark."""
    key = keys.message(keys.id_of(item.key))
    found = (yield (key,))[key]
    stored = None if found is None else readable(message, found)
    return Unread() if stored is None else Unread(stored.urgent, stored.trace)


def repair_mark(_item: Item, now: float) -> ReadOp[object | None]:
    """The mark of a read or sent message."""
    yield ()
    return ReadMark(now)


def repair_mailbox(_item: Item, _now: float) -> ReadOp[object | None]:
    """A mailbox."""
    yield ()
    return MAILBOX


def repair_open_query(item: Item, _now: float) -> ReadOp[object | None]:
    """The listing of an open query; None if the query does not exist."""
    key = keys.query(keys.id_of(item.key))
    found = readable(query, (yield (key,))[key])
    return None if found is None else {"to": found.to}
