"""The operations of planners: their requests and declarations."""

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import UNSET, UnsetType, field

from interlock.core.outcomes import GivenFenced
from interlock.errors import BadInput
from interlock.nouns.tasks import task as task_types
from interlock.nouns.tasks import task_outcomes
from interlock.nouns.tasks.publish_options import (
    JSON,
    PRIORITY_OPTION,
    Backoff,
    BackoffMost,
    Data,
    Evidence,
    Guards,
    Labels,
    Names,
    Needs,
    Priority,
    Requires,
    Retries,
    Task,
    Text,
    Title,
    shared_terms,
    value_or_file,
)
from interlock.runtime.operation import Duration, Given, Operation, Request, option

if TYPE_CHECKING:
    from interlock.nouns.fleet.calls import FleetCalls
    from interlock.steps import Op


class TaskAdd(Request, frozen=True, kw_only=True):
    """Publish a task."""

    task: Annotated[
        str | None,
        option(
            "name", "its id, which no other task may have; generated if left out", positional=True
        ),
    ] = None
    title: Title = ""
    text: Text = ""
    data: Data = None
    file: Annotated[str | None, option("path", "instead of data: a file, by reference")] = None
    priority: Priority = task_types.PRIORITY
    needs: Needs = ()
    requires: Requires = ()
    label: Labels = ()
    guard: Guards = ()
    evidence: Evidence = ()
    at: Annotated[str | None, option("text", "begin no sooner than this: 2026-11-15T10:00")] = None
    in_: Annotated[Duration | None, option("duration", "begin no sooner than in this time: 2h")] = (
        field(name="in", default=None)
    )
    not_before: Annotated[
        str | None, option("text", "either: 2h from now, or a time: 2026-11-15T10:00")
    ] = None
    deadline: Annotated[
        str | None,
        option("text", "a dead letter if no worker began it by then: 2h from now, or a time"),
    ] = None
    retries: Retries = task_types.RETRIES
    backoff: Backoff = task_types.BACKOFF
    backoff_most: BackoffMost = task_types.BACKOFF_MOST
    again: Annotated[
        bool, option("flag", "also under the id of a task that failed, died or was dropped")
    ] = False
    given: Given = ()


class TaskEdit(Request, frozen=True, kw_only=True):
    """Change a task."""

    task: Task
    priority: Annotated[int | None, PRIORITY_OPTION] = None
    title: Annotated[str | None, option("text", "what it is about, in a line; '' for none")] = None
    text: Annotated[str | None, option("body", "what to do, in any words; '' for none")] = None
    data: Annotated[Any, option("json", f"the data for its worker: {JSON}")] = UNSET
    label: Annotated[Names | None, option("names", "all its labels; '' for none")] = None
    add_label: Annotated[Names, option("names", "labels that it gets")] = ()
    remove_label: Annotated[Names, option("names", "labels that it loses")] = ()
    requires: Annotated[Names | None, option("names", "all it requires; '' for nothing")] = None
    add_requires: Annotated[Names, option("names", "abilities that it requires as well")] = ()
    remove_requires: Annotated[Names, option("names", "abilities that it requires no more")] = ()
    needs: Annotated[Names | None, option("names", "all its needs; '' for none")] = None
    add_needs: Annotated[Names, option("names", "tasks that it needs as well")] = ()
    remove_needs: Annotated[Names, option("names", "tasks that it needs no more")] = ()
    guard: Annotated[Names | None, option("names", "all its guards; '' for none")] = None
    add_guard: Annotated[Names, option("names", "guards that it gets")] = ()
    remove_guard: Annotated[Names, option("names", "guards that it loses")] = ()
    evidence: Annotated[
        Names | None, option("names", "all guards of its evidence; '' for none")
    ] = None
    add_evidence: Annotated[Names, option("names", "guards that its evidence gets")] = ()
    remove_evidence: Annotated[Names, option("names", "guards that its evidence loses")] = ()
    at: Annotated[str | None, option("text", "begin no sooner than this: 2026-11-15T10:00")] = None
    in_: Annotated[Duration | None, option("duration", "begin no sooner than in this time: 2h")] = (
        field(name="in", default=None)
    )
    not_before: Annotated[
        str | None, option("text", "either: 2h from now, or a time; '' for at once")
    ] = None
    deadline: Annotated[
        str | None,
        option("text", "a dead letter if not begun by then: 2h from now, or a time; '' for none"),
    ] = None
    retries: Annotated[
        int | None,
        option("int", "how often a failed attempt is repeated", most=task_types.MOST_RETRIES),
    ] = None
    backoff: Annotated[
        Duration | None, option("duration", "pause after a failed attempt, doubled with each one")
    ] = None
    backoff_most: Annotated[Duration | None, option("duration", "the longest pause")] = None
    given: Given = ()


class TaskDrop(Request, frozen=True, kw_only=True):
    """Drop tasks."""

    tasks: Annotated[Names, option("names", "the ids of the tasks", positional=True)]
    reason: Annotated[str, option("text", "the reason, shown to others")] = ""
    given: Given = ()


class TaskImport(Request, frozen=True, kw_only=True):
    """Publish a whole plan."""

    file: Annotated[
        str,
        option("path", "a JSON array of tasks, or JSON Lines; - is stdin", positional=True),
    ]
    id: Annotated[str | None, option("name", "the id of the plan; its digest if left out")] = None
    dry_run: Annotated[
        bool, option("flag", "write nothing; check it, or show what --update would change")
    ] = False
    update: Annotated[
        bool,
        option("flag", "change the plan of this --id: add, edit, and drop what never began"),
    ] = False
    given: Given = ()


def _add(fleet: "FleetCalls", request: TaskAdd) -> "Op[task_outcomes.PublishOutcome]":
    data = yield from value_or_file(request.data, request.file, "data")
    publishing = fleet.tasks.publish(
        request.task,
        data,
        not_before=_begins(request),
        again=request.again,
        **shared_terms(request),
    )
    return (yield from publishing)


def _begins(request: TaskAdd | TaskEdit) -> str | float | None:
    """The moment before which it must not begin, whichever way it was given."""
    given = [each for each in (request.at, request.in_, request.not_before) if each is not None]
    if len(given) > 1:
        raise BadInput("--at, --in and --not-before say the same thing; give one of them")
    return given[0] if given else None


def _edit(fleet: "FleetCalls", request: TaskEdit) -> "Op[task_outcomes.EditOutcome]":
    return fleet.tasks.edit(
        request.task,
        priority=request.priority,
        title=request.title,
        text=request.text,
        data=request.data,
        labels=_whole_list(request.label),
        add_labels=request.add_label,
        remove_labels=request.remove_label,
        requires=_whole_list(request.requires),
        add_requires=request.add_requires,
        remove_requires=request.remove_requires,
        needs=_whole_list(request.needs),
        add_needs=request.add_needs,
        remove_needs=request.remove_needs,
        guard=_whole_list(request.guard),
        add_guard=request.add_guard,
        remove_guard=request.remove_guard,
        evidence=_whole_list(request.evidence),
        add_evidence=request.add_evidence,
        remove_evidence=request.remove_evidence,
        not_before=_moment(_begins(request)),
        deadline=_moment(request.deadline),
        retries=request.retries,
        backoff=request.backoff,
        backoff_most=request.backoff_most,
    )


def _moment(given: str | float | None) -> str | float | UnsetType | None:
    """A moment; one that was not given stays, and a command line writes '' for none."""
    if given is None:
        return UNSET
    return None if given == "" else given


def _whole_list(names: Names | None) -> Names | None:
    """The names of a list; a command line writes an empty one as ''."""
    return () if names == ("",) else names


def _import(fleet: "FleetCalls", request: TaskImport) -> "Op[Any]":
    from interlock.nouns.tasks.plan import read_file

    specs, tasks = read_file(request.file), fleet.tasks
    if request.update:
        return (yield from tasks.update_all(specs, id=request.id, dry_run=request.dry_run))
    outcome = yield from tasks.publish_all(specs, id=request.id, dry_run=request.dry_run)
    if request.dry_run and request.id and isinstance(outcome, task_outcomes.PlanExists):
        return (yield from tasks.update_all(specs, id=request.id, dry_run=True))
    return outcome


OPERATIONS = (
    Operation(
        name="task add",
        help="publish a task; an id that is taken is refused, never overwritten",
        request=TaskAdd,
        outcomes=(task_outcomes.Published, task_outcomes.TaskExists, GivenFenced),
        needs="agent",
        aliases=("task publish",),
        act=_add,
        examples=(
            "interlock task add t1 --title 'Fix the login' --text - --label web < login.md",
            "interlock task add t1 --data '{\"x\": 1}' --priority 2 --requires rust",
            "interlock task add t2 --needs t1 --data @spec.json --agent ada",
            "interlock task add train --file model.bin --agent ada",
            "interlock task add t4 --in 2h --agent ada",
            "interlock task add t3 --guard calm --evidence tested --agent ada",
        ),
    ),
    Operation(
        name="task edit",
        help="change a task that no worker has; the record keeps the old values",
        request=TaskEdit,
        outcomes=(task_outcomes.TaskEdited, task_outcomes.Unchanged, GivenFenced),
        needs="agent",
        act=_edit,
        takes=True,
        examples=(
            "interlock task edit t2 --priority 1 --agent ada",
            "interlock task edit t2 --add-needs t1 --remove-label later --agent ada",
            "interlock task edit t2 --needs '' --agent ada",
            "interlock task edit t2 --in 2h --deadline '' --add-evidence tested --agent ada",
        ),
    ),
    Operation(
        name="task drop",
        help="drop tasks that never began: all of these, or none",
        request=TaskDrop,
        outcomes=(task_outcomes.TasksDropped, task_outcomes.Unchanged, GivenFenced),
        needs="agent",
        call="tasks.drop",
        spread="tasks",
        takes=True,
        examples=("interlock task drop t2 t3 --reason 'not needed any more' --agent ada",),
    ),
    Operation(
        name="task import",
        help="publish a whole plan: all of its tasks, or none",
        request=TaskImport,
        outcomes=(
            task_outcomes.Imported,
            task_outcomes.Checked,
            task_outcomes.PlanChanges,
            task_outcomes.PlanUpdated,
            task_outcomes.PlanExists,
            GivenFenced,
        ),
        needs="agent",
        aliases=("task publish-all",),
        act=_import,
        examples=(
            "interlock task import plan.json --agent ada",
            "interlock task import plan.jsonl --agent ada --dry-run",
            "interlock task import plan.jsonl --agent ada --id release-7 --update",
            "make-plan | interlock task import - --agent ada --id release-7 --json",
        ),
    ),
)
