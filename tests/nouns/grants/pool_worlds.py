"""Where locks and semaphores are acted upon for real: the pure core, or the services on a store.

Both offer the same few acts, so that one machine (``test_pool_machine.py``) can drive them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from random import Random
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace
from tests.nouns.grants.pools import complete

from interlock.core import codec, keys, outcomes
from interlock.core.decision import MANY, Decision
from interlock.core.thing_names import key_of
from interlock.errors import BadInput, Lapsed
from interlock.nouns.agents.session_rules import Session
from interlock.nouns.agents.session_rules import join as join_session
from interlock.nouns.agents.session_rules import leave as leave_session
from interlock.nouns.agents.session_service import Sessions, lives_by
from interlock.nouns.grants import lock, rules, semaphore, several
from interlock.nouns.grants.pool import Pool
from interlock.nouns.grants.pool_change import PoolFacts
from interlock.nouns.grants.pool_reader import decode_pool
from interlock.nouns.grants.request import GrantRequest, GrantTarget, HolderRequest
from interlock.nouns.grants.service import GrantService
from interlock.runtime.housekeeping import HousekeepingPass
from interlock.runtime.identity import Actor, Identity
from interlock.runtime.runner import Runner
from interlock.store import Item, Store
from interlock.testing.clock import FakeClock
from interlock.testing.faults import FaultyStore
from interlock.testing.testbed import Stepper, run_steps

THINGS = ("lock/a", "lock/b", "sem/x", "sem/y")
KEYS = tuple(map(key_of, THINGS))


class Terms(Struct, frozen=True, kw_only=True):
    """One call of acquire; the number is its name in all worlds."""

    number: int
    session: str
    agent: str
    wants: tuple[tuple[str, int], ...]
    ttl: float | None = None
    max_hold: float | None = None
    wait: float = 0.0
    token: int | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """The pools."""
        return tuple(key_of(thing) for thing, _ in self.wants)


class Call(Protocol):
    """An acquire on its way."""

    terms: Terms

    def look(self) -> object | None:
        """Wake if there is a reason to: the outcome or the error that ended it, or None."""

    def cancel(self) -> None:
        """Interrupt it."""


class World(Protocol):
    """Somewhere to do it for real."""

    clock: FakeClock

    def join(self, session: str, agent: str, ttl: float) -> None: ...

    def beat(self, session: str) -> bool: ...

    def leave(self, session: str, agent: str) -> None: ...

    def acquire(self, terms: Terms) -> Call: ...

    def release(self, actor: Actor, things: tuple[str, ...], token: int) -> object: ...

    def resize(self, name: str, capacity: int) -> None: ...

    def maintain(self) -> None: ...

    def advance(self, seconds: float) -> None: ...

    def pools(self) -> dict[str, Pool]: ...

    def alive(self, wanted: Iterable[str]) -> frozenset[str]: ...


class CoreWorld:
    """The pure functions, and a dictionary that believes them."""

    def __init__(self, room: int = MANY) -> None:
        self.clock = FakeClock()
        self.ttls: dict[str, float] = {}
        self._room = room
        self._revision = 0
        self._items: dict[str, Item] = {}
        self._live: dict[str, float] = {}

    def join(self, session: str, agent: str, ttl: float) -> None:
        self.ttls[session] = ttl
        self.carry_out(join_session(self._session(session, agent)))

    def beat(self, session: str) -> bool:
        lives = keys.live(session) in self.living()
        if lives:
            self._live[keys.live(session)] = self.clock.monotonic() + self.ttls[session]
        return lives

    def leave(self, session: str, agent: str) -> None:
        record = self._session(session, agent)
        while True:
            own = [key for key, pool in self.pools().items() if lives_by(pool, session)]
            decision = leave_session(record, own, self.facts(), 0.0)
            if type(self.carry_out(decision)).__name__ == "Left":
                return

    def acquire(self, terms: Terms) -> CoreCall:
        return CoreCall(self, terms)

    def release(self, actor: Actor, things: tuple[str, ...], token: int) -> object:
        return self.carry_out(rules.release(_caller(actor, things, token), self.facts(), 0.0))

    def resize(self, name: str, capacity: int) -> None:
        self.carry_out(semaphore.resize(name, capacity, self.facts(), 0.0))

    def maintain(self) -> None:
        for key in KEYS:
            self.carry_out(rules.reclaim(key, self.facts(), 0.0))

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def pools(self) -> dict[str, Pool]:
        found = {key: decode_pool(item, 0) for key, item in self._items.items()}
        return {key: pool for key, pool in found.items() if pool is not None}

    def alive(self, wanted: Iterable[str]) -> frozenset[str]:
        return frozenset(wanted) & self.living()

    def living(self) -> set[str]:
        return {key for key, ends in self._live.items() if ends > self.clock.monotonic()}

    def facts(self) -> PoolFacts:
        pools = {key: decode_pool(self._items.get(key), 0) for key in KEYS}
        return complete(pools, self.living(), self._revision, self._room)

    def carry_out(self, decision: Decision[Any]) -> Any:
        self._revision += decision.changes
        for put in decision.puts:
            if put.ttl is not None:
                self._live[put.key] = self.clock.monotonic() + put.ttl
            elif put.key in KEYS:
                self._items[put.key] = Item(put.key, codec.encode(put.value), self._revision, 0)
        for key in decision.deletes:
            self._live.pop(key, None)
            self._items.pop(key, None)
        if isinstance(decision.outcome, outcomes.Granted) and decision.outcome.token is None:
            return replace(decision.outcome, token=self._revision)
        return decision.outcome

    def _session(self, session: str, agent: str) -> Session:
        return Session(
            id=session, agent=agent, host="", pid=0, since=0.0, ttl=self.ttls.get(session, 1.0)
        )


class CoreCall:
    """What the service does around the core: look, agree, and come again when it is gone."""

    def __init__(self, world: CoreWorld, terms: Terms) -> None:
        self.terms = terms
        self._world = world
        self._ended: object | None = None
        self._times = 0
        self._deadline = world.clock.monotonic() + terms.wait
        self._come()

    def look(self) -> object | None:
        while self._ended is None:
            late = self._world.clock.monotonic() >= self._deadline
            decide = rules.withdraw if late else rules.check_wait
            outcome = self._world.carry_out(decide(self._ask, self._world.facts(), 0.0))
            if _word(outcome) == "waiting":
                return None
            if _word(outcome) in ("acquired", "reclaimed") and self.terms.ttl is not None:
                self._world.carry_out(rules.confirm(self._ask, self._world.facts()))
            self._end(outcome)
        return self._ended

    def cancel(self) -> None:
        self._world.carry_out(rules.abandon(self._ask, self._world.facts(), 0.0))

    def _come(self) -> None:
        world, terms = self._world, self.terms
        if keys.live(terms.session) not in world.living():
            self._ended = Lapsed("")
            return
        self._times += 1
        self._ask = _ask(terms, f"grt_{terms.number}_{self._times}", world.ttls[terms.session])
        try:
            outcome = world.carry_out(rules.acquire(self._ask, world.facts(), 0.0))
        except BadInput as error:
            self._ended = error
        else:
            self._end(outcome)

    def _end(self, outcome: object) -> None:
        if _word(outcome) == "gone":
            self.cancel()
            self._come()
        elif _word(outcome) != "waiting":
            self._ended = outcome


class ServiceWorld:
    """The services on a store, driven by hand; each session is a process of its own."""

    def __init__(self, store: Store, under: Store, clock: FakeClock) -> None:
        self.clock = clock
        self.store = store
        self._under = under
        self._ttls: dict[str, float] = {}
        self._random = Random(1)
        self._contexts: dict[str, _Context] = {}

    def join(self, session: str, agent: str, ttl: float) -> None:
        self._ttls[session] = ttl
        join = self._context(session).sessions.join(agent, ttl=ttl, session=session)
        self._run(join)

    def beat(self, session: str) -> bool:
        return _word(self._run(self._context(session).sessions.beat(session))) == "renewed"

    def leave(self, session: str, agent: str) -> None:
        self._run(self._context(session).sessions.leave(Actor(agent, session)))

    def acquire(self, terms: Terms) -> ServiceCall:
        context = self._context(terms.session)
        identity = Identity(
            actor=Actor(terms.agent, terms.session),
            session_ttl=self._ttls[terms.session],
            joined=True,
            caller=f"task{terms.number}",
        )
        op = context.grants.acquire(
            identity,
            _target(terms.wants),
            ttl=terms.ttl,
            max_hold=terms.max_hold,
            metadata=terms.number,
            token=terms.token,
            wait=terms.wait,
        )
        return ServiceCall(terms, Stepper(op, self.store, self.clock).run())

    def release(self, actor: Actor, things: tuple[str, ...], token: int) -> object:
        context = self._context(actor.session)
        return self._run(context.grants.release(actor, _held(things), token=token))

    def resize(self, name: str, capacity: int) -> None:
        decide = partial(semaphore.resize, name, capacity)
        self._run(self._context("").grants.change_pool(Actor(), keys.semaphore(name), decide))

    def maintain(self) -> None:
        self._run(HousekeepingPass(self._context("").runner).run(Actor()))

    def advance(self, seconds: float) -> None:
        if isinstance(self.store, FaultyStore):
            self.store.deliver()
        self.clock.advance(seconds)

    def pools(self) -> dict[str, Pool]:
        items = self._under.read(*KEYS).items
        found = {key: decode_pool(item, 0) for key, item in items.items()}
        return {key: pool for key, pool in found.items() if pool is not None}

    def alive(self, wanted: Iterable[str]) -> frozenset[str]:
        items = self._under.read(*dict.fromkeys(wanted)).items
        return frozenset(key for key, item in items.items() if item is not None)

    def _context(self, session: str) -> _Context:
        if session not in self._contexts:
            self._contexts[session] = _Context(self.store, self.clock, self._random)
        return self._contexts[session]

    def _run(self, op: Any) -> Any:
        return run_steps(op, self.store, self.clock)


class _Context:
    """The services as one process has them, with a memory of its own."""

    def __init__(self, store: Store, clock: FakeClock, random: Random) -> None:
        self.runner = Runner(store, clock=clock, randomness=random.randbytes)
        self.grants = GrantService(self.runner)
        self.sessions = Sessions(self.runner)


class ServiceCall:
    """An acquire of the service, asleep until something wakes it."""

    def __init__(self, terms: Terms, hand: Stepper[Any]) -> None:
        self.terms = terms
        self._hand = hand

    def look(self) -> object | None:
        if not self._hand.run().done:
            return None
        try:
            found: object = self._hand.result()
        except (Lapsed, BadInput) as error:
            return error
        return found

    def cancel(self) -> None:
        self._hand.interrupt(asyncio.CancelledError())


def _ask(terms: Terms, grant: str, session_ttl: float) -> GrantRequest:
    return GrantRequest(
        target=_target(terms.wants),
        grant=grant,
        agent=terms.agent,
        session=terms.session,
        ttl=terms.ttl,
        max_hold=terms.max_hold,
        metadata=terms.number,
        token=terms.token,
        session_ttl=session_ttl,
        wait=terms.wait > 0,
    )


def _caller(actor: Actor, things: tuple[str, ...], token: int) -> HolderRequest:
    return HolderRequest(
        target=_held(things), agent=actor.agent, session=actor.session, token=token
    )


def _held(things: tuple[str, ...]) -> GrantTarget:
    return _target(tuple((thing, 1) for thing in things))


def _target(wants: tuple[tuple[str, int], ...]) -> GrantTarget:
    if len(wants) > 1:
        return several.SeveralTarget(tuple(several.ThingRequest(*each) for each in wants))
    ((thing, weight),) = wants
    kind, _, name = thing.partition("/")
    return lock.LockTarget(name) if kind == "lock" else semaphore.SlotsTarget(name, weight)


def _word(outcome: object) -> str:
    return str(outcome.__struct_config__.tag)  # type: ignore[attr-defined]
