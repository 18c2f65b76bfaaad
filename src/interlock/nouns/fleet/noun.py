"""Operations on the whole store, or on this process and folder."""

from typing import TYPE_CHECKING, Annotated

from interlock.core import outcomes
from interlock.core import validate as words
from interlock.core.decision import Success
from interlock.core.events import Counters, Observed
from interlock.core.health import Health
from interlock.errors import BadInput
from interlock.nouns.fleet.doctor import Diagnosis
from interlock.nouns.grants import several
from interlock.nouns.grants.lock_noun import MaxHold, Metadata, Wait
from interlock.runtime.housekeeping import Maintained
from interlock.runtime.noun import Noun
from interlock.runtime.operation import Duration, Operation, Request, option
from interlock.runtime.why import Why

if TYPE_CHECKING:
    from interlock.drivers import Op
    from interlock.runtime.fleet_calls import FleetCalls


class InitRequest(Request, frozen=True, kw_only=True):
    """Create a store."""


class DemoRequest(Request, frozen=True, kw_only=True):
    """Show what it does."""

    ttl: Annotated[Duration, option("duration", "how long a killed worker's grants live on")] = 2.0
    workers: Annotated[int, option("int", "how many workers")] = 8


class RunRequest(Request, frozen=True, kw_only=True):
    """Run a program inside a session."""

    ttl: Annotated[
        Duration, option("duration", "the session lives so long after its last beat")
    ] = 30.0
    hold: Annotated[
        tuple[str, ...],
        option("things", "hold this meanwhile: lock/merge, sem/builds=2; give it for each thing"),
    ] = ()
    wait: Wait = 0.0
    max_hold: MaxHold = None
    metadata: Metadata = None
    grace: Annotated[
        Duration,
        option(
            "duration",
            "time between SIGTERM and SIGKILL when the session is lost, or a message asks to stop",
        ),
    ] = 10.0
    command: Annotated[
        tuple[str, ...], option("command", "the program with its arguments", positional=True)
    ] = ()


class WhyRequest(Request, frozen=True, kw_only=True):
    """Explain what blocks a thing."""

    thing: Annotated[
        str,
        option(
            "name", "task/t1, lock/merge (or just t1, merge), sem/builds, qry_...", positional=True
        ),
    ]


_MINUTE = "1m"


class ObserveRequest(Request, frozen=True, kw_only=True):
    """All that happens, as it happens."""

    noun: Annotated[
        tuple[str, ...], option("names", "only these: message, query, task, lock, agent ...")
    ] = ()
    after: Annotated[
        int | None, option("int", "begin with what happened after this revision, not now")
    ] = None
    counters: Annotated[bool, option("flag", "not what happens, but what it comes to")] = False
    since: Annotated[
        str | None,
        option("text", "count since then: 5m (1m unless set), or a time: 2026-11-15T10:00"),
    ] = None


def fitting(request: ObserveRequest) -> ObserveRequest:
    """What goes together: events after a revision, or counters since a time."""
    if request.counters and (request.noun or request.after is not None):
        raise BadInput("--counters is of all that happened; leave --noun and --after out")
    if request.since is not None and not request.counters:
        raise BadInput("--since is for --counters; events begin --after a revision, or now")
    return request


def _counters(fleet: "FleetCalls", request: ObserveRequest) -> "Op[Counters]":
    since = fitting(request).since
    return fleet.counters(since=_MINUTE if since is None else since)


class HealthRequest(Request, frozen=True, kw_only=True):
    """Say what somebody should look at."""

    dead_after: Annotated[
        Duration, option("duration", "say so if a session lapsed so long ago and is still there")
    ] = 300.0
    waiting: Annotated[
        Duration, option("duration", "say so if somebody, a task or mail waits for longer")
    ] = 3600.0
    held: Annotated[Duration, option("duration", "say so if somebody holds for longer")] = 3600.0
    stuck: Annotated[Duration, option("duration", "say so if a task runs for longer")] = 3600.0


class DoctorRequest(Request, frozen=True, kw_only=True):
    """Check this place."""


class MaintainRequest(Request, frozen=True, kw_only=True):
    """Tidy up."""


class BenchRequest(Request, frozen=True, kw_only=True):
    """Measure this machine."""

    only: Annotated[str | None, option("text", "one measurement, by its name in the table")] = None
    quick: Annotated[bool, option("flag", "fewer rounds: rough figures in seconds")] = False


class SchemaRequest(Request, frozen=True, kw_only=True):
    """Say what a command prints as JSON."""

    words: Annotated[
        tuple[str, ...],
        option("names", "a command, such as lock acquire; all if left out", positional=True),
    ] = ()


class SelftestRequest(Request, frozen=True, kw_only=True):
    """Put the promises to the test."""

    race: Annotated[
        bool, option("flag", "processes claim the same tasks; each must have one winner")
    ] = False
    processes: Annotated[int, option("int", "so many", least=2, most=64)] = 8
    tasks: Annotated[int, option("int", "so many", least=1, most=100_000)] = 1000
    seconds: Annotated[
        Duration | None, option("duration", "end after so long, whatever is left")
    ] = None


class Created(Success, frozen=True, kw_only=True, tag="created"):
    """There is a store now."""

    store: str


class StoreExists(outcomes.Exists, Success, frozen=True, kw_only=True, tag="exists"):
    """It was there already, and was left as it is."""

    store: str


def _why(fleet: "FleetCalls", request: WhyRequest) -> "Op[Why]":
    kind, _, name = request.thing.partition("/")
    if (kind in ("agent", "session") and name) or kind.startswith("ses_"):
        raise BadInput(
            "'why' knows tasks, locks, semaphores, queries and messages;"
            f" see 'interlock agent show {words.quote(name or kind)}', or write"
            f" lock/{request.thing} for a lock of that name"
        )
    return fleet.why(request.thing)


NOUN = Noun(
    name="fleet",
    texts=("interlock.nouns.fleet.text", "interlock.nouns.fleet.observe_text"),
    operations=(
        Operation(
            name="init",
            help="create a store here, shared by all worktrees of the repository",
            request=InitRequest,
            outcomes=(Created, StoreExists),
            needs="nothing",
            in_shell="interlock.faces.cli.init:init",
            examples=(
                "interlock init",
                "interlock init --store /var/lib/interlock/store.db",
                "interlock init --store redis://localhost",
            ),
        ),
        Operation(
            name="demo",
            help="see it work: agents, a crash, and who takes over",
            request=DemoRequest,
            outcomes=(),
            needs="nothing",
            in_shell="interlock.faces.cli.shows:demo",
        ),
        Operation(
            name="run",
            help="run a program inside a session that is kept alive for it",
            request=RunRequest,
            outcomes=(several.SeveralBusy, several.SeveralDeadlock),
            needs="agent",
            in_shell="interlock.faces.cli.run:run",
            examples=(
                "interlock run --agent ada -- python worker.py",
                "interlock run --agent ada --hold lock/merge --hold sem/builds=2 -- make",
            ),
        ),
        Operation(
            name="why",
            help="what blocks a thing, who can clear it, since when",
            request=WhyRequest,
            outcomes=(Why,),
            needs="store",
            reads=True,
            act=_why,
            examples=("interlock why lock/merge", "interlock why task/t1"),
        ),
        Operation(
            name="observe",
            help="everything that happens, as it happens; or what it comes to",
            request=ObserveRequest,
            outcomes=(Counters,),
            lines=(Observed,),
            needs="store",
            reads=True,
            in_shell="interlock.faces.cli.observe:observe",
            act=_counters,
            examples=(
                "interlock observe --json",
                "interlock observe --noun message,query",
                "interlock observe --counters --since 5m",
            ),
        ),
        Operation(
            name="health",
            help="what somebody should look at, one line each; for monitors",
            request=HealthRequest,
            outcomes=(Health,),
            needs="store",
            reads=True,
            call="health",
            examples=("interlock health", "interlock health --held 2h --stuck 30m --json"),
        ),
        Operation(
            name="doctor",
            help="check this place and say what to mend",
            request=DoctorRequest,
            outcomes=(Diagnosis,),
            needs="nothing",
            reads=True,
            in_shell="interlock.faces.cli.doctor:doctor",
        ),
        Operation(
            name="maintain",
            help="reclaim what nobody came for",
            request=MaintainRequest,
            outcomes=(Maintained,),
            needs="store",
            call="maintain",
        ),
        Operation(
            name="bench",
            help="measure each operation against the floor of its engine",
            request=BenchRequest,
            outcomes=(),
            needs="nothing",
            in_shell="interlock.faces.cli.shows:bench",
        ),
        Operation(
            name="schema",
            help="what a command prints with --json, as a JSON schema",
            request=SchemaRequest,
            outcomes=(dict,),
            needs="nothing",
            reads=True,
            in_shell="interlock.faces.cli.shows:schema",
            examples=("interlock schema lock acquire", "interlock schema --json"),
        ),
        Operation(
            name="selftest",
            help="put its promises to the test on your store, with real processes",
            request=SelftestRequest,
            outcomes=(),
            needs="nothing",
            in_shell="interlock.faces.cli.shows:selftest",
            examples=(
                "interlock selftest --race",
                "interlock selftest --race --store redis://localhost --seconds 10s",
            ),
        ),
    ),
)
