"""Decisions by a person: questions that no agent answered.

    open ──resolve──> resolved

A decision names its subject in ``about`` (``query/qry_...``). Resolving it is one commit with its
effects, such as the answer to that query.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Raw, Struct
from msgspec.structs import replace

from interlock.core import keys, outcomes
from interlock.core.decision import Decision, Event, Refusal, Success, Write
from interlock.core.outcomes import always

State: TypeAlias = Literal["open", "resolved"]


class HumanDecision(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A decision as it is stored."""

    id: str
    about: str
    agent: str
    question: Raw
    at: float
    state: State = "open"
    by: str = ""
    answer: Raw = Raw(b"null")
    resolved: float = 0.0


class DecisionView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A decision as a person sees it."""

    decision: str
    state: State
    about: str
    agent: str
    question: Any
    at: float
    by: str = ""
    answer: Any = None
    resolved: float | None = None


class Resolved(Success, frozen=True, kw_only=True, tag="resolved"):
    """The decision is made, and its effects are committed."""

    decision: str
    about: str


class AlreadyResolved(Refusal, frozen=True, kw_only=True, tag="already_resolved"):
    """The decision was made before."""

    decision: str
    by: str


class UnknownDecision(outcomes.Unknown, frozen=True, kw_only=True, tag="unknown"):
    """No such decision exists."""

    what: Literal["decision"] = always("decision")
    decision: str


ResolveOutcome: TypeAlias = Resolved | AlreadyResolved | UnknownDecision | outcomes.GivenFenced


def resolve(
    decision: HumanDecision | None, id_: str, agent: str, answer: Raw, now: float
) -> Decision[ResolveOutcome]:
    """Make a decision."""
    if decision is None:
        return Decision(outcome=UnknownDecision(unknown=(id_,), decision=id_))
    if decision.state == "resolved":
        return Decision(outcome=AlreadyResolved(decision=id_, by=decision.by))
    done = replace(decision, state="resolved", by=agent, answer=answer, resolved=now)
    return Decision(
        outcome=Resolved(decision=id_, about=decision.about),
        verb="decision.resolve",
        thing=f"decision/{id_}",
        puts=(Write(keys.decision(id_), done),),
        events=(Event("decision:resolved", agent),),
    )
