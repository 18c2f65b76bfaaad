"""``interlock bench``: each operation beside the floor of its engine, measured in the same run.

Machines are noisy and disks differ, so absolute times mean little.  Each row is therefore measured
in turns with its floor: the engine's own client doing the same reads and writes as durably, with
nothing of Interlock in between.  The ratio is what counts.

measuring.py       how an operation is measured beside a floor, and the table of the rows
operations.py      the measurements within one process
processes.py       the measurements between processes
swarms.py          the measurements between two swarms
mcp.py http.py     the servers of faces, as their callers see them
page.py            the page in a real browser
engine.py          what an engine provides: fresh stores, a floor; and SQLite
redis.py etcd.py   the engines across a network
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from importlib.util import find_spec

from interlock.bench import http, mcp, measuring, operations, page, processes, swarms
from interlock.bench.engine import local, network
from interlock.bench.measuring import Measured, Measurement, Row, as_text, heading
from interlock.errors import BadInput
from interlock.runtime.progress import report
from interlock.stores import is_network

MEASUREMENTS: Mapping[str, Measurement] = {
    "acquire": operations.acquire,
    "acquire-async": operations.acquire_async,
    "in-flight": operations.acquire_in_flight,
    "slots": operations.slots,
    "slots-async": operations.slots_async,
    "slots-in-flight": operations.slots_in_flight,
    "several": operations.several,
    "read-first": operations.read_first,
    "claim": operations.claim,
    "claim-async": operations.claim_async,
    "tasks-in-flight": operations.tasks_in_flight,
    "drain": processes.drain,
    "told": processes.task_latency,
    "alert": operations.alert,
    "messages-in-flight": operations.messages_in_flight,
    "subscribers": operations.subscribers,
    "heard-here": operations.alert_latency,
    "heard": processes.alert_latency,
    "query": processes.query_latency,
    "flooded": processes.flooded,
    "share": operations.record_share,
    "verify": operations.verify,
    "handoff": processes.handoff,
    "slots-handoff": processes.slots_handoff,
    "publish": processes.publish,
    "discovery": swarms.discovery,
    "requests": swarms.request_latency,
    "requests-in-flight": swarms.requests_in_flight,
    "cold": operations.cold_start,
    "mcp-start": mcp.first_lock,
    "mcp": mcp.warm_call,
    "http": http.warm_call,
    "http-event": http.event_latency,
    "http-streams": http.many_streams,
    "http-memory": http.idle_memory,
    "page": page.in_browser,
    "memory": operations.idle_memory,
    "idle": processes.idle,
}
LOCAL = tuple(name for name in MEASUREMENTS if name not in ("read-first", "publish", "idle"))
NETWORK = (
    *("acquire", "acquire-async", "slots", "slots-async", "several", "share"),
    *("claim", "claim-async", "read-first", "told", "alert", "subscribers", "heard-here", "heard"),
    *("query", "flooded", "handoff", "slots-handoff", "publish", "drain"),
    *("discovery", "requests"),
    # Those in flight leave much for the engine to delete, which would slow down the others.
    *("slots-in-flight", "tasks-in-flight", "messages-in-flight", "in-flight"),
    *("requests-in-flight", "idle"),
)
HTTP = frozenset(("http", "http-event", "http-streams", "http-memory"))
"""What needs the packages of the extra ``web``."""
SLOW = frozenset(("idle",))
"""A quick run measures these only by name."""


def run_bench(
    store: str | None = None,
    *,
    write: Callable[[Measured], object] | None = None,
    say: Callable[[str], object] = print,
    only: str | None = None,
    quick: bool = False,
) -> int:
    """Measure and ``say`` each row as it comes, or ``write`` all; returns the exit status.

    Without a store, SQLite on the disk of the temporary folder; with a path, on the disk of that
    path; with a URL, the engine that it names, in a namespace of its own.
    Nothing is left behind.
    """
    across_network = store is not None and is_network(store)
    names = NETWORK if across_network else LOCAL
    if only is not None and only not in names:
        raise BadInput(f"there is no measurement {only!r}; choose one of {', '.join(names)}")
    lacks = {} if only else {name: lack for name in names if (lack := _lack(name))}
    chosen = [only] if only else [each for each in names if each not in lacks]
    if quick and not only:
        chosen = [name for name in chosen if name not in SLOW]
    left_out = tuple(f"{name} is not measured: {lack}" for name, lack in lacks.items())
    size = measuring.QUICK if quick else measuring.FULL
    rows: list[Row] = []
    with closing(network(store) if across_network and store else local(store)) as engine:
        title = engine.title()
        if write is None:
            say("\n".join([*([title] if title else []), heading()]))
        for at, name in enumerate(chosen):
            report(f"measuring {name}", at, len(chosen))
            found = MEASUREMENTS[name](engine, size)
            rows.extend(found)
            if write is None:
                say("\n".join(map(as_text, found)))
    if write is not None:
        write(Measured(engine=title, rows=tuple(rows), left_out=left_out))
    elif left_out:
        say("\n".join(left_out))
    return 0


def _lack(name: str) -> str:
    """What a measurement needs and this machine does not have: measured by name, it fails."""
    if name in HTTP and find_spec("uvicorn") is None:
        return "it needs the packages of the extra web; run: pip install 'interlock[web]'"
    return page.missing() if name == "page" else ""
