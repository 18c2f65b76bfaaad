"""What somebody should look at: one pass over the store that only reads.

Interlock mends itself wherever it can, so most of what is found here is about programs: an agent
that died and nobody cleared away, one that holds for hours, one that waits for hours.  How long is
too long only the fleet knows, so each of these has its patience.

Everybody works on while we read, and whoever gives back or leaves ends its liveness with it.  So
what seems to be dead is read again: what is gone never comes back, so if it still stands, it is.

A lapse leaves nothing behind that says when it was.  So a session counts from the moment when it
can have lapsed first, a ttl after it joined; one that lived long is reported as soon as it is dead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.deadlock import DeadlockedSet
from interlock.core.health import Health, Patience, Problem
from interlock.core.thing_names import thing_of
from interlock.core.validate import quote, span
from interlock.core.wait import UnqueuedWait
from interlock.drivers import Op
from interlock.nouns.agents.report import Report, at_work, silent
from interlock.nouns.agents.reports import all_reports, unheard
from interlock.nouns.agents.service import Sessions
from interlock.nouns.agents.session import DEATH_KEPT, Death, Session
from interlock.nouns.grants.pool import Grant, Pool, Waiter
from interlock.nouns.messages.health import MessageHealth as Messages
from interlock.nouns.messages.limits import message_limits
from interlock.nouns.record.sealing import Sealing
from interlock.nouns.tasks.health import TaskHealth as Tasks
from interlock.runtime import decode
from interlock.runtime.deadlock import standing
from interlock.runtime.gather import every, looked_up
from interlock.runtime.integrity import KINDS, unreadable
from interlock.runtime.runner import Runner
from interlock.runtime.wait_graph import Start
from interlock.runtime.why import NAMED, things, weighed
from interlock.settings import Settings
from interlock.store import Item

_OVER = (*keys.TASK_FOLDERS, keys.READ, keys.SENT, keys.ANSWERS, keys.RATES)
_LOOKED_THROUGH = tuple(kind for kind in KINDS if kind not in _OVER)
"""What must be readable; what is mostly over, and may be much, is left to doctor."""
Held: TypeAlias = tuple[Grant, list[str]]
"""A grant, and the pools that have it."""

BOUND = 10_000
"""Locks, semaphores and sessions that a pass reads of each kind."""
SETTLED = 10.0
"""Whoever closes a circle withdraws at once; one that is older than this stands."""
LOOKED_AT = 100
"""Waits from which a circle is looked for."""


class Checkup:
    """The pass, as a generator for a driver."""

    def __init__(
        self, runner: Runner, settings: Settings | None = None, patience: Patience | None = None
    ) -> None:
        self._runner = runner
        self._settings = settings
        self._patience = patience or Patience()

    def run(self) -> Op[Health]:
        """Look at everything once."""
        base = yield from self._runner.base()
        sessions, more = yield from self._read(keys.SESSIONS)
        pools: dict[str, Pool] = {}
        for prefix in keys.POOLS:
            items, cut = yield from self._read(prefix)
            read = {item.key: decode.readable_pool(item, base) for item in items}
            pools |= {key: pool for key, pool in read.items() if pool is not None}
            more |= cut
        reports = yield from all_reports()
        found = yield from self._found(pools, sessions, reports)
        found += yield from self._died()
        found += yield from self._deadlocks(pools, base)
        tasks = Tasks(self._runner, self._patience)
        found += yield from tasks.run()
        messages = Messages(
            self._runner, message_limits(self._settings or Settings()), self._patience
        )
        found += yield from messages.run()
        more |= tasks.partial or messages.partial
        found += yield from _damaged()
        found += yield from self._record()
        return Health(healthy=not found, problems=tuple(found), partial=more)

    def _read(self, prefix: str) -> Op[tuple[list[Item], bool]]:
        """The items of a kind, and whether there are more than we read."""
        items = yield from every(prefix, most=BOUND + 1)
        return items[:BOUND], len(items) > BOUND

    def _found(
        self, pools: Mapping[str, Pool], items: Iterable[Item], reports: Mapping[str, Report]
    ) -> Op[list[Problem]]:
        """What shows when one knows who lives."""
        now = self._runner.clock.wall()
        read = [decode.readable(decode.session, item) for item in items]
        sessions = [each for each in read if each is not None]
        grants = _grants(pools)
        waiters = self._patient(pools, now)
        wanted = [keys.live(each.id) for each in sessions]
        wanted += [key for grant, _ in grants for key in grant.live]
        wanted += [waiter.live for waiter in waiters]
        live = {key for key, item in (yield from looked_up(wanted)).items() if item is not None}
        lapsed = [each for each in sessions if keys.live(each.id) not in live]
        stale = [each for each in grants if not live.issuperset(each[0].live)]
        return [
            *self._dead((yield from _still_there(lapsed)), reports, now),
            *(yield from _silent([reports[i] for i in reports if keys.live(i) in live], now)),
            *_stale((yield from _still_held(stale))),
            *self._stuck([each for each in grants if live.issuperset(each[0].live)], now),
            *_waiting([each for each in waiters if each.live in live], pools, now),
        ]

    def _dead(
        self, lapsed: Iterable[Session], reports: Mapping[str, Report], now: float
    ) -> Iterator[Problem]:
        for each in lapsed:
            since = each.since + each.ttl
            said = reports.get(each.id)
            if now - since > self._patience.dead_after:
                yield Problem(
                    kind="dead",
                    says=f"agent/{each.agent}: session {each.id} (process {each.pid} on"
                    f" {each.host}) lapsed{f' while {at_work(said)}' if said else ''},"
                    " and nobody cleared it away",
                    remedy="see why it ended, then run 'interlock maintain'",
                    thing=f"agent/{each.agent}",
                    agent=each.agent,
                    since=since,
                )

    def _died(self) -> Op[list[Problem]]:
        """Sessions that ended without leaving and were cleared away; one line for an agent."""
        now = self._runner.clock.wall()
        found: dict[str, list[Death]] = {}
        for each in (yield from Sessions(self._runner).deaths()):
            if now - each.at <= DEATH_KEPT:
                found.setdefault(each.agent, []).append(each)
        return [_death(deaths, now) for deaths in found.values()]

    def _stuck(self, held: Iterable[Held], now: float) -> Iterator[Problem]:
        for grant, wanted in held:
            thing = things(wanted)
            if now - grant.since > self._patience.held:
                yield Problem(
                    kind="stuck",
                    says=f"{thing}: {grant.agent} has held it for {span(now - grant.since)}",
                    remedy=f"see what {grant.agent} does: when that ends, this moves on",
                    thing=thing,
                    agent=grant.agent,
                    since=grant.since,
                )

    def _patient(self, pools: Mapping[str, Pool], now: float) -> list[Waiter]:
        """Everybody who waits for too long, once each."""
        long = [
            (waiter if waiter.together else _alone(waiter, key))
            for key, pool in pools.items()
            for waiter in pool.waiters
            if now - waiter.since > self._patience.waiting
        ]
        return list({waiter.id: waiter for waiter in long}.values())

    def _deadlocks(self, pools: Mapping[str, Pool], base: int) -> Op[list[Problem]]:
        """Circles that stand, though whoever closed them should have withdrawn."""
        now = self._runner.clock.wall()
        asleep = yield from every(keys.WAITS, most=BOUND)
        waits: list[tuple[Start, Waiter | UnqueuedWait]] = [*_asleep(asleep), *_queued(pools)]
        begun = now - self._runner.capabilities.allow(SETTLED)
        settled = {start.id: (start, who) for start, who in waits if who.since < begun}
        looked_at = sorted(settled.values(), key=lambda each: not each[1].indexed)[:LOOKED_AT]
        knots: dict[str, DeadlockedSet] = {}
        for start, _ in looked_at:
            if (knot := (yield from standing(base, start, pools))) is not None:
                knots[knot.victim.id] = knot
        return [_deadlock(knot, settled[id_][1]) for id_, knot in knots.items() if id_ in settled]

    def _record(self) -> Op[list[Problem]]:
        findings = yield from Sealing(self._runner, self._settings).findings()
        return [
            Problem(kind="record", says=f"record: {each.fact}", remedy=each.remedy, thing="record")
            for each in findings
            if each.verdict != "ok"
        ]


def _death(deaths: Sequence[Death], now: float) -> Problem:
    last = deaths[-1]
    where = f"process {last.pid} on {last.host}"
    was = f" while {last.was}" if last.was else ""
    before = f"; {len(deaths) - 1} more of its sessions ended so" if len(deaths) > 1 else ""
    return Problem(
        kind="dead",
        says=f"agent/{last.agent}: session {last.session} ({where}) lapsed{was}, and was cleared"
        f" away {span(now - last.at)} ago{before}",
        remedy="see why it ended, then run"
        f" 'interlock agent ack {quote(last.agent)} --agent NAME'; after"
        f" {span(DEATH_KEPT)} it is no longer told",
        thing=f"agent/{last.agent}",
        agent=last.agent,
        since=last.at,
    )


def _damaged() -> Op[list[Problem]]:
    """What cannot be read."""
    wrong = yield from unreadable(_LOOKED_THROUGH, BOUND)
    said = [str(each).partition("; ")[::2] for each in wrong[:NAMED]]
    if len(wrong) > NAMED:
        said.append((f"{len(wrong) - NAMED} more cannot be read", "run 'interlock doctor'"))
    return [
        Problem(kind="damaged", says=f"store: {fact}", remedy=remedy, thing="store")
        for fact, remedy in said
    ]


def _queued(pools: Mapping[str, Pool]) -> Iterator[tuple[Start, Waiter]]:
    """Every wait in a queue."""
    for key, pool in pools.items():
        for waiter in pool.waiters:
            yield Start(id=waiter.id, wants=waiter.together or (key,)), waiter


def _asleep(items: Iterable[Item]) -> Iterator[tuple[Start, UnqueuedWait]]:
    """Every wait that is listed and stands in no queue."""
    for item in items:
        found, id_ = decode.readable_wait(item), keys.id_of(item.key)
        if isinstance(found, UnqueuedWait):
            wants, revision = (found.wants,), item.revision
            yield Start(id=id_, wants=wants, asleep=found, revision=revision), found


def _alone(waiter: Waiter, key: str) -> Waiter:
    """A waiter that names its only pool."""
    return replace(waiter, together=(key,))


def _grants(pools: Mapping[str, Pool]) -> list[Held]:
    """Every grant once, with all that it is for."""
    found: dict[str, Held] = {}
    for key, pool in pools.items():
        for grant in pool.grants:
            found.setdefault(grant.id, (grant, []))[1].append(key)
    return list(found.values())


def _still_there(lapsed: Iterable[Session]) -> Op[list[Session]]:
    """Those that did not just leave: that also ends their liveness."""
    found = {keys.session(each.id): each for each in lapsed}
    items = yield from looked_up(found)
    return [each for key, each in found.items() if items[key] is not None]


def _still_held(stale: Sequence[Held]) -> Op[list[Held]]:
    """Those that were not just given back, likewise."""
    items = yield from looked_up(key for _, wanted in stale for key in wanted)
    pools = {key: decode.readable_pool(item, 0) for key, item in items.items() if item}
    left = [(grant, [k for k in wanted if _has(pools.get(k), grant)]) for grant, wanted in stale]
    return [(grant, wanted) for grant, wanted in left if wanted]


def _has(pool: Pool | None, grant: Grant) -> bool:
    return pool is not None and pool.grant(grant.id) is not None


def _silent(alive: Sequence[Report], now: float) -> Op[list[Problem]]:
    """Sessions that live, and whose agents were not heard of as they should have been."""
    ago = yield from unheard(alive, now)
    suspects = [each for each in alive if silent(each, ago[each.session])]
    live = yield from looked_up(keys.live(each.session) for each in suspects)
    return [
        Problem(
            kind="silent",
            says=f"agent/{each.agent}: session {each.session} lives and said it is"
            f" {at_work(each)}, but was not heard of for {span(ago[each.session])}",
            remedy="see whether it hangs; until its session ends it keeps what it holds",
            thing=f"agent/{each.agent}",
            agent=each.agent,
            since=now - ago[each.session],
        )
        for each in suspects
        if live[keys.live(each.session)] is not None  # else it just left, and its sign of life too
    ]


def _stale(found: Iterable[Held]) -> Iterator[Problem]:
    for grant, wanted in found:
        thing = things(wanted)
        yield Problem(
            kind="stale",
            says=f"{thing}: {grant.agent} stopped beating, and nobody came for it yet",
            remedy="acquire it, or run 'interlock maintain'",
            thing=thing,
            agent=grant.agent,
            since=grant.since,
        )


def _waiting(waiters: Iterable[Waiter], pools: Mapping[str, Pool], now: float) -> Iterator[Problem]:
    for waiter in waiters:
        thing = things(waiter.together)
        waited = f"{thing}: {waiter.agent} has waited for {span(now - waiter.since)}"
        yield Problem(
            kind="waiting",
            says="; ".join((waited, *_in_the_way(waiter, pools))),
            remedy=f"see 'interlock why {quote(thing_of(waiter.together[0]))}'",
            thing=thing,
            agent=waiter.agent,
            since=waiter.since,
        )


def _in_the_way(waiter: Waiter, pools: Mapping[str, Pool]) -> Iterator[str]:
    """Who holds what it waits for, and who waits before it."""
    for key in waiter.together:
        pool = pools.get(key, Pool())
        holders = [weighed(grant.agent, grant.weight) for grant in pool.grants]
        if holders:
            more = f" and {len(holders) - NAMED} more" if len(holders) > NAMED else ""
            yield f"{thing_of(key)} is held by {', '.join(holders[:NAMED])}{more}"
        if place := pool.position(waiter.id):
            yield f"{pool.waiters[place - 1].agent} is before it"


def _deadlock(knot: DeadlockedSet, youngest: Waiter | UnqueuedWait) -> Problem:
    names = knot.names
    wanted = dict.fromkeys(need.resource.thing for wait in knot.cycle for need in wait.needs)
    return Problem(
        kind="deadlock",
        says=f"{things(wanted)}: waiting never ends ({' -> '.join((*names, names[0]))})",
        remedy="end one of them, and the others go on",
        thing=things(wanted),
        agent=youngest.agent,
        since=youngest.since,
    )
