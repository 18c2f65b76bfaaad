"""Semaphores in one process, and several things at once; beside the same floor as locks."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterator

import interlock
from interlock import aio
from interlock.bench import locks
from interlock.bench.engine import Engine
from interlock.bench.table import Row, timed
from interlock.nouns.grants.semaphore import AcquireOutcome
from interlock.nouns.grants.several import SeveralAcquired

CAPACITY = 4
SEVERAL = "at most 1.5"
"""Of the time of one lock: one commit, and three items instead of one."""


def one_at_a_time(engine: Engine, quick: bool) -> Iterator[Row]:
    """A slot of a semaphore that is made with it, in turns with a bare commit."""
    yield locks.one_by_one(engine, quick, "acquire a slot, blocking", _take)


def one_at_a_time_async(engine: Engine, quick: bool) -> Iterator[Row]:
    """The same through the async client."""
    yield locks.one_by_one_async(engine, quick, "acquire a slot, async", _take_async)


def in_flight(engine: Engine, quick: bool) -> Iterator[Row]:
    """64 of them under way at once, in turns with 64 bare commits."""
    return locks.in_flight_beside(
        engine, quick, engine.floor_async, what="acquire a slot", take=_take_async
    )


def three_at_once(engine: Engine, quick: bool) -> Iterator[Row]:
    """Two locks and a slot with one commit, in turns with one lock."""
    ours: list[float] = []
    one: list[float] = []
    with interlock.connect(engine.fresh(), agent="bench") as fleet:
        for name in locks.names(quick):
            fleet.semaphores.resize(name, CAPACITY)
            began = time.perf_counter()
            fleet.locks.acquire(name)
            between = time.perf_counter()
            outcome = fleet.several.acquire(f"lock/{name}.a", f"lock/{name}.b", f"sem/{name}")
            ours.append(time.perf_counter() - between)
            one.append(between - began)
            assert isinstance(outcome, SeveralAcquired)  # noqa: S101 - nobody else is there
        engine.wipe()
    yield timed("two locks and a slot at once, beside one lock", ours, one, SEVERAL)


def _take(fleet: interlock.Fleet, name: str) -> AcquireOutcome:
    return fleet.semaphores.acquire(name, capacity=CAPACITY)


def _take_async(fleet: aio.Fleet, name: str) -> Awaitable[AcquireOutcome]:
    return fleet.semaphores.acquire(name, capacity=CAPACITY)
