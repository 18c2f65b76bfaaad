"""The wait of an asker: until the answer comes, the timeout ends it, or it would close a cycle.

The wait and the question have separate timeouts: an asker that returns by id with a shorter timeout
than the question's leaves the question open when it gives up.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.core.wait import UnqueuedWait
from interlock.drivers import NextChanges, Op, OpenWatch, Read
from interlock.nouns.grants.service import GrantService
from interlock.nouns.messages import decode
from interlock.nouns.messages import query_rules as core
from interlock.nouns.messages.query_rules import AskOutcome, Query
from interlock.runtime import callers
from interlock.runtime.deadlock import DeadlockDetector, Withdrawal
from interlock.runtime.decide import DecideOp, ReadOp
from interlock.runtime.identity import Actor
from interlock.runtime.keeper import BEATS_PER_TTL
from interlock.runtime.reads import outside
from interlock.runtime.runner import Decided, Runner
from interlock.runtime.wait_graph import Start
from interlock.store import Item, Snapshot

ASKER_TTL = 10.0
"""Seconds after which the wait of a killed command expires."""
_CHECK_AFTER, _CHECK_LONGEST = 1.0, 8.0
"""Seconds between two checks for a cycle, at first and at most: the interval doubles while nothing
changes.  A check may read all agents with an ability, and the wait that closes a cycle checks it.
"""


class QueryWaits:
    """The waits of askers; its methods are generators for a driver."""

    def __init__(self, runner: Runner, grants: GrantService) -> None:
        self._runner = runner
        self._grants = grants
        self._deadlocks = DeadlockDetector(runner)

    def beat(self, asleep: UnqueuedWait, query: Query) -> tuple[Write, ...]:
        """The wait's own liveness key, if it has one; it is put with the question."""
        if asleep.live != keys.asker_live(query.id):
            return ()
        ttl = max(min(query.timeout, ASKER_TTL), self._runner.capabilities.min_ttl)
        return (Write(asleep.live, {"agent": asleep.agent}, ttl),)

    def wait(self, actor: Actor, query: Query, start: Start) -> Op[AskOutcome]:
        """Wait until the question has ended or the timeout is reached; refuse a wait in a cycle."""
        clock, key, live = self._runner.clock, keys.query(query.id), keys.live(query.id)
        snapshot: Snapshot = yield Read(key, live, times=True)
        stored, lives = decode.query(snapshot[key]), snapshot[live]
        # The engine may report less than is left, by up to its grain: never end too early.
        grain = self._runner.capabilities.grain
        left = 0.0 if lives is None else (lives.expires_in or 0.0) + grain
        last = stored.timeout if stored is not None and left <= query.timeout else query.timeout
        ends = clock.monotonic() + min(query.timeout, left)
        beat = () if start.asleep is None else self.beat(start.asleep, query)
        pace = _pace(beat)
        shortest, longest = map(self._runner.capabilities.allow, (_CHECK_AFTER, _CHECK_LONGEST))
        due, interval = clock.monotonic() + pace, shortest
        watch = yield OpenWatch(key, start.revision or snapshot.revision)
        try:
            while True:
                now = yield from outside(query_with_answer(snapshot[key]))
                if now is None or now.state != "open":
                    return core.TakenBack(query=query.id) if now is None else core.outcome_of(now)
                if ends <= clock.monotonic():
                    return (yield from self._timed_out(actor, query, last))
                refused = yield from self._refuse(actor, start)
                if refused is not None:
                    return refused
                if due <= clock.monotonic():
                    due = clock.monotonic() + pace
                    if not (yield from self._renew(beat)):
                        due = float("inf")
                until = min(ends, due, clock.monotonic() + interval)
                changes = yield NextChanges(watch, until - clock.monotonic())
                interval = shortest if changes else min(interval * 2, longest)
                snapshot = yield Read(key)
        finally:
            watch.close()

    def leave(self, actor: Actor, query: Query) -> Op[AskOutcome]:
        """Stop waiting; the question stays open."""

        def deciding() -> DecideOp[AskOutcome]:
            key = keys.query(query.id)
            stored = decode.query((yield (key,))[key])
            if stored is None:
                return Decision(outcome=core.TakenBack(query=query.id))
            return core.leave(stored, query.waits, query.timeout)

        done: Decided[AskOutcome] = yield from self._runner.change(deciding, actor)
        return done.outcome

    def _timed_out(self, actor: Actor, query: Query, last: float) -> Op[AskOutcome]:
        """End our wait, and the question unless its own timeout is later."""
        decision_id = self._runner.new_id("dec")

        def deciding() -> DecideOp[AskOutcome]:
            key, live = keys.query(query.id), keys.live(query.id)
            stored = yield from query_with_answer((yield (key,))[key])
            if stored is None:
                return Decision(outcome=core.TakenBack(query=query.id))
            if stored.timeout > last and (yield (live,))[live] is not None:
                return core.leave(stored, query.waits, query.timeout)
            return core.expire(stored, self._runner.clock.wall(), decision_id)

        done: Decided[AskOutcome] = yield from self._runner.change(deciding, actor)
        return done.outcome

    def _renew(self, beat: tuple[Write, ...]) -> Op[bool]:
        """Renew the wait's liveness key; return whether it still exists.

        A wait that expired while this machine slept is not revived: the answer still arrives, but
        others no longer count the wait when they look for cycles.
        """
        alive = yield from self._runner.renew(beat)
        return len(alive) == len(beat)

    def _refuse(self, actor: Actor, start: Start) -> Op[AskOutcome | None]:
        """Cancel the question if its wait closes a cycle."""

        def withdraw(cycle: tuple[str, ...]) -> DecideOp[AskOutcome | None]:
            key = start.wants[0]
            query = yield from query_with_answer((yield (key,))[key])
            if query is None:
                return Decision(outcome=None)
            decision: Decision[AskOutcome | None] = core.refuse(query, cycle)
            return decision

        pending = self._grants.pending_grants() | callers.pending_grants()
        give_way: Withdrawal[Any] = withdraw
        done: Decided[Any] = yield from self._deadlocks.resolve(
            actor, start, give_way, pending=pending
        )
        refused: AskOutcome | None = done.outcome
        return refused


def expire_query(runner: Runner, actor: Actor, id_: str) -> Op[AskOutcome]:
    """End a question that has expired; return the outcome of any other."""
    decision_id = runner.new_id("dec")

    def deciding() -> DecideOp[AskOutcome]:
        query = yield from query_with_answer((yield (keys.query(id_),))[keys.query(id_)])
        if query is None:
            return Decision(outcome=core.TakenBack(query=id_))
        if (yield (keys.live(id_),))[keys.live(id_)] is not None:
            return Decision(outcome=core.outcome_of(query))
        return core.expire(query, runner.clock.wall(), decision_id)

    done: Decided[AskOutcome] = yield from runner.change(deciding, actor)
    return done.outcome


def _pace(beat: tuple[Write, ...]) -> float:
    return min([(each.ttl or 0.0) / BEATS_PER_TTL for each in beat], default=float("inf"))


def query_with_answer(item: Item | None) -> ReadOp[Query | None]:
    """The question in an item, with an answer that is stored separately."""
    query = decode.query(item)
    if query is None or not query.apart:
        return query
    key = keys.reply(query.id)
    reply = (yield (key,))[key]
    return query if reply is None else replace(query, answer=Raw(reply.value))
