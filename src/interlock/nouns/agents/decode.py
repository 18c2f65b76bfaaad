"""Items of sessions as values."""

from __future__ import annotations

import msgspec

from interlock.nouns.agents.session_rules import Death, Session
from interlock.runtime.reads import decoded
from interlock.store import Item

_SESSION = msgspec.json.Decoder(Session)
_DEATH = msgspec.json.Decoder(Death)


def decode_session(item: Item | None) -> Session | None:
    """The session of an item."""
    return None if item is None else decoded(_SESSION, item)


def decode_death(item: Item | None) -> Death | None:
    """The note that a session expired."""
    return None if item is None else decoded(_DEATH, item)
