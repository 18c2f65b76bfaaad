"""Handing a contended lock or slot from one process to the next: eight processes, no think time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise

import msgspec

import interlock
from interlock.bench.engine import Engine
from interlock.bench.table import Row, percentile
from interlock.bench.workers import tell
from interlock.client import Block

PROCESSES = 8
SECONDS = {"quick": 1.0, "full": 3.0}


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """One turn with the lock: when the call returned with it, and when its release was called."""

    worker: int
    token: int
    acquired: float
    released: float


def measure(engine: Engine, quick: bool) -> Iterator[Row]:
    """A lock."""
    yield from _measure(engine, quick, "lock", f"handoff, {PROCESSES} processes")


def slots(engine: Engine, quick: bool) -> Iterator[Row]:
    """The one slot of a semaphore."""
    yield from _measure(engine, quick, "slot", f"handoff of a slot, {PROCESSES} processes")


def _measure(engine: Engine, quick: bool, what: str, row: str) -> Iterator[Row]:
    """How many handoffs per second, how soon the next holder returns, and how even the shares."""
    bare: list[float] = []
    with closing(engine.floor()) as floor:
        for _ in range(200):
            began = time.perf_counter()
            floor.commit("bench")
            bare.append(time.perf_counter() - began)
    seconds = SECONDS["quick" if quick else "full"]
    shares = compete(engine.fresh(), PROCESSES, seconds, what)
    turns = sorted((turn for share in shares for turn in share), key=lambda turn: turn.token)
    spans = [after.acquired - before.released for before, after in pairwise(turns)]
    counts = [len(share) for share in shares]
    moved = sum(before.worker != after.worker for before, after in pairwise(turns)) / len(spans)
    mean = sum(counts) / len(counts)
    yield Row(
        name=row,
        floor=percentile(bare, 0.5) * 1000,
        p50=percentile(spans, 0.5) * 1000,
        p95=percentile(spans, 0.95) * 1000,
        p99=percentile(spans, 0.99) * 1000,
        rate=len(spans) / (turns[-1].acquired - turns[0].acquired),
        ratio=percentile(spans, 0.5) / percentile(bare, 0.5),
        target=(
            f"{engine.targets.get('crowd', '')}least share {min(counts) / mean:.2f} of the mean,"
            f" {moved:.0%} to another process"
        ),
    )


def compete(url: str, processes: int, seconds: float, what: str) -> list[list[Turn]]:
    """Real processes that take one lock or slot in turns; returns the turns of each."""
    interlock.connect(url).close()  # so that none of them has to create it
    program = "from interlock.bench.handoff import work; work()"
    workers = [
        subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(processes)
    ]
    try:
        tell(workers, url)
        for worker in workers:
            assert worker.stdout is not None  # noqa: S101 - it is a pipe
            worker.stdout.readline()
        begin = time.monotonic() + 0.05
        tell(workers, f"{what} {begin} {begin + seconds}")
        outputs = [worker.communicate(timeout=seconds + 120)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    return [msgspec.json.decode(output, type=list[Turn]) for output in outputs]


def work() -> None:
    """A worker: join, wait for the others, then take turns until the time is over."""
    turns: list[Turn] = []
    with interlock.connect(sys.stdin.readline().strip(), agent=f"bench:{os.getpid()}") as fleet:
        print("ready", flush=True)  # noqa: T201 - to the process that started us
        what, *times = sys.stdin.readline().split()
        begin, end = map(float, times)
        time.sleep(max(0.0, begin - time.monotonic()))
        while not turns or time.monotonic() < end:
            with _block(fleet, what) as held:
                acquired = time.monotonic()
                token = held.token
                released = time.monotonic()
            turns.append(Turn(os.getpid(), token, acquired, released))
    sys.stdout.buffer.write(msgspec.json.encode(turns))


def _block(fleet: interlock.Fleet, what: str) -> Block:
    return fleet.lock("bench") if what == "lock" else fleet.slots("bench", capacity=1)
