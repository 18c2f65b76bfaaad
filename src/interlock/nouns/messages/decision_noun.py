"""The declaration of decisions: questions escalated to a person."""

from typing import TYPE_CHECKING, Annotated

from msgspec import UNSET

from interlock.core import keys
from interlock.core.outcomes import GivenFenced, Listing
from interlock.nouns.messages import decision as decisions
from interlock.nouns.messages.noun import Data, Text, said
from interlock.runtime.noun import KeyKind, Noun
from interlock.runtime.operation import Given, Operation, Request, option

if TYPE_CHECKING:
    from interlock.nouns.fleet.calls import FleetCalls
    from interlock.steps import Op

Id = Annotated[str, option("name", "the id of the decision: dec_...", positional=True)]


class DecisionsList(Request, frozen=True, kw_only=True):
    """List decisions."""

    all: Annotated[bool, option("flag", "also recent decisions")] = False


class DecisionShow(Request, frozen=True, kw_only=True):
    """Show one decision."""

    id: Id


class DecisionResolve(Request, frozen=True, kw_only=True):
    """Make a decision that another agent asked for; with options, the text is the name of one."""

    id: Id
    text: Text = None
    data: Data = UNSET
    given: Given = ()


class DecisionList(Listing[decisions.DecisionView], frozen=True, kw_only=True):
    """Decisions, oldest first, and how many cannot be read."""

    listed = "decisions"

    decisions: tuple[decisions.DecisionView, ...]
    unreadable: int = 0


def _list(fleet: "FleetCalls", request: DecisionsList) -> "Op[DecisionList]":
    from interlock.runtime.integrity import damaged

    found = yield from fleet.messages.decisions()
    return DecisionList(
        decisions=tuple(each for each in found if request.all or each.state == "open"),
        unreadable=len((yield from damaged(_DECISIONS))),
    )


def _resolve(fleet: "FleetCalls", request: DecisionResolve) -> "Op[decisions.ResolveOutcome]":
    return fleet.messages.resolve(request.id, said(request.text, request.data))


_DECISIONS = KeyKind(prefix=keys.DECISIONS, read="interlock.nouns.messages.decode:examine")

NOUN = Noun(
    name="decision",
    help="questions escalated to a person",
    keys=(_DECISIONS,),
    texts=("interlock.nouns.messages.decision_text",),
    operations=(
        Operation(
            name="decision list",
            help="list open decisions, oldest first",
            request=DecisionsList,
            outcomes=(DecisionList,),
            needs="store",
            reads=True,
            act=_list,
            examples=("interlock decision list --all",),
        ),
        Operation(
            name="decision show",
            help="show one decision: the asker, the question and the answer",
            request=DecisionShow,
            outcomes=(decisions.DecisionView, decisions.UnknownDecision),
            needs="store",
            reads=True,
            call="messages.decision",
            examples=("interlock decision show dec_12",),
        ),
        Operation(
            name="decision resolve",
            help="answer a decision; the asker gets the answer as a message",
            request=DecisionResolve,
            outcomes=(
                decisions.Resolved,
                decisions.AlreadyResolved,
                decisions.NoSuchOption,
                decisions.OwnDecision,
                decisions.UnknownDecision,
                GivenFenced,
            ),
            needs="agent",
            act=_resolve,
            takes=True,
            examples=(
                "interlock decision resolve dec_12 'yes, go ahead' --agent maria",
                "interlock decision resolve dec_13 queue_for_later --agent maria",
            ),
        ),
    ),
)
