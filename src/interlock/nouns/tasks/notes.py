"""Notes on a task: what agents and people say about it while it is planned, done and over.

A note is an item of its own (``notes/{task}/{number}``), so that no note makes a list, a claim or
a scan of tasks heavier.  How many there are stands with the task (``tasks/{id}/notes``), which a
task without notes does not have.  The commit that adds a note checks the status, and the one that
deletes the task checks the number: so no note is left behind by a task that is gone.

Any agent may add one, to a task in any state.  A note is never changed.  If the id of a task is
published again, the new task keeps the notes.  They are deleted with their task; if a task has more
notes than one commit can delete, the first ones go before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from interlock.core import keys
from interlock.core.decision import Decision
from interlock.core.safe_text import foreign
from interlock.errors import TooLarge
from interlock.nouns.tasks import task as task_types
from interlock.nouns.tasks import task_outcomes
from interlock.nouns.tasks.task_change import NoteNumbers, TaskChanges
from interlock.nouns.tasks.task_reader import change, decode_note, decode_note_numbers
from interlock.nouns.tasks.task_view import TaskNote, TaskNotes
from interlock.runtime.identity import Actor
from interlock.runtime.reads import looked_up, readable
from interlock.runtime.runner import Runner
from interlock.steps import Op, Read
from interlock.store import Item, Range

NOTE_LIMIT = 16 * 1024
NOTES_LIMIT = 1000
_SHOWN = 20
"""The last notes, which ``task show`` has."""
_HEAD = 80
"""Characters of a note that the history of its task shows."""


def add(
    changes: TaskChanges, task: str, by: str, text: str
) -> Decision[task_outcomes.TaskNoted | task_outcomes.Unchanged]:
    """Add a note to a task."""
    status = changes.status(task)
    if status is None or changes.is_hidden(status):
        why = f"there is no task {foreign(task)}" if status is None else task_types.HIDDEN_REASON
        refused = task_outcomes.Unchanged(
            task=task, state="unknown" if status is None else status.state, reason=why
        )
        return Decision(outcome=refused)
    known = changes.facts.numbers_of_notes(task) or NoteNumbers()
    if known.count >= NOTES_LIMIT:
        raise TooLarge(
            f"task {task!r} has {known.count} notes, and no more are allowed: keep further ones in"
            " a file and name that in the result, or publish a task for what is left to do"
        )
    number = known.count + 1
    changes.rely(keys.status(task), keys.notes(task))
    changes.put(keys.notes(task), NoteNumbers(count=number, first=known.first))
    note = TaskNote(note=number, by=by, at=changes.now, text=text)
    changes.put(keys.note(task, number), note)
    changes.task_event("noted", by)
    noted = task_outcomes.TaskNoted(task=task, note=number)
    return changes.decision(noted, "task.note", f"task/{task}")


def add_note(
    runner: Runner, actor: Actor, task: str, text: str
) -> Op[task_outcomes.TaskNoted | task_outcomes.Unchanged]:
    """Add a note to a task of the store."""
    decide: Callable[[TaskChanges], Decision[task_outcomes.TaskNoted | task_outcomes.Unchanged]] = (
        partial(add, task=task, by=actor.agent, text=text)
    )
    wanted = keys.status(task), keys.notes(task)
    return (yield from change(runner, actor, wanted, decide)).outcome


def list_notes(task: str, after: int, limit: int) -> Op[TaskNotes | task_outcomes.NoTask]:
    """A page of the notes of a task."""
    page = Range(keys.note(task), keys.note(task, after) if after else "", limit + 1)
    snapshot = yield Read(keys.status(task), page)
    if snapshot[keys.status(task)] is None:
        reason = f"there is no task {foreign(task)}; its notes were deleted with it, if it had any"
        return task_outcomes.NoTask(task=task, state="unknown", reason=reason)
    found = _decoded(snapshot.ranges[page])
    more = found[limit - 1].note if len(found) > limit else None
    return TaskNotes(task=task, notes=found[:limit], more=more)


def last_notes(task: str, numbers: Item | None) -> Op[tuple[TaskNote, ...]]:
    """The last notes of a task that has this number of them."""
    known = readable(decode_note_numbers, numbers)
    if known is None:
        return ()
    wanted = [keys.note(task, number) for number in known.numbers[-_SHOWN:]]
    items = (yield Read(*wanted)).items if wanted else {}
    return _decoded([item for key in wanted if (item := items[key]) is not None])


def heads(task: str, numbers: Iterable[str]) -> Op[dict[str, str]]:
    """The first words of some notes of a task, by their numbers; without those that are gone."""
    items = yield from looked_up([keys.note(task, int(number)) for number in numbers])
    found = _decoded([item for item in items.values() if item is not None])
    return {str(each.note): _head(each.text) for each in found}


def _head(text: str) -> str:
    """The first words of a text, on one line."""
    line = " ".join(text[: 2 * _HEAD].split())
    return line if len(line) <= _HEAD else line[: _HEAD - 3] + "..."


def _decoded(items: Sequence[Item]) -> tuple[TaskNote, ...]:
    found = [readable(decode_note, item) for item in items]
    return tuple([each for each in found if each is not None])
