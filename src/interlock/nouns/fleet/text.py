"""The texts of outcomes about the whole store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from interlock.runtime.text import ago, listed, since

if TYPE_CHECKING:
    from interlock.nouns.fleet.doctor import Diagnosis
    from interlock.nouns.fleet.noun import Created, StoreExists
    from interlock.runtime.health import Health
    from interlock.runtime.housekeeping import Maintained
    from interlock.runtime.text import Paint, Text
    from interlock.runtime.why import Need, Queued, Why
    from interlock.testing.selftest import Raced


def why(outcome: Why, paint: Paint) -> str:
    """What blocks the thing, and what clears it."""
    if not outcome.blocked:
        word = paint("green", outcome.state or "not blocked")
        ended = [f"ended        {each}" for each in outcome.ended]
        first = f"{outcome.thing} is {word}: {outcome.because}; {outcome.clear}"
        return "\n".join([first, *ended])
    facts = [
        ("thing", f"{outcome.thing} is {paint('yellow', outcome.state or 'blocked')}"),
        ("because", outcome.because),
        *_needs(outcome.needs),
        ("since", ago(outcome.since)),
        ("meanwhile", "; ".join(outcome.meanwhile)),
        ("waiting", ", ".join(map(_queued, outcome.waiters))),
        *[("ended", each) for each in outcome.ended],
        ("clears when", outcome.clear),
    ]
    return listed(facts)


def health(outcome: Health, paint: Paint) -> str:
    """A line for each problem."""
    lines = [
        f"{paint('red', each.kind)} {each.says}" + (f"; {each.remedy}" if each.remedy else "")
        for each in outcome.problems
    ]
    return "\n".join(lines) or paint("green", "healthy")


def maintained(outcome: Maintained, _paint: Paint) -> str:
    """What a pass of ``maintain`` did."""
    done = f"reclaimed {outcome.reclaimed}, sealed {outcome.sealed}, left {outcome.left}"
    if outcome.moved:
        done += f", advanced {outcome.moved} task{'' if outcome.moved == 1 else 's'}"
    if outcome.forgotten:
        done += f", deleted {outcome.forgotten} message{'' if outcome.forgotten == 1 else 's'}"
    if outcome.forgotten_tasks:
        tasks = outcome.forgotten_tasks
        done += f", deleted {tasks} task{'' if tasks == 1 else 's'}"
    return f"{done}\n{outcome.finding}" if outcome.finding else done


def created(outcome: Created, paint: Paint) -> str:
    """Where the new store is."""
    return f"{paint('green', 'created')} {outcome.store}"


def exists(outcome: StoreExists, paint: Paint) -> str:
    """Where the existing store is."""
    return f"{paint('dim', 'already there')} {outcome.store}"


def diagnosis(outcome: Diagnosis, paint: Paint) -> str:
    """A line for each check."""
    colours = {"ok": "green", "warn": "yellow", "bad": "red"}
    return "\n".join(
        f"{paint(colours[check.verdict], f'{check.verdict:<4}')} {check.name}: {check.fact}"
        + (f"; {check.remedy}" if check.remedy else "")
        for check in outcome.checks
    )


def _needs(needs: Sequence[Need]) -> Iterator[tuple[str, str]]:
    """The needs as a tree; a plain chain is in ``because`` already."""
    chain = len({need.depth for need in needs}) == len(needs)
    for number, need in enumerate(() if chain else needs):
        below = "  " * (need.depth - 1)
        yield ("" if number else "needs"), f"{below}{need.task} ({need.state}): {need.says}"


def _queued(waiter: Queued) -> str:
    slots = "" if waiter.weight == 1 else f" ({waiter.weight})"
    return f"{waiter.agent}{slots} for {since(waiter.since)}"


def raced(outcome: Raced, paint: Paint) -> str:
    """How many processes won a task, and whether that is right."""
    verdict = paint("red", "bad") + ": a task had several winners, or none"
    if outcome.ok:
        verdict = paint("green", "ok") + ": each task had one winner, and the others got its name"
    facts = [
        ("tasks", f"{outcome.tasks}, for each of which {outcome.processes} processes raced"),
        ("winners", str(outcome.winners)),
        ("doubles", str(outcome.doubles)),
        ("without", str(outcome.nobody or "")),
        ("misled", str(outcome.misled or "")),
        ("completed", str(outcome.completed)),
        ("time", f"{outcome.seconds:.1f} s"),
        ("kept as", f"{outcome.where}/..., all complete"),
        ("verdict", verdict),
    ]
    return listed(facts)


TEXTS: dict[str, Text] = {
    "Why": why,
    "Health": health,
    "Maintained": maintained,
    "Created": created,
    "StoreExists": exists,
    "Diagnosis": diagnosis,
    "Raced": raced,
}
"""The text of each outcome, by the name of its class."""
