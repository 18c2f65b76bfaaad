"""Budgets on a store: limits, what is counted, and the check before a claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.core.decision import Decision
from interlock.core.safe_text import foreign
from interlock.core.validate import quote
from interlock.errors import BadInput, NotAllowed
from interlock.nouns.budgets import budget as core
from interlock.nouns.budgets import rules, transcripts
from interlock.nouns.budgets.budget import BudgetLimit, SpentTotal, TokenUsage, TranscriptPlace
from interlock.nouns.budgets.transcripts import TranscriptLines
from interlock.runtime.attempt import DecideOp, ReadOp, Unchecked
from interlock.runtime.health import HealthCheck, Problem
from interlock.runtime.housekeeping import HousekeepingPart
from interlock.runtime.identity import Actor
from interlock.runtime.reads import KEYS_AT_ONCE, every, looked_up, readable
from interlock.runtime.runner import Runner
from interlock.steps import InThread, Op, Read
from interlock.store import Item, Range

T = TypeVar("T")
KEPT_FOR = 90 * 86400.0
"""Seconds after which the place in a transcript that does not grow any more is deleted."""
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


def uncount(
    runner: Runner, actor: Actor, thing: str, wrong: TokenUsage, reason: str
) -> Op[core.UncountOutcome]:
    """Take usage back that was counted for a thing."""

    def deciding() -> DecideOp[core.UncountOutcome]:
        key = keys.spent(thing)
        before = spent_total((yield (key,)).items[key])
        return rules.uncount(thing, wrong, before, actor.agent, reason)

    return (yield from runner.change(deciding, actor)).outcome


def _before(agent: str, task: str) -> ReadOp[tuple[SpentTotal, SpentTotal]]:
    wanted = [keys.spent(f"agent/{agent}"), *([keys.spent(f"task/{task}")] if task else [])]
    items = (yield tuple(wanted)).items
    its = spent_total(items[wanted[1]]) if task else SpentTotal()
    return spent_total(items[wanted[0]]), its


def count_transcript(
    runner: Runner, actor: Actor, agent: str, task: str, path: str, *, portions: int | None = None
) -> Op[core.CountOutcome]:
    """Count what a transcript has beyond its counted part; several readers count it once.

    With ``portions`` at most so many parts are read; the next call goes on from there.
    """
    tokens, cost, lines = 0, 0.0, 0
    first: bytes = yield from _of_file(path, partial(transcripts.first_line, path))
    key = keys.transcript(path, first)
    while True:
        portion = yield from _read_portion(key, path, empty=not first)
        outcome = yield from _count_portion(runner, actor, agent, task, portion)
        if outcome is None:  # another reader was quicker: begin where that stopped
            continue
        if not isinstance(outcome, core.SpendingCounted):
            return outcome
        tokens, cost = tokens + outcome.added, cost + outcome.added_cost
        lines += portion.lines
        portions = None if portions is None else portions - 1
        if not portion.lines or portions == 0:
            return replace(outcome, added=tokens, added_cost=round(cost, 6), lines=lines)


def skip_transcript(runner: Runner, actor: Actor, agent: str, path: str) -> Op[None]:
    """Leave out what a transcript has by now, unless a part of it was counted before."""
    first: bytes = yield from _of_file(path, partial(transcripts.first_line, path))
    key, place = keys.transcript(path, first), TranscriptPlace()
    if not first or (yield Read(key))[key] is not None:
        return
    while True:
        reading = partial(transcripts.read_lines, path, place.offset)
        found: TranscriptLines = yield from _of_file(path, reading)
        if not found.lines:
            break
        place = transcripts.counted(found.lines, place)[1]
    before = TranscriptPlace()
    portion = Portion(key=key, before=before, after=place, added=core.NO_USAGE, lines=0)
    yield from _count_portion(runner, actor, agent, "", portion)


class Portion(Struct, frozen=True, kw_only=True):
    """A part of a transcript: its usage, and the places before and after it."""

    key: str
    before: TranscriptPlace
    after: TranscriptPlace
    added: TokenUsage
    lines: int


def _read_portion(key: str, path: str, *, empty: bool) -> Op[Portion]:
    before = _PLACE.read_if_present((yield Read(key))[key]) or TranscriptPlace()
    if empty:  # its first line is not whole yet
        return Portion(key=key, before=before, after=before, added=core.NO_USAGE, lines=0)
    reading = partial(transcripts.read_lines, path, before.offset)
    found: TranscriptLines = yield from _of_file(path, reading)
    begun = TranscriptPlace(last=before.last) if found.replaced else before
    added, after = transcripts.counted(found.lines, begun)
    if not found.lines:
        after = before
    return Portion(key=key, before=before, after=after, added=added, lines=len(found.lines))


def _of_file(path: str, reading: Callable[[], T]) -> Op[T]:
    """What a function reads of a transcript."""
    try:
        found: T = yield InThread(reading)
    except OSError as error:
        said = (error.strerror or "").lower()
        raise BadInput(f"{path!r:.200} cannot be read ({said}); name a transcript") from None
    return found


def _count_portion(
    runner: Runner, actor: Actor, agent: str, task: str, portion: Portion
) -> Op[core.CountOutcome | None]:
    def deciding() -> DecideOp[core.CountOutcome | None]:
        key = portion.key
        stored = _PLACE.read_if_present((yield (key,)).items[key]) or TranscriptPlace()
        before = yield from _before(agent, task)
        if stored != portion.before:
            return Decision(outcome=None)
        now = runner.clock.wall()
        after = replace(portion.after, at=round(now, 3))
        moved = (key, after) if portion.after != portion.before else None
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
    """Which limit keeps an agent from more work, with the figure; empty if none does.

    The limits of the agents above it count, too: ``ada`` is above ``ada/tests``.
    """
    agents = [f"agent/{name}" for name in (agent, *_above(agent))]
    counted = [*agents, *([f"task/{task}"] if task else [])]
    things = [core.FLEET, *counted]
    items = yield from looked_up(
        [*map(keys.budget, (*things, core.EVERY_AGENT)), *map(keys.spent, counted)]
    )
    limits = {thing: _LIMIT.read_if_present(items[keys.budget(thing)]) for thing in things}
    every_agent = _LIMIT.read_if_present(items[keys.budget(core.EVERY_AGENT)])
    limits |= {thing: limits[thing] or every_agent for thing in agents}  # its own limit counts
    spent = {thing: spent_total(items[keys.spent(thing)]).usage for thing in counted}
    if limits[core.FLEET] is not None:
        spent[core.FLEET] = _fleet((yield from _all_spent())).usage
    for thing in things:
        limit = limits[thing]
        if limit is not None and (figure := core.over(limit, spent[thing])):
            return f"the budget of {foreign(thing)} is used up: {figure}"
    return ""


def _above(agent: str) -> list[str]:
    """The agents above one, by their names; the nearest first."""
    parts = agent.split("/")
    return ["/".join(parts[:number]) for number in range(len(parts) - 1, 0, -1)][:3]


def used_up_tasks(tasks: Sequence[str]) -> ReadOp[frozenset[str]]:
    """Those of these tasks whose own budget is used up; one read if no task has a budget."""
    page = Range(keys.budget("task/"), limit=1)
    if not (yield Unchecked((page,))).ranges[page]:
        return frozenset()
    found = set()
    for start in range(0, len(tasks), KEYS_AT_ONCE // 2):
        some = [(task, f"task/{task}") for task in tasks[start : start + KEYS_AT_ONCE // 2]]
        wanted = [key(thing) for _, thing in some for key in (keys.budget, keys.spent)]
        items = (yield Unchecked(wanted)).items
        for task, thing in some:
            limit = _LIMIT.read_if_present(items[keys.budget(thing)])
            if limit is not None and core.over(limit, spent_total(items[keys.spent(thing)]).usage):
                found.add(task)
    return frozenset(found)


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
            says=f"budget/{foreign(each.thing)} is used up: {each.tokens:,} tokens, cost"
            f" {each.cost:,.2f}",
            remedy=f"raise it: interlock budget set {quote(each.thing)} --tokens N",
            thing=f"budget/{each.thing}",
            agent=each.thing.removeprefix("agent/") if each.thing.startswith("agent/") else "",
            since=each.at,
        )
        for each in listed
        if each.over
    ]


class BudgetHousekeepingPart(HousekeepingPart):
    """The part of a pass of ``maintain`` that is about transcripts."""

    def expired(self, now: float) -> Op[list[Item]]:
        """The places in transcripts that were last counted long ago."""
        items = yield from every(keys.TRANSCRIPTS)
        places = ((item, readable(decode_place, item)) for item in items)
        return [item for item, place in places if place is not None and place.at < now - KEPT_FOR]
