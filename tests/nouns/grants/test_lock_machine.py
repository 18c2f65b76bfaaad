"""Locks against a model that is simple enough to be believed.

The machine lets sessions join, beat, freeze, lapse and leave, acquire on all terms, release and
beat with good and stale tokens, and lets time pass.  After each act everybody who is awake looks.
It runs over the pure core, over the services on a store, and over the services on a store that
fails; all three must do what the model says.
The file is long because the acts, the model and the three worlds are one thing: apart, none of
them can be read.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any, Protocol

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)
from msgspec import Struct
from msgspec.structs import replace
from tests.hypothesis_settings import budget
from tests.nouns.grants.pools import complete

from interlock.core import codec, keys
from interlock.core.decision import Decision
from interlock.core.entry import decode as decode_entry
from interlock.errors import Lapsed
from interlock.nouns.agents.session_rules import Session
from interlock.nouns.agents.session_rules import join as join_session
from interlock.nouns.agents.session_rules import leave as leave_session
from interlock.nouns.agents.session_service import Sessions
from interlock.nouns.grants import lock as core
from interlock.nouns.grants import rules as queue
from interlock.nouns.grants.pool import Pool
from interlock.nouns.grants.pool_change import PoolFacts
from interlock.nouns.grants.pool_reader import decode_pool
from interlock.nouns.grants.request import GrantRequest, HolderRequest
from interlock.nouns.grants.service import GrantService
from interlock.runtime.housekeeping import HousekeepingPass
from interlock.runtime.identity import Actor, Identity
from interlock.runtime.keeper import margin
from interlock.runtime.runner import Runner
from interlock.store import VOID, Item, Log, Store
from interlock.stores.memory import MemoryStore
from interlock.testing.audit import audit
from interlock.testing.clock import FakeClock
from interlock.testing.faults import Chances, FaultyStore
from interlock.testing.testbed import Stepper, run_steps

NAME = "merge"
KEY, LOCK = keys.lock(NAME), core.LockTarget(NAME)
FOR_EVER = 1e9

# Acts happen at whole seconds and everything lapses between them.
SESSION_TTLS = st.sampled_from([3.5, 6.5])
TTLS = st.sampled_from([None, None, 2.5, 40.5])
LIMITS = st.sampled_from([None, None, 4.5])


class Terms(Struct, frozen=True, kw_only=True):
    """One call of acquire; the number is its name in all worlds."""

    number: int
    session: str
    agent: str
    ttl: float | None = None
    max_hold: float | None = None
    wait: bool = False
    token: int | None = None
    whole: bool = False


class Seen(Struct, frozen=True):
    """The lock as anybody can see it: whose calls hold and wait."""

    holder: int
    token: int
    queue: tuple[int, ...]


class Held(Struct):
    """The model's grant."""

    terms: Terms
    own: float | None
    limit: float | None
    token: int | None = None
    promoted: bool = False


class Model:
    """What should be true, in as few words as possible."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.sessions: dict[str, float] = {}
        self.ttls: dict[str, float] = {}
        self.holder: Held | None = None
        self.queue: list[Terms] = []
        self.entries: Counter[str] = Counter()

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    def lives(self, session: str) -> bool:
        return self.sessions.get(session, 0.0) > self.now

    def holds(self) -> bool:
        held = self.holder
        if held is None:
            return False
        base = self.lives(held.terms.session) if held.own is None else held.own > self.now
        return base and (held.limit is None or held.limit > self.now)

    def grant(self, terms: Terms, *, promoted: bool) -> None:
        ttl = terms.ttl if not promoted or terms.ttl is None else min(terms.ttl, 30.0)
        self.holder = Held(
            terms,
            own=None if ttl is None else self.now + ttl,
            limit=None if terms.max_hold is None else self.now + terms.max_hold,
            promoted=promoted,
        )

    def pass_on(self) -> None:
        self.holder = None
        while self.queue and self.holder is None:
            first = self.queue.pop(0)
            if self.lives(first.session):
                self.grant(first, promoted=True)

    def acquire(self, terms: Terms) -> str:
        if not self.lives(terms.session):
            return "lapsed"
        held = self.holder
        if held is not None and self.holds() and self.carries(held, terms):
            self.renew(held)
            return "extended"
        if held is not None and terms.token is not None and terms.token < (held.token or 0):
            return "fenced"
        word = "acquired"
        if held is not None and not self.holds():
            self.pass_on()
            word = "reclaimed"
        if self.holder is None:
            self.grant(terms, promoted=False)
            self.entries["lock.acquire"] += 1
            return word
        if terms.wait:
            self.queue.append(terms)
            self.entries["lock.wait"] += 1
            return "waiting"
        return "busy"

    def release(self, session: str, agent: str, token: int | None) -> str:
        if self.holder is None:
            return "already_free"
        if (refusal := self._refusal(self.holder, session, agent, token)) is not None:
            return refusal
        if not self.holds():
            self.pass_on()
            return "fenced"
        self.pass_on()
        self.entries["lock.release"] += 1
        return "released"

    def beat(self, session: str, agent: str, token: int | None) -> str:
        if self.holder is None:
            return "fenced"
        if (refusal := self._refusal(self.holder, session, agent, token)) is not None:
            return refusal
        if not self.holds():
            return "fenced"
        self.renew(self.holder)
        return "extended"

    def renew(self, held: Held) -> None:
        if held.terms.ttl is None:
            self.sessions[held.terms.session] = self.now + self.ttls[held.terms.session]
        else:
            held.own = self.now + held.terms.ttl

    def leave(self, session: str) -> None:
        del self.sessions[session]
        self.queue = [terms for terms in self.queue if terms.session != session]
        held = self.holder
        if held is not None and held.own is None and held.terms.session == session:
            self.pass_on()
        self.entries["agent.leave"] += 1

    def seen(self) -> tuple[int, tuple[int, ...]] | None:
        if self.holder is None:
            return None
        return self.holder.terms.number, tuple(terms.number for terms in self.queue)

    def carries(self, held: Held, terms: Terms) -> bool:
        if terms.token is None:
            return terms.whole and held.terms.session == terms.session
        return held.token == terms.token and held.terms.agent == terms.agent

    def _refusal(self, held: Held, session: str, agent: str, token: int | None) -> str | None:
        if token is None:
            return None if held.terms.session == session else "not_owner"
        if token == held.token and agent == held.terms.agent:
            return None
        return "fenced" if held.token is not None and token < held.token else "not_owner"


class Call(Protocol):
    """An acquire on its way."""

    terms: Terms

    def look(self) -> str | None:
        """Wake if there is a reason to: how it ended, or None."""

    def cancel(self) -> None:
        """Interrupt it."""


class World(Protocol):
    """Somewhere to do it for real."""

    clock: FakeClock

    def join(self, session: str, agent: str, ttl: float) -> None: ...

    def beat_session(self, session: str) -> str: ...

    def leave(self, session: str, agent: str) -> None: ...

    def acquire(self, terms: Terms) -> Call: ...

    def release(self, session: str, agent: str, token: int | None) -> str: ...

    def beat(self, session: str, agent: str, token: int | None) -> str: ...

    def maintain(self) -> None: ...

    def advance(self, seconds: float) -> None: ...

    def seen(self) -> Seen | None: ...

    def entries(self) -> Counter[str] | None: ...


def word(outcome: object) -> str:
    return str(outcome.__struct_config__.tag)  # type: ignore[attr-defined]


class CoreWorld:
    """The pure functions, and a dictionary that believes them."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.revision = 0
        self.item: Item | None = None
        self.live: dict[str, float] = {}
        self.ttls: dict[str, float] = {}

    def join(self, session: str, agent: str, ttl: float) -> None:
        self.ttls[session] = ttl
        record = Session(id=session, agent=agent, host="", pid=0, since=0.0, ttl=ttl)
        self.carry_out(join_session(record))

    def beat_session(self, session: str) -> str:
        if keys.live(session) not in self.alive():
            return "lapsed"
        self.live[keys.live(session)] = self.clock.monotonic() + self.ttls[session]
        return "renewed"

    def leave(self, session: str, agent: str) -> None:
        record = Session(id=session, agent=agent, host="", pid=0, since=0.0, ttl=0.0)
        self.carry_out(leave_session(record, (KEY,), self.facts(), 0.0))

    def acquire(self, terms: Terms) -> CoreCall:
        call = CoreCall(self, terms)
        call.start()
        return call

    def release(self, session: str, agent: str, token: int | None) -> str:
        caller = HolderRequest(target=LOCK, agent=agent, session=session, token=token)
        return word(self.carry_out(queue.release(caller, self.facts(), 0.0)))

    def beat(self, session: str, agent: str, token: int | None) -> str:
        caller = HolderRequest(target=LOCK, agent=agent, session=session, token=token)
        lock = self.lock()
        ttl = 0.0 if lock is None else self.ttls[lock.grants[0].session]
        return word(self.carry_out(queue.beat(caller, self.facts(), ttl)))

    def maintain(self) -> None:
        if self.lock() is not None:
            self.carry_out(queue.reclaim(KEY, self.facts(), 0.0))

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def seen(self) -> Seen | None:
        return _seen(self.lock())

    def entries(self) -> Counter[str] | None:
        return None

    def lock(self) -> Pool | None:
        return decode_pool(self.item, 0)

    def facts(self) -> PoolFacts:
        return complete({KEY: self.lock()}, self.alive(), self.revision)

    def alive(self) -> set[str]:
        return {key for key, ends in self.live.items() if ends > self.clock.monotonic()}

    def carry_out(self, decision: Decision[Any]) -> Any:
        if decision.changes:
            self.revision += 1
        for put in decision.puts:
            if put.ttl is not None:
                self.live[put.key] = self.clock.monotonic() + put.ttl
            elif put.key == KEY:
                self.item = Item(KEY, codec.encode(put.value), self.revision, 0)
        for key in decision.deletes:
            self.live.pop(key, None)
            self.item = None if key == KEY else self.item
        return decision.outcome


class CoreCall:
    """What the service does around the core: look, confirm, and come again when it is gone."""

    def __init__(self, world: CoreWorld, terms: Terms) -> None:
        self.terms = terms
        self.ended: str | None = None
        self._world = world
        self._ask: GrantRequest | None = None

    def start(self) -> None:
        world, terms = self._world, self.terms
        if keys.live(terms.session) not in world.alive():
            self.ended = "lapsed"
            return
        lock = world.lock()
        carries = lock is not None and terms.token is not None
        renewed = lock.grants[0].session if lock is not None and carries else terms.session
        self._ask = GrantRequest(
            target=LOCK,
            grant=f"grt_{terms.number}_{world.revision}",
            agent=terms.agent,
            session=terms.session,
            ttl=terms.ttl,
            max_hold=terms.max_hold,
            metadata=terms.number,
            token=terms.token,
            whole_session=terms.whole,
            session_ttl=world.ttls[renewed],
            wait=terms.wait,
        )
        decision = queue.acquire(self._ask, world.facts(), 0.0)
        ended = word(world.carry_out(decision))
        self.ended = None if ended == "waiting" else ended

    def look(self) -> str | None:
        world = self._world
        if self.ended is None:
            assert self._ask is not None
            ended = word(world.carry_out(queue.check_wait(self._ask, world.facts(), 0.0)))
            if ended == "gone":
                self.start()
                return self.look()
            if ended != "waiting":
                self.ended = ended
                if self.terms.ttl is not None:
                    world.beat(self.terms.session, self.terms.agent, None)
        return self.ended

    def cancel(self) -> None:
        assert self._ask is not None
        self._world.carry_out(queue.abandon(self._ask, self._world.facts(), 0.0))


class ServiceWorld:
    """The services on a store, driven by hand."""

    def __init__(self, memory: MemoryStore, store: Store, clock: FakeClock) -> None:
        self.clock = clock
        self.store = store
        self._memory = memory
        self._runner = Runner(store, clock=clock, randomness=Random(1).randbytes)
        self._grants = GrantService(self._runner)
        self._sessions = Sessions(self._runner)
        self._ttls: dict[str, float] = {}

    def join(self, session: str, agent: str, ttl: float) -> None:
        self._ttls[session] = ttl
        self._run(self._sessions.join(agent, ttl=ttl, session=session))

    def beat_session(self, session: str) -> str:
        return word(self._run(self._sessions.beat(session)))

    def leave(self, session: str, agent: str) -> None:
        self._run(self._sessions.leave(Actor(agent, session)))

    def acquire(self, terms: Terms) -> ServiceCall:
        identity = Identity(
            actor=Actor(terms.agent, terms.session),
            session_ttl=self._ttls[terms.session],
            joined=True,
            whole_session=terms.whole,
            caller=f"task{terms.number}",
        )
        op = self._grants.acquire(
            identity,
            LOCK,
            ttl=terms.ttl,
            max_hold=terms.max_hold,
            metadata=terms.number,
            token=terms.token,
            wait=FOR_EVER if terms.wait else 0,
        )
        return ServiceCall(terms, Stepper(op, self.store, self.clock).run())

    def release(self, session: str, agent: str, token: int | None) -> str:
        return word(self._run(self._grants.release(Actor(agent, session), LOCK, token=token)))

    def beat(self, session: str, agent: str, token: int | None) -> str:
        ttl = self._ttls[session]
        beat = self._grants.heartbeat(Actor(agent, session), LOCK, token=token, session_ttl=ttl)
        return word(self._run(beat))

    def maintain(self) -> None:
        self._run(HousekeepingPass(self._runner).run(Actor()))

    def advance(self, seconds: float) -> None:
        if isinstance(self.store, FaultyStore):
            self.store.deliver()
        self.clock.advance(seconds)

    def seen(self) -> Seen | None:
        return _seen(decode_pool(self._memory.read(KEY)[KEY], 0))

    def entries(self) -> Counter[str]:
        assert audit(self._memory) == []
        ref = Log()
        items = self._memory.read(ref).ranges[ref]
        entries = [decode_entry(item.value) for item in items if item.value != VOID]
        return Counter(
            entry.verb for entry in entries if entry.outcome not in ("busy", "fenced", "not_owner")
        )

    def _run(self, op: Any) -> Any:
        return run_steps(op, self.store, self.clock)


class ServiceCall:
    """An acquire of the service, asleep until something wakes it."""

    def __init__(self, terms: Terms, hand: Stepper[Any]) -> None:
        self.terms = terms
        self._hand = hand

    def look(self) -> str | None:
        if not self._hand.run().done:
            return None
        try:
            return word(self._hand.result())
        except Lapsed:
            return "lapsed"

    def cancel(self) -> None:
        self._hand.interrupt(asyncio.CancelledError())


def _seen(lock: Pool | None) -> Seen | None:
    if lock is None:
        return None
    (grant,) = lock.grants
    assert grant.token is not None
    return Seen(grant.metadata, grant.token, tuple(waiter.metadata for waiter in lock.waiters))


class LockMachine(RuleBasedStateMachine):
    """The acts, and what must be true after each."""

    sessions = Bundle("sessions")
    tokens = Bundle("tokens")

    def __init__(self) -> None:
        super().__init__()
        self.world: World = self.make()
        self.model = Model(self.world.clock)
        self.agents: dict[str, str] = {}
        self.frozen: set[str] = set()
        self.waiting: list[Call] = []
        self.calls = 0
        self.known: dict[int, int] = {}
        self.believed: dict[int, tuple[Terms, float]] = {}
        self.session_beliefs: dict[str, float] = {}

    def make(self) -> World:
        return CoreWorld()

    @initialize(target=sessions)
    def begin(self) -> Any:
        return multiple(*(self._join(ttl) for ttl in (3.5, 6.5, 6.5)))

    @rule(target=sessions, ttl=SESSION_TTLS)
    def join(self, ttl: float) -> str:
        return self._join(ttl)

    def _join(self, ttl: float) -> str:
        session = f"ses_{len(self.agents)}"
        agent = self.agents[session] = ("ada", "bob")[len(self.agents) % 2]
        self.world.join(session, agent, ttl)
        self.model.sessions[session] = self.session_beliefs[session] = self.model.now + ttl
        self.session_beliefs[session] -= margin(ttl)
        self.model.ttls[session] = ttl
        self.model.entries["agent.join"] += 1
        return session

    @rule(session=sessions)
    def beat_session(self, session: str) -> None:
        if session in self.frozen:
            return
        lives = self.model.lives(session)
        assert self.world.beat_session(session) == ("renewed" if lives else "lapsed")
        if lives:
            self._renewed(session)

    @rule()
    def beat_all(self) -> None:
        for session in self.agents:
            self.beat_session(session)

    @rule(session=sessions)
    def freeze(self, session: str) -> None:
        self.frozen.add(session)

    @rule(session=sessions)
    def thaw(self, session: str) -> None:
        self.frozen.discard(session)
        self.everybody_looks()

    @rule(session=sessions)
    def leave(self, session: str) -> None:
        if session in self.model.sessions and session not in self.frozen:
            lapsed_and_cleared = not self.model.lives(session)
            if lapsed_and_cleared:
                return
            self.world.leave(session, self.agents[session])
            self.model.leave(session)
            self.session_beliefs[session] = 0.0
            self.everybody_looks()

    @rule(
        target=tokens,
        session=sessions,
        ttl=TTLS,
        max_hold=LIMITS,
        wait=st.sampled_from([True, True, False]),
        whole=st.sampled_from([False, False, False, True]),
    )
    def acquire(
        self, session: str, ttl: float | None, max_hold: float | None, *, wait: bool, whole: bool
    ) -> Any:
        return self._acquire(session, ttl=ttl, max_hold=max_hold, wait=wait, whole=whole)

    @rule(session=sessions, token=tokens)
    def acquire_with_a_token(self, session: str, token: int) -> None:
        self._acquire(session, token=token)

    @precondition(lambda self: self.model.holder is not None)
    @rule(session=sessions)
    def extend(self, session: str) -> None:
        assert self.model.holder is not None
        self._acquire(session, token=self.model.holder.token)

    def _acquire(self, session: str, **terms: Any) -> Any:
        if session in self.frozen or len(self.waiting) > 6:
            return multiple()
        call = Terms(number=self.calls, session=session, agent=self.agents[session], **terms)
        self.calls += 1
        before = self.model.holder
        if before is not None and self.model.carries(before, call):
            call = replace(call, number=before.terms.number)  # extending, it keeps its name
        expected = self.model.acquire(call)
        going = self.world.acquire(call)
        if expected == "waiting":
            self.waiting.append(going)
        else:
            assert going.look() == expected
            self._follow()
            if expected in ("acquired", "reclaimed"):
                self._acknowledged(call)
            elif expected == "extended" and before is not None:
                self._extended(before)
        self.everybody_looks()
        return multiple(*([self.known[call.number]] if call.number in self.known else []))

    @rule(session=sessions, token=tokens)
    def release_with_a_token(self, session: str, token: int) -> None:
        self._release(session, token)

    @rule(session=sessions)
    def release(self, session: str) -> None:
        self._release(session, None)

    @precondition(lambda self: self.model.holder is not None)
    @rule()
    def release_by_the_holder(self) -> None:
        held = self.model.holder
        assert held is not None
        self._release(held.terms.session, held.token)

    def _release(self, session: str, token: int | None) -> None:
        if session in self.frozen:
            return
        before, held = self.world.seen(), self.model.holder
        expected = self.model.release(session, self.agents[session], token)
        assert self.world.release(session, self.agents[session], token) == expected
        if expected == "released":
            assert held is not None
            self.believed.pop(held.terms.number, None)
        elif self.model.holder is held:  # else it had lapsed, and was passed on
            assert self.world.seen() == before
        self.everybody_looks()

    @rule(session=sessions, token=tokens)
    def beat_with_a_token(self, session: str, token: int) -> None:
        self._beat(session, token)

    @rule(session=sessions)
    def beat(self, session: str) -> None:
        self._beat(session, None)

    def _beat(self, session: str, token: int | None) -> None:
        if session in self.frozen:
            return
        before = self.world.seen()
        expected = self.model.beat(session, self.agents[session], token)
        assert self.world.beat(session, self.agents[session], token) == expected
        if expected == "extended" and self.model.holder is not None:
            self._extended(self.model.holder)
        assert self.world.seen() == before

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.waiting))
        if call.terms.session in self.frozen:
            return
        self.waiting.remove(call)
        call.cancel()
        self._follow()
        self.model.queue = [terms for terms in self.model.queue if terms is not call.terms]
        held = self.model.holder
        if held is not None and held.terms is call.terms and self.model.holds():
            self.model.pass_on()
            self.model.entries["lock.release"] += 1
        self.everybody_looks()

    @rule()
    def maintain(self) -> None:
        self.world.maintain()
        if self.model.holder is not None and not self.model.holds():
            self.model.pass_on()
        self.everybody_looks()

    @rule(seconds=st.integers(1, 5))
    def advance(self, seconds: int) -> None:
        for _ in range(seconds):
            self.world.advance(1.0)
            self.everybody_looks()

    def everybody_looks(self) -> None:
        """Whoever waits and is awake wakes if it has a reason to, until all is quiet."""
        moved = True
        while moved:
            moved = False
            for call in [each for each in self.waiting if each.terms.session not in self.frozen]:
                ended = call.look()
                self._follow()
                gone = call.terms not in self.model.queue and not self._has(call.terms)
                if ended is None and gone and self.model.lives(call.terms.session):
                    assert self.model.acquire(call.terms) == "waiting"
                if ended is not None:
                    self._ended(call, ended, gone=gone)
                    moved = True

    def _ended(self, call: Call, ended: str, *, gone: bool) -> None:
        self.waiting.remove(call)
        if ended == "lapsed":
            assert not self.model.lives(call.terms.session)
            return
        if gone:  # its grant came and went while it was frozen, and it came again
            assert self.model.acquire(call.terms) == ended
        held = self.model.holder
        assert held is not None
        assert held.terms is call.terms
        assert ended in ("acquired", "reclaimed")
        if held.promoted and held.own is not None and held.terms.ttl is not None:
            held.own = self.model.now + held.terms.ttl
        self._acknowledged(call.terms)

    def _has(self, terms: Terms) -> bool:
        held = self.model.holder
        return held is not None and held.terms is terms and self.model.holds()

    def _follow(self) -> None:
        """Somebody who looked may have passed a stale grant on; nobody may do anything else."""
        for _ in range(10):
            seen = self.world.seen()
            if self.model.seen() == (None if seen is None else (seen.holder, seen.queue)):
                return
            if self.model.holder is None or self.model.holds():
                return  # the invariant will say what is wrong
            self.model.pass_on()

    def _acknowledged(self, terms: Terms) -> None:
        """The holder knows: from now on it works, until its leases end by its own clock."""
        held = self.model.holder
        assert held is not None
        ends = [FOR_EVER]
        ends += [] if held.own is None or terms.ttl is None else [held.own - margin(terms.ttl)]
        if held.limit is not None and terms.max_hold is not None:
            ends.append(held.limit - margin(terms.max_hold))
        self.believed[terms.number] = (terms, min(ends))
        self._learn_token()

    def _extended(self, held: Held) -> None:
        if held.terms.ttl is None:
            self._renewed(held.terms.session)
        elif held.terms.number in self.believed:
            self._acknowledged(held.terms)

    def _renewed(self, session: str) -> None:
        ttl = self.model.ttls[session]
        self.model.sessions[session] = self.model.now + ttl
        self.session_beliefs[session] = self.model.now + ttl - margin(ttl)

    def _learn_token(self) -> None:
        seen = self.world.seen()
        if seen is None:
            return
        held = self.model.holder
        if held is not None and held.terms.number == seen.holder:
            held.token = seen.token
        if seen.holder not in self.known:
            assert seen.token > max(self.known.values(), default=0), "tokens must increase"
        elif self.known[seen.holder] != seen.token:
            assert seen.token > max(self.known.values()), "a token may only give way to a later"
        self.known[seen.holder] = seen.token

    def _believers(self) -> Iterator[Terms]:
        for terms, ends in self.believed.values():
            by_session = terms.ttl is None
            alive = not by_session or self.session_beliefs[terms.session] > self.model.now
            if alive and ends > self.model.now:
                yield terms

    @invariant()
    def the_lock_is_what_the_model_says(self) -> None:
        self._learn_token()
        seen = self.world.seen()
        assert self.model.seen() == (None if seen is None else (seen.holder, seen.queue))

    @invariant()
    def at_most_one_believes_that_it_holds_and_it_does(self) -> None:
        believers = list(self._believers())
        assert len(believers) <= 1
        held = self.model.holder
        assert all(held is not None and held.terms is terms for terms in believers)

    def teardown(self) -> None:
        """Nobody who lives waits for ever, whatever happened before."""
        self.frozen.clear()
        for _ in range(3 * (len(self.waiting) + 1) * 7):
            self.everybody_looks()
            if not self.waiting:
                break
            for session in self.agents:
                self.beat_session(session)
            if self.model.holder is not None and self.model.holds():
                held = self.model.holder
                self._release(held.terms.session, held.token)
            self.advance(1)
        assert not self.waiting
        entries = self.world.entries()
        if entries is not None:
            found, expected = self.counted(entries), self.counted(self.model.entries)
            assert {verb: found[verb] for verb in expected} == expected

    def counted(self, entries: Counter[str]) -> Counter[str]:
        return entries


class ServiceMachine(LockMachine):
    """On a store that does what it is told."""

    def make(self) -> World:
        clock = FakeClock()
        store = MemoryStore(clock)
        return ServiceWorld(store, store, clock)


class FaultyMachine(LockMachine):
    """On a store across a bad network."""

    @initialize(seed=st.integers(0, 2**16))
    def sow(self, seed: int) -> None:
        assert isinstance(self.world, ServiceWorld)
        assert isinstance(self.world.store, FaultyStore)
        self.world.store.sow(seed)

    def make(self) -> World:
        clock = FakeClock()
        memory = MemoryStore(clock)
        chances = Chances(conflict=0.1, delay=0.05, lost_reply=0.1, late_arrival=0.15)
        faulty = FaultyStore(memory, chances=chances, sleep=lambda _: None)
        return ServiceWorld(memory, faulty, clock)

    def counted(self, entries: Counter[str]) -> Counter[str]:
        """Across a network whoever may wait queues without a look at the holder.

        If that is dead, it reclaims at once; so what the model calls an acquire may be a wait.
        """
        asked = {"lock.acquire", "lock.wait"}
        return Counter("asked" if verb in asked else verb for verb in entries.elements())


BUDGET = settings(max_examples=budget(50), stateful_step_count=40, deadline=None, print_blob=True)
TestCore = LockMachine.TestCase
TestCore.settings = BUDGET
TestServices = ServiceMachine.TestCase
TestServices.settings = BUDGET
TestFaultyServices = FaultyMachine.TestCase
TestFaultyServices.settings = BUDGET
