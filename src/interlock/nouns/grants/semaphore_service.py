"""Semaphores on a store; ``service.py`` has the operations on their pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from msgspec import Struct

from interlock.core import keys
from interlock.core.decision import Decision, Proof
from interlock.drivers import Op, Read
from interlock.nouns.grants import semaphore as core
from interlock.nouns.grants.decode import decode_pool
from interlock.nouns.grants.pool import Grant, Pool
from interlock.nouns.grants.pool_change import PoolFacts
from interlock.nouns.grants.pool_reader import PoolReader, every_pool
from interlock.nouns.grants.service import GrantService
from interlock.nouns.grants.waiting import expires_in
from interlock.runtime.decide import DecideOp
from interlock.runtime.identity import Actor, Identity
from interlock.runtime.reads import looked_up
from interlock.runtime.runner import Decided, Runner
from interlock.runtime.why import Queued
from interlock.store import Item, Snapshot

T = TypeVar("T")


class Slots(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The slots of one holder, for display."""

    holder: str
    weight: int
    state: str
    token: int | None = None
    since: float | None = None
    expires_in: float | None = None
    max_hold: float | None = None
    session: str = ""
    metadata: Any = None


class SemaphoreView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A semaphore, for display."""

    semaphore: str
    capacity: int
    available: int
    holders: tuple[Slots, ...] = ()
    waiters: tuple[Queued, ...] = ()


class SemaphoreService:
    """Every operation on semaphores; the methods are generators for a driver."""

    def __init__(self, runner: Runner, grants: GrantService) -> None:
        self._runner = runner
        self._grants = grants

    def acquire(
        self,
        identity: Identity,
        name: str,
        *,
        weight: int = 1,
        capacity: int | None = None,
        ttl: float | None = None,
        max_hold: float | None = None,
        metadata: object = None,
        token: int | None = None,
        wait: float | None = None,
        given: tuple[Proof, ...] = (),
    ) -> Op[core.AcquireOutcome]:
        """Take slots, or queue until the wait is over; an interrupted call leaves nothing."""
        request = core.SlotsGrantRequest(
            semaphore=name,
            weight=weight,
            capacity=capacity,
            grant="",
            agent="",
            session="",
            ttl=ttl,
            max_hold=max_hold,
            metadata=metadata,
            token=token,
        )
        return self._grants.acquire(identity, request, wait=wait, given=given)

    def release(
        self, actor: Actor, name: str, *, token: int | None = None, grant: str = ""
    ) -> Op[core.ReleaseOutcome]:
        """Release them; the waiters that fit have them with the same commit."""
        return self._grants.release(actor, _holder_request(actor, name, token, grant))

    def heartbeat(
        self, actor: Actor, name: str, *, token: int | None = None, session_ttl: float = 0.0
    ) -> Op[core.BeatOutcome]:
        """Renew the liveness of the grant."""
        request = _holder_request(actor, name, token)
        return self._grants.heartbeat(actor, request, session_ttl)

    def resize(self, actor: Actor, name: str, capacity: int) -> Op[core.Resized]:
        """Set the capacity; the same commit serves the waiters that fit now."""
        return self._change(
            actor, name, lambda facts, now: core.resize(name, capacity, facts, now, actor.agent)
        )

    def remove(
        self, actor: Actor, name: str
    ) -> Op[core.Removed | core.SlotsFull | core.NoSemaphore]:
        """Remove it, unless it has holders or waiters."""
        return self._change(actor, name, lambda facts, now: core.remove(name, facts, now))

    def _change(
        self, actor: Actor, name: str, decide: Callable[[PoolFacts, float], Decision[T]]
    ) -> Op[T]:
        base = yield from self._runner.base()

        def deciding() -> DecideOp[T]:
            reader = PoolReader(self._runner, base)
            reader.learn((yield (keys.semaphore(name),)).items)
            now = self._runner.clock.wall()
            return (yield from reader.decide(lambda facts: decide(facts, now)))

        done: Decided[T] = yield from self._runner.change(deciding, actor)
        return done.outcome

    def break_grant(
        self, actor: Actor, name: str, reason: str, *, holder: str = "", token: int | None = None
    ) -> Op[core.BreakOutcome]:
        """End the grant of another agent."""
        request = core.SlotsBreakRequest(
            semaphore=name, by=actor.agent, reason=reason, holder=holder, token=token
        )
        return self._grants.break_grant(actor, request)

    def show(self, name: str) -> Op[SemaphoreView | core.NoSemaphore]:
        """The semaphore, its holders and its queue."""
        base = yield from self._runner.base()
        snapshot: Snapshot = yield Read(keys.semaphore(name))
        pool = decode_pool(snapshot[keys.semaphore(name)], base)
        if pool is None:
            return core.NoSemaphore(semaphore=name)
        live = yield from looked_up((key for g in pool.grants for key in g.live), times=True)
        return _semaphore_view(name, pool, live)

    def list(self) -> Op[tuple[SemaphoreView, ...]]:
        """All semaphores, by name."""
        base = yield from self._runner.base()
        pools, live = yield from every_pool(keys.SEMAPHORES, base)
        return tuple(_semaphore_view(name, pool, live) for name, pool in pools.items())


def _holder_request(
    actor: Actor, name: str, token: int | None, grant: str = ""
) -> core.SlotsHolderRequest:
    return core.SlotsHolderRequest(
        semaphore=name, agent=actor.agent, session=actor.session, token=token, grant=grant
    )


def _semaphore_view(name: str, pool: Pool, live: Mapping[str, Item | None]) -> SemaphoreView:
    return SemaphoreView(
        semaphore=name,
        capacity=pool.capacity,
        available=max(pool.free, 0),
        holders=tuple(_slots(grant, live) for grant in pool.grants),
        waiters=tuple(Queued(agent=w.agent, weight=w.weight, since=w.since) for w in pool.waiters),
    )


def _slots(grant: Grant, live: Mapping[str, Item | None]) -> Slots:
    own = {key: live[key] for key in grant.live}
    left = expires_in(own)
    return Slots(
        holder=grant.agent,
        weight=grant.weight,
        state="held" if None not in own.values() else "stale",
        token=grant.token,
        since=grant.since,
        expires_in=None if left is None else round(left, 3),
        max_hold=grant.max_hold,
        session=grant.session,
        metadata=grant.metadata,
    )
