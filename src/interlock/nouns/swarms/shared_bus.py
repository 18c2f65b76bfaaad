"""Shared values on the bus: what stands there, and the commit that puts a value there.

These are operations on the bus; ``shared_posting.py`` says in which order a write takes them.
"""

from __future__ import annotations

from hashlib import sha256

from msgspec import Raw, Struct

from interlock.core import keys
from interlock.core.decision import Decision, Event, Write
from interlock.nouns.swarms.envelope import EnvelopeRefused, open_envelope
from interlock.nouns.swarms.head import digest, milliseconds
from interlock.nouns.swarms.shared import (
    ITEM_LIMIT,
    OpenedShared,
    SharedCopy,
    SharedItem,
    SharedWrite,
    current_value,
    judge_item,
    known_value,
)
from interlock.nouns.swarms.shared_reading import SharedTrust, own_keys
from interlock.nouns.swarms.swarm import OwnSwarm
from interlock.nouns.swarms.sync_heads import SharedHead
from interlock.nouns.swarms.sync_rules import (
    CONCURRENT,
    CurrentValue,
    WriteApplied,
    nothing_there,
)
from interlock.runtime.attempt import BoundedRefs, DecideOp
from interlock.runtime.identity import Actor
from interlock.runtime.retention_clock import engine_time
from interlock.runtime.runner import Runner
from interlock.steps import Op, Read
from interlock.store import Item, Snapshot


class OnBus(Struct, frozen=True, kw_only=True):
    """What the bus has under a shared key, and what its clock says.

    ``last`` is the envelope of our own last write.  ``age`` is how long ago the value was stored,
    at least; None if that is long.
    """

    item: Item | None
    last: Item | None
    now: float
    age: float | None


def look(runner: Runner, *, own: OwnSwarm, key: str) -> Op[OnBus]:
    """Read a shared key on the bus, with its age by the bus's clock."""
    shared, last, live = keys.shared(key), keys.shared_last(own.name, key), keys.shared_live(key)
    snapshot: Snapshot = yield Read(shared, last, live, times=True, longest=ITEM_LIMIT)
    now = yield from engine_time()
    age, measured = None, snapshot[live]
    if measured is not None:  # the engine may say less than is left, by up to its grain
        left = (measured.expires_in or 0.0) + runner.capabilities.grain
        age = max(0.0, CONCURRENT - left)
    return OnBus(
        item=snapshot[shared],
        last=snapshot[last],
        now=runner.clock.wall() if now is None else now,
        age=age,
    )


def put_value(
    runner: Runner, *, head: SharedHead, envelope: bytes, value: Raw, fresh: bool = False
) -> Op[OpenedShared | None]:
    """Put a signed value on the bus, if what it replaces still stands there; else None.

    With ``fresh`` that was stored a short time ago, too.  A value that is only signed again is as
    old as it was.
    """
    key, own = head.shared_key, head.from_swarm
    shared, live = keys.shared(key), keys.shared_live(key)

    def deciding() -> DecideOp[str]:
        snapshot = yield BoundedRefs.of((shared, live) if fresh else (shared,))
        item = snapshot[shared]
        if (0 if item is None else item.revision) != head.replaces:
            return Decision(outcome="moved")
        if fresh and snapshot[live] is None:
            return Decision(outcome="moved")
        return Decision(
            outcome="shared",
            verb="bus.share",
            thing=f"shared/{key}",
            puts=(
                Write(shared, SharedItem(envelope=Raw(envelope), value=value)),
                Write(keys.shared_last(own, key), Raw(envelope)),
                *(() if head.same_as else (Write(live, own, CONCURRENT),)),
            ),
            events=(Event("swarm:shared", own),),
        )

    done = yield from runner.change(deciding, Actor(own), hopeful=False)
    if done.outcome == "moved" or done.revision is None:
        return None
    return OpenedShared(head=head, digest=digest(head), value=value, item=done.revision)


def stored_before(own: OwnSwarm, write: SharedWrite, seen: OnBus) -> OpenedShared | None:
    """The write as it was put on the bus by a process that could not say so at home."""
    if seen.last is None:
        return None
    trusted = own_keys(own)
    found = open_envelope(seen.last.value, SharedHead, trusted.get, bus=own.bus_id, now=0.0)
    if isinstance(found, EnvelopeRefused):
        return None
    head = found.head
    if (head.write_id, head.shared_key, head.bus) != (write.id, write.key, own.bus_id):
        return None
    return OpenedShared(head=head, digest=found.digest, value=write.value, item=seen.last.revision)


class Stands(Struct, frozen=True, kw_only=True):
    """What stands on the bus as the rules compare it; ``opened`` if it is newer than our copy."""

    current: CurrentValue | None
    opened: OpenedShared | None = None


def what_stands(
    own: OwnSwarm, trust: SharedTrust, copy: SharedCopy | None, seen: OnBus, key: str
) -> Stands:
    """What stands on the bus, compared with our copy."""
    if seen.item is None:
        return Stands(current=None)
    found = judge_item(copy, seen.item, key, trust.keys, own.bus_id)
    if isinstance(found, OpenedShared):
        return Stands(current=current_value(found, seen.now, seen.age), opened=found)
    if found is None and copy is not None:
        return Stands(current=known_value(copy, seen.now, seen.age))
    return Stands(current=nothing_there(seen.now, seen.item.revision))


def head_of(
    own: OwnSwarm, write: SharedWrite, decided: WriteApplied, key: str, now: float
) -> SharedHead:
    """The head of a write that is to be stored at this time of the bus's clock."""
    value = bytes(write.value)
    return SharedHead(
        from_swarm=own.name,
        key=key,
        timestamp=milliseconds(write.written_at),
        bus=own.bus_id,
        shared_key=write.key,
        write_id=write.id,
        agent=write.agent,
        base=decided.shared.base,
        replaces=decided.expected,
        bus_time=milliseconds(now),
        spooled=decided.shared.spooled,
        source_hash=sha256(value).hexdigest(),
        source_size=len(value),
    )


def head_again(own: OwnSwarm, copy: SharedCopy, key: str) -> SharedHead:
    """The head of a value that is only signed again; its revision stays."""
    value = bytes(copy.value)
    return SharedHead(
        from_swarm=own.name,
        key=key,
        timestamp=milliseconds(copy.written_at),
        bus=own.bus_id,
        shared_key=copy.key,
        write_id=copy.write,
        agent=copy.agent,
        base=copy.base,
        replaces=copy.item,
        same_as=copy.revision,
        bus_time=milliseconds(copy.at),
        source_hash=sha256(value).hexdigest(),
        source_size=len(value),
    )
