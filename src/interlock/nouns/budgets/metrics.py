"""Budgets as numbers for monitors: what agents have spent, and how much of each limit is used.

Tasks have no series of their own, since their number has no bound: of their limits the one that is
used most stands for all, as ``task/*``.
"""

from __future__ import annotations

from collections.abc import Iterable

from interlock.core import keys
from interlock.nouns.budgets.budget import FLEET, SpentView
from interlock.nouns.budgets.service import show
from interlock.runtime.metrics import LABELLED, OTHERS, Metric, gauge, gauges
from interlock.runtime.monitoring import Scrape
from interlock.steps import Op

_TASKS = "task/*"
_AGENT = "agent/"


def budget_gauges(scrape: Scrape) -> Op[list[Metric]]:
    """Tokens and money of each agent, the share of each limit, and how many are used up."""
    yield from scrape.read(keys.SPENT)  # says so if there is more than is counted
    listed: tuple[SpentView, ...] = (yield from show("")).budgets
    tokens, money = dict[str, float](), dict[str, float]()
    for each in listed:
        if each.thing.startswith(_AGENT):
            name = _bounded(each.thing.removeprefix(_AGENT), tokens)
            tokens[name] = tokens.get(name, 0) + each.tokens
            money[name] = round(money.get(name, 0) + each.cost, 6)
    used = _used(listed)
    says = "Share of a limit that is used, of tokens or money, whichever is more."
    return [
        *gauges("interlock_spent_tokens", "Tokens that an agent has spent.", "agent", tokens),
        *gauges("interlock_spent_cost", "Money that an agent has spent.", "agent", money),
        *gauges("interlock_budget_used_ratio", says, "budget", used),
        gauge(
            "interlock_budgets_used_up",
            "Limits that keep an agent or a task from being worked on.",
            sum(each.over for each in listed),
        ),
    ]


def _used(listed: Iterable[SpentView]) -> dict[str, float]:
    """The share of each limit; things beyond a bound share the highest."""
    found: dict[str, float] = {}
    for each in listed:
        if each.limit_tokens is None and each.limit_cost is None:
            continue
        name = each.thing if each.thing == FLEET or each.thing.startswith(_AGENT) else _TASKS
        name = _bounded(name, found)
        found[name] = max(found.get(name, 0.0), _share(each))
    return found


def _share(each: SpentView) -> float:
    """The share that is used; a limit of nothing is used up."""
    pairs = ((each.tokens, each.limit_tokens), (each.cost, each.limit_cost))
    return max(
        round(spent / limit, 4) if limit else 1.0 for spent, limit in pairs if limit is not None
    )


def _bounded(name: str, known: dict[str, float]) -> str:
    return name if name in known or len(known) < LABELLED else OTHERS
