"""Whole plans in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interlock.nouns.tasks import plan_rules
    from interlock.runtime.text import Paint


def imported(outcome: plan_rules.Imported, paint: Paint) -> str:
    """How many tasks there are now, and how they stand."""
    return f"{paint('green', 'imported')} {_counted(outcome)}"


def checked(outcome: plan_rules.Checked, paint: Paint) -> str:
    """How many there would be."""
    return f"{paint('green', 'good')}: {_counted(outcome)}; nothing was written"


def exists(outcome: plan_rules.PlanExists, paint: Paint) -> str:
    """Why nothing was written."""
    return f"{paint('yellow', 'exists')} {outcome.task or outcome.plan}: {outcome.reason}"


def _counted(outcome: plan_rules.Imported | plan_rules.Checked) -> str:
    tasks = "1 task" if outcome.tasks == 1 else f"{outcome.tasks} tasks"
    later = f", {outcome.later} not before their time" if outcome.later else ""
    return f"{tasks}: {outcome.ready} ready, {outcome.blocked} blocked{later}"
