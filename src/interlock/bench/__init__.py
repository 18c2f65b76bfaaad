"""``interlock bench``: each operation beside the floor of its engine, measured in the same run.

Machines are noisy and disks differ, so absolute times mean little.  Each row is therefore measured
in turns with its floor: the engine's own client doing the same reads and writes as durably, with
nothing of Interlock in between.  The ratio is what counts.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator

from interlock.bench import commands, handoff, locks
from interlock.bench.table import Row, as_json, as_text
from interlock.errors import BadInput

ROWS: dict[str, Callable[[str, bool], Iterator[Row]]] = {
    "acquire": locks.one_at_a_time,
    "acquire-async": locks.one_at_a_time_async,
    "in-flight": locks.in_flight,
    "handoff": handoff.measure,
    "cold": commands.cold_start,
    "memory": commands.idle_memory,
}


def run_bench(
    store: str | None = None, *, json: bool = False, only: str | None = None, quick: bool = False
) -> int:
    """Measure and print the table; returns the exit status."""
    if only is not None and only not in ROWS:
        raise BadInput(f"there is no measurement {only!r}; choose one of {', '.join(ROWS)}")
    chosen = [only] if only else list(ROWS)
    folder = store or tempfile.mkdtemp(prefix="interlock-bench-")
    rows: list[Row] = []
    try:
        for name in chosen:
            if not json:
                print(f"measuring {name} ...", file=sys.stderr)  # noqa: T201 - progress
            rows.extend(ROWS[name](folder, quick))
    finally:
        if store is None:
            shutil.rmtree(folder, ignore_errors=True)
    print(as_json(rows) if json else as_text(rows))  # noqa: T201 - the table is the product
    return 0
