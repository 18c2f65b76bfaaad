"""The declaration of semaphores: their requests and operations."""

from typing import TYPE_CHECKING, Annotated, get_args

from interlock.core import keys
from interlock.core.outcomes import GuardBlocked, Listing, NoGuard
from interlock.core.validate import CAPACITY
from interlock.nouns.grants import semaphore as semaphore_types
from interlock.nouns.grants.lock_noun import Guards, MaxHold, Metadata, Token, Ttl, Wait
from interlock.nouns.grants.lock_operator_noun import Command, RunTtl, Why
from interlock.nouns.grants.semaphore import SemaphoreView
from interlock.runtime.noun import KeyKind, Noun
from interlock.runtime.operation import Duration, Operation, Request, option, waits

if TYPE_CHECKING:
    from interlock.nouns.fleet.calls import FleetCalls
    from interlock.steps import Op

Semaphore = Annotated[str, option("name", "the semaphore, such as builds", positional=True)]
Weight = Annotated[int, option("int", "the number of slots", least=1, most=CAPACITY)]
Capacity = Annotated[
    int | None,
    option("int", "the total number of slots; creates the semaphore", least=1, most=CAPACITY),
]


class SemaphoreAcquire(Request, frozen=True, kw_only=True):
    """Take slots."""

    semaphore: Semaphore
    capacity: Capacity = None
    weight: Weight = 1
    ttl: Ttl = None
    wait: Wait = 0.0
    max_hold: MaxHold = None
    metadata: Metadata = None
    token: Annotated[
        int | None, option("int", "the token of your grant: renews or enlarges it")
    ] = None
    guard: Guards = ()


class SemaphoreRelease(Request, frozen=True, kw_only=True):
    """Give slots back."""

    semaphore: Semaphore
    token: Token = None


class SemaphoreBeat(Request, frozen=True, kw_only=True):
    """Renew a grant."""

    semaphore: Semaphore
    token: Token = None


class SemaphoreRun(Request, frozen=True, kw_only=True):
    """Run a program while holding slots."""

    semaphore: Semaphore
    capacity: Capacity = None
    weight: Weight = 1
    wait: Wait = 0.0
    max_hold: MaxHold = None
    metadata: Metadata = None
    guard: Guards = ()
    ttl: RunTtl = 30.0
    grace: Annotated[
        Duration,
        option(
            "duration",
            "time between SIGTERM and SIGKILL when the slots are lost, or a message asks to stop",
        ),
    ] = 10.0
    command: Command = ()


class SemaphoreBreak(Request, frozen=True, kw_only=True):
    """End the grant of another."""

    semaphore: Semaphore
    reason: Why = ""
    holder: Annotated[str, option("name", "the agent whose grant ends, if several hold slots")] = ""
    token: Annotated[
        int | None, option("int", "only the grant with this token, if the agent has several")
    ] = None


class SemaphoreResize(Request, frozen=True, kw_only=True):
    """Change the capacity for all callers."""

    semaphore: Semaphore
    capacity: Annotated[
        int,
        option(
            "int",
            "the new total number of slots; creates the semaphore",
            positional=True,
            least=1,
            most=CAPACITY,
        ),
    ]


class SemaphoreRemove(Request, frozen=True, kw_only=True):
    """Take a semaphore away."""

    semaphore: Semaphore


class SemaphoresList(Request, frozen=True, kw_only=True):
    """All semaphores."""


class SemaphoreShow(Request, frozen=True, kw_only=True):
    """One semaphore."""

    semaphore: Semaphore


class SemaphoreList(Listing[SemaphoreView], frozen=True, kw_only=True):
    """All semaphores, by name."""

    listed = "semaphores"

    semaphores: tuple[SemaphoreView, ...]


def _list(fleet: "FleetCalls", _request: SemaphoresList) -> "Op[SemaphoreList]":
    return SemaphoreList(semaphores=(yield from fleet.semaphores.list()))


NOUN = Noun(
    gate_flags={"sem": "interlock.nouns.grants.pool_reader:set_semaphore_gated"},
    name="sem",
    help="a number of slots, granted first come, first served",
    calls="interlock.nouns.grants.semaphore_calls:SemaphoreCalls",
    keys=(KeyKind(prefix=keys.SEMAPHORES, read="interlock.nouns.grants.pool_reader:decode_pool"),),
    proof="interlock.nouns.grants.pool_reader:grant_liveness",
    why={"sem": "interlock.nouns.grants.why:semaphore"},
    texts=("interlock.nouns.grants.text", "interlock.nouns.grants.views_text"),
    operations=(
        Operation(
            name="sem acquire",
            help="acquire slots of a semaphore, or show how many are free",
            request=SemaphoreAcquire,
            outcomes=get_args(semaphore_types.AcquireOutcome),
            needs="agent",
            grants=True,
            call="semaphores.acquire",
            joins=waits,
            examples=("interlock sem acquire builds --capacity 3 --agent ada --wait 1m",),
        ),
        Operation(
            name="sem release",
            help="release slots; the first waiters that fit get them at once",
            request=SemaphoreRelease,
            outcomes=get_args(semaphore_types.ReleaseOutcome),
            needs="agent",
            call="semaphores.release",
            takes=True,
            examples=("interlock sem release builds --agent ada --token 12",),
        ),
        Operation(
            name="sem beat",
            help="renew a grant before it expires",
            request=SemaphoreBeat,
            outcomes=get_args(semaphore_types.BeatOutcome),
            needs="agent",
            aliases=("sem heartbeat",),
            call="semaphores.heartbeat",
            takes=True,
            examples=("interlock sem beat builds --agent ada --token 12",),
        ),
        Operation(
            name="sem run",
            help="run a program while holding slots, and end it if they are lost",
            request=SemaphoreRun,
            outcomes=(
                semaphore_types.SlotsFull,
                semaphore_types.SlotsDeadlock,
                GuardBlocked,
                NoGuard,
            ),
            needs="agent",
            in_shell="interlock.faces.cli.run:sem_run",
            examples=("interlock sem run builds --capacity 3 --agent ada --wait 5m -- make",),
        ),
        Operation(
            name="sem break",
            help="take slots from another agent, with a reason",
            request=SemaphoreBreak,
            outcomes=get_args(semaphore_types.BreakOutcome),
            needs="agent",
            call="semaphores.break_",
            takes=True,
            examples=(
                "interlock sem break builds --holder ada --reason 'ada hangs' --agent maria",
            ),
        ),
        Operation(
            name="sem resize",
            help="change the number of slots; no holder loses a slot",
            request=SemaphoreResize,
            outcomes=(semaphore_types.Resized,),
            needs="agent",
            call="semaphores.resize",
            takes=True,
            examples=("interlock sem resize builds 5 --agent ada",),
        ),
        Operation(
            name="sem remove",
            help="remove a semaphore, unless it has holders or waiters",
            request=SemaphoreRemove,
            outcomes=(
                semaphore_types.Removed,
                semaphore_types.SlotsFull,
                semaphore_types.NoSemaphore,
            ),
            needs="agent",
            call="semaphores.remove",
            takes=True,
            examples=("interlock sem remove builds --agent ada",),
        ),
        Operation(
            name="sem list",
            help="list all semaphores: free slots, holders and waiters",
            request=SemaphoresList,
            outcomes=(SemaphoreList,),
            needs="store",
            reads=True,
            act=_list,
        ),
        Operation(
            name="sem show",
            help="show one semaphore: its holders, their tokens and its queue",
            request=SemaphoreShow,
            outcomes=(SemaphoreView, semaphore_types.NoSemaphore),
            needs="store",
            reads=True,
            call="semaphores.show",
        ),
    ),
)
