"""What Interlock is to reach: the one table of it, and the rows of ``interlock bench`` it needs.

A figure is named ``section/contender``, as measured by ``make compare ONLY=section``.  A goal may
set one figure beside another: then the ratio of both counts, turn by turn.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tools import load
from tools.compare.processes import CompareTrouble, say
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


@dataclass(frozen=True)
class BenchRow:
    """A row of ``interlock bench --only``, and the field of it that is a figure.

    Without an engine it is SQLite.  A plain one runs in an install without extras.
    """

    figure: str
    engine: str
    only: str
    row: str
    field: str = "ratio"
    plain: bool = False


def _least(
    title: str,
    figure: str,
    reach: float,
    aim: float | None = None,
    *,
    beside: str = "",
    unit: str = "",
) -> Goal:
    return Goal(title=title, figure=figure, beside=beside, reach=reach, aim=aim, unit=unit)


def _most(
    title: str,
    figure: str,
    reach: float,
    aim: float | None = None,
    *,
    beside: str = "",
    unit: str = "",
) -> Goal:
    return replace(_least(title, figure, reach, aim, beside=beside, unit=unit), at_most=True)


_DRAIN = "8 processes empty a queue, tasks/s beside"
_FLOOR = "beside its floor, SQLite"
GOALS = (
    # Two runs of one version differ by a tenth.
    _least(f"{_DRAIN} a call for each", "claims/interlock", 0.9, 1.0, beside="claims/one-by-one"),
    _least(f"{_DRAIN} huey, ahead=16", "claims/ahead", 1.2, 1.5, beside="claims/huey"),
    _least(f"{_DRAIN} SQL by hand, ahead=16", "claims/ahead", 0.75, 1.0, beside="claims/sql"),
    _least(
        "one process, 64 in flight, tasks/s beside one call for each",
        "alone/in-flight",
        5,
        8,
        beside="alone/one-by-one",
    ),
    _most(f"acquire {_FLOOR}", "floors/acquire", 1.5, 1.35),
    _most(f"slot {_FLOOR}", "floors/slot", 1.5, 1.35),
    _most(f"claim {_FLOOR}", "floors/claim", 1.5, 1.35),
    _most(f"alert {_FLOOR}", "floors/alert", 1.5, 1.35),
    _least("handoffs/s, 8 processes, fair and durable", "locks/interlock", 1200, 2000, unit="/s"),
    _most("claim on Redis beside the raw client", "floors/claim-redis", 1.5, 1.3),
    _most("claim on etcd beside the raw client", "floors/claim-etcd", 1.4, 1.3),
    _most(
        "query round trip, p50, etcd beside Redis",
        "queries/etcd",
        2.5,
        1.5,
        beside="queries/redis",
    ),
    _least("64 in flight on Redis beside a pipeline by hand", "pipeline/redis", 0.6, 0.8),
    _most("cold lock acquire beside a bare Python start", "cold/acquire", 4.2),
    _most("lock acquire with a warm process beside a bare Python start", "cold/warm", 2),
    _most("50 agents, 1,000 messages/s: p99", "fifty/p99", 25, 10, unit=" ms"),
    _most("alert to its receiver, p50, SQLite", "latency/interlock-alert", 1, unit=" ms"),
    _most("alert to its receiver, p50, Redis", "latency/interlock-alert-redis", 1, unit=" ms"),
    _most("share to its receiver, p50, SQLite", "latency/interlock", 1, unit=" ms"),
    _most("share to its receiver, p50, Redis", "latency/interlock-redis", 1, unit=" ms"),
    _most("query round trip, p50, SQLite", "queries/sqlite", 10, unit=" ms"),
    _most("query round trip, p50, Redis", "queries/redis", 10, unit=" ms"),
    _least("messages sent/s, 64 in flight, SQLite", "sending/sqlite", 10_000, unit="/s"),
    _least("messages sent/s, 64 in flight, Redis", "sending/redis", 10_000, unit="/s"),
)

_CLAIM = "claim by name, blocking"
_QUERY = "query and its answer, 2 processes"
_SHARE = "share, 64 in flight"
BENCH_ROWS = (
    BenchRow("floors/acquire", "", "acquire", "acquire, blocking"),
    BenchRow("floors/slot", "", "slots", "acquire a slot, blocking"),
    BenchRow("floors/claim", "", "claim", _CLAIM),
    BenchRow("floors/alert", "", "alert", "alert, blocking"),
    BenchRow("floors/claim-redis", "redis", "claim", _CLAIM),
    BenchRow("floors/claim-etcd", "etcd", "claim", _CLAIM),
    BenchRow("queries/sqlite", "", "query", _QUERY, "p50"),
    BenchRow("queries/redis", "redis", "query", _QUERY, "p50"),
    BenchRow("queries/etcd", "etcd", "query", _QUERY, "p50"),
    BenchRow("pipeline/redis", "redis", "in-flight", "acquire, 64 in flight"),
    BenchRow("sending/sqlite", "", "messages-in-flight", _SHARE, "rate"),
    BenchRow("sending/redis", "redis", "messages-in-flight", _SHARE, "rate"),
    BenchRow("cold/acquire", "", "cold", "cold lock acquire", plain=True),
    BenchRow("cold/warm", "", "cold", "warm lock acquire", plain=True),
)
LOAD_FIGURE = "fifty/p99"
NAMES = tuple(dict.fromkeys([*(row.figure for row in BENCH_ROWS), LOAD_FIGURE]))


def measure(
    servers: Servers, only: Sequence[str], turns: int, plain: str
) -> dict[str, list[float]]:
    """The figures that ``interlock bench`` and the load of 50 agents bring, in turns."""
    rows = [row for row in BENCH_ROWS if _wanted(row.figure, only)]
    figures: dict[str, list[float]] = {row.figure: [] for row in rows}
    for number in range(turns):
        for row in rows:
            say(f"{row.figure}, turn {number + 1} of {turns}: interlock bench --only {row.only}")
            figures[row.figure].append(_bench(row, servers, plain if row.plain else sys.executable))
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


def _bench(row: BenchRow, servers: Servers, python: str) -> float:
    store = ["--store", servers.fresh(row.engine)] if row.engine else []
    command = [python, "-m", "interlock", "bench", "--json", "--only", row.only, *store]
    done = subprocess.run(  # noqa: S603 - ourselves
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "TMPDIR": servers.folder},  # an interrupt kills it before it cleans up
    )
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
