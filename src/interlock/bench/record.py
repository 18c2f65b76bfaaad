"""What the record costs: its share of an acquisition, and reading all of it again.

To know the share, the same acquisition is done by a client that writes no record: its decisions
are marked as quiet, so that nothing is encoded, hashed, linked or logged for them.
Nothing but this measurement may do that: such a store cannot tell what happened.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from msgspec.structs import replace

import interlock
from interlock import aio
from interlock.bench import locks
from interlock.bench.engine import Engine
from interlock.bench.table import Row, percentile
from interlock.clock import SystemClock
from interlock.drivers import drive
from interlock.nouns.agents.session import TTL
from interlock.runtime.chain import Draft
from interlock.runtime.context import Context
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Attempt, Runner
from interlock.stores import open_store

VERIFY = "at least 100,000 /s of CPU time"


def share(engine: Engine, quick: bool) -> Iterator[Row]:
    """An acquire with its record, in turns with one without; the ratio is the share.

    Nothing on an engine that has to read before it writes quietly: that is other work.
    """
    if "share" not in engine.targets:
        return
    ours: list[float] = []
    bare: list[float] = []
    with (
        interlock.connect(engine.fresh(), agent="bench") as fleet,
        unrecorded(engine.fresh()) as other,
    ):
        for name in locks.names(quick):
            began = time.perf_counter()
            fleet.locks.acquire(name)
            between = time.perf_counter()
            other.locks.acquire(name)
            ours.append(between - began)
            bare.append(time.perf_counter() - between)
        engine.wipe()
    whole, without = percentile(ours, 0.5), percentile(bare, 0.5)
    yield Row(
        name="the record's share of an acquire",
        floor=without * 1000,
        p50=whole * 1000,
        ratio=1 - without / whole,
        target=engine.targets["share"],
    )


def verify(engine: Engine, quick: bool) -> Iterator[Row]:
    """Reading the whole record and judging it, by the time that the processor spent on it."""
    url = engine.fresh()
    asyncio.run(_fill(url, *locks.ROUNDS["quick" if quick else "full"]))
    with interlock.connect(url) as fleet:
        began = time.process_time()
        found = fleet.record.verify()
        spent = time.process_time() - began
    engine.wipe()
    yield Row(name="record verify, entries", rate=found.entries / spent, target=VERIFY)


async def _fill(url: str, rounds: int, each: int) -> None:
    """A record of two entries for each acquisition, by many at once."""
    async with await aio.connect(url, agent="bench") as fleet:

        async def worker(number: int) -> None:
            for _ in range(rounds * each):
                await fleet.locks.acquire(f"bench.{number}")
                await fleet.locks.release(f"bench.{number}")

        await asyncio.gather(*map(worker, range(locks.IN_FLIGHT)))


class Unrecorded(Runner):
    """A writer that keeps no record."""

    def draft(self, attempt: Attempt, actor: Actor, *, checked: bool) -> Draft:
        """The transaction alone."""
        quiet = replace(attempt, decision=replace(attempt.decision, quiet=True))
        return super().draft(quiet, actor, checked=checked)


def unrecorded(url: str) -> interlock.Fleet:
    """A client whose acquisitions leave no trace."""
    store = open_store(url)
    clock = SystemClock(suspends=store.capabilities.one_machine)
    context = Context(store, "bench", "", Unrecorded(store, clock=clock))
    drive(context.begin(None, TTL), store)
    return interlock.Fleet(context)
