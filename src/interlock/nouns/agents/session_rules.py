"""Sessions: one incarnation of an agent.

The identity of a worker is its session, not its name: two sessions under one name are two
holders, and that is legal.  A session has two items,

    sessions/{id}   its identity; stays until it leaves or maintenance clears it
    live/{id}       its liveness; expires unless it is renewed, and is never revived

and, if it reports a status, a report (``report_rules``), which ends with it.

    ──join──> alive ──leave──> gone
                │
                └─ live/{id} expires ──> expired ──maintain──> gone, with a trace: deaths/{id}

An expired session never comes back: any client may reclaim its grants at once.  The commit that
clears it leaves a trace, which ``health`` shows for a day, or until an operator acknowledges it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal

from msgspec import Struct

from interlock.core import keys, outcomes
from interlock.core.decision import Decision, Event, Missing, Refusal, Success, Write
from interlock.core.thing_names import thing_of
from interlock.nouns.grants.pool_change import PoolChanges, PoolFacts

SHELL_TTL = 900.0
DEATH_KEPT = 86400.0
"""Seconds for which the trace of a session that ended without leaving is kept."""
_FOR_A_POOL = 16
"""Operations that releasing one pool may take."""


class Session(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The identity of a session.

    ``listed`` is true if it outlives the process that began it, as in a shell: then every pool with
    a grant of it is listed (``held/{session}/{pool}``).
    """

    id: str
    agent: str
    host: str
    pid: int
    since: float
    ttl: float
    metadata: Any = None
    listed: bool = False


def is_hosted(session: Session | None) -> bool:
    """Whether it is the session of a coding agent, begun by a hook of its host."""
    return session is not None and isinstance(session.metadata, dict) and "host" in session.metadata


class Death(Struct, frozen=True, kw_only=True):
    """A session that ended without leaving, and was cleared ``at`` a time.

    ``was`` is its last reported state (``busy with task/t1``).
    """

    session: str
    agent: str
    host: str
    pid: int
    since: float
    at: float
    was: str = ""


class Joined(Success, frozen=True, kw_only=True, tag="joined"):
    """The session is alive; ``others`` counts the other live sessions under its name.

    ``key`` is the key that a shell named for it.
    """

    agent: str
    session: str
    expires_in: float
    others: int = 0
    key: str = ""


class Left(Success, frozen=True, kw_only=True, tag="left"):
    """The session ended, and its grants were released."""

    session: str
    released: tuple[str, ...] = ()


class Leaving(Success, frozen=True, kw_only=True, tag="leaving"):
    """Some grants of the session were released; more follow."""

    released: tuple[str, ...] = ()


class Renewed(Success, frozen=True, kw_only=True, tag="renewed"):
    """The session is renewed; ``pace`` are seconds until its next sign of life is due.

    Of a session that reported no status, or of a coding agent, it is 0: it is never due.
    """

    session: str
    expires_in: float
    pace: float = 0.0


class SessionLapsed(Refusal, frozen=True, kw_only=True, tag="lapsed"):
    """The session expired; join again."""

    session: str


class DeathsAcknowledged(Success, frozen=True, kw_only=True, tag="deaths_acknowledged"):
    """These sessions ended without leaving, and health no longer shows them."""

    agent: str
    sessions: tuple[str, ...]


class NoDeath(outcomes.Nothing, frozen=True, kw_only=True, tag="nothing"):
    """No session under this name was cleared, or it is acknowledged already."""

    agent: str


class SenderPause(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pause: the agent may not send until an operator resumes it."""

    agent: str
    by: str
    since: float
    reason: str = ""


class Agent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session as it is listed; ``paused`` if its agent may not send."""

    agent: str
    session: str
    state: Literal["alive", "lapsed"]
    host: str
    pid: int
    since: float
    expires_in: float | None = None
    holds: tuple[str, ...] = ()
    metadata: Any = None
    status: str = ""
    can: tuple[str, ...] = ()
    doing: str = ""
    note: str = ""
    heard: float | None = None
    last_heartbeat: float | None = None
    refusals: dict[str, int] = {}
    paused: SenderPause | None = None


def join(session: Session, more: tuple[Write, ...] = ()) -> Decision[Joined]:
    """Begin a session: its identity, its liveness and its first report in one commit."""
    return Decision(
        outcome=Joined(agent=session.agent, session=session.id, expires_in=session.ttl),
        verb="agent.join",
        thing=f"agent/{session.agent}",
        puts=(
            Write(keys.session(session.id), session),
            liveness_write(session),
            *address_writes(session),
            *more,
        ),
        events=(Event("agent:joined", session.agent),),
    )


def address_writes(session: Session) -> tuple[Write, ...]:
    """The items by which others find an agent by its name, and send it messages.

    The last two are mere flags, so they are put without being read.
    """
    return (
        Write(keys.agent_session(session.agent, session.id), {}),
        Write(keys.joined(session.agent), {}),
        Write(keys.mailbox(session.agent), {}),
    )


def liveness_write(session: Session) -> Write:
    """The write that keeps a session alive."""
    return Write(keys.live(session.id), {"agent": session.agent}, session.ttl)


def renew(
    session: Session | None, id_: str, pace: float, *, alive: bool
) -> Decision[Renewed | SessionLapsed]:
    """Renew a session that is alive and promised a pace."""
    if session is None or not alive:
        return Decision(outcome=SessionLapsed(session=id_))
    outcome = Renewed(session=id_, expires_in=session.ttl, pace=pace)
    return Decision(outcome=outcome, puts=(liveness_write(session),), quiet=True)


def leave(
    session: Session,
    wanted: Sequence[str],
    facts: PoolFacts,
    now: float,
    more: tuple[str, ...] = (),
) -> Decision[Left | Leaving]:
    """Release all grants of the session in these pools, then delete it and ``more`` of its keys.

    Pools that do not fit into one commit are left for the next, the session last: each pool is
    released as a whole, so an interruption between two of them does no harm.
    """
    changes = PoolChanges(facts, now)
    released: list[str] = []
    all_ = True
    for number, key in enumerate(wanted):
        if number and changes.size + _FOR_A_POOL > facts.max_operations:
            all_ = False
            break
        if key not in facts.pools:
            fit = max(1, (facts.max_operations - changes.size) // _FOR_A_POOL)
            raise Missing(tuple(wanted[number : number + fit]))
        if _leave_pool(changes, key, session.id):
            released.append(thing_of(key).removeprefix("lock/"))
    thing = f"agent/{session.agent}"
    part = changes.decision(None, "agent.leave", thing)
    own = (*_own(session), *more) if all_ else ()
    said = (Event("agent:left", session.agent),) if all_ else ()
    names = tuple(released)
    return Decision(
        outcome=Left(session=session.id, released=names) if all_ else Leaving(released=names),
        verb="agent.leave",
        thing=thing,
        puts=part.puts,
        deletes=(*own, *part.deletes),
        signals=part.signals,
        events=(*said, *part.events),
    )


def _own(session: Session) -> tuple[str, ...]:
    """The keys that end with a session."""
    return (
        keys.session(session.id),
        keys.live(session.id),
        keys.agent_session(session.agent, session.id),
    )


def _leave_pool(changes: PoolChanges, key: str, session: str) -> bool:
    """End the grants and waiters of a session in a pool; whether it had a grant."""
    pool = changes.pool(key)
    if pool is None:
        return False
    left = [key]
    for waiter in pool.waiters:
        if waiter.session == session:
            changes.leave(waiter.together or (key,), waiter.id)
            left.extend(waiter.together)
    own = [grant for grant in pool.grants if keys.live(session) in grant.live]
    for grant in own:
        changes.end(key, grant)
    changes.serve(dict.fromkeys(left))
    return bool(own)


def clear(session: Session, now: float, was: str, more: tuple[str, ...] = ()) -> Decision[str]:
    """Delete an expired session and ``more`` of its keys, and leave a trace: maintenance."""
    death = Death(
        session=session.id,
        agent=session.agent,
        host=session.host,
        pid=session.pid,
        since=session.since,
        at=now,
        was=was,
    )
    return Decision(
        outcome="cleared",
        verb="agent.clear",
        thing=f"agent/{session.agent}",
        puts=(Write(keys.death(session.id), death),),
        deletes=(*_own(session), *more),
        events=(Event("agent:lapsed", session.agent),),
    )


def acknowledge(name: str, deaths: Sequence[Death]) -> Decision[DeathsAcknowledged | NoDeath]:
    """Delete the traces of these sessions of one agent: an operator has read them."""
    if not deaths:
        return Decision(outcome=NoDeath(agent=name))
    agent, gone = deaths[0].agent, tuple([each.session for each in deaths])
    return Decision(
        outcome=DeathsAcknowledged(agent=agent, sessions=gone),
        verb="agent.ack",
        thing=f"agent/{agent}",
        deletes=tuple(map(keys.death, gone)),
    )


# ---- names for agents that have none: ``amber-otter-3``

FIRST = (
    "amber", "ashen", "azure", "bold", "brave", "brisk", "calm", "clear", "clever", "coral",
    "crisp", "deft", "eager", "fair", "fleet", "gentle", "golden", "green", "keen", "kind",
    "lively", "lucky", "mellow", "merry", "neat", "noble", "patient", "proud", "quick", "quiet",
    "silver", "swift",
)  # fmt: skip
SECOND = (
    "badger", "beaver", "bison", "crane", "dolphin", "eagle", "falcon", "ferret", "finch", "fox",
    "gecko", "hare", "heron", "ibis", "jay", "kestrel", "lark", "lemur", "lynx", "marten", "mole",
    "otter", "owl", "panda", "puffin", "raven", "robin", "seal", "stork", "swan", "tern", "wren",
)  # fmt: skip
NUMBERS = 9
_TRIES = 100


def random_agent_name(below: Callable[[int], int], taken: AbstractSet[str]) -> str:
    """A name that is not ``taken``; ``below(n)`` is a random number from 0 to n - 1."""
    most = NUMBERS
    while True:
        for _ in range(_TRIES):
            first, second = FIRST[below(len(FIRST))], SECOND[below(len(SECOND))]
            name = f"{first}-{second}-{1 + below(most)}"
            if name not in taken:
                return name
        most *= 10
