"""Locks in one process: one at a time, and many in flight."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator

import interlock
from interlock import aio
from interlock.bench.floor import SQLiteFloor
from interlock.bench.table import Row, timed

IN_FLIGHT = 64


def one_at_a_time(folder: str, quick: bool) -> Iterator[Row]:
    """An uncontended acquire through the blocking client, in turns with a bare commit."""
    floor = SQLiteFloor(folder)
    ours: list[float] = []
    bare: list[float] = []
    with interlock.connect(_fresh(folder), agent="bench") as fleet:
        for name in _names(quick):
            began = time.perf_counter()
            fleet.locks.acquire(name)
            between = time.perf_counter()
            floor.commit(name)
            ours.append(between - began)
            bare.append(time.perf_counter() - between)
    floor.close()
    yield timed("acquire, blocking", ours, bare, "at most 1.6")


def one_at_a_time_async(folder: str, quick: bool) -> Iterator[Row]:
    """An uncontended acquire through the async client, in turns with a bare commit."""
    floor = SQLiteFloor(folder)
    ours: list[float] = []
    bare: list[float] = []

    async def measure() -> None:
        async with await aio.connect(_fresh(folder), agent="bench") as fleet:
            for name in _names(quick):
                began = time.perf_counter()
                await fleet.locks.acquire(name)
                between = time.perf_counter()
                floor.commit(name)
                ours.append(between - began)
                bare.append(time.perf_counter() - between)

    asyncio.run(measure())
    floor.close()
    yield timed("acquire, async", ours, bare, "at most 2.5")


def in_flight(folder: str, quick: bool) -> Iterator[Row]:
    """64 acquires of distinct names under way at once, beside 64 bare ones per durable commit."""
    floor = SQLiteFloor(folder)
    rounds, each = (3, 20) if quick else (10, 60)
    ours = bare = 0.0

    async def measure() -> None:
        nonlocal ours, bare
        async with await aio.connect(_fresh(folder), agent="bench") as fleet:

            async def worker(turn: int, number: int) -> None:
                for count in range(each):
                    await fleet.locks.acquire(f"bench.{turn}.{number}.{count}")

            for turn in range(rounds):
                began = time.perf_counter()
                await asyncio.gather(*(worker(turn, number) for number in range(IN_FLIGHT)))
                ours += time.perf_counter() - began
                began = time.perf_counter()
                for count in range(each):
                    floor.commit(*(f"bench.{turn}.{n}.{count}" for n in range(IN_FLIGHT)))
                bare += time.perf_counter() - began

    asyncio.run(measure())
    floor.close()
    done = rounds * each * IN_FLIGHT
    yield Row(
        name=f"acquire, {IN_FLIGHT} in flight",
        floor=done / bare,
        rate=done / ours,
        ratio=bare / ours,
        target="at least 0.25",
        unit="/s",
    )


def _names(quick: bool) -> list[str]:
    return [f"bench.{number}" for number in range(300 if quick else 3000)]


def _fresh(folder: str) -> str:
    return os.path.join(folder, f"bench-{os.urandom(4).hex()}.db")
