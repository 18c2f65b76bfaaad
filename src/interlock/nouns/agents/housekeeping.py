"""Housekeeping of agents: expired sessions, traces of deaths, old lines of logs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from interlock.core import keys
from interlock.core.decision import Decision
from interlock.errors import StoreDamaged, TooLarge
from interlock.nouns.agents import session_rules as sessions
from interlock.nouns.agents.log_service import AgentLogService
from interlock.nouns.agents.report_rules import describe
from interlock.nouns.agents.report_service import decode_report
from interlock.nouns.agents.session_service import decode_death, decode_session, report_keys
from interlock.nouns.agents.views import all_deaths
from interlock.runtime import reads
from interlock.runtime.attempt import DecideOp, ReadOp
from interlock.runtime.housekeeping import HousekeepingPart
from interlock.runtime.identity import Actor
from interlock.runtime.reads import KEYS_AT_ONCE, every, looked_up
from interlock.runtime.retention import old_items
from interlock.runtime.runner import Runner
from interlock.steps import Op
from interlock.store import Item, Range


def acknowledge(
    runner: Runner, name: str, actor: Actor
) -> Op[sessions.DeathsAcknowledged | sessions.NoDeath]:
    """Delete the traces of the expired sessions under this name, or of the one with this id."""
    found = [each for each in (yield from all_deaths()) if name in (each.agent, each.session)]
    most = runner.capabilities.max_operations // 2
    gone: tuple[str, ...] = ()
    for start in range(0, len(found), most):
        deciding = partial(_acknowledge, name, found[start : start + most])
        done = yield from runner.change(deciding, actor)
        if isinstance(done.outcome, sessions.DeathsAcknowledged):
            gone += done.outcome.sessions
    if not gone:
        return sessions.NoDeath(agent=name)
    return sessions.DeathsAcknowledged(agent=found[0].agent, sessions=gone)


def _acknowledge(
    name: str, deaths: Sequence[sessions.Death]
) -> DecideOp[sessions.DeathsAcknowledged | sessions.NoDeath]:
    items = (yield tuple([keys.death(each.session) for each in deaths])).items
    left = [each for each in deaths if items[keys.death(each.session)] is not None]
    return sessions.acknowledge(name, left)


class AgentHousekeepingPart(HousekeepingPart):
    """The part of a pass that is about agents."""

    def reclaim(self) -> Op[None]:
        """Clear expired sessions; one with claims stays until its tasks are back in the queue."""
        work = self.work
        live = {
            item.key: keys.live(item.key.removeprefix(keys.SESSIONS))
            for item in (yield from every(keys.SESSIONS))
        }
        alive = yield from looked_up(live.values())
        for key in [key for key, wanted in live.items() if alive[wanted] is None]:
            if work.reclaimed >= work.bound:
                work.left += 1
                continue
            try:
                done = yield from work.runner.change(partial(self._clear, key), work.actor)
            except (StoreDamaged, TooLarge):  # the others need not wait for it; doctor names it
                work.left += 1
                continue
            work.reclaimed += done.outcome == "cleared"
            work.left += done.outcome == "at work"

    def expired(self, now: float) -> Op[list[Item]]:
        """Traces of deaths that operators had time to read."""
        return old_items(keys.DEATHS, decode_death, now - sessions.DEATH_KEPT)

    def shrink(self) -> Op[None]:
        """Delete the oldest lines of logs."""
        yield from AgentLogService(self.work.runner, self.work.settings).forget(self.work.actor)

    def _clear(self, key: str) -> DecideOp[str]:
        id_ = key.removeprefix(keys.SESSIONS)
        live = keys.live(id_)
        snapshot = yield (key, live, keys.report(id_))
        session = decode_session(snapshot[key])
        if session is None or snapshot[live] is not None:
            return Decision(outcome="gone")
        if (yield from _works(id_)):
            return Decision(outcome="at work")
        said = reads.readable(decode_report, snapshot[keys.report(id_)])
        was = "" if said is None else describe(said)
        return sessions.clear(
            session, self.work.runner.clock.wall(), was, report_keys(snapshot, id_)
        )


def _works(session: str) -> ReadOp[bool]:
    """Whether a session has claims that live by it."""
    page = Range(keys.claims(session), limit=KEYS_AT_ONCE)
    found = (yield (page,)).ranges[page]
    return any(keys.live(session) in reads.decode_keys(item) for item in found)
