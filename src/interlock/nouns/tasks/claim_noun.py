"""The operations on claims, and those that end a task: their requests and declarations."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

from interlock.core.outcomes import GivenFenced
from interlock.nouns.tasks import task as task_types
from interlock.nouns.tasks import task_outcomes
from interlock.nouns.tasks.publish_options import JSON, Names, Task, value_or_file
from interlock.runtime.operation import (
    MOST_BODY,
    Duration,
    Given,
    Operation,
    Request,
    option,
    waits,
)

if TYPE_CHECKING:
    from interlock.nouns.fleet.calls import FleetCalls
    from interlock.steps import Op


Reason = Annotated[str, option("text", "the reason, shown to others", positional=True)]


Token = Annotated[int | None, option("int", "the token of the claim; may be left out in a session")]


Ttl = Annotated[
    Duration | None,
    option("duration", "how long the claim lives unless renewed; 15m, or as long as the session"),
]


Can = Annotated[
    Names | None,
    option("names", "what you can do; else what your session reports; '*' is everything"),
]


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

    can: Can = None
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
    Names | None,
    option("names", "what you can do, for --next; else what your session reports; '*' is all"),
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
    part: Annotated[float | str, option("text", "how much is done: 0.4, or 40%", positional=True)]
    doing: Annotated[str, option("text", "what is being done", positional=True)] = ""
    token: Token = None
    given: Given = ()


class TaskDone(Request, frozen=True, kw_only=True):
    """Complete a task."""

    task: Task
    token: Token = None
    result: Annotated[Any, option("json", f"the result: {JSON}")] = None
    file: Annotated[str | None, option("path", "instead of a result: a file, by reference")] = None
    next: Next = False
    can: NextCan = None
    ttl: NextTtl = None
    given: Given = ()


class TaskFail(Request, frozen=True, kw_only=True):
    """Say that an attempt failed."""

    task: Task
    reason: Reason = ""
    token: Token = None
    error: Annotated[Any, option("json", f"what went wrong, in detail: {JSON}")] = None
    final: Annotated[bool, option("flag", "no attempt will ever succeed: do not retry")] = False
    next: Next = False
    can: NextCan = None
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
    can: Can = None
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


def _progress(fleet: "FleetCalls", request: TaskReport) -> "Op[task_outcomes.ProgressOutcome]":
    from interlock.nouns.tasks.claim_reports import part_of

    part = part_of(request.part) if isinstance(request.part, str) else request.part
    return fleet.tasks.progress(
        request.task, cast("float", part), request.doing, token=request.token
    )


def _done(fleet: "FleetCalls", request: TaskDone) -> "Op[task_outcomes.CompleteOutcome]":
    completing = fleet.tasks.complete(
        request.task,
        token=request.token,
        result=(yield from value_or_file(request.result, request.file, "result")),
        then_next=request.next,
        can=request.can,
        ttl=request.ttl,
    )
    return (yield from completing)


def _fail(fleet: "FleetCalls", request: TaskFail) -> "Op[task_outcomes.FailOutcome]":
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


OPERATIONS = (
    Operation(
        name="task claim",
        help="claim one task, or show which agent works on it",
        request=TaskClaim,
        outcomes=(
            task_outcomes.Claimed,
            task_outcomes.Taken,
            task_outcomes.TaskBlocked,
            task_outcomes.TaskDeadlock,
            task_outcomes.NoTask,
            GivenFenced,
        ),
        needs="agent",
        grants=True,
        call="tasks.claim",
        joins=waits,
        takes=True,
        examples=("interlock task claim t1 --agent ada --ttl 30m",),
    ),
    Operation(
        name="task next",
        help="claim the best task that is ready and that you can do",
        request=TaskNext,
        outcomes=(task_outcomes.Claimed, task_outcomes.NoTask, GivenFenced),
        needs="agent",
        grants=True,
        call="tasks.next",
        joins=waits,
        takes=True,
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
            task_outcomes.TaskCompleted,
            task_outcomes.TaskFailed,
            task_outcomes.Taken,
            task_outcomes.TaskBlocked,
            task_outcomes.TaskDeadlock,
            task_outcomes.NoTask,
        ),
        needs="agent",
        takes=True,
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
            task_outcomes.TaskExtended,
            task_outcomes.TaskFenced,
            task_outcomes.TaskNotOwner,
            GivenFenced,
        ),
        needs="agent",
        aliases=("task heartbeat",),
        call="tasks.heartbeat",
        takes=True,
        examples=("interlock task beat t1 --agent ada --token 9",),
    ),
    Operation(
        name="task progress",
        help="report how far the work on a claim is",
        request=TaskReport,
        outcomes=(
            task_outcomes.ProgressNoted,
            task_outcomes.TaskFenced,
            task_outcomes.TaskNotOwner,
            GivenFenced,
        ),
        needs="agent",
        act=_progress,
        takes=True,
        examples=("interlock task progress t1 0.4 'compiling' --agent ada --token 9",),
    ),
    Operation(
        name="task done",
        help="complete a task; its dependents may start at once",
        request=TaskDone,
        outcomes=(
            task_outcomes.TaskCompleted,
            task_outcomes.EvidenceMissing,
            task_outcomes.EvidenceFailed,
            task_outcomes.TaskFenced,
            task_outcomes.TaskNotOwner,
            GivenFenced,
        ),
        most_body=2 * MOST_BODY,
        needs="agent",
        grants=True,
        aliases=("task complete",),
        act=_done,
        takes=True,
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
            task_outcomes.TaskFailed,
            task_outcomes.TaskFenced,
            task_outcomes.TaskNotOwner,
            GivenFenced,
        ),
        needs="agent",
        grants=True,
        act=_fail,
        takes=True,
        examples=("interlock task fail t1 'the tests do not pass' --agent ada --token 9",),
    ),
    Operation(
        name="task release",
        help="return a task to the queue; no attempt is counted",
        request=TaskRelease,
        outcomes=(
            task_outcomes.TaskReleased,
            task_outcomes.TaskFenced,
            task_outcomes.TaskNotOwner,
            GivenFenced,
        ),
        needs="agent",
        call="tasks.release",
        takes=True,
        examples=("interlock task release t1 --agent ada --token 9",),
    ),
    Operation(
        name="task cancel",
        help="cancel a task; the claim of its worker ends",
        request=TaskCancel,
        outcomes=(task_outcomes.TaskCancelled, task_outcomes.Unchanged, GivenFenced),
        needs="agent",
        call="tasks.cancel",
        takes=True,
        examples=("interlock task cancel t1 'not needed any more' --agent ada",),
    ),
    Operation(
        name="task requeue",
        help="take a task from its worker, with a reason",
        request=TaskRequeue,
        outcomes=(
            task_outcomes.TaskRequeued,
            task_outcomes.TaskFenced,
            task_outcomes.Unchanged,
        ),
        needs="agent",
        call="tasks.requeue",
        takes=True,
        examples=("interlock task requeue t1 --reason 'bob hangs' --agent maria",),
    ),
    Operation(
        name="task retry",
        help="return a task that failed or is a dead letter to the queue",
        request=TaskRetry,
        outcomes=(task_outcomes.Retried, task_outcomes.Unchanged, GivenFenced),
        needs="agent",
        call="tasks.retry",
        takes=True,
        examples=("interlock task retry t1 --agent ada",),
    ),
)
