"""The declaration of operations on the whole store, or on this process and folder."""

from typing import TYPE_CHECKING, Annotated

from msgspec import field

from interlock.core import item_outcomes, outcomes
from interlock.core import validate as words
from interlock.core.decision import Success
from interlock.core.validate import command
from interlock.errors import BadInput
from interlock.nouns.grants import several
from interlock.nouns.grants.lock_noun import Guards, MaxHold, Metadata, Wait
from interlock.runtime.health import Health
from interlock.runtime.housekeeping import Maintained
from interlock.runtime.noun import Noun
from interlock.runtime.observe import Counters, Observed
from interlock.runtime.operation import Duration, Operation, Request, option
from interlock.runtime.why import Why
from interlock.store import Finding

if TYPE_CHECKING:
    from interlock.nouns.fleet.calls import FleetCalls
    from interlock.steps import Op


class InitRequest(Request, frozen=True, kw_only=True):
    """Create a store."""

    shared: Annotated[
        bool,
        option("flag", "in the git folder of the repository, which no commit can write"),
    ] = False


class AllowRequest(Request, frozen=True, kw_only=True):
    """Allow the settings and the store of a work tree on this machine."""

    folder: Annotated[
        str, option("path", "the work tree; this one unless given", positional=True)
    ] = ""
    remove: Annotated[bool, option("flag", "take it back")] = False


class DemoRequest(Request, frozen=True, kw_only=True):
    """Run the demonstration."""

    ttl: Annotated[Duration, option("duration", "how long a killed worker's grants last")] = 2.0
    workers: Annotated[int, option("int", "how many workers")] = 8


class RunRequest(Request, frozen=True, kw_only=True):
    """Run a program inside a session."""

    ttl: Annotated[
        Duration, option("duration", "how long the session lives after its last heartbeat")
    ] = 30.0
    hold: Annotated[
        tuple[str, ...],
        option("things", "hold this while it runs: lock/merge, sem/builds=2"),
    ] = ()
    wait: Wait = 0.0
    max_hold: MaxHold = None
    metadata: Metadata = None
    guard: Guards = ()
    grace: Annotated[
        Duration,
        option(
            "duration",
            "time between SIGTERM and SIGKILL when the session is lost, or a message asks to stop",
        ),
    ] = 10.0
    worktree: Annotated[
        str | None,
        option("text", "run it in a worktree of this branch; both are made if they are missing"),
    ] = None
    into: Annotated[
        str, option("name", "remove the worktree in the end if it is clean and merged into this")
    ] = "main"
    restart: Annotated[str, option("text", "start it again: never, after a failure, or always")] = (
        "never"
    )
    backoff: Annotated[
        Duration, option("duration", "pause before it starts again, doubled up to a minute")
    ] = 1.0
    log: Annotated[bool, option("flag", "also add its output to the log of the agent")] = False
    command: Annotated[
        tuple[str, ...], option("command", "the program with its arguments", positional=True)
    ] = ()


class WhyRequest(Request, frozen=True, kw_only=True):
    """Explain what blocks a thing; without one, the gravest problem of the fleet."""

    thing: Annotated[
        str | None,
        option(
            "name",
            "task/t1, lock/merge, pipeline/r1 (or just t1, merge, r1), sem/builds, guard/calm,"
            " schedule/nightly, agent/ada, qry_..., req_...; without it the gravest problem",
            positional=True,
        ),
    ] = None


_MINUTE = "1m"


class ObserveRequest(Request, frozen=True, kw_only=True):
    """Follow every event as it is recorded."""

    noun: Annotated[
        tuple[str, ...], option("names", "only these: message, query, task, lock, agent ...")
    ] = ()
    after: Annotated[
        int | None, option("int", "begin with the events after this revision, not now")
    ] = None
    counts: Annotated[bool, option("flag", "print totals instead of events")] = False
    since: Annotated[
        str | None,
        option("text", "count since: 5m (1m unless set), or a time: 2026-11-15T10:00"),
    ] = None


def fitting(request: ObserveRequest) -> ObserveRequest:
    """The request, checked: events after a revision, or counters since a time, not both."""
    if request.counts and (request.noun or request.after is not None):
        raise BadInput("--counts counts all events; leave --noun and --after out")
    if request.since is not None and not request.counts:
        raise BadInput("--since is for --counts; events begin --after a revision, or now")
    return request


def _counters(fleet: "FleetCalls", request: ObserveRequest) -> "Op[Counters]":
    since = fitting(request).since
    return fleet.counters(since=_MINUTE if since is None else since)


class HealthRequest(Request, frozen=True, kw_only=True):
    """List the problems that need attention."""

    dead_after: Annotated[
        Duration, option("duration", "report a session that expired longer ago and still exists")
    ] = 300.0
    waiting: Annotated[
        Duration, option("duration", "report a waiter, task or message that waits for longer")
    ] = 3600.0
    held: Annotated[Duration, option("duration", "report a grant held for longer")] = 3600.0
    stuck: Annotated[Duration, option("duration", "report a task that runs for longer")] = 3600.0


class DoctorRequest(Request, frozen=True, kw_only=True):
    """Check this machine, folder and store."""


class Diagnosis(outcomes.Listing[Finding], frozen=True, kw_only=True):
    """The findings of ``doctor``."""

    listed = "checks"

    checks: tuple[Finding, ...]

    def __bool__(self) -> bool:
        """Whether nothing is bad."""
        return self.exit_status == 0

    @property
    def exit_status(self) -> int:
        """The status of a store error if any check is bad."""
        return 4 if any(check.verdict == "bad" for check in self.checks) else 0


class MaintainRequest(Request, frozen=True, kw_only=True):
    """Release stale grants and delete expired data."""

    guards: Annotated[
        bool,
        option(
            "flag",
            "keep looking at branches, files and commands, for things that wait for guards which"
            " this host allows",
        ),
    ] = False
    timeout: Annotated[
        Duration | None,
        option("duration", "with --guards: stop after this time; one round with 0"),
    ] = field(default=None, name="for")


class BenchRequest(Request, frozen=True, kw_only=True):
    """Measure this machine."""

    only: Annotated[str | None, option("text", "one measurement, by its name in the table")] = None
    quick: Annotated[bool, option("flag", "fewer rounds: rough figures in seconds")] = False


class SchemaRequest(Request, frozen=True, kw_only=True):
    """Describe the JSON that a command prints."""

    words: Annotated[
        tuple[str, ...],
        option("names", "a command, such as lock acquire; all if left out", positional=True),
    ] = ()


class SelftestRequest(Request, frozen=True, kw_only=True):
    """Test the guarantees on a real store."""

    race: Annotated[
        bool, option("flag", "processes claim the same tasks; each must have one winner")
    ] = False
    processes: Annotated[int, option("int", "how many processes", least=2, most=64)] = 8
    tasks: Annotated[int, option("int", "how many tasks", least=1, most=100_000)] = 1000
    seconds: Annotated[
        Duration | None, option("duration", "stop after this time, even if tasks are left")
    ] = None


class Created(Success, frozen=True, kw_only=True, tag="created"):
    """The store was created."""

    own_words = ("store",)

    store: str


class WorkTreeAllowed(item_outcomes.Allowed, frozen=True, kw_only=True, tag="allowed"):
    """Settings and a store of a work tree count on this machine; ``files`` are empty if none do."""

    folder: str
    files: tuple[str, ...]


class WorkTreeDenied(item_outcomes.Denied, frozen=True, kw_only=True, tag="denied"):
    """Nothing of a work tree counts any more on this machine."""

    folder: str
    files: tuple[str, ...]


class StoreExists(
    item_outcomes.Exists, Success, frozen=True, kw_only=True, tag="exists", omit_defaults=True
):
    """The store existed already and was not changed; ``warning`` says why it accepts no changes."""

    own_words = ("store",)

    store: str
    warning: str = ""


def _why(fleet: "FleetCalls", request: WhyRequest) -> "Op[Why | Health]":
    if request.thing is None:
        return (yield from fleet.health()).gravest()
    kind, _, name = request.thing.partition("/")
    if (kind == "session" and name) or kind.startswith("ses_"):
        raise BadInput(
            "'why' knows tasks, locks, semaphores, pipelines, guards, schedules, agents, queries,"
            " messages and requests;"
            f" see {command(f'interlock agent show {words.quote(name or kind)}')}, or write"
            f" lock/{request.thing} for a lock of that name"
        )
    return (yield from fleet.why(request.thing))


NOUN = Noun(
    name="fleet",
    texts=("interlock.nouns.fleet.text",),
    why_plain="interlock.nouns.fleet.plain_name:why",
    operations=(
        Operation(
            name="init",
            help="create a store here, shared by all worktrees of the repository",
            request=InitRequest,
            outcomes=(Created, StoreExists),
            needs="nothing",
            in_shell="interlock.faces.cli.fleet:init",
            examples=(
                "interlock init",
                "interlock init --store /var/lib/interlock/store.db",
                "interlock init --store redis://localhost",
                "interlock init --shared",
            ),
        ),
        Operation(
            name="allow",
            help="look at the settings and the store of a work tree, and allow them here",
            request=AllowRequest,
            outcomes=(WorkTreeAllowed, WorkTreeDenied),
            needs="nothing",
            in_shell="interlock.faces.cli.allow:allow",
            examples=("interlock allow", "interlock allow --remove"),
        ),
        Operation(
            name="demo",
            help="run a demonstration: agents work, one crashes, another takes over",
            request=DemoRequest,
            outcomes=(),
            needs="nothing",
            in_shell="interlock.faces.cli.fleet:demo",
        ),
        Operation(
            name="run",
            help="run a program inside a session that is kept alive for it",
            request=RunRequest,
            outcomes=(
                several.SeveralBusy,
                several.SeveralDeadlock,
                outcomes.GuardBlocked,
                outcomes.NoGuard,
            ),
            needs="agent",
            in_shell="interlock.faces.cli.run:run",
            examples=(
                "interlock run --agent ada -- python worker.py",
                "interlock run --agent ada --hold lock/merge --hold sem/builds=2 -- make",
                "interlock run --agent ada --worktree search --restart failure -- claude",
            ),
        ),
        Operation(
            name="why",
            help="explain what blocks a thing, since when, and who can clear it",
            request=WhyRequest,
            outcomes=(Why, Health),
            needs="store",
            reads=True,
            act=_why,
            examples=(
                "interlock why lock/merge",
                "interlock why task/t1",
                "interlock why agent/ada",
                "interlock why",
            ),
        ),
        Operation(
            name="observe",
            help="follow every event as it is recorded, or print totals",
            request=ObserveRequest,
            outcomes=(Counters,),
            lines=(Observed,),
            needs="store",
            reads=True,
            in_shell="interlock.faces.cli.streams:observe",
            act=_counters,
            examples=(
                "interlock observe --json",
                "interlock observe --noun message,query",
                "interlock observe --counts --since 5m",
            ),
        ),
        Operation(
            name="health",
            help="list problems that need attention, one per line; for monitors",
            request=HealthRequest,
            outcomes=(Health,),
            needs="store",
            reads=True,
            call="health",
            examples=("interlock health", "interlock health --held 2h --stuck 30m --json"),
        ),
        Operation(
            name="doctor",
            help="check this machine, folder and store, and say what to fix",
            request=DoctorRequest,
            outcomes=(Diagnosis,),
            needs="nothing",
            reads=True,
            in_shell="interlock.faces.cli.fleet:doctor",
        ),
        Operation(
            name="maintain",
            help="release stale locks and claims, delete expired data",
            request=MaintainRequest,
            outcomes=(Maintained,),
            needs="store",
            in_shell="interlock.faces.cli.fleet:maintain",
            call="maintain",
            local=lambda request: request.guards,
            examples=("interlock maintain", "interlock maintain --guards --for 10m"),
        ),
        Operation(
            name="bench",
            help="measure each operation, and the bare engine beside it",
            request=BenchRequest,
            outcomes=(),
            needs="nothing",
            in_shell="interlock.faces.cli.fleet:bench",
        ),
        Operation(
            name="schema",
            help="print the JSON schema of a command's --json output",
            request=SchemaRequest,
            outcomes=(dict,),
            needs="nothing",
            reads=True,
            in_shell="interlock.faces.cli.fleet:schema",
            examples=("interlock schema lock acquire", "interlock schema --json"),
        ),
        Operation(
            name="selftest",
            help="test the guarantees on your store, with real processes",
            request=SelftestRequest,
            outcomes=(),
            needs="nothing",
            in_shell="interlock.faces.cli.fleet:selftest",
            examples=(
                "interlock selftest --race",
                "interlock selftest --race --store redis://localhost --seconds 10s",
            ),
        ),
    ),
)
