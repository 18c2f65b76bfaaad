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

For monitors there are also counters for each swarm and each agent (``SWARM_COUNTERS``,
``AGENT_COUNTERS``).  Agents are those of this home: they claim and carry out requests of
other swarms, and are refused as senders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from interlock.core import keys
from interlock.nouns.requests.audit import (
    COUNTER_NAMES,
    GAUGE_NAMES,
    HISTOGRAM_NAMES,
    AuditEvent,
    AuditFacts,
    counters,
    latencies,
    recognised,
)
from interlock.nouns.requests.peer_queue import decode_queue
from interlock.nouns.swarms.publish_service import own_depth
from interlock.nouns.swarms.swarm import decode_floor, decode_own
from interlock.runtime.metrics import (
    CountedEntry,
    Histogram,
    LabelledCounts,
    Metric,
    NounMetrics,
    gauge,
)
from interlock.runtime.monitoring import Scrape
from interlock.runtime.reads import every, looked_up, readable
from interlock.steps import Op, Read

_DISCOVERY = HISTOGRAM_NAMES[0]
_DEPTH, _MOST_DEPTH = GAUGE_NAMES
_REFRESH = "swarm.refresh"
_REFUSED_SENDER = "request:limited"
_OUTBOX_COUNTED = 100_000

_RECEIVED = "interlock_swarm_requests_received_total"
_SENT = "interlock_swarm_requests_sent_total"
_CLAIMED = "interlock_agent_requests_claimed_total"
_COMPLETED = "interlock_agent_requests_completed_total"
_ERRORS = "interlock_agent_request_errors_total"
_SECONDS = "interlock_agent_execution_seconds_total"
_LIMITED = "interlock_agent_rate_limited_total"
SWARM_COUNTERS = {
    _RECEIVED: "Requests of this swarm that we took in.",
    _SENT: "Requests that we made for this swarm.",
}
AGENT_COUNTERS = {
    _CLAIMED: "Requests of other swarms that this agent claimed.",
    _COMPLETED: "Requests of other swarms that this agent answered with success.",
    _ERRORS: "Requests of other swarms that this agent answered with an error.",
    _SECONDS: "Seconds from claim to result, over all requests that this agent carried out.",
    _LIMITED: "Requests of this agent that its rate limit refused.",
}
HELPS = {
    "requests_cross_swarm_posted_total": "Requests to other swarms that we made.",
    "requests_cross_swarm_claimed_total": "Requests of other swarms that our agents claimed.",
    "requests_cross_swarm_completed_total": "Our requests that were answered with success.",
    "requests_cross_swarm_failed_total": "Our requests that were answered with an error.",
    "requests_cross_swarm_timeout_total": "Our requests without an answer in time.",
    "signature_verification_failed_total": "Messages whose signature was wrong.",
    "rate_limit_exceeded_total": "Requests above a rate limit.",
    "swarm_not_authorized_total": "Messages of swarms or keys that we do not allow.",
    "swarm_unavailable_total": "Requests to a swarm whose circuit breaker is open.",
    "conflicts_detected_total": "Conflicts between swarms: shared values, and second results.",
    "conflicts_resolved_by_timestamp_total": "Conflicts that the later write settled.",
    "conflicts_escalated_to_coordinator_total": "Conflicts that a person decides.",
    "histogram_discovery_latency_ms": "One reading of the entries of peers from the bus.",
    "histogram_execution_latency_ms": "From the claim of a request to its result.",
    "histogram_result_retrieval_latency_ms": "From signing a result to its intake.",
    "histogram_e2e_latency_ms": "From making a request to the intake of its result.",
    "queue_depth": "Requests that wait for this swarm.",
    "queue_depth_max_seen": "The highest queue depth so far.",
}


class RequestMetrics(NounMetrics):
    """Counts the events of requests."""

    helps = HELPS

    def __init__(self) -> None:
        self._swarms, self._agents = LabelledCounts(), LabelledCounts()
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
            if event.name == _REFUSED_SENDER:
                self._agents.add(event.agent or entry.agent, _LIMITED, facts.count)
            self._count_names(kind, facts, event.agent or entry.agent)

    def _count_names(self, kind: AuditEvent, facts: AuditFacts, agent: str) -> None:
        """Count by swarm, or by our agent that acted."""
        match kind:
            case "cross_swarm_request_received":
                self._swarms.add(facts.from_swarm, _RECEIVED, facts.count)
            case "cross_swarm_request_posted":
                self._swarms.add(facts.to_swarm, _SENT, facts.count)
            case "cross_swarm_task_claimed":
                self._agents.add(agent, _CLAIMED)
            case "cross_swarm_result_posted":
                self._agents.add(agent, _ERRORS if facts.status == "error" else _COMPLETED)
                if facts.execution_ms is not None:
                    self._agents.add(agent, _SECONDS, facts.execution_ms / 1000)
            case _:
                pass

    def detail(self) -> Iterable[Metric]:
        """The counters of each swarm and each agent."""
        return (
            *self._swarms.metrics("swarm", SWARM_COUNTERS),
            *self._agents.metrics("agent", AGENT_COUNTERS),
        )

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


def request_gauges(scrape: Scrape) -> Op[list[Metric]]:
    """Envelopes that wait to be sent, and refused messages that are kept."""
    outbox = yield from scrape.read(keys.OUTBOX)
    kept = yield from scrape.read(keys.QUARANTINE)
    return [
        gauge("interlock_outbox_envelopes", "Envelopes that wait for the bus.", len(outbox)),
        gauge("interlock_quarantined_messages", "Refused messages of other swarms.", len(kept)),
    ]


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
