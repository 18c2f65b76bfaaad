"""What ``agent list`` and ``health`` say about agents: sessions with their reports.

The store does not record when a session expired.  So for ``health`` a session counts from the first
moment at which it can have expired, a ttl after it joined; one that lived long is reported as soon
as it is dead.  Others continue while this reads, and a session that leaves deletes its liveness key
with it; so what seems to be dead is read again, and is dead if it still stands.

Damaged items are left out; ``doctor`` reports them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.safe_text import foreign
from interlock.core.thing_names import thing_of
from interlock.core.validate import command, quote, span
from interlock.nouns.agents import report_rules
from interlock.nouns.agents.report_rules import Report, describe, is_silent
from interlock.nouns.agents.report_service import decode_report
from interlock.nouns.agents.session_rules import DEATH_KEPT, Agent, Death, SenderPause, Session
from interlock.nouns.agents.session_service import decode_death, decode_pause, decode_session
from interlock.nouns.grants.pool_reader import readable_pool
from interlock.runtime import refusals
from interlock.runtime.health import HealthCheck, Problem
from interlock.runtime.reads import every, looked_up, readable
from interlock.runtime.runner import Runner
from interlock.steps import Op
from interlock.store import Item

T = TypeVar("T")


class SessionOverview(Struct, frozen=True):
    """The live and the expired sessions, and the abilities that live sessions report.

    ``at_work`` are the live sessions that report ``busy`` or ``waiting``.
    """

    live: tuple[str, ...] = ()
    lapsed: tuple[str, ...] = ()
    able: dict[str, frozenset[str]] = {}
    at_work: tuple[str, ...] = ()


def session_overview() -> Op[SessionOverview]:
    """Read all sessions and their reports."""
    sessions = [item.key.removeprefix(keys.SESSIONS) for item in (yield from every(keys.SESSIONS))]
    reports = yield from all_reports()
    live = yield from looked_up(map(keys.live, sessions))
    here = tuple([each for each in sessions if live[keys.live(each)] is not None])
    reporting = {each: reports[each] for each in here if each in reports}
    return SessionOverview(
        live=here,
        lapsed=tuple([each for each in sessions if each not in here]),
        able={each: frozenset(report.can) for each, report in reporting.items()},
        at_work=tuple([each for each, report in reporting.items() if report.state != "idle"]),
    )


def able_agents() -> Op[dict[str, frozenset[str]]]:
    """The abilities that live sessions report, each with the agents that have it."""
    reports = yield from all_reports()
    live = yield from looked_up(map(keys.live, reports))
    found: dict[str, set[str]] = {}
    for session, report in reports.items():
        if live[keys.live(session)] is not None:
            for ability in report.can:
                found.setdefault(ability, set()).add(report.agent)
    return {ability: frozenset(agents) for ability, agents in found.items()}


def all_sessions() -> Op[list[Session]]:
    """All sessions."""
    return _all(decode_session, (yield from every(keys.SESSIONS)))


def all_reports() -> Op[dict[str, Report]]:
    """The last report of every session, by session."""
    items = yield from every(keys.REPORTS)
    found = {item.key.removeprefix(keys.REPORTS): readable(decode_report, item) for item in items}
    return {session: report for session, report in found.items() if report is not None}


def all_deaths() -> Op[list[Death]]:
    """The sessions that ended without leaving and were cleared, the oldest first."""
    found = _all(decode_death, (yield from every(keys.DEATHS)))
    return sorted(found, key=lambda each: each.at)


def _all(read: Callable[[Item | None], T | None], items: Iterable[Item]) -> list[T]:
    return [each for item in items if (each := readable(read, item)) is not None]


def seconds_silent(reports: Iterable[Report], now: float) -> Op[dict[str, float]]:
    """Seconds since the last sign of life, by session."""
    wanted = {keys.report_live(each.session): each for each in reports}
    signs = yield from looked_up(wanted, times=True)
    left = {key: None if item is None else item.life for key, item in signs.items()}
    return {
        each.session: report_rules.seconds_silent(each, left[key], now)
        for key, each in wanted.items()
    }


# ---- agent list


def list_agents(runner: Runner) -> Op[tuple[Agent, ...]]:
    """All sessions, by name, with the things that they hold and the tasks that they work on."""
    holds = yield from _held_things(runner)
    found = yield from all_sessions()
    live = yield from looked_up((keys.live(each.id) for each in found), times=True)
    now = runner.clock.wall()
    reports = yield from all_reports()
    ago = yield from seconds_silent(reports.values(), now)
    refused = yield from looked_up(keys.refusal_counts(each.agent) for each in found)
    paused = yield from pauses()
    agents = []
    for each in found:
        agent = _agent(each, live[keys.live(each.id)], holds.get(each.id, ()), now)
        if counts := refusals.refused(refused[keys.refusal_counts(each.agent)]).total:
            agent = replace(agent, refusals=counts)
        if each.agent in paused:
            agent = replace(agent, paused=paused[each.agent])
        if (said := reports.get(each.id)) is not None:
            agent = replace(
                agent,
                status=said.state,
                can=said.can,
                doing=said.doing,
                note=said.note,
                heard=round(now - ago[each.id], 3),
            )
            if each.listed and agent.last_heartbeat:  # each command of a shell is a sign of life
                agent = replace(agent, heard=max(agent.heard or 0.0, agent.last_heartbeat))
        agents.append(agent)
    return tuple(sorted(agents, key=lambda agent: (agent.agent, agent.since)))


def without_session(agent: str) -> Op[tuple[SenderPause | None, dict[str, int]]]:
    """What is kept of an agent without a session: its pause, and its refused calls by outcome."""
    paused, refused = keys.paused(agent), keys.refusal_counts(agent)
    items = yield from looked_up((paused, refused))
    return readable(decode_pause, items[paused]), refusals.refused(items[refused]).total


def pauses() -> Op[dict[str, SenderPause]]:
    """The agents that may not send, with a session or without."""
    found = _all(decode_pause, (yield from every(keys.PAUSED)))
    return {each.agent: each for each in found}


def _held_things(runner: Runner) -> Op[dict[str, list[str]]]:
    base = yield from runner.base()
    holds: dict[str, list[str]] = {}
    for item in (yield from every(*keys.POOLS)):
        pool = readable_pool(item, base)
        name = thing_of(item.key).removeprefix("lock/")
        for grant in () if pool is None else pool.grants:
            holds.setdefault(grant.session, []).append(name)
    for item in (yield from every(keys.CLAIMS)):
        worker, task = keys.claim_of(item.key)
        holds.setdefault(worker, []).append(f"task/{task}")
    return holds


def _agent(session: Session, live: Item | None, holds: Iterable[str], now: float) -> Agent:
    """A session; the used part of its ttl gives the time of its last renewal."""
    left = None if live is None else live.life
    beat = None if live is None or left is None else round(now - _since_beat(session, live), 3)
    return Agent(
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


def _since_beat(session: Session, live: Item) -> float:
    """Seconds since a session was renewed, which the used part of its ttl says."""
    return max(0.0, session.ttl - (live.expires_in or 0.0))


# ---- health


def health(checkup: HealthCheck) -> Op[list[Problem]]:
    """Sessions that are dead, agents that are silent, and deaths that no operator acknowledged."""
    now = checkup.runner.clock.wall()
    sessions = {
        each.id: each for each in _all(decode_session, (yield from checkup.read(keys.SESSIONS)))
    }
    reports = yield from all_reports()
    wanted = {id_: keys.live(id_) for id_ in (*sessions, *reports)}
    items = yield from looked_up(wanted.values(), times=True)
    live = {id_: item for id_, key in wanted.items() if (item := items[key]) is not None}
    expired = [each for each in sessions.values() if each.id not in live]
    beats = {
        id_: _since_beat(sessions[id_], item)
        for id_, item in live.items()
        if id_ in sessions and sessions[id_].listed
    }
    alive = [report for id_, report in reports.items() if id_ in live]
    return [
        *_dead(checkup, (yield from _still_there(expired)), reports, now),
        *(yield from _silent(checkup, alive, beats, now)),
        *(yield from _died(now)),
    ]


def _dead(
    checkup: HealthCheck, lapsed: Iterable[Session], reports: Mapping[str, Report], now: float
) -> Iterator[Problem]:
    for each in lapsed:
        since = each.since + each.ttl
        said = reports.get(each.id)
        if now - since > checkup.patience.dead_after:
            yield Problem(
                kind="dead",
                says=f"agent/{foreign(each.agent)}: session {foreign(each.id)} (process {each.pid}"
                " on"
                f" {foreign(each.host)}) lapsed{f' while {describe(said)}' if said else ''},"
                " and is not cleared yet",
                remedy="see why it ended, then run 'interlock maintain'",
                thing=f"agent/{each.agent}",
                agent=each.agent,
                since=since,
            )


def _died(now: float) -> Op[list[Problem]]:
    """Sessions that ended without leaving and were cleared away; one line for an agent."""
    found: dict[str, list[Death]] = {}
    for each in (yield from all_deaths()):
        if now - each.at <= DEATH_KEPT:
            found.setdefault(each.agent, []).append(each)
    return [_death(deaths, now) for deaths in found.values()]


def _death(deaths: Sequence[Death], now: float) -> Problem:
    last = deaths[-1]
    where = f"process {last.pid} on {foreign(last.host)}"
    was = f" while {last.was}" if last.was else ""
    before = f"; {len(deaths) - 1} more of its sessions ended so" if len(deaths) > 1 else ""
    return Problem(
        kind="dead",
        says=f"agent/{foreign(last.agent)}: session {last.session} ({where}) lapsed{was}, and was"
        " cleared"
        f" away {span(now - last.at)} ago{before}",
        remedy="see why it ended, then run"
        f" {command(f'interlock agent ack {quote(last.agent)} --agent NAME')}; after"
        f" {span(DEATH_KEPT)} it is no longer shown",
        thing=f"agent/{last.agent}",
        agent=last.agent,
        since=last.at,
    )


def _still_there(lapsed: Iterable[Session]) -> Op[list[Session]]:
    """The sessions that did not just leave, which also ends their liveness."""
    found = {keys.session(each.id): each for each in lapsed}
    items = yield from looked_up(found)
    return [each for key, each in found.items() if items[key] is not None]


def _silent(
    checkup: HealthCheck, alive: Sequence[Report], beats: Mapping[str, float], now: float
) -> Op[list[Problem]]:
    """Live sessions that missed their pace; of shells, ``beats`` are seconds since they beat."""
    ago = yield from seconds_silent(alive, now)
    ago |= {id_: min(ago[id_], beat) for id_, beat in beats.items() if id_ in ago}
    late = dict.fromkeys(beats, checkup.patience.dead_after)
    suspects = [
        each for each in alive if is_silent(each, ago[each.session], late=late.get(each.session))
    ]
    live = yield from looked_up(keys.live(each.session) for each in suspects)
    return [
        Problem(
            kind="silent",
            says=f"agent/{foreign(each.agent)}: session {each.session} lives and said it is"
            f" {describe(each)}, but gave no sign of life for {span(ago[each.session])}",
            remedy="see whether it hangs; until its session ends it keeps what it holds",
            thing=f"agent/{each.agent}",
            agent=each.agent,
            since=now - ago[each.session],
        )
        for each in suspects
        if live[keys.live(each.session)] is not None  # else it just left, and its sign of life too
    ]
