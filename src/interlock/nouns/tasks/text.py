"""The outcomes of tasks and plans in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from interlock.core.validate import quote
from interlock.runtime.text import (
    ago,
    as_json,
    ended,
    lasting,
    listed,
    lives,
    never_ends,
    since,
    table,
)

if TYPE_CHECKING:
    from interlock.nouns.tasks import task as core
    from interlock.nouns.tasks.task import ListedTask, TaskList, TaskView
    from interlock.runtime.text import Paint, Text


_COLOURS = {
    "blocked": "yellow", "pending": "bold", "running": "green", "complete": "dim",
    "failed": "red", "dead": "red",
}  # fmt: skip
_EVENTS = {"failed": "red", "dead": "red", "reclaimed": "yellow", "cancelled": "yellow"}
_LONG = 1000
_NAMED = 5


def published(outcome: core.Published, paint: Paint) -> str:
    """A published task, and needs of it that failed."""
    later = "; it begins when all it needs is complete" if outcome.state == "blocked" else ""
    return f"{paint('green', 'published')} {outcome.task}{later}{_ended(outcome.ended)}"


def exists(outcome: core.TaskExists, paint: Paint) -> str:
    """The id is in use."""
    hint = f"choose another id, or see 'interlock task show {quote(outcome.task)}'"
    return f"{paint('yellow', 'exists')} {outcome.task}: it is {outcome.state}; {hint}"


def claimed(outcome: core.Claimed, paint: Paint) -> str:
    """The claim, and the data of the task."""
    again = f", attempt {outcome.attempt}" if outcome.attempt > 1 else ""
    head = f"{paint('green', 'claimed')} {outcome.task}, token {outcome.token}"
    able = f"; it requires {', '.join(outcome.requires)}" if outcome.requires else ""
    data = "" if outcome.data is None else f"\n{as_json(outcome.data)}"
    return f"{head}{lives(outcome.expires_in)}{again}{able}{data}"


def taken(outcome: core.Taken, paint: Paint) -> str:
    """The worker, and for how long."""
    held = f"{outcome.holder} has worked on it for {since(outcome.since)}"
    return f"{paint('yellow', 'taken')} {outcome.task}: {held}{lives(outcome.expires_in)}"


def blocked(outcome: core.Blocked, paint: Paint) -> str:
    """The need or the time that it waits for."""
    left = f"; retry in {lasting(outcome.retry_in)}" if outcome.retry_in is not None else ""
    hint = f"; see 'interlock task show {quote(outcome.on)}'" if outcome.on else ""
    return f"{paint('yellow', 'blocked')} {outcome.task}: {outcome.reason}{left}{hint}"


def deadlock(outcome: core.TaskDeadlock, paint: Paint) -> str:
    """The cycle of waits."""
    return f"{paint('red', 'deadlock')} {outcome.task}: {never_ends(outcome.cycle)}"


def nothing(outcome: core.NoTask, paint: Paint) -> str:
    """Why there is no task."""
    head = f"{paint('yellow', 'nothing')} {outcome.task}".rstrip()
    known = outcome.task and outcome.state != "unknown"
    return f"{head}: {outcome.reason}" + ("" if known else "; see 'interlock task list'")


def extended(outcome: core.TaskExtended, paint: Paint) -> str:
    """The renewed claim."""
    return (
        f"{paint('green', 'extended')} {outcome.task}, token {outcome.token}"
        f"{lives(outcome.expires_in)}"
    )


def completed(outcome: core.Completed, paint: Paint) -> str:
    """The complete task, and how many dependents became ready."""
    if outcome.already:
        return f"{paint('green', 'completed')} {outcome.task} before, by this very claim"
    others = outcome.unblocked
    may = f"; {others} {'task' if others == 1 else 'tasks'} may begin now" if others else ""
    return f"{paint('green', 'completed')} {outcome.task}{may}"


def failed(outcome: core.Failed, paint: Paint) -> str:
    """The failed attempt, and what happens next."""
    word, task = paint("red", "failed"), outcome.task
    if outcome.state == "pending":
        soon = f"in {lasting(outcome.retry_in)}" if outcome.retry_in else "at once"
        return f"{word} {task}, attempt {outcome.attempts}; it is tried again {soon}"
    tries = "1 attempt" if outcome.attempts == 1 else f"{outcome.attempts} attempts"
    end = "for good" if outcome.state == "failed" else f"after {tries}, and is dead"
    return f"{word} {task} {end}; to send it back: interlock task retry {quote(task)}"


def released(outcome: core.TaskReleased, paint: Paint) -> str:
    """It is back."""
    return f"{paint('green', 'released')} {outcome.task}; it is back in the queue"


def fenced(outcome: core.TaskFenced, paint: Paint) -> str:
    """The ended claim, and the present state."""
    now = f"it is {outcome.state}"
    if outcome.token:
        now = f"{outcome.holder} works on it with token {outcome.token}"
    why = ended(outcome.by, outcome.reason)
    return f"{paint('red', 'fenced')} {outcome.task}: that claim is over{why}; {now}"


def requeued(outcome: core.TaskRequeued, paint: Paint) -> str:
    """The claim that was ended."""
    whose = f"the claim of {outcome.holder}, token {outcome.token}, is over"
    return f"{paint('green', 'requeued')} {outcome.task}; {whose}"


def not_owner(outcome: core.TaskNotOwner, paint: Paint) -> str:
    """The worker that has it instead, and what to do."""
    if outcome.state == "unknown":
        word = paint("red", "unknown")
        return f"{word} {outcome.task}: there is no such task; see 'interlock task list'"
    word = f"{paint('red', 'not owner')} {outcome.task}: "
    if outcome.holder:
        return f"{word}{outcome.holder} works on it"
    then = "claim it first"
    if outcome.state == "blocked":
        then = f"see 'interlock why {quote(f'task/{outcome.task}')}'"
    return f"{word}no worker has it, it is {outcome.state}; {then}"


def cancelled(outcome: core.TaskCancelled, paint: Paint) -> str:
    """The cancelled task."""
    before = " before" if outcome.already else ""
    return f"{paint('green', 'cancelled')} {outcome.task}{before}"


def retried(outcome: core.Retried, paint: Paint) -> str:
    """It is back."""
    return f"{paint('green', 'retried')} {outcome.task}; it is {outcome.state}"


def unchanged(outcome: core.Unchanged, paint: Paint) -> str:
    """Why nothing changed."""
    hint = "; see 'interlock task list'" if outcome.state == "unknown" else ""
    return f"{paint('yellow', 'unchanged')} {outcome.task}: {outcome.reason}{hint}"


def task_view(task: TaskView, paint: Paint) -> str:
    """One task, field by field."""
    facts = [
        ("task", task.task),
        ("state", paint(_COLOURS[task.state], task.state) + (", stale" if task.stale else "")),
        ("holder", task.holder),
        ("token", "" if task.token is None else str(task.token)),
        ("needs first", task.on),
        ("begins in", "" if task.retry_in is None else lasting(task.retry_in)),
        ("reason", task.reason),
        ("by", task.by),
        ("since", ago(task.since)),
        ("expires in", "" if task.expires_in is None else lasting(task.expires_in)),
        ("session", task.session),
        ("priority", str(task.priority)),
        ("attempts", _attempts(task)),
        ("requires", ", ".join(task.requires)),
        ("needs", ", ".join(task.needs)),
        ("labels", ", ".join(task.labels)),
        ("published", f"{ago(task.published_at)} by {task.published_by}"),
        ("not before", ago(task.not_before)),
        ("deadline", ago(task.deadline)),
        ("data", _short(task.data)),
        ("result", _short(task.result)),
        ("error", _short(task.error)),
    ]
    return listed(facts)


def task_list(outcome: TaskList, paint: Paint) -> str:
    """Tasks by id."""
    if not outcome.tasks:
        return "no task here is like that; 'interlock task list --all' has complete ones, too"
    titles = ("TASK", "STATE", "PRIORITY", "LABELS", "NOTE")
    rows = table(titles, [_row(task, paint) for task in outcome.tasks], paint)
    return f"{rows}\nmore: --after {outcome.more}" if outcome.more else rows


def _attempts(task: ListedTask) -> str:
    """How many attempts failed; of how many, where that matters."""
    if task.state in ("complete", "failed") or (task.state == "dead" and not task.attempts):
        return f"{task.attempts} failed" if task.attempts else ""
    return f"{task.attempts} of {task.retries + 1} failed"


def _row(task: ListedTask, paint: Paint) -> tuple[str, ...]:
    state = paint(_COLOURS[task.state], task.state)
    return task.task, state, str(task.priority), ",".join(task.labels), _note(task, paint)


def _note(task: ListedTask, paint: Paint) -> str:
    """The note of a task in a list."""
    if task.stale:
        return f"{task.holder} is {paint('red', 'stale')}; the next worker takes it over"
    if task.holder:
        return f"{task.holder} for {since(task.since or 0.0)}{lives(task.expires_in)}"
    if task.state == "blocked":
        return f"needs {task.on}" if task.on else task.reason
    if task.state == "pending":
        return _pending(task)
    said = f": {task.reason}" if task.reason else ""
    who = f"{task.by}, " if task.state == "complete" and task.by else ""
    return f"{who}{ago(task.since)}{said}"


def _pending(task: ListedTask) -> str:
    tried = f"attempt {task.attempts} failed" if task.attempts else ""
    why = f": {task.reason}" if tried and task.reason else ""
    begins = f"begins in {lasting(task.retry_in)}" if task.retry_in else ""
    able = f"requires {', '.join(task.requires)}" if task.requires else ""
    return "; ".join(part for part in (tried + why, begins, able) if part)


def _ended(needs: Sequence[str]) -> str:
    """Needs that failed, and how to retry them."""
    if not needs:
        return ""
    some, more = ", ".join(needs[:_NAMED]), len(needs) - _NAMED
    named = f"{some} and {more} more" if more > 0 else some
    one = "it" if len(needs) == 1 else "the first"
    return f", but {named} failed; to send {one} back: interlock task retry {quote(needs[0])}"


def _short(value: object) -> str:
    text = as_json(value)
    return text if len(text) <= _LONG else f"{text[:_LONG]}... ({len(text)} characters; use --json)"


def event(outcome: core.TaskEvent, paint: Paint) -> str:
    """One line for an event."""
    if outcome.event == "missed":
        return paint("yellow", f"missed: what happened up to revision {outcome.revision} is gone")
    who = f" by {outcome.agent}" if outcome.agent else ""
    requires = f", requires {', '.join(outcome.requires)}" if outcome.requires else ""
    data = "" if outcome.data is None else f"  {as_json(outcome.data)[:_LONG]}"
    word = paint(_EVENTS.get(outcome.event, "green"), f"{outcome.event:<9}")
    return f"{outcome.revision:>6}  {word}  {outcome.task}{who}{requires}{data}"


def plan_imported(outcome: core.Imported, paint: Paint) -> str:
    """How many tasks were published, by state."""
    return f"{paint('green', 'imported')} {_counted(outcome)}"


def plan_checked(outcome: core.Checked, paint: Paint) -> str:
    """How many tasks would be published, by state."""
    return f"{paint('green', 'good')}: {_counted(outcome)}; nothing was written"


def plan_exists(outcome: core.PlanExists, paint: Paint) -> str:
    """Why nothing was written."""
    return f"{paint('yellow', 'exists')} {outcome.task or outcome.plan}: {outcome.reason}"


def _counted(outcome: core.Imported | core.Checked) -> str:
    tasks = "1 task" if outcome.tasks == 1 else f"{outcome.tasks} tasks"
    later = f", {outcome.later} not before their time" if outcome.later else ""
    return f"{tasks}: {outcome.ready} ready, {outcome.blocked} blocked{later}"


TEXTS: dict[str, Text] = {
    "Published": published,
    "TaskExists": exists,
    "Claimed": claimed,
    "Taken": taken,
    "Blocked": blocked,
    "TaskDeadlock": deadlock,
    "NoTask": nothing,
    "TaskExtended": extended,
    "Completed": completed,
    "Failed": failed,
    "TaskReleased": released,
    "TaskFenced": fenced,
    "TaskRequeued": requeued,
    "TaskNotOwner": not_owner,
    "TaskCancelled": cancelled,
    "Retried": retried,
    "Unchanged": unchanged,
    "TaskEvent": event,
    "TaskView": task_view,
    "TaskList": task_list,
    "Imported": plan_imported,
    "Checked": plan_checked,
    "PlanExists": plan_exists,
}
"""The text of each outcome, by the name of its class."""
