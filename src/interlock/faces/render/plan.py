"""Whole plans in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interlock.core import batch
    from interlock.faces.render import Paint


def imported(outcome: batch.Imported, paint: Paint) -> str:
    """How many tasks there are now, and how they stand."""
    return f"{paint('green', 'imported')} {_counted(outcome)}"


def checked(outcome: batch.Checked, paint: Paint) -> str:
    """How many there would be."""
    return f"{paint('green', 'good')}: {_counted(outcome)}; nothing was written"


def exists(outcome: batch.PlanExists, paint: Paint) -> str:
    """Why nothing was written."""
    return f"{paint('yellow', 'exists')} {outcome.task or outcome.plan}: {outcome.reason}"


def _counted(outcome: batch.Imported | batch.Checked) -> str:
    tasks = "1 task" if outcome.tasks == 1 else f"{outcome.tasks} tasks"
    later = f", {outcome.later} not before their time" if outcome.later else ""
    return f"{tasks}: {outcome.ready} ready, {outcome.blocked} blocked{later}"
