"""Outcomes about the whole store, observed events and facts about a store, in words."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from interlock.core.safe_text import printable
from interlock.runtime.text import ago, joined, listed, since

if TYPE_CHECKING:
    from interlock.nouns.fleet.noun import (
        Created,
        Diagnosis,
        StoreExists,
        WorkTreeAllowed,
        WorkTreeDenied,
    )
    from interlock.nouns.fleet.store_noun import (
        CopyAborted,
        StoreBackedUp,
        StoreCopied,
        StoreRestored,
    )
    from interlock.runtime.health import Health
    from interlock.runtime.housekeeping import Maintained
    from interlock.runtime.metrics import Metric
    from interlock.runtime.observe import Counters, Observed
    from interlock.runtime.text import Paint, Text
    from interlock.runtime.why import Need, Queued, Why, WhyLink
    from interlock.testing.selftest import Raced


def _why(outcome: Why, paint: Paint) -> str:
    if not outcome.blocked:
        word = paint("green", outcome.state or "not blocked")
        more = [f"waiting      {each}" for each in outcome.meanwhile]
        more += [f"behind it    {_linked(each)}" for each in outcome.chain]
        more += [f"ended        {each}" for each in outcome.ended]
        first = f"{outcome.thing} is {word}: {outcome.because}; {outcome.clear}"
        return "\n".join([first, *more])
    facts = [
        ("thing", f"{outcome.thing} is {paint('yellow', outcome.state or 'blocked')}"),
        ("because", outcome.because),
        *_needs(outcome.needs),
        ("since", ago(outcome.since)),
        *[("behind it", _linked(each)) for each in outcome.chain],
        ("meanwhile", "; ".join(outcome.meanwhile)),
        ("waiting", joined(map(_queued, outcome.waiters))),
        *[("ended", each) for each in outcome.ended],
        ("clears when", outcome.clear),
    ]
    return listed(facts)


def _linked(link: WhyLink) -> str:
    """A thing of the chain; one that is not blocked needs no act."""
    said = f"{link.thing}: {link.because}"
    return f"{said}; to clear it: {link.clear}" if link.blocked else said


def _health(outcome: Health, paint: Paint) -> str:
    lines = [
        f"{paint('red', each.kind)} {each.says}" + (f"; {each.remedy}" if each.remedy else "")
        for each in outcome.problems
    ]
    if outcome.more:
        lines.append(f"and {outcome.more} more: interlock health")
    return "\n".join(lines) or paint("green", "healthy")


def _maintained(outcome: Maintained, _paint: Paint) -> str:
    done = f"reclaimed {outcome.reclaimed}, sealed {outcome.sealed}, left {outcome.left}"
    if outcome.moved:
        done += f", advanced {outcome.moved} task{'' if outcome.moved == 1 else 's'}"
    if outcome.forgotten:
        done += f", deleted {outcome.forgotten} message{'' if outcome.forgotten == 1 else 's'}"
    if outcome.forgotten_tasks:
        tasks = outcome.forgotten_tasks
        done += f", deleted {tasks} task{'' if tasks == 1 else 's'}"
    if outcome.looks:
        done += f", looked {outcome.looks} time{'' if outcome.looks == 1 else 's'} for guards"
    if outcome.changed:
        done += f", saw changes for {joined(map(printable, outcome.changed))}"
    return f"{done}\n{outcome.finding}" if outcome.finding else done


def _created(outcome: Created, paint: Paint) -> str:
    return f"{paint('green', 'created')} {outcome.store}"


def _allowed(outcome: WorkTreeAllowed, paint: Paint) -> str:
    if not outcome.files:
        return f"{outcome.folder} has nothing that is not allowed here"
    return "\n".join(f"{paint('green', 'allowed')} {path}" for path in outcome.files)


def _denied(outcome: WorkTreeDenied, paint: Paint) -> str:
    if not outcome.files:
        return f"nothing of {outcome.folder} is allowed here"
    return "\n".join(f"{paint('yellow', 'no longer allowed')} {path}" for path in outcome.files)


def _exists(outcome: StoreExists, paint: Paint) -> str:
    said = f"{paint('dim', 'already there')} {outcome.store}"
    return f"{said}\n{outcome.warning}" if outcome.warning else said


def _copied(outcome: StoreCopied, paint: Paint) -> str:
    if not outcome.digest:
        return f"{paint('green', 'moved')} {outcome.source} to {outcome.target}: it was complete"
    rate = (outcome.items + outcome.entries) / max(outcome.seconds, 0.001)
    facts = [
        ("moved", outcome.source),
        ("to", outcome.target),
        ("items", f"{outcome.items}, compared one by one"),
        ("entries", f"{outcome.entries} in the log; the record has the same verdict in both"),
        ("digest", outcome.digest),
        ("revision", str(outcome.revision)),
        ("time", f"{outcome.seconds:.1f} s, {rate:.0f} a second"),
        ("warning", paint("yellow", outcome.warning) if outcome.warning else ""),
    ]
    return listed(facts)


def _aborted(outcome: CopyAborted, paint: Paint) -> str:
    word = "is lost" if outcome.lost else "was not being copied there"
    word = "accepts changes again" if outcome.opened else word
    said = f"{paint('green', 'aborted')}: {outcome.source} {word}"
    if outcome.left:
        return f"{said}; {outcome.target} may have an incomplete copy ({outcome.left})"
    return f"{said}; deleted {outcome.erased} copied items of {outcome.target}"


def _backed_up(outcome: StoreBackedUp, paint: Paint) -> str:
    return (
        f"{paint('green', 'backed up')} {outcome.store} to {outcome.path}: {outcome.items} items,"
        f" {outcome.entries} entries, revision {outcome.revision}, {_size(outcome.bytes)}"
    )


def _restored(outcome: StoreRestored, paint: Paint) -> str:
    said = f"{paint('green', 'restored')} {outcome.store} from {outcome.path}, as of revision"
    lines = [f"{said} {outcome.backup}; it goes on after {outcome.revision}"]
    if outcome.kept:
        lines.append(f"the replaced store is {outcome.kept}")
    if outcome.lost:
        lines.append(f"{outcome.lost} later revisions are only there")
    return "\n".join(lines)


def _diagnosis(outcome: Diagnosis, paint: Paint) -> str:
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


def _raced(outcome: Raced, paint: Paint) -> str:
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


def _observed(outcome: Observed, paint: Paint) -> str:
    from interlock.nouns.messages.text import recipients

    if not outcome.thing:
        return f"{paint('yellow', outcome.event)} some events, up to revision {outcome.revision}"
    clock = time.strftime("%H:%M:%S", time.localtime(outcome.at))
    parts = [
        paint("dim", clock),
        outcome.agent or "-",
        paint("green", outcome.event),
        outcome.thing,
        outcome.on if outcome.on != outcome.thing else "",
        f"to {recipients(outcome.to)}" if outcome.to else "",
        f"by {outcome.by}" if outcome.by else "",
    ]
    return joined(filter(None, parts), " ")


def _counters(outcome: Counters, _paint: Paint) -> str:
    more = " (partial: there were more entries than were read)" if outcome.partial else ""
    return listed(
        [
            ("registered agents", str(outcome.registered)),
            ("pending queries", str(outcome.pending_queries)),
            ("since", f"{ago(outcome.since)}{more}"),
            ("  sent", str(outcome.sent)),
            ("  received", str(outcome.received)),
            ("  asked", str(outcome.asked)),
            ("  replied", str(outcome.replied)),
            ("  query timeouts", str(outcome.timeouts)),
            ("  left to a person", str(outcome.handed)),
            ("  rate-limit violations", str(outcome.rate_limit_violations)),
            ("  refusals", str(outcome.refusals)),
            *[(f"    of {agent}", str(number)) for agent, number in outcome.refused.items()],
            *[(f"  {_metric_name(each)}", _metric_value(each)) for each in outcome.metrics],
        ]
    )


def _metric_name(metric: Metric) -> str:
    return joined((metric.name, *metric.labels.values()), " ")


def _metric_value(metric: Metric) -> str:
    if metric.kind != "histogram" or not metric.value:
        return f"{metric.value:g}"
    return f"{metric.value:g}, p50 {metric.p50:g}, p95 {metric.p95:g}, p99 {metric.p99:g}"


def _facts(outcome: dict[str, object], paint: Paint) -> str:
    return listed((paint("dim", _named(name)), _fact(name, fact)) for name, fact in outcome.items())


def _named(name: str) -> str:
    """``wal_bytes`` is shown as a size, so that is its name."""
    words = ["size" if word == "bytes" else word for word in name.split("_")]
    return " ".join(words)


def _fact(name: str, fact: object) -> str:
    match fact:
        case int() if "bytes" in name.split("_"):
            return _size(fact)
        case list() | tuple():
            return joined(_fact(name, part) for part in fact)
        case dict():
            return joined(f"{_named(part)} {_fact(part, fact[part])}" for part in fact)
        case True | False:
            return "yes" if fact else "no"
        case _:
            return "" if fact is None else printable(str(fact))


def _size(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KB", "MB"):
        if size < 1024:  # noqa: PLR2004 - that many make one of the next unit
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GB"


TEXTS: dict[str, Text] = {
    "Why": _why,
    "Health": _health,
    "Maintained": _maintained,
    "Created": _created,
    "StoreExists": _exists,
    "WorkTreeAllowed": _allowed,
    "WorkTreeDenied": _denied,
    "Diagnosis": _diagnosis,
    "StoreCopied": _copied,
    "CopyAborted": _aborted,
    "StoreBackedUp": _backed_up,
    "StoreRestored": _restored,
    "Raced": _raced,
    "Observed": _observed,
    "Counters": _counters,
    "dict": _facts,
}
"""The text of each outcome, by the name of its class."""
