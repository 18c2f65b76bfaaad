"""Reads pools from a store: for a decision (``PoolReader``), or all of them.

The commit checks every pool that a decision read.  Liveness keys are only glanced at, but for those
that the decision relies on (``PoolFacts``).
"""

from __future__ import annotations

from collections.abc import Mapping

from interlock.core import keys
from interlock.drivers import Op
from interlock.nouns.grants.decode import decode_pool, readable_pool
from interlock.nouns.grants.pool import Pool
from interlock.nouns.grants.pool_change import PoolFacts
from interlock.runtime.decide import FactReader
from interlock.runtime.reads import OWN_OPERATIONS, every, looked_up
from interlock.runtime.runner import Runner
from interlock.store import LIVE, Item


class PoolReader(FactReader[PoolFacts]):
    """The facts about pools for one attempt at a decision; ``live`` has the liveness items."""

    glances = LIVE

    def __init__(self, runner: Runner, base: int) -> None:
        limit = runner.capabilities.max_operations - OWN_OPERATIONS
        super().__init__(runner, base, PoolFacts({}, {}, {}, limit))
        self.live: dict[str, Item | None] = {}

    def learn(self, items: Mapping[str, Item | None], *, checked: bool = True) -> None:
        """Add pools and liveness keys to the facts."""
        facts = self.facts
        if checked:
            self._checked.update(items)
        for key, item in items.items():
            if key.startswith(LIVE):
                facts.exists[key] = item is not None
                self.live[key] = item
            else:
                facts.pools[key] = decode_pool(item, self.base)
                facts.newest[key] = 0 if item is None else self.base + item.revision


def every_pool(prefix: str, base: int) -> Op[tuple[dict[str, Pool], dict[str, Item | None]]]:
    """All locks, or all semaphores, by name, and what keeps their grants alive.

    One that cannot be read is left out: doctor names it.
    """
    pools: dict[str, Pool] = {}
    for item in (yield from every(prefix)):
        pool = readable_pool(item, base)
        if pool is not None:
            pools[keys.decode(item.key.removeprefix(prefix))] = pool
    wanted = (key for pool in pools.values() for grant in pool.grants for key in grant.live)
    return pools, (yield from looked_up(wanted, times=True))
