"""A wait as others find it.

A wait for room in a pool stands in the queue of the pool.  One for a task or for an answer stands
in no queue, and is an item of its own (``Asleep``).  Either is listed, ``waits/{name}/{id}``, under
every name that cannot go on while it lasts:

    its agent    always, for whoever asks that agent, or one of its sessions, something
    its caller   if that may have something that others wait for
    ``also``     the claims that its caller works on, if they go by names of their own

A list says where to look and is never the truth: a wait in a queue is one while it stands there,
one that is asleep while its liveness key does.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from interlock.core import keys
from interlock.core.decision import Write
from interlock.nouns.grants.pool import caller, of_agent


class Asleep(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Who waits for something without a queue: ``wants`` is the key of the task or the query."""

    wants: str
    agent: str
    session: str
    live: str
    since: float
    caller: str = ""
    indexed: bool = False
    also: tuple[str, ...] = ()


class Someone(Protocol):
    """Whoever asks for something, or waits for it."""

    @property
    def agent(self) -> str:
        """In whose name."""

    @property
    def session(self) -> str:
        """Which incarnation of it."""

    @property
    def caller(self) -> str:
        """Which caller within the session."""


class Party(Someone, Protocol):
    """Whoever waits."""

    @property
    def indexed(self) -> bool:
        """Whether others find it by its caller."""

    @property
    def also(self) -> tuple[str, ...]:
        """Under which other names."""


def listed(party: Party, id_: str) -> tuple[str, ...]:
    """Where a wait is listed."""
    own = caller(party.agent, party.session, party.caller) if party.indexed else ""
    names = (of_agent(party.agent), own, *party.also)
    return tuple(dict.fromkeys([keys.waits(name, id_) for name in names if name]))


def listing(asleep: Asleep, id_: str) -> tuple[Write, ...]:
    """The writes that list a wait without a queue."""
    return tuple([Write(key, asleep) for key in listed(asleep, id_)])
