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

The sender's clock is never compared.  Its time is kept for people, as ``written_at``.  How long ago
the current value was stored is its ``age``: the engine of the bus measures it with a liveness key
that the same commit put, and where that is not exact to the millisecond, the shortest time counts.

A value that stands on the bus and that no trusted swarm signed may be rubbish, or may be a value of
a swarm that others trust.  A write that did not see it is a decision, too: it overwrites neither
without a person.

A decision leaves the current value as it is until a person chooses, and that is also its default.
To take the other value is a new write, on the revision that the decision was about.  If the value
has changed since, that is a new conflict, and not an overwrite.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from interlock.core import codec
from interlock.core.safe_text import foreign
from interlock.nouns.messages.decision import DecisionOption, HumanDecision
from interlock.nouns.swarms.envelope import EnvelopeRefused, claimed_digest, open_envelope
from interlock.nouns.swarms.head import digest
from interlock.nouns.swarms.registry_rules import (
    RegistryRefusal,
    VersionFloor,
    compare,
    trusted_keys,
)
from interlock.nouns.swarms.swarm import Floor, Peer
from interlock.nouns.swarms.sync_heads import StateHead

SYNC_EVERY = 300.0
APART_MS = 10.0
CONCURRENT = 30.0
"""Seconds within which two writes on one base count as concurrent; then the second is stale."""
DECIDE_IN = 24 * 3600.0

Resolution: TypeAlias = Literal["last_write_wins", "simultaneous_update", "stale_base"]


# Snapshots.


def judge_state(
    peer: Peer, floor: Floor, data: bytes, bus: str, now: float
) -> Floor | RegistryRefusal:
    """The floor with the snapshot of a peer that stands on this bus, or why it does not count.

    A snapshot that was accepted stays so after it has expired, or its key has ended: a swarm that
    is away has a state of some time ago, and its ``timestamp`` says so.
    """
    if floor.state is not None and claimed_digest(data, StateHead) == floor.state_digest:
        return floor
    trusted = trusted_keys(peer, Floor(swarm=peer.swarm), now)
    found = open_envelope(data, StateHead, trusted.get, bus=bus, now=now)
    if isinstance(found, EnvelopeRefused):
        late = found.reason in ("expired", "future")  # the order of versions comes before times
        head = found.head if late and isinstance(found.head, StateHead) else None
        order = None if head is None else _bad_state(peer, floor, head)
        return order or RegistryRefusal(reason=found.reason, detail=f"its state: {found.detail}")
    order = _bad_state(peer, floor, found.head)
    return order or replace(floor, state=found.head, state_digest=found.digest)


def _bad_state(peer: Peer, floor: Floor, head: StateHead) -> RegistryRefusal | None:
    """Why a snapshot is out of order, if it is."""
    if floor.state is None:
        return None
    known = VersionFloor(version=floor.state.version, digest=floor.state_digest)
    match compare(known, head.version, digest(head)):
        case "newer" | "unchanged":
            return None
        case "rollback":
            detail = f"its state: version {head.version} is older than {known.version}"
            return RegistryRefusal(reason="rollback", detail=detail)
        case "equivocation":
            detail = f"{foreign(peer.swarm)} signed two states as version {head.version}"
            return RegistryRefusal(reason="divergence", detail=detail)


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
    """The current value with its revision.

    ``item`` is the revision of the item that stands on the bus: it is another one after the value
    was signed again.  ``age`` is how many seconds ago the bus stored it, at least and by its own
    clock; None if that is longer than ``CONCURRENT``.  ``at`` is that moment, for people.  A value
    that no trusted swarm signed has no swarm.
    """

    shared: SharedValue
    revision: int
    item: int
    at: float
    age: float | None = None


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

    def details(self) -> dict[str, str]:
        """What the audit says of it: from the loser to the winner, and how it was resolved."""
        return {"from_swarm": self.loser, "to_swarm": self.winner, "reason": self.resolution}


class WriteApplied(Struct, frozen=True, kw_only=True):
    """Store the write, if ``expected`` still stands there (0: nothing); keep the conflict, if any.

    ``expected`` is the revision of the item.
    """

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
        current = nothing_there(now)  # deleted since the writer saw it
    elif write.base == current.revision:
        return WriteApplied(shared=write, expected=current.item)
    elif current.shared.swarm and _same(write.value, current.shared.value):
        return WriteSame()
    elif _is_concurrent(current, write):
        return _concurrent(key, current, write, now)
    conflict = _conflict(key, current, write, now, "stale_base")
    return WriteUndecided(conflict=conflict, shared=write, revision=current.revision)


def nothing_there(now: float, revision: int = 0) -> CurrentValue:
    """The current value where none is, or where no trusted swarm signed it."""
    nothing = SharedValue(value=Raw(b"null"), swarm="", base=-1, written_at=0.0)
    return CurrentValue(shared=nothing, revision=revision, item=revision, at=now)


def _is_concurrent(current: CurrentValue, write: SharedValue) -> bool:
    one_base = write.base == current.shared.base
    return one_base and not write.spooled and current.age is not None


def _concurrent(
    key: str, current: CurrentValue, write: SharedValue, now: float
) -> WriteApplied | WriteUndecided:
    apart = (current.age or 0.0) * 1000
    if apart <= APART_MS:
        conflict = _conflict(key, current, write, now, "simultaneous_update")
        return WriteUndecided(conflict=conflict, shared=write, revision=current.revision)
    conflict = _conflict(key, current, write, now, "last_write_wins")
    return WriteApplied(shared=write, expected=current.item, conflict=conflict)


def _conflict(
    key: str, current: CurrentValue, write: SharedValue, now: float, resolution: Resolution
) -> WriteConflict:
    """The entry of a conflict; the current value wins unless the later one does."""
    first, second = (current.shared, current.at), (write, now)
    won, lost = (second, first) if resolution == "last_write_wins" else (first, second)
    apart = abs(now - current.at) if current.age is None else current.age
    return WriteConflict(
        key=key,
        winner=won[0].swarm,
        loser=lost[0].swarm,
        winner_value=won[0].value,
        loser_value=lost[0].value,
        winner_timestamp=round(won[1], 6),
        loser_timestamp=round(lost[1], 6),
        time_diff_ms=round(apart * 1000, 3),
        resolution=resolution,
    )


def _same(one: Raw, other: Raw) -> bool:
    return codec.canonical(bytes(one)) == codec.canonical(bytes(other))


# Decisions.

KEEP, TAKE = "keep_current", "take_other"


def ask(undecided: WriteUndecided, decision: str, agent: str, now: float) -> HumanDecision:
    """The decision about a write, with both values; ``agent`` is the writer."""
    conflict = undecided.conflict
    question = {
        "type": conflict.resolution,
        "key": conflict.key,
        "swarms": [conflict.winner, conflict.loser],
        "time_diff_ms": conflict.time_diff_ms,
        "other_written_at": undecided.shared.written_at,
    }
    if conflict.winner:
        current = f"keep the value of {foreign(conflict.winner)}"
    elif undecided.revision:
        current = "keep what stands there, though no swarm that is trusted here signed it"
    else:
        current = "keep it deleted"
    other = f"take the value of {foreign(conflict.loser)}"
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


def settle(undecided: WriteUndecided, option: str) -> SharedValue | None:
    """The write that a chosen option is; None if it leaves the value as it is."""
    if option != TAKE:
        return None
    return replace(undecided.shared, base=undecided.revision, spooled=True)
