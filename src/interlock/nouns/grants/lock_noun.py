"""The declaration of locks: acquire, release and renew, their keys, and what all grants share.

``lock_operator_noun.py`` has the other operations, so that these import less.
"""

from typing import Annotated, Any, get_args

from interlock.core import keys
from interlock.nouns.grants import lock as lock_types
from interlock.runtime.noun import DELETE, KeyKind, Noun, Part
from interlock.runtime.operation import Duration, Operation, Request, option, waits

Lock = Annotated[str, option("name", "the lock, such as merge or deploy/eu", positional=True)]
Token = Annotated[int | None, option("int", "the token of the grant; may be left out in a session")]
Ttl = Annotated[
    Duration | None,
    option("duration", "how long the grant lives unless renewed; 15m, or as long as the session"),
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
            takes=True,
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
            takes=True,
            examples=("interlock lock beat merge --agent ada --token 12",),
        ),
    ),
)
