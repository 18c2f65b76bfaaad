"""Decodes the items of tasks.

An item that cannot be decoded is damaged, and raises.  The value of an entry in the ``ready`` or
``due`` index only repeats the status of its task and its own key; a damaged one reads as empty.
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
    TaskOwner,
    TaskResult,
    TaskStatus,
)
from interlock.runtime.reads import decoded, readable
from interlock.store import Item

T = TypeVar("T")

_SPEC = msgspec.json.Decoder(Spec)
_STATUS = msgspec.json.Decoder(TaskStatus)
_CLAIM = msgspec.json.Decoder(TaskOwner)
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
    """The data of a task."""
    return None if item is None else decoded(_SPEC, item)


def status(item: Item | None) -> TaskStatus | None:
    """The status of a task."""
    return None if item is None else decoded(_STATUS, item)


def claim(item: Item | None) -> TaskOwner | None:
    """The claim of a task."""
    return None if item is None else decoded(_CLAIM, item)


def ready(item: Item) -> ReadyEntry:
    """The value of an entry in the ``ready`` index."""
    return readable(lambda known: decoded(_READY, known), item) or ReadyEntry()


def due(item: Item | None) -> DueEntry | None:
    """The value of an entry in the ``due`` index."""
    return (
        None if item is None else readable(lambda known: decoded(_DUE, known), item) or DueEntry()
    )


def ended(item: Item) -> EndedEntry:
    """The value of an entry in the ``ended`` index."""
    return decoded(_ENDED, item)


def result(item: Item | None) -> TaskResult | None:
    """The result of a task."""
    return None if item is None else decoded(_RESULT, item)


def names(item: Item) -> tuple[str, ...]:
    """A list of names: the requirements of a set, or the liveness keys of a claim."""
    return decoded(_NAMES, item)


def leaving(item: Item) -> bool:
    """Whether a set of requirements is marked as leaving: it names one of them twice.

    A client that only wants the requirements reads a marked set as before.
    """
    requires = readable(names, item)
    return requires is not None and len(set(requires)) < len(requires)


def examine(item: Item) -> None:
    """Raise if an item of a task, or of an index of tasks, is damaged."""
    decoder = next(
        (each for prefix, each in _OF_INDEXES.items() if item.key.startswith(prefix)), None
    )
    if item.key.startswith(keys.TASKS):
        decoder = _OF_TASKS.get(item.key.rpartition("/")[2])
    if decoder is not None:
        decoded(decoder, item)
