"""Repairs of items that only repeat what others say: the value to write again, or None to delete.

A mark that a message is unread repeats what is in the message; a note that a query is open repeats
what is in the query.
"""

from __future__ import annotations

from interlock.core import keys
from interlock.nouns.messages import decode
from interlock.nouns.messages.message import ReadMark, Unread
from interlock.nouns.messages.send_rules import MAILBOX
from interlock.runtime.decide import ReadOp
from interlock.runtime.decode import readable
from interlock.store import Item


def unread(item: Item, _now: float) -> ReadOp[object | None]:
    """A mark that a message is unread."""
    key = keys.message(keys.id_of(item.key))
    found = (yield (key,))[key]
    message = None if found is None else readable(decode.message, found)
    return Unread() if message is None else Unread(message.urgent, message.trace)


def read_mark(_item: Item, now: float) -> ReadOp[object | None]:
    """A mark that a message was read, or sent."""
    yield ()
    return ReadMark(now)


def mailbox(_item: Item, _now: float) -> ReadOp[object | None]:
    """A mailbox."""
    yield ()
    return MAILBOX


def open_query(item: Item, _now: float) -> ReadOp[object | None]:
    """A note that a query is open; None if there is no such query."""
    key = keys.query(keys.id_of(item.key))
    query = readable(decode.query, (yield (key,))[key])
    return None if query is None else {"to": query.to}
