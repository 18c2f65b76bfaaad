"""Budgets: what agents spend, counted once, and the limits that refuse further work.

Usage is counted for the agent, and for the task that it works on.  It comes from three places: the
transcript of a coding agent, which is read from the byte where the last reader stopped; a report of
the agent itself; and a program that knows the price.  The commit that adds the usage of a
transcript also moves its offset, so several readers of one file, of any agents, count it once, and
a reader that was killed counts nothing twice.

A limit is for an agent (``agent/ada``), a task (``task/t1``), every agent (``agent/*``) or the
``fleet``, in tokens, in money, or both.  That of ``agent/ada`` also binds ``ada/tests``, an agent
below it.  Above it, claims of tasks and edits are refused with the figure; a claim that runs goes
on.  Every client reads a mark once and each minute after that (``meta/budgets``), and pays for a
check only if there is a limit.

All tokens count: input, output, and those written to or read from a cache.

Nothing proves a report, so one report is bounded (``MOST_COUNTED``), and an operator can take a
false one back (``budget uncount``): all of what a thing has spent, or a part of it.
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from msgspec import Struct, field

from interlock.core import item_outcomes, outcomes
from interlock.core.decision import Success
from interlock.core.outcomes import Listing, always

FLEET, EVERY_AGENT = "fleet", "agent/*"
MOST_TOKENS = 10**15
MOST_COUNTED, MOST_COUNTED_COST = 10**9, 10_000.0
"""The most tokens of a kind, and the most money, of one report: more than any session spends."""


class TokenUsage(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Tokens by their kind, and what they cost, as far as it is known."""

    input: int = 0
    output: int = 0
    cache_write: int = 0
    cache_read: int = 0
    cost: float = 0.0

    @property
    def tokens(self) -> int:
        """All tokens."""
        return self.input + self.output + self.cache_write + self.cache_read

    def plus(self, other: TokenUsage) -> TokenUsage:
        """Both together."""
        return TokenUsage(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_write=self.cache_write + other.cache_write,
            cache_read=self.cache_read + other.cache_read,
            cost=round(self.cost + other.cost, 6),
        )

    def beyond(self, before: TokenUsage) -> TokenUsage:
        """What is more than this, of each kind."""
        return TokenUsage(
            input=max(self.input - before.input, 0),
            output=max(self.output - before.output, 0),
            cache_write=max(self.cache_write - before.cache_write, 0),
            cache_read=max(self.cache_read - before.cache_read, 0),
            cost=max(round(self.cost - before.cost, 6), 0.0),
        )


NO_USAGE = TokenUsage()


class SpentTotal(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What an agent, or a task, has spent; ``at`` is when that was last written."""

    usage: TokenUsage = NO_USAGE
    at: float = 0.0


class TranscriptPlace(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How far a transcript is counted.

    ``last`` are the last messages with their usage, since a transcript repeats a message while it
    grows; ``total`` is the last total of a transcript that has totals.  ``at`` is when it was
    counted.
    """

    offset: int = 0
    last: tuple[tuple[str, TokenUsage], ...] = ()
    total: TokenUsage = NO_USAGE
    at: float = 0.0


class BudgetLimit(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A limit, in tokens, money or both."""

    tokens: int | None = None
    cost: float | None = None
    by: str = ""
    at: float = 0.0
    reason: str = ""


class SpentView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a thing has spent, and its limit; ``over`` if it may spend no more."""

    thing: str
    tokens: int = 0
    input: int = 0
    output: int = 0
    cache_write: int = 0
    cache_read: int = 0
    cost: float = 0.0
    limit_tokens: int | None = None
    limit_cost: float | None = None
    over: bool = False
    at: float | None = None
    reason: str = ""


class BudgetList(Listing[SpentView], frozen=True, kw_only=True):
    """The fleet, its agents and its tasks: what each has spent, and its limit."""

    listed: ClassVar[str] = "budgets"

    budgets: tuple[SpentView, ...]


class BudgetSet(Success, frozen=True, kw_only=True, tag="set"):
    """The limit is in force."""

    thing: str
    tokens: int | None = None
    cost: float | None = None


class BudgetDropped(item_outcomes.Dropped, frozen=True, kw_only=True, tag="dropped"):
    """There is no such limit any more; the counts stay."""

    thing: str


class UnknownBudget(outcomes.Unknown, frozen=True, kw_only=True, tag="unknown"):
    """There is no limit for this thing."""

    what: Literal["budget"] = always("budget")


class SpendingCounted(Success, frozen=True, kw_only=True, tag="counted"):
    """This was added to what the agent has spent; ``total`` is all of it."""

    agent: str
    added: int
    added_cost: float = 0.0
    task: str = ""
    total: int = 0
    total_cost: float = 0.0
    lines: int = field(default=0)


class SpendingUncounted(Success, frozen=True, kw_only=True, tag="uncounted"):
    """So much is not counted for the thing any more; ``total`` is what is left."""

    thing: str
    tokens: int
    cost: float = 0.0
    total: int = 0
    total_cost: float = 0.0


SetOutcome: TypeAlias = BudgetSet | outcomes.GivenFenced
DropBudgetOutcome: TypeAlias = BudgetDropped | UnknownBudget | outcomes.GivenFenced
CountOutcome: TypeAlias = SpendingCounted | outcomes.GivenFenced
UncountOutcome: TypeAlias = SpendingUncounted | outcomes.GivenFenced


def over(limit: BudgetLimit, spent: TokenUsage) -> str:
    """The figure by which a limit is reached; empty if it is not."""
    if limit.tokens is not None and spent.tokens >= limit.tokens:
        return f"{spent.tokens:,} of {limit.tokens:,} tokens are spent"
    if limit.cost is not None and spent.cost >= limit.cost:
        return f"{spent.cost:,.2f} of {limit.cost:,.2f} are spent"
    return ""
