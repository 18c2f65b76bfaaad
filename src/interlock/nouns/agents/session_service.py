"""Sessions on a store: join, leave, renew, list."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.core.decision import Decision, Write
from interlock.nouns.agents import session_rules
from interlock.nouns.grants.pool import Pool
from interlock.nouns.grants.pool_reader import PoolReader, readable_pool
from interlock.runtime import reads
from interlock.runtime.attempt import DecideOp, ReadOp, Unchecked
from interlock.runtime.identity import Actor, host_name
from interlock.runtime.reads import KEYS_AT_ONCE, every_inside, looked_up
from interlock.runtime.runner import Decided, Runner
from interlock.steps import Op, Read
from interlock.store import Item, Range, Snapshot

_LISTED = 32
"""Listed pools that the commit of a leave deletes; maintenance deletes the rest."""

decode_session = codec.Decoder(session_rules.Session).read_if_present
decode_pause = codec.Decoder(session_rules.SenderPause).read_if_present
decode_death = codec.Decoder(session_rules.Death).read_if_present


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
    ) -> Op[session_rules.Joined]:
        """Begin a session under this name, for the process ``pid``, or for this one.

        It is ``listed`` if it outlives this process.
        ``more`` is its first report, in the same commit.
        """
        record = session_rules.Session(
            id=session or self._runner.new_id("ses"),
            agent=agent,
            host=host_name(),
            pid=os.getpid() if pid is None else pid,
            since=self._runner.clock.wall(),
            ttl=ttl,
            metadata=metadata,
            listed=listed,
        )

        def deciding() -> DecideOp[session_rules.Joined]:
            yield (keys.session(record.id),)
            return session_rules.join(record, more)

        actor = Actor(agent, record.id, trace)
        fresh = {keys.session(record.id): None}
        done: Decided[session_rules.Joined] = yield from self._runner.change(deciding, actor, fresh)
        return done.outcome

    def leave(
        self, actor: Actor, own: Collection[str] | None = None
    ) -> Op[session_rules.Left | session_rules.SessionLapsed]:
        """End a session and release all its grants.

        In one commit if the store takes that many operations, else in several, the session last.
        ``own`` are the pools that its process may have grants in; the others are listed.
        """
        base = yield from self._runner.base()
        released: tuple[str, ...] = ()
        while True:
            done: Decided[
                session_rules.Left | session_rules.SessionLapsed | session_rules.Leaving
            ] = yield from self._runner.change(lambda: self._leaving(actor, base, own), actor)
            if isinstance(done.outcome, session_rules.SessionLapsed):
                return done.outcome
            released += done.outcome.released
            if isinstance(done.outcome, session_rules.Left):
                return replace(done.outcome, released=released)

    def _leaving(
        self, actor: Actor, base: int, mine: Collection[str] | None
    ) -> DecideOp[session_rules.Left | session_rules.SessionLapsed | session_rules.Leaving]:
        own = (keys.session(actor.session), keys.live(actor.session), keys.report(actor.session))
        snapshot = yield own
        session = decode_session(snapshot[own[0]])
        if session is None:
            return Decision(outcome=session_rules.SessionLapsed(session=actor.session))
        said = report_keys(snapshot, actor.session)
        held = yield from every_inside(keys.held(actor.session))
        listed = [keys.held_of(item.key)[1] for item in held]
        wanted = yield from _pools_of(session, mine, listed)
        said += tuple(keys.held(actor.session, key) for key in listed[:_LISTED])
        reader = PoolReader(self._runner, base)
        now = self._runner.clock.wall()
        return (
            yield from reader.decide(
                lambda facts: session_rules.leave(session, wanted, facts, now, said)
            )
        )

    def beat(self, session: str) -> Op[session_rules.Renewed | session_rules.SessionLapsed]:
        """Renew a session that another process began."""

        def deciding() -> DecideOp[session_rules.Renewed | session_rules.SessionLapsed]:
            from interlock.nouns.agents.report_service import decode_report

            own, live, said = keys.session(session), keys.live(session), keys.report(session)
            snapshot = yield (own, live, said)
            known, report = decode_session(snapshot[own]), decode_report(snapshot[said])
            pace, alive = 0.0 if report is None else report.pace, snapshot[live] is not None
            return session_rules.renew(known, session, pace, alive=alive)

        done: Decided[
            session_rules.Renewed | session_rules.SessionLapsed
        ] = yield from self._runner.change(deciding, Actor())
        return done.outcome

    def find(self, session: str) -> Op[session_rules.Session | None]:
        """The identity of a session."""
        snapshot: Snapshot = yield Read(keys.session(session))
        return decode_session(snapshot[keys.session(session)])

    def here(self, agent: str) -> Op[list[session_rules.Session]]:
        """The live sessions under a name."""
        page = Range(keys.agent_session(agent))
        ids = [keys.id_of(item.key) for item in (yield Read(page)).ranges[page]]
        items = yield from looked_up([*map(keys.session, ids), *map(keys.live, ids)])
        living = [items[keys.session(id_)] for id_ in ids if items[keys.live(id_)] is not None]
        found = [reads.readable(decode_session, item) for item in living]
        return [each for each in found if each is not None]

    def works_on(self, actor: Actor) -> Op[bool]:
        """Whether a session works on any task."""
        page = Range(keys.claims(actor.session), limit=1)
        return bool((yield Read(page)).ranges[page])


def _pools_of(
    session: session_rules.Session, own: Collection[str] | None, listed: list[str]
) -> ReadOp[list[str]]:
    """The pools that a session has grants or waiters in; the decision reads them again."""
    if own is None and not session.listed:
        return (yield from _searched(session.id))
    wanted = sorted({*listed, *(own or ())})
    found: list[str] = []
    for start in range(0, len(wanted), KEYS_AT_ONCE):
        some = (yield Unchecked(wanted[start : start + KEYS_AT_ONCE])).items.values()
        found += _with_session([item for item in some if item is not None], session.id)
    return found


def _searched(session: str) -> ReadOp[list[str]]:
    """Search all pools, for a session that another process began and that has no list."""
    return _with_session((yield from every_inside(*keys.POOLS)), session)


def _with_session(pools: Iterable[Item], session: str) -> list[str]:
    read = [(item.key, readable_pool(item, 0)) for item in pools]
    return [key for key, pool in read if pool and lives_by(pool, session)]


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
