"""The declaration of what scripts and operators do with locks: run, break, list and show."""

from typing import TYPE_CHECKING, Annotated, get_args

from interlock.core.outcomes import GuardBlocked, Listing, NoGuard
from interlock.nouns.grants import lock as lock_types
from interlock.nouns.grants.lock import LockView
from interlock.nouns.grants.lock_noun import Guards, Lock, MaxHold, Metadata, Wait
from interlock.runtime.noun import Noun
from interlock.runtime.operation import Duration, Operation, Request, option

if TYPE_CHECKING:
    from interlock.nouns.fleet.calls import FleetCalls
    from interlock.steps import Op

Why = Annotated[str, option("text", "the reason, for the holder and the record")]
RunTtl = Annotated[
    Duration, option("duration", "how long after the last renewal others may take over")
]
Command = Annotated[
    tuple[str, ...], option("command", "the program with its arguments", positional=True)
]


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
    name="lock",
    texts=("interlock.nouns.grants.views_text", "interlock.nouns.grants.text"),
    operations=(
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
            takes=True,
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
