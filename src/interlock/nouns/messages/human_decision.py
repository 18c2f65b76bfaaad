"""Matters for a person: what no agent can say, kept until somebody decides it.

    open ──resolve──> resolved

A matter names what it is ``about`` (``query/qry_...``).  Deciding it is one commit with whatever
follows from it, such as the answer to that query.
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
    """What a person is asked, and what came of it."""

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
    """It is decided, and what follows from it is done."""

    decision: str
    about: str


class AlreadyResolved(Refusal, frozen=True, kw_only=True, tag="already_resolved"):
    """Somebody decided it before."""

    decision: str
    by: str


class UnknownDecision(outcomes.Unknown, frozen=True, kw_only=True, tag="unknown"):
    """There is no such decision to be made."""

    what: Literal["decision"] = always("decision")
    decision: str


ResolveOutcome: TypeAlias = Resolved | AlreadyResolved | UnknownDecision | outcomes.GivenFenced


def resolve(
    matter: HumanDecision | None, id_: str, agent: str, answer: Raw, now: float
) -> Decision[ResolveOutcome]:
    """Decide it."""
    if matter is None:
        return Decision(outcome=UnknownDecision(unknown=(id_,), decision=id_))
    if matter.state == "resolved":
        return Decision(outcome=AlreadyResolved(decision=id_, by=matter.by))
    done = replace(matter, state="resolved", by=agent, answer=answer, resolved=now)
    return Decision(
        outcome=Resolved(decision=id_, about=matter.about),
        verb="decision.resolve",
        thing=f"decision/{id_}",
        puts=(Write(keys.decision(id_), done),),
        events=(Event("decision:resolved", agent),),
    )
