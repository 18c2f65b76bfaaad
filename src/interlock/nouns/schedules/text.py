"""The outcomes of schedules in words."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from interlock.core.validate import quote
from interlock.nouns.schedules.views import moment
from interlock.runtime.text import ago, as_json, joined, lasting, listed, table

if TYPE_CHECKING:
    from interlock.nouns.schedules import schedule as core
    from interlock.runtime.text import Paint, Text

_COLOURS = {"active": "green", "paused": "yellow", "ended": "dim"}


def _added(outcome: core.ScheduleAdded, paint: Paint) -> str:
    word = "replaced" if outcome.replaced else "added"
    head = f"{paint('green', word)} {outcome.schedule}"
    return f"{head}, publishes {outcome.task} {_until(outcome.next_run)}"


def _until(run: float) -> str:
    return f"in {lasting(max(run - time.time(), 0.0))}"


def _exists(outcome: core.ScheduleExists, paint: Paint) -> str:
    head = f"{paint('yellow', 'exists')} {outcome.schedule}: it is {outcome.state}"
    return f"{head}; choose another name, or replace it with --replace"


def _dropped(outcome: core.ScheduleDropped, paint: Paint) -> str:
    return f"{paint('green', 'dropped')} {outcome.schedule}; its tasks stay"


def _paused(outcome: core.SchedulePaused, paint: Paint) -> str:
    before = " before" if outcome.already else ""
    return f"{paint('green', 'paused')} {outcome.schedule}{before}"


def _resumed(outcome: core.ScheduleResumed, paint: Paint) -> str:
    if outcome.next_run is None:
        return f"{paint('yellow', 'resumed')} {outcome.schedule}, but it has no further time"
    before = " before" if outcome.already else ""
    head = f"{paint('green', 'resumed')} {outcome.schedule}{before}"
    return f"{head}, next run {_until(outcome.next_run)}"


def _unknown(outcome: core.UnknownSchedule, paint: Paint) -> str:
    name = joined(outcome.unknown)
    word = paint("yellow", "unknown")
    return f"{word} {name}: there is no such schedule; see 'interlock schedule list'"


def _view(view: core.ScheduleView, paint: Paint) -> str:
    facts = [
        ("schedule", view.schedule),
        ("state", paint(_COLOURS[view.state], view.state)),
        ("reason", view.reason),
        ("when", view.when),
        ("next runs", joined(moment(each, view.zone or "UTC") for each in view.next_runs)),
        ("missed", view.missed),
        ("overlap", view.overlap),
        ("deadline", f"{lasting(view.deadline_in)} after publishing" if view.deadline_in else ""),
        ("published", str(view.published)),
        ("lost", str(view.lost) if view.lost else ""),
        ("skipped", str(view.skipped) if view.skipped else ""),
        ("last task", f"{view.last_task}, {ago(view.last_at)}" if view.last_task else ""),
        ("failure", f"{moment(view.failed_run)}: {view.failure}" if view.failure else ""),
        ("added", f"{ago(view.added_at)}, by {view.added_by}"),
        *[(f"task {name}", _value(value)) for name, value in view.task.items()],
    ]
    return listed(facts)


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return joined(value)
    return value if isinstance(value, str) else as_json(value)


def _list(outcome: core.ScheduleList, paint: Paint) -> str:
    if not outcome.schedules:
        return "no schedules, or none that fits; add one: interlock schedule add NAME --every 1h"
    titles = ("SCHEDULE", "WHEN", "STATE", "NEXT RUN", "NOTE")
    rows = [
        (
            each.schedule,
            each.when,
            paint(_COLOURS[each.state], each.state),
            _next(each.next_run),
            _note(each),
        )
        for each in outcome.schedules
    ]
    lines = [table(titles, rows, paint)]
    if outcome.more:
        lines.append(f"more: --after {quote(outcome.more)}")
    return "\n".join(lines)


def _next(run: float | None) -> str:
    """When the next run is; one that is due waits for a process that looks."""
    if run is None:
        return "-"
    return ago(run) if run > time.time() else f"due {ago(run)}"


def _note(each: core.ListedSchedule) -> str:
    if each.failure:
        return f"failed: {each.failure}"
    if each.state == "paused":
        return each.reason
    return f"last {each.last_task}" if each.last_task else ""


TEXTS: dict[str, Text] = {
    "ScheduleAdded": _added,
    "ScheduleExists": _exists,
    "ScheduleDropped": _dropped,
    "SchedulePaused": _paused,
    "ScheduleResumed": _resumed,
    "UnknownSchedule": _unknown,
    "ScheduleView": _view,
    "ScheduleList": _list,
}
"""The text of each outcome, by the name of its class."""
