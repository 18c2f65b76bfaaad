"""Locks on a store; ``service.py`` has the operations on their pools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from interlock.core import keys
from interlock.core.decision import Proof
from interlock.drivers import Op, Read
from interlock.nouns.grants import lock as core
from interlock.nouns.grants.decode import decode_pool
from interlock.nouns.grants.pool import Pool
from interlock.nouns.grants.pool_reader import every_pool
from interlock.nouns.grants.service import GrantService
from interlock.nouns.grants.waiting import expires_in
from interlock.runtime.identity import Actor, Identity
from interlock.runtime.reads import looked_up
from interlock.runtime.runner import Runner
from interlock.store import Item, Snapshot


class LockView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A lock for display: free, held, stale, or reserved.

    It is ``reserved`` for its first waiter, if that also waits for another thing.
    """

    lock: str
    state: str
    holder: str = ""
    token: int | None = None
    since: float | None = None
    expires_in: float | None = None
    max_hold: float | None = None
    session: str = ""
    metadata: Any = None
    waiters: tuple[str, ...] = ()


class LockService:
    """Every operation on locks; the methods are generators for a driver."""

    def __init__(self, runner: Runner, grants: GrantService) -> None:
        self._runner = runner
        self._grants = grants

    def acquire(
        self,
        identity: Identity,
        name: str,
        *,
        ttl: float | None = None,
        max_hold: float | None = None,
        metadata: object = None,
        token: int | None = None,
        wait: float | None = None,
        given: tuple[Proof, ...] = (),
    ) -> Op[core.AcquireOutcome]:
        """Take the lock, or queue until the wait is over; an interrupted call leaves nothing."""
        request = core.LockGrantRequest(
            lock=name,
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
        """Release it; the next waiter has it with the same commit."""
        return self._grants.release(actor, _holder_request(actor, name, token, grant))

    def heartbeat(
        self, actor: Actor, name: str, *, token: int | None = None, session_ttl: float = 0.0
    ) -> Op[core.BeatOutcome]:
        """Renew the liveness of the grant."""
        request = _holder_request(actor, name, token)
        return self._grants.heartbeat(actor, request, session_ttl)

    def break_grant(
        self, actor: Actor, name: str, reason: str, *, token: int | None = None
    ) -> Op[core.BreakOutcome]:
        """End the grant of another agent."""
        request = core.LockBreakRequest(lock=name, by=actor.agent, reason=reason, token=token)
        return self._grants.break_grant(actor, request)

    def show(self, name: str) -> Op[LockView]:
        """The lock, its holder and its queue."""
        base = yield from self._runner.base()
        snapshot: Snapshot = yield Read(keys.lock(name))
        pool = decode_pool(snapshot[keys.lock(name)], base)
        if pool is None:
            return LockView(lock=name, state="free")
        live = yield from looked_up((key for g in pool.grants for key in g.live), times=True)
        return _lock_view(name, pool, live)

    def list(self) -> Op[tuple[LockView, ...]]:
        """All locks that have a holder or waiters, by name."""
        base = yield from self._runner.base()
        pools, live = yield from every_pool(keys.LOCKS, base)
        return tuple(_lock_view(name, pool, live) for name, pool in pools.items())


def _holder_request(
    actor: Actor, name: str, token: int | None, grant: str = ""
) -> core.LockHolderRequest:
    return core.LockHolderRequest(
        lock=name, agent=actor.agent, session=actor.session, token=token, grant=grant
    )


def _lock_view(name: str, pool: Pool, live: Mapping[str, Item | None]) -> LockView:
    waiters = tuple(waiter.agent for waiter in pool.waiters)
    if not pool.grants:
        return LockView(lock=name, state="reserved", waiters=waiters)
    grant = pool.grants[0]
    own = {key: live[key] for key in grant.live}
    left = expires_in(own)
    return LockView(
        lock=name,
        state="held" if None not in own.values() else "stale",
        holder=grant.agent,
        token=grant.token,
        since=grant.since,
        expires_in=None if left is None else round(left, 3),
        max_hold=grant.max_hold,
        session=grant.session,
        metadata=grant.metadata,
        waiters=waiters,
    )
