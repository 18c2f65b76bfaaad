"""What Interlock is to reach: the one table of it, and the rows of ``interlock bench`` it needs.

A figure is named ``section/contender``, as measured by ``make compare ONLY=section``.  A goal may
set one figure beside another: then the ratio of both counts, turn by turn.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tools import load
from tools.compare.processes import CompareTrouble
from tools.compare.servers import Servers

Figures = Mapping[str, Sequence[float]]
"""Each figure, turn by turn."""
LOAD_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What one figure, or the ratio of two, has to reach."""

    title: str
    figure: str
    beside: str = ""
    reach: float
    aim: float | None = None
    at_most: bool = False
    unit: str = ""

    def values(self, figures: Figures) -> list[float]:
        """The figure or the ratio, turn by turn; none if it was not measured."""
        if self.figure not in figures or (self.beside and self.beside not in figures):
            return []
        ours = figures[self.figure]
        others = figures[self.beside] if self.beside else [1.0] * len(ours)
        return [a / b for a, b in zip(ours, others, strict=True)]

    def reached(self, value: float) -> bool:
        """Whether a value is good enough."""
        return value <= self.reach if self.at_most else value >= self.reach


@dataclass(frozen=True, kw_only=True)
class Found:
    """A goal, and the median of its figure."""

    goal: Goal
    median: float

    @property
    def reached(self) -> bool:
        """Whether the median is good enough."""
        return self.goal.reached(self.median)


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """A row of ``interlock bench --only``, and the field of it that is a figure."""

    figure: str
    engine: str
    only: str
    row: str
    field: str = "ratio"


BESIDE_FLOOR = "beside its floor, SQLite"
GOALS = (
    Goal(
        title="8 processes empty a queue, tasks/s beside huey",
        figure="claims/interlock",
        beside="claims/huey",
        reach=1.2,
        aim=1.5,
    ),
    Goal(
        title="8 processes empty a queue, tasks/s beside SQL by hand",
        figure="claims/interlock",
        beside="claims/sql",
        reach=0.75,
        aim=1.0,
    ),
    Goal(
        title="one process, 64 in flight, tasks/s beside one at a time",
        figure="alone/in-flight",
        beside="alone/interlock",
        reach=5,
        aim=8,
    ),
    *(
        Goal(
            title=f"{row} {BESIDE_FLOOR}",
            figure=f"floors/{row}",
            reach=1.5,
            aim=1.35,
            at_most=True,
        )
        for row in ("acquire", "slot", "claim", "alert")
    ),
    Goal(
        title="handoffs/s, 8 processes, fair and durable",
        figure="locks/interlock",
        reach=1200,
        aim=2000,
        unit="/s",
    ),
    Goal(
        title="claim on Redis beside the raw client",
        figure="floors/claim-redis",
        reach=1.5,
        aim=1.3,
        at_most=True,
    ),
    Goal(
        title="claim on etcd beside the raw client",
        figure="floors/claim-etcd",
        reach=1.4,
        aim=1.3,
        at_most=True,
    ),
    Goal(
        title="query round trip, p50, etcd beside Redis",
        figure="queries/etcd",
        beside="queries/redis",
        reach=2.5,
        aim=1.5,
        at_most=True,
    ),
    Goal(
        title="64 in flight on Redis beside a pipeline by hand",
        figure="pipeline/redis",
        reach=0.6,
        aim=0.8,
    ),
    Goal(
        title="cold lock acquire beside a bare Python start",
        figure="cold/acquire",
        reach=4.2,
        aim=2,
        at_most=True,
    ),
    Goal(
        title="50 agents, 1,000 messages/s: p99",
        figure="fifty/p99",
        reach=25,
        aim=10,
        at_most=True,
        unit=" ms",
    ),
    *(
        Goal(
            title=f"{kind} to its receiver, p50, {engine}",
            figure=f"latency/interlock{suffix}",
            reach=1,
            at_most=True,
            unit=" ms",
        )
        for engine, suffixes in (("SQLite", ("-alert", "")), ("Redis", ("-alert-redis", "-redis")))
        for kind, suffix in zip(("alert", "share"), suffixes, strict=True)
    ),
    *(
        Goal(
            title=f"query round trip, p50, {engine}",
            figure=f"queries/{engine.lower()}",
            reach=10,
            at_most=True,
            unit=" ms",
        )
        for engine in ("SQLite", "Redis")
    ),
    *(
        Goal(
            title=f"messages sent/s, 64 in flight, {engine}",
            figure=f"sending/{engine.lower()}",
            reach=10_000,
            unit="/s",
        )
        for engine in ("SQLite", "Redis")
    ),
)

_CLAIM = "claim by name, blocking"
_QUERY = "query and its answer, 2 processes"
BENCH_ROWS = (
    BenchRow(figure="floors/acquire", engine="", only="acquire", row="acquire, blocking"),
    BenchRow(figure="floors/slot", engine="", only="slots", row="acquire a slot, blocking"),
    BenchRow(figure="floors/claim", engine="", only="claim", row=_CLAIM),
    BenchRow(figure="floors/alert", engine="", only="alert", row="alert, blocking"),
    BenchRow(figure="floors/claim-redis", engine="redis", only="claim", row=_CLAIM),
    BenchRow(figure="floors/claim-etcd", engine="etcd", only="claim", row=_CLAIM),
    BenchRow(figure="queries/sqlite", engine="", only="query", row=_QUERY, field="p50"),
    BenchRow(figure="queries/redis", engine="redis", only="query", row=_QUERY, field="p50"),
    BenchRow(figure="queries/etcd", engine="etcd", only="query", row=_QUERY, field="p50"),
    BenchRow(
        figure="pipeline/redis", engine="redis", only="in-flight", row="acquire, 64 in flight"
    ),
    *(
        BenchRow(
            figure=f"sending/{engine or 'sqlite'}",
            engine=engine,
            only="messages-in-flight",
            row="share, 64 in flight",
            field="rate",
        )
        for engine in ("", "redis")
    ),
    BenchRow(figure="cold/acquire", engine="", only="cold", row="cold lock acquire"),
)
LOAD_FIGURE = "fifty/p99"
NAMES = tuple(dict.fromkeys([*(row.figure for row in BENCH_ROWS), LOAD_FIGURE]))


def measure(
    servers: Servers, only: Sequence[str], turns: int, say: Callable[[str], object]
) -> dict[str, list[float]]:
    """The figures that ``interlock bench`` and the load of 50 agents bring, in turns."""
    rows = [row for row in BENCH_ROWS if _wanted(row.figure, only)]
    figures: dict[str, list[float]] = {row.figure: [] for row in rows}
    for number in range(turns):
        for row in rows:
            say(f"{row.figure}, turn {number + 1} of {turns}: interlock bench --only {row.only}")
            figures[row.figure].append(_bench(row, servers))
        if _wanted(LOAD_FIGURE, only):
            say(f"{LOAD_FIGURE}, turn {number + 1} of {turns}: {LOAD_SECONDS:.0f} seconds")
            figures.setdefault(LOAD_FIGURE, []).append(_load(servers))
    return figures


def judge(figures: Figures) -> Iterator[Found]:
    """The goals whose figures were measured."""
    for goal in GOALS:
        if values := goal.values(figures):
            yield Found(goal=goal, median=statistics.median(values))


def _wanted(figure: str, only: Sequence[str]) -> bool:
    return not only or figure in only or figure.partition("/")[0] in only


def _bench(row: BenchRow, servers: Servers) -> float:
    store = ["--store", servers.fresh(row.engine)] if row.engine else []
    command = [sys.executable, "-m", "interlock", "bench", "--json", "--only", row.only, *store]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)  # noqa: S603
    if done.returncode:
        raise CompareTrouble(f"{' '.join(command[2:])} failed:\n{done.stderr[-3000:]}")
    for found in json.loads(done.stdout)["rows"]:
        if found["name"] == row.row:
            return float(found[row.field])
    raise CompareTrouble(f"{' '.join(command[2:])} has no row {row.row!r}")


def _load(servers: Servers) -> float:
    place = servers.fresh("")
    verdict = load.run(load.plans(place, seconds=LOAD_SECONDS))
    servers.clear(place)
    if verdict.lost or verdict.doubled or verdict.reordered or verdict.refused:
        raise CompareTrouble(f"50 agents: {load.report(verdict)}")
    return verdict.took[load.SHARES.index(0.99)]
