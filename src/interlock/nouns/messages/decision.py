"""Decisions: what agents could not settle, and a person does.

    ask a person ──> open ──resolve──> resolved
                      │ └─(past its deadline, without a default: it stays open)
                      └──past its deadline, with a default──> expired

A decision names its subject in ``about`` (``query/qry_...``), and the commit that ends it also has
its effect there, such as the answer to the query.  A request to another swarm goes on with the next
process that tends its swarm, since another attempt has to be signed.

**Options.**  Without options any answer is a decision.  With options the answer names one of them:
its name, or ``{"option": NAME, "comment": ...}``.  An option may carry a value, so that a decision
between two values keeps both.

**The resolver is not the asker.**  An agent that asks a person must not answer itself; otherwise
every question of the form "may I?" would have a simple answer.

**No silent yes.**  When no person decides in time, only an option that does nothing (``acts`` is
false) may count: to leave a value as it is, to wait on.  A decision with any other default cannot
be made.  The state is then ``expired`` and names no person, so no reader takes it for a consent.
Without a default the decision stays open, and ``health`` reports it.

The engine's clock measures the deadline, by the liveness key ``live/{id}``: a client whose clock is
wrong must not end the decisions of others.  A person who decides after the deadline still decides,
unless the default was already committed.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Raw, Struct

from interlock.core import outcomes
from interlock.core.decision import Refusal, Success
from interlock.core.outcomes import always

DecisionState: TypeAlias = Literal["open", "resolved", "expired"]


class DecisionOption(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A named answer: what it means, whether choosing it has an effect, and the value it keeps."""

    name: str
    text: str = ""
    acts: bool = True
    value: Raw = Raw(b"null")


class HumanDecision(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A decision as it is stored; ``deadline`` is a moment, for people."""

    id: str
    about: str
    agent: str
    question: Raw
    at: float
    options: tuple[DecisionOption, ...] = ()
    default: str = ""
    deadline: float | None = None
    state: DecisionState = "open"
    by: str = ""
    answer: Raw = Raw(b"null")
    resolved: float = 0.0

    def __post_init__(self) -> None:
        """Refuse options that share a name, and a default that would act."""
        names = [each.name for each in self.options]
        if "" in names or len(set(names)) < len(names):
            raise ValueError("the options of a decision need different names")
        if not self.default:
            return
        if self.deadline is None:
            raise ValueError("a default needs a deadline")
        if self.default not in [each.name for each in self.options if not each.acts]:
            raise ValueError("only an option that does nothing can be the default")


class OptionView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An option as a person sees it."""

    option: str
    text: str = ""
    acts: bool = True
    value: Any = None


class DecisionView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A decision as a person sees it."""

    decision: str
    state: DecisionState
    about: str
    agent: str
    question: Any
    at: float
    options: tuple[OptionView, ...] = ()
    default: str = ""
    deadline: float | None = None
    by: str = ""
    answer: Any = None
    resolved: float | None = None


class Resolved(Success, frozen=True, kw_only=True, tag="resolved"):
    """The decision is made, and its effects are committed, or follow for a request to a swarm."""

    decision: str
    about: str


class AlreadyResolved(Refusal, frozen=True, kw_only=True, tag="already_resolved"):
    """The decision was made before; ``by`` is empty if its deadline passed."""

    decision: str
    by: str


class NoSuchOption(Refusal, frozen=True, kw_only=True, tag="no_such_option"):
    """The answer is none of the options."""

    decision: str
    options: tuple[str, ...]


class OwnDecision(Refusal, frozen=True, kw_only=True, tag="own_decision"):
    """The agent asked for this decision, so another one must make it."""

    counted = True
    exit_status = 3
    http_status = 403
    decision: str
    agent: str


class UnknownDecision(outcomes.Unknown, frozen=True, kw_only=True, tag="unknown"):
    """No such decision exists."""

    what: Literal["decision"] = always("decision")
    decision: str


ResolveOutcome: TypeAlias = (
    Resolved | AlreadyResolved | NoSuchOption | OwnDecision | UnknownDecision | outcomes.GivenFenced
)
