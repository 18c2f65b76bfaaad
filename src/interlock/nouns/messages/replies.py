"""A question with its answer, wherever that stands."""

from __future__ import annotations

from msgspec import Raw
from msgspec.structs import replace

from interlock.core import keys
from interlock.nouns.messages import decode
from interlock.nouns.messages.query_rules import Query
from interlock.runtime.runner import ReadOp
from interlock.store import Item


def answered(item: Item | None) -> ReadOp[Query | None]:
    """The question that an item is; an answer that stands apart is read as well."""
    query = decode.query(item)
    if query is None or not query.apart:
        return query
    key = keys.reply(query.id)
    reply = (yield (key,))[key]
    return query if reply is None else replace(query, answer=Raw(reply.value))
