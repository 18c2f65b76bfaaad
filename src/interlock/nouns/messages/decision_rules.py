"""Decisions: how one is opened, made, and ended by its deadline; ``decision.py`` has the states."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Event, Write
from interlock.nouns.messages.decision import (
    AlreadyResolved,
    DecisionOption,
    HumanDecision,
    NoSuchOption,
    OwnDecision,
    Resolved,
    ResolveOutcome,
    UnknownDecision,
)


def opening(decision: HumanDecision, now: float, least: float = 0.0) -> tuple[Write, ...]:
    """The writes that open a decision; ``least`` is the shortest ttl that the engine measures."""
    stored = Write(keys.decision(decision.id), decision)
    if decision.deadline is None:
        return (stored,)
    ttl = max(decision.deadline - now, least)
    return stored, Write(keys.live(decision.id), {"for": decision.about}, ttl)


def resolve(
    decision: HumanDecision | None, id_: str, agent: str, answer: Raw, now: float
) -> Decision[ResolveOutcome]:
    """Make a decision; its asker may not."""
    if decision is None:
        return Decision(outcome=UnknownDecision(unknown=(id_,), decision=id_))
    if decision.state != "open":
        return Decision(outcome=AlreadyResolved(decision=id_, by=decision.by))
    if agent == decision.agent:
        return Decision(outcome=OwnDecision(decision=id_, agent=agent))
    if decision.options and option_of(decision, answer) is None:
        names = tuple([each.name for each in decision.options])
        return Decision(outcome=NoSuchOption(decision=id_, options=names))
    return close(decision, agent, answer, now)


def close(decision: HumanDecision, agent: str, answer: Raw, now: float) -> Decision[ResolveOutcome]:
    """End an open decision with an answer that is known to be allowed.

    The recipient of a question may still answer it after it was handed to a person.
    """
    done = replace(decision, state="resolved", by=agent, answer=answer, resolved=now)
    return Decision(
        outcome=Resolved(decision=decision.id, about=decision.about),
        verb="decision.resolve",
        thing=f"decision/{decision.id}",
        puts=(Write(keys.decision(decision.id), done),),
        deletes=_measure(decision),
        events=(Event("decision:resolved", agent),),
    )


def expire(decision: HumanDecision, now: float, *, alive: bool) -> Decision[bool]:
    """End a decision by its default if its deadline passed; ``alive`` is its liveness key."""
    if decision.state != "open" or not decision.default or alive:
        return Decision(outcome=False)
    answer = Raw(msgspec.json.encode(decision.default))
    done = replace(decision, state="expired", answer=answer, resolved=now)
    return Decision(
        outcome=True,
        verb="decision.expire",
        thing=f"decision/{decision.id}",
        puts=(Write(keys.decision(decision.id), done),),
        events=(Event("decision:expired", decision.agent),),
    )


def option_of(decision: HumanDecision, answer: Raw) -> DecisionOption | None:
    """The option that an answer names."""
    said: Any = msgspec.json.decode(answer)
    name = said.get("option") if isinstance(said, dict) else said
    return next((each for each in decision.options if each.name == name), None)


def chosen(decision: HumanDecision) -> DecisionOption | None:
    """The option that a decision which has ended chose, or that its deadline did."""
    return None if decision.state == "open" else option_of(decision, decision.answer)


def _measure(decision: HumanDecision) -> tuple[str, ...]:
    return () if decision.deadline is None else (keys.live(decision.id),)
