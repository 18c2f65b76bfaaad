"""Sessions on a store: join, leave, renew, list."""

from __future__ import annotations

import os
from collections.abc import Iterable

from msgspec.structs import replace

from interlock.core import keys
from interlock.core import lock as locks
from interlock.core import session as core
from interlock.core.decision import Decision, Event, Outcome, Write
from interlock.driving import Op
from interlock.services import states
from interlock.services.lock import every, heirs, looked_up
from interlock.services.runner import Deciding, Done, Reading, Runner, Who
from interlock.services.steps import Read
from interlock.store import Item, Range, Snapshot

_OWN_OPERATIONS = 4
_CHECKS_OF_A_RELEASE = 2


class _Part(Outcome, frozen=True, kw_only=True, tag="leaving"):
    """Some of what a session held was passed on; more is to come."""

    released: tuple[str, ...]


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
    ) -> Op[core.Joined]:
        """Begin a session under this name, for the process ``pid``, or for this one."""
        record = core.Session(
            id=session or self._runner.new_id("ses"),
            agent=agent,
            host=os.uname().nodename,
            pid=os.getpid() if pid is None else pid,
            since=self._runner.clock.wall(),
            ttl=ttl,
            metadata=metadata,
        )

        def deciding() -> Deciding[core.Joined]:
            yield (keys.session(record.id),)
            return core.join(record)

        who = Who(agent, record.id, trace)
        fresh = {keys.session(record.id): None}
        done: Done[core.Joined] = yield from self._runner.change(deciding, who, fresh)
        return done.outcome

    def leave(self, who: Who) -> Op[core.Left | core.Lapsed]:
        """End a session and pass on everything that lives by it.

        In one commit, if the store takes that much at once; else in several, the session last:
        each lock is passed on whole, so being interrupted between two of them harms nobody.
        """
        base = yield from self._runner.base()
        released: tuple[str, ...] = ()
        while True:
            done: Done[core.Left | core.Lapsed | _Part] = yield from self._runner.change(
                lambda: self._leaving(who, base), who
            )
            if isinstance(done.outcome, core.Lapsed):
                return done.outcome
            released += done.outcome.released
            if isinstance(done.outcome, core.Left):
                return replace(done.outcome, released=released)

    def _leaving(self, who: Who, base: int) -> Deciding[core.Left | core.Lapsed | _Part]:
        own = (keys.session(who.session), keys.live(who.session))
        session = states.session((yield own)[own[0]])
        if session is None:
            return Decision(outcome=core.Lapsed(session=who.session))
        bound = self._runner.capabilities.max_operations - _OWN_OPERATIONS
        parts, all_ = yield from _releases(who, base, self._runner.clock.wall(), bound)
        released = tuple(part.thing.removeprefix("lock/") for part in parts)
        left = (Event("agent:left", session.agent),) if all_ else ()
        return Decision(
            outcome=core.Left(session=who.session, released=released)
            if all_
            else _Part(released=released),
            verb="agent.leave",
            thing=f"agent/{session.agent}",
            puts=tuple(put for part in parts for put in part.puts),
            deletes=(*(own if all_ else ()), *(key for part in parts for key in part.deletes)),
            signals=tuple(key for part in parts for key in part.signals),
            events=(*left, *(event for part in parts for event in part.events)),
        )

    def beat(self, session: str) -> Op[core.Renewed | core.Lapsed]:
        """Renew a session that another process began."""

        def deciding() -> Deciding[core.Renewed | core.Lapsed]:
            snapshot = yield (keys.session(session), keys.live(session))
            live = {key for key, item in snapshot.items.items() if item is not None}
            return core.beat(states.session(snapshot[keys.session(session)]), session, live)

        done: Done[core.Renewed | core.Lapsed] = yield from self._runner.change(deciding, Who())
        return done.outcome

    def renew(self, writes: tuple[Write, ...]) -> Op[frozenset[str]]:
        """Renew liveness keys that still live, in as few quiet commits as can be; returns those."""
        portion = self._runner.capabilities.max_operations // 2
        alive: frozenset[str] = frozenset()
        for start in range(0, len(writes), portion):
            alive |= yield from self._renew(writes[start : start + portion])
        return alive

    def _renew(self, writes: tuple[Write, ...]) -> Op[frozenset[str]]:
        def deciding() -> Deciding[frozenset[str]]:
            snapshot = yield tuple(write.key for write in writes)
            alive = frozenset(key for key, item in snapshot.items.items() if item is not None)
            puts = tuple(write for write in writes if write.key in alive)
            return Decision(outcome=alive, puts=puts, quiet=True)

        done: Done[frozenset[str]] = yield from self._runner.change(deciding, Who())
        return done.outcome

    def find(self, session: str) -> Op[core.Session | None]:
        """Who a session is."""
        snapshot: Snapshot = yield Read(keys.session(session))
        return states.session(snapshot[keys.session(session)])

    def list(self) -> Op[tuple[core.Agent, ...]]:
        """All sessions, by name, with what they hold."""
        base = yield from self._runner.base()
        holds: dict[str, list[str]] = {}
        for item in (yield from every(keys.LOCKS)):
            lock = states.readable_lock(item, base)
            if lock is not None:
                name = keys.name(item.key.removeprefix(keys.LOCKS))
                holds.setdefault(lock.grant.session, []).append(name)
        items = yield from every(keys.SESSIONS)
        found = [session for item in items if (session := states.session(item)) is not None]
        live = yield from looked_up((keys.live(each.id) for each in found), times=True)
        agents = [_agent(each, live[keys.live(each.id)], holds.get(each.id, ())) for each in found]
        return tuple(sorted(agents, key=lambda agent: (agent.agent, agent.since)))


def _releases(
    who: Who, base: int, now: float, bound: int
) -> Reading[tuple[list[Decision[locks.ReleaseOutcome]], bool]]:
    """What releasing the locks of this session takes, up to a bound; and whether that is all."""
    found: list[Decision[locks.ReleaseOutcome]] = []
    after = ""
    while True:
        page = Range(keys.LOCKS, after)
        items = (yield (page,)).ranges[page]
        for item in items:
            # A range is not checked by the commit, so each lock of interest is read by itself.
            if not _lives_by(states.readable_lock(item, base), who.session):
                continue
            lock = states.lock((yield (item.key,))[item.key], base)
            if lock is None or not _lives_by(lock, who.session):
                continue
            name = keys.name(item.key.removeprefix(keys.LOCKS))
            caller = locks.Caller(lock=name, agent=who.agent, session=who.session)
            waiters = tuple(each for each in lock.waiters if each.session != who.session)
            lock = replace(lock, waiters=waiters)  # ours end with us
            live = yield from heirs(lock, caller)
            part = locks.release(lock, caller, live.keys(), now)
            bound -= _CHECKS_OF_A_RELEASE + sum(map(len, (part.puts, part.deletes, part.signals)))
            if bound < 0 and found:
                return found, False
            found.append(part)
        if len(items) < page.limit:
            return found, True
        after = items[-1].key


def _lives_by(lock: locks.Lock | None, session: str) -> bool:
    return lock is not None and keys.live(session) in lock.grant.live


def _agent(session: core.Session, live: Item | None, holds: Iterable[str]) -> core.Agent:
    left = None if live is None else live.expires_in
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
    )
