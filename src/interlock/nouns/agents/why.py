"""Why an agent does not go on: what it waits for, and who can clear that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from interlock.core import keys, validate
from interlock.core.safe_text import foreign, one_line
from interlock.core.thing_names import thing_of
from interlock.core.validate import command, quote, span
from interlock.core.wait import agent_caller_name
from interlock.nouns.agents.report_rules import describe
from interlock.nouns.agents.report_service import decode_report
from interlock.nouns.agents.session_service import decode_pause
from interlock.nouns.grants.why import meanwhile, waits_of_agent
from interlock.runtime.reads import looked_up, readable
from interlock.runtime.why import NAMED, Why
from interlock.steps import Op, Read
from interlock.store import Range

if TYPE_CHECKING:
    from interlock.client_context import Context


def agent(context: Context, name: str) -> Op[Why]:
    """Explain an agent: that it may not send, and the waits of all of its sessions."""
    name = validate.name(name, "agent name")
    found = yield from _waiting_or_free(context, name)
    pause = readable(decode_pause, (yield from looked_up([keys.paused(name)]))[keys.paused(name)])
    if pause is None:
        return found
    reason = f" ({foreign(one_line(pause.reason))})" if pause.reason else ""
    since = span(context.runner.clock.wall() - pause.since)
    resume = command(f"interlock agent resume {quote(name)} --agent NAME")
    also = f"; {found.clear}" if found.blocked else ""
    return replace(
        found,
        blocked=True,
        state="paused",
        because=f"{foreign(pause.by)} does not let it send, for {since}{reason}; {found.because}",
        clear=f"the cause is fixed: {resume}{also}",
        since=pause.since,
    )


def _waiting_or_free(context: Context, name: str) -> Op[Why]:
    waits = yield from waits_of_agent(name)
    if not waits:
        return (yield from _free(context, name))
    found = yield from meanwhile(context.runner, {agent_caller_name(name): name})
    # Of a guard, the lines have the condition that fails; an explanation of it would look outside.
    others = [key for wait in waits for key in wait.wanted if not key.startswith(keys.GUARDS)]
    return Why(
        thing=f"agent/{name}",
        blocked=True,
        state="waiting",
        because="; ".join(found.lines),
        clear=f"{foreign(name)} gets what it waits for, or gives up",
        since=min(wait.since for wait in waits),
        leads_to=(*map(thing_of, others[:NAMED]), *found.leads_to),
        cycle=found.cycle,
    )


def _free(context: Context, name: str) -> Op[Why]:
    """Explain an agent that waits for nothing: it works, is idle, or is gone."""
    page = Range(keys.agent_session(name))
    listed = [keys.id_of(item.key) for item in (yield Read(page)).ranges[page]]
    sessions = yield from context.sessions.here(name)
    thing = f"agent/{name}"
    if not sessions:
        return Why(
            thing=thing,
            blocked=False,
            state="lapsed" if listed else "unknown",
            because="its session has expired" if listed else "no agent of this name is here",
            clear="run 'interlock maintain', which releases what it held"
            if listed
            else "see 'interlock agent list'",
        )
    reports = yield from looked_up(keys.report(each.id) for each in sessions)
    said = [report for item in reports.values() if (report := readable(decode_report, item))]
    since = min(each.since for each in sessions)
    doing = f"; it reports that it is {describe(said[0])}" if said else ""
    here = span(context.runner.clock.wall() - since)
    return Why(
        thing=thing,
        blocked=False,
        state="alive",
        because=f"it waits for nothing, and has been here for {here}{doing}",
        clear="nothing is to be done",
        since=since,
    )
