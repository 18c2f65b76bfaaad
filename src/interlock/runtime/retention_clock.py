"""The time, and the number of commits, that retention is judged by.

A wall clock may be wrong by hours or years, and its client does not know it.  So no change that
deletes or ends something of another client rests on one client's clock:

    a span   (the time to begin a task, to answer a query, to hold a grant) is a liveness key, which
             the engine measures with its own clock
    an age   (retention) is judged by the earlier of two clocks, the client's and the engine's

If the engine has no clock, the record is the second one: the last entries of most other agents.
``docs/decisions/clocks.md`` lists every place that reads a wall clock.

Commits between two revisions are counted by entries where revisions are times, as in Redis.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.core.segment import SealedMark
from interlock.runtime.reads import readable
from interlock.runtime.runner import Runner
from interlock.steps import Op, Read, StoreCall
from interlock.store import Extent, Item, Log

NEWEST = Log(limit=100, last=True)
"""The entries of the record that show the clocks of other agents."""


class RecordedTime(Struct, frozen=True, kw_only=True, gc=False):
    """The time of an entry of the record, with its writer."""

    revision: int = 0
    at: float = 0.0
    writer: str = ""
    agent: str = ""


class CommitPosition(Struct, frozen=True, kw_only=True, gc=False):
    """A revision of a store, and the number of entries that the record had at it.

    The number is 0 if it is unknown: the engine trimmed unsealed entries, or the sealed mark is
    damaged.
    """

    revision: int
    entries: int = 0


_RECORDED = codec.Decoder(RecordedTime)
_SEALED = codec.Decoder(SealedMark)


def earlier_time(runner: Runner) -> Op[float]:
    """The time by the client's clock or by the engine's, whichever is earlier."""
    now, engine = runner.clock.wall(), (yield from engine_time())
    if engine is None:
        newest = recorded_times((yield Read(NEWEST)).ranges[NEWEST])
        return median_time(now, newest, runner.chain.writer)
    return min(now, engine)


def later_time(runner: Runner) -> Op[float]:
    """The time by the client's clock, by the engine's, or by the record's: the latest of them.

    For a decision that undoes what another client did ahead of time: a client whose clock is
    behind must not make it.
    """
    now, engine = runner.clock.wall(), (yield from engine_time())
    if engine is None:
        newest = recorded_times((yield Read(NEWEST)).ranges[NEWEST])
        others = sorted(each.at for each in newest if each.writer != runner.chain.writer)
        engine = others[len(others) // 2] if others else now
    return max(now, engine)


def engine_time() -> Op[float | None]:
    """The time by the engine's own clock; None if it has none."""
    found: float | None = yield StoreCall("wall")
    return found


def recorded_times(entries: Sequence[Item]) -> tuple[RecordedTime, ...]:
    """The times of entries of the record, without damaged entries."""
    return tuple([each for item in entries if (each := readable(_recorded, item)) is not None])


def median_time(own: float, recorded: Sequence[RecordedTime], writer: str) -> float:
    """The earlier of the client's clock and the median of the last times of other agents."""
    newest: dict[str, float] = {}
    for each in recorded:
        if each.writer != writer:
            newest[each.agent] = max(each.at, newest.get(each.agent, 0.0))
    order = sorted(newest.values())
    return min(own, order[(len(order) - 1) // 2]) if order else own


def _recorded(item: Item) -> RecordedTime | None:
    """The time of an entry; a void has none."""
    found = _RECORDED.read(item)
    return replace(found, revision=item.revision) if found.at else None


def commit_position(revision: int) -> Op[CommitPosition]:
    """The current position; its entries may be slightly newer than the revision."""
    extent: Extent = yield StoreCall("extent")
    item = (yield Read(keys.SEALED))[keys.SEALED]
    sealed = SealedMark() if item is None else readable(_SEALED.read, item)
    if sealed is None or extent.trimmed > sealed.revision:
        return CommitPosition(revision=revision)
    return CommitPosition(revision=revision, entries=sealed.entries + extent.entries)


def commits_since(before: CommitPosition, revision: int, enough: int) -> Op[int]:
    """The most commits that can have happened between a position and a revision.

    A difference of at most ``enough`` needs no read.
    """
    came = revision - before.revision
    if came <= enough or not before.entries:
        return came
    entries = (yield from commit_position(revision)).entries
    return min(came, entries - before.entries) if entries else came
