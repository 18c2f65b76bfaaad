"""What a wait can be for: a pool, a task or a query, described in one form.

A target has resources; a wait needs its share of each.  A resource has blockers: the callers that
have to act before there is room.

    a pool    one resource; the blockers are the holders; it has a queue, so a wait is behind others
    a task    a resource for each running task below it; the blocker is its worker
    a query   one resource; the blockers are all agents that may answer, and one answer is enough

Each kind of target has its own reader, which its noun declares.
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
from interlock.runtime.reads import KEYS_AT_ONCE
from interlock.store import Item


class Blocker(Struct, frozen=True, gc=False):
    """A caller that has to act: how much it has, by which grant, and what keeps that grant alive.

    ``among`` is the name under which its waits are listed together with waits of other callers;
    ``agent`` is the agent that holds, if it is known.
    """

    caller: str
    weight: int = 1
    grant: str = ""
    live: tuple[str, ...] = ()
    among: str = ""
    agent: str = ""


class SharedResource(Struct, frozen=True, gc=False):
    """A resource as it was read.

    Without a capacity it has room for all of its blockers that live.  ``keys`` are the items that
    show this, and ``live`` the liveness keys without which there is nothing to wait for.
    """

    thing: str
    met: tuple[Blocker, ...]
    capacity: int | None = None
    keys: tuple[str, ...] = ()
    live: tuple[str, ...] = ()


class WaitTarget(Struct, frozen=True, gc=False):
    """The resources of a target; without one, a wait for it may end at any time."""

    spots: tuple[SharedResource, ...] = ()
    queue: tuple[Waiter, ...] = ()

    def turn(self, id_: str) -> int | None:
        """How many wait before this one in the queue; None if it is not there."""
        return next((n for n, waiter in enumerate(self.queue) if waiter.id == id_), None)


WaitTargets: TypeAlias = dict[str, WaitTarget]
Reader: TypeAlias = Callable[[tuple[str, ...], int], ReadOp[WaitTargets]]


def read(wanted: tuple[str, ...], base: int) -> ReadOp[WaitTargets]:
    """All of these places: pools here, others by the readers that their nouns declare."""
    found: WaitTargets = {}
    others: dict[str, list[str]] = {}
    for key in wanted:
        if not key.startswith(keys.POOLS):
            others.setdefault(registry.wait_reader(key), []).append(key)
    for reference, some in others.items():
        reader: Reader = registry.load(reference)
        found |= yield from reader(tuple(some), base)
    pools = tuple([key for key in wanted if key.startswith(keys.POOLS)])
    return found | (yield from _pools(pools, base))


def of_pool(key: str, pool: Pool | None) -> WaitTarget:
    """A lock or a semaphore; one that is not there has no queue."""
    if pool is None:
        return WaitTarget()
    met = tuple(
        [Blocker(caller_name_of(g), g.weight, g.id, g.live, agent=g.agent) for g in pool.grants]
    )
    return WaitTarget((SharedResource(key, met, pool.capacity, (key,)),), pool.waiters)


def glanced(wanted: tuple[str, ...]) -> ReadOp[dict[str, Item | None]]:
    """Many items, in portions, of which nothing is checked."""
    found: dict[str, Item | None] = {}
    for start in range(0, len(wanted), KEYS_AT_ONCE):
        found |= (yield Unchecked(wanted[start : start + KEYS_AT_ONCE])).items
    return found


def _pools(wanted: tuple[str, ...], base: int) -> ReadOp[WaitTargets]:
    items = yield from glanced(wanted)
    return {
        key: of_pool(key, None if item is None else readable_pool(item, base))
        for key, item in items.items()
    }
