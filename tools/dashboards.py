#!/usr/bin/env python3
"""Writes the Grafana dashboards in monitoring/grafana: run it after a change, and look at the diff.

Several servers on one store count the same entries, so each query takes the ``max`` over their
instances; a ``sum`` would count an event once for each server.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "monitoring" / "grafana"
RATE = "[$__rate_interval]"
WIDTH, HEIGHT = 12, 8
_SOURCE = {"type": "prometheus", "uid": "${source}"}
Json = dict[str, Any]


def per_second(name: str, *labels: str, where: str = "") -> str:
    """The rate of a counter, by labels."""
    by = f" by ({', '.join(labels)})" if labels else ""
    return f"max{by} (rate({name}{where}{RATE}))"


def p99(name: str) -> str:
    """The time below which 99 of 100 values lie."""
    return f"histogram_quantile(0.99, max by (le) (rate({name}_bucket{RATE})))"


def panel(title: str, help_: str, *queries: tuple[str, str], **options: Any) -> Json:  # noqa: ANN401 - JSON
    """A graph, or a number with ``kind="stat"``; each query has its legend."""
    unit, limits = options.get("unit", "short"), options.get("limits", ())
    steps: list[Json] = [{"color": "green", "value": None}]
    steps += [{"color": colour, "value": at} for colour, at in limits]
    custom: Json = {"fillOpacity": 10, "showPoints": "never"}
    if limits:
        custom["thresholdsStyle"] = {"mode": "line"}
    return {
        "type": options.get("kind", "timeseries"),
        "title": title,
        "description": help_,
        "datasource": _SOURCE,
        "targets": [
            {"datasource": _SOURCE, "refId": chr(65 + at), "expr": expr, "legendFormat": legend}
            for at, (expr, legend) in enumerate(queries)
        ],
        "fieldConfig": {
            "defaults": {
                "unit": unit,
                "min": 0,
                "custom": custom if options.get("kind") is None else {},
                "thresholds": {"mode": "absolute", "steps": steps},
                "mappings": options.get("mappings", []),
            },
            "overrides": [],
        },
    }


def dashboard(uid: str, title: str, help_: str, panels: list[Json], *, choose: str = "") -> Json:
    """A dashboard of two columns; ``choose`` is a query for the names to choose from."""
    for at, each in enumerate(panels):
        x, y = at % 2 * WIDTH, at // 2 * HEIGHT
        each |= {"id": at + 1, "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT}}
    variables: list[Json] = [
        {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    ]
    if choose:
        label = choose.rpartition(" ")[2].rstrip(")")
        variables.append(
            {
                "name": label,
                "label": label.capitalize(),
                "type": "query",
                "datasource": _SOURCE,
                "query": choose,
                "refresh": 2,
                "sort": 1,
                "multi": True,
                "includeAll": True,
            }
        )
    return {
        "uid": uid,
        "title": title,
        "description": help_,
        "tags": ["interlock"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "annotations": {"list": []},
        "panels": panels,
    }


def cross_swarm() -> Json:
    """How requests between swarms fare."""
    requests = [(f"requests_cross_swarm_{word}_total", word) for word in _REQUESTS]
    return dashboard(
        "interlock-cross-swarm",
        "Cross-Swarm Health",
        "Requests between swarms: how many, how fast, and what goes wrong.",
        [
            panel(
                "Request rate",
                "Requests posted, claimed and completed; failed and timed out below them.",
                *[(per_second(name), word) for name, word in requests],
                unit="reqps",
            ),
            panel(
                "Queue depth per swarm",
                "Requests that wait for each swarm; it should stay below 1,000.",
                ("max by (swarm) (queue_depth)", "{{swarm}}"),
                ("max (queue_depth_max_seen)", "highest seen"),
                limits=(("orange", 1_000), ("red", 10_000)),
            ),
            panel(
                "Error rate",
                "Refused messages and requests, by reason.",
                *[(per_second(f"{name}_total"), name.replace("_", " ")) for name in _ERRORS],
                unit="ops",
            ),
            panel(
                "Latency p99",
                "End to end it should stay below 200 ms.",
                *[(p99(f"histogram_{name}_latency_ms"), name) for name in _LATENCIES],
                unit="ms",
                limits=(("red", 200),),
            ),
            panel(
                "Conflicts",
                "Shared values that two swarms wrote, and how they were settled.",
                *[(per_second(f"conflicts_{name}_total"), name) for name in _CONFLICTS],
                unit="ops",
            ),
        ],
    )


_REQUESTS = ("posted", "claimed", "completed", "failed", "timeout")
_ERRORS = (
    "signature_verification_failed", "rate_limit_exceeded", "swarm_not_authorized",
    "swarm_unavailable",
)  # fmt: skip
_LATENCIES = ("e2e", "discovery", "execution", "result_retrieval")
_CONFLICTS = ("detected", "resolved_by_timestamp", "escalated_to_coordinator")


def per_swarm() -> Json:
    """One swarm, or several, as this home sees them."""
    where = '{swarm=~"$swarm"}'
    return dashboard(
        "interlock-swarm",
        "Per-Swarm View",
        "One swarm as its peer sees it: requests in both directions, agents, registry entry.",
        [
            panel(
                "Incoming requests",
                "Requests of this swarm that we took in.",
                (
                    per_second("interlock_swarm_requests_received_total", "swarm", where=where),
                    "{{swarm}}",
                ),
                unit="reqps",
            ),
            panel(
                "Outgoing requests",
                "Requests that we made for this swarm.",
                (
                    per_second("interlock_swarm_requests_sent_total", "swarm", where=where),
                    "{{swarm}}",
                ),
                unit="reqps",
            ),
            panel(
                "Active agents",
                "Agents with a session, as the entry of the swarm says.",
                (f"max by (swarm) (interlock_swarm_agents{where})", "{{swarm}}"),
            ),
            panel(
                "Registry freshness",
                "Seconds since the swarm signed its entry; an entry is valid for 15 minutes.",
                (f"max by (swarm) (interlock_swarm_entry_age_seconds{where})", "{{swarm}}"),
                unit="s",
                limits=(("orange", 300), ("red", 900)),
            ),
            panel(
                "Circuit breaker",
                "1 while nothing is sent to this swarm, since it did not answer.",
                (f"max by (swarm) (interlock_swarm_breaker_open{where})", "{{swarm}}"),
                limits=(("red", 1),),
            ),
            panel(
                "Queue depth",
                "Requests that wait for this swarm.",
                (f"max by (swarm) (queue_depth{where})", "{{swarm}}"),
                limits=(("orange", 1_000), ("red", 10_000)),
            ),
        ],
        choose="label_values(queue_depth, swarm)",
    )


def per_agent() -> Json:
    """One agent, or several, that carry out requests of other swarms."""
    where = '{agent=~"$agent"}'
    errors = "interlock_agent_request_errors_total"
    limited = "interlock_agent_rate_limited_total"

    def rate(name: str) -> str:
        return per_second(f"interlock_agent_{name}_total", "agent", where=where)

    done = f"({rate('requests_completed')} + ({rate('request_errors')} or {_none('agent')}))"
    status = [
        {
            "type": "value",
            "options": {"0": {"text": "within its rate", "color": "green", "index": 0}},
        },
        {
            "type": "range",
            "options": {
                "from": 1,
                "to": None,
                "result": {"text": "limited", "color": "red", "index": 1},
            },
        },
    ]
    return dashboard(
        "interlock-agent",
        "Per-Agent View",
        "One agent: the requests of other swarms that it carries out, and its rate limit.",
        [
            panel(
                "Requests claimed and completed",
                "Requests of other swarms that this agent claimed, and answered with success.",
                (rate("requests_claimed"), "{{agent}} claimed"),
                (rate("requests_completed"), "{{agent}} completed"),
                unit="reqps",
            ),
            panel(
                "Average execution time",
                "Seconds from the claim of a request to its result.",
                (f"{rate('execution_seconds')} / {done}", "{{agent}}"),
                unit="s",
            ),
            panel(
                "Error count",
                "Requests that this agent answered with an error, in the chosen time.",
                (f"max by (agent) (increase({errors}{where}[$__range]))", "{{agent}}"),
                kind="stat",
            ),
            panel(
                "Rate limit status",
                "Whether its rate limit refused requests of this agent in the last 5 minutes.",
                (f"max by (agent) (ceil(increase({limited}{where}[5m])))", "{{agent}}"),
                kind="stat",
                mappings=status,
            ),
        ],
        choose="label_values(interlock_agent_requests_claimed_total, agent)",
    )


def _none(label: str) -> str:
    """Zero for each claimed request's label, so that an agent without errors has a sum."""
    return f"max by ({label}) (interlock_agent_requests_completed_total) * 0"


def fleet() -> Json:
    """The home itself: agents, work, locks, messages, problems, store."""
    return dashboard(
        "interlock-fleet",
        "Fleet",
        "The agents of one store: who works, what waits, what is wrong.",
        [
            panel(
                "Problems",
                "What 'interlock health' reports, by kind; nothing is good.",
                ("max by (kind) (interlock_problems) > 0", "{{kind}}"),
                limits=(("red", 1),),
            ),
            panel(
                "Needs a person",
                "Decisions, dead letters, deaths and refused messages.",
                ("max (interlock_decisions_open)", "decisions"),
                ('max (interlock_tasks{state="dead"})', "dead letters"),
                ("max (interlock_agent_deaths)", "deaths"),
                ("max (interlock_quarantined_messages)", "quarantine"),
                kind="stat",
            ),
            panel(
                "Agents",
                "Sessions, by what they report.",
                ("max by (state) (interlock_agents)", "{{state}}"),
            ),
            panel(
                "Tasks",
                "Tasks that are not complete, by state.",
                ("max by (state) (interlock_tasks)", "{{state}}"),
                limits=(("orange", 1_000), ("red", 10_000)),
            ),
            panel(
                "Work done",
                "Tasks claimed, completed and failed.",
                *[
                    (per_second("interlock_events_total", where=f'{{event="task:{word}"}}'), word)
                    for word in ("claimed", "completed", "failed")
                ],
                unit="ops",
            ),
            panel(
                "Locks and slots",
                "Locks by state, slots in use, agents that wait.",
                ("max by (state) (interlock_locks)", "locks {{state}}"),
                ('max (interlock_semaphore_slots{state="used"})', "slots used"),
                ("max by (kind) (interlock_waiters)", "waiting for a {{kind}}"),
            ),
            panel(
                "Messages and questions",
                "Messages that wait for their reader, and questions without an answer.",
                ("max (interlock_messages_unread)", "unread"),
                ("max (interlock_queries_open)", "open questions"),
            ),
            panel(
                "Oldest wait",
                "How long the oldest ready task and the oldest waiter have waited.",
                ("max (interlock_task_oldest_ready_seconds)", "ready task"),
                ("max (interlock_waiter_oldest_seconds)", "waiter"),
                unit="s",
            ),
            panel(
                "Store",
                "Seconds for a read, and for all of these metrics.",
                ("max (interlock_store_read_seconds)", "one read"),
                ("max (interlock_scrape_seconds)", "all metrics"),
                unit="s",
            ),
            panel(
                "Size",
                "Bytes of the store.",
                ("max (interlock_store_size_bytes)", "store"),
                unit="bytes",
            ),
            panel(
                "Record",
                "Whether the record was intact when it was last judged, and how long its log is.",
                ("min (interlock_record_intact)", "intact"),
                ("max (interlock_log_entries)", "entries of the log"),
                kind="stat",
            ),
            panel(
                "Pipelines",
                "Pipelines, by state.",
                ("max by (state) (interlock_pipelines)", "{{state}}"),
            ),
            panel(
                "Spending",
                "Tokens that each agent has spent.",
                ("max by (agent) (interlock_spent_tokens)", "{{agent}}"),
            ),
            panel(
                "Budgets",
                "How much of each limit is used; at 100 % claims are refused.",
                ("max by (budget) (interlock_budget_used_ratio)", "{{budget}}"),
                unit="percentunit",
                limits=(("orange", 0.9), ("red", 1)),
            ),
            panel(
                "Merge queues",
                "Branches that wait for each target.",
                ("max by (target) (interlock_merge_queue)", "{{target}}"),
            ),
            panel(
                "Merges",
                "Branches that were merged, and that came back to their authors.",
                *[
                    (per_second("interlock_events_total", where=f'{{event="merge:{word}"}}'), word)
                    for word in ("merged", "bounced")
                ],
                unit="ops",
            ),
        ],
    )


def main() -> None:
    """Write all of them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for each in (cross_swarm(), per_swarm(), per_agent(), fleet()):
        path = FOLDER / f"{each['uid'].removeprefix('interlock-')}.json"
        path.write_text(json.dumps(each, indent=2) + "\n")


if __name__ == "__main__":
    main()
