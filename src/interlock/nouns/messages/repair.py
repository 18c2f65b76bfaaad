"""Repairs of items that only repeat other items: the value to write again, or None to delete.

An unread mark repeats its message; the listing of an open query repeats the query.
"""

from __future__ import annotations

from interlock.core import keys
from interlock.nouns.messages import decode
from interlock.nouns.messages.message import ReadMark, Unread
from interlock.nouns.messages.send_rules import MAILBOX
from interlock.runtime.decide import ReadOp
from interlock.runtime.reads import readable
from interlock.store import Item


def unread(item: Item, _now: float) -> ReadOp[object | None]:
    """An unread mark."""
    key = keys.message(keys.id_of(item.key))
    found = (yield (key,))[key]
    message = None if found is None else readable(decode.message, found)
    return Unread() if message is None else Unread(message.urgent, message.trace)


def read_mark(_item: Item, now: float) -> ReadOp[object | None]:
    """The mark of a read or sent message."""
    yield ()
    return ReadMark(now)


def mailbox(_item: Item, _now: float) -> ReadOp[object | None]:
    """A mailbox."""
    yield ()
    return MAILBOX


def open_query(item: Item, _now: float) -> ReadOp[object | None]:
    """The listing of an open query; None if the query does not exist."""
    key = keys.query(keys.id_of(item.key))
    query = readable(decode.query, (yield (key,))[key])
    return None if query is None else {"to": query.to}
