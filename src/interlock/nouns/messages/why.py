"""Explain why a question has no answer yet, and who has not read a message."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from interlock.core import keys, validate
from interlock.core.safe_text import foreign, foreign_names
from interlock.core.validate import command, quote, span
from interlock.nouns.agents.report_rules import describe
from interlock.nouns.agents.views import all_reports
from interlock.nouns.messages import decode
from interlock.nouns.messages.message import ABLE
from interlock.nouns.messages.presence import can_answer
from interlock.nouns.messages.query import Query
from interlock.runtime.reads import every, looked_up, whole_id
from interlock.runtime.why import Why
from interlock.steps import Op, Read
from interlock.store import Snapshot

if TYPE_CHECKING:
    from interlock.client_context import Context

_ENDS = {
    "cancelled": "its asker cancelled it",
    "expired": "no answer came in time",
    "deadlock": "waiting would never have ended",
    "away": "no agent was left that could answer",
}


def query(context: Context, id_: str) -> Op[Why]:
    """Explain what keeps a question from being answered."""
    id_ = yield from whole_id(validate.name(id_, "query id"), keys.QUERIES)
    key, live = keys.query(id_), keys.live(id_)
    snapshot: Snapshot = yield Read(key, live, times=True)
    found, left = decode.query(snapshot[key]), snapshot[live]
    why = partial(Why, thing=f"query/{id_}")
    if found is None:
        said = "there is no such question, or none any more"
        return why(blocked=False, state="unknown", because=said, clear=_story(f"query/{id_}"))
    if found.state == "handed":
        return why(
            blocked=True,
            state="handed",
            because=f"no agent answered {foreign(found.agent)}, so a person is asked",
            clear=f"a person decides: interlock decision resolve {quote(found.decision)} ANSWER",
            by=f"decision/{found.decision}",
            since=found.at,
        )
    if found.state != "open":
        ago = span(context.runner.clock.wall() - found.replied)
        said = _ENDS.get(found.state, f"{foreign(found.by)} answered {ago} ago")
        return why(blocked=False, state=found.state, because=said, clear=_story(id_))
    why = partial(why, blocked=True, state="open", by=found.to, since=found.at)
    if left is None:
        return why(
            because="it has expired, and its asker is gone", clear="run 'interlock maintain'"
        )
    soon = "" if left.life is None else f" in {span(left.life)}"
    answers = (
        found.to if not found.to.startswith(ABLE) else f"an agent that can {foreign(found.to[1:])}"
    )
    return why(
        because=f"{foreign(found.agent)} asked {answers}, {(yield from _presence(found))}",
        clear=f"{answers} answers, or its time is up{soon}",
        expires_in=None if left.life is None else round(left.life, 3),
        leads_to=() if found.to.startswith(ABLE) else (f"agent/{found.to}",),
    )


def _presence(query: Query) -> Op[str]:
    """Whether the recipient is present, and what it is doing."""
    if not (yield from can_answer(query.to, query.session)):
        if query.to.startswith(ABLE):
            return "and no agent here reports that it can"
        return "who is not here"
    if query.to.startswith(ABLE):
        return "and an agent here can"
    doing = yield from _doing(query.to)
    return f"who is here{doing}" if doing is not None else "who may be at any shell"


def message(_context: Context, id_: str) -> Op[Why]:
    """Explain who has not read a message yet; for topics, readers are not recorded."""
    id_ = yield from whole_id(validate.name(id_, "message id"), keys.MESSAGES)
    place = keys.message(id_)
    snapshot: Snapshot = yield Read(place)
    item = snapshot[place]
    if item is None:
        return Why(
            thing=f"message/{id_}",
            blocked=False,
            because="it is for all who subscribed, or there is no such message, or none any more",
            clear=_story(id_),
        )
    found = decode.message(item)
    marks = yield from looked_up(keys.unread(each, id_) for each in found.to)
    unread = [each for each in found.to if marks[keys.unread(each, id_)] is not None]
    names = foreign_names(unread or found.to)
    hint = f"read it: interlock inbox --agent {quote(unread[0])}" if unread else _story(id_)
    return Why(
        thing=f"message/{id_}",
        blocked=bool(unread),
        state="unread" if unread else "read",
        because=f"not acknowledged yet by {names}" if unread else f"acknowledged by {names}",
        clear=hint,
        by=unread[0] if unread else "",
        since=found.at,
    )


def _story(id_: str) -> str:
    return f"see {command(f'interlock record explain {quote(id_)}')}"


def _doing(agent: str) -> Op[str | None]:
    """What an agent reports that it is doing; None if it has no live session."""
    sessions = [keys.id_of(item.key) for item in (yield from every(keys.agent_session(agent)))]
    live = yield from looked_up(map(keys.live, sessions))
    alive = [each for each in sessions if live[keys.live(each)] is not None]
    if not alive:
        return None
    reports = yield from all_reports()
    said = [describe(reports[each]) for each in alive if each in reports]
    return f", {said[0]}" if said else ""
