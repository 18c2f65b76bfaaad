"""Sessions on a store: join, leave, renew, list."""

from __future__ import annotations

import os
from collections.abc import Iterable

from interlock.core import keys
from interlock.core import lock as locks
from interlock.core import session as core
from interlock.core.decision import Decision, Event, Write
from interlock.services import states
from interlock.services.lock import every
from interlock.services.runner import Deciding, Done, Reading, Runner, Who
from interlock.driving import Op
from interlock.services.steps import Read
from interlock.store import Range, Snapshot


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
        done: Done[core.Joined] = yield from self._runner.change(deciding, who)
        return done.outcome

    def leave(self, who: Who) -> Op[core.Left | core.Lapsed]:
        """End a session and pass on everything that lives by it, in one commit."""
        base = yield from self._runner.base()

        def deciding() -> Deciding[core.Left | core.Lapsed]:
            own = (keys.session(who.session), keys.live(who.session))
            session = states.session((yield own)[own[0]])
            if session is None:
                return Decision(outcome=core.Lapsed(session=who.session))
            parts = yield from _releases(who, base, self._runner.clock.wall())
            return Decision(
                outcome=core.Left(
                    session=who.session,
                    released=tuple(part.thing.removeprefix("lock/") for part in parts),
                ),
                verb="agent.leave",
                thing=f"agent/{session.agent}",
                puts=tuple(put for part in parts for put in part.puts),
                deletes=(*own, *(key for part in parts for key in part.deletes)),
                signals=tuple(key for part in parts for key in part.signals),
                events=(
                    Event("agent:left", session.agent),
                    *(event for part in parts for event in part.events),
                ),
            )

        done: Done[core.Left | core.Lapsed] = yield from self._runner.change(deciding, who)
        return done.outcome

    def beat(self, session: str) -> Op[core.Renewed | core.Lapsed]:
        """Renew a session that another process began."""

        def deciding() -> Deciding[core.Renewed | core.Lapsed]:
            snapshot = yield (keys.session(session), keys.live(session))
            live = {key for key, item in snapshot.items.items() if item is not None}
            return core.beat(states.session(snapshot[keys.session(session)]), session, live)

        done: Done[core.Renewed | core.Lapsed] = yield from self._runner.change(deciding, Who())
        return done.outcome

    def renew(self, writes: tuple[Write, ...]) -> Op[frozenset[str]]:
        """Renew liveness keys that still live, all in one quiet commit; returns those."""

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
        found: list[core.Agent] = []
        for item in (yield from every(keys.SESSIONS)):
            session = states.session(item)
            if session is not None:
                live: Snapshot = yield Read(keys.live(session.id))
                left = live[keys.live(session.id)]
                ends = None if left is None else left.expires_in
                found.append(_agent(session, ends, holds.get(session.id, ())))
        return tuple(sorted(found, key=lambda agent: (agent.agent, agent.since)))


def _releases(who: Who, base: int, now: float) -> Reading[list[Decision[locks.ReleaseOutcome]]]:
    """What releasing every lock of this session takes."""
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
            snapshot = yield tuple({waiter.live for waiter in lock.waiters})
            live = {key for key, alive in snapshot.items.items() if alive is not None}
            name = keys.name(item.key.removeprefix(keys.LOCKS))
            caller = locks.Caller(lock=name, agent=who.agent, session=who.session)
            found.append(locks.release(lock, caller, live - {keys.live(who.session)}, now))
        if len(items) < page.limit:
            return found
        after = items[-1].key


def _lives_by(lock: locks.Lock | None, session: str) -> bool:
    return lock is not None and keys.live(session) in lock.grant.live


def _agent(session: core.Session, left: float | None, holds: Iterable[str]) -> core.Agent:
    return core.Agent(
        agent=session.agent,
        session=session.id,
        state="lapsed" if left is None else "alive",
        host=session.host,
        pid=session.pid,
        since=session.since,
        expires_in=None if left is None else round(left, 3),
        holds=tuple(holds),
        metadata=session.metadata,
    )
