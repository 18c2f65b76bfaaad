"""Decisions about pools as tests write them: who lives, what stands, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import MANY, Decision
from interlock.nouns.grants import rules, semaphore, several
from interlock.nouns.grants.pool import Pool, with_token
from interlock.nouns.grants.pool_change import PoolFacts
from interlock.nouns.grants.request import GrantRequest

NOW = 100.0
NAMES = ("ada", "bob", "cleo", "dora", "eve")
EVERYBODY = frozenset(keys.live(f"ses_{name}") for name in NAMES)
X, Y = keys.semaphore("x"), keys.semaphore("y")
A, B = keys.lock("a"), keys.lock("b")


class _Complete(dict[str, bool]):
    """Complete knowledge of liveness: a key that is not named does not exist."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> bool:
        return False


def complete(
    pools: Mapping[str, Pool | None],
    live: AbstractSet[str],
    newest: int = 0,
    max_operations: int = MANY,
) -> PoolFacts:
    """Facts that lack nothing but pools which are not named."""
    exists = _Complete(dict.fromkeys(live, True))
    return PoolFacts(dict(pools), exists, dict.fromkeys(pools, newest), max_operations)


def without(*names: str) -> frozenset[str]:
    """Everybody lives but these."""
    return EVERYBODY - {keys.live(f"ses_{name}") for name in names}


def facts(
    pools: Mapping[str, Pool | None], live: frozenset[str] = EVERYBODY, max_operations: int = MANY
) -> PoolFacts:
    """All that there is; what is not named is not there."""
    return complete({**dict.fromkeys((A, B, X, Y)), **pools}, live, 50, max_operations)


def slots(agent: str, weight: int = 1, capacity: int | None = None, **terms: Any) -> GrantRequest:
    """A request for slots of x."""
    ask = GrantRequest(
        target=semaphore.SlotsTarget("x", weight, capacity),
        grant=f"grt_{agent}",
        agent=agent,
        session=f"ses_{agent}",
        session_ttl=30.0,
    )
    return replace(ask, **terms)


def all_of(agent: str, *parts: str, **terms: Any) -> GrantRequest:
    """A request for several things at once: ``lock/a``, ``sem/x=2``."""
    words = [part.partition("=") for part in parts]
    wanted = tuple(several.ThingRequest(thing, int(weight or 1)) for thing, _, weight in words)
    ask = GrantRequest(
        target=several.SeveralTarget(wanted),
        grant=f"grt_{agent}",
        agent=agent,
        session=f"ses_{agent}",
        session_ttl=30.0,
    )
    return replace(ask, **terms)


class Table:
    """Pools that change with each decision that is carried out on them."""

    def __init__(self, **capacities: int) -> None:
        self.pools: dict[str, Pool | None] = {
            keys.semaphore(name): Pool(capacity=capacity) for name, capacity in capacities.items()
        }
        self.revision = 0

    def acquire(self, ask: GrantRequest, live: frozenset[str] = EVERYBODY) -> Decision[Any]:
        return self.carry_out(rules.acquire(ask, facts(self.pools, live), NOW))

    def carry_out(self, decision: Decision[Any]) -> Decision[Any]:
        """What a store would do with it."""
        self.revision += 1
        for put in decision.puts:
            if isinstance(put.value, Pool):
                self.pools[put.key] = with_token(put.value, self.revision)
        for key in decision.deletes:
            if key.startswith(keys.POOLS):
                self.pools[key] = None
        return decision

    def holders(self, key: str) -> dict[str, int]:
        """Who has how much of it."""
        pool = self.pools.get(key) or Pool()
        return {grant.agent: grant.weight for grant in pool.grants}

    def waiters(self, key: str) -> list[str]:
        """Who waits, in order."""
        return [waiter.agent for waiter in (self.pools.get(key) or Pool()).waiters]

    def token(self, key: str, agent: str) -> int | None:
        """The token of somebody's grant."""
        pool = self.pools.get(key) or Pool()
        return next(grant.token for grant in pool.grants if grant.agent == agent)
