"""Locks in one process: one at a time, and many in flight."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, closing
from typing import TypeAlias

import interlock
from interlock import aio
from interlock.bench.engine import AsyncFloor, Engine
from interlock.bench.table import Row, timed
from interlock.nouns.grants.lock import AcquireOutcome, LockAcquired, LockReleased

IN_FLIGHT = 64
ONE_BY_ONE = {"quick": 300, "full": 1500}
Take: TypeAlias = Callable[[interlock.Fleet, str], object]
TakeAsync: TypeAlias = Callable[[aio.Fleet, str], Awaitable[object]]
"""Taking what has this name."""

ROUNDS = {"quick": (3, 20), "full": (10, 30)}
"""How often, and how many each of those in flight does then."""


def one_at_a_time(engine: Engine, quick: bool) -> Iterator[Row]:
    """An uncontended acquire through the blocking client, in turns with a bare commit."""
    yield one_by_one(engine, quick, "acquire, blocking", _take)


def one_at_a_time_async(engine: Engine, quick: bool) -> Iterator[Row]:
    """An uncontended acquire through the async client, in turns with a bare commit."""
    yield one_by_one_async(engine, quick, "acquire, async", _take_async)


def one_by_one(engine: Engine, quick: bool, row: str, take: Take) -> Row:
    """Whatever is taken through the blocking client, in turns with a bare commit."""
    ours: list[float] = []
    bare: list[float] = []
    with (
        closing(engine.floor()) as floor,
        interlock.connect(engine.fresh(), agent="bench") as fleet,
    ):
        for name in names(quick):
            began = time.perf_counter()
            take(fleet, name)
            between = time.perf_counter()
            floor.commit(name)
            ours.append(between - began)
            bare.append(time.perf_counter() - between)
        engine.wipe()
    return timed(row, ours, bare, engine.targets["acquire"])


def one_by_one_async(engine: Engine, quick: bool, row: str, take: TakeAsync) -> Row:
    """The same through the async client."""
    ours: list[float] = []
    bare: list[float] = []

    async def measure() -> None:
        async with (
            aclosing(await engine.floor_async()) as floor,
            await aio.connect(engine.fresh(), agent="bench") as fleet,
        ):
            for name in names(quick):
                began = time.perf_counter()
                await take(fleet, name)
                between = time.perf_counter()
                await floor.commit(name)
                ours.append(between - began)
                bare.append(time.perf_counter() - between)
            engine.wipe()

    asyncio.run(measure())
    return timed(row, ours, bare, engine.targets["acquire-async"])


def read_first(engine: Engine, quick: bool) -> Iterator[Row]:
    """A release by a client that knows the token and nothing else, so it has to read."""
    ours: list[float] = []
    bare: list[float] = []
    url = engine.fresh()
    with (
        closing(engine.floor()) as floor,
        interlock.connect(url, agent="bench") as holder,
        interlock.connect(url, agent="bench") as fleet,
    ):
        for name in names(quick):
            held = holder.locks.acquire(name)
            assert isinstance(held, LockAcquired)  # noqa: S101 - nobody else is there
            began = time.perf_counter()
            outcome = fleet.locks.release(name, token=held.token)
            between = time.perf_counter()
            floor.commit(name)
            ours.append(between - began)
            bare.append(time.perf_counter() - between)
            assert isinstance(outcome, LockReleased)  # noqa: S101 - likewise
        engine.wipe()
    yield timed("release, read first", ours, bare, engine.targets["read-first"])


def in_flight(engine: Engine, quick: bool) -> Iterator[Row]:
    """64 acquires of distinct names under way at once, in turns with 64 bare ones."""
    return in_flight_beside(engine, quick, engine.floor_async)


def in_flight_beside(
    engine: Engine,
    quick: bool,
    beside: Callable[[], Awaitable[AsyncFloor]],
    note: str = "",
    *,
    what: str = "acquire",
    take: TakeAsync | None = None,
) -> Iterator[Row]:
    """The same in turns with a given floor, or of something else."""
    rounds, each = ROUNDS["quick" if quick else "full"]
    take = take or _take_async
    ours = bare = 0.0

    async def measure() -> None:
        nonlocal ours, bare
        async with (
            aclosing(await beside()) as floor,
            await aio.connect(engine.fresh(), agent="bench") as fleet,
        ):

            async def worker(turn: int, number: int) -> None:
                for count in range(each):
                    await take(fleet, f"bench.{turn}.{number}.{count}")

            for turn in range(rounds):
                began = time.perf_counter()
                await asyncio.gather(*(worker(turn, number) for number in range(IN_FLIGHT)))
                ours += time.perf_counter() - began
                names = [
                    [f"bench.{turn}.{number}.{count}" for number in range(IN_FLIGHT)]
                    for count in range(each)
                ]
                began = time.perf_counter()
                await floor.in_flight(names)
                bare += time.perf_counter() - began
            engine.wipe()

    asyncio.run(measure())
    done = rounds * each * IN_FLIGHT
    yield Row(
        name=f"{what}, {IN_FLIGHT} in flight{note}",
        floor=done / bare,
        rate=done / ours,
        ratio=bare / ours,
        target=engine.targets["in-flight"],
        unit="/s",
    )


def names(quick: bool) -> list[str]:
    """Names that nobody used."""
    return [f"bench.{number}" for number in range(ONE_BY_ONE["quick" if quick else "full"])]


def _take(fleet: interlock.Fleet, name: str) -> AcquireOutcome:
    return fleet.locks.acquire(name)


def _take_async(fleet: aio.Fleet, name: str) -> Awaitable[AcquireOutcome]:
    return fleet.locks.acquire(name)
