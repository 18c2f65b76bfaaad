"""Agents and their sessions in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.faces.render import ago, lasting, state, table

if TYPE_CHECKING:
    from interlock.core import session as core
    from interlock.faces.operations.agent import AgentList, Nobody
    from interlock.faces.render import Paint


def joined(outcome: core.Joined, _paint: Paint) -> str:
    """A line for the shell."""
    return f"export INTERLOCK_SESSION={outcome.session}"


def left(outcome: core.Left, paint: Paint) -> str:
    """What it gave back."""
    gave = f"; released {', '.join(outcome.released)}" if outcome.released else ""
    return f"{paint('green', 'left')} {outcome.session}{gave}"


def renewed(outcome: core.Renewed, paint: Paint) -> str:
    """How long it lives now."""
    word = paint("green", "renewed")
    return f"{word} {outcome.session}, expires in {lasting(outcome.expires_in)}"


def lapsed(outcome: core.Lapsed, paint: Paint) -> str:
    """It is over, and what to do."""
    return f"{paint('red', 'lapsed')} {outcome.session} is over; join again"


def nobody(outcome: Nobody, _paint: Paint) -> str:
    """None of that name."""
    return f"there is no session of {outcome.agent}; 'interlock agent list' shows all"


def agent_list(outcome: AgentList, paint: Paint) -> str:
    """Sessions, with what they hold."""
    if not outcome.agents:
        return "nobody is here"
    titles = ("AGENT", "STATE", "SINCE", "EXPIRES IN", "WHERE", "HOLDS", "SESSION")
    return table(titles, [_row(agent, paint) for agent in outcome.agents], paint)


def _row(agent: core.Agent, paint: Paint) -> tuple[str, ...]:
    return (
        agent.agent,
        state(agent.state, paint),
        ago(agent.since),
        "" if agent.expires_in is None else lasting(agent.expires_in),
        f"{agent.host}:{agent.pid}",
        ", ".join(agent.holds),
        agent.session,
    )
