"""The declaration of tasks: their requests, operations, keys, and what they add to other parts.

It is long, since each operation is declared with all its options, and in one place.
"""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias

from msgspec import UNSET, field

from interlock.core import keys
from interlock.core.outcomes import GivenFenced
from interlock.errors import BadInput
from interlock.nouns.tasks import task as task_types
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
from interlock.runtime.noun import KeyKind, Noun, Part
from interlock.runtime.operation import Duration, Given, Operation, Request, option, waits

if TYPE_CHECKING:
    from interlock.nouns.fleet.calls import FleetCalls
    from interlock.steps import Op

Names: TypeAlias = tuple[str, ...]
Task = Annotated[str, option("name", "the id of the task", positional=True)]
Reason = Annotated[str, option("text", "the reason, shown to others", positional=True)]
Token = Annotated[int | None, option("int", "the token of the claim; may be left out in a session")]
Ttl = Annotated[
    Duration | None,
    option("duration", "how long the claim lives unless renewed; 15m, or as long as the session"),
]
_JSON = "JSON, up to 1 MiB"


class TaskAdd(Request, frozen=True, kw_only=True):
    """Publish a task."""

    task: Annotated[
        str | None,
        option(
            "name", "its id, which no other task may have; generated if left out", positional=True
        ),
    ] = None
    title: Annotated[str, option("text", "what it is about, in a line")] = ""
    text: Annotated[str, option("body", "what to do, in any words, up to 64 KiB")] = ""
    data: Annotated[Any, option("json", f"the data for its worker: {_JSON}")] = None
    file: Annotated[str | None, option("path", "instead of data: a file, by reference")] = None
    priority: Annotated[
        int,
        option(
            "int",
            "a lower number comes first",
            least=keys.LEAST_PRIORITY,
            most=keys.GREATEST_PRIORITY,
        ),
    ] = task_types.PRIORITY
    needs: Annotated[Names, option("names", "tasks that must be complete before it starts")] = ()
    requires: Annotated[
        Names, option("names", "abilities that 'task next' asks of the worker")
    ] = ()
    label: Annotated[Names, option("names", "labels to filter by")] = ()
    guard: Annotated[Names, option("names", "guards that must pass before it can be claimed")] = ()
    evidence: Annotated[
        Names, option("names", "guards that must pass before it can be completed")
    ] = ()
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
    retries: Annotated[
        int, option("int", "how often a failed attempt is repeated", most=task_types.MOST_RETRIES)
    ] = task_types.RETRIES
    backoff: Annotated[
        Duration, option("duration", "pause after a failed attempt, doubled with each one")
    ] = task_types.BACKOFF
    backoff_most: Annotated[Duration, option("duration", "the longest pause")] = (
        task_types.BACKOFF_MOST
    )
    again: Annotated[
        bool, option("flag", "also under the id of a task that failed, died or was dropped")
    ] = False
    given: Given = ()


class TaskEdit(Request, frozen=True, kw_only=True):
    """Change a task."""

    task: Task
    priority: Annotated[
        int | None,
        option(
            "int",
            "a lower number comes first",
            least=keys.LEAST_PRIORITY,
            most=keys.GREATEST_PRIORITY,
        ),
    ] = None
    title: Annotated[str | None, option("text", "what it is about, in a line; '' for none")] = None
    text: Annotated[str | None, option("body", "what to do, in any words; '' for none")] = None
    data: Annotated[Any, option("json", f"the data for its worker: {_JSON}")] = UNSET
    label: Annotated[Names | None, option("names", "all its labels; '' for none")] = None
    add_label: Annotated[Names, option("names", "labels that it gets")] = ()
    remove_label: Annotated[Names, option("names", "labels that it loses")] = ()
    requires: Annotated[Names | None, option("names", "all it requires; '' for nothing")] = None
    add_requires: Annotated[Names, option("names", "abilities that it requires as well")] = ()
    remove_requires: Annotated[Names, option("names", "abilities that it requires no more")] = ()
    needs: Annotated[Names | None, option("names", "all its needs; '' for none")] = None
    add_needs: Annotated[Names, option("names", "tasks that it needs as well")] = ()
    remove_needs: Annotated[Names, option("names", "tasks that it needs no more")] = ()
    given: Given = ()


class TaskDrop(Request, frozen=True, kw_only=True):
    """Drop tasks."""

    tasks: Annotated[Names, option("names", "the ids of the tasks", positional=True)]
    reason: Annotated[str, option("text", "the reason, shown to others")] = ""
    given: Given = ()


class TaskClaim(Request, frozen=True, kw_only=True):
    """Claim one task."""

    task: Task
    ttl: Ttl = None
    wait: Annotated[
        Duration,
        option("duration", "wait until it can be claimed: 5m, or forever", forever=True),
    ] = 0.0
    given: Given = ()


class TaskNext(Request, frozen=True, kw_only=True):
    """Claim the best task."""

    can: Annotated[Names, option("names", "what you are able to do; '*' is everything")] = ()
    limit: Annotated[
        int,
        option(
            "int",
            "claim up to so many tasks in one commit",
            least=1,
            most=task_types.CLAIMED_AT_ONCE,
        ),
    ] = 1
    ttl: Ttl = None
    wait: Annotated[
        Duration, option("duration", "wait until there is one: 5m, or forever", forever=True)
    ] = 0.0
    given: Given = ()


Next = Annotated[
    bool, option("flag", "claim the next task in the same commit, as 'task next' does")
]
NextCan = Annotated[
    Names, option("names", "what you are able to do, for --next; '*' is everything")
]
NextTtl = Annotated[
    Duration | None, option("duration", "how long the claim of --next lives unless renewed")
]


class TaskBeat(Request, frozen=True, kw_only=True):
    """Renew a claim."""

    task: Task
    token: Token = None
    given: Given = ()


class TaskReport(Request, frozen=True, kw_only=True):
    """Say how far the work is."""

    task: Task
    part: Annotated[Any, option("json", "how much is done, from 0 to 1", positional=True)]
    doing: Annotated[str, option("text", "what is being done", positional=True)] = ""
    token: Token = None
    given: Given = ()


class TaskDone(Request, frozen=True, kw_only=True):
    """Complete a task."""

    task: Task
    token: Token = None
    result: Annotated[Any, option("json", f"the result: {_JSON}")] = None
    file: Annotated[str | None, option("path", "instead of a result: a file, by reference")] = None
    next: Next = False
    can: NextCan = ()
    ttl: NextTtl = None
    given: Given = ()


class TaskFail(Request, frozen=True, kw_only=True):
    """Say that an attempt failed."""

    task: Task
    reason: Reason = ""
    token: Token = None
    error: Annotated[Any, option("json", f"what went wrong, in detail: {_JSON}")] = None
    final: Annotated[bool, option("flag", "no attempt will ever succeed: do not retry")] = False
    next: Next = False
    can: NextCan = ()
    ttl: NextTtl = None
    given: Given = ()


class TaskRelease(Request, frozen=True, kw_only=True):
    """Give a task back."""

    task: Task
    token: Token = None
    given: Given = ()


class TaskCancel(Request, frozen=True, kw_only=True):
    """Call a task off."""

    task: Task
    reason: Reason = ""
    given: Given = ()


class TaskRequeue(Request, frozen=True, kw_only=True):
    """End the claim of another."""

    task: Task
    reason: Annotated[str, option("text", "the reason, for the worker and the record")] = ""
    token: Annotated[
        int | None, option("int", "only the claim with this token; else any claim")
    ] = None


class TaskRetry(Request, frozen=True, kw_only=True):
    """Send a task back."""

    task: Task
    given: Given = ()


class TaskRun(Request, frozen=True, kw_only=True):
    """Run a program for a task: the one named, the next one, or one after the other."""

    exit_of_program: ClassVar[str] = "failed"
    exit_words: ClassVar[dict[int, str]] = {
        0: "asked to stop (--loop)",
        124: "the program took longer than --timeout",
        126: "the program cannot be run; the task is back in the queue",
        127: "there is no such program; nothing was claimed, or it is back in the queue",
    }

    task: Annotated[
        str | None, option("name", "the id of the task; the next one if left out", positional=True)
    ] = None
    can: Annotated[Names, option("names", "what you are able to do; '*' is everything")] = ()
    loop: Annotated[bool, option("flag", "go on with the next task until asked to stop")] = False
    jobs: Annotated[
        int, option("int", "how many programs run at once, with --loop", least=1, most=1000)
    ] = 1
    timeout: Annotated[
        Duration | None, option("duration", "end a program that takes longer, and fail the attempt")
    ] = None
    wait: Annotated[
        Duration,
        option("duration", "wait until there is a task: 5m, or forever", forever=True),
    ] = 0.0
    ttl: Annotated[
        Duration,
        option("duration", "how long a claim lives if this command dies; then another one begins"),
    ] = 60.0
    grace: Annotated[
        Duration,
        option("duration", "time between SIGTERM and SIGKILL when the program has to end"),
    ] = 5.0
    command: Annotated[Names, option("command", "the program, after --", positional=True)] = ()


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
        option("flag", "change the plan of this --id: add, edit and drop tasks that never began"),
    ] = False
    given: Given = ()


def _value(value: Any, file: str | None, what: str) -> "Op[Any]":  # noqa: ANN401 - any JSON value
    """A value as it was given, or the reference to a file."""
    if file is None:
        return value
    from interlock.nouns.tasks.file_values import reference

    if value is not None:
        raise BadInput(f"--file is instead of --{what}; give one of them")
    return (yield from reference(file))


def _add(fleet: "FleetCalls", request: TaskAdd) -> "Op[task_types.PublishOutcome]":
    data = yield from _value(request.data, request.file, "data")
    publishing = fleet.tasks.publish(
        request.task,
        data,
        priority=request.priority,
        requires=request.requires,
        needs=request.needs,
        title=request.title,
        text=request.text,
        labels=request.label,
        guard=request.guard,
        evidence=request.evidence,
        not_before=_begins(request),
        deadline=request.deadline,
        retries=request.retries,
        backoff=request.backoff,
        backoff_most=request.backoff_most,
        again=request.again,
    )
    return (yield from publishing)


def _begins(request: TaskAdd) -> str | float | None:
    """The moment before which it must not begin, whichever way it was given."""
    given = [each for each in (request.at, request.in_, request.not_before) if each is not None]
    if len(given) > 1:
        raise BadInput("--at, --in and --not-before say the same thing; give one of them")
    return given[0] if given else None


def _edit(fleet: "FleetCalls", request: TaskEdit) -> "Op[task_types.EditOutcome]":
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
    )


def _whole_list(names: Names | None) -> Names | None:
    """The names of a list; a command line writes an empty one as ''."""
    return () if names == ("",) else names


def _done(fleet: "FleetCalls", request: TaskDone) -> "Op[task_types.CompleteOutcome]":
    completing = fleet.tasks.complete(
        request.task,
        token=request.token,
        result=(yield from _value(request.result, request.file, "result")),
        then_next=request.next,
        can=request.can,
        ttl=request.ttl,
    )
    return (yield from completing)


def _fail(fleet: "FleetCalls", request: TaskFail) -> "Op[task_types.FailOutcome]":
    return fleet.tasks.fail(
        request.task,
        request.reason,
        token=request.token,
        error=request.error,
        retry=not request.final,
        then_next=request.next,
        can=request.can,
        ttl=request.ttl,
    )


def _import(fleet: "FleetCalls", request: TaskImport) -> "Op[Any]":
    from interlock.nouns.tasks.plan import read_file

    specs, tasks = read_file(request.file), fleet.tasks
    if request.update:
        return (yield from tasks.update_all(specs, id=request.id, dry_run=request.dry_run))
    outcome = yield from tasks.publish_all(specs, id=request.id, dry_run=request.dry_run)
    if request.dry_run and request.id and isinstance(outcome, task_types.PlanExists):
        return (yield from tasks.update_all(specs, id=request.id, dry_run=True))
    return outcome


NOUN = Noun(
    gates={"task": "interlock.nouns.tasks.gates:move_on"},
    gate_flags={"task": "interlock.nouns.tasks.task_reader:set_gated"},
    name="task",
    help="units of work, each claimed by one worker at a time and completed once",
    calls="interlock.nouns.tasks.calls:TaskCalls",
    blocking="interlock.client_tasks:Tasks",
    awaiting="interlock.aio_tasks:Tasks",
    keys=tuple(
        KeyKind(prefix=prefix, read="interlock.nouns.tasks.task_reader:examine", bulk=True)
        for prefix in keys.TASK_FOLDERS
    ),
    why={"task": "interlock.nouns.tasks.why:task"},
    health=Part(30, "interlock.nouns.tasks.health:health"),
    gauges="interlock.nouns.tasks.metrics:task_gauges",
    housekeeping=Part(10, "interlock.nouns.tasks.housekeeping:TaskHousekeepingPart"),
    history="interlock.nouns.tasks.history:TaskHistory",
    waits={keys.TASKS: "interlock.nouns.tasks.claim_wait:wait_targets"},
    proof="interlock.nouns.grants.pool_reader:claim_liveness",
    history_details="interlock.nouns.tasks.history:with_reason",
    texts=("interlock.nouns.tasks.text",),
    operations=(
        Operation(
            name="task add",
            help="publish a task; an id that is taken is refused, never overwritten",
            request=TaskAdd,
            outcomes=(task_types.Published, task_types.TaskExists, GivenFenced),
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
            outcomes=(task_types.TaskEdited, task_types.Unchanged, GivenFenced),
            needs="agent",
            act=_edit,
            examples=(
                "interlock task edit t2 --priority 1 --agent ada",
                "interlock task edit t2 --add-needs t1 --remove-label later --agent ada",
                "interlock task edit t2 --needs '' --agent ada",
            ),
        ),
        Operation(
            name="task drop",
            help="drop tasks that never began: all of these, or none",
            request=TaskDrop,
            outcomes=(task_types.TasksDropped, task_types.Unchanged, GivenFenced),
            needs="agent",
            call="tasks.drop",
            spread="tasks",
            examples=("interlock task drop t2 t3 --reason 'not needed any more' --agent ada",),
        ),
        Operation(
            name="task claim",
            help="claim one task, or show which agent works on it",
            request=TaskClaim,
            outcomes=(
                task_types.Claimed,
                task_types.Taken,
                task_types.TaskBlocked,
                task_types.TaskDeadlock,
                task_types.NoTask,
                GivenFenced,
            ),
            needs="agent",
            grants=True,
            call="tasks.claim",
            joins=waits,
            examples=("interlock task claim t1 --agent ada --ttl 30m",),
        ),
        Operation(
            name="task next",
            help="claim the best task that is ready and that you can do",
            request=TaskNext,
            outcomes=(task_types.Claimed, task_types.NoTask, GivenFenced),
            needs="agent",
            grants=True,
            call="tasks.next",
            joins=waits,
            examples=(
                "interlock task next --can rust,gpu --agent ada --wait 5m",
                "interlock task next --limit 8 --ttl 15m --agent ada",
            ),
        ),
        Operation(
            name="task run",
            help="run a program for a task: data on stdin, completed by its status",
            request=TaskRun,
            outcomes=(
                task_types.TaskCompleted,
                task_types.TaskFailed,
                task_types.Taken,
                task_types.TaskBlocked,
                task_types.TaskDeadlock,
                task_types.NoTask,
            ),
            needs="agent",
            in_shell="interlock.faces.cli.task_run:task_run",
            examples=(
                "interlock task run t1 --agent ada -- make test",
                "interlock task run --can rust --loop --jobs 4 --timeout 10m -- ./build.sh",
            ),
        ),
        Operation(
            name="task beat",
            help="renew a claim before it expires",
            request=TaskBeat,
            outcomes=(
                task_types.TaskExtended,
                task_types.TaskFenced,
                task_types.TaskNotOwner,
                GivenFenced,
            ),
            needs="agent",
            aliases=("task heartbeat",),
            call="tasks.heartbeat",
            examples=("interlock task beat t1 --agent ada --token 9",),
        ),
        Operation(
            name="task progress",
            help="report how far the work on a claim is",
            request=TaskReport,
            outcomes=(
                task_types.ProgressNoted,
                task_types.TaskFenced,
                task_types.TaskNotOwner,
                GivenFenced,
            ),
            needs="agent",
            call="tasks.progress",
            examples=("interlock task progress t1 0.4 'compiling' --agent ada --token 9",),
        ),
        Operation(
            name="task done",
            help="complete a task; its dependents may start at once",
            request=TaskDone,
            outcomes=(
                task_types.TaskCompleted,
                task_types.EvidenceMissing,
                task_types.EvidenceFailed,
                task_types.TaskFenced,
                task_types.TaskNotOwner,
                GivenFenced,
            ),
            needs="agent",
            grants=True,
            aliases=("task complete",),
            act=_done,
            examples=(
                "interlock task done t1 --agent ada --token 9 --result '{\"pull\": 7}'",
                "interlock task done t1 --next --can rust",
            ),
        ),
        Operation(
            name="task fail",
            help="report that an attempt failed; the task is retried after a pause",
            request=TaskFail,
            outcomes=(
                task_types.TaskFailed,
                task_types.TaskFenced,
                task_types.TaskNotOwner,
                GivenFenced,
            ),
            needs="agent",
            grants=True,
            act=_fail,
            examples=("interlock task fail t1 'the tests do not pass' --agent ada --token 9",),
        ),
        Operation(
            name="task release",
            help="return a task to the queue; no attempt is counted",
            request=TaskRelease,
            outcomes=(
                task_types.TaskReleased,
                task_types.TaskFenced,
                task_types.TaskNotOwner,
                GivenFenced,
            ),
            needs="agent",
            call="tasks.release",
            examples=("interlock task release t1 --agent ada --token 9",),
        ),
        Operation(
            name="task cancel",
            help="cancel a task; the claim of its worker ends",
            request=TaskCancel,
            outcomes=(task_types.TaskCancelled, task_types.Unchanged, GivenFenced),
            needs="agent",
            call="tasks.cancel",
            examples=("interlock task cancel t1 'not needed any more' --agent ada",),
        ),
        Operation(
            name="task requeue",
            help="take a task from its worker, with a reason",
            request=TaskRequeue,
            outcomes=(task_types.TaskRequeued, task_types.TaskFenced, task_types.Unchanged),
            needs="agent",
            call="tasks.requeue",
            examples=("interlock task requeue t1 --reason 'bob hangs' --agent maria",),
        ),
        Operation(
            name="task retry",
            help="return a task that failed or is a dead letter to the queue",
            request=TaskRetry,
            outcomes=(task_types.Retried, task_types.Unchanged, GivenFenced),
            needs="agent",
            call="tasks.retry",
            examples=("interlock task retry t1 --agent ada",),
        ),
        Operation(
            name="task note",
            help="add a note to a task, for all who look at it",
            request=TaskNoteAdd,
            outcomes=(task_types.TaskNoted, task_types.Unchanged, GivenFenced),
            needs="agent",
            call="tasks.note",
            examples=(
                "interlock task note t1 'the token expires after an hour' --agent ada",
                "git log -3 | interlock task note t1 - --agent ada",
            ),
        ),
        Operation(
            name="task notes",
            help="list the notes of a task, from the first on",
            request=TaskNotesList,
            outcomes=(TaskNotes, task_types.NoTask),
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
            outcomes=(TaskView, task_types.NoTask),
            needs="store",
            reads=True,
            call="tasks.show",
        ),
        Operation(
            name="task tree",
            help="draw tasks with what they need, as a tree, for Mermaid or for Graphviz",
            request=TaskTreeShow,
            outcomes=(TaskTree, task_types.NoTask),
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
        Operation(
            name="task import",
            help="publish a whole plan: all of its tasks, or none",
            request=TaskImport,
            outcomes=(
                task_types.Imported,
                task_types.Checked,
                task_types.PlanChanges,
                task_types.PlanUpdated,
                task_types.PlanExists,
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
    ),
)
