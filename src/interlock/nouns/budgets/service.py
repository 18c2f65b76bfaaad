"""Budgets on a store: limits, what is counted, and the check before a claim."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.core.decision import Decision
from interlock.core.validate import quote
from interlock.errors import BadInput, NotAllowed
from interlock.nouns.budgets import budget as core
from interlock.nouns.budgets import rules, transcripts
from interlock.nouns.budgets.budget import BudgetLimit, SpentTotal, TokenUsage, TranscriptPlace
from interlock.runtime.attempt import DecideOp, ReadOp
from interlock.runtime.health import HealthCheck, Problem
from interlock.runtime.identity import Actor
from interlock.runtime.reads import every, looked_up, readable
from interlock.runtime.runner import Runner
from interlock.steps import InThread, Op, Read
from interlock.store import Item, Range

_LIMIT = codec.Decoder(BudgetLimit)
_SPENT = codec.Decoder(SpentTotal)
_PLACE = codec.Decoder(TranscriptPlace)
decode_limit, decode_spent, decode_place = _LIMIT.read, _SPENT.read, _PLACE.read


def spent_total(item: Item | None) -> SpentTotal:
    """What a thing has spent; nothing if it was never counted."""
    return SpentTotal() if item is None else decode_spent(item)


def set_limit(runner: Runner, actor: Actor, thing: str, limit: BudgetLimit) -> Op[core.SetOutcome]:
    """Set the limit of a thing."""

    def deciding() -> DecideOp[core.SetOutcome]:
        yield (keys.budget(thing), keys.BUDGETS_MARK)
        return rules.set_limit(thing, limit)

    outcome = (yield from runner.change(deciding, actor)).outcome
    runner.budgeted = True
    return outcome


def drop_limit(runner: Runner, actor: Actor, thing: str) -> Op[core.DropBudgetOutcome]:
    """Delete the limit of a thing."""

    def deciding() -> DecideOp[core.DropBudgetOutcome]:
        items = (yield (keys.budget(thing), keys.BUDGETS_MARK)).items
        page = Range(keys.BUDGETS, limit=2)
        last = len((yield (page,)).ranges[page]) == 1
        limit = _LIMIT.read_if_present(items[keys.budget(thing)])
        return rules.drop_limit(thing, limit, actor.agent, last=last)

    return (yield from runner.change(deciding, actor)).outcome


def count(
    runner: Runner, actor: Actor, agent: str, task: str, added: TokenUsage
) -> Op[core.CountOutcome]:
    """Add usage that a caller reports."""
    deciding = partial(_counting, runner, agent, task, added)
    return (yield from runner.change(deciding, actor)).outcome


def _counting(
    runner: Runner, agent: str, task: str, added: TokenUsage
) -> DecideOp[core.CountOutcome]:
    before = yield from _before(agent, task)
    return rules.count(agent, task, added, before, now=runner.clock.wall(), place=None)


def _before(agent: str, task: str) -> ReadOp[tuple[SpentTotal, SpentTotal]]:
    wanted = [keys.spent(f"agent/{agent}"), *([keys.spent(f"task/{task}")] if task else [])]
    items = (yield tuple(wanted)).items
    its = spent_total(items[wanted[1]]) if task else SpentTotal()
    return spent_total(items[wanted[0]]), its


def count_transcript(
    runner: Runner, actor: Actor, agent: str, task: str, path: str
) -> Op[core.CountOutcome]:
    """Count what a transcript has beyond its counted part; several readers count it once."""
    tokens, cost, lines = 0, 0.0, 0
    while True:
        portion = yield from _read_portion(agent, path)
        outcome = yield from _count_portion(runner, actor, agent, task, portion)
        if outcome is None:  # another reader was quicker: begin where that stopped
            continue
        if not isinstance(outcome, core.SpendingCounted):
            return outcome
        tokens, cost = tokens + outcome.added, cost + outcome.added_cost
        lines += portion.lines
        if not portion.lines:
            return replace(outcome, added=tokens, added_cost=round(cost, 6), lines=lines)


class Portion(Struct, frozen=True, kw_only=True):
    """A part of a transcript: its usage, and the places before and after it."""

    key: str
    before: TranscriptPlace
    after: TranscriptPlace
    added: TokenUsage
    lines: int


def _read_portion(agent: str, path: str) -> Op[Portion]:
    key = keys.transcript(agent, path)
    before = _PLACE.read_if_present((yield Read(key))[key]) or TranscriptPlace()
    try:
        lines, replaced = yield InThread(partial(transcripts.read_lines, path, before.offset))
    except OSError as error:
        said = (error.strerror or "").lower()
        raise BadInput(f"{path!r:.200} cannot be read ({said}); name a transcript") from None
    begun = TranscriptPlace(last=before.last) if replaced else before
    added, after = transcripts.counted(lines, begun)
    return Portion(key=key, before=before, after=after, added=added, lines=len(lines))


def _count_portion(
    runner: Runner, actor: Actor, agent: str, task: str, portion: Portion
) -> Op[core.CountOutcome | None]:
    def deciding() -> DecideOp[core.CountOutcome | None]:
        key = portion.key
        stored = _PLACE.read_if_present((yield (key,)).items[key]) or TranscriptPlace()
        before = yield from _before(agent, task)
        if stored != portion.before:
            return Decision(outcome=None)
        moved = (key, portion.after) if portion.after != portion.before else None
        now = runner.clock.wall()
        return rules.count(agent, task, portion.added, before, now=now, place=moved)

    return (yield from runner.change(deciding, actor)).outcome


# Reading.


def show(wanted: str) -> Op[core.BudgetList]:
    """The fleet, its agents and tasks with usage or a limit; or those of one thing."""
    limits = {
        keys.budget_of(item.key): each
        for item in (yield from every(keys.BUDGETS))
        if (each := readable(decode_limit, item)) is not None
    }
    spent = yield from _all_spent()
    spent[core.FLEET] = _fleet(spent)
    names = sorted(
        {*limits, *spent} - {core.EVERY_AGENT}, key=lambda name: (name != core.FLEET, name)
    )
    found = []
    for name in names:
        limit = limits.get(name)
        if limit is None and name.startswith("agent/"):
            limit = limits.get(core.EVERY_AGENT)
        if wanted in ("", name):
            found.append(_view(name, spent.get(name, SpentTotal()), limit or BudgetLimit()))
    return core.BudgetList(budgets=tuple(found))


def _all_spent() -> Op[dict[str, SpentTotal]]:
    items = yield from every(keys.SPENT)
    found = {keys.spent_of(item.key): readable(decode_spent, item) for item in items}
    return {name: total for name, total in found.items() if total is not None}


def _fleet(spent: Mapping[str, SpentTotal]) -> SpentTotal:
    """All agents together."""
    own = [each for name, each in spent.items() if name.startswith("agent/")]
    total = core.NO_USAGE
    for each in own:
        total = total.plus(each.usage)
    return SpentTotal(usage=total, at=max((each.at for each in own), default=0.0))


def _view(thing: str, spent: SpentTotal, limit: BudgetLimit) -> core.SpentView:
    usage = spent.usage
    return core.SpentView(
        thing=thing,
        tokens=usage.tokens,
        input=usage.input,
        output=usage.output,
        cache_write=usage.cache_write,
        cache_read=usage.cache_read,
        cost=usage.cost,
        limit_tokens=limit.tokens,
        limit_cost=limit.cost,
        over=bool(core.over(limit, usage)),
        at=spent.at or None,
        reason=limit.reason,
    )


def exceeded(agent: str, task: str = "") -> Op[str]:
    """Which limit keeps an agent from more work, with the figure; empty if none does."""
    own, its = f"agent/{agent}", f"task/{task}"
    things = [core.FLEET, core.EVERY_AGENT, own, *([its] if task else [])]
    wanted = [*map(keys.budget, things), keys.spent(own), *([keys.spent(its)] if task else [])]
    items = yield from looked_up(wanted)
    limits = {thing: _LIMIT.read_if_present(items[keys.budget(thing)]) for thing in things}
    spent = {own: spent_total(items[keys.spent(own)]).usage}
    spent[core.EVERY_AGENT] = core.NO_USAGE if limits[own] else spent[own]  # its own limit counts
    if task:
        spent[its] = spent_total(items[keys.spent(its)]).usage
    if limits[core.FLEET] is not None:
        spent[core.FLEET] = _fleet((yield from _all_spent())).usage
    for thing in things:
        limit = limits[thing]
        if limit is not None and (figure := core.over(limit, spent.get(thing, core.NO_USAGE))):
            return (
                f"the budget of {own if thing == core.EVERY_AGENT else thing} is used up: {figure}"
            )
    return ""


def require_budget(agent: str, task: str = "") -> Op[None]:
    """Refuse work of an agent, or at a task, whose budget is used up."""
    if said := (yield from exceeded(agent, task)):
        thing = said.removeprefix("the budget of ").partition(" ")[0]
        raise NotAllowed(
            f"{said}; raise it: interlock budget set {quote(thing)} --tokens N, or end for now"
        )


def health(checkup: HealthCheck) -> Op[list[Problem]]:
    """Budgets that are used up."""
    if not (yield from checkup.read(keys.BUDGETS)):
        return []
    listed = yield from show("")
    return [
        Problem(
            kind="full",
            says=f"budget/{each.thing} is used up: {each.tokens:,} tokens, cost {each.cost:,.2f}",
            remedy=f"raise it: interlock budget set {quote(each.thing)} --tokens N",
            thing=f"budget/{each.thing}",
            agent=each.thing.removeprefix("agent/") if each.thing.startswith("agent/") else "",
            since=each.at,
        )
        for each in listed
        if each.over
    ]
