"""Outcomes of agents and their sessions, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.core.validate import command, quote
from interlock.runtime.text import ago, joined, lasting, reason_lines, state, table

if TYPE_CHECKING:
    from interlock.nouns.agents import session_rules
    from interlock.nouns.agents.log_rules import Uploaded
    from interlock.nouns.agents.noun import AgentList, AgentLog, LogFiles, NoLog, UnknownAgentName
    from interlock.nouns.agents.report_rules import Reported, Unreported
    from interlock.runtime.text import Paint, Text

_NAMED = 8
"""Names of agents without a session that are listed."""


def _joined(outcome: session_rules.Joined, _paint: Paint) -> str:
    # The name goes with the session: an older one in the shell would contradict it.
    key = f" INTERLOCK_KEY={quote(outcome.key)}" if outcome.key else ""
    named = f"INTERLOCK_AGENT={quote(outcome.agent)}{key}"
    return f"export INTERLOCK_SESSION={outcome.session} {named}"


def _left(outcome: session_rules.Left, paint: Paint) -> str:
    gave = f"; released {joined(outcome.released)}" if outcome.released else ""
    return f"{paint('green', 'left')} {outcome.session}{gave}"


def _renewed(outcome: session_rules.Renewed, paint: Paint) -> str:
    word = paint("green", "renewed")
    due = f"; beat again within {lasting(outcome.pace)}" if outcome.pace else ""
    return f"{word} {outcome.session}, expires in {lasting(outcome.expires_in)}{due}"


def _deaths_acknowledged(outcome: session_rules.DeathsAcknowledged, paint: Paint) -> str:
    count = len(outcome.sessions)
    many = f"{count} session{'' if count == 1 else 's'} of {outcome.agent}"
    return f"{paint('green', 'acknowledged')} the death of {many}"


def _no_death(outcome: session_rules.NoDeath, _paint: Paint) -> str:
    return (
        f"no session of {outcome.agent} that was cleared away is left to acknowledge;"
        " 'interlock maintain' clears dead ones away"
    )


def _reported(outcome: Reported, paint: Paint) -> str:
    can = f"; can {joined(outcome.can)}" if outcome.can else ""
    return f"{paint('green', outcome.status)}{_says(outcome).removeprefix(outcome.status)}{can}"


def _unreported(outcome: Unreported, _paint: Paint) -> str:
    return f"{outcome.session} said nothing of itself yet; 'interlock agent status busy' does"


def _agent_log(outcome: AgentLog, _paint: Paint) -> str:
    return "\n".join(line.text for line in outcome.lines)


def _no_log(outcome: NoLog, _paint: Paint) -> str:
    if outcome.file:
        return (
            f"{outcome.agent} has no lines in a file {outcome.file};"
            f" {command(f'interlock agent log {quote(outcome.agent)} --files')} lists its files"
        )
    return (
        f"{outcome.agent} has no log;"
        f" {command(f'interlock agent log {quote(outcome.agent)} --upload -')} adds to it"
    )


def _uploaded(outcome: Uploaded, paint: Paint) -> str:
    word = paint("green", "uploaded")
    lines = _lines(outcome.lines)
    if not outcome.file:
        return f"{word} {lines} to {outcome.agent}"
    cut = f"; {outcome.cut} lines before them were cut, as the file is too large"
    return f"{word} {outcome.file} of {outcome.agent}, {lines}{cut if outcome.cut else ''}"


def _log_files(outcome: LogFiles, _paint: Paint) -> str:
    if not outcome.files:
        upload = command(f"interlock agent log {quote(outcome.agent)} --file PATH")
        return f"{outcome.agent} has no files; {upload} uploads one"
    return "\n".join(f"{each.name}  {_lines(each.lines)}" for each in outcome.files)


def _lines(count: int) -> str:
    return f"{count} line{'' if count == 1 else 's'}"


def _unknown_agent(outcome: UnknownAgentName, paint: Paint) -> str:
    said = f"there is no session of {outcome.agent}; 'interlock agent list' shows all"
    paused = "" if outcome.paused is None else _paused(outcome.paused, paint)
    return said + paused + _refused(outcome)


def _agent_list(outcome: AgentList, paint: Paint) -> str:
    paused = "".join([_paused(each, paint) for each in outcome.paused])
    if not outcome.agents:
        none = f"no sessions; {_mail(outcome)}" if outcome.known else "no sessions"
        return none + paused
    told = any(agent.status for agent in outcome.agents)
    titles = ["AGENT", "STATE", "SINCE", "EXPIRES IN", "WHERE", "HOLDS", "SESSION"]
    titles[2:2] = ["STATUS", "HEARD", "CAN"] if told else []
    rows = table(titles, [_row(agent, paint, told=told) for agent in outcome.agents], paint)
    rows += paused
    rows += "".join(map(_refused, {each.agent: each for each in outcome.agents}.values()))
    return f"{rows}\nwithout a session: {_mail(outcome)}" if outcome.known else rows


def _paused(pause: session_rules.SenderPause, paint: Paint) -> str:
    """A line about an agent that may not send."""
    resume = command(f"interlock agent resume {quote(pause.agent)} --agent NAME")
    said = f"\npaused: {pause.agent} can send nothing, by {pause.by}, {ago(pause.since)}"
    return f"{said}; {resume} ends that{reason_lines(pause.reason, paint)}"


def _refused(agent: session_rules.Agent | UnknownAgentName) -> str:
    """A line about the calls of an agent that were refused."""
    if not agent.refusals:
        return ""
    said = joined([f"{word} {count}" for word, count in agent.refusals.items()])
    return f"\nrefused calls of {agent.agent}: {said}"


def _mail(outcome: AgentList) -> str:
    """Agents that can receive mail although they have no session."""
    more = len(outcome.known) - _NAMED
    others = f" and {more} more, which --json names" if more > 0 else ""
    return f"mail can be sent to {joined(outcome.known[:_NAMED])}{others}"


def _row(agent: session_rules.Agent, paint: Paint, *, told: bool) -> list[str]:
    says = (_says(agent), ago(agent.heard), joined(agent.can)) if told else ()
    return [
        agent.agent,
        state(agent.state, paint),
        *says,
        ago(agent.since),
        "" if agent.expires_in is None else lasting(agent.expires_in),
        f"{agent.host}:{agent.pid}",
        joined(agent.holds),
        agent.session,
    ]


def _says(says: session_rules.Agent | Reported) -> str:
    """The status in words: ``busy with task/t1 (a note)``."""
    doing = f" with {says.doing}" if says.doing else ""
    return f"{says.status}{doing}" + (f" ({says.note})" if says.note else "")


TEXTS: dict[str, Text] = {
    "DeathsAcknowledged": _deaths_acknowledged,
    "Joined": _joined,
    "Left": _left,
    "NoDeath": _no_death,
    "Renewed": _renewed,
    "Uploaded": _uploaded,
    "Reported": _reported,
    "Unreported": _unreported,
    "AgentList": _agent_list,
    "AgentLog": _agent_log,
    "LogFiles": _log_files,
    "NoLog": _no_log,
    "UnknownAgentName": _unknown_agent,
}
"""The text of each outcome, by the name of its class."""
