"""How the record and people name things: ``lock/merge``, ``task/t1``, ``lock/a+sem/b``.

A thing has a kind and a name, and its key follows from both.  Several locks and semaphores that
were acquired at once are one thing, joined by ``+``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from interlock.core.keys import (
    DECISIONS,
    GUARDS,
    LOCKS,
    MESSAGES,
    PIPELINES,
    QUERIES,
    REQUESTS,
    RESERVATIONS,
    SCHEDULES,
    SEMAPHORES,
    SESSIONS,
    TASKS,
    TOPICS,
    decode,
    encode,
    message,
    owner,
    task_of,
)

_JOINED = ("lock/", "sem/")
_SEPARATOR = r"\+(?=lock/|sem/)"
KINDS = {
    "lock": LOCKS,
    "sem": SEMAPHORES,
    "task": TASKS,
    "agent": SESSIONS,
    "message": MESSAGES,
    "query": QUERIES,
    "alert": TOPICS,
    "decision": DECISIONS,
    "pipeline": PIPELINES,
    "guard": GUARDS,
    "request": REQUESTS,
    "schedule": SCHEDULES,
    "reservation": RESERVATIONS,
}
"""The kinds of things in the record, each with its folder."""
_THINGS = {"messages": "message", "queries": "query", "decisions": "decision"}


def join_things(things: Iterable[str]) -> str:
    """Several locks and semaphores as the record names them at once: ``lock/a+sem/b``."""
    return "+".join(things)


def split_things(thing: str) -> list[str]:
    """The locks and semaphores that were named at once; any other thing, alone."""
    if "+" not in thing or not thing.startswith(_JOINED):
        return [thing]
    return re.split(_SEPARATOR, thing)


def names_several(name: str) -> bool:
    """Whether a name would read as several things."""
    return "+" in name and re.search(_SEPARATOR, name) is not None


def thing_of(key: str) -> str:
    """The thing of a key as people name it: ``lock/merge``, ``sem/builds``, ``task/t1``."""
    if key.startswith(LOCKS):
        return "lock/" + decode(key[len(LOCKS) :])
    if key.startswith(TASKS):
        return "task/" + task_of(key)
    if key.startswith(QUERIES):
        return "query/" + key[len(QUERIES) :]
    if key.startswith(GUARDS):
        return "guard/" + decode(key[len(GUARDS) :])
    return "sem/" + decode(key[len(SEMAPHORES) :])


def message_thing(key: str) -> str:
    """The thing of a key of messages as people name it: ``message/ID``, ``query/ID``."""
    folder, _, id_ = key.partition("/")
    return f"{_THINGS[folder]}/{id_}"


def message_thing_by_id(id_: str) -> str:
    """A message or a query as people name it, from its id."""
    return message_thing(message(id_))


def pool_kind(key: str) -> str:
    """``lock`` or ``semaphore``, as events name the pool of this key."""
    return "lock" if key.startswith(LOCKS) else "semaphore"


def key_of(thing: str) -> str:
    """The key of a thing that the record names: ``lock/merge``, ``sem/builds``, ``agent/ID``.

    For a task it is the key of its owner.
    """
    kind, _, name = thing.partition("/")
    return owner(name) if kind == "task" else KINDS[kind] + encode(name)
