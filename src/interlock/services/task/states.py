"""Items of tasks as typed state."""

from __future__ import annotations

import msgspec

from interlock.core.task import Claim, Due, Ended, Ready, Result, Spec, Status
from interlock.services.states import decoded
from interlock.store import Item

_SPEC = msgspec.json.Decoder(Spec)
_STATUS = msgspec.json.Decoder(Status)
_CLAIM = msgspec.json.Decoder(Claim)
_READY = msgspec.json.Decoder(Ready)
_DUE = msgspec.json.Decoder(Due)
_ENDED = msgspec.json.Decoder(Ended)
_RESULT = msgspec.json.Decoder(Result)
_NAMES = msgspec.json.Decoder(tuple[str, ...])


def spec(item: Item | None) -> Spec | None:
    """What a task is."""
    return None if item is None else decoded(_SPEC, item)


def status(item: Item | None) -> Status | None:
    """How a task stands."""
    return None if item is None else decoded(_STATUS, item)


def claim(item: Item | None) -> Claim | None:
    """Who works on a task."""
    return None if item is None else decoded(_CLAIM, item)


def ready(item: Item) -> Ready:
    """What stands beside a task that is ready."""
    return decoded(_READY, item)


def due(item: Item | None) -> Due | None:
    """What a task waits for that must not begin yet."""
    return None if item is None else decoded(_DUE, item)


def ended(item: Item) -> Ended:
    """What stands beside a task that failed."""
    return decoded(_ENDED, item)


def result(item: Item | None) -> Result | None:
    """What came of a task."""
    return None if item is None else decoded(_RESULT, item)


def names(item: Item) -> tuple[str, ...]:
    """What an index says beside a key: requirements, or what keeps a claim alive."""
    return decoded(_NAMES, item)
