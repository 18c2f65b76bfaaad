"""The declaration of reservations: their requests, operations and keys."""

from typing import Annotated, get_args

from interlock.core import keys
from interlock.nouns.reservations import reservation as r
from interlock.runtime.noun import KeyKind, Noun, Part
from interlock.runtime.operation import Duration, Operation, Request, option, waits

Patterns = Annotated[
    tuple[str, ...],
    option("patterns", "paths and globs from the root of the repository", positional=True),
]
Repository = Annotated[
    str, option("text", "the name of the repository; the one you are in if left out")
]


class ReserveRequest(Request, frozen=True, kw_only=True):
    """Reserve files."""

    patterns: Patterns = ()
    shared: Annotated[
        bool, option("flag", "others may reserve it, too, as shared: all of you only read")
    ] = False
    ttl: Annotated[
        Duration | None,
        option("duration", "how long it lives unless reserved again; 15m, or as the session"),
    ] = None
    reason: Annotated[str, option("text", "what you do, for agents that are refused")] = ""
    on_conflict: Annotated[
        str,
        option("text", "deny: refuse; queue: keep a place in the queue; warn: reserve anyway"),
    ] = "deny"
    wait: Annotated[
        Duration,
        option("duration", "wait in the queue for at most this time: 5s, or forever", forever=True),
    ] = 0.0
    worktree: Annotated[
        str, option("text", "only against others in this worktree, given by its root")
    ] = ""
    repository: Repository = ""


class UnreserveRequest(Request, frozen=True, kw_only=True):
    """End reservations."""

    patterns: Patterns = ()
    token: Annotated[int | None, option("int", "the token of the reservation")] = None
    all: Annotated[bool, option("flag", "all that you have reserved, and wait for")] = False
    holder: Annotated[
        str | None, option("name", "end those of this agent instead; needs a reason")
    ] = None
    reason: Annotated[str, option("text", "the reason, for the record")] = ""
    repository: Repository = ""


class ReservationsRequest(Request, frozen=True, kw_only=True):
    """What is reserved."""

    paths: Annotated[
        tuple[str, ...],
        option("patterns", "only what overlaps these paths and globs", positional=True),
    ] = ()
    holder: Annotated[str | None, option("name", "only those of this agent")] = None
    repository: Repository = ""
    all: Annotated[bool, option("flag", "those of all repositories of the store")] = False
    limit: Annotated[int, option("int", "how many to list at most", least=1)] = r.LISTED


NOUN = Noun(
    name="reservation",
    help="files that one agent edits at a time",
    group="files",
    calls="interlock.nouns.reservations.calls:ReservationCalls",
    keys=(
        KeyKind(
            prefix=keys.RESERVATIONS,
            read="interlock.nouns.reservations.reading:decode_reservation",
        ),
        KeyKind(
            prefix=keys.RESERVE_QUEUE,
            read="interlock.nouns.reservations.reading:decode_reservation",
        ),
        KeyKind(prefix=keys.RESERVED, read="interlock.nouns.reservations.reading:decode_entry"),
    ),
    waits={keys.RESERVE_QUEUE: "interlock.nouns.reservations.wait:wait_targets"},
    why={"path": "interlock.nouns.reservations.views:why_path"},
    why_plain="interlock.nouns.reservations.views:why_plain",
    health=Part(25, "interlock.nouns.reservations.views:health"),
    housekeeping=Part(25, "interlock.nouns.reservations.views:ReservationHousekeepingPart"),
    events=True,
    texts=("interlock.nouns.reservations.text",),
    operations=(
        Operation(
            name="reserve",
            help="reserve files by path or glob, all or none, or show who has them",
            request=ReserveRequest,
            outcomes=get_args(r.ReserveOutcome),
            needs="agent",
            grants=True,
            call="reservations.reserve",
            spread="patterns",
            joins=waits,
            examples=(
                "interlock reserve 'src/*.py' --agent ada --ttl 10m --reason 'new parser'",
                "interlock reserve docs README.md --agent ada --on-conflict queue",
            ),
        ),
        Operation(
            name="unreserve",
            help="end reservations; the waiters for them are served at once",
            request=UnreserveRequest,
            outcomes=get_args(r.UnreserveOutcome),
            needs="agent",
            call="reservations.unreserve",
            spread="patterns",
            takes=True,
            examples=(
                "interlock unreserve 'src/*.py' --agent ada",
                "interlock unreserve --all --agent ada",
                "interlock unreserve docs --holder bob --reason 'bob hangs' --agent maria",
            ),
        ),
        Operation(
            name="reservations",
            help="list what is reserved, by which agent, since when, and the waiters",
            request=ReservationsRequest,
            outcomes=(r.ReservationList,),
            needs="store",
            reads=True,
            call="reservations.list",
            spread="paths",
            examples=("interlock reservations", "interlock reservations src/a.py --json"),
        ),
    ),
)
