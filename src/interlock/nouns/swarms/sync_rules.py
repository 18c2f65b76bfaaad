"""State sync: snapshots of swarms, and values that several swarms write on the bus.

**A snapshot** has one writer: the swarm itself signs it, numbers its versions, and replaces it
every ``SYNC_EVERY`` seconds.  So there is nothing to merge.  Readers keep the highest version and
its digest, as for the registry: an older one is a rollback, and the same version with another
digest is a **divergence**: two processes of that swarm have different states, or it lies.

**Shared values** are keys on the bus that any allowed swarm writes.  A write carries its **base**:
the revision of the value that its writer saw (0: none).  The bus orders all writes and compares the
base in the commit; so only two cases are left to decide when the base is not current.

    base is the current revision     apply
    the same value is there          same: nothing to do
    two writes on one base           concurrent: by the bus's own clock
        more than 10 ms apart            the later one wins, and the loser is kept
        within 10 ms                     a decision: the order says nothing about intent
    anything else                    stale: a decision that keeps both values

Writes are concurrent only if both went to the bus directly, the second within ``CONCURRENT``
seconds after the first.  A write that waited in an outbox (``spooled``), perhaps for hours, would
be the newest by arrival, and by its own clock it may claim any time at all.  So neither decides: a
person does.  A writer that hides that its write was spooled gains nothing; it could as well read
the current value and write on that.

The sender's clock is never compared.  Its time is kept for people, as ``written_at``.

A decision leaves the current value as it is until a person chooses, and that is also its default.
Between the question and the answer the value may change again; then the choice to take the other
value is a new conflict on the current one, and not an overwrite (``settle``).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from interlock.core import codec
from interlock.nouns.messages.decision import DecisionOption, HumanDecision
from interlock.nouns.swarms.registry_rules import VersionFloor, compare

SYNC_EVERY = 300.0
APART_MS = 10.0
CONCURRENT = 30.0
"""Seconds within which two writes on one base count as concurrent; then the second is stale."""
DECIDE_IN = 24 * 3600.0
VALUE_LIMIT = 64 * 1024

Resolution: TypeAlias = Literal["last_write_wins", "simultaneous_update", "stale_base"]


# Snapshots.


class SwarmSnapshot(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of a swarm as it publishes it: ``timestamp`` in ms, ``memory`` in bytes.

    Averages are whole numbers, too, so that every language encodes them in the same way.
    """

    swarm: str
    version: int
    timestamp: int
    agents: tuple[str, ...]
    completed_tasks: int
    pending_tasks: int
    avg_execution_time_ms: int
    memory: int
    avg_latency_ms: int
    message_throughput_per_sec: int


SnapshotOrder: TypeAlias = Literal["newer", "unchanged", "rollback", "divergence", "wrong_writer"]


def judge_snapshot(
    floor: VersionFloor | None, snapshot: SwarmSnapshot, digest: str, signer: str
) -> SnapshotOrder:
    """A snapshot against the highest version that was read; ``signer`` is the verified swarm."""
    if signer != snapshot.swarm:
        return "wrong_writer"
    order = compare(floor, snapshot.version, digest)
    return "divergence" if order == "equivocation" else order


def snapshot_digest(snapshot: SwarmSnapshot) -> str:
    """The hash of a snapshot: that of its bytes."""
    return codec.digest(codec.encode(snapshot))


# Shared values.


class SharedValue(Struct, frozen=True, kw_only=True):
    """A value on the bus, and the revision that it was written on.

    ``written_at`` is the writer's clock, for people.  ``spooled`` means that the write did not go
    to the bus at once.  The revision and the time of the item itself are the bus's own, and come
    with it as facts.
    """

    value: Raw
    swarm: str
    base: int
    written_at: float
    spooled: bool = False


class CurrentValue(Struct, frozen=True, kw_only=True):
    """The current value with its revision, and when the bus stored it, by the bus's clock."""

    shared: SharedValue
    revision: int
    at: float


class WriteConflict(Struct, frozen=True, kw_only=True):
    """Two writes of one key; both values are kept.  The timestamps are those of the bus's clock."""

    key: str
    winner: str
    loser: str
    winner_value: Raw
    loser_value: Raw
    winner_timestamp: float
    loser_timestamp: float
    time_diff_ms: float
    resolution: Resolution


class WriteApplied(Struct, frozen=True, kw_only=True):
    """Store the write, if the current revision is still ``expected``; keep the conflict, if any."""

    shared: SharedValue
    expected: int
    conflict: WriteConflict | None = None


class WriteSame(Struct, frozen=True, kw_only=True):
    """The current value is the same; there is nothing to do."""


class WriteUndecided(Struct, frozen=True, kw_only=True):
    """A person decides; the current value stays.

    ``revision`` is that of the current value, which the decision is about.
    """

    conflict: WriteConflict
    shared: SharedValue
    revision: int


def decide_write(
    key: str, current: CurrentValue | None, write: SharedValue, now: float
) -> WriteApplied | WriteSame | WriteUndecided:
    """Decide a write that arrives at this time of the bus's clock."""
    if current is None:
        if write.base == 0:
            return WriteApplied(shared=write, expected=0)
        gone = SharedValue(value=Raw(b"null"), swarm="", base=0, written_at=0.0)
        current = CurrentValue(shared=gone, revision=0, at=now)  # deleted since the writer saw it
    elif write.base == current.revision:
        return WriteApplied(shared=write, expected=current.revision)
    elif _same(write.value, current.shared.value):
        return WriteSame()
    elif _is_concurrent(current, write, now):
        return _concurrent(key, current, write, now)
    conflict = _conflict(key, current, write, now, "stale_base")
    return WriteUndecided(conflict=conflict, shared=write, revision=current.revision)


def _is_concurrent(current: CurrentValue, write: SharedValue, now: float) -> bool:
    one_base = write.base == current.shared.base
    return one_base and not write.spooled and now - current.at <= CONCURRENT


def _concurrent(
    key: str, current: CurrentValue, write: SharedValue, now: float
) -> WriteApplied | WriteUndecided:
    apart = (now - current.at) * 1000
    if apart <= APART_MS:  # also if the bus's clock went back
        conflict = _conflict(key, current, write, now, "simultaneous_update")
        return WriteUndecided(conflict=conflict, shared=write, revision=current.revision)
    conflict = _conflict(key, current, write, now, "last_write_wins")
    return WriteApplied(shared=write, expected=current.revision, conflict=conflict)


def _conflict(
    key: str, current: CurrentValue, write: SharedValue, now: float, resolution: Resolution
) -> WriteConflict:
    """The entry of a conflict; the current value wins unless the later one does."""
    first, second = (current.shared, current.at), (write, now)
    won, lost = (second, first) if resolution == "last_write_wins" else (first, second)
    return WriteConflict(
        key=key,
        winner=won[0].swarm,
        loser=lost[0].swarm,
        winner_value=won[0].value,
        loser_value=lost[0].value,
        winner_timestamp=won[1],
        loser_timestamp=lost[1],
        time_diff_ms=round(abs(now - current.at) * 1000, 3),
        resolution=resolution,
    )


def _same(one: Raw, other: Raw) -> bool:
    return codec.canonical(bytes(one)) == codec.canonical(bytes(other))


# Decisions.

KEEP, TAKE = "keep_current", "take_other"


def ask(undecided: WriteUndecided, decision: str, agent: str, now: float) -> HumanDecision:
    """The decision about a write, with both values; ``agent`` is the one that noticed it."""
    conflict = undecided.conflict
    question = {
        "type": conflict.resolution,
        "key": conflict.key,
        "swarms": [conflict.winner, conflict.loser],
        "time_diff_ms": conflict.time_diff_ms,
        "other_written_at": undecided.shared.written_at,
    }
    current = f"keep the value of {conflict.winner}" if conflict.winner else "keep it deleted"
    other = f"take the value of {conflict.loser}"
    return HumanDecision(
        id=decision,
        about=f"shared/{conflict.key}",
        agent=agent,
        question=Raw(msgspec.json.encode(question)),
        at=now,
        options=(
            DecisionOption(name=KEEP, text=current, acts=False, value=conflict.winner_value),
            DecisionOption(name=TAKE, text=other, value=conflict.loser_value),
        ),
        default=KEEP,
        deadline=now + DECIDE_IN,
    )


def settle(
    undecided: WriteUndecided, option: str, current: CurrentValue | None, now: float
) -> WriteApplied | WriteSame | WriteUndecided:
    """What a chosen option does to the value as it is now."""
    if option != TAKE:
        return WriteSame()
    write = replace(undecided.shared, base=undecided.revision, spooled=True)
    revision = 0 if current is None else current.revision
    if revision == undecided.revision:
        return WriteApplied(shared=write, expected=revision)
    return decide_write(undecided.conflict.key, current, write, now)
