"""Metrics of a whole store, for monitors: gauges of the present, counters of the record.

Gauges are read when they are asked for: each noun counts its own (``Noun.gauges``), at most
``BOUND`` items of a kind, and this module adds those of the store and of ``health``.

Counters have to grow.  ``RecordCounts`` counts entries of the record from a revision on: a process
that is scraped keeps one, and begins at zero as every process does; a file that is written again
and again has the revision up to which it counted, and the next run continues there.  A reader that
keeps nothing counts the newest entries, for people.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar, get_args, get_type_hints

from msgspec.structs import replace

from interlock import registry
from interlock.core import codec, keys
from interlock.core.outcomes import Listing
from interlock.core.safe_text import printable
from interlock.errors import InterlockError
from interlock.runtime.health import BOUND, HealthCheck, Problem
from interlock.runtime.history import EntriesBackward, EntriesForward
from interlock.runtime.metrics import (
    LABELLED,
    OTHERS,
    CountedEntry,
    LabelledCounts,
    Metric,
    MetricBucket,
    NounMetrics,
    gauge,
    gauges,
)
from interlock.runtime.reads import every
from interlock.runtime.runner import Runner
from interlock.runtime.verdict import Verdict
from interlock.settings import Settings
from interlock.steps import Op, Read, StoreCall
from interlock.store import Extent, Item, Log, Snapshot
from interlock.version import __version__

NEWEST = 20_000
"""Entries that a reader counts that keeps nothing."""
CONTINUED = 100_000
"""Entries that a counter continues over in one go: at most a second or two; the rest comes next."""
REVISION = "interlock_record_revision"
"""The revision up to which the record was counted."""
INFO = "interlock_info"
INTACT, JUDGED = "interlock_record_intact", "interlock_record_judged_timestamp_seconds"

_COUNTED = codec.Decoder(CountedEntry)
_STORE_ID = codec.Decoder(str)
_SIZES = ("bytes", "wal_bytes", "db_bytes_in_use", "memory_bytes", "cache_bytes")
"""How the engines call the room that they take."""


class Metrics(Listing[Metric], frozen=True, kw_only=True):
    """All metrics; ``partial`` if the store has more items of a kind than are counted.

    store     the id of the store
    revision  the revision up to which the record was counted
    """

    listed = "metrics"

    store: str
    revision: int
    metrics: tuple[Metric, ...]
    partial: bool = False


class Scrape:
    """One reading of all gauges; each noun gets it."""

    def __init__(self, runner: Runner, settings: Settings) -> None:
        self.runner = runner
        self.settings = settings
        self.partial = False
        """Whether a noun has more than is counted."""

    def read(self, prefix: str, most: int = BOUND) -> Op[list[Item]]:
        """The items under a prefix, up to a bound."""
        items = yield from every(prefix, most=most + 1)
        self.partial |= len(items) > most
        return items[:most]

    def run(self) -> Op[list[Metric]]:
        """All gauges."""
        began = time.perf_counter()
        found = yield from self._store()
        for noun in registry.nouns():
            if noun.gauges:
                read: Callable[[Scrape], Op[list[Metric]]] = registry.load(noun.gauges)
                found += yield from read(self)
        found += yield from self._problems()
        says = "Seconds that reading these metrics took."
        return [*found, gauge("interlock_scrape_seconds", says, _seconds(began))]

    def _store(self) -> Op[list[Metric]]:
        began = time.perf_counter()
        yield Read(keys.STORE_ID)
        took = _seconds(began)
        facts: dict[str, object] = yield StoreCall("info")
        extent: Extent = yield StoreCall("extent")
        sizes = [size for name in _SIZES if isinstance(size := facts.get(name), int)]
        items = facts.get("items")
        return [
            gauge("interlock_store_read_seconds", "Seconds for one fresh read.", took),
            *_known("interlock_store_size_bytes", "Bytes that the store takes.", sum(sizes)),
            *_known("interlock_store_items", "Items in the store.", items),
            gauge("interlock_log_entries", "Entries of the record not yet sealed.", extent.entries),
        ]

    def _problems(self) -> Op[list[Metric]]:
        check = HealthCheck(self.runner, self.settings)
        health = yield from check.run()
        self.partial |= health.partial
        kinds = Counter[str](dict.fromkeys(get_args(get_type_hints(Problem)["kind"]), 0))
        kinds.update(problem.kind for problem in health.problems)
        says = "Problems that health reports, by kind."
        return gauges("interlock_problems", says, "kind", kinds)


class EventCounts(NounMetrics):
    """Counts the events of all nouns by name."""

    helps: ClassVar[Mapping[str, str]] = {
        "interlock_events_total": "Events of the record, by name."
    }

    def __init__(self) -> None:
        self._counts = LabelledCounts()

    def add(self, entry: CountedEntry) -> None:
        """Count the events of an entry; one may stand for several."""
        for event in entry.events:
            number = event.details.get("count", 1) if event.details else 1
            whole = number if isinstance(number, int) and number > 0 else 1
            self._counts.add(event.name, "interlock_events_total", whole)

    def detail(self) -> Iterable[Metric]:
        """One counter for each name; names beyond a bound, as a forger may write, share one."""
        return self._counts.metrics("event", self.helps)


class RecordCounts:
    """Counts the entries of the record from a revision on; None for the newest ones."""

    def __init__(self, after: int | None = None) -> None:
        self.revision = after or 0
        self._nouns: list[NounMetrics] = [
            EventCounts(),
            *[registry.load(noun.metrics)() for noun in registry.nouns() if noun.metrics],
        ]
        self._newest = after is None

    def advance(self) -> Op[None]:
        """Count the entries since the last call."""
        if self._newest:
            yield from self._count_newest()
            self._newest = False
            return
        walk, seen = EntriesForward(self.revision), 0
        while seen < CONTINUED and (items := (yield from walk.page())):
            seen += len(items)
            self._add(items)

    def _count_newest(self) -> Op[None]:
        walk, seen = EntriesBackward(), 0
        while seen < NEWEST and (items := (yield from walk.page())):
            seen += len(items)
            self._add(items)

    def _add(self, items: Sequence[Item]) -> None:
        self.revision = max(self.revision, items[-1].revision)
        for item in items:
            try:
                entry = _COUNTED.decode(item.value)
            except codec.UNREADABLE:  # ``record verify`` reports it
                continue
            for noun in self._nouns:
                noun.add(entry)

    def read(self) -> Op[list[Metric]]:
        """The counters, each with its help."""
        found: list[Metric] = []
        for noun in self._nouns:
            metrics = [*(yield from noun.read()), *noun.detail()]
            found += [
                each if each.help else replace(each, help=noun.helps.get(each.name, ""))
                for each in metrics
            ]
        return found


def newest_revision() -> Op[int]:
    """The revision of the last entry of the record."""
    last = Log(limit=1, last=True)
    snapshot: Snapshot = yield Read(last)
    return snapshot.ranges[last][-1].revision if snapshot.ranges[last] else 0


def store_id() -> Op[str]:
    """The id of the store, which a copy keeps; empty if it has none yet."""
    item = (yield Read(keys.STORE_ID))[keys.STORE_ID]
    return "" if item is None else _STORE_ID.read(item)


def named_store(runner: Runner) -> Op[str]:
    """The id of the store; one that is in use and has none gets it, if we may write."""
    if not (found := (yield from store_id())) and (yield from newest_revision()):
        with suppress(InterlockError):
            found = yield from runner.store_id()
    return found


def collected(
    scrape: Scrape, counts: RecordCounts, verdict: Verdict | None, before: Iterable[Metric] = ()
) -> Op[Metrics]:
    """All metrics: the gauges of now, and counters that continue those ``before``."""
    yield from counts.advance()
    store = yield from named_store(scrape.runner)
    engine = scrape.runner.capabilities.engine
    says = "The version of Interlock, the engine and the id of the store."
    found = [
        gauge(INFO, says, 1, version=__version__, engine=engine, store=store),
        gauge(REVISION, "The revision up to which these counters count.", counts.revision),
        *(yield from scrape.run()),
        *_judged(verdict),
        *continued(before, (yield from counts.read())),
        gauge("interlock_metrics_partial", "1 if something is counted only up to a bound.", 0),
    ]
    found[-1] = replace(found[-1], value=float(scrape.partial))
    return Metrics(
        store=store, revision=counts.revision, metrics=tuple(found), partial=scrape.partial
    )


def continued(before: Iterable[Metric], now: Iterable[Metric]) -> list[Metric]:
    """The counters of now, which go on from those before; a highest value stays the highest."""
    known = {_series(each): each for each in before if each.kind != "gauge" or _stays(each)}
    found: dict[object, Metric] = {}
    for each in now:
        earlier = known.pop(_series(each), None)
        found[_series(each)] = each if earlier is None else _added(earlier, each)
    sizes = Counter(each.name for each in found.values())
    for each in known.values():
        if each.kind != "counter":
            continue
        sizes[each.name] += 1
        kept = each
        if sizes[each.name] > LABELLED:  # names come and go, and the file stays bounded
            kept = replace(each, labels=dict.fromkeys(each.labels, OTHERS))
        same = found.get(_series(kept))
        found[_series(kept)] = kept if same is None else _added(kept, same)
    return list(found.values())


def _stays(metric: Metric) -> bool:
    return metric.name.endswith("_max_seen")


def _series(metric: Metric) -> tuple[str, frozenset[tuple[str, str]]]:
    return metric.name, frozenset(
        (label, printable(value)) for label, value in metric.labels.items()
    )


def _added(before: Metric, now: Metric) -> Metric:
    if now.kind == "gauge":
        return replace(now, value=max(before.value, now.value)) if _stays(now) else now
    counts = {bucket.le: bucket.count for bucket in before.buckets}
    return replace(
        now,
        value=before.value + now.value,
        sum=None if now.sum is None else now.sum + (before.sum or 0.0),
        buckets=tuple(
            MetricBucket(le=each.le, count=each.count + counts.get(each.le, 0))
            for each in now.buckets
        ),
    )


def _judged(verdict: Verdict | None) -> list[Metric]:
    if verdict is None:
        return []
    return [
        gauge(INTACT, "1 if the record was intact when it was last judged.", float(verdict.intact)),
        gauge(JUDGED, "When the record was last judged.", verdict.at),
    ]


def _known(name: str, help: str, value: object) -> list[Metric]:  # noqa: A002
    """A gauge that not every engine has."""
    return [gauge(name, help, value)] if isinstance(value, int) and value else []


def _seconds(began: float) -> float:
    return round(time.perf_counter() - began, 6)
