"""The declaration of locks: their requests, operations and keys, and what all grants share."""

from typing import TYPE_CHECKING, Annotated, Any, get_args

from interlock.core import keys
from interlock.core.outcomes import GuardBlocked, Listing, NoGuard
from interlock.nouns.grants import lock as lock_types
from interlock.nouns.grants.lock import LockView
from interlock.runtime.noun import DELETE, KeyKind, Noun, Part
from interlock.runtime.operation import Duration, Operation, Request, option, waits

if TYPE_CHECKING:
    from interlock.nouns.fleet.calls import FleetCalls
    from interlock.steps import Op

Lock = Annotated[str, option("name", "the lock, such as merge or deploy/eu", positional=True)]
Why = Annotated[str, option("text", "the reason, for the holder and the record")]
Token = Annotated[int | None, option("int", "the token of the grant; may be left out in a session")]
Ttl = Annotated[
    Duration | None,
    option("duration", "how long the grant lives unless renewed; 15m, or as long as the session"),
]
RunTtl = Annotated[
    Duration, option("duration", "how long after the last renewal others may take over")
]
Command = Annotated[
    tuple[str, ...], option("command", "the program with its arguments", positional=True)
]
Wait = Annotated[
    Duration,
    option("duration", "wait in the queue for at most this time: 5s, or forever", forever=True),
]
MaxHold = Annotated[
    Duration | None, option("duration", "end the grant after this time, renewed or not")
]
Guards = Annotated[tuple[str, ...], option("names", "acquire only while this guard passes")]
Metadata = Annotated[Any, option("json", "JSON that others see beside it, up to 16 KiB")]


class LockAcquire(Request, frozen=True, kw_only=True):
    """Take a lock."""

    lock: Lock
    ttl: Ttl = None
    wait: Wait = 0.0
    max_hold: MaxHold = None
    metadata: Metadata = None
    token: Annotated[int | None, option("int", "the token of your grant: extends it")] = None
    guard: Guards = ()


class LockRelease(Request, frozen=True, kw_only=True):
    """Give a lock back."""

    lock: Lock
    token: Token = None


class LockBeat(Request, frozen=True, kw_only=True):
    """Renew a grant."""

    lock: Lock
    token: Token = None


class LockRun(Request, frozen=True, kw_only=True):
    """Run a program while holding a lock."""

    lock: Lock
    wait: Wait = 0.0
    max_hold: MaxHold = None
    metadata: Metadata = None
    guard: Guards = ()
    ttl: RunTtl = 30.0
    grace: Annotated[
        Duration,
        option(
            "duration",
            "time between SIGTERM and SIGKILL when the lock is lost, or a message asks to stop",
        ),
    ] = 10.0
    command: Command = ()


class LockBreak(Request, frozen=True, kw_only=True):
    """End the grant of another."""

    lock: Lock
    reason: Why = ""
    token: Annotated[
        int | None, option("int", "only the grant with this token; else that of the holder")
    ] = None


class LocksList(Request, frozen=True, kw_only=True):
    """All locks that are held."""


class LockShow(Request, frozen=True, kw_only=True):
    """One lock."""

    lock: Lock


class LockList(Listing[LockView], frozen=True, kw_only=True):
    """The locks that are held, by name."""

    listed = "locks"

    locks: tuple[LockView, ...]


def _list(fleet: "FleetCalls", _request: LocksList) -> "Op[LockList]":
    return LockList(locks=(yield from fleet.locks.list()))


NOUN = Noun(
    gate_flags={"lock": "interlock.nouns.grants.pool_reader:set_lock_gated"},
    name="lock",
    help="named locks with one holder at a time; outdated tokens are refused",
    calls="interlock.nouns.grants.calls:LockCalls",
    keys=(
        KeyKind(prefix=keys.LOCKS, read="interlock.nouns.grants.pool_reader:decode_pool"),
        KeyKind(prefix=keys.BROKEN, read="interlock.nouns.grants.pool_reader:decode_break_note"),
        KeyKind(prefix=keys.WAITS, read="interlock.runtime.reads:decode_wait", repair=DELETE),
    ),
    waits={
        keys.LOCKS: "interlock.nouns.grants.pool_wait:wait_targets",
        keys.SEMAPHORES: "interlock.nouns.grants.pool_wait:wait_targets",
    },
    proof="interlock.nouns.grants.pool_reader:grant_liveness",
    why={"lock": "interlock.nouns.grants.why:lock"},
    why_plain="interlock.nouns.grants.why:plain",
    health=Part(20, "interlock.nouns.grants.health:health"),
    gauges="interlock.nouns.grants.metrics:grant_gauges",
    housekeeping=Part(20, "interlock.nouns.grants.housekeeping:GrantHousekeepingPart"),
    history="interlock.nouns.grants.history:GrantHistory",
    texts=("interlock.nouns.grants.text", "interlock.nouns.grants.views_text"),
    operations=(
        Operation(
            name="lock acquire",
            help="acquire a lock, or show its holder",
            request=LockAcquire,
            outcomes=get_args(lock_types.AcquireOutcome),
            needs="agent",
            grants=True,
            call="locks.acquire",
            joins=waits,
            examples=("interlock lock acquire merge --agent ada --ttl 30s --wait 5s",),
        ),
        Operation(
            name="lock release",
            help="release a lock; the first waiter gets it at once",
            request=LockRelease,
            outcomes=get_args(lock_types.ReleaseOutcome),
            needs="agent",
            call="locks.release",
            examples=("interlock lock release merge --agent ada --token 12",),
        ),
        Operation(
            name="lock beat",
            help="renew a grant before it expires",
            request=LockBeat,
            outcomes=get_args(lock_types.BeatOutcome),
            needs="agent",
            aliases=("lock heartbeat",),
            call="locks.heartbeat",
            examples=("interlock lock beat merge --agent ada --token 12",),
        ),
        Operation(
            name="lock run",
            help="run a program while holding a lock, and end it if the lock is lost",
            request=LockRun,
            outcomes=(lock_types.LockBusy, lock_types.LockDeadlock, GuardBlocked, NoGuard),
            needs="agent",
            in_shell="interlock.faces.cli.run:lock_run",
            examples=("interlock lock run merge --agent ada --wait 1m -- make merge",),
        ),
        Operation(
            name="lock break",
            help="end the grant of another agent, with a reason",
            request=LockBreak,
            outcomes=get_args(lock_types.BreakOutcome),
            needs="agent",
            call="locks.break_",
            examples=("interlock lock break merge --reason 'ada hangs' --agent maria",),
        ),
        Operation(
            name="lock list",
            help="list the locks that are held, with their holders and times",
            request=LocksList,
            outcomes=(LockList,),
            needs="store",
            reads=True,
            act=_list,
        ),
        Operation(
            name="lock show",
            help="show one lock: its holder, its token and its queue",
            request=LockShow,
            outcomes=(LockView,),
            needs="store",
            reads=True,
            call="locks.show",
        ),
    ),
)
