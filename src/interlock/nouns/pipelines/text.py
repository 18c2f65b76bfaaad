"""The outcomes of pipelines in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from interlock.core.validate import command, quote
from interlock.runtime.text import ago, joined, lasting, listed, since, table

if TYPE_CHECKING:
    from interlock.nouns.pipelines import pipeline as core
    from interlock.runtime.text import Paint, Text

_COLOURS = {"running": "green", "complete": "dim", "failed": "red", "cancelled": "yellow"}


def _defined(outcome: core.PipelineDefined, paint: Paint) -> str:
    lines = []
    for each in outcome.pipelines:
        before = " before" if each.already else ""
        names = joined(each.phases)
        lines.append(f"{paint('green', 'defined')} {each.pipeline}{before}: phases {names}")
    if missing := [name for name in outcome.outside if name not in outcome.allowed]:
        lines.append(
            f"{joined(missing)}: a host has to look outside of the store;"
            f" {outcome.host} does not allow it yet:"
            " a person has to allow that on each host that may look"
        )
    if outcome.allowed:
        lines.append(f"{outcome.host} allows {joined(outcome.allowed)} to look outside")
    return "\n".join(lines)


def _started(outcome: core.PipelineStarted, paint: Paint) -> str:
    head = f"{paint('green', 'started')} {outcome.pipeline}"
    if outcome.phase:
        return f"{head}, in phase {outcome.phase}"
    return f"{head}, before its first phase: {_why(outcome)}"


def _exists(outcome: core.PipelineExists, paint: Paint) -> str:
    hint = (
        f"choose another id, or see {command(f'interlock pipeline show {quote(outcome.pipeline)}')}"
    )
    return f"{paint('yellow', 'exists')} {outcome.pipeline}: it is {_where(outcome)}; {hint}"


def _advanced(outcome: core.PipelineAdvanced, paint: Paint) -> str:
    head = f"{paint('green', 'advanced')} {outcome.pipeline} to phase {outcome.phase}"
    return head + _warned(outcome.warned)


def _completed(outcome: core.PipelineCompleted, paint: Paint) -> str:
    return f"{paint('green', 'completed')} {outcome.pipeline}{_warned(outcome.warned)}"


def _blocked(outcome: core.PipelineBlocked, paint: Paint) -> str:
    where = f" in phase {outcome.phase}" if outcome.phase else " before its first phase"
    again = f"; checked again in {lasting(outcome.retry_in)}" if outcome.retry_in else ""
    count = f" (failure {outcome.attempts})" if outcome.attempts else ""
    head = f"{paint('yellow', 'blocked')} {outcome.pipeline}{where}: "
    return f"{head}{_why(outcome)}{count}{again}"


def _failed(outcome: core.PipelineFailed, paint: Paint) -> str:
    where = f" in phase {outcome.phase}" if outcome.phase else ""
    return f"{paint('red', 'failed')} {outcome.pipeline}{where}: {outcome.reason}"


def _cancelled(outcome: core.PipelineCancelled, paint: Paint) -> str:
    before = " before" if outcome.already else ""
    said = f": {outcome.reason}" if outcome.reason else ""
    tasks = f", with {_count(outcome.tasks, 'open task')}" if outcome.tasks else ""
    return f"{paint('green', 'cancelled')} {outcome.pipeline}{tasks}{before}{said}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _overtaken(outcome: core.Overtaken, paint: Paint) -> str:
    moved = f"{outcome.by} moved it {since(outcome.since)} ago"
    said = f": {outcome.reason}" if outcome.reason else ""
    head = f"{paint('yellow', 'overtaken')} {outcome.pipeline}"
    return f"{head}: it is {_where(outcome)}; {moved}{said}"


def _unknown(outcome: core.UnknownPipeline, paint: Paint) -> str:
    name = joined(outcome.unknown)
    word = paint("yellow", "unknown")
    return f"{word} {name}: there is no such pipeline; see 'interlock pipeline list'"


def _undefined(outcome: core.UnknownDefinition, paint: Paint) -> str:
    name = joined(outcome.unknown)
    word = paint("yellow", "unknown")
    return f"{word} {name}: it is not defined; define it: interlock pipeline define FILE"


def _view(view: core.PipelineView, paint: Paint) -> str:
    blocked = view.blocked_by
    facts = [
        ("pipeline", view.pipeline),
        ("definition", view.definition),
        ("state", paint(_COLOURS[view.state], view.state)),
        ("phase", view.phase or "before the first"),
        ("phases", joined(view.phases, " -> ")),
        ("since", f"{ago(view.since)}, by {view.by}"),
        ("started", ago(view.started)),
        ("blocked by", f"{blocked.guard}: {blocked.leaf}" if blocked else ""),
        ("reason", blocked.reason if blocked else view.reason),
        ("blocked", ago(blocked.since) if blocked else ""),
        ("failures", str(view.attempt) if view.attempt else ""),
        ("holds", joined(view.holds)),
        ("tasks", joined(f"{each.task} ({each.state})" for each in view.tasks)),
    ]
    return listed(facts)


def _list(outcome: core.PipelineList, paint: Paint) -> str:
    if not outcome.pipelines:
        return "no pipelines, or none that fits; start one: interlock pipeline start NAME"
    titles = ("PIPELINE", "DEFINITION", "STATE", "PHASE", "NOTE")
    rows = [
        (
            each.pipeline,
            each.definition,
            paint(_COLOURS[each.state], each.state),
            each.phase or "-",
            _note(each),
        )
        for each in outcome.pipelines
    ]
    lines = [table(titles, rows, paint)]
    if outcome.more:
        lines.append(f"more: --after {quote(outcome.more)}")
    return "\n".join(lines)


def _note(view: core.PipelineView) -> str:
    if view.blocked_by is not None:
        return f"{view.blocked_by.leaf}: {view.blocked_by.reason}"
    if view.state == "running":
        return f"{view.by}, {ago(view.since)}"
    return f"{ago(view.since)}{f': {view.reason}' if view.reason else ''}"


def _where(outcome: core.Overtaken | core.PipelineExists) -> str:
    if outcome.state != "running":
        return outcome.state
    return f"in phase {outcome.phase}" if outcome.phase else "before its first phase"


def _why(outcome: core.PipelineBlocked | core.PipelineStarted) -> str:
    clear = f"; to clear it: {joined(outcome.acts)}" if outcome.acts else ""
    never = f"; they wait for each other: {joined(outcome.cycle, ' -> ')}" if outcome.cycle else ""
    return f"{outcome.guard}: {outcome.leaf}: {outcome.reason}{clear}{never}"


def _warned(guards: Sequence[str]) -> str:
    counted = Counter(guards)
    return f"; it did not pass, and only warns: {joined(counted)}" if counted else ""


TEXTS: dict[str, Text] = {
    "PipelineDefined": _defined,
    "PipelineStarted": _started,
    "PipelineExists": _exists,
    "PipelineAdvanced": _advanced,
    "PipelineCompleted": _completed,
    "PipelineBlocked": _blocked,
    "PipelineFailed": _failed,
    "PipelineCancelled": _cancelled,
    "Overtaken": _overtaken,
    "UnknownPipeline": _unknown,
    "UnknownDefinition": _undefined,
    "PipelineView": _view,
    "PipelineList": _list,
}
"""The text of each outcome, by the name of its class."""
