"""Metrics of a noun: counters, gauges and histograms under names that monitors know.

A noun declares a class (``Noun.metrics``).  It is given the entries of the record one by one, in
any order, and says at the end what it counted; gauges it reads from the items.  ``observe
--counts`` gives it the entries since a moment; a face that is scraped keeps one and gives it each
entry as the record grows, which makes its counters ones that only grow.

``Noun.gauges`` names a function that reads the present state of the noun, for monitors alone.
``runtime/monitoring.py`` puts all of it together.

The number of series is bounded: a label is one of a fixed list, or the name of an agent or a swarm,
of which ``LABELLED`` have series of their own and the others share one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal

from msgspec import Struct

from interlock.core.decision import Event
from interlock.steps import Op

BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 3e4, 6e4)
"""The upper bounds of the buckets of a histogram, in milliseconds; a last one has no bound."""


LABELLED = 200
"""Agents, or swarms, that have series of their own."""
OTHERS = "(others)"
"""The label of all further ones, which is no name of an agent or a swarm."""


class CountedEntry(Struct, gc=False):
    """The parts of an entry of the record that counters need."""

    at: float = 0.0
    agent: str = ""
    verb: str = ""
    thing: str = ""
    took: float | None = None
    events: tuple[Event, ...] = ()


class MetricBucket(Struct, frozen=True, kw_only=True):
    """How many values are not above a bound; without a bound, all of them."""

    le: float | None
    count: int


class Metric(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One number with its name and labels; of a histogram the number is how many values it has.

    The quantiles of a histogram lie in its buckets, on the straight line between their bounds, or
    between the least and the greatest value.  ``help`` says what the number is, for monitors.
    """

    own_words = (
        "name",
        "help",
    )

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    value: float
    labels: dict[str, str] = {}
    help: str = ""
    sum: float | None = None
    buckets: tuple[MetricBucket, ...] = ()
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class Histogram:
    """Values in buckets."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._sum = self._most = 0.0
        self._least = float("inf")

    def add(self, value: float) -> None:
        """One more value."""
        self._counts[bisect_left(BOUNDS, value)] += 1
        self._sum += value
        self._most = max(self._most, value)
        self._least = min(self._least, value)

    def metric(self, name: str, labels: Mapping[str, str] | None = None) -> Metric:
        """The histogram as a metric."""
        total, running = sum(self._counts), 0
        buckets = []
        for bound, count in zip((*BOUNDS, None), self._counts, strict=True):
            running += count
            buckets.append(MetricBucket(le=bound, count=running))
        return Metric(
            name=name,
            kind="histogram",
            value=total,
            labels=dict(labels or {}),
            sum=round(self._sum, 3),
            buckets=tuple(buckets),
            p50=self._quantile(0.50, total),
            p95=self._quantile(0.95, total),
            p99=self._quantile(0.99, total),
        )

    def _quantile(self, part: float, total: int) -> float | None:
        if not total:
            return None
        wanted, below, lower = part * total, 0, 0.0
        for bound, count in zip((*BOUNDS, self._most), self._counts, strict=True):
            upper, first = min(bound, self._most), max(lower, self._least)
            if below + count >= wanted:
                share = (wanted - below) / count
                return round(first + (upper - first) * share, 3)
            below, lower = below + count, bound
        return round(self._most, 3)


def gauge(name: str, help: str, value: float, **labels: str) -> Metric:  # noqa: A002
    """A number that goes up and down."""
    return Metric(name=name, kind="gauge", value=value, labels=labels, help=help)


def gauges(name: str, help: str, label: str, values: Mapping[str, float]) -> list[Metric]:  # noqa: A002
    """A number for each value of a label."""
    return [gauge(name, help, value, **{label: each}) for each, value in values.items()]


class LabelledCounts:
    """Counts by the name of an agent or a swarm; names beyond ``LABELLED`` are counted together."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, float]] = {}

    def add(self, name: str, counter: str, number: float = 1) -> None:
        """Count something of a name."""
        if name not in self._counts and len(self._counts) >= LABELLED:
            name = OTHERS
        counts = self._counts.setdefault(name, {})
        counts[counter] = counts.get(counter, 0) + number

    def metrics(self, label: str, helps: Mapping[str, str]) -> list[Metric]:
        """The counters with this label; ``helps`` has the name and the help of each."""
        return [
            Metric(
                name=counter,
                kind="counter",
                value=counts[counter],
                labels={label: name},
                help=text,
            )
            for counter, text in helps.items()
            for name, counts in self._counts.items()
            if counter in counts
        ]


class NounMetrics:
    """The metrics of one noun; ``helps`` says what each of them is, by its name."""

    helps: ClassVar[Mapping[str, str]] = {}

    def add(self, entry: CountedEntry) -> None:
        """Count an entry of the record."""

    def read(self) -> Op[Iterable[Metric]]:
        """The metrics by now; none if this store has no use for them."""
        yield from ()
        return ()

    def detail(self) -> Iterable[Metric]:
        """Counters for monitors alone, such as one for each agent."""
        return ()
