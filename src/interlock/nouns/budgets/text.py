"""The outcomes of budgets in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.runtime.text import ago, joined, table

if TYPE_CHECKING:
    from interlock.nouns.budgets import budget as core
    from interlock.runtime.text import Paint, Text


def _set(outcome: core.BudgetSet, paint: Paint) -> str:
    return f"{paint('green', 'set')} the budget of {outcome.thing}: {_limit(outcome)}"


def _limit(outcome: core.BudgetSet) -> str:
    tokens = [] if outcome.tokens is None else [f"{outcome.tokens:,} tokens"]
    return joined([*tokens, *([] if outcome.cost is None else [f"cost {outcome.cost:,.2f}"])])


def _dropped(outcome: core.BudgetDropped, paint: Paint) -> str:
    return f"{paint('green', 'dropped')} the budget of {outcome.thing}"


def _unknown(outcome: core.UnknownBudget, paint: Paint) -> str:
    name = joined(outcome.unknown)
    return f"{paint('yellow', 'unknown')} {name}: it has no budget; see 'interlock budget show'"


def _counted(outcome: core.SpendingCounted, paint: Paint) -> str:
    about = f" for task {outcome.task}" if outcome.task else ""
    cost = f", cost {outcome.added_cost:,.2f}" if outcome.added_cost else ""
    head = f"{paint('green', 'counted')} {outcome.added:,} tokens{cost} of {outcome.agent}{about}"
    return f"{head}; {outcome.total:,} in all"


def _uncounted(outcome: core.SpendingUncounted, paint: Paint) -> str:
    cost = f", cost {outcome.cost:,.2f}" if outcome.cost else ""
    head = f"{paint('green', 'uncounted')} {outcome.tokens:,} tokens{cost} of {outcome.thing}"
    return f"{head}; {outcome.total:,} are left"


def _list(outcome: core.BudgetList, paint: Paint) -> str:
    if not outcome.budgets:
        return "nothing was spent, and there is no such budget; set one: interlock budget set THING"
    titles = ("THING", "TOKENS", "OF", "COST", "OF", "COUNTED", "NOTE")
    rows = [
        (
            each.thing,
            f"{each.tokens:,}",
            "-" if each.limit_tokens is None else f"{each.limit_tokens:,}",
            f"{each.cost:,.2f}",
            "-" if each.limit_cost is None else f"{each.limit_cost:,.2f}",
            ago(each.at) or "never",
            paint("red", "used up") if each.over else "",
        )
        for each in outcome.budgets
    ]
    return table(titles, rows, paint)


TEXTS: dict[str, Text] = {
    "BudgetSet": _set,
    "BudgetDropped": _dropped,
    "UnknownBudget": _unknown,
    "SpendingCounted": _counted,
    "SpendingUncounted": _uncounted,
    "BudgetList": _list,
}
"""The text of each outcome, by the name of its class."""
