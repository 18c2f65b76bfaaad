"""Locks, semaphores and several at once, against a model that only knows the guarantees.

The machine lets sessions join, beat, freeze, lapse and leave, ask for one thing or for several on
all terms, ask for more, give back, give up, resize, and lets time pass.  After each act of
anybody it compares the pools with what they were before:

    room       nobody is given what is not there; after a resize downwards it only gets less
    order      nobody is served before somebody who lives and came earlier to the same pool
    together   a request for several things has all of them or none, and waits in all or none
    belief     what somebody may believe that it holds, it holds
    tokens     a later grant of a pool has a higher one, and an agent never has two of one token
    nothing    disappears that lives, unless its owner did something about it

In the end everybody who lives is served or refused.  It runs over the pure core, over the services
on a store, on one that fails, and on each engine; there time cannot be moved, so nothing lapses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec import Struct
from tests.nouns.grants.pool_worlds import KEYS, THINGS, Call, CoreWorld, ServiceWorld, Terms, World

from interlock.core import keys, outcomes
from interlock.core.thing_names import key_of, thing_of
from interlock.errors import BadInput, Lapsed
from interlock.nouns.grants.pool import Grant, Pool, Waiter
from interlock.runtime.identity import Actor
from interlock.runtime.keeper import margin
from interlock.stores import open_store
from interlock.stores.memory import MemoryStore
from interlock.testing.audit import audit
from interlock.testing.clock import FakeClock
from interlock.testing.faults import Chances, FaultyStore

FOR_EVER = 1e9
SIZES = {"x": 3, "y": 5}

# Acts happen at whole seconds and everything lapses between them.
SESSION_TTLS = st.sampled_from([3.5, 6.5])
TTLS = st.sampled_from([None, None, 2.5, 40.5])
LIMITS = st.sampled_from([None, None, None, 4.5])
WAITS = st.sampled_from([0.0, 2.5, FOR_EVER, FOR_EVER, FOR_EVER])
WEIGHTS = st.integers(1, 5)
WANTS = st.lists(st.sampled_from(THINGS), min_size=1, max_size=3, unique=True)


class Belief(Struct):
    """What a holder was told, and until when its own clock lets it rely on that."""

    terms: Terms
    grant: str
    token: int
    weights: dict[str, int]
    ends: float


class PoolMachine(RuleBasedStateMachine):
    """The acts, and what must be true after each."""

    sessions = Bundle("sessions")
    stale = Bundle("stale")

    def __init__(self) -> None:
        super().__init__()
        self.world: World = self.make()
        self.agents: dict[str, str] = {}
        self.ttls: dict[str, float] = {}
        self.lives_until: dict[str, float] = {}
        self.kept_until: dict[str, float] = {}
        """Who keeps a grant that lives by its session may keep the session with it."""
        self.frozen: set[str] = set()
        self.waiting: list[Call] = []
        self.beliefs: dict[str, Belief] = {}
        self.calls = 0
        self.before: dict[str, Pool] = {}
        self.came: dict[str, int] = {}
        self.newest: dict[str, int] = dict.fromkeys(KEYS, 0)
        for name, capacity in SIZES.items():
            self.world.resize(name, capacity)
        self.observe()

    def make(self) -> World:
        return CoreWorld()

    @property
    def now(self) -> float:
        return self.world.clock.monotonic()

    # The acts.

    @initialize(target=sessions)
    def begin(self) -> Any:
        return multiple(*(self._join(ttl) for ttl in (3.5, 6.5, 6.5)))

    @rule(target=sessions, ttl=SESSION_TTLS)
    def join(self, ttl: float) -> str:
        return self._join(ttl)

    def _join(self, ttl: float) -> str:
        session = f"ses_{len(self.agents)}"
        self.agents[session] = ("ada", "bob")[len(self.agents) % 2]
        self.ttls[session] = self.session_ttl(ttl)
        self.world.join(session, self.agents[session], self.ttls[session])
        self.lives_until[session] = self.now + self.ttls[session]
        return session

    def session_ttl(self, ttl: float) -> float:
        return ttl

    def grant_ttl(self, ttl: float | None) -> float | None:
        return ttl

    @rule(session=sessions)
    def beat(self, session: str) -> None:
        if session not in self.frozen and self.world.beat(session):
            ends = max(self.lives_until[session], self.kept_until.get(session, 0.0))
            assert ends > self.now, "what lapsed is never revived"
            self.lives_until[session] = self.now + self.ttls[session]

    @rule()
    def beat_all(self) -> None:
        for session in self.agents:
            self.beat(session)

    @rule(session=sessions)
    def freeze(self, session: str) -> None:
        self.frozen.add(session)

    @rule(session=sessions)
    def thaw(self, session: str) -> None:
        self.frozen.discard(session)
        self.everybody_looks()

    @rule(session=sessions)
    def leave(self, session: str) -> None:
        if session in self.frozen or self.lives_until[session] <= self.now:
            return
        self.world.leave(session, self.agents[session])
        self.lives_until[session] = 0.0
        self.observe(lambda party: party.session == session)
        self.everybody_looks()

    @rule(
        session=sessions,
        things=WANTS,
        weight=WEIGHTS,
        ttl=TTLS,
        max_hold=LIMITS,
        wait=WAITS,
    )
    def acquire(
        self,
        session: str,
        things: list[str],
        weight: int,
        *,
        ttl: float | None,
        max_hold: float | None,
        wait: float,
    ) -> None:
        terms = {"ttl": self.grant_ttl(ttl), "max_hold": self.grant_ttl(max_hold), "wait": wait}
        self._acquire(session, dict.fromkeys(things, weight), **terms)

    @precondition(lambda self: self.beliefs)
    @rule(data=st.data(), weight=WEIGHTS, wait=WAITS)
    def ask_for_more(self, data: st.DataObject, weight: int, wait: float) -> None:
        held = data.draw(st.sampled_from(sorted(self.beliefs)), "grant")
        belief = self.beliefs[held]
        if len(belief.weights) == 1 and KEYS[2] in belief.weights:
            self._acquire(belief.terms.session, {THINGS[2]: weight}, wait=wait, token=belief.token)

    def _acquire(self, session: str, weights: dict[str, int], **terms: Any) -> None:
        if session in self.frozen or len(self.waiting) > 8:
            return
        self.calls += 1
        wants = {t: 1 if t.startswith("lock") else min(w, SIZES[t[4:]]) for t, w in weights.items()}
        asked = Terms(
            number=self.calls,
            session=session,
            agent=self.agents[session],
            wants=tuple(wants.items()),
            **terms,
        )
        call = self.world.acquire(asked)
        self.waiting.append(call)
        self._look(call)
        self.everybody_looks()

    @precondition(lambda self: self.beliefs)
    @rule(target=stale, data=st.data(), part=st.booleans())
    def release(self, data: st.DataObject, *, part: bool) -> Any:
        held = data.draw(st.sampled_from(sorted(self.beliefs)), "grant")
        belief = self.beliefs[held]
        if belief.terms.session in self.frozen:
            return multiple()
        things = tuple(map(thing_of, belief.weights))
        self._release(belief, things[:1] if part else things)
        return multiple((belief.terms.session, things[0], belief.token))

    def _release(self, belief: Belief, things: tuple[str, ...]) -> None:
        actor = Actor(belief.terms.agent, belief.terms.session)
        given = tuple(map(key_of, things))
        grants = [grant for key in given if (grant := self._grant(key, belief.grant))]
        live = {key for grant in grants for key in grant.live}
        stands = bool(grants) and self.world.alive(live) == live
        outcome = self.world.release(actor, things, belief.token)
        assert isinstance(outcome, outcomes.Released) == stands
        for key in given:
            belief.weights.pop(key)
        if not belief.weights:
            del self.beliefs[belief.grant]
        self.observe(lambda party: party.id == belief.grant)
        assert not any(self._grant(key, belief.grant) for key in given)
        self.everybody_looks()

    @rule(old=stale)
    def release_again(self, old: tuple[str, str, int]) -> None:
        session, thing, token = old
        pool = self.before.get(key_of(thing), Pool())
        agent = self.agents[session]
        if any((grant.token, grant.agent) == (token, agent) for grant in pool.grants):
            return  # only a part of it was given back
        outcome = self.world.release(Actor(agent, session), (thing,), token)
        assert not isinstance(outcome, outcomes.Released)
        self.observe()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.waiting), "call")
        if call.terms.session not in self.frozen:
            self.waiting.remove(call)
            call.cancel()
            self.observe(lambda party: party.metadata == call.terms.number)
            self.everybody_looks()

    @rule(name=st.sampled_from(sorted(SIZES)), capacity=st.integers(1, 6))
    def resize(self, name: str, capacity: int) -> None:
        self.world.resize(name, capacity)
        self.observe(self._can_never_be)
        self.everybody_looks()

    @rule()
    def maintain(self) -> None:
        self.world.maintain()
        self.observe()
        self.everybody_looks()

    @rule(seconds=st.integers(1, 5))
    def advance(self, seconds: int) -> None:
        for _ in range(seconds):
            self.world.advance(1.0)
            self.observe()
            self.everybody_looks()

    def everybody_looks(self) -> None:
        """Whoever waits and is awake wakes if it has a reason to, until all is quiet."""
        moved = True
        while moved:
            awake = [call for call in self.waiting if call.terms.session not in self.frozen]
            moved = sum(self._look(call) for call in awake) > 0

    def _look(self, call: Call) -> bool:
        ended = call.look()
        self.observe(lambda party: party.metadata == call.terms.number)
        if ended is not None:
            self.waiting.remove(call)
            self._ended(call.terms, ended)
        return ended is not None

    def _ended(self, terms: Terms, ended: object) -> None:
        """What a call was told must be what everybody can see."""
        match ended:
            case outcomes.Granted():
                self._believe(terms, ended)
            case outcomes.Busy():
                self._refused(terms)
            case Lapsed():
                assert self.lives_until[terms.session] <= self.now
            case BadInput():
                pools = [(self.before[key_of(t)], w) for t, w in terms.wants if t[:3] == "sem"]
                assert any(weight > pool.capacity for pool, weight in pools)
            case other:
                raise AssertionError(other)

    def _believe(self, terms: Terms, told: Any) -> None:
        grants = {key: self._grant(key, told.grant) for key in terms.keys}
        weights = {key: grant.weight for key, grant in grants.items() if grant is not None}
        assert len(weights) == len(grants), "all of it"
        assert {grant.token for grant in grants.values() if grant} == {told.token}
        for thing, weight in terms.wants:
            assert weights[key_of(thing)] >= weight
        if told.grant in self.beliefs:
            self.beliefs[told.grant].weights = weights
            self.kept_until[terms.session] = self.now + self.ttls[terms.session]
            return
        ends = [FOR_EVER]
        ends += [] if terms.ttl is None else [self.now + terms.ttl]
        ends += [] if terms.max_hold is None else [self._limit(told.grant, terms.max_hold)]
        self.beliefs[told.grant] = Belief(terms, told.grant, told.token, weights, min(ends))

    def _limit(self, grant: str, max_hold: float) -> float:
        """When the maximum hold ends; it began when the grant was given, not when we heard."""
        return self.given.get(grant, self.now) + max_hold

    def _refused(self, terms: Terms) -> None:
        wanted = [(self.before.get(key_of(thing), Pool()), weight) for thing, weight in terms.wants]
        same = [b for b in self.beliefs.values() if terms.token and b.token == terms.token]
        mine = next((b.weights for b in same if self._stands(b)), {})
        more = sum(mine.values())
        assert any(pool.waiters or weight - more > pool.free for pool, weight in wanted)
        for pool, weight in wanted:
            if not pool.waiters and weight - more > pool.free:
                live = {key for grant in pool.grants for key in grant.live}
                assert self.world.alive(live) == live, "the dead are no reason"

    # What must be true.

    def observe(self, excused: Callable[[Grant | Waiter], bool] = lambda _: False) -> None:
        """Compare the pools with what they were; whom this act was about is excused."""
        pools = self.world.pools()
        self._number(pools)
        wanted = {k for p in (*pools.values(), *self.before.values()) for k in _liveness(p)}
        live = self.world.alive(wanted)
        for key in {**self.before, **pools}:
            before, now = self.before.get(key, Pool()), pools.get(key, Pool())
            self._room_is_kept(before, now)
            self._order_is_kept(before, now, live)
            self._tokens_rise(key, before, now)
            for party in _gone(before, now):
                lives = all(each in live for each in _lives_by(party))
                assert not lives or excused(party), f"{party} is gone from {key}"
        self._all_or_none(pools, live)
        self.before = pools
        self._beliefs_are_true()

    def _number(self, pools: dict[str, Pool]) -> None:
        """Who came when, as far as one can see."""
        for pool in pools.values():
            for party in _parties(pool):
                self.came.setdefault(party.id, len(self.came))

    def _room_is_kept(self, before: Pool, now: Pool) -> None:
        assert now.free >= 0 or _taken(now) <= _taken(before)

    def _order_is_kept(self, before: Pool, now: Pool, live: frozenset[str]) -> None:
        had = {grant.id: grant.weight for grant in before.grants}
        fresh = [grant for grant in now.grants if grant.id not in had]
        for grant in fresh:
            for waiter in now.waiters:
                earlier = self.came[waiter.id] < self.came[grant.id]
                assert not earlier or waiter.live not in live, f"{grant} overtook {waiter}"
        order = [self.came[waiter.id] for waiter in now.waiters]
        assert order == sorted(order)

    def _tokens_rise(self, key: str, before: Pool, now: Pool) -> None:
        had = {grant.id: grant.token for grant in before.grants}
        for grant in now.grants:
            assert grant.token is not None
            if grant.id in had:
                assert grant.token == had[grant.id]
            else:
                assert grant.token > self.newest[key]
        named = [(grant.token, grant.agent) for grant in now.grants]
        assert len(named) == len(set(named)), "a token under its holder's name means one grant"
        self.newest[key] = max([self.newest[key], *[grant.token or 0 for grant in now.grants]])

    def _all_or_none(self, pools: dict[str, Pool], live: frozenset[str]) -> None:
        held = {g.id for pool in pools.values() for g in pool.grants}
        had = {g.id for pool in self.before.values() for g in pool.grants}
        for pool in pools.values():
            for waiter in pool.waiters:
                assert waiter.id not in held
                lives = waiter.live in live
                for other in waiter.together if lives else ():
                    assert pools[other].position(waiter.id) is not None
            for grant in pool.grants:
                for other in grant.together if grant.id not in had else ():
                    assert pools[other].grant(grant.id) is not None
        self.given = {id_: self.given.get(id_, self.now) for id_ in held}

    given: dict[str, float] = {}  # noqa: RUF012 - replaced whole, never changed

    def _beliefs_are_true(self) -> None:
        for belief in self.beliefs.values():
            if self._believes(belief):
                for key, weight in belief.weights.items():
                    grant = self._grant(key, belief.grant)
                    assert grant is not None, f"{belief} is wrong"
                    assert (grant.token, grant.weight >= weight) == (belief.token, True)

    def _believes(self, belief: Belief) -> bool:
        terms = belief.terms
        ttl = self.ttls[terms.session] if terms.ttl is None else terms.ttl
        ends = self.lives_until[terms.session] if terms.ttl is None else belief.ends
        return min(ends, belief.ends) - margin(ttl) > self.now

    def _stands(self, belief: Belief) -> bool:
        return all(self._grant(key, belief.grant) for key in belief.weights)

    def _grant(self, key: str, id_: str) -> Grant | None:
        return self.before.get(key, Pool()).grant(id_)

    def _can_never_be(self, party: Grant | Waiter) -> bool:
        pools = self.world.pools()
        together = party.together or KEYS
        waited = [(k, w) for k in together for w in self.before.get(k, Pool()).waiters]
        found = [(p, w) for k, w in waited if (p := pools.get(k))]
        return any(pool.never_fits(waiter) for pool, waiter in found if waiter.id == party.id)

    def teardown(self) -> None:
        """Nobody who lives waits for ever, whatever happened before."""
        self.frozen.clear()
        for name, capacity in SIZES.items():
            self.resize(name, max(capacity, self.before[keys.semaphore(name)].capacity))
        for _ in range(8 * (len(self.waiting) + 2)):
            self.everybody_looks()
            if not self.waiting:
                break
            for belief in list(self.beliefs.values()):
                if self._believes(belief):
                    self._release(belief, tuple(map(thing_of, belief.weights)))
            self.beat_all()
            self.advance(1)
        assert not self.waiting
        self.close()

    def close(self) -> None:
        """Look at what else can be checked at the end."""


def _taken(pool: Pool) -> int:
    return sum(grant.weight for grant in pool.grants)


def _gone(before: Pool, now: Pool) -> Iterator[Grant | Waiter]:
    """Who had something or waited, and does neither any more."""
    held, waits = {grant.id for grant in now.grants}, {waiter.id for waiter in now.waiters}
    yield from (grant for grant in before.grants if grant.id not in held)
    for waiter in before.waiters:
        if waiter.id not in waits | held and not (waiter.into and _settled(waiter, before, now)):
            yield waiter


def _settled(waiter: Waiter, before: Pool, now: Pool) -> bool:
    """Whether what was to become larger did, is over, or can never be so large."""
    had, into = before.grant(waiter.into), now.grant(waiter.into)
    if had is None or into is None or now.never_fits(waiter):
        return True
    return into.weight >= had.weight + waiter.weight


def _lives_by(party: Grant | Waiter) -> tuple[str, ...]:
    return party.live if isinstance(party, Grant) else (party.live,)


def _liveness(pool: Pool) -> Iterator[str]:
    for party in _parties(pool):
        yield from _lives_by(party)


def _parties(pool: Pool) -> Iterator[Grant | Waiter]:
    yield from pool.grants
    yield from pool.waiters


class CrampedMachine(PoolMachine):
    """On a store whose commits have room for little."""

    def make(self) -> World:
        return CoreWorld(room=12)


class ServiceMachine(PoolMachine):
    """On a store that does what it is told."""

    def make(self) -> World:
        clock = FakeClock()
        self.memory = MemoryStore(clock)
        return ServiceWorld(self.memory, self.memory, clock)

    def close(self) -> None:
        assert audit(self.memory) == []


class FaultyMachine(ServiceMachine):
    """On a store across a bad network."""

    @initialize(seed=st.integers(0, 2**16))
    def sow(self, seed: int) -> None:
        assert isinstance(self.world, ServiceWorld)
        assert isinstance(self.world.store, FaultyStore)
        self.world.store.sow(seed)

    def make(self) -> World:
        clock = FakeClock()
        self.memory = MemoryStore(clock)
        chances = Chances(conflict=0.1, delay=0.05, lost_reply=0.1, late_arrival=0.15)
        faulty = FaultyStore(self.memory, chances=chances, sleep=lambda _: None)
        return ServiceWorld(faulty, self.memory, clock)


class EngineMachine(PoolMachine):
    """On an engine with a clock of its own: nothing lapses while we play."""

    def __init__(self, place: Callable[[], str]) -> None:
        self._place = place
        super().__init__()

    def make(self) -> World:
        self.store = open_store(self._place())
        return ServiceWorld(self.store, self.store, FakeClock())

    def session_ttl(self, ttl: float) -> float:
        return 100 * ttl

    def grant_ttl(self, ttl: float | None) -> float | None:
        return None if ttl is None else 100 * ttl

    def close(self) -> None:
        with closing(self.store):
            assert audit(self.store) == []


def budget(examples: int, steps: int = 40) -> settings:
    return settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, print_blob=True
    )


def run(machine: Callable[[], PoolMachine], its_budget: settings) -> None:
    run_state_machine_as_test(machine, settings=its_budget)  # type: ignore[no-untyped-call]


MACHINES = [PoolMachine, CrampedMachine, ServiceMachine, FaultyMachine]


@pytest.mark.parametrize("machine", MACHINES)
def test_every_promise_is_kept(machine: type[PoolMachine]) -> None:
    run(machine, budget(30))


@pytest.mark.proof
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", MACHINES)
def test_every_promise_is_kept_for_long(machine: type[PoolMachine]) -> None:
    run(machine, budget(3000, 60))


def test_every_promise_is_kept_on_every_engine(places: Callable[[], str]) -> None:
    run(lambda: EngineMachine(places), budget(6, 25))


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_every_promise_is_kept_on_every_engine_for_long(places: Callable[[], str]) -> None:
    run(lambda: EngineMachine(places), budget(300, 50))
