"""The operations that look at tasks, and notes: their requests and declarations."""

from typing import TYPE_CHECKING, Annotated

from interlock.core.outcomes import GivenFenced
from interlock.nouns.tasks import task as task_types
from interlock.nouns.tasks import task_outcomes
from interlock.nouns.tasks.publish_options import Names, Task
from interlock.nouns.tasks.task_view import (
    DRAWN,
    FORMATS,
    MOST,
    MOST_NOTES,
    TaskList,
    TaskNotes,
    TaskTree,
    TaskView,
)
from interlock.runtime.operation import Given, Operation, Request, option

if TYPE_CHECKING:
    pass


class TaskNoteAdd(Request, frozen=True, kw_only=True):
    """Add a note to a task."""

    task: Task
    text: Annotated[
        str,
        option("body", "what to say, up to 16 KiB", positional=True),
    ]
    given: Given = ()


class TaskNotesList(Request, frozen=True, kw_only=True):
    """The notes of a task."""

    task: Task
    after: Annotated[int, option("int", "only notes after this number")] = 0
    limit: Annotated[
        int, option("int", "how many notes to list at most", least=1, most=MOST_NOTES)
    ] = task_types.LISTED


class TasksList(Request, frozen=True, kw_only=True):
    """Tasks that are open, or others."""

    state: Annotated[
        Names, option("names", f"only in these states: {', '.join(task_types.STATES)}")
    ] = ()
    all: Annotated[bool, option("flag", "also complete tasks")] = False
    label: Annotated[Names, option("names", "only with all of these labels")] = ()
    title: Annotated[
        str, option("text", "only with all of these words in the title: 'login token'")
    ] = ""
    needs: Annotated[Names, option("names", "only tasks that need all of these")] = ()
    requires: Annotated[Names, option("names", "only tasks that require all of these")] = ()
    holder: Annotated[str | None, option("name", "only tasks that this agent works on")] = None
    prefix: Annotated[str | None, option("text", "only ids that begin like this")] = None
    after: Annotated[str | None, option("name", "start after this id")] = None
    limit: Annotated[int, option("int", "how many tasks to list at most", least=1, most=MOST)] = (
        task_types.LISTED
    )


class TaskShow(Request, frozen=True, kw_only=True):
    """One task."""

    task: Task


class TaskTreeShow(Request, frozen=True, kw_only=True):
    """Tasks with what they need."""

    task: Annotated[
        str | None,
        option("name", "the task at the root; all open tasks if left out", positional=True),
    ] = None
    format: Annotated[str, option("name", f"how it is drawn: {', '.join(FORMATS)}")] = FORMATS[0]
    all: Annotated[bool, option("flag", "also the needs of complete tasks")] = False
    label: Annotated[Names, option("names", "only open tasks with all of these labels")] = ()
    prefix: Annotated[str | None, option("text", "only open tasks whose id begins like this")] = (
        None
    )
    limit: Annotated[int, option("int", "how many tasks to draw at most", least=1, most=MOST)] = (
        DRAWN
    )


class TaskWatch(Request, frozen=True, kw_only=True):
    """What happens to tasks."""

    event: Annotated[
        Names, option("names", f"{', '.join(task_types.EVENT_NAMES)}; all unless some are named")
    ] = ()
    can: Annotated[
        Names, option("names", "only tasks that require nothing else; * is everything")
    ] = ()
    prefix: Annotated[str | None, option("text", "only ids that begin like this")] = None
    after: Annotated[
        int | None, option("int", "begin with the events after this revision, not now")
    ] = None


OPERATIONS = (
    Operation(
        name="task note",
        help="add a note to a task, for all who look at it",
        request=TaskNoteAdd,
        outcomes=(task_outcomes.TaskNoted, task_outcomes.Unchanged, GivenFenced),
        needs="agent",
        call="tasks.note",
        takes=True,
        examples=(
            "interlock task note t1 'the token expires after an hour' --agent ada",
            "git log -3 | interlock task note t1 - --agent ada",
        ),
    ),
    Operation(
        name="task notes",
        help="list the notes of a task, from the first on",
        request=TaskNotesList,
        outcomes=(TaskNotes, task_outcomes.NoTask),
        needs="store",
        reads=True,
        pages=True,
        call="tasks.notes",
    ),
    Operation(
        name="task list",
        help="list tasks by id, without complete ones",
        request=TasksList,
        outcomes=(TaskList,),
        needs="store",
        reads=True,
        pages=True,
        call="tasks.list",
        examples=(
            "interlock task list --state running,blocked --label release",
            "interlock task list --title 'login token' --needs design",
            "interlock task list --all --prefix build/ --limit 20",
        ),
    ),
    Operation(
        name="task show",
        help="show one task: its state, its text, its data, its result and its notes",
        request=TaskShow,
        outcomes=(TaskView, task_outcomes.NoTask),
        needs="store",
        reads=True,
        call="tasks.show",
    ),
    Operation(
        name="task tree",
        help="draw tasks with what they need, as a tree, for Mermaid or for Graphviz",
        request=TaskTreeShow,
        outcomes=(TaskTree, task_outcomes.NoTask),
        needs="store",
        reads=True,
        call="tasks.tree",
        examples=(
            "interlock task tree ship",
            "interlock task tree --label release --format mermaid",
            "interlock task tree ship --all --format dot | dot -Tsvg > ship.svg",
        ),
    ),
    Operation(
        name="task watch",
        help="follow the events of tasks until stopped",
        request=TaskWatch,
        outcomes=(),
        lines=(task_types.TaskEvent,),
        needs="store",
        reads=True,
        in_shell="interlock.faces.cli.streams:task_watch",
        aliases=("task subscribe",),
        examples=(
            "interlock task watch --event published,ready --can rust --json",
            "interlock task watch --prefix build/ --after 0",
        ),
    ),
)
