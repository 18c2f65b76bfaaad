"""The wait of a request for pools, and its end: a grant, a withdrawal, or a deadlock.

The wait is committed first, so that all clients see it; then the waiter sleeps on its own signal.
The commit that releases a grant serves the next waiters and signals only these.  An expiry sends no
signal, so each waiter also sets a timer for the moment when a holder before it may expire, a little
later for each position in the queue.

If a served waiter dies with its grant, the waiters behind it still have the timer of the holder
before, which may be minutes away.  So no waiter sleeps for long: a second at the head of the queue,
five seconds at its end.

A wait that can never end is refused: each waiter reads the wait graph after its commit and after
every sleep, and the youngest wait of a cycle withdraws (``core/deadlock.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from interlock.core import keys, outcomes
from interlock.core.decision import Decision, Outcome, Proof
from interlock.drivers import NextChanges, Op, OpenWatch, Read
from interlock.nouns.agents.session_service import decode_session
from interlock.nouns.grants import lock, rules
from interlock.nouns.grants.decode import decode_pool
from interlock.nouns.grants.pool import Pool
from interlock.nouns.grants.pool_reader import PoolReader
from interlock.nouns.grants.request import GrantRequest, RequestStatus
from interlock.runtime import callers
from interlock.runtime.decide import DecideOp, ReadOp
from interlock.runtime.given import holds
from interlock.runtime.identity import Identity
from interlock.runtime.runner import Decided, Runner
from interlock.store import Item, Snapshot

if TYPE_CHECKING:
    from interlock.nouns.grants.service import GrantService
    from interlock.runtime.deadlock import DeadlockDetector
    from interlock.runtime.wait_graph.known import KnownAround

T = TypeVar("T")

_BEHIND_EACH_OTHER = 0.02
_SLEEP = 1.0
_LONGEST_SLEEP = 5.0


class PoolWaits:
    """Every step of a wait; the methods are generators for a driver."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    @cached_property
    def _deadlocks(self) -> DeadlockDetector:
        """Imported late: a client that never waits does not pay for it."""
        from interlock.runtime.deadlock import DeadlockDetector

        return DeadlockDetector(self._runner)

    def wait(
        self,
        mine: tuple[Identity, GrantRequest[Any], int],
        until: tuple[float, int],
        given: tuple[Proof, ...],
        grants: GrantService,
    ) -> Op[Outcome]:
        """Sleep until the grant comes, a holder before us may have expired, or the deadline."""
        (identity, request, base), (deadline, revision) = mine, until
        clock = self._runner.clock
        watch = yield OpenWatch(keys.wake(request.grant), revision)
        try:
            while True:
                found, sleep, around = yield from self._check(request, base)
                left = deadline - clock.monotonic()
                if sleep is None and left > 0:
                    if found is None:
                        found = yield from self.decide(rules.check_wait, identity, request, base)
                    if not isinstance(found, outcomes.Waiting):
                        return (yield from self._confirm(identity, request, found, given))
                    continue
                if sleep is None or left <= 0:
                    if found is None:
                        found = yield from self._withdraw(identity, request, base)
                    return (yield from self._confirm(identity, request, found, given))
                if request.indexed and grants.pending:
                    yield from grants.release_pending()  # others cannot know of these
                pending = grants.pending_grants() | callers.pending_grants()
                done = yield from self._deadlocks.refuse(identity.actor, request, around, pending)
                if done.outcome is not None:
                    refused = with_commit_token(done.outcome, base, done.revision)
                    return (yield from self._confirm(identity, request, refused, given))
                yield NextChanges(watch, min(left, sleep))
        finally:
            watch.close()

    def _check(
        self, request: GrantRequest[Any], base: int
    ) -> Op[tuple[Outcome | None, float | None, KnownAround]]:
        """The outcome if we have the grant, else how long to sleep; and the items around the wait.

        Both are None if there is something to decide: no holder is left before us, one of them is
        dead, or a grant came and expired while we were suspended.
        """
        from interlock.runtime.wait_graph.known import KnownAround  # late, as above

        own = keys.live(request.session if request.ttl is None else request.grant)
        mine = (own,) if request.max_hold is None else (own, keys.max_hold(request.grant))
        snapshot: Snapshot = yield Read(*request.keys, *mine)
        around = KnownAround({key: decode_pool(snapshot[key], base) for key in request.keys})
        pools = list(around.pools.values())
        held = [pool.grant(request.grant) for pool in pools if pool is not None]
        if pools[0] is not None and held[0] is not None and len(held) == len(pools):
            if None in held or None in [snapshot[key] for key in held[0].live]:
                return None, None, around
            self._remember(request, snapshot)
            status = RequestStatus("granted", tuple(filter(None, pools)), held[0])
            return request.outcome(status), None, around
        return None, (yield from self._sleep_time(request, around)), around

    def _sleep_time(self, request: GrantRequest[Any], around: KnownAround) -> Op[float | None]:
        """How long to sleep: until a holder before us may have expired, and never for long."""
        pools = list(around.pools.values())
        places = [None if pool is None else pool.position(request.grant) for pool in pools]
        if None in places:
            return None
        queues = [(pool, place or 0) for pool, place in zip(pools, places, strict=True) if pool]
        if all(place == 0 and _first_fits(pool) for pool, place in queues):
            return None
        if any(pool.never_fits(pool.waiters[place]) for pool, place in queues):
            return None
        live = yield from around.look(_before(queues))
        if None in live.values():
            return None
        place = max(place for _, place in queues)
        soonest = max(expires_in(live) or 0.0, self._runner.capabilities.grain / 4)
        allow = self._runner.capabilities.allow
        lapse = soonest + place * allow(_BEHIND_EACH_OTHER) + 0.001
        return min(lapse, allow(_SLEEP) * (1 + place / 2), allow(_LONGEST_SLEEP))

    def _withdraw(self, identity: Identity, request: GrantRequest[Any], base: int) -> Op[Outcome]:
        """Leave the queue; this reads all liveness, so a dead holder is no reason to refuse."""
        last: Outcome = yield from self.decide(
            rules.withdraw, identity, request, base, hopeful=False
        )
        return last

    def decide(
        self,
        decide: Callable[..., Decision[T]],
        identity: Identity,
        request: GrantRequest[Any],
        base: int,
        *,
        hopeful: bool = True,
    ) -> Op[T]:
        """Carry out a decision about this request."""

        def deciding() -> DecideOp[T]:
            reader = PoolReader(self._runner, base)
            reader.learn((yield request.keys).items)
            now = self._runner.clock.wall()
            return (yield from reader.decide(lambda facts: decide(request, facts, now)))

        done: Decided[T] = yield from self._runner.change(deciding, identity.actor, hopeful=hopeful)
        return with_commit_token(done.outcome, base, done.revision)

    def _confirm(
        self,
        identity: Identity,
        request: GrantRequest[Any],
        outcome: Outcome,
        given: tuple[Proof, ...],
    ) -> Op[Outcome]:
        """Confirm a grant that came while we slept, if the given grants still live.

        One commit extends its short ttl to the requested one, or releases it.
        """
        if isinstance(outcome, outcomes.Busy):
            return (yield from self.timed(request, outcome, None))
        if not isinstance(outcome, outcomes.Granted):
            return outcome
        if (request.ttl is None or outcome.grant != request.grant) and not given:
            return (yield from self.measured(request, outcome))
        base = yield from self._runner.base()

        def deciding() -> DecideOp[Decision[Any] | Outcome | str]:
            reader = PoolReader(self._runner, base)
            reader.learn((yield request.keys).items)
            now = self._runner.clock.wall()
            for proof in given:
                if not (yield from holds(proof, base, request.agent)):
                    back = yield from reader.decide(
                        lambda facts: rules.abandon(request, facts, now)
                    )
                    return replace(back, outcome=request.fenced(proof.thing))
            return (yield from reader.decide(lambda facts: rules.confirm(request, facts)))

        done = yield from self._runner.change(
            deciding, identity.actor, recalled(self._runner, request.keys)
        )
        if done.outcome == "agreed":
            return (yield from self.measured(request, outcome))
        if isinstance(done.outcome, Outcome):
            return done.outcome
        gone: Outcome = request.outcome(RequestStatus("gone"))
        return gone

    def measured(
        self, request: GrantRequest[Any], outcome: outcomes.Granted, *, always: bool = True
    ) -> Op[outcomes.Granted]:
        """A grant with the time that it still lives: its maximum hold began with the commit."""
        if request.max_hold is not None or outcome.grant != request.grant:
            limit = keys.max_hold(outcome.grant)
            item = (yield Read(limit, times=True))[limit]
            if item is not None:
                ttl = outcome.expires_in or request.ttl or request.session_ttl
                return replace(outcome, expires_in=_least(ttl, item.expires_in))
        return (
            replace(outcome, expires_in=request.ttl or request.session_ttl) if always else outcome
        )

    def _remember(self, request: GrantRequest[Any], snapshot: Snapshot) -> None:
        """Remember the items for the commit that extends the ttl, which follows at once."""
        if request.ttl is not None:
            for key in request.keys:
                if (item := snapshot[key]) is not None:
                    self._runner.remember(key, item)

    def timed(
        self, request: GrantRequest[Any], outcome: Outcome, last: PoolReader | None
    ) -> Op[Outcome]:
        """A busy outcome with the time that its holder lives at least."""
        if not isinstance(outcome, lock.LockBusy) or not outcome.holder:
            return outcome
        key = request.keys[0]
        pool = last.facts.pools.get(key) if last else decode_pool((yield Read(key))[key], 0)
        if pool is None or not pool.grants:
            return outcome
        wanted = pool.grants[0].live
        left = None if last is None else expires_in({each: last.live.get(each) for each in wanted})
        if left is None:
            left = expires_in((yield Read(*wanted, times=True)).items)
        return replace(outcome, expires_in=left)


def expires_in(items: Mapping[str, Item | None]) -> float | None:
    """The least time left; None if one of them is gone."""
    times = [0.0 if item is None else item.expires_in or 0.0 for item in items.values()]
    return min(times, default=0.0) or None


def session_ttl_of(session: str, otherwise: float) -> ReadOp[float]:
    """How long a session lives after a beat."""
    key = keys.session(session)
    found = decode_session((yield (key,))[key])
    return otherwise if found is None else found.ttl


def with_commit_token(outcome: T, base: int, revision: int | None) -> T:
    """A grant that this commit wrote, with its revision as the token."""
    if isinstance(outcome, outcomes.Granted) and outcome.token is None and revision is not None:
        return replace(outcome, token=base + revision)
    return outcome


def recalled(runner: Runner, wanted: tuple[str, ...]) -> dict[str, Item | None]:
    """A guess of these items, if all of them are remembered."""
    known: dict[str, Item | None] = {}
    if runner.capabilities.transacts:
        return known
    for key in wanted:
        known |= runner.recall(key)
    return known if len(known) == len(wanted) else {}


def _before(queues: Iterable[tuple[Pool, int]]) -> list[str]:
    """The liveness keys of the holders, and of the first waiter while there is free capacity.

    A dead waiter behind the first blocks no one yet, and cannot be removed either.
    """
    found: list[str] = []
    for pool, place in queues:
        found.extend(key for grant in pool.grants for key in grant.live)
        ahead = pool.waiters[:1] if place and pool.free > 0 else ()
        found.extend(waiter.live for waiter in ahead)
    return found


def _first_fits(pool: Pool) -> bool:
    """Whether the first waiter fits now."""
    first = pool.waiters[0]
    return pool.fits(first.weight, more=bool(first.into))


def _least(*seconds: float | None) -> float | None:
    """The shortest of these spans that are known."""
    return min((span for span in seconds if span), default=None)
