"""Outcomes of tasks and plans, in words.

The text of a task and its notes stand behind a bar, line by line, as messages do: a worker, also a
model, sees which lines another agent wrote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from interlock.core.safe_text import foreign
from interlock.core.validate import command, quote
from interlock.runtime.text import (
    ago,
    as_json,
    barred,
    ended,
    joined,
    lasting,
    listed,
    lives,
    never_ends,
    reason_lines,
    short_json,
    shortened,
    since,
    table,
)

if TYPE_CHECKING:
    from interlock.nouns.tasks import task as task_types
    from interlock.nouns.tasks import task_outcomes
    from interlock.nouns.tasks.task_view import (
        ListedTask,
        TaskList,
        TaskNote,
        TaskNotes,
        TaskTree,
        TaskView,
    )
    from interlock.runtime.text import Paint, Text


_COLOURS = {
    "blocked": "yellow", "pending": "bold", "running": "green", "complete": "dim",
    "failed": "red", "dead": "red", "dropped": "dim",
}  # fmt: skip
_EVENTS = {"failed": "red", "dead": "red", "reclaimed": "yellow", "cancelled": "yellow"}
_COLUMNS = ("TASK", "STATE", "PRIORITY", "TITLE", "LABELS", "NOTE")
_LONG = 1000
_SHORT = 40
_NAMED = 5


def _published(outcome: task_outcomes.Published, paint: Paint) -> str:
    later = ""
    if outcome.state == "failed":
        later = f", but it failed: {foreign(outcome.reason)}"
    elif outcome.guard:
        later = f"; it begins when guard {outcome.guard} passes: {_leaf(outcome)}"
    elif outcome.state == "blocked":
        later = "; it begins when all it needs is complete"
    return f"{paint('green', 'published')} {outcome.task}{later}{_ended(outcome.ended)}"


def _exists(outcome: task_outcomes.TaskExists, paint: Paint) -> str:
    hint = f"choose another id, or see {command(f'interlock task show {quote(outcome.task)}')}"
    if outcome.state in ("failed", "dead", "dropped"):
        hint = f"to use its id again: interlock task add {quote(outcome.task)} --again"
    return f"{paint('yellow', 'exists')} {outcome.task}: it is {outcome.state}; {hint}"


def _claimed(outcome: task_outcomes.Claimed, paint: Paint) -> str:
    again = f", attempt {outcome.attempt}" if outcome.attempt > 1 else ""
    head = f"{paint('green', 'claimed')} {outcome.task}, token {outcome.token}"
    able = f"; it requires {joined(outcome.requires)}" if outcome.requires else ""
    title = f": {paint('bold', outcome.title)}" if outcome.title else ""
    text = f"\n{_theirs(outcome.text, paint)}" if outcome.text else ""
    data = "" if outcome.data is None else f"\n{as_json(outcome.data)}"
    others = "".join([f"\n{_claimed(each, paint)}" for each in outcome.others])
    return f"{head}{lives(outcome.expires_in)}{again}{able}{title}{text}{data}{others}"


def _taken(outcome: task_outcomes.Taken, paint: Paint) -> str:
    held = f"{outcome.holder} has worked on it for {since(outcome.since)}"
    return f"{paint('yellow', 'taken')} {outcome.task}: {held}{lives(outcome.expires_in)}"


def _blocked(outcome: task_outcomes.TaskBlocked, paint: Paint) -> str:
    left = f"; retry in {lasting(outcome.retry_in)}" if outcome.retry_in is not None else ""
    hint = f"; see {command(f'interlock task show {quote(outcome.on)}')}" if outcome.on else ""
    said = outcome.reason
    if outcome.leaf or outcome.acts:
        said = f"guard {outcome.guard}: {_leaf(outcome)}{_acts(outcome.acts)}"
    return f"{paint('yellow', 'blocked')} {outcome.task}: {said}{left}{hint}"


def _deadlock(outcome: task_outcomes.TaskDeadlock, paint: Paint) -> str:
    return f"{paint('red', 'deadlock')} {outcome.task}: {never_ends(outcome.cycle)}"


def _nothing(outcome: task_outcomes.NoTask, paint: Paint) -> str:
    head = f"{paint('yellow', 'nothing')} {outcome.task}".rstrip()
    known = outcome.task and outcome.state != "unknown"
    able = ",".join((*outcome.can, *outcome.missing))  # what a call names is all that it can do
    then = f"; if you can: interlock task next --can {quote(able)}" if outcome.missing else ""
    return f"{head}: {outcome.reason}{then}" + ("" if known else "; see 'interlock task list'")


def _extended(outcome: task_outcomes.TaskExtended, paint: Paint) -> str:
    return (
        f"{paint('green', 'extended')} {outcome.task}, token {outcome.token}"
        f"{lives(outcome.expires_in)}"
    )


def _completed(outcome: task_outcomes.TaskCompleted, paint: Paint) -> str:
    then = _next(outcome.next, paint)
    if outcome.already:
        return f"{paint('green', 'completed')} {outcome.task} before, by this very claim{then}"
    others = outcome.unblocked
    may = f"; {others} {'task' if others == 1 else 'tasks'} may begin now" if others else ""
    warned = joined(outcome.warned)
    but = f"; its evidence does not pass, and only warns: {warned}" if warned else ""
    return f"{paint('green', 'completed')} {outcome.task}{may}{but}{then}"


def _next(found: task_outcomes.Claimed | task_outcomes.NoTask | None, paint: Paint) -> str:
    """The line about the task that was claimed with the end of another."""
    if found is None:
        return ""
    return f"\n{_claimed(found, paint) if found else _nothing(found, paint)}"


def _evidence_missing(outcome: task_outcomes.EvidenceMissing, paint: Paint) -> str:
    word, task = paint("yellow", "blocked"), outcome.task
    said = f"guard {outcome.guard}: {_leaf(outcome)}{_acts(outcome.acts)}"
    count = f" (failure {outcome.failures})" if outcome.failures else ""
    soon = "" if outcome.retry_in is None else f" in {lasting(outcome.retry_in)}"
    then = f"the claim stays yours: complete the task again{soon}, or fail it"
    return f"{word} {task}: it lacks evidence; {said}{count}; {then}"


def _evidence_failed(outcome: task_outcomes.EvidenceFailed, paint: Paint) -> str:
    again = "it is tried again"
    if outcome.retry_in:
        again += f" in {lasting(outcome.retry_in)}"
    if outcome.state == "dead":
        again = f"it is dead; to send it back: interlock task retry {quote(outcome.task)}"
    head = f"{paint('red', 'failed')} {outcome.task}, attempt {outcome.attempts}"
    return f"{head}: it lacks evidence, {outcome.reason}; {again}"


def _failed(outcome: task_outcomes.TaskFailed, paint: Paint) -> str:
    word, task, then = paint("red", "failed"), outcome.task, _next(outcome.next, paint)
    if outcome.state == "pending":
        soon = f"in {lasting(outcome.retry_in)}" if outcome.retry_in else "at once"
        return f"{word} {task}, attempt {outcome.attempts}; it is tried again {soon}{then}"
    tries = "1 attempt" if outcome.attempts == 1 else f"{outcome.attempts} attempts"
    end = "for good" if outcome.state == "failed" else f"after {tries}, and is dead"
    return f"{word} {task} {end}; to send it back: interlock task retry {quote(task)}{then}"


def _released(outcome: task_outcomes.TaskReleased, paint: Paint) -> str:
    return f"{paint('green', 'released')} {outcome.task}; it is back in the queue"


def _fenced(outcome: task_outcomes.TaskFenced, paint: Paint) -> str:
    now = f"it is {outcome.state}"
    if outcome.token:
        now = f"{outcome.holder} works on it with token {outcome.token}"
    head = f"{paint('red', 'fenced')} {outcome.task}: that claim is over{ended(outcome.by)}; {now}"
    return head + reason_lines(outcome.reason if outcome.by else "", paint)


def _requeued(outcome: task_outcomes.TaskRequeued, paint: Paint) -> str:
    whose = f"the claim of {outcome.holder}, token {outcome.token}, is over"
    return f"{paint('green', 'requeued')} {outcome.task}; {whose}"


def _not_owner(outcome: task_outcomes.TaskNotOwner, paint: Paint) -> str:
    if outcome.state == "unknown":
        word = paint("red", "unknown")
        return f"{word} {outcome.task}: there is no such task; see 'interlock task list'"
    word = f"{paint('red', 'not owner')} {outcome.task}: "
    if outcome.holder:
        return f"{word}{outcome.holder} works on it"
    match outcome.state:
        case "complete":
            return (
                f"{word}it is complete already; see"
                f" {command(f'interlock task show {quote(outcome.task)}')}"
            )
        case "blocked":
            then = f"see {command('interlock why ' + quote(f'task/{outcome.task!s}'))}"
        case "failed" | "dead":
            then = f"to send it back: interlock task retry {quote(outcome.task)}"
        case "dropped":
            then = f"to publish it again: interlock task add {quote(outcome.task)} --again"
        case _:
            then = f"claim it first: interlock task claim {quote(outcome.task)}"
    return f"{word}no worker has it, it is {outcome.state}; {then}"


def progress_text(part: float, doing: str) -> str:
    """A report in words; the percentage is cut off, so that the end is not announced too soon."""
    percent = f"{int(round(part * 100, 6))} %"
    return f"{percent}: {doing}" if doing else percent


def _progress(outcome: task_outcomes.ProgressNoted, paint: Paint) -> str:
    said = progress_text(outcome.progress, outcome.doing)
    return f"{paint('green', 'progress')} {outcome.task}: {said}"


def _cancelled(outcome: task_outcomes.TaskCancelled, paint: Paint) -> str:
    before = " before" if outcome.already else ""
    return f"{paint('green', 'cancelled')} {outcome.task}{before}"


def _retried(outcome: task_outcomes.Retried, paint: Paint) -> str:
    return f"{paint('green', 'retried')} {outcome.task}; it is {outcome.state}"


def _edited(outcome: task_outcomes.TaskEdited, paint: Paint) -> str:
    if not outcome.changed:
        return f"{paint('green', 'edited')} {outcome.task}: it was like that before"
    what = _fields(outcome.changed)
    return f"{paint('green', 'edited')} {outcome.task}: {what}{_ended(outcome.ended)}"


def _value(value: object) -> str:
    """A value of a field in a few words."""
    if value == "":
        return "none"
    if isinstance(value, list | tuple):
        return joined(value, ",") or "none"
    return foreign(value, _SHORT) if isinstance(value, str) else short_json(value, _SHORT)


def _dropped(outcome: task_outcomes.TasksDropped, paint: Paint) -> str:
    head = f"{paint('green', 'dropped')} {joined(outcome.tasks)}"
    if not outcome.blocked:
        return head
    return (
        f"{head}; {joined(outcome.blocked)} waited for it: change that,"
        f" interlock task edit {quote(outcome.blocked[0])} --remove-needs {quote(outcome.tasks[0])}"
    )


def _unchanged(outcome: task_outcomes.Unchanged, paint: Paint) -> str:
    hint = "; see 'interlock task list'" if outcome.state == "unknown" else ""
    return f"{paint('yellow', 'unchanged')} {outcome.task}: {outcome.reason}{hint}"


def _task_view(task: TaskView, paint: Paint) -> str:
    facts = [
        ("task", task.task),
        ("title", paint("bold", task.title) if task.title else ""),
        ("state", paint(_COLOURS[task.state], task.state) + (", stale" if task.stale else "")),
        ("holder", task.holder),
        ("token", "" if task.token is None else str(task.token)),
        ("progress", "" if task.progress is None else progress_text(task.progress, task.doing)),
        ("needs first", task.on),
        (
            "waits for",
            f"guard {task.guard}" + (f": {task.leaf}" if task.leaf else "") if task.guard else "",
        ),
        ("begins in", "" if task.retry_in is None else lasting(task.retry_in)),
        ("reason", task.reason),
        ("by", task.by),
        ("since", ago(task.since)),
        ("expires in", "" if task.expires_in is None else lasting(task.expires_in)),
        ("session", task.session),
        ("priority", str(task.priority)),
        ("attempts", _attempts(task)),
        ("requires", joined(task.requires)),
        ("needs", joined(task.needs)),
        ("labels", joined(task.labels)),
        ("guards", joined(task.guards)),
        ("evidence", joined(task.evidence)),
        ("plan", task.plan),
        ("schedule", task.schedule),
        ("published", f"{ago(task.published_at)} by {task.published_by}"),
        ("not before", ago(task.not_before)),
        ("deadline", ago(task.deadline)),
        ("data", _short(task.data)),
        ("result", _short(task.result)),
        ("error", _short(task.error)),
    ]
    text = f"\n\n{_theirs(task.text, paint)}" if task.text else ""
    more = f"interlock task notes {quote(task.task)}"
    earlier = f"\n\n{task.earlier_notes} earlier notes: {more}" if task.earlier_notes else ""
    return f"{listed(facts)}{text}{earlier}{_said(task.notes, paint)}"


def _said(notes: Sequence[TaskNote], paint: Paint) -> str:
    """Notes below each other, each after its author and its time."""
    heads = [paint("dim", f"note {each.note}, {each.by}, {ago(each.at)}:") for each in notes]
    said = zip(heads, notes, strict=True)
    return "".join([f"\n\n{head}\n{_theirs(each.text, paint)}" for head, each in said])


def _theirs(text: str, paint: Paint) -> str:
    """What an agent wrote about a task."""
    return "\n".join(barred(text.rstrip(), paint))


def _noted(outcome: task_outcomes.TaskNoted, paint: Paint) -> str:
    return f"{paint('green', 'noted')} {outcome.task}, note {outcome.note}"


def _notes(outcome: TaskNotes, paint: Paint) -> str:
    if not outcome.notes:
        return f"no notes; add one: interlock task note {quote(outcome.task)} 'TEXT'"
    more = f"\n\nmore: --after {outcome.more}" if outcome.more else ""
    return _said(outcome.notes, paint).lstrip("\n") + more


def _task_list(outcome: TaskList, paint: Paint) -> str:
    if not outcome.tasks:
        return (
            "no task fits; 'interlock task list --all' lists complete ones, too,"
            " and 'interlock task add NAME' adds one"
        )
    rows = [_row(task, paint) for task in outcome.tasks]
    titled = any(task.title for task in outcome.tasks)
    shown = [place for place, name in enumerate(_COLUMNS) if titled or name != "TITLE"]
    titles, *cells = [[row[place] for place in shown] for row in (_COLUMNS, *rows)]
    text = table(
        titles,
        cells,
        paint,
        cut=("NOTE", "LABELS", "TITLE", "TASK"),
        leave=("LABELS", "PRIORITY", "NOTE"),
    )
    return f"{text}\nmore: --after {quote(outcome.more)}" if outcome.more else text


def _tree(outcome: TaskTree, paint: Paint) -> str:
    if not outcome.tasks:
        return (
            "no open tasks, or none that fits; 'interlock task list --all' has complete ones, too"
        )
    text = outcome.drawing
    if outcome.format != "tree":
        return text
    if paint.width is not None:
        text = "\n".join([shortened(line, paint.width) for line in text.split("\n")])
    return f"{text}\nthere are more tasks; a greater --limit shows them" if outcome.more else text


def _attempts(task: ListedTask) -> str:
    """How many attempts failed; of how many, where that matters."""
    if task.state in ("complete", "failed") or (task.state == "dead" and not task.attempts):
        return f"{task.attempts} failed" if task.attempts else ""
    return f"{task.attempts} of {task.retries + 1} failed"


def _row(task: ListedTask, paint: Paint) -> tuple[str, ...]:
    state = paint(_COLOURS[task.state], task.state)
    labels, note = joined(task.labels, ","), _note(task, paint)
    return task.task, state, str(task.priority), task.title, labels, note


def _note(task: ListedTask, paint: Paint) -> str:
    if task.stale:
        return f"{task.holder} is {paint('red', 'stale')}; the next worker takes it over"
    if task.holder:
        said = "" if task.progress is None else f", {progress_text(task.progress, task.doing)}"
        return f"{task.holder} for {since(task.since or 0.0)}{said}{lives(task.expires_in)}"
    if task.guard:
        return f"guard {task.guard}: {_leaf(task)}".removesuffix(": ")
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
    able = f"requires {joined(task.requires)}" if task.requires else ""
    return "; ".join(part for part in (tried + why, begins, able) if part)


def _ended(needs: Sequence[str]) -> str:
    if not needs:
        return ""
    some, more = joined(needs[:_NAMED]), len(needs) - _NAMED
    named = f"{some} and {more} more" if more > 0 else some
    one = "it" if len(needs) == 1 else "the first"
    return f", but {named} failed; to send {one} back: interlock task retry {quote(needs[0])}"


def _leaf(
    said: task_outcomes.Published
    | task_outcomes.TaskBlocked
    | task_outcomes.EvidenceMissing
    | ListedTask,
) -> str:
    """The condition that does not hold, and why; a guard that does not exist has no condition."""
    # Interlock wrote the reason of a guard; other reasons of tasks are those of their workers.
    return f"{said.leaf}: {said.reason!s}" if said.leaf else said.reason


def _acts(acts: Sequence[str]) -> str:
    return f"; to clear it: {joined(acts)}" if acts else ""


def _short(value: object) -> str:
    count = len(as_json(value))
    more = f" ({count} characters; use --json)" if count > _LONG else ""
    return short_json(value, _LONG) + more


def _event(outcome: task_types.TaskEvent, paint: Paint) -> str:
    if outcome.event == "missed":
        return paint("yellow", f"missed: what happened up to revision {outcome.revision} is gone")
    who = f" by {outcome.agent}" if outcome.agent else ""
    requires = f", requires {joined(outcome.requires)}" if outcome.requires else ""
    data = "" if outcome.data is None else f"  {short_json(outcome.data, _LONG)}"
    if outcome.progress is not None:
        data = f": {progress_text(outcome.progress, outcome.doing)}"
    title = f": {outcome.title}" if outcome.title else ""
    word = paint(_EVENTS.get(outcome.event, "green"), f"{outcome.event:<9}")
    return f"{outcome.revision:>6}  {word}  {outcome.task}{who}{requires}{title}{data}"


def _plan_imported(outcome: task_outcomes.Imported, paint: Paint) -> str:
    return f"{paint('green', 'imported')} {_counted(outcome)}"


def _plan_checked(outcome: task_outcomes.Checked, paint: Paint) -> str:
    return f"{paint('green', 'good')}: {_counted(outcome)}; nothing was written"


def _plan_changes(outcome: task_outcomes.PlanChanges, paint: Paint) -> str:
    return f"{_steps(outcome, paint)}\nnothing was written; to change it: --update"


def _plan_updated(outcome: task_outcomes.PlanUpdated, paint: Paint) -> str:
    return _steps(outcome, paint)


def _steps(outcome: task_outcomes.PlanChanges | task_outcomes.PlanUpdated, paint: Paint) -> str:
    """A line for each task that changes, or is left alone though it differs."""
    done = (
        f"{outcome.plan}: {len(outcome.new)} new, {len(outcome.edited)} edited,"
        f" {len(outcome.dropped)} dropped, {len(outcome.left)} left alone, {outcome.same} the same"
    )
    word = "updated" if type(outcome).__name__ == "PlanUpdated" else "changes of"
    lines = [f"{paint('green', word)} {done}"]
    if not outcome.named:
        lines.append(
            "nothing is dropped: only the tasks of a plan that was imported with --id are known"
        )
    lines += [f"{paint('green', 'new')}      {task}" for task in outcome.new]
    lines += [
        f"{paint('yellow', 'edit')}     {each.task}: {_fields(each.changed)}"
        for each in outcome.edited
    ]
    lines += [f"{paint('red', 'drop')}     {task}" for task in outcome.dropped]
    lines += [
        f"{paint('dim', 'leave')}    {each.task} ({each.state}): {each.reason}"
        for each in outcome.left
    ]
    return "\n".join(lines)


def _fields(changed: Mapping[str, task_outcomes.FieldChange]) -> str:
    return "; ".join(
        f"{name} {_field(name, each.old)} -> {_field(name, each.new)}"
        for name, each in changed.items()
    )


def _field(name: str, value: object) -> str:
    """The value of a field that an edit changes."""
    if name in ("not_before", "deadline"):
        return ago(value) if isinstance(value, float | int) else "none"
    return _value(value)


def _plan_exists(outcome: task_outcomes.PlanExists, paint: Paint) -> str:
    return f"{paint('yellow', 'exists')} {outcome.task or outcome.plan}: {outcome.reason}"


def _counted(outcome: task_outcomes.Imported | task_outcomes.Checked) -> str:
    tasks = "1 task" if outcome.tasks == 1 else f"{outcome.tasks} tasks"
    later = f", {outcome.later} not before their time" if outcome.later else ""
    behind = f", {outcome.guarded} when their guards pass" if outcome.guarded else ""
    return f"{tasks}: {outcome.ready} ready, {outcome.blocked} blocked{later}{behind}"


TEXTS: dict[str, Text] = {
    "Published": _published,
    "TaskExists": _exists,
    "Claimed": _claimed,
    "Taken": _taken,
    "TaskBlocked": _blocked,
    "TaskDeadlock": _deadlock,
    "NoTask": _nothing,
    "TaskExtended": _extended,
    "TaskCompleted": _completed,
    "EvidenceMissing": _evidence_missing,
    "EvidenceFailed": _evidence_failed,
    "TaskFailed": _failed,
    "TaskReleased": _released,
    "ProgressNoted": _progress,
    "TaskFenced": _fenced,
    "TaskRequeued": _requeued,
    "TaskNotOwner": _not_owner,
    "TaskCancelled": _cancelled,
    "Retried": _retried,
    "TaskEdited": _edited,
    "TasksDropped": _dropped,
    "Unchanged": _unchanged,
    "TaskNoted": _noted,
    "TaskTree": _tree,
    "TaskNotes": _notes,
    "TaskEvent": _event,
    "TaskView": _task_view,
    "TaskList": _task_list,
    "Imported": _plan_imported,
    "Checked": _plan_checked,
    "PlanChanges": _plan_changes,
    "PlanUpdated": _plan_updated,
    "PlanExists": _plan_exists,
}
"""The text of each outcome, by the name of its class."""
