"""Agents and their sessions in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.core.validate import quote
from interlock.runtime.text import ago, lasting, state, table

if TYPE_CHECKING:
    from interlock.nouns.agents import session_rules as core
    from interlock.nouns.agents.log_rules import Uploaded
    from interlock.nouns.agents.noun import AgentList, AgentLog, LogFiles, NoLog, UnknownAgentName
    from interlock.nouns.agents.report_rules import Reported, Unreported
    from interlock.runtime.text import Paint, Text

_NAMED = 8
"""Names of agents without a session that are listed."""


def joined(outcome: core.Joined, _paint: Paint) -> str:
    """A line for the shell; the name goes with the session, or the old one would contradict it."""
    return f"export INTERLOCK_SESSION={outcome.session} INTERLOCK_AGENT={quote(outcome.agent)}"


def left(outcome: core.Left, paint: Paint) -> str:
    """The released things."""
    gave = f"; released {', '.join(outcome.released)}" if outcome.released else ""
    return f"{paint('green', 'left')} {outcome.session}{gave}"


def renewed(outcome: core.Renewed, paint: Paint) -> str:
    """The new time to live."""
    word = paint("green", "renewed")
    return f"{word} {outcome.session}, expires in {lasting(outcome.expires_in)}"


def deaths_acknowledged(outcome: core.DeathsAcknowledged, paint: Paint) -> str:
    """How many sessions health no longer shows."""
    count = len(outcome.sessions)
    many = f"{count} session{'' if count == 1 else 's'} of {outcome.agent}"
    return f"{paint('green', 'acknowledged')} the death of {many}"


def no_death(outcome: core.NoDeath, _paint: Paint) -> str:
    """Nothing to acknowledge, and the command that clears dead sessions."""
    return (
        f"no session of {outcome.agent} that was cleared away is left to acknowledge;"
        " 'interlock maintain' clears dead ones away"
    )


def reported(outcome: Reported, paint: Paint) -> str:
    """The reported status."""
    can = f"; can {', '.join(outcome.can)}" if outcome.can else ""
    return f"{paint('green', outcome.status)}{_says(outcome).removeprefix(outcome.status)}{can}"


def unreported(outcome: Unreported, _paint: Paint) -> str:
    """No report yet, and how to make one."""
    return f"{outcome.session} said nothing of itself yet; 'interlock agent status busy' does"


def agent_log(outcome: AgentLog, _paint: Paint) -> str:
    """The lines as they were written."""
    return "\n".join(line.text for line in outcome.lines)


def no_log(outcome: NoLog, _paint: Paint) -> str:
    """No log, and how to fill it."""
    if outcome.file:
        return (
            f"{outcome.agent} has no lines in a file {outcome.file};"
            f" 'interlock agent log {quote(outcome.agent)} --files' lists its files"
        )
    return (
        f"{outcome.agent} has no log;"
        f" 'interlock agent log {quote(outcome.agent)} --upload -' adds to it"
    )


def uploaded(outcome: Uploaded, paint: Paint) -> str:
    """The uploaded lines."""
    word = paint("green", "uploaded")
    lines = _lines(outcome.lines)
    if not outcome.file:
        return f"{word} {lines} to {outcome.agent}"
    cut = f"; {outcome.cut} lines before them were cut, as the file is too large"
    return f"{word} {outcome.file} of {outcome.agent}, {lines}{cut if outcome.cut else ''}"


def log_files(outcome: LogFiles, _paint: Paint) -> str:
    """Their names and sizes."""
    if not outcome.files:
        agent = quote(outcome.agent)
        return (
            f"{outcome.agent} has no files; 'interlock agent log {agent} --file PATH' uploads one"
        )
    return "\n".join(f"{each.name}  {_lines(each.lines)}" for each in outcome.files)


def _lines(count: int) -> str:
    return f"{count} line{'' if count == 1 else 's'}"


def unknown_agent(outcome: UnknownAgentName, _paint: Paint) -> str:
    """None of that name."""
    return f"there is no session of {outcome.agent}; 'interlock agent list' shows all"


def agent_list(outcome: AgentList, paint: Paint) -> str:
    """Sessions, with what they hold."""
    if not outcome.agents:
        return f"no sessions; {_mail(outcome)}" if outcome.known else "no sessions"
    told = any(agent.status for agent in outcome.agents)
    titles = ["AGENT", "STATE", "SINCE", "EXPIRES IN", "WHERE", "HOLDS", "SESSION"]
    titles[2:2] = ["STATUS", "HEARD", "CAN"] if told else []
    rows = table(titles, [_row(agent, paint, told=told) for agent in outcome.agents], paint)
    return f"{rows}\nwithout a session: {_mail(outcome)}" if outcome.known else rows


def _mail(outcome: AgentList) -> str:
    """Agents that can receive mail although they have no session."""
    more = len(outcome.known) - _NAMED
    others = f" and {more} more, which --json names" if more > 0 else ""
    return f"mail can be sent to {', '.join(outcome.known[:_NAMED])}{others}"


def _row(agent: core.Agent, paint: Paint, *, told: bool) -> list[str]:
    says = (_says(agent), ago(agent.heard), ", ".join(agent.can)) if told else ()
    return [
        agent.agent,
        state(agent.state, paint),
        *says,
        ago(agent.since),
        "" if agent.expires_in is None else lasting(agent.expires_in),
        f"{agent.host}:{agent.pid}",
        ", ".join(agent.holds),
        agent.session,
    ]


def _says(says: core.Agent | Reported) -> str:
    """The status in words: ``busy with task/t1 (a note)``."""
    doing = f" with {says.doing}" if says.doing else ""
    return f"{says.status}{doing}" + (f" ({says.note})" if says.note else "")


TEXTS: dict[str, Text] = {
    "DeathsAcknowledged": deaths_acknowledged,
    "Joined": joined,
    "Left": left,
    "NoDeath": no_death,
    "Renewed": renewed,
    "Uploaded": uploaded,
    "Reported": reported,
    "Unreported": unreported,
    "AgentList": agent_list,
    "AgentLog": agent_log,
    "LogFiles": log_files,
    "NoLog": no_log,
    "UnknownAgentName": unknown_agent,
}
"""The text of each outcome, by the name of its class."""
