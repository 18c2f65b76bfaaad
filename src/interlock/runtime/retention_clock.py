"""What time it is, for an act whose cost falls on others.

A wall clock may be wrong by hours or years, and the client that has it does not know.  So no act
that deletes or ends something of others rests on one client's clock:

    a span   (how long a task may be begun, how long a query is open, how long a grant lives) is a
             liveness key, which the engine measures with its own clock
    an age   (retention) is judged by the earlier of two clocks, ours and the engine's

An engine that cannot tell the time leaves the second clock to the record: what most other agents
wrote last.  ``docs/decisions/clocks.md`` lists every place that looks at a wall clock.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from interlock.drivers import Op
from interlock.nouns.tasks import retention_rules as core
from interlock.nouns.tasks.retention_rules import RecordedTime
from interlock.runtime.decode import decoded, readable
from interlock.runtime.runner import Runner
from interlock.runtime.steps import Read, StoreCall
from interlock.store import Item, Log

NEWEST = Log(limit=100, last=True)
"""The entries of the record that say what time it is by the clocks of others."""
_SAID = msgspec.json.Decoder(RecordedTime)


def agreed(runner: Runner) -> Op[float]:
    """The time by our clock or by the engine's, whichever is earlier."""
    now, engine = runner.clock.wall(), (yield from by_engine())
    if engine is None:
        newest = said((yield Read(NEWEST)).ranges[NEWEST])
        return core.now(now, newest, runner.chain.writer)
    return min(now, engine)


def by_engine() -> Op[float | None]:
    """The time by the engine's own clock; None if it cannot tell."""
    found: float | None = yield StoreCall("wall")
    return found


def said(entries: Sequence[Item]) -> tuple[RecordedTime, ...]:
    """What entries of the record say of their moments."""
    return tuple([each for item in entries if (each := readable(_said, item)) is not None])


def _said(item: Item) -> RecordedTime | None:
    """What an entry says of its moment; a void says nothing."""
    found = decoded(_SAID, item)
    return replace(found, revision=item.revision) if found.at else None
