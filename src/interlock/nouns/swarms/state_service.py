"""The snapshot of our swarm: measured, signed and put on the bus every ``SYNC_EVERY`` seconds.

Publishing is as for the registry entry (``publish_service.py``): one commit at home reserves the
version and keeps the counts, so two processes never sign two texts as one version; one commit
on the bus puts the snapshot there, unless a later one stands there.  Whether one is due is judged
by the snapshot on the bus.

What the numbers are:

    agents                      names of the agents with a live session at home, up to 1,000
    completed_tasks             tasks that were completed, counted in the record of the home from
                                its beginning on; a long record takes several snapshots
    pending_tasks               published tasks that no worker has claimed: ready, due later, or
                                blocked; counted in the home store, up to 100,000
    avg_execution_time_ms       from the claim to the completion, by the clocks of the workers, as
                                the record has them: the mean of the tasks that were completed since
                                the snapshot before; 0 if none was
    memory                      bytes that the process which wrote the snapshot has in memory
    avg_latency_ms              the mean of a few reads of the home store by this process
    message_throughput_per_sec  messages, questions and answers in the record since the snapshot
                                before, for each second of that time
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec import Raw, Struct
from msgspec.structs import replace

from interlock.core import codec, keys, validate
from interlock.core.decision import Decision, Event, Write
from interlock.core.signing import Signer
from interlock.errors import NotAllowed
from interlock.nouns.swarms.envelope import EnvelopeRefused, open_envelope, sign_head
from interlock.nouns.swarms.head import AGENTS_LIMIT, REGISTRY_LIMIT, milliseconds
from interlock.nouns.swarms.own_keys import current_signer
from interlock.nouns.swarms.registry import CLOCK_SKEW, valid_keys
from interlock.nouns.swarms.shared_reading import own_keys
from interlock.nouns.swarms.swarm import OwnState, OwnSwarm, decode_own_state
from interlock.nouns.swarms.sync_heads import STATE_EXPIRES, StateHead
from interlock.nouns.swarms.sync_rules import SYNC_EVERY
from interlock.runtime.attempt import BoundedRefs, DecideOp
from interlock.runtime.history import PAGE, EntriesForward
from interlock.runtime.identity import Actor
from interlock.runtime.reads import every, looked_up
from interlock.runtime.runner import Runner
from interlock.steps import InThread, Op, Read
from interlock.store import Item, Snapshot

if TYPE_CHECKING:
    from interlock.client_context import Context

ENTRIES_AT_ONCE = 50_000
"""Entries of the record that one snapshot counts; the next one goes on there."""
PENDING_MOST = 100_000
RUNNING_MOST = 1000
"""Running tasks whose begin is kept for the next snapshot."""
_READS = 3
_MESSAGES = frozenset(("message:sent", "query:asked", "query:replied"))
_RUNS_NO_MORE = frozenset(
    ("task:released", "task:failed", "task:dead", "task:reclaimed", "task:requeued")
)


class StatePublished(Struct, frozen=True, kw_only=True, tag="published"):
    """The version of our snapshot on the bus, and whether this pass put it there."""

    version: int
    now: bool


class CountedRecord(Struct, frozen=True, kw_only=True):
    """What entries of the record add: up to which revision, completed tasks with their times."""

    upto: int
    completed: int
    times: tuple[float, ...]
    running: dict[str, float]
    messages: int


class _Entry(Struct):
    """The parts of an entry that are counted."""

    at: float = 0.0
    thing: str = ""
    events: tuple[Event, ...] = ()


_ENTRY = codec.Decoder(_Entry)


def publish_state(context: Context, own: OwnSwarm, *, force: bool = False) -> Op[StatePublished]:
    """Put our snapshot on the bus if it is due."""
    now = context.runner.clock.wall()
    stands = yield from context.bus.on(own, lambda _: state_on_bus(own, now))
    if not force and stands is not None and not _is_due(stands, own, now):
        return StatePublished(version=stands.version, now=False)
    above = 0 if stands is None else stands.version
    if above >= validate.LARGEST:
        raise NotAllowed(
            f"a snapshot of {own.name} with the highest version stands on the bus, so a thief has"
            " a key of it: rotate, and revoke the old key"
        )
    signer: Signer = yield InThread(partial(current_signer, own, now))
    before = yield from _state()
    counted = yield from count_record(before, _since(before, now))
    head = yield from _measured(context.runner, own, signer.fingerprint, before, counted)
    version = yield from _reserve(context.runner, own, above, counted)
    head = replace(head, version=version)
    data: bytes = yield InThread(partial(sign_head, head, signer))
    put = partial(_put, own=own, data=data, version=version, now=now)
    return (yield from context.bus.on(own, put))


def verified_state(item: Item | None, own: OwnSwarm, now: float) -> StateHead | None:
    """Our snapshot on the bus, also an expired one; None if none of our keys signed it."""
    if item is None:
        return None
    found = open_envelope(item.value, StateHead, own_keys(own).get, bus=own.bus_id, now=now)
    if isinstance(found, EnvelopeRefused):
        late = found.reason in ("expired", "future")
        return found.head if late and isinstance(found.head, StateHead) else None
    return found.head


def state_on_bus(own: OwnSwarm, now: float) -> Op[StateHead | None]:
    """Our snapshot as it stands on the bus: an operation on the bus."""
    snapshot: Snapshot = yield Read(keys.state(own.name), longest=REGISTRY_LIMIT)
    return verified_state(snapshot[keys.state(own.name)], own, now)


def _is_due(stands: StateHead, own: OwnSwarm, now: float) -> bool:
    current = [key.fingerprint for key in valid_keys(own.keys, now)[:1]]
    if stands.key not in current:
        return True  # readers will not trust the key of an earlier one for long
    return not -CLOCK_SKEW < now - stands.timestamp / 1000 < SYNC_EVERY


def _state() -> Op[OwnState | None]:
    item = (yield Read(keys.OWN_STATE))[keys.OWN_STATE]
    return None if item is None else decode_own_state(item)


def _since(before: OwnState | None, now: float) -> float:
    """When the time that a snapshot is about began."""
    return before.at if before is not None and before.at < now else now - SYNC_EVERY


# Measuring.


def count_record(before: OwnState | None, since: float) -> Op[CountedRecord]:
    """Count the entries of the record that no snapshot has counted; messages since a moment."""
    upto = 0 if before is None else before.counted
    running = {} if before is None else dict(before.running)
    completed, messages, read = 0 if before is None else before.completed, 0, 0
    times: list[float] = []
    walk = EntriesForward(upto, min(PAGE, ENTRIES_AT_ONCE))
    while read < ENTRIES_AT_ONCE and (items := (yield from walk.page())):
        read += len(items)
        upto = items[-1].revision
        for entry in _entries(items):
            for event in entry.events:
                thing = event.thing or entry.thing
                if event.name == "task:claimed":
                    running[thing] = entry.at
                elif event.name == "task:completed":
                    completed += 1
                    if (began := running.pop(thing, None)) is not None and entry.at >= since:
                        times.append(max(0.0, entry.at - began))
                elif event.name in _RUNS_NO_MORE:
                    running.pop(thing, None)
                elif event.name in _MESSAGES:
                    messages += entry.at >= since
    kept = sorted(running.items(), key=lambda each: each[1])[-RUNNING_MOST:]
    return CountedRecord(
        upto=upto,
        completed=completed,
        times=tuple(times),
        running=dict(kept),
        messages=messages,
    )


def _entries(items: tuple[Item, ...]) -> list[_Entry]:
    """The entries that can be read; ``record verify`` reports the others."""
    found = []
    for item in items:
        try:
            found.append(_ENTRY.decode(item.value))
        except codec.UNREADABLE:
            continue
    return found


def _measured(
    runner: Runner, own: OwnSwarm, key: str, before: OwnState | None, counted: CountedRecord
) -> Op[StateHead]:
    now = runner.clock.wall()
    seconds = max(now - _since(before, now), 1.0)
    mean = sum(counted.times) / len(counted.times) if counted.times else 0.0
    return StateHead(
        from_swarm=own.name,
        key=key,
        timestamp=milliseconds(now),
        expires=milliseconds(now) + milliseconds(STATE_EXPIRES),
        bus=own.bus_id,
        version=1,
        agents=(yield from _live_agents()),
        completed_tasks=counted.completed,
        pending_tasks=(yield from _pending()),
        avg_execution_time_ms=round(mean * 1000, 3),
        memory=(yield InThread(memory)),
        avg_latency_ms=round((yield from _latency(runner)) * 1000, 3),
        message_throughput_per_sec=round(counted.messages / seconds, 3),
    )


def _live_agents() -> Op[tuple[str, ...]]:
    items = yield from every(keys.AGENTS)
    lives = {item.key: keys.live(keys.id_of(item.key)) for item in items}
    live = yield from looked_up(lives.values())
    names = {keys.agent_of(key) for key, each in lives.items() if live[each] is not None}
    return tuple(sorted(names)[:AGENTS_LIMIT])


def _pending() -> Op[int]:
    items = yield from every(keys.READY, keys.DUE, keys.HANGS, most=PENDING_MOST)
    tasks = {keys.id_of(item.key) for item in items if not keys.is_schedule_entry(item.key)}
    return min(len(tasks), PENDING_MOST)


def _latency(runner: Runner) -> Op[float]:
    began = runner.clock.monotonic()
    for _ in range(_READS):
        yield Read(keys.OWN_SWARM)
    return (runner.clock.monotonic() - began) / _READS


def memory() -> int:
    """Bytes of this process in memory; where the system does not say, the most that it ever had."""
    import os

    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        import resource
        import sys

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


# Publishing.


def _reserve(runner: Runner, own: OwnSwarm, above: int, counted: CountedRecord) -> Op[int]:
    """The next version of our snapshot, which no other process signs; the counts are kept.

    If another process has counted further, its count stays: the next snapshot goes on there.
    """

    def deciding() -> DecideOp[int]:
        item = (yield (keys.OWN_STATE,))[keys.OWN_STATE]
        before = OwnState(version=0, at=0.0) if item is None else decode_own_state(item)
        version = max(above, before.version) + 1
        after = replace(before, version=version, at=round(runner.clock.wall(), 3))
        if counted.upto > before.counted:
            after = replace(
                after,
                counted=counted.upto,
                completed=counted.completed,
                running=counted.running,
            )
        return Decision(
            outcome=version,
            verb="swarm.publish",
            thing=f"swarm/{own.name}",
            puts=(Write(keys.OWN_STATE, after),),
        )

    return (yield from runner.change(deciding, Actor())).outcome


def _put(
    runner: Runner, *, own: OwnSwarm, data: bytes, version: int, now: float
) -> Op[StatePublished]:
    """Put our snapshot on the bus, unless a later one is there."""
    key = keys.state(own.name)

    def deciding() -> DecideOp[StatePublished]:
        stands = verified_state((yield BoundedRefs.of((key,), REGISTRY_LIMIT))[key], own, now)
        if stands is not None and stands.version >= version:
            return Decision(outcome=StatePublished(version=stands.version, now=False))
        return Decision(
            outcome=StatePublished(version=version, now=True),
            verb="swarm.publish",
            thing=f"swarm/{own.name}",
            puts=(Write(key, Raw(data)),),
            events=(Event("swarm:state", own.name),),
        )

    return (yield from runner.change(deciding, Actor(own.name))).outcome
