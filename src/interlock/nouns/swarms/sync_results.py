"""What calls about snapshots and shared values answer."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias

from msgspec import Struct

from interlock.core import item_outcomes, outcomes
from interlock.core.decision import Refusal, Success
from interlock.core.outcomes import Listing, always
from interlock.nouns.swarms.results import NotRegistered

# Snapshots.


class SwarmState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The newest snapshot of a swarm that counts; without a ``version`` none was read yet.

    ``hash`` is the SHA-256 of the signed bytes, ``at`` the time of the swarm's own clock.
    """

    swarm: str
    role: Literal["own", "peer"]
    version: int | None = None
    hash: str = ""
    at: float | None = None
    agents: tuple[str, ...] = ()
    completed_tasks: int = 0
    pending_tasks: int = 0
    avg_execution_time_ms: float = 0.0
    memory: int = 0
    avg_latency_ms: float = 0.0
    message_throughput_per_sec: float = 0.0
    refused: str = ""


class SwarmStateList(Listing[SwarmState], frozen=True, kw_only=True, omit_defaults=True):
    """The snapshots of this swarm and of its peers; ``trouble`` if the bus does not answer."""

    listed: ClassVar[str] = "states"

    states: tuple[SwarmState, ...]
    trouble: str = ""


# Shared values.


class ConflictView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Two writes of a shared value, with both values; times are those of the bus's clock.

    ``decision`` is the one that a person makes, or made, about it; without one the later write won.
    """

    conflict: str
    key: str
    winner: str
    loser: str
    winner_value: Any
    loser_value: Any
    winner_timestamp: float
    loser_timestamp: float
    time_diff_ms: float
    resolution: Literal["last_write_wins", "simultaneous_update", "stale_base"]
    at: float
    decision: str = ""


class ConflictList(Listing[ConflictView], frozen=True, kw_only=True):
    """Conflicts about shared values that this home had a part in, oldest first."""

    listed: ClassVar[str] = "conflicts"

    conflicts: tuple[ConflictView, ...]


class ValueShared(Success, frozen=True, kw_only=True, tag="shared", omit_defaults=True):
    """The value stands on the bus, with this ``revision``; ``base`` is what it was written on.

    The revision is 0 if another process of this home posted it, and a later write has replaced it.
    ``already`` says that the same value stood there.  ``won`` is the conflict in which it replaced
    a concurrent write, which is kept.
    """

    key: str
    revision: int
    base: int
    already: bool = False
    won: ConflictView | None = None


class ShareSpooled(Success, frozen=True, kw_only=True, tag="spooled", omit_defaults=True):
    """The write is stored at home; a process of this swarm puts it on the bus as soon as it can.

    ``trouble`` says why it is not there yet.
    """

    key: str
    base: int
    trouble: str = ""


class ShareUndecided(Refusal, frozen=True, kw_only=True, tag="undecided", omit_defaults=True):
    """Another value stands on the bus that the writer did not see, so a person decides.

    It stays until then; ``swarm`` wrote it, and is empty if no trusted swarm signed it.
    """

    key: str
    decision: str
    reason: Literal["simultaneous_update", "stale_base"]
    swarm: str = ""
    value: Any = None
    revision: int = 0


class SharesFull(item_outcomes.Full, frozen=True, kw_only=True, tag="full"):
    """Too many writes of this home to this key wait for the bus; the write was not stored."""

    key: str
    waiting: int
    limit: int


class SharedView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A shared value as this home knows it.

    ``revision`` is what a write names as its base.  ``written_at`` is the time of the writer's
    clock, ``stored_at`` that of the bus's clock.  ``waiting`` writes of this home are not on the
    bus yet, and people have to make the ``decisions``.  ``refused`` says why something newer on the
    bus does not count, ``trouble`` why the bus could not be read.
    """

    key: str
    value: Any = None
    swarm: str = ""
    agent: str = ""
    revision: int = 0
    written_at: float | None = None
    stored_at: float | None = None
    waiting: int = 0
    decisions: tuple[str, ...] = ()
    refused: str = ""
    trouble: str = ""


class SharedList(Listing[SharedView], frozen=True, kw_only=True, omit_defaults=True):
    """The shared values that this home knows, and others on the bus, by key."""

    listed: ClassVar[str] = "values"

    values: tuple[SharedView, ...]
    trouble: str = ""


class UnknownShared(outcomes.Unknown, frozen=True, kw_only=True, tag="unknown"):
    """No swarm has written a value under this key, as far as this home can see."""

    what: Literal["shared value"] = always("shared value")
    key: str
    trouble: str = ""


ShareOutcome: TypeAlias = ValueShared | ShareSpooled | ShareUndecided | SharesFull | NotRegistered
SharedOutcome: TypeAlias = SharedView | UnknownShared | NotRegistered
