"""A query as the target of a wait: one answer of any agent that may answer is enough.

For an agent, the blockers are the callers that receive its messages.  Without such a caller, they
are its living sessions: a session may read its messages when it runs, and it does not run while it
waits and everything that it waits for is stuck.  Commands without a session count as one blocker,
the agent.  For a query to any agent with an ability, the blockers are all living sessions that have
it, without the asker's own, and all callers that receive messages for that ability.

A dead session answers nothing, so liveness is read at once.  Without any blocker an agent may still
join and answer, so that is no deadlock.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from interlock.core import keys
from interlock.core.validate import ALL_ABILITIES
from interlock.core.wait import agent_caller_name, session_caller_name
from interlock.errors import StoreDamaged
from interlock.nouns.agents.report_rules import Report
from interlock.nouns.agents.report_service import agents_able_to
from interlock.nouns.messages.message import ABLE
from interlock.nouns.messages.presence import receiver_note
from interlock.runtime.decide import ReadOp, Unchecked
from interlock.runtime.reads import decoded
from interlock.runtime.wait_graph import (
    Blocker,
    SharedResource,
    WaitTarget,
    WaitTargets,
    glanced,
)
from interlock.store import Item, Range


class AskedQuery(Struct, frozen=True):
    """As much of a query as matters here."""

    id: str
    to: str
    session: str = ""
    state: str = "open"


_ASKED = msgspec.json.Decoder(AskedQuery)
_REPORT = msgspec.json.Decoder(Report)


def read(wanted: tuple[str, ...], _base: int) -> ReadOp[WaitTargets]:
    """These queries, with all who may answer."""
    found: WaitTargets = {}
    items = yield from glanced(wanted)
    for key, item in items.items():
        try:
            found[key] = yield from _place(key, item)
        except StoreDamaged:  # who knows who may answer: the way is open
            found[key] = WaitTarget()
    return found


def _place(key: str, item: Item | None) -> ReadOp[WaitTarget]:
    asked = None if item is None else decoded(_ASKED, item)
    if asked is None or asked.state != "open":
        return WaitTarget()
    met = yield from _who_may_answer(asked)
    return WaitTarget((SharedResource(key, met, None, (key,), (keys.live(asked.id),)),))


def _who_may_answer(asked: AskedQuery) -> ReadOp[tuple[Blocker, ...]]:
    if not asked.to.startswith(ABLE):
        return (yield from _of_agent(asked.to))
    ability = asked.to.removeprefix(ABLE)
    able, found = yield from _able(ability, asked.session)
    for agent in dict.fromkeys(able.values()):
        sessions = {session for session, other in able.items() if other == agent}
        for met in (yield from _of_agent(agent, sessions)):
            found[met.caller] = met
    return tuple(found.values())


def _of_agent(agent: str, able: Iterable[str] | None = None) -> ReadOp[tuple[Blocker, ...]]:
    """Who takes its messages (in these sessions), or its sessions as a whole."""
    lists = yield from _every(keys.serving(agent))
    serving = {keys.decode(keys.id_of(item.key)): receiver_note(item) for item in lists}
    live = yield from glanced(tuple(dict.fromkeys(each.live for each in serving.values())))
    met = tuple(
        Blocker(caller, live=(each.live,))
        for caller, each in serving.items()
        if live[each.live] is not None and (able is None or each.session in able)
    )
    if met:
        return met
    whole = agent_caller_name(agent)
    if able is not None:
        return tuple([_session(each, whole) for each in able])
    sessions = yield from _living(agent)
    return (*[_session(each, whole) for each in sessions], Blocker(whole))


def _session(session: str, agent: str) -> Blocker:
    return Blocker(session_caller_name(session), live=(keys.live(session),), among=agent)


def _living(agent: str) -> ReadOp[list[str]]:
    """The living sessions of an agent."""
    sessions = [keys.id_of(item.key) for item in (yield from _every(keys.agent_session(agent)))]
    live = yield from glanced(tuple(map(keys.live, sessions)))
    return [each for each in sessions if live[keys.live(each)] is not None]


def _able(ability: str, asker: str) -> ReadOp[tuple[dict[str, str], dict[str, Blocker]]]:
    """The living sessions that can do it, each with its agent; and who takes messages of those."""
    found = {
        key: each
        for key, each in (yield from agents_able_to(ability)).items()
        if each.session != asker
    }
    live = yield from glanced(tuple(dict.fromkeys(each.live for each in found.values())))
    here = {key: each for key, each in found.items() if live[each.live] is not None}
    whole = {
        each.session: each.agent for each in here.values() if each.live == keys.live(each.session)
    }
    callers = {
        caller: Blocker(caller, live=(each.live,))
        for key, each in here.items()
        if each.live != keys.live(each.session)
        for caller in [keys.decode(keys.id_of(key))]
    }
    if whole or callers:
        return whole, callers
    return (yield from _reporting(ability, asker)), (yield from _serving(ability, asker))


def _reporting(ability: str, asker: str) -> ReadOp[dict[str, str]]:
    """The living sessions that can do it as all reports say: an older version says it there."""
    reports = [decoded(_REPORT, item) for item in (yield from _every(keys.REPORTS))]
    able = {
        each.session: each.agent
        for each in reports
        if each.session != asker and not {ability, ALL_ABILITIES}.isdisjoint(each.can)
    }
    live = yield from glanced(tuple(map(keys.live, able)))
    return {session: able[session] for session in able if live[keys.live(session)] is not None}


def _serving(ability: str, asker: str) -> ReadOp[dict[str, Blocker]]:
    """Who takes messages, and said that it can do this when it began."""
    notes = {
        keys.decode(keys.id_of(item.key)): receiver_note(item)
        for item in (yield from _every(keys.SERVING))
    }
    able = {
        caller: each
        for caller, each in notes.items()
        if each.session != asker and not {ability, ALL_ABILITIES}.isdisjoint(each.can)
    }
    live = yield from glanced(tuple(dict.fromkeys(each.live for each in able.values())))
    return {
        caller: Blocker(caller, live=(each.live,))
        for caller, each in able.items()
        if live[each.live] is not None
    }


def _every(prefix: str) -> ReadOp[list[Item]]:
    found: list[Item] = []
    page = Range(prefix)
    while True:
        items = (yield Unchecked((page,))).ranges[page]
        found.extend(items)
        if len(items) < page.limit:
            return found
        page = Range(prefix, items[-1].key)
