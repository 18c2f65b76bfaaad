"""The wait of a request for pools, and its end: a grant, a withdrawal, or a deadlock.

The wait is committed first, so that all clients see it; then the waiter sleeps on its own signal.
The commit that releases a grant serves the next waiters and signals only these.  An expiry sends no
signal, so each waiter also sets a timer for the moment when a holder before it may expire, a little
later for each position in the queue.

If a served waiter dies with its grant, the waiters behind it still have the timer of the holder
before, which may be minutes away.  So no waiter sleeps for long: a second at the head of the queue,
five seconds at its end.

A wait that can never end is refused: each waiter reads the wait graph with its commit and after
every sleep, and the youngest wait of a cycle withdraws (``core/deadlock.py``).  So does a caller
that holds nothing: others may wait for the answer of its agent.

An engine may send what the commit wrote that signals a waiter (``Change.written``).  Then the
waiter has its grant without a read, by the same right as with a commit of its own: what it got was
durable a moment ago.  All that may end a grant later is noticed as with any other grant.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import codec, keys, outcomes
from interlock.core.decision import Decision, Outcome, Proof
from interlock.core.wait import caller_name_of
from interlock.nouns.grants import rules
from interlock.nouns.grants.pool import Grant, Pool, with_token
from interlock.nouns.grants.pool_reader import PoolReader, decide_on, decode_pool, readable_pool
from interlock.nouns.grants.request import GrantRequest, RequestStatus
from interlock.nouns.grants.service import (
    GrantService,
    measured,
    recalled,
    timed,
    with_commit_token,
)
from interlock.runtime import callers
from interlock.runtime.attempt import DecideOp, ReadOp
from interlock.runtime.deadlock import DeadlockResolver
from interlock.runtime.given import holds
from interlock.runtime.identity import Identity
from interlock.runtime.runner import Decided
from interlock.runtime.wait_graph import (
    Blocker,
    KnownTargets,
    SharedResource,
    Start,
    WaitTarget,
    WaitTargets,
    glanced,
)
from interlock.steps import NextChanges, Op, OpenWatch, Read
from interlock.store import ALIVE, Change, Item, Resync, Snapshot

if TYPE_CHECKING:
    from interlock.nouns.grants.guarded import GrantGate

_BEHIND_EACH_OTHER = 0.02
"""Seconds by which each waiter wakes later than the one before it, when a holder expires."""
_SLEEP = 1.0
"""The longest sleep at the head of a queue, in seconds."""
_LONGEST_SLEEP = 5.0
"""The longest sleep at its end."""


class PoolGrants(Struct):
    """A pool without its waiters, which take most of the time to decode."""

    grants: tuple[Grant, ...] = ()
    capacity: int = 1


_POOL_GRANTS = codec.Decoder(PoolGrants)


class Asleep(Struct, frozen=True):
    """A wait that goes on: how long to sleep, and its pools, read after it was committed."""

    seconds: float
    around: KnownTargets


class PoolWait:
    """One wait; the methods are generators for a driver."""

    def __init__(
        self,
        grants: GrantService,
        identity: Identity,
        request: GrantRequest,
        base: int,
        given: tuple[Proof, ...],
        *,
        gate: GrantGate | None = None,
    ) -> None:
        self._grants = grants
        self._runner = grants.runner
        self._actor = identity.actor
        self._request = request
        self._base = base
        self._given = given
        self._gate = gate

    def run(self, deadline: float, revision: int, queued: PoolReader | None) -> Op[Outcome]:
        """Sleep until the grant comes, a holder before us may have expired, or the deadline.

        ``queued`` is what the commit of this revision read and wrote: the first check needs no read
        of the pools, since the watch sees all that comes later.
        """
        clock = self._runner.clock
        wake = keys.wake_waiter(self._request.session, self._request.grant)
        watch = yield OpenWatch(wake, revision)
        try:
            found: Outcome | Asleep | None
            found = yield from self._first_check(revision, queued)
            while True:
                left = deadline - clock.monotonic()
                if isinstance(found, Asleep) and left > 0:
                    refused = yield from self._refuse(found.around)
                    if refused is not None:
                        return (yield from self._confirm(refused))
                    changes = yield NextChanges(watch, min(left, found.seconds))
                    found = self._granted_by(changes) or (yield from self._check())
                    continue
                if not isinstance(found, Outcome):
                    # To withdraw it reads all liveness: a dead holder is no reason to refuse.
                    decide = rules.check_wait if left > 0 else rules.withdraw
                    found = yield from self._grants.decide(
                        decide, self._actor, self._request, self._base, hopeful=left > 0
                    )
                if not isinstance(found, outcomes.Waiting):
                    return (yield from self._confirm(found))
                found = yield from self._check()
        finally:
            watch.close()

    def _first_check(self, revision: int, queued: PoolReader | None) -> Op[Outcome | Asleep | None]:
        """The check after the commit that queued, with what that commit knew."""
        wanted = self._request.keys
        if queued is None or not queued.written.keys() >= {*wanted}:
            return (yield from self._check())
        pools = [with_token(queued.written[key], self._base + revision) for key in wanted]
        return (yield from self._place(pools, queued))

    def _granted_by(self, changes: Iterable[Change | Resync]) -> Outcome | None:
        """The outcome, if the commit that signalled wrote our grant and the engine sent it along.

        A maximum hold began with that commit, and has to be read.
        """
        request = self._request
        for change in changes if request.max_hold is None else ():
            written = {} if isinstance(change, Resync) else {i.key: i for i in change.written}
            if written.keys() >= {*request.keys}:
                pools = [decode_grants(written[key], self._base) for key in request.keys]
                held = [pool.grant(request.grant) for pool in pools]
                if held[0] is not None and None not in held:
                    return request.target.outcome(RequestStatus("granted", tuple(pools), held[0]))
        return None

    def _check(self) -> Op[Outcome | Asleep | None]:
        """The outcome if we have the grant, or how to sleep.

        None if there is something to decide: no holder is left before us, one of them is dead, or
        a grant came and expired while we were suspended.
        """
        request = self._request
        own = keys.live(request.session if request.ttl is None else request.grant)
        mine = (own,) if request.max_hold is None else (own, keys.max_hold(request.grant))
        snapshot: Snapshot = yield Read(*request.keys, *mine)
        pools = {key: decode_pool(snapshot[key], self._base) for key in request.keys}
        found = [pool for pool in pools.values() if pool is not None]
        held = [pool.grant(request.grant) for pool in found]
        if len(found) == len(pools) and held[0] is not None:
            if None in held or None in [snapshot[key] for key in held[0].live]:
                return None
            self._remember(snapshot)
            return request.target.outcome(RequestStatus("granted", tuple(found), held[0]))
        return None if len(found) < len(pools) else (yield from self._place(found))

    def _place(self, pools: list[Pool], queued: PoolReader | None = None) -> Op[Asleep | None]:
        """How to sleep, with all pools of the request; None if there is something to decide."""
        request = self._request
        places = [pool.position(request.grant) for pool in pools]
        if None in places:
            return None
        pairs = zip(request.keys, pools, strict=True)
        targets = {key: wait_target(key, pool) for key, pool in pairs}
        around = KnownTargets(targets)
        if queued is not None:
            around = KnownTargets(targets, queued.live, queued.lists)
        seconds = yield from self._sleep_time(
            [(pool, place or 0) for pool, place in zip(pools, places, strict=True)],
            around,
        )
        return None if seconds is None else Asleep(seconds, around)

    def _sleep_time(
        self,
        queues: list[tuple[Pool, int]],
        around: KnownTargets,
    ) -> Op[float | None]:
        """How long to sleep: until a holder before us may have expired, and never for long."""
        if not [pool for pool, place in queues if place or not _first_fits(pool)]:
            return None
        if [pool for pool, place in queues if pool.never_fits(pool.waiters[place])]:
            return None
        live = yield from around.look(_before(queues))
        if None in live.values():
            return None
        place = max([place for _, place in queues])
        allow = self._runner.capabilities.allow
        soonest = allow(_LONGEST_SLEEP)  # the grant of a pipeline never expires
        known = [item.life or 0.0 for item in live.values() if item and item.expires_in != ALIVE]
        if known:
            soonest = max(min(known), self._runner.capabilities.grain / 4)
        lapse = soonest + place * allow(_BEHIND_EACH_OTHER) + 0.001
        return min(lapse, allow(_SLEEP) * (1 + place / 2), allow(_LONGEST_SLEEP))

    def _refuse(self, around: KnownTargets) -> Op[Outcome | None]:
        """Withdraw if the wait closed a cycle; None if it may go on."""
        grants, request, wanted = self._grants, self._request, self._request.keys
        if request.indexed and grants.pending:
            yield from grants.release_pending()  # others cannot know of these
        if around.open:
            return None
        pending = grants.pending_grants() | callers.pending_grants()

        def withdraw(cycle: tuple[str, ...]) -> DecideOp[Outcome | None]:
            decide = partial(rules.withdraw, request, cycle=cycle)
            return decide_on(self._runner, self._base, wanted, decide)

        done: Decided[Outcome | None] = yield from DeadlockResolver(self._runner).resolve(
            self._actor,
            Start(id=request.grant, wants=wanted),
            withdraw,
            around,
            pending,
        )
        return with_commit_token(done.outcome, self._base, done.revision)

    def _confirm(self, outcome: Outcome) -> Op[Outcome]:
        """The outcome of the wait; a grant that came while we slept is confirmed first."""
        if isinstance(outcome, outcomes.Busy):
            return (yield from timed(self._request, outcome, None))
        if not isinstance(outcome, outcomes.Granted):
            return outcome
        refused = yield from self._lost_grant(outcome)
        return (yield from measured(self._request, outcome)) if refused is None else refused

    def _lost_grant(self, outcome: outcomes.Granted) -> Op[Outcome | None]:
        """Keep the grant, if the given grants still live and the guards pass; else the outcome.

        One commit extends its short ttl to the requested one, or releases it.
        """
        request, given, new = self._request, self._given, outcome.grant == self._request.grant
        if self._gate is not None and new:
            refused: Outcome | None
            refused = yield from self._gate.confirm(self._actor, request, self._base)
            if refused is not None or not given:
                return refused
        if (request.ttl is None or not new) and not given:
            return None

        def deciding() -> DecideOp[Decision[Any] | Outcome | str]:
            reader = PoolReader(self._runner, self._base)
            reader.learn((yield request.keys).items)
            now = self._runner.clock.wall()
            for proof in given:
                if not (yield from holds(proof, self._base, request.agent)):
                    back = yield from reader.decide(
                        lambda facts: rules.abandon(request, facts, now)
                    )
                    return replace(back, outcome=request.target.given_fenced(proof.thing))
            return (yield from reader.decide(lambda facts: rules.confirm(request, facts)))

        done = yield from self._runner.change(
            deciding, self._actor, recalled(self._runner, request.keys)
        )
        if done.outcome == "agreed":
            return None
        if isinstance(done.outcome, Outcome):
            return done.outcome
        return request.target.outcome(RequestStatus("gone"))

    def _remember(self, snapshot: Snapshot) -> None:
        """Remember the items for the commit that extends the ttl, which follows at once."""
        if self._request.ttl is not None:
            for key in self._request.keys:
                if (item := snapshot[key]) is not None:
                    self._runner.remember(key, item)


def decode_grants(item: Item, base: int) -> Pool:
    """The lock or semaphore of an item as ``decode_pool`` returns it, but without its waiters."""
    found = _POOL_GRANTS.read(item)
    return with_token(Pool(found.grants, (), found.capacity), base + item.revision)


def _before(queues: Iterable[tuple[Pool, int]]) -> list[str]:
    """The liveness keys of the holders, and of the first waiter while there is free capacity.

    A dead waiter behind the first blocks no one yet, and cannot be removed either.
    """
    found: list[str] = []
    for pool, place in queues:
        for grant in pool.grants:
            found += grant.live
        if place and pool.free > 0:
            found.append(pool.waiters[0].live)
    return found


def _first_fits(pool: Pool) -> bool:
    """Whether the first waiter fits now."""
    first = pool.waiters[0]
    return pool.fits(first.weight, more=bool(first.into))


def wait_targets(wanted: tuple[str, ...], base: int) -> ReadOp[WaitTargets]:
    """Locks and semaphores as targets of waits."""
    items = yield from glanced(wanted)
    return {
        key: wait_target(key, None if item is None else readable_pool(item, base))
        for key, item in items.items()
    }


def wait_target(key: str, pool: Pool | None) -> WaitTarget:
    """A lock or a semaphore; one that is not there has no queue."""
    if pool is None:
        return WaitTarget()
    met = tuple(
        [Blocker(caller_name_of(g), g.weight, g.id, g.live, agent=g.agent) for g in pool.grants]
    )
    return WaitTarget((SharedResource(key, met, pool.capacity, (key,)),), pool.waiters)
