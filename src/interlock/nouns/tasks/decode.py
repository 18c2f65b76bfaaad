"""Items of tasks as typed state.

What cannot be read is damage, and raises.  But a place among those that are ready or due only
repeats what the status of its task and its own key say; one that cannot be read says nothing more.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from interlock.core import keys
from interlock.nouns.tasks.task import (
    DueEntry,
    EndedEntry,
    ReadyEntry,
    Spec,
    TaskClaim,
    TaskResult,
    TaskStatus,
)
from interlock.runtime.decode import decoded, readable
from interlock.store import Item

T = TypeVar("T")

_SPEC = msgspec.json.Decoder(Spec)
_STATUS = msgspec.json.Decoder(TaskStatus)
_CLAIM = msgspec.json.Decoder(TaskClaim)
_READY = msgspec.json.Decoder(ReadyEntry)
_DUE = msgspec.json.Decoder(DueEntry)
_ENDED = msgspec.json.Decoder(EndedEntry)
_RESULT = msgspec.json.Decoder(TaskResult)
_NAMES = msgspec.json.Decoder(tuple[str, ...])


_OF_TASKS: dict[str, msgspec.json.Decoder[Any]] = {
    "data": _SPEC,
    "status": _STATUS,
    "owner": _CLAIM,
    "result": _RESULT,
}
_OF_INDEXES: dict[str, msgspec.json.Decoder[Any]] = {
    keys.READY: _READY,
    keys.SETS: _NAMES,
    keys.DUE: _DUE,
    keys.CLAIMS: _NAMES,
    keys.ENDED: _ENDED,
}


def spec(item: Item | None) -> Spec | None:
    """What a task is."""
    return None if item is None else decoded(_SPEC, item)


def status(item: Item | None) -> TaskStatus | None:
    """How a task stands."""
    return None if item is None else decoded(_STATUS, item)


def claim(item: Item | None) -> TaskClaim | None:
    """Who works on a task."""
    return None if item is None else decoded(_CLAIM, item)


def ready(item: Item) -> ReadyEntry:
    """What stands beside a task that is ready."""
    return readable(lambda known: decoded(_READY, known), item) or ReadyEntry()


def due(item: Item | None) -> DueEntry | None:
    """What a task waits for that must not begin yet."""
    return (
        None if item is None else readable(lambda known: decoded(_DUE, known), item) or DueEntry()
    )


def ended(item: Item) -> EndedEntry:
    """What stands beside a task that failed."""
    return decoded(_ENDED, item)


def result(item: Item | None) -> TaskResult | None:
    """What came of a task."""
    return None if item is None else decoded(_RESULT, item)


def names(item: Item) -> tuple[str, ...]:
    """What an index says beside a key: requirements, or what keeps a claim alive."""
    return decoded(_NAMES, item)


def leaving(item: Item) -> bool:
    """Whether a set of requirements is about to be let go: it names one of them twice.

    So whoever only wants to know what it requires reads it as before.
    """
    requires = readable(names, item)
    return requires is not None and len(set(requires)) < len(requires)


def examine(item: Item) -> None:
    """See that an item of a task, or of an index of tasks, says what it should."""
    decoder = next(
        (each for prefix, each in _OF_INDEXES.items() if item.key.startswith(prefix)), None
    )
    if item.key.startswith(keys.TASKS):
        decoder = _OF_TASKS.get(item.key.rpartition("/")[2])
    if decoder is not None:
        decoded(decoder, item)
