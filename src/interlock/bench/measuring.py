"""How measurements are made and shown: ours in turns with the floor, one at a time or many."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, closing
from typing import TypeAlias

from msgspec import Struct

import interlock
from interlock import aio
from interlock.bench.engine import ACQUIRE, AsyncFloor, BenchEngine, EngineFloor, FloorCommit
from interlock.core.outcomes import Listing

IN_FLIGHT = 64
_HEAD = ("operation", "floor", "p50", "p95", "p99", "per second", "ratio", "target")
_NAME_WIDTH = 50
_NUMBER_WIDTH = 10
Spans: TypeAlias = tuple[list[float], list[float]]
"""Seconds that each operation took: ours, and those of the floor."""


class Row(Struct, frozen=True, kw_only=True):
    """One measurement beside its floor; times in milliseconds, rates per second."""

    name: str
    floor: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    rate: float | None = None
    ratio: float | None = None
    target: str = ""
    unit: str = "ms"


class Measured(Listing[Row], frozen=True, kw_only=True):
    """All rows, and the engine; ``left_out`` names the measurements that are missing, and why."""

    listed = "rows"

    engine: str
    rows: tuple[Row, ...]
    left_out: tuple[str, ...] = ()


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of all values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def timed(
    name: str, seconds: Sequence[float], floor: Sequence[float], target: str, *, share: float = 0.5
) -> Row:
    """A row of latencies; floor and ratio are those at this share, by default the medians."""
    bare = percentile(floor, share)
    return Row(
        name=name,
        floor=bare * 1000,
        p50=percentile(seconds, 0.5) * 1000,
        p95=percentile(seconds, 0.95) * 1000,
        p99=percentile(seconds, 0.99) * 1000,
        rate=len(seconds) / sum(seconds),
        ratio=percentile(seconds, share) / bare,
        target=target,
    )


def heading() -> str:
    """The titles of the columns."""
    return _line(_HEAD)


def as_text(row: Row) -> str:
    """A row for a person, below the heading: the columns are as wide for each row."""
    return _line(_cells(row))


def _line(cells: Sequence[str]) -> str:
    name, *numbers, target = cells
    return "  ".join(
        [f"{name:{_NAME_WIDTH}}", *[f"{each:>{_NUMBER_WIDTH}}" for each in numbers], target]
    ).rstrip()


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        _quantity(row.floor, row.unit),
        _quantity(row.p50, row.unit),
        _quantity(row.p95, row.unit),
        _quantity(row.p99, row.unit),
        "" if row.rate is None else f"{row.rate:,.0f}",
        "" if row.ratio is None else f"{row.ratio:.2f}",
        row.target,
    )


def _quantity(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    if unit == "/s":
        return f"{value:,.0f} /s"
    return f"{value:.2f} {unit}" if value < 10 else f"{value:.0f} {unit}"  # noqa: PLR2004


class Sizes(Struct, frozen=True, kw_only=True):
    """How much is measured."""

    one_by_one: int = 1500
    rounds: int = 10
    """How often many are in flight, and how many operations each of them does then."""
    each: int = 30
    wakeups: int = 200
    handoff_processes: int = 8
    handoff_seconds: float = 3.0
    drain_processes: int = 8
    drained: int = 5000
    subscribers: int = 500
    flood_seconds: float = 0.6
    requests_each: int = 40
    """Requests of each of those that are in flight."""
    cold_starts: int = 40
    idle: tuple[int, float, float] = (500, 30.0, 26.0)
    """Agents, their ttl, and the seconds of two heartbeats: the same load in either size."""
    page: tuple[int, int, int, float] = (2000, 200, 7, 8.0)
    """Tasks and agents on the page, how often it is loaded, and the seconds in which it scrolls."""

    @property
    def names(self) -> list[str]:
        """Unused names for measuring one by one."""
        return [f"bench.{number}" for number in range(self.one_by_one)]


FULL = Sizes()
QUICK = Sizes(
    one_by_one=300,
    rounds=3,
    each=20,
    wakeups=30,
    handoff_seconds=1.0,
    drained=400,
    subscribers=50,
    flood_seconds=0.3,
    requests_each=10,
    cold_starts=8,
    idle=(100, 6.0, 5.2),
    page=(2000, 200, 3, 4.0),
)
Measurement: TypeAlias = Callable[[BenchEngine, Sizes], Iterator[Row]]


def in_turns(
    names: Iterable[str], ours: Callable[[str], object], bare: Callable[[str], object]
) -> Spans:
    """Time both functions for each name, in turns."""
    spans: Spans = [], []
    for name in names:
        began = time.perf_counter()
        ours(name)
        between = time.perf_counter()
        bare(name)
        spans[0].append(between - began)
        spans[1].append(time.perf_counter() - between)
    return spans


def one_by_one(
    row: str,
    operation: Callable[[interlock.Fleet, str], object],
    *,
    expected: type = object,
    target: str = "acquire",
    kind: FloorCommit = ACQUIRE,
    prepare: Callable[[interlock.Fleet, EngineFloor, Sizes], object] | None = None,
) -> Measurement:
    """Measure an operation of the blocking client, in turns with a bare commit."""

    def measurement(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
        with (
            closing(engine.floor()) as floor,
            interlock.connect(engine.fresh(), agent="bench") as fleet,
        ):
            if prepare is not None:
                prepare(fleet, floor, size)

            def ours(name: str) -> None:
                assert isinstance(operation(fleet, name), expected)  # noqa: S101 - uncontended

            work = engine.kind(kind)
            spans = in_turns(size.names, ours, lambda name: floor.commit(name, kind=work))
            engine.wipe()
        yield timed(row, *spans, engine.targets[target])

    return measurement


def one_by_one_async(
    row: str,
    operation: Callable[[aio.Fleet, str], Awaitable[object]],
    *,
    target: str = "acquire-async",
    kind: FloorCommit = ACQUIRE,
    prepare: Callable[[aio.Fleet, AsyncFloor, Sizes], Awaitable[object]] | None = None,
) -> Measurement:
    """Measure an operation of the async client, in turns with a bare commit."""

    async def measure(engine: BenchEngine, size: Sizes) -> Spans:
        spans: Spans = [], []
        async with (
            aclosing(await engine.floor_async()) as floor,
            await aio.connect(engine.fresh(), agent="bench") as fleet,
        ):
            if prepare is not None:
                await prepare(fleet, floor, size)
            work = engine.kind(kind)
            for name in size.names:
                began = time.perf_counter()
                await operation(fleet, name)
                between = time.perf_counter()
                await floor.commit(name, work)
                spans[0].append(between - began)
                spans[1].append(time.perf_counter() - between)
            engine.wipe()
        return spans

    def measurement(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
        yield timed(row, *asyncio.run(measure(engine, size)), engine.targets[target])

    return measurement


def in_flight(
    row: str,
    operation: Callable[[aio.Fleet, str], Awaitable[object]],
    *,
    expected: type = object,
    target: str = "in-flight",
    kinds: Sequence[FloorCommit] = (ACQUIRE,),
    prepare: Callable[[aio.Fleet, AsyncFloor, list[list[str]]], Awaitable[object]] | None = None,
    peers: bool = False,
) -> Measurement:
    """Measure an operation under way 64 times at once, in turns with as many bare commits.

    Names are ``bench.{round}.{worker}.{count}``; the operation makes a commit of each kind.
    With ``peers`` it is also measured beside other clients of the engine.
    """

    async def worker(fleet: aio.Fleet, names: Sequence[str]) -> None:
        for name in names:
            assert isinstance(await operation(fleet, name), expected)  # noqa: S101 - uncontended

    async def measure(
        engine: BenchEngine, size: Sizes, beside: Callable[[], Awaitable[AsyncFloor]]
    ) -> tuple[float, float]:
        ours = bare = 0.0
        async with (
            aclosing(await beside()) as floor,
            await aio.connect(engine.fresh(), agent="bench") as fleet,
        ):
            for round_ in range(size.rounds):
                names = [
                    [f"bench.{round_}.{number}.{count}" for number in range(IN_FLIGHT)]
                    for count in range(size.each)
                ]
                if prepare is not None:
                    await prepare(fleet, floor, names)
                began = time.perf_counter()
                await asyncio.gather(*(worker(fleet, own) for own in zip(*names, strict=True)))
                ours += time.perf_counter() - began
                began = time.perf_counter()
                for some in [names] if len(kinds) == 1 else [[each] for each in names]:
                    for kind in kinds:
                        await floor.in_flight(some, kind)
                bare += time.perf_counter() - began
            engine.wipe()
        return ours, bare

    def measurement(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
        beside = {"": engine.floor_async, **(engine.peers() if peers else {})}
        for peer, floor in beside.items():
            ours, bare = asyncio.run(measure(engine, size, floor))
            done = len(kinds) * size.rounds * size.each * IN_FLIGHT
            yield Row(
                name=f"{row}, {IN_FLIGHT} in flight" + (f", beside {peer}" if peer else ""),
                floor=done / bare,
                rate=done / ours,
                ratio=bare / ours,
                target=engine.targets[target],
                unit="/s",
            )

    return measurement
