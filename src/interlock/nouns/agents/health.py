"""Problems of agents: sessions that expired, and agents that do not report.

The store does not record when a session expired.  So a session counts from the first moment at
which it can have expired, a ttl after it joined; one that lived long is reported as soon as it is
dead.  Others continue while this reads, and a session that leaves deletes its liveness key with it;
so what seems to be dead is read again, and is dead if it still stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from interlock.core import keys
from interlock.core.validate import quote, span
from interlock.drivers import Op
from interlock.nouns.agents.decode import decode_session
from interlock.nouns.agents.report_rules import Report, describe, is_silent
from interlock.nouns.agents.report_service import all_reports, seconds_silent
from interlock.nouns.agents.session_rules import DEATH_KEPT, Death, Session
from interlock.nouns.agents.session_service import Sessions
from interlock.runtime import reads
from interlock.runtime.health import HealthCheck, Problem
from interlock.runtime.reads import looked_up


def health(checkup: HealthCheck) -> Op[list[Problem]]:
    """Sessions that are dead, agents that are silent, and deaths that no operator acknowledged."""
    now = checkup.runner.clock.wall()
    items = yield from checkup.read(keys.SESSIONS)
    reports = yield from all_reports()
    read = [reads.readable(decode_session, item) for item in items]
    sessions = [each for each in read if each is not None]
    wanted = (keys.live(id_) for id_ in dict.fromkeys([*(each.id for each in sessions), *reports]))
    live = {key for key, item in (yield from looked_up(wanted)).items() if item is not None}
    expired = [each for each in sessions if keys.live(each.id) not in live]
    return [
        *_dead(checkup, (yield from _still_there(expired)), reports, now),
        *(yield from _silent([reports[i] for i in reports if keys.live(i) in live], now)),
        *(yield from _died(checkup)),
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
                says=f"agent/{each.agent}: session {each.id} (process {each.pid} on"
                f" {each.host}) lapsed{f' while {describe(said)}' if said else ''},"
                " and is not cleared yet",
                remedy="see why it ended, then run 'interlock maintain'",
                thing=f"agent/{each.agent}",
                agent=each.agent,
                since=since,
            )


def _died(checkup: HealthCheck) -> Op[list[Problem]]:
    """Sessions that ended without leaving and were cleared away; one line for an agent."""
    now = checkup.runner.clock.wall()
    found: dict[str, list[Death]] = {}
    for each in (yield from Sessions(checkup.runner).deaths()):
        if now - each.at <= DEATH_KEPT:
            found.setdefault(each.agent, []).append(each)
    return [_death(deaths, now) for deaths in found.values()]


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


def _silent(alive: Sequence[Report], now: float) -> Op[list[Problem]]:
    """Live sessions that missed their pace."""
    ago = yield from seconds_silent(alive, now)
    suspects = [each for each in alive if is_silent(each, ago[each.session])]
    live = yield from looked_up(keys.live(each.session) for each in suspects)
    return [
        Problem(
            kind="silent",
            says=f"agent/{each.agent}: session {each.session} lives and said it is"
            f" {describe(each)}, but gave no sign of life for {span(ago[each.session])}",
            remedy="see whether it hangs; until its session ends it keeps what it holds",
            thing=f"agent/{each.agent}",
            agent=each.agent,
            since=now - ago[each.session],
        )
        for each in suspects
        if live[keys.live(each.session)] is not None  # else it just left, and its sign of life too
    ]
