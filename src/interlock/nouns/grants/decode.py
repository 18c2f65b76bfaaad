"""Items of locks and semaphores as values, and the grants in an item: of a pool, or of a task.

The claim of a task is a grant, too, so it is read here by its id and its liveness keys alone.
"""

from __future__ import annotations

import msgspec

from interlock.core import keys
from interlock.nouns.grants.pool import BreakNote, Pool, with_token
from interlock.runtime.reads import decoded, readable
from interlock.store import Item


class LiveGrant(msgspec.Struct):
    """The id of a grant, and the liveness keys that keep it alive."""

    id: str
    live: tuple[str, ...]


_POOL = msgspec.json.Decoder(Pool)
_BREAK = msgspec.json.Decoder(BreakNote)
_GRANT = msgspec.json.Decoder(LiveGrant)


def decode_pool(item: Item | None, base: int = 0) -> Pool | None:
    """The lock or semaphore of an item, with the tokens of its grants."""
    if item is None:
        return None
    return with_token(decoded(_POOL, item), base + item.revision)


def readable_pool(item: Item, base: int) -> Pool | None:
    """The pool of an item in a pass over many; None for a damaged one."""
    return readable(lambda known: decode_pool(known, base), item)


def decode_break_note(item: Item | None) -> BreakNote | None:
    """The note about a grant that an operator ended."""
    return None if item is None else decoded(_BREAK, item)


def grant_ids(item: Item) -> tuple[str, ...]:
    """The ids of the grants in an item: those of a pool, or the claim of a task."""
    if item.key.startswith(keys.TASKS):
        return (decoded(_GRANT, item).id,)
    found = readable_pool(item, 0)
    return () if found is None else tuple(grant.id for grant in found.grants)


def lives_by(item: Item | None, grant: str) -> tuple[str, ...] | None:
    """The liveness keys of a grant in this item; None if the grant is not there."""
    if item is None:
        return None
    if item.key.startswith(keys.TASKS):
        claim = decoded(_GRANT, item)
        return claim.live if claim.id == grant else None
    found = decoded(_POOL, item).grant(grant)
    return None if found is None else found.live


def lives_by_token(item: Item, token: int, base: int, agent: str) -> tuple[str, ...] | None:
    """The liveness keys of the grant with this token; None if it is not there.

    A token of a semaphore names one grant only together with its holder.
    """
    if item.key.startswith(keys.TASKS):
        return decoded(_GRANT, item).live if token == base + item.revision else None
    known = decode_pool(item, base)
    grants = () if known is None else known.grants
    if agent and item.key.startswith(keys.SEMAPHORES):
        grants = tuple([grant for grant in grants if grant.agent == agent])
    return next((grant.live for grant in grants if grant.token == token), None)
