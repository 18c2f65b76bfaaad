"""What came out of it: measured and counted by the demo, then compared with what was promised."""

from __future__ import annotations

from collections.abc import Container
from itertools import pairwise
from statistics import median

from msgspec import Struct

import interlock
from interlock.core.log import Line
from interlock.demo.ledger import Written
from interlock.demo.play import Seen, Turn
from interlock.demo.worker import STAYS

GRACE = 2.0
"""Seconds after the end of a TTL in which somebody should have noticed."""


class Killed(Struct, frozen=True, kw_only=True):
    """Who died, and what it held."""

    agent: str
    pid: int
    token: int
    slots: int


class Slots(Struct, frozen=True, kw_only=True):
    """What was built, and how many slots were at work at most; who built in the dead one's."""

    capacity: int
    builds: int
    most_at_once: int
    moved_to: str
    seconds: float


class MovedOn(Struct, frozen=True, kw_only=True):
    """Who got its grant, and how long after the kill."""

    agent: str
    token: int
    seconds: float


class LateWrite(Struct, frozen=True, kw_only=True):
    """What the dead worker's token got afterwards: from the file, and from Interlock."""

    file: str
    store: str


class Told(Struct, frozen=True, kw_only=True):
    """One entry of the record, in words."""

    revision: int
    at: float
    agent: str
    verb: str
    outcome: str
    text: str


class Facts(Struct, frozen=True, kw_only=True):
    """The result of a run; ``promises`` says which held."""

    outcome: str
    workers: int
    ttl: float
    seconds: float
    turns: int
    cut_short: int
    count: int
    handoffs: int
    handoff_ms: float
    killed: Killed
    moved_on: MovedOn
    slots: Slots
    late_write: LateWrite
    verdicts: dict[str, str]
    promises: dict[str, bool]
    entries: int
    story: tuple[Told, ...]


def gather(
    seen: Seen,
    writes: list[Written],
    lines: tuple[Line, ...],
    *,
    workers: int,
    ttl: float,
    seconds: float,
    capacity: int,
    verdicts: dict[str, str],
    grain: float = 0.0,
) -> Facts:
    """Everything that a run showed; ``grain`` is how exactly the store measures a TTL."""
    assert seen.heir is not None  # noqa: S101 - the play ends only with one
    handoffs = _handoffs(seen.turns)
    finished = sum(turn.wrote is not None for turn in seen.turns)
    after = seen.heir.took - seen.killed
    slots = _slots(seen, capacity)
    promises = {
        "one_holder_at_a_time": all(gap >= 0 for gap in handoffs) and after > 0,
        "no_update_lost": [w.count for w in writes] == list(range(1, len(writes) + 1))
        and len(writes) == finished,
        "tokens_increase": all(a.token < b.token for a, b in pairwise(writes)),
        "moved_on_in_time": seen.heir.reclaimed_from == seen.victim
        and after <= ttl + grain + GRACE,
        "never_above_the_capacity": 0 < slots.most_at_once <= capacity,
        "slots_moved_on_in_time": 0 < slots.seconds <= ttl + grain + GRACE,
        "record_not_refuted": "bad" not in verdicts.values(),
        "late_write_refused": (seen.late_file, seen.late_store) == ("refused", "fenced"),
    }
    return Facts(
        outcome="done" if all(promises.values()) else "failed",
        workers=workers,
        ttl=ttl,
        seconds=round(seconds, 2),
        turns=finished,
        cut_short=len(seen.turns) - finished,
        count=len(writes),
        handoffs=len(handoffs),
        handoff_ms=round(median(handoffs or [0.0]) * 1000, 2),
        killed=Killed(agent=seen.victim, pid=seen.pid, token=seen.token, slots=STAYS),
        moved_on=MovedOn(agent=seen.heir.agent, token=seen.heir.token, seconds=round(after, 3)),
        slots=slots,
        verdicts=verdicts,
        late_write=LateWrite(file=seen.late_file, store=seen.late_store),
        promises=promises,
        entries=len(lines),
        story=_story(lines, seen),
    )


def _handoffs(turns: list[Turn]) -> list[float]:
    """From the end of one's work to the beginning of the next one's."""
    in_order = sorted(turns, key=lambda turn: turn.token)
    return [b.took - a.wrote for a, b in pairwise(in_order) if a.wrote is not None]


def _slots(seen: Seen, capacity: int) -> Slots:
    """Slots at work, counted at each moment when somebody began."""
    heir = seen.built_instead(capacity)
    return Slots(
        capacity=capacity,
        builds=sum(build.done is not None for build in seen.builds),
        most_at_once=max((seen.at_work(build.took) for build in seen.builds), default=0),
        moved_to="" if heir is None else heir.agent,
        seconds=0.0 if heir is None else round(heir.took - seen.killed, 3),
    )


def _story(lines: tuple[Line, ...], seen: Seen) -> tuple[Told, ...]:
    """The entries around the kill: how the dead one got the lock, who took it, who was refused."""
    lost = ("lock:reclaimed", seen.victim)
    reclaim = next((i for i, line in enumerate(lines) if lost in _events(line)), None)
    if reclaim is None:
        return ()
    got = ("lock:acquired", seen.victim)
    grants = [line for line in lines[:reclaim] if got in _events(line)]
    after = lines[reclaim + 1 :]
    passed = [line for line in after if line.verb == "lock.release" and line.events]
    refused = [line for line in after if line.outcome == "fenced"]
    chosen = [*grants[-1:], lines[reclaim], *passed[:1], *refused[:1]]
    return tuple(_told(line) for line in sorted(chosen, key=lambda line: line.revision))


def _told(line: Line) -> Told:
    return Told(
        revision=line.revision,
        at=line.at,
        agent=line.agent,
        verb=line.verb,
        outcome=line.outcome,
        text=_text(line),
    )


def _text(line: Line) -> str:
    events = dict(_events(line))
    heir = events.get("lock:acquired", "")
    if "lock:reclaimed" in events:
        return f"found {events['lock:reclaimed']} gone; {heir} has it"
    if "lock:released" in events:
        return f"released; {heir} has it" if heir else "released"
    if line.outcome == "fenced":
        return "refused: its token is too old"
    return line.outcome


def record(
    fleet: interlock.Fleet, after: int, things: Container[str], sessions: Container[str]
) -> tuple[Line, ...]:
    """What the record has of us since a revision; others may use the same store."""
    lines = fleet.record.log(after=after, limit=100_000, last=False)
    ours = (line for line in lines if line.thing in things or line.session in sessions)
    return tuple(ours)


def latest(fleet: interlock.Fleet) -> int:
    """The revision of the last entry; 0 in a new store."""
    return max((line.revision for line in fleet.record.log(limit=1)), default=0)


def _events(line: Line) -> list[tuple[str, str]]:
    return [(event.name, event.agent) for event in line.events]
