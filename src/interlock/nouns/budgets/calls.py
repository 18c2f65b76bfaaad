"""The calls of budgets: limits, usage, and whether an agent may go on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from interlock.core import validate
from interlock.errors import BadInput
from interlock.nouns.budgets import budget as core
from interlock.nouns.budgets.budget import BudgetLimit, TokenUsage
from interlock.runtime.calls import Calls, D, call
from interlock.runtime.given import Given
from interlock.steps import Op

if TYPE_CHECKING:
    from interlock.runtime.identity import Identity

_KINDS = ("agent/", "task/")


class BudgetCalls(Calls[D]):
    """Budgets of the fleet, of agents and of tasks."""

    @call
    def set(
        self,
        thing: str,
        *,
        tokens: int | None = None,
        cost: float | str | None = None,
        reason: str = "",
        given: Given = (),
    ) -> Op[core.SetOutcome]:
        """Limit what a thing may spend: ``fleet``, ``agent/NAME``, ``agent/*`` or ``task/ID``.

        Above the limit, claims of tasks are refused with the figure; a claim that runs goes on.
        """
        from interlock.nouns.budgets import service

        identity = self._identity(given)
        if tokens is None and cost is None:
            raise BadInput("how much? give tokens (--tokens 2000000), a cost (--cost 20), or both")
        limit = BudgetLimit(
            tokens=None
            if tokens is None
            else validate.integer(tokens, "tokens", 0, core.MOST_TOKENS),
            cost=None if cost is None else _cost(cost),
            by=identity.actor.agent,
            at=self.context.runner.clock.wall(),
            reason=validate.text(reason, "reason", validate.REASON_LIMIT),
        )
        name = budget_thing(thing)
        return self._fenced(
            identity, service.set_limit(self.context.runner, identity.actor, name, limit)
        )

    @call
    def drop(self, thing: str, *, given: Given = ()) -> Op[core.DropBudgetOutcome]:
        """Delete a limit; the counts stay."""
        from interlock.nouns.budgets import service

        identity, name = self._identity(given), budget_thing(thing)
        return self._fenced(identity, service.drop_limit(self.context.runner, identity.actor, name))

    @call
    def count(
        self,
        *,
        input: int = 0,  # noqa: A002 - the words of the field
        output: int = 0,
        cache_write: int = 0,
        cache_read: int = 0,
        cost: float | str = 0.0,
        transcript: str | os.PathLike[str] | None = None,
        task: str | None = None,
        agent: str | None = None,
        given: Given = (),
    ) -> Op[core.CountOutcome]:
        """Add what an agent has spent, the caller if left out: tokens, or a ``transcript``.

        A transcript of Claude Code or Codex is read from where the last call stopped, so call it as
        often as you like.  ``task`` is the task that it was spent on.
        """
        from interlock.nouns.budgets import service

        identity = self._identity(given)
        name = validate.agent_name(agent) if agent else identity.actor.agent
        about = validate.task_id(task) if task else ""
        added = _usage(input, output, cache_write, cache_read, cost)
        runner, actor = self.context.runner, identity.actor
        if transcript is None:
            counting = service.count(runner, actor, name, about, added)
        elif added != core.NO_USAGE:
            raise BadInput("a transcript has its own numbers; give either that, or tokens")
        else:
            path = os.path.abspath(transcript)
            counting = service.count_transcript(runner, actor, name, about, path)
        return self._counted(identity, counting)

    def _counted(self, identity: Identity, op: Op[core.CountOutcome]) -> Op[core.CountOutcome]:
        return self._fenced(identity, op)

    @call
    def uncount(
        self,
        thing: str,
        *,
        input: int = 0,  # noqa: A002 - the words of the field
        output: int = 0,
        cache_write: int = 0,
        cache_read: int = 0,
        cost: float | str = 0.0,
        reason: str = "",
        given: Given = (),
    ) -> Op[core.UncountOutcome]:
        """Take back a count of ``agent/NAME`` or ``task/ID``: this much, or all of it.

        For a report that was false.  The record keeps the report, and who took it back.
        """
        from interlock.nouns.budgets import service

        identity, name = self._identity(given), budget_thing(thing)
        if name in (core.FLEET, core.EVERY_AGENT):
            raise BadInput(f"{name} has no count of its own; name the agent: agent/NAME")
        wrong = _usage(input, output, cache_write, cache_read, cost)
        why = validate.text(reason, "reason", validate.REASON_LIMIT)
        return self._fenced(
            identity, service.uncount(self.context.runner, identity.actor, name, wrong, why)
        )

    @call
    def show(self, thing: str | None = None) -> Op[core.BudgetList]:
        """What the fleet, its agents and its tasks have spent, and their limits."""
        from interlock.nouns.budgets import service

        return service.show("" if thing is None else budget_thing(thing))

    @call
    def exceeded(self, agent: str | None = None, *, task: str | None = None) -> Op[str]:
        """Which limit keeps an agent from more work, with the figure; empty if none does."""
        from interlock.nouns.budgets import service

        name = validate.agent_name(agent) if agent else (self.context.agent or "")
        return service.exceeded(name, validate.task_id(task) if task else "")


def budget_thing(text: str) -> str:
    """A thing that may have a budget."""
    if text in (core.FLEET, core.EVERY_AGENT):
        return text
    name = validate.name(text, "thing")
    kind = next((each for each in _KINDS if name.startswith(each)), "")
    if not kind:
        raise BadInput(f"{name!r:.60} has no budget; it is 'fleet', agent/NAME, agent/* or task/ID")
    rest = name.removeprefix(kind)
    return kind + (validate.agent_name(rest) if kind == "agent/" else validate.task_id(rest))


def _usage(
    input: int,  # noqa: A002 - the words of the field
    output: int,
    cache_write: int,
    cache_read: int,
    cost: float | str,
) -> TokenUsage:
    """Usage that a caller reports, within what a session can spend."""
    most = core.MOST_COUNTED
    money = _cost(cost)
    if money > core.MOST_COUNTED_COST:
        raise BadInput(f"one report has a cost of at most {core.MOST_COUNTED_COST:,.0f}")
    return TokenUsage(
        input=validate.integer(input, "input", 0, most),
        output=validate.integer(output, "output", 0, most),
        cache_write=validate.integer(cache_write, "cache_write", 0, most),
        cache_read=validate.integer(cache_read, "cache_read", 0, most),
        cost=money,
    )


def _cost(text: float | str) -> float:
    try:
        found = float(text)
    except (TypeError, ValueError):
        found = -1.0
    if isinstance(text, bool) or not 0 <= found < 1e12:  # noqa: PLR2004
        raise BadInput(f"the cost is {text!r:.40}; give a number from 0 on, such as 12.50")
    return round(found, 6)
