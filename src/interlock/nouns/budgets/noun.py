"""The declaration of budgets."""

from typing import Annotated, get_args

from interlock.core import keys
from interlock.nouns.budgets import budget as core
from interlock.runtime.noun import KeyKind, Noun, Part
from interlock.runtime.operation import Given, Operation, Request, option

Thing = Annotated[str, option("name", "fleet, agent/NAME, agent/* or task/ID", positional=True)]
MOST, COUNTED = core.MOST_TOKENS, core.MOST_COUNTED


class BudgetSetRequest(Request, frozen=True, kw_only=True):
    """Limit what a thing may spend."""

    thing: Thing
    tokens: Annotated[
        int | None, option("int", "the most tokens, of all kinds together", most=MOST)
    ] = None
    cost: Annotated[str | None, option("text", "the most money, such as 12.50")] = None
    reason: Annotated[str, option("text", "the reason, shown to others")] = ""
    given: Given = ()


class BudgetDropRequest(Request, frozen=True, kw_only=True):
    """Delete a limit."""

    thing: Thing
    given: Given = ()


class _Usage(Request, frozen=True, kw_only=True):
    """Tokens by their kind, and money."""

    input: Annotated[int, option("int", "tokens that the model read", most=COUNTED)] = 0
    output: Annotated[int, option("int", "tokens that the model wrote", most=COUNTED)] = 0
    cache_write: Annotated[int, option("int", "tokens written to a cache", most=COUNTED)] = 0
    cache_read: Annotated[int, option("int", "tokens read from a cache", most=COUNTED)] = 0
    cost: Annotated[str, option("text", "the money, such as 0.25")] = "0"


class BudgetCount(_Usage, frozen=True, kw_only=True):
    """Add what an agent has spent."""

    transcript: Annotated[
        str | None, option("path", "count a transcript of Claude Code or Codex from its last place")
    ] = None
    task: Annotated[str | None, option("name", "the task that it was spent on")] = None
    given: Given = ()


class BudgetUncount(_Usage, frozen=True, kw_only=True):
    """Take back a count."""

    thing: Annotated[str, option("name", "agent/NAME or task/ID", positional=True)]
    reason: Annotated[str, option("text", "the reason, shown to others")] = ""
    given: Given = ()


class BudgetShow(Request, frozen=True, kw_only=True):
    """The counts and the limits."""

    thing: Annotated[
        str | None, option("name", "only this: fleet, agent/NAME or task/ID", positional=True)
    ] = None


NOUN = Noun(
    name="budget",
    help="what agents spend in tokens and money, and limits for it",
    calls="interlock.nouns.budgets.calls:BudgetCalls",
    keys=(
        KeyKind(prefix=keys.BUDGETS, read="interlock.nouns.budgets.service:decode_limit"),
        KeyKind(prefix=keys.SPENT, read="interlock.nouns.budgets.service:decode_spent"),
        KeyKind(
            prefix=keys.TRANSCRIPTS,
            read="interlock.nouns.budgets.service:decode_place",
            bulk=True,
        ),
    ),
    health=Part(39, "interlock.nouns.budgets.service:health"),
    housekeeping=Part(33, "interlock.nouns.budgets.service:BudgetHousekeepingPart"),
    gauges="interlock.nouns.budgets.metrics:budget_gauges",
    events=True,
    texts=("interlock.nouns.budgets.text",),
    operations=(
        Operation(
            name="budget set",
            help="limit what the fleet, an agent or a task may spend before claims end",
            request=BudgetSetRequest,
            outcomes=get_args(core.SetOutcome),
            needs="agent",
            call="budgets.set",
            examples=(
                "interlock budget set agent/ada --tokens 2000000 --agent lead",
                "interlock budget set fleet --cost 50 --agent lead",
            ),
        ),
        Operation(
            name="budget drop",
            help="delete a limit; the counts stay",
            request=BudgetDropRequest,
            outcomes=get_args(core.DropBudgetOutcome),
            needs="agent",
            call="budgets.drop",
            takes=True,
            examples=("interlock budget drop agent/ada --agent lead",),
        ),
        Operation(
            name="budget count",
            help="add what you have spent: tokens, money, or a transcript",
            request=BudgetCount,
            outcomes=get_args(core.CountOutcome),
            needs="agent",
            call="budgets.count",
            takes=True,
            examples=("interlock budget count --transcript session.jsonl --task t1 --agent ada",),
        ),
        Operation(
            name="budget uncount",
            help="take back a false count of an agent or a task: all, or so much",
            request=BudgetUncount,
            outcomes=get_args(core.UncountOutcome),
            needs="agent",
            call="budgets.uncount",
            takes=True,
            examples=("interlock budget uncount agent/ada --reason 'it was false' --agent lead",),
        ),
        Operation(
            name="budget show",
            help="show how much each has spent, and the limits",
            request=BudgetShow,
            outcomes=(core.BudgetList,),
            needs="store",
            reads=True,
            call="budgets.show",
        ),
    ),
)
