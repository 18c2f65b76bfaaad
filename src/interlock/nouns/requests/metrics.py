"""The metrics of requests between swarms, from events of the record and from items at home.

counters     each event of the audit adds to those that ``audit.counters`` names; a refusal that
stands for many adds all of them
execution    from the claim to the result, at the executor
retrieval    from the time in the result's head to its intake, at the asker; two clocks
e2e          from making the request to the intake of its result, at the asker
discovery    one reading of the entries of peers from the bus, until it is committed; one from
the cache takes microseconds and leaves no trace
queue_depth  for our own swarm the requests that it has not finished; for a peer those that it
publishes, those for it in our outbox, and above a thousand also those on the bus
queue_depth_max_seen  the highest of these, now or in an entry since the moment asked for
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from interlock.core import keys
from interlock.nouns.requests.audit import (
    COUNTER_NAMES,
    GAUGE_NAMES,
    HISTOGRAM_NAMES,
    counters,
    latencies,
    recognised,
)
from interlock.nouns.requests.peer_queue import decode_queue
from interlock.nouns.swarms.publish_service import own_depth
from interlock.nouns.swarms.swarm import decode_floor, decode_own
from interlock.runtime.metrics import CountedEntry, Histogram, Metric, NounMetrics
from interlock.runtime.reads import every, looked_up, readable
from interlock.steps import Op, Read

_DISCOVERY = HISTOGRAM_NAMES[0]
_DEPTH, _MOST_DEPTH = GAUGE_NAMES
_REFRESH = "swarm.refresh"
_OUTBOX_COUNTED = 100_000


class RequestMetrics(NounMetrics):
    """Counts the events of requests."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._histograms = {name: Histogram() for name in HISTOGRAM_NAMES}
        self._deepest = 0

    def add(self, entry: CountedEntry) -> None:
        """Count an entry of the record."""
        if entry.verb == _REFRESH and entry.took is not None:
            self._histograms[_DISCOVERY].add(entry.took)
        for event in entry.events:
            if isinstance(depth := event.details.get("depth"), int):
                self._deepest = max(self._deepest, depth)
            if (found := recognised(event, entry.thing)) is None:
                continue
            kind, facts = found
            for name in counters(kind, facts.status, facts.reason):
                self._counts[name] += facts.count
            for name, milliseconds in latencies(facts):
                self._histograms[name].add(milliseconds)

    def read(self) -> Op[Iterable[Metric]]:
        """All metrics, also those that are zero; none for a home that is no swarm."""
        item = (yield Read(keys.OWN_SWARM))[keys.OWN_SWARM]
        if item is None:
            return ()
        depths = yield from queue_depths(decode_own(item).name)
        deepest = max(self._deepest, *depths.values())
        return (
            *[
                Metric(name=name, kind="counter", value=self._counts[name])
                for name in COUNTER_NAMES
            ],
            *[self._histograms[name].metric(name) for name in HISTOGRAM_NAMES],
            *[
                Metric(name=_DEPTH, kind="gauge", value=depth, labels={"swarm": swarm})
                for swarm, depth in depths.items()
            ],
            Metric(name=_MOST_DEPTH, kind="gauge", value=deepest),
        )


def queue_depths(own: str) -> Op[dict[str, int]]:
    """How many requests wait for each swarm, ours first, as far as home knows."""
    found = {own: (yield from own_depth())}
    waiting = Counter(
        keys.agent_of(item.key) for item in (yield from every(keys.OUTBOX, most=_OUTBOX_COUNTED))
    )
    floors = [readable(decode_floor, item) for item in (yield from every(keys.FLOORS))]
    known = {floor.swarm: floor for floor in floors if floor is not None}
    counted = yield from looked_up(map(keys.peer_queue, known))
    for name, floor in known.items():
        queue = decode_queue(counted[keys.peer_queue(name)])
        published = 0 if floor.entry is None else floor.entry.depth
        found[name] = (published if queue is None else queue.depth) + waiting.pop(name, 0)
    return found | dict(waiting)
