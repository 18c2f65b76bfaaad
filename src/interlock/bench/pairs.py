"""From one process to another: how soon what is written here is seen there.

Each round is measured in turns with the engine's own way to wake: the same two processes, both
on CLOCK_MONOTONIC, from the call in one to the return in the other.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from typing import Self

import interlock
from interlock.bench import handoff
from interlock.bench.engine import Bell, NetworkEngine
from interlock.bench.engines import network
from interlock.bench.table import Row, timed
from interlock.nouns.grants.lock import LockAcquired
from interlock.nouns.tasks.task import Claimed
from interlock.stores import is_network

ROUNDS = {"quick": 30, "full": 200}
_LOCK = "pair"
ALERT = "pair"
PATIENCE = 30.0
SETTLED = 0.01


def handoffs(engine: NetworkEngine, quick: bool) -> Iterator[Row]:
    """A release to the return of the one that waits; then eight processes, no think time."""
    url = engine.fresh()
    with interlock.connect(url, agent="bench") as fleet, Partner(url) as partner:

        def queue() -> None:
            fleet.locks.acquire(_LOCK, wait=PATIENCE)
            partner.begin("lock")
            while not fleet.locks.show(_LOCK).waiters:
                time.sleep(0.001)

        def release() -> object:
            return fleet.locks.release(_LOCK)

        with closing(engine.bell(url)) as bell:
            ours, bare = _rounds(partner, bell, queue, release, quick=quick)
    yield timed("handoff, 2 processes", ours, bare, "")
    yield timed("handoff, 2 processes, p95", ours, bare, engine.targets["handoff"], share=0.95)
    yield from handoff.measure(engine, quick)


def publish(engine: NetworkEngine, quick: bool) -> Iterator[Row]:
    """A commit to the return of whoever follows the record."""
    url = engine.fresh()
    names = map(str, range(1_000_000))
    with interlock.connect(url, agent="bench") as fleet, Partner(url) as partner:

        def follow() -> None:
            partner.begin("follow")

        def acquire() -> object:
            return fleet.locks.acquire(next(names))

        with closing(engine.bell(url)) as bell:
            ours, bare = _rounds(partner, bell, follow, acquire, quick=quick)
    yield timed("publish to follower", ours, bare, engine.targets["publish"])


def _rounds(
    partner: Partner,
    bell: Bell,
    wait: Callable[[], None],
    wake: Callable[[], object],
    *,
    quick: bool,
) -> tuple[list[float], list[float]]:
    """Each time: let the other process wait for us and wake it; then so with the bare bell."""
    ours: list[float] = []
    bare: list[float] = []
    turns = ((wait, wake, ours), (lambda: partner.begin("bell"), bell.ring, bare))
    for _ in range(ROUNDS["quick" if quick else "full"]):
        for begin, act, spans in turns:
            begin()
            time.sleep(SETTLED)
            began = time.monotonic()
            act()
            spans.append(partner.woken() - began)
    return ours, bare


class Partner:
    """The other process."""

    def __init__(self, url: str) -> None:
        program = "from interlock.bench.pairs import serve; serve()"
        self._process = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._say(url)  # not as an argument, which everybody can see

    def begin(self, what: str) -> None:
        """Let it wait for something; returns when it is about to."""
        self._say(what)
        self._hear()

    def woken(self) -> float:
        """When it returned."""
        return float(self._hear())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=PATIENCE)

    def _say(self, what: str) -> None:
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()

    def _hear(self) -> str:
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the other process ended; see above")
        return line


def serve() -> None:
    """The partner's side: wait for whatever is asked for, and say when it came."""
    url = sys.stdin.readline().strip()
    with (
        interlock.connect(url, agent="partner") as fleet,
        closing(network(url).bell(url)) if is_network(url) else nullcontext() as bell,
        fleet.record.follow() as follower,
        fleet.messages.recv() as receiver,
    ):
        fleet.messages.subscribe(ALERT)
        for line in sys.stdin:
            match line.strip():
                case "lock":
                    _tell("waiting")
                    outcome = fleet.locks.acquire(_LOCK, wait=PATIENCE)
                    now = time.monotonic()
                    assert isinstance(outcome, LockAcquired)  # noqa: S101 - it was our turn
                    fleet.locks.release(_LOCK)
                case "follow":
                    while follower.take(timeout=0.05):
                        pass  # what came before
                    _tell("waiting")
                    found = follower.take(timeout=PATIENCE)
                    now = time.monotonic()
                    assert found  # noqa: S101 - something came
                case "task":
                    _tell("waiting")
                    claim = fleet.tasks.next(wait=PATIENCE)
                    now = time.monotonic()
                    assert isinstance(claim, Claimed)  # noqa: S101 - there was one
                case "alert":
                    _tell("waiting")
                    came = receiver.take()
                    now = time.monotonic()
                    receiver.ack(*came)
                case flood if flood.startswith("flood "):
                    _tell("waiting")
                    ends = time.monotonic() + float(flood.split()[1])
                    while (now := time.monotonic()) < ends:
                        fleet.messages.alert(ALERT)
                case "query":
                    _tell("waiting")
                    (question,) = receiver.take()
                    question.reply("nearly there")
                    now = time.monotonic()
                case _:
                    _tell("waiting")
                    assert bell is not None  # noqa: S101 - only engines with one are asked
                    bell.hear()
                    now = time.monotonic()
            _tell(repr(now))


def _tell(what: str) -> None:
    print(what, flush=True)  # noqa: T201 - to the process that started us
