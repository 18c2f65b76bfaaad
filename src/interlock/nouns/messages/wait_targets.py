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

from collections.abc import Iterable, Mapping

from msgspec import Struct

from interlock.core import codec, keys
from interlock.core.validate import ALL_ABILITIES
from interlock.core.wait import agent_caller_name, session_caller_name
from interlock.errors import StoreDamaged
from interlock.nouns.agents.report_rules import Report
from interlock.nouns.agents.report_service import agents_able_to
from interlock.nouns.messages.message import ABLE
from interlock.nouns.messages.presence import ReceiverNote, liveness_key, receiver_note
from interlock.runtime.attempt import ReadOp
from interlock.runtime.reads import every_inside
from interlock.runtime.wait_graph import (
    Blocker,
    SharedResource,
    WaitTarget,
    WaitTargets,
    glanced,
)
from interlock.store import Item


class AskedQuery(Struct, frozen=True):
    """As much of a query as matters here."""

    id: str
    to: str
    session: str = ""
    state: str = "open"


_ASKED = codec.Decoder(AskedQuery)
_REPORT = codec.Decoder(Report)


def wait_targets(wanted: tuple[str, ...], _base: int) -> ReadOp[WaitTargets]:
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
    asked = _ASKED.read_if_present(item)
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
    notes = yield from _receiver_notes(keys.serving(agent))
    serving = yield from _living({caller: note.live for caller, note in notes.items()})
    met = [_caller(each, notes) for each in serving if able is None or notes[each].session in able]
    if met:
        return tuple(met)
    whole = agent_caller_name(agent)
    if able is not None:
        return tuple([_session(each, whole) for each in able])
    items = yield from every_inside(keys.agent_session(agent))
    sessions = yield from _living({keys.id_of(item.key): liveness_key(item) for item in items})
    return (*[_session(each, whole) for each in sessions], Blocker(whole))


def _session(session: str, agent: str) -> Blocker:
    return Blocker(session_caller_name(session), live=(keys.live(session),), among=agent)


def _caller(caller: str, notes: Mapping[str, ReceiverNote]) -> Blocker:
    return Blocker(caller, live=(notes[caller].live,))


def _able(ability: str, asker: str) -> ReadOp[tuple[dict[str, str], dict[str, Blocker]]]:
    """The living sessions that can do it, each with its agent; and who takes messages of those."""
    agents = (yield from agents_able_to(ability)).items()
    found = {key: each for key, each in agents if each.session != asker}
    here = yield from _living({key: each.live for key, each in found.items()})
    whole: dict[str, str] = {}
    callers: dict[str, Blocker] = {}
    for key in here:
        each, caller = found[key], keys.decode(keys.id_of(key))
        if each.live == keys.live(each.session):
            whole[each.session] = each.agent
        else:
            callers[caller] = Blocker(caller, live=(each.live,))
    if whole or callers:
        return whole, callers
    return (yield from _reporting(ability, asker)), (yield from _serving(ability, asker))


def _reporting(ability: str, asker: str) -> ReadOp[dict[str, str]]:
    """The living sessions that can do it as all reports say: an older version says it there."""
    reports = [_REPORT.read(item) for item in (yield from every_inside(keys.REPORTS))]
    able = {each.session: each.agent for each in reports if _has(each, ability, asker)}
    here = yield from _living({session: keys.live(session) for session in able})
    return {session: able[session] for session in here}


def _serving(ability: str, asker: str) -> ReadOp[dict[str, Blocker]]:
    """Who takes messages, and said that it can do this when it began."""
    notes = yield from _receiver_notes(keys.SERVING)
    able = {caller: each.live for caller, each in notes.items() if _has(each, ability, asker)}
    return {caller: _caller(caller, notes) for caller in (yield from _living(able))}


def _has(each: Report | ReceiverNote, ability: str, asker: str) -> bool:
    return each.session != asker and not {ability, ALL_ABILITIES}.isdisjoint(each.can)


def _receiver_notes(prefix: str) -> ReadOp[dict[str, ReceiverNote]]:
    items = yield from every_inside(prefix)
    return {keys.decode(keys.id_of(item.key)): receiver_note(item) for item in items}


def _living(lives: Mapping[str, str]) -> ReadOp[list[str]]:
    """Those whose liveness key exists."""
    found = yield from glanced(tuple(dict.fromkeys(lives.values())))
    return [each for each, live in lives.items() if found[live] is not None]
