"""Decode stored items of messages."""

from __future__ import annotations

from typing import Any

import msgspec

from interlock.core import keys
from interlock.nouns.messages.human_decision import HumanDecision
from interlock.nouns.messages.inbox_rules import Cursor, TopicTrim
from interlock.nouns.messages.message import (
    ABLE,
    AlertSubscription,
    ReadMark,
    Received,
    SenderPause,
    StoredMessage,
    Unread,
)
from interlock.nouns.messages.query_rules import CachedAnswer, Query, QuotaSlot
from interlock.runtime.reads import decoded, readable
from interlock.store import Item

_MESSAGE = msgspec.json.Decoder(StoredMessage)
_UNREAD = msgspec.json.Decoder(Unread)
_READ = msgspec.json.Decoder(ReadMark)
_SUBSCRIPTION = msgspec.json.Decoder(AlertSubscription)
_CURSOR = msgspec.json.Decoder(Cursor)
_TRIMMED = msgspec.json.Decoder(TopicTrim)
_PAUSED = msgspec.json.Decoder(SenderPause)
_QUERY = msgspec.json.Decoder(Query)
_QUOTA_SLOT = msgspec.json.Decoder(QuotaSlot)
_CACHED_ANSWER = msgspec.json.Decoder(CachedAnswer)
_DECISION = msgspec.json.Decoder(HumanDecision)
_SLOT_TIME = msgspec.json.Decoder(float)
_NOTE = msgspec.json.Decoder(dict[str, Any])

_ALL: dict[str, msgspec.json.Decoder[Any]] = {
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


def message(item: Item) -> StoredMessage:
    """The message in an item; for a query, the question as a message."""
    if item.key.startswith(keys.QUERIES):
        return asked(decoded(_QUERY, item))
    return decoded(_MESSAGE, item)


def asked(query: Query) -> StoredMessage:
    """A question as a message."""
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


def received(message: StoredMessage, seq: int, **more: Any) -> Received:  # noqa: ANN401 - as Received has
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
        **more,
    )


def unread(item: Item) -> Unread:
    """The mark of an unread message."""
    return decoded(_UNREAD, item)


def read(item: Item) -> ReadMark:
    """The mark of an acknowledged message."""
    return decoded(_READ, item)


def read_at(item: Item) -> float:
    """When a message was acknowledged or sent, or an id was taken."""
    return read(item).at


def sent_at(item: Item) -> float:
    """When a message was sent."""
    return message(item).at


def subscription(item: Item | None) -> AlertSubscription | None:
    """A subscription."""
    return None if item is None else decoded(_SUBSCRIPTION, item)


def cursor(item: Item | None) -> Cursor | None:
    """The cursor of an agent in a topic."""
    return None if item is None else decoded(_CURSOR, item)


def trimmed(item: Item | None) -> TopicTrim | None:
    """The deletions in a topic."""
    return None if item is None else decoded(_TRIMMED, item)


def paused(item: Item | None) -> SenderPause | None:
    """The pause of a sender."""
    return None if item is None else decoded(_PAUSED, item)


def query(item: Item | None) -> Query | None:
    """A query."""
    return None if item is None else decoded(_QUERY, item)


def is_open_query(item: Item | None) -> bool:
    """Whether a question is open; an unreadable one may be."""
    if item is None:
        return False
    found = readable(query, item)
    return found is None or found.state == "open"


def quota_slot(item: Item) -> QuotaSlot:
    """The open question that holds a quota slot."""
    return decoded(_QUOTA_SLOT, item)


def cached_answer(item: Item | None) -> CachedAnswer | None:
    """The last query that answered a question."""
    return None if item is None else decoded(_CACHED_ANSWER, item)


def decision(item: Item | None) -> HumanDecision | None:
    """A decision by a person."""
    return None if item is None else decoded(_DECISION, item)


def slot_used_at(item: Item | None) -> float | None:
    """When a rate slot was used."""
    return None if item is None else decoded(_SLOT_TIME, item)


def violations(item: Item | None) -> tuple[float, ...]:
    """When a sender exceeded its rate, as recorded in its refusal mark."""
    return () if item is None else tuple(decoded(_NOTE, item).get("times", ()))


def examine(item: Item) -> None:
    """Raise StoreDamaged if an item of messages cannot be decoded."""
    folder = item.key.partition("/")[0] + "/"
    asked = folder == keys.TOPICS and keys.topic_of(item.key).startswith(ABLE)
    decoder = _UNREAD if asked else _ALL.get(folder)
    if decoder is not None:  # other items hold no value that matters
        decoded(decoder, item)
