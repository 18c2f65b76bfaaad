"""Decisions about budgets: limits, and what is counted."""

from __future__ import annotations

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Event, Write
from interlock.nouns.budgets import budget as core
from interlock.nouns.budgets.budget import BudgetLimit, SpentTotal, TokenUsage, TranscriptPlace


def set_limit(thing: str, limit: BudgetLimit) -> Decision[core.SetOutcome]:
    """Set the limit of a thing; the mark shows clients that there is one."""
    return Decision(
        outcome=core.BudgetSet(thing=thing, tokens=limit.tokens, cost=limit.cost),
        verb="budget.set",
        thing=f"budget/{thing}",
        puts=(Write(keys.budget(thing), limit), Write(keys.BUDGETS_MARK, {"at": limit.at})),
        events=(Event("budget:set", limit.by),),
        reason=limit.reason,
    )


def drop_limit(
    thing: str, limit: BudgetLimit | None, agent: str, *, last: bool
) -> Decision[core.DropBudgetOutcome]:
    """Delete a limit; with the last one the mark goes, too."""
    if limit is None:
        return Decision(outcome=core.UnknownBudget(unknown=(thing,)))
    return Decision(
        outcome=core.BudgetDropped(thing=thing),
        verb="budget.drop",
        thing=f"budget/{thing}",
        deletes=(keys.budget(thing), *((keys.BUDGETS_MARK,) if last else ())),
        events=(Event("budget:dropped", agent),),
    )


def count(
    agent: str,
    task: str,
    added: TokenUsage,
    before: tuple[SpentTotal, SpentTotal],
    *,
    now: float,
    place: tuple[str, TranscriptPlace] | None,
) -> Decision[core.CountOutcome]:
    """Add usage to an agent and its task, and move the place in its transcript."""
    own, its = before
    total = own.usage.plus(added)
    outcome = core.SpendingCounted(
        agent=agent,
        task=task,
        added=added.tokens,
        added_cost=added.cost,
        total=total.tokens,
        total_cost=total.cost,
    )
    moved = () if place is None else (Write(place[0], place[1]),)
    if added == core.NO_USAGE and not moved:
        return Decision(outcome=outcome)
    puts = [Write(keys.spent(f"agent/{agent}"), replace(own, usage=total, at=now))]
    if task:
        grown = replace(its, usage=its.usage.plus(added), at=now)
        puts.append(Write(keys.spent(f"task/{task}"), grown))
    return Decision(
        outcome=outcome,
        verb="budget.count",
        thing=f"budget/agent/{agent}",
        puts=(*puts, *moved),
        events=(
            Event(
                "budget:counted",
                agent,
                details={"tokens": added.tokens, "cost": added.cost, "task": task},
            ),
        ),
    )


def uncount(
    thing: str, wrong: TokenUsage, before: SpentTotal, agent: str, reason: str
) -> Decision[core.UncountOutcome]:
    """Take usage back that was counted for a thing: all of it, if none is named."""
    left = core.NO_USAGE if wrong == core.NO_USAGE else before.usage.beyond(wrong)
    removed = before.usage.beyond(left)
    outcome = core.SpendingUncounted(
        thing=thing,
        tokens=removed.tokens,
        cost=removed.cost,
        total=left.tokens,
        total_cost=left.cost,
    )
    if removed == core.NO_USAGE:
        return Decision(outcome=outcome)
    details = {"tokens": removed.tokens, "cost": removed.cost}
    return Decision(
        outcome=outcome,
        verb="budget.uncount",
        thing=f"budget/{thing}",
        puts=(Write(keys.spent(thing), replace(before, usage=left)),),
        events=(Event("budget:uncounted", agent, details=details),),
        reason=reason,
    )
