"""``interlock bench``: each operation beside the floor of its engine, measured in the same run.

Machines are noisy and disks differ, so absolute times mean little.  Each row is therefore measured
in turns with its floor: the engine's own client doing the same reads and writes as durably, with
nothing of Interlock in between.  The ratio is what counts.

table.py              numbers, and the table that shows them
engine.py             what an engine gives to be measured: fresh stores, a floor
sqlite.py redis.py etcd.py    the engines
locks.py slots.py     locks in one process; semaphores, and several things at once
tasks.py              tasks: by name, in flight, many processes at one queue
messages.py           messages: one at a time, in flight, and how soon they are received
peers.py              what others make of the same engine
record.py             what the record costs
pairs.py handoff.py   from one process to another, and between many
commands.py idle.py   what a command costs, and clients that do nothing
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import TypeAlias, TypeVar

from interlock.bench import (
    commands,
    handoff,
    idle,
    locks,
    messages,
    pairs,
    peers,
    record,
    slots,
    tasks,
)
from interlock.bench.engine import Engine, NetworkEngine
from interlock.bench.engines import local, network
from interlock.bench.table import Measured, Row, as_text
from interlock.errors import BadInput
from interlock.stores import is_network

E = TypeVar("E", bound=Engine)
Rows: TypeAlias = Mapping[str, Callable[[E, bool], Iterator[Row]]]

LOCAL: Rows[Engine] = {
    "acquire": locks.one_at_a_time,
    "acquire-async": locks.one_at_a_time_async,
    "in-flight": locks.in_flight,
    "slots": slots.one_at_a_time,
    "slots-async": slots.one_at_a_time_async,
    "slots-in-flight": slots.in_flight,
    "several": slots.three_at_once,
    "claim": tasks.by_name,
    "claim-async": tasks.by_name_async,
    "tasks-in-flight": tasks.in_flight,
    "drain": tasks.drain,
    "told": tasks.told,
    "alert": messages.one_at_a_time,
    "messages-in-flight": messages.in_flight,
    "subscribers": messages.many_subscribers,
    "heard-here": messages.heard_here,
    "heard": messages.heard,
    "query": messages.asked,
    "flooded": messages.flooded,
    "share": record.share,
    "verify": record.verify,
    "handoff": handoff.measure,
    "slots-handoff": handoff.slots,
    "cold": commands.cold_start,
    "memory": commands.idle_memory,
}
NETWORK: Rows[NetworkEngine] = {
    "acquire": locks.one_at_a_time,
    "acquire-async": locks.one_at_a_time_async,
    "slots": slots.one_at_a_time,
    "slots-async": slots.one_at_a_time_async,
    "several": slots.three_at_once,
    "share": record.share,
    "claim": tasks.by_name,
    "claim-async": tasks.by_name_async,
    "read-first": locks.read_first,
    "told": tasks.told,
    "alert": messages.one_at_a_time,
    "subscribers": messages.many_subscribers,
    "heard-here": messages.heard_here,
    "heard": messages.heard,
    "query": messages.asked,
    "flooded": messages.flooded,
    "handoff": pairs.handoffs,
    "slots-handoff": handoff.slots,
    "publish": pairs.publish,
    "drain": tasks.drain,
    "slots-in-flight": slots.in_flight,  # these leave an engine with much to clear away: last
    "tasks-in-flight": tasks.in_flight,
    "messages-in-flight": messages.in_flight,
    "in-flight": peers.in_flight,
    "idle": idle.measure,
}
SLOW = frozenset(("idle",))
"""Measured by a quick run only if asked for by name."""


def run_bench(
    store: str | None = None,
    *,
    write: Callable[[Measured], object] | None = None,
    only: str | None = None,
    quick: bool = False,
) -> int:
    """Measure and print the table, or give it to ``write``; returns the exit status.

    Without a store, SQLite on the disk of the temporary folder; with a path, on the disk of that
    path; with a URL, the engine that it names, in a namespace of its own.
    Nothing is left behind.
    """
    if store is not None and is_network(store):
        return _run(NETWORK, lambda: network(store), write=write, only=only, quick=quick)
    return _run(LOCAL, lambda: local(store), write=write, only=only, quick=quick)


def _run(
    table: Rows[E],
    make: Callable[[], E],
    *,
    write: Callable[[Measured], object] | None,
    only: str | None,
    quick: bool,
) -> int:
    if only is not None and only not in table:
        raise BadInput(f"there is no measurement {only!r}; choose one of {', '.join(table)}")
    chosen = [only] if only else [name for name in table if not (quick and name in SLOW)]
    rows: list[Row] = []
    with closing(make()) as engine:
        title = engine.title()
        for name in chosen:
            if write is None:
                print(f"measuring {name} ...", file=sys.stderr)  # noqa: T201 - progress
            rows.extend(table[name](engine, quick))
    if write is None:
        print(as_text(rows, title))  # noqa: T201 - the product
    else:
        write(Measured(engine=title, rows=tuple(rows)))
    return 0
