"""The changes of one decision over pools: it ends grants and serves waiters.

``core/decision.py`` has the theory of facts and changes.

A waiter that is promoted while it sleeps has not agreed yet.  If its grant has its own ttl, the
grant starts with a short one (CLAIM_WINDOW), and the waiter extends it when it wakes: a waiter that
has died costs seconds, not its whole ttl.

A commit has a limited number of operations.  A waiter that could be served beyond that is only
woken, and serves itself.  So is a waiter that would get a second grant of the same agent under one
token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import MANY, Changes, Decision, Facts, Missing, Write
from interlock.core.thing_names import join_things, pool_kind, thing_of
from interlock.core.wait import wait_keys
from interlock.nouns.grants.pool import Grant, Pool, Waiter, listed_sessions

if TYPE_CHECKING:
    from interlock.nouns.grants.request import GrantRequest

T = TypeVar("T")

CLAIM_WINDOW = 30.0
"""Seconds for which a sleeping waiter has its grant before it has to extend it."""
_AT_ONCE = 16
"""Waiters whose liveness is read at once, in search of the first that lives."""
_LEEWAY = 8
"""Operations that a commit keeps free when it serves one more waiter."""
_FEW = 4
"""Holders up to this number are checked by the commit that queues behind them."""


class PoolFacts(Facts):
    """The pools that were read for a decision, and which liveness keys exist.

    ``newest`` has the token that each pool was last written with.
    The decision relies on the liveness of waiters that it promotes, of grants that it renews, and
    of the few holders that it queues behind.  Nothing else needs a check: a liveness key that is
    gone never comes back.
    """

    def __init__(
        self,
        pools: dict[str, Pool | None],
        exists: dict[str, bool],
        newest: dict[str, int],
        max_operations: int = MANY,
    ) -> None:
        super().__init__(exists, max_operations)
        self.pools = pools
        self.newest = newest

    def pool(self, key: str) -> Pool | None:
        """The pool of this key; None if there is none."""
        try:
            return self.pools[key]
        except KeyError:
            raise Missing((key,)) from None

    def rely(self, grant: Grant) -> bool:
        """Whether the grant lives; if it does, the commit checks that it still does."""
        alive = self.alive(grant)
        if alive:
            self.rely_on(grant.live)
        return alive


class PoolChanges(Changes[PoolFacts]):
    """The pools as a decision leaves them, and the other changes that go with that."""

    def __init__(self, facts: PoolFacts, now: float) -> None:
        super().__init__(facts, now)
        self.served: dict[str, Waiter] = {}
        self._pools: dict[str, Pool] = {}
        self._stale: dict[str, str] = {}

    def pool(self, key: str) -> Pool | None:
        """The pool with the changes so far."""
        try:
            return self._pools[key] if key in self._pools else self.facts.pools[key]
        except KeyError:
            return self.facts.pool(key)

    def pools(self, wanted: Iterable[str]) -> tuple[Pool, ...]:
        """The pools with the changes so far; a missing one is empty."""
        return tuple([self.pool(key) or Pool() for key in wanted])

    def change(self, key: str, pool: Pool) -> None:
        """Replace a pool."""
        self._pools[key] = pool

    def wake(self, waiter: Waiter) -> None:
        """Wake a waiter, so that it checks its wait."""
        self.signal(keys.wake_waiter(waiter.session, waiter.id))

    @property
    def size(self) -> int:
        """How many operations the commit has so far, at most: it checks all pools that it read."""
        written = len(self._puts) + len(self._deletes) + len(self._signals) + len(self._pools)
        return written + len(self.facts.relied) + len(self.facts.pools)

    @property
    def spare(self) -> bool:
        """Whether the commit has room for optional deletes, which maintenance would do later."""
        return 2 * self.size < self.facts.max_operations

    def just_granted(self, wanted: Iterable[str], agent: str) -> bool:
        """Whether this decision already gave the agent a grant of one of these pools."""
        for pool in self.pools(wanted):
            for grant in pool.grants:
                if grant.token is None and grant.agent == agent:
                    return True
        return False

    def give(self, key: str, grant: Grant) -> Grant:
        """Add a grant to a pool."""
        if key in self._stale:
            grant = replace(grant, reclaimed_from=self._stale[key])
        pool = self.pool(key) or Pool()
        self._pools[key] = Pool((*pool.grants, grant), pool.waiters, pool.capacity)
        self.pool_event(key, "acquired", grant.agent)
        return grant

    def grow(self, key: str, grant: Grant, weight: int) -> Grant:
        """Add this weight to a grant."""
        grown = replace(grant, weight=grant.weight + weight)
        self._pools[key] = (self.pool(key) or Pool()).with_grant(grown)
        self.pool_event(key, "increased", grant.agent)
        return grown

    def pool_event(self, key: str, word: str, agent: str) -> None:
        """Add an event about one of the pools."""
        self.event(f"{pool_kind(key)}:{word}", agent, thing_of(key))

    def end(self, key: str, grant: Grant, *, stale: bool = False, word: str = "released") -> None:
        """Remove a grant from a pool; ``word`` is the event unless it is stale.

        The liveness keys of a request for several things stay while one of its grants does.
        """
        pool = self.pool(key) or Pool()
        rest = tuple([each for each in pool.grants if each.id != grant.id])
        self._pools[key] = Pool(rest, pool.waiters, pool.capacity)
        self.pool_event(key, "reclaimed" if stale else word, grant.agent)
        if stale:
            self._stale[key] = grant.agent
        if self.spare and not self._held_elsewhere(key, grant):
            own = keys.live(grant.session)
            self.delete(*[each for each in grant.live if each != own])

    def settle(self, wanted: Collection[str]) -> int:
        """End the stale grants of these pools, and serve their waiters; returns how many ended."""
        ended = 0
        for key in wanted:
            grants = pool.grants if (pool := self.pool(key)) else ()
            self.facts.need([each for grant in grants for each in grant.live])
            for grant in grants:
                if not self.facts.alive(grant):
                    self.end(key, grant, stale=True)
                    ended += 1
        self.serve(wanted)
        return ended

    def rely_on_few(self, key: str) -> None:
        """Have the commit check the holders, if they are few: no waiter queues behind a dead one.

        With many holders, the waiter finds a dead one when it checks its wait.
        """
        before, now = self.facts.pool(key) or Pool(), self.pool(key) or Pool()
        if len(now.grants) <= _FEW and self.spare:
            standing = {grant.id for grant in now.grants}
            for grant in before.grants:
                if grant.id in standing:
                    self.facts.rely_on(grant.live)

    def serve(self, wanted: Iterable[str]) -> None:
        """Serve the waiters of these pools in their order, while they fit."""
        todo = deque(wanted)
        while todo:
            key = todo.popleft()
            pool = self.pool(key)
            if pool is None or not pool.waiters or pool.free < 1:
                continue
            first = self._first(key)
            if first is None:
                continue
            pools = first.together or (key,)
            if self._too_much(pools):
                self.wake(first)
            elif self._fits(key, first) and self._ready_elsewhere(key, first):
                if not first.into and self.just_granted(pools, first.agent):
                    self.wake(first)
                    continue
                self._promote(first, pools)
                todo.extend(pools)

    def leave(self, wanted: Iterable[str], id_: str) -> bool:
        """Remove a waiter from its queues; returns whether it was in one."""
        found: Waiter | None = None
        for key in wanted:
            pool = self.pool(key)
            position = None if pool is None else pool.position(id_)
            if pool is not None and position is not None:
                found = pool.waiters[position]
                rest = (*pool.waiters[:position], *pool.waiters[position + 1 :])
                self._pools[key] = Pool(pool.grants, rest, pool.capacity)
        if found is not None:
            self._unlist(found)
        return found is not None

    def drop_dead_waiters(self, key: str) -> None:
        """Remove every dead waiter of a pool."""
        pool = self.pool(key)
        if pool is not None:
            self.facts.need([waiter.live for waiter in pool.waiters])
            dead = [waiter for waiter in pool.waiters if not self.facts.exists[waiter.live]]
            for waiter in dead:
                self._unlist(waiter)
            rest = tuple([waiter for waiter in pool.waiters if self.facts.exists[waiter.live]])
            self._pools[key] = Pool(pool.grants, rest, pool.capacity)

    def decision(self, outcome: T, verb: str, thing: str) -> Decision[T]:
        """The decision with all changes; one without a verb if nothing changes."""
        puts, deletes, lists = [], [], list[Write]()
        for key, changed in self._pools.items():
            before = self.facts.pool(key)
            pool = changed if before is None or not before.gated else self._still_gated(key, before)
            empty = not pool.grants and not pool.waiters and not pool.gated
            if pool == before or (before is None and empty):
                continue
            was, now = listed_sessions(before), listed_sessions(pool)
            if was != now:
                lists += [Write(keys.held(each, key), {}) for each in now - was]
                if self.spare:  # maintenance finds the rest
                    deletes += [keys.held(each, key) for each in was - now]
            if empty and key.startswith(keys.LOCKS):
                deletes.append(key)
            else:
                puts.append(Write(key, pool))
            if before is None and key.startswith(keys.SEMAPHORES):
                self.creates(thing_of(key))
        if not puts and not deletes and not self._puts:
            return Decision(outcome=outcome)
        return self._decision(outcome, verb, thing, (*puts, *lists), deletes)

    def _still_gated(self, key: str, before: Pool) -> Pool:
        """The changed pool, which gates wait for: another grant may open them."""
        pool = self._pools[key]
        left = bool(before.waiters) and not pool.waiters  # nothing is reserved any more
        if left or (pool.grants, pool.capacity) != (before.grants, before.capacity):
            self.awaits(thing_of(key))
        return replace(pool, gated=True)

    def _first(self, key: str) -> Waiter | None:
        """The first living waiter that can ever fit; the waiters before it are removed."""
        pool = self.pool(key) or Pool()
        waiters = pool.waiters
        for number, waiter in enumerate(waiters):
            if waiter.live not in self.facts.exists:
                self.facts.need([each.live for each in waiters[number : number + _AT_ONCE]])
            if self.facts.exists[waiter.live] and not pool.never_fits(waiter):
                self._drop(key, number)
                return waiter
        self._drop(key, len(waiters))
        return None

    def _drop(self, key: str, number: int) -> None:
        pool = self.pool(key)
        if number and pool is not None:
            for waiter in pool.waiters[:number]:
                self._unlist(waiter)
            self._pools[key] = Pool(pool.grants, pool.waiters[number:], pool.capacity)

    def _unlist(self, waiter: Waiter) -> None:
        if self.spare:  # maintenance finds the rest
            self.delete(*wait_keys(waiter, waiter.id))

    def _fits(self, key: str, first: Waiter) -> bool:
        """Whether the first waiter of this queue fits."""
        pool = self.pool(key)
        return pool is not None and pool.fits(first.weight, more=bool(first.into))

    def _ready_elsewhere(self, key: str, waiter: Waiter) -> bool:
        """Whether a waiter for several pools is the first in the other queues, too, and fits."""
        for other in waiter.together:
            if other != key:
                first = self._first(other)
                if first is None or first.id != waiter.id or not self._fits(other, first):
                    return False
        return True

    def _too_much(self, wanted: tuple[str, ...]) -> bool:
        """Whether this commit may have no room to read these pools and to serve their waiter."""
        if not self.served and self.facts.pools.keys() >= {*wanted}:
            return False
        return self.size + 4 * len(wanted) + _LEEWAY > self.facts.max_operations

    def _promote(self, waiter: Waiter, wanted: tuple[str, ...]) -> None:
        for key in wanted:
            pool = self.pool(key) or Pool()
            entry = pool.waiters[0]
            self._pools[key] = Pool(pool.grants, pool.waiters[1:], pool.capacity)
            if not entry.into:
                self.give(key, grant_of(entry, entry.weight, self.now, entry.together))
            elif (into := pool.grant(entry.into)) is not None:
                self.grow(key, into, entry.weight)
        if not waiter.into and (waiter.ttl is not None or waiter.max_hold is not None):
            fresh = grant_of(waiter, waiter.weight, self.now)
            self.write(*liveness(fresh, things(wanted), CLAIM_WINDOW))
        self.wake(waiter)
        self._unlist(waiter)
        self.facts.rely_on((waiter.live,))
        self.served[waiter.id] = waiter

    def _held_elsewhere(self, key: str, grant: Grant) -> bool:
        """Whether another pool may still have this grant."""
        for other in grant.together:
            if other != key and (other not in self._pools or self._pools[other].grant(grant.id)):
                return True
        return False


def things(wanted: Iterable[str]) -> str:
    """The name of these pools in the record."""
    return join_things([thing_of(key) for key in wanted])


def grant_of(
    terms: GrantRequest | Waiter, weight: int, now: float, together: tuple[str, ...] = ()
) -> Grant:
    """The grant for the terms of a request or a waiter."""
    live = keys.live(terms.session if terms.ttl is None else terms.id)
    return Grant(
        id=terms.id,
        agent=terms.agent,
        session=terms.session,
        live=(live,) if terms.max_hold is None else (live, keys.max_hold(terms.id)),
        since=now,
        ttl=terms.ttl,
        max_hold=terms.max_hold,
        metadata=terms.metadata,
        weight=weight,
        caller=terms.caller,
        together=together,
        listed=terms.listed,
    )


def liveness(grant: Grant, thing: str, at_most: float | None = None) -> tuple[Write, ...]:
    """The writes of the liveness keys that only this grant has."""
    if grant.ttl is None and grant.max_hold is None:
        return ()
    ttl = grant.ttl if grant.ttl is None or at_most is None else min(grant.ttl, at_most)
    terms = ((keys.live(grant.id), ttl), (keys.max_hold(grant.id), grant.max_hold))
    value = liveness_value(grant, thing)
    return tuple([Write(key, value, seconds) for key, seconds in terms if seconds is not None])


def renewal(grant: Grant, thing: str, session_ttl: float) -> Write:
    """The write that keeps a grant alive."""
    return Write(grant.live[0], liveness_value(grant, thing), grant.ttl or session_ttl)


def liveness_value(grant: Grant, thing: str) -> dict[str, str]:
    """The value of a liveness key, for a person that reads the store."""
    return {"agent": grant.agent} if grant.ttl is None else {"agent": grant.agent, "for": thing}
