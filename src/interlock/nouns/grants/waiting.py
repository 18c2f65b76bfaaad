"""Waiting for a place in a pool, and agreeing to what came while we slept.

The wait is committed first (so that it survives nothing but is seen by everybody), then the waiter
sleeps on a signal of its own.  Whoever gives back serves the next ones in the same commit and
signals just them.  A lapse is no signal, so each waiter also sets a timer for the moment when
somebody before it may lapse, a little later for each place in the queue.

Only who is served is woken.  If it dies with its grant, those behind it still have the timer of
the holder before, which may be minutes away; so nobody sleeps for long without a look: a second at
the head of the queue, five seconds at its end.

A wait that can never end is refused: each waiter reads the graph after its wait is committed, and
again with every nap, and the youngest of a circle withdraws (``core/deadlock.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from interlock.core import keys, outcomes
from interlock.core.decision import Decision, Outcome, Proof
from interlock.drivers import Op
from interlock.nouns.grants import lock, rules
from interlock.nouns.grants.pool import Pool
from interlock.nouns.grants.pool_reader import PoolReader
from interlock.nouns.grants.request import GrantRequest, RequestStatus
from interlock.runtime import callers, decode
from interlock.runtime.decide import DecideOp, ReadOp
from interlock.runtime.given import holds
from interlock.runtime.identity import Identity
from interlock.runtime.runner import Decided, Runner
from interlock.runtime.steps import NextChanges, OpenWatch, Read
from interlock.store import Item, Snapshot

if TYPE_CHECKING:
    from interlock.nouns.grants.service import GrantService
    from interlock.runtime.deadlock import DeadlockDetector
    from interlock.runtime.wait_graph.around import Around

T = TypeVar("T")

_BEHIND_EACH_OTHER = 0.02
_NAP = 1.0
_LONGEST_NAP = 5.0


class PoolWaits:
    """Every step of a wait, as generators for a driver."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    @cached_property
    def _deadlocks(self) -> DeadlockDetector:
        """Whoever never waits does not pay for them."""
        from interlock.runtime.deadlock import DeadlockDetector

        return DeadlockDetector(self._runner)

    def wait(
        self,
        mine: tuple[Identity, GrantRequest[Any], int],
        until: tuple[float, int],
        given: tuple[Proof, ...],
        grants: GrantService,
    ) -> Op[Outcome]:
        """Sleep until our turn comes, somebody before us may have lapsed, or the deadline."""
        (identity, request, base), (deadline, revision) = mine, until
        clock = self._runner.clock
        watch = yield OpenWatch(keys.wake(request.grant), revision)
        try:
            while True:
                found, nap, around = yield from self._look_at(request, base)
                left = deadline - clock.monotonic()
                if nap is None and left > 0:
                    if found is None:
                        found = yield from self.decide(rules.check_wait, identity, request, base)
                    if not isinstance(found, outcomes.Waiting):
                        return (yield from self._confirm(identity, request, found, given))
                    continue
                if nap is None or left <= 0:
                    if found is None:
                        found = yield from self._withdraw(identity, request, base)
                    return (yield from self._confirm(identity, request, found, given))
                if request.indexed and grants.pending:
                    yield from grants.release_pending()  # others cannot know that we let go of it
                let_go = grants.pending_grants() | callers.pending_grants()
                done = yield from self._deadlocks.refuse(identity.actor, request, around, let_go)
                if done.outcome is not None:
                    refused = with_commit_token(done.outcome, base, done.revision)
                    return (yield from self._confirm(identity, request, refused, given))
                yield NextChanges(watch, min(left, nap))
        finally:
            watch.close()

    def _look_at(
        self, request: GrantRequest[Any], base: int
    ) -> Op[tuple[Outcome | None, float | None, Around]]:
        """The grant if it is ours by now, else how long we may sleep; and what is around us.

        Neither if there is something to decide: nobody is in the way any more, somebody before us
        is dead, or a turn came and went while we were away.
        """
        from interlock.runtime.wait_graph.around import Around  # likewise

        own = keys.live(request.session if request.ttl is None else request.grant)
        mine = (own,) if request.max_hold is None else (own, keys.max_hold(request.grant))
        snapshot: Snapshot = yield Read(*request.keys, *mine)
        around = Around({key: decode.pool(snapshot[key], base) for key in request.keys})
        pools = list(around.pools.values())
        held = [pool.grant(request.grant) for pool in pools if pool is not None]
        if pools[0] is not None and held[0] is not None and len(held) == len(pools):
            if None in held or None in [snapshot[key] for key in held[0].live]:
                return None, None, around
            self._remember(request, snapshot)
            status = RequestStatus("granted", tuple(filter(None, pools)), held[0])
            return request.outcome(status), None, around
        return None, (yield from self._nap(request, around)), around

    def _nap(self, request: GrantRequest[Any], around: Around) -> Op[float | None]:
        """How long we may sleep: until somebody before us may have lapsed, and never for long."""
        pools = list(around.pools.values())
        places = [None if pool is None else pool.position(request.grant) for pool in pools]
        if None in places:
            return None
        queues = [(pool, place or 0) for pool, place in zip(pools, places, strict=True) if pool]
        if all(place == 0 and _served(pool) for pool, place in queues):
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
        return min(lapse, allow(_NAP) * (1 + place / 2), allow(_LONGEST_NAP))

    def _withdraw(self, identity: Identity, request: GrantRequest[Any], base: int) -> Op[Outcome]:
        """The last word of a wait, so it looks who lives: the dead are no reason to say no."""
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
        """Carry out a decision about this ask."""

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
        """Agree to a grant that came while we slept, if what it relies on still holds.

        One commit stretches its short ttl as asked, or gives it back.
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
        """How long a grant that is not of this moment lives: its maximum hold began before."""
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
        """A commit follows at once, to stretch the ttl."""
        if request.ttl is not None:
            for key in request.keys:
                if (item := snapshot[key]) is not None:
                    self._runner.remember(key, item)

    def timed(
        self, request: GrantRequest[Any], outcome: Outcome, last: PoolReader | None
    ) -> Op[Outcome]:
        """A busy answer also says how long its holder lives at least."""
        if not isinstance(outcome, lock.LockBusy) or not outcome.holder:
            return outcome
        key = request.keys[0]
        pool = last.facts.pools.get(key) if last else decode.pool((yield Read(key))[key], 0)
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
    found = decode.session((yield (key,))[key])
    return otherwise if found is None else found.ttl


def with_commit_token(outcome: T, base: int, revision: int | None) -> T:
    """A grant that this very commit wrote has its revision for a token."""
    if isinstance(outcome, outcomes.Granted) and outcome.token is None and revision is not None:
        return replace(outcome, token=base + revision)
    return outcome


def recalled(runner: Runner, wanted: tuple[str, ...]) -> dict[str, Item | None]:
    """A guess of how these stand, if we know all of them."""
    known: dict[str, Item | None] = {}
    if runner.capabilities.transacts:
        return known
    for key in wanted:
        known |= runner.recall(key)
    return known if len(known) == len(wanted) else {}


def _before(queues: Iterable[tuple[Pool, int]]) -> list[str]:
    """The liveness of who is in our way: the holders, and while there is room who waits first.

    Somebody dead behind the first is in nobody's way yet, and cannot be cleared away either.
    """
    found: list[str] = []
    for pool, place in queues:
        found.extend(key for grant in pool.grants for key in grant.live)
        ahead = pool.waiters[:1] if place and pool.free > 0 else ()
        found.extend(waiter.live for waiter in ahead)
    return found


def _served(pool: Pool) -> bool:
    """Whether whoever waits first can have it now."""
    first = pool.waiters[0]
    return pool.fits(first.weight, more=bool(first.into))


def _least(*seconds: float | None) -> float | None:
    """The shortest of these spans; none of them says nothing."""
    return min((span for span in seconds if span), default=None)
