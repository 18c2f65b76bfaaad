"""A place where somebody waits: a pool, a task, a query; told in the same words.

A place has *spots*: rooms of which a wait needs its share, each with those who are met there, who
have to act before there is room.  What a wait needs of its place is room at every spot.

    a pool    one spot, met are the holders; and there is a queue, so a wait is behind others
    a task    a spot for each task below it that runs, met is who works on it
    a query   one spot, met are all who may answer, and one of them is enough

Reading a place takes what it takes, so each kind has its reader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from interlock import registry
from interlock.core import keys
from interlock.core.wait import caller_name_of
from interlock.nouns.grants.decode import readable_pool
from interlock.nouns.grants.pool import Pool, Waiter
from interlock.runtime.decide import ReadOp, Unchecked
from interlock.runtime.gather import KEYS_AT_ONCE
from interlock.store import Item


class Met(Struct, frozen=True, gc=False):
    """Somebody who has to act: how much it has, by which grant, and what keeps that alive.

    ``among`` is the name under which its waits are listed, together with those of others; ``agent``
    is in whose name it holds, if that is known.
    """

    caller: str
    weight: int = 1
    grant: str = ""
    live: tuple[str, ...] = ()
    among: str = ""
    agent: str = ""


class Spot(Struct, frozen=True, gc=False):
    """A room as it was read.

    Without a capacity it has room for as many as are met and live.  ``keys`` are the items that
    say so, and ``live`` what must live besides: otherwise there is nothing to wait for.
    """

    thing: str
    met: tuple[Met, ...]
    capacity: int | None = None
    keys: tuple[str, ...] = ()
    live: tuple[str, ...] = ()


class Place(Struct, frozen=True, gc=False):
    """What is at a place; without a spot, whoever waits there may go on at any time."""

    spots: tuple[Spot, ...] = ()
    queue: tuple[Waiter, ...] = ()

    def turn(self, id_: str) -> int | None:
        """How many wait before this one in the queue; None if it is not there."""
        return next((n for n, waiter in enumerate(self.queue) if waiter.id == id_), None)


Places: TypeAlias = dict[str, Place]
Reader: TypeAlias = Callable[[tuple[str, ...], int], ReadOp[Places]]


def read(wanted: tuple[str, ...], base: int) -> ReadOp[Places]:
    """All of these places: pools here, others by the readers that their nouns declare."""
    found: Places = {}
    others: dict[str, list[str]] = {}
    for key in wanted:
        if not key.startswith(keys.POOLS):
            others.setdefault(registry.wait_reader(key), []).append(key)
    for reference, some in others.items():
        reader: Reader = registry.load(reference)
        found |= yield from reader(tuple(some), base)
    pools = tuple([key for key in wanted if key.startswith(keys.POOLS)])
    return found | (yield from _pools(pools, base))


def of_pool(key: str, pool: Pool | None) -> Place:
    """A lock or a semaphore; one that is not there has no queue."""
    if pool is None:
        return Place()
    met = tuple(
        [Met(caller_name_of(g), g.weight, g.id, g.live, agent=g.agent) for g in pool.grants]
    )
    return Place((Spot(key, met, pool.capacity, (key,)),), pool.waiters)


def glanced(wanted: tuple[str, ...]) -> ReadOp[dict[str, Item | None]]:
    """Many items, in portions, of which nothing is checked."""
    found: dict[str, Item | None] = {}
    for start in range(0, len(wanted), KEYS_AT_ONCE):
        found |= (yield Unchecked(wanted[start : start + KEYS_AT_ONCE])).items
    return found


def _pools(wanted: tuple[str, ...], base: int) -> ReadOp[Places]:
    items = yield from glanced(wanted)
    return {
        key: of_pool(key, None if item is None else readable_pool(item, base))
        for key, item in items.items()
    }
