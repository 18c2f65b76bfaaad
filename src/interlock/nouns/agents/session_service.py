"""Sessions on a store: join, leave, renew, list."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.core.thing_names import thing_of
from interlock.drivers import Op, Read
from interlock.errors import StoreDamaged
from interlock.nouns.agents import session_rules as core
from interlock.nouns.agents.decode import decode_death, decode_session
from interlock.nouns.grants.decode import readable_pool
from interlock.nouns.grants.pool import Pool
from interlock.nouns.grants.pool_reader import PoolReader
from interlock.runtime import reads
from interlock.runtime.decide import DecideOp, ReadOp, Unchecked
from interlock.runtime.identity import Actor
from interlock.runtime.reads import KEYS_AT_ONCE, every, looked_up
from interlock.runtime.runner import Decided, Runner
from interlock.store import Item, Range, Snapshot

T = TypeVar("T")

_LISTED = 32
"""Listed pools that the commit of a leave deletes; maintenance deletes the rest."""


class Sessions:
    """Every operation on sessions, as generators for a driver."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def join(
        self,
        agent: str,
        *,
        ttl: float,
        session: str = "",
        metadata: object = None,
        trace: str = "",
        pid: int | None = None,
        more: tuple[Write, ...] = (),
        listed: bool = False,
    ) -> Op[core.Joined]:
        """Begin a session under this name, for the process ``pid``, or for this one.

        It is ``listed`` if it outlives this process.
        ``more`` is its first report, in the same commit.
        """
        record = core.Session(
            id=session or self._runner.new_id("ses"),
            agent=agent,
            host=os.uname().nodename,
            pid=os.getpid() if pid is None else pid,
            since=self._runner.clock.wall(),
            ttl=ttl,
            metadata=metadata,
            listed=listed,
        )

        def deciding() -> DecideOp[core.Joined]:
            yield (keys.session(record.id),)
            return core.join(record, more)

        actor = Actor(agent, record.id, trace)
        fresh = {keys.session(record.id): None}
        done: Decided[core.Joined] = yield from self._runner.change(deciding, actor, fresh)
        return done.outcome

    def leave(
        self, actor: Actor, own: Collection[str] | None = None
    ) -> Op[core.Left | core.SessionLapsed]:
        """End a session and release all its grants.

        In one commit if the store takes that many operations, else in several, the session last.
        ``own`` are the pools that its process may have grants in; the others are listed.
        """
        base = yield from self._runner.base()
        released: tuple[str, ...] = ()
        while True:
            done: Decided[
                core.Left | core.SessionLapsed | core.Leaving
            ] = yield from self._runner.change(lambda: self._leaving(actor, base, own), actor)
            if isinstance(done.outcome, core.SessionLapsed):
                return done.outcome
            released += done.outcome.released
            if isinstance(done.outcome, core.Left):
                return replace(done.outcome, released=released)

    def _leaving(
        self, actor: Actor, base: int, mine: Collection[str] | None
    ) -> DecideOp[core.Left | core.SessionLapsed | core.Leaving]:
        own = (keys.session(actor.session), keys.live(actor.session), keys.report(actor.session))
        snapshot = yield own
        session = decode_session(snapshot[own[0]])
        if session is None:
            return Decision(outcome=core.SessionLapsed(session=actor.session))
        said = report_keys(snapshot, actor.session)
        listed = yield from _listed(actor.session)
        wanted = yield from _pools_of(session, mine, listed)
        said += tuple(keys.held(actor.session, key) for key in listed[:_LISTED])
        reader = PoolReader(self._runner, base)
        now = self._runner.clock.wall()
        return (
            yield from reader.decide(lambda facts: core.leave(session, wanted, facts, now, said))
        )

    def beat(self, session: str) -> Op[core.Renewed | core.SessionLapsed]:
        """Renew a session that another process began."""

        def deciding() -> DecideOp[core.Renewed | core.SessionLapsed]:
            snapshot = yield (keys.session(session), keys.live(session))
            live = {key for key, item in snapshot.items.items() if item is not None}
            return core.renew(decode_session(snapshot[keys.session(session)]), session, live)

        done: Decided[core.Renewed | core.SessionLapsed] = yield from self._runner.change(
            deciding, Actor()
        )
        return done.outcome

    def find(self, session: str) -> Op[core.Session | None]:
        """The identity of a session."""
        snapshot: Snapshot = yield Read(keys.session(session))
        return decode_session(snapshot[keys.session(session)])

    def deaths(self) -> Op[list[core.Death]]:
        """The sessions that ended without leaving and were cleared, the oldest first."""
        items = yield from every(keys.DEATHS)
        read = [reads.readable(decode_death, item) for item in items]
        return sorted([each for each in read if each is not None], key=lambda each: each.at)

    def acknowledge(self, name: str, actor: Actor) -> Op[core.DeathsAcknowledged | core.NoDeath]:
        """Delete the traces of the sessions under this name, or of the one with this id."""
        deaths = yield from self.deaths()
        found = [each for each in deaths if name in (each.agent, each.session)]
        gone: tuple[str, ...] = ()
        for start in range(0, len(found), self._portion):
            some, decide = found[start : start + self._portion], partial(core.acknowledge, name)
            done = yield from self._runner.change(
                partial(_decide_on_remaining, some, decide), actor
            )
            if isinstance(done.outcome, core.DeathsAcknowledged):
                gone += done.outcome.sessions
        if not gone:
            return core.NoDeath(agent=name)
        return core.DeathsAcknowledged(agent=found[0].agent, sessions=gone)

    @property
    def _portion(self) -> int:
        """How many keys one commit deletes."""
        return self._runner.capabilities.max_operations // 2

    def here(self, agent: str) -> Op[list[core.Session]]:
        """The live sessions under a name."""
        page = Range(keys.agent_session(agent))
        ids = [keys.id_of(item.key) for item in (yield Read(page)).ranges[page]]
        items = yield from looked_up([*map(keys.session, ids), *map(keys.live, ids)])
        living = [id_ for id_ in ids if items[keys.live(id_)] is not None]
        found = [reads.readable(decode_session, items[keys.session(id_)]) for id_ in living]
        return [each for each in found if each is not None]

    def names(self) -> Op[frozenset[str]]:
        """The names of all agents that have a session."""
        items = yield from every(keys.SESSIONS)
        return frozenset(each.agent for item in items if (each := _readable(item)) is not None)

    def works_on(self, actor: Actor) -> Op[bool]:
        """Whether a session works on any task."""
        page = Range(keys.claims(actor.session), limit=1)
        return bool((yield Read(page)).ranges[page])

    def list(self) -> Op[tuple[core.Agent, ...]]:
        """All sessions, by name, with the things that they hold and the tasks that they work on."""
        base = yield from self._runner.base()
        holds: dict[str, list[str]] = {}
        for item in (yield from every(*keys.POOLS)):
            pool = readable_pool(item, base)
            name = thing_of(item.key).removeprefix("lock/")
            for grant in () if pool is None else pool.grants:
                holds.setdefault(grant.session, []).append(name)
        for item in (yield from every(keys.CLAIMS)):
            worker, task = keys.claim_of(item.key)
            holds.setdefault(worker, []).append(f"task/{task}")
        items = yield from every(keys.SESSIONS)
        found = [session for item in items if (session := _readable(item)) is not None]
        live = yield from looked_up((keys.live(each.id) for each in found), times=True)
        now = self._runner.clock.wall()
        agents = [
            _agent(each, live[keys.live(each.id)], holds.get(each.id, ()), now) for each in found
        ]
        with_reports = yield from _with_reports(agents, now)
        return tuple(sorted(with_reports, key=lambda agent: (agent.agent, agent.since)))


def _listed(session: str) -> ReadOp[list[str]]:
    """The pools that are listed under a session."""
    found: list[str] = []
    page = Range(keys.held(session))
    while True:
        items = (yield (page,)).ranges[page]
        found += [keys.held_of(item.key)[1] for item in items]
        if len(items) < page.limit:
            return found
        page = Range(page.prefix, items[-1].key)


def _pools_of(
    session: core.Session, own: Collection[str] | None, listed: list[str]
) -> ReadOp[list[str]]:
    """The pools that a session has grants or waiters in; the decision reads them again."""
    if own is None and not session.listed:
        return (yield from _searched(session.id))
    wanted = sorted({*listed, *(own or ())})
    found: list[str] = []
    for start in range(0, len(wanted), KEYS_AT_ONCE):
        some = Unchecked(wanted[start : start + KEYS_AT_ONCE])
        items = [item for item in (yield some).items.values() if item is not None]
        pools = [(item.key, readable_pool(item, 0)) for item in items]
        found.extend(key for key, pool in pools if pool and lives_by(pool, session.id))
    return found


def _searched(session: str) -> ReadOp[list[str]]:
    """Search all pools, for a session that another process began and that has no list."""
    found: list[str] = []
    for prefix in keys.POOLS:
        after = ""
        while True:
            page = Range(prefix, after)
            items = (yield (page,)).ranges[page]
            pools = [(item.key, readable_pool(item, 0)) for item in items]
            found.extend(key for key, pool in pools if pool and lives_by(pool, session))
            if len(items) < page.limit:
                break
            after = items[-1].key
    return found


def _decide_on_remaining(
    deaths: Sequence[core.Death], decide: Callable[[Sequence[core.Death]], Decision[T]]
) -> DecideOp[T]:
    """Decide on the traces that still exist."""
    items = (yield tuple([keys.death(each.session) for each in deaths])).items
    return decide([each for each in deaths if items[keys.death(each.session)] is not None])


def report_keys(snapshot: Snapshot, session: str) -> tuple[str, ...]:
    """The keys of a session's report, which end with it."""
    item = snapshot[keys.report(session)]
    if item is None:
        return ()
    from interlock.nouns.agents.report_rules import removed_abilities
    from interlock.nouns.agents.report_service import decode_report

    said = reads.readable(decode_report, item)
    gone = () if said is None else removed_abilities(said)
    return keys.report(session), keys.report_live(session), *gone


def lives_by(pool: Pool, session: str) -> bool:
    """Whether a grant or a waiter in this pool belongs to a session."""
    held = any(keys.live(session) in grant.live for grant in pool.grants)
    return held or any(waiter.session == session for waiter in pool.waiters)


def _readable(item: Item) -> core.Session | None:
    """A session; None if it is damaged, which ``doctor`` reports."""
    try:
        return decode_session(item)
    except StoreDamaged:
        return None


def _agent(
    session: core.Session, live: Item | None, holds: Iterable[str], now: float
) -> core.Agent:
    """A session; the used part of its ttl gives the time of its last renewal."""
    left = None if live is None else live.expires_in
    beat = None if left is None else round(now - max(0.0, session.ttl - left), 3)
    return core.Agent(
        agent=session.agent,
        session=session.id,
        state="lapsed" if live is None else "alive",
        host=session.host,
        pid=session.pid,
        since=session.since,
        expires_in=None if left is None else round(left, 3),
        holds=tuple(holds),
        metadata=session.metadata,
        last_heartbeat=beat,
    )


def _with_reports(agents: list[core.Agent], now: float) -> Op[list[core.Agent]]:
    """Add the report of each session, and the time of its last sign of life."""
    from interlock.nouns.agents.report_service import (  # only for listings
        all_reports,
        seconds_silent,
    )

    reports = yield from all_reports()
    ago = yield from seconds_silent(reports.values(), now)
    return [
        each
        if (said := reports.get(each.session)) is None
        else replace(
            each,
            status=said.state,
            can=said.can,
            doing=said.doing,
            note=said.note,
            heard=round(now - ago[each.session], 3),
        )
        for each in agents
    ]
