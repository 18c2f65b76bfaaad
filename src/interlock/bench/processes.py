"""What is measured between processes: handoffs, wake-ups, many at one queue, and idle clients.

Times between two processes are those of CLOCK_MONOTONIC, which both share: from the call in one
process to the return in the other.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, closing, nullcontext
from itertools import pairwise
from typing import Self, TypeVar

import msgspec
from msgspec.structs import replace

import interlock
from interlock import aio
from interlock.bench.engine import (
    ALERT,
    ASK,
    CLAIM,
    COMPLETE,
    PUBLISH,
    REPLY,
    BenchEngine,
    FloorCommit,
    NetworkEngine,
    local,
    network,
)
from interlock.bench.measuring import Row, Sizes, Spans, percentile, timed
from interlock.bench.operations import DATA, HIGH_LIMIT, SETTLED, limit_rate
from interlock.nouns.grants.lock import LockAcquired
from interlock.nouns.messages.query import QueryAnswered
from interlock.nouns.tasks.task_outcomes import Claimed, TaskCompleted
from interlock.stores import is_network

NAME = "pair"
"""The lock and the type of alert that two processes use."""
T = TypeVar("T")
PATIENCE = 30.0
PUBLISHED_AT_ONCE = 500
JOINING_AT_ONCE = 20
SEND_EVERY = 0.002


def handoff(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
    """A contended lock between processes; across a network also from one process to another."""
    if isinstance(engine, NetworkEngine):
        yield from _handoff_of_two(engine, size)
    row = f"handoff, {size.handoff_processes} processes"
    yield _handoff_of_many(engine, size, "lock", row)


def slots_handoff(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
    """The only slot of a semaphore between processes."""
    row = f"handoff of a slot, {size.handoff_processes} processes"
    yield _handoff_of_many(engine, size, "slot", row)


def _handoff_of_two(engine: NetworkEngine, size: Sizes) -> Iterator[Row]:
    """From a release to the return of the waiter, beside the engine's own wake-up."""
    url = engine.fresh()
    with interlock.connect(url, agent="bench") as fleet, Partner(url) as partner:

        def queue() -> None:
            fleet.locks.acquire(NAME, wait=PATIENCE)
            partner.begin("lock")
            while not fleet.locks.show(NAME).waiters:
                time.sleep(0.001)
            time.sleep(SETTLED)

        def release() -> object:
            return fleet.locks.release(NAME)

        spans = _beside_wake_up(engine, partner, size, queue, release)
    yield timed("handoff, 2 processes", *spans, "")
    yield timed("handoff, 2 processes, p95", *spans, engine.targets["handoff"], share=0.95)


def publish(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
    """From a commit to the return of a follower of the record, beside the engine's wake-up."""
    assert isinstance(engine, NetworkEngine)  # noqa: S101 - it is measured on these alone
    url = engine.fresh()
    names = map(str, range(1_000_000))
    with interlock.connect(url, agent="bench") as fleet, Partner(url) as partner:
        spans = _beside_wake_up(
            engine,
            partner,
            size,
            lambda: partner.begin("follow", SETTLED),
            lambda: fleet.locks.acquire(next(names)),
        )
    yield timed("publish to follower", *spans, engine.targets["publish"])


def _beside_wake_up(
    engine: NetworkEngine,
    partner: Partner,
    size: Sizes,
    begin: Callable[[], None],
    wake: Callable[[], object],
) -> Spans:
    """Wake the waiting partner through Interlock, and then through the engine alone."""
    ours: list[float] = []
    bare: list[float] = []
    with closing(engine.wake_up(partner.url)) as wake_up:
        for _ in range(size.wakeups):
            begin()
            began = time.monotonic()
            wake()
            ours.append(partner.woken() - began)
            partner.begin("wake-up", SETTLED)
            began = time.monotonic()
            wake_up.send()
            bare.append(partner.woken() - began)
    return ours, bare


def task_latency(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
    """From publishing a task to the return of a worker that waits for one in another process."""

    def send(fleet: interlock.Fleet, partner: Partner, number: int) -> float:
        fleet.tasks.publish(str(number))
        return partner.woken()

    spans, _ = _beside_floor(engine, size, "task", send, ())
    yield Row(
        name="publish to the worker that claims it",
        p50=percentile(spans, 0.5) * 1000,
        p95=percentile(spans, 0.95) * 1000,
        p99=percentile(spans, 0.99) * 1000,
        target=engine.targets["told"],
    )


def alert_latency(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
    """From an alert to its receipt by a subscriber in another process."""

    def send(fleet: interlock.Fleet, partner: Partner, _: int) -> float:
        fleet.messages.alert(NAME, DATA)
        return partner.woken()

    spans = _beside_floor(engine, size, "alert", send, (ALERT,))
    yield timed("alert to a subscriber, another process", *spans, engine.targets["heard"])


def query_latency(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
    """A query to an agent in another process, from the call to the return with the answer."""

    def send(fleet: interlock.Fleet, partner: Partner, _: int) -> float:
        outcome = fleet.messages.query("partner", "how far are you?")
        now = time.monotonic()
        assert isinstance(outcome, QueryAnswered)  # noqa: S101 - the partner waits for it
        partner.woken()
        return now

    spans = _beside_floor(engine, size, "query", send, (ASK, REPLY))
    yield timed("query and its answer, 2 processes", *spans, engine.targets["query"])


def _beside_floor(
    engine: BenchEngine,
    size: Sizes,
    what: str,
    send: Callable[[interlock.Fleet, Partner, int], float],
    kinds: Sequence[FloorCommit],
) -> Spans:
    """Send something to the waiting partner, and then make bare commits of these kinds."""
    url = engine.fresh()
    ours: list[float] = []
    bare: list[float] = []
    with (
        closing(engine.floor()) as floor,
        interlock.connect(url, agent="bench") as fleet,
        Partner(url) as partner,
    ):
        for number in range(size.wakeups):
            partner.begin(what, SETTLED)
            began = time.monotonic()
            ours.append(send(fleet, partner, number) - began)
            began = time.monotonic()
            for kind in kinds:
                floor.commit(str(number), kind=kind)
            bare.append(time.monotonic() - began)
    return ours, bare


def flooded(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
    """An alert while another agent floods and is refused, beside one without a flood."""
    url = engine.fresh()
    spans: dict[bool, list[float]] = {True: [], False: []}
    with interlock.connect(url, agent="bench") as fleet, Partner(url) as partner:
        limit_rate(fleet.messages, HIGH_LIMIT)
        for flood in (False, True) * 2:
            if flood:
                partner.begin(f"flood {size.flood_seconds}")
            ends = time.monotonic() + size.flood_seconds * 0.9
            while (began := time.monotonic()) < ends:
                fleet.messages.alert("bench", DATA)
                spans[flood].append(time.monotonic() - began)
                time.sleep(SEND_EVERY)
            if flood:
                partner.woken()
    target = engine.targets["flooded"]
    yield timed("alert while another agent floods", spans[True], spans[False], target)


class Partner:
    """A second process, which waits for what this process sends."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._process = start_function("partner")
        write_line(self._process, url)

    def begin(self, what: str, settle: float = 0.0) -> None:
        """Let it wait for something; returns when it does."""
        write_line(self._process, what)
        read_line(self._process)
        time.sleep(settle)

    def woken(self) -> float:
        """When it returned."""
        return float(read_line(self._process))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=PATIENCE)


def partner() -> None:  # noqa: C901 - one case for each thing to wait for
    """The second process: wait for each thing in turn, and write when it came."""
    url = sys.stdin.readline().strip()
    with (
        interlock.connect(url, agent="partner") as fleet,
        closing(network(url).wake_up(url)) if is_network(url) else nullcontext() as wake_up,
        fleet.record.follow() as follower,
        fleet.messages.recv() as receiver,
    ):
        fleet.messages.subscribe(NAME)
        for line in sys.stdin:
            what, *seconds = line.split()
            if what == "follow":
                while follower.take(timeout=0.05):
                    pass  # earlier entries
            say("waiting")
            match what:
                case "lock":
                    outcome = fleet.locks.acquire(NAME, wait=PATIENCE)
                    now = time.monotonic()
                    assert isinstance(outcome, LockAcquired)  # noqa: S101 - it was released
                    fleet.locks.release(NAME)
                case "follow":
                    found = follower.take(timeout=PATIENCE)
                    now = time.monotonic()
                    assert found  # noqa: S101 - something came
                case "task":
                    claim = fleet.tasks.next(wait=PATIENCE)
                    now = time.monotonic()
                    assert isinstance(claim, Claimed)  # noqa: S101 - one was published
                case "alert":
                    came = receiver.take()
                    now = time.monotonic()
                    receiver.ack(*came)
                case "flood":
                    ends = time.monotonic() + float(seconds[0])
                    while (now := time.monotonic()) < ends:
                        fleet.messages.alert(NAME)
                case "query":
                    (question,) = receiver.take()
                    question.reply("nearly there")
                    now = time.monotonic()
                case _:
                    assert wake_up is not None  # noqa: S101 - only engines with one are measured
                    wake_up.wait()
                    now = time.monotonic()
            say(repr(now))


class HeldSpan(msgspec.Struct, frozen=True, array_like=True):
    """A time with the lock: when the acquire returned, and when its release was called."""

    worker: int
    token: int
    acquired: float
    released: float


def _handoff_of_many(engine: BenchEngine, size: Sizes, what: str, row: str) -> Row:
    """Processes without think time: handoffs per second, their latency, and even shares."""
    bare: list[float] = []
    with closing(engine.floor()) as floor:
        for _ in range(200):
            began = time.perf_counter()
            floor.commit("bench")
            bare.append(time.perf_counter() - began)
    url = engine.fresh()
    interlock.connect(url).close()  # so that none of the processes has to create it
    job = (url, what, size.handoff_seconds)
    _, outputs = compete("hold", [job] * size.handoff_processes)
    shares = [msgspec.json.decode(output, type=list[HeldSpan]) for output in outputs]
    held = sorted((span for share in shares for span in share), key=lambda span: span.token)
    spans = [after.acquired - before.released for before, after in pairwise(held)]
    counts = [len(share) for share in shares]
    moved = sum(before.worker != after.worker for before, after in pairwise(held)) / len(spans)
    mean = sum(counts) / len(counts)
    target = (
        f"{engine.targets.get('crowd', '')}least share {min(counts) / mean:.2f} of the mean,"
        f" {moved:.0%} to another process"
    )
    rate = len(spans) / (held[-1].acquired - held[0].acquired)
    return replace(timed(row, spans, bare, target), rate=rate)


def hold() -> None:
    """A competing process: take the lock or slot until the time is over."""
    url, what, seconds = _job(tuple[str, str, float])
    spans: list[HeldSpan] = []
    with interlock.connect(url, agent=f"bench:{os.getpid()}") as fleet:
        end = _begin() + seconds
        while not spans or time.monotonic() < end:
            with (
                fleet.lock("bench") if what == "lock" else fleet.slots("bench", capacity=1) as held
            ):
                acquired = time.monotonic()
                token = held.token
                released = time.monotonic()
            spans.append(HeldSpan(os.getpid(), token, acquired, released))
    sys.stdout.buffer.write(msgspec.json.encode(spans))


def drain(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
    """Processes at one queue, beside as many that make the same bare commits."""
    processes = size.drain_processes
    number = size.drained // processes * processes
    names = [f"bench.{each}" for each in range(number)]
    url, location = engine.fresh(), engine.floor_location()
    with closing(engine.floor(location)) as floor:
        floor.commit(*names, kind=PUBLISH)
    asyncio.run(_publish(url, names))
    bare, _ = _drained(
        "drain_floor", [(url, location, names[n::processes]) for n in range(processes)]
    )
    ours, shares = _drained("drain_tasks", [(url, "", [])] * processes)
    done = [task for share in shares for task in share]
    if len(done) != number or len(set(done)) != number:
        raise RuntimeError(f"{number} tasks, {len(done)} done, {len(set(done))} of them once")
    least = min(map(len, shares)) / (number / processes)
    yield Row(
        name=f"claim and complete, {processes} processes, {number:,} tasks",
        floor=2 * number / bare,
        rate=2 * number / ours,
        ratio=bare / ours,
        unit="/s",
        target=f"{engine.targets['drain']}least share {least:.2f} of the mean",
    )


def _drained(
    what: str, jobs: Sequence[tuple[str, str, Sequence[str]]]
) -> tuple[float, list[list[str]]]:
    """How long all processes took, and the tasks of each."""
    begin, outputs = compete(what, jobs)
    ends = [msgspec.json.decode(output, type=tuple[float, list[str]]) for output in outputs]
    return max(ended for ended, _ in ends) - begin, [done for _, done in ends]


async def _publish(url: str, names: Sequence[str]) -> None:
    async with await aio.connect(url, agent="bench") as fleet:
        for start in range(0, len(names), PUBLISHED_AT_ONCE):
            some = names[start : start + PUBLISHED_AT_ONCE]
            await asyncio.gather(*(fleet.tasks.publish(name) for name in some))


def drain_tasks() -> None:
    """A competing process: claim and complete until no task is left."""
    url, _, _ = _job(tuple[str, str, list[str]])
    done: list[str] = []
    with interlock.connect(url, agent="bench") as fleet:
        _begin()
        while isinstance(claim := fleet.tasks.next(), Claimed):
            outcome = fleet.tasks.complete(claim.task, token=claim.token)
            assert isinstance(outcome, TaskCompleted)  # noqa: S101 - it held the claim
            done.append(claim.task)
        ended = time.monotonic()
    sys.stdout.buffer.write(msgspec.json.encode((ended, done)))


def drain_floor() -> None:
    """A competing process: make the same commits with the bare engine."""
    url, location, names = _job(tuple[str, str, list[str]])
    engine = network(url) if is_network(url) else local(None)
    with closing(engine), closing(engine.floor(location)) as floor:
        _begin()
        for name in names:
            floor.commit(name, kind=CLAIM)
            floor.commit(name, kind=COMPLETE)
        ended = time.monotonic()
    sys.stdout.buffer.write(msgspec.json.encode((ended, names)))


def compete(function: str, jobs: Sequence[object]) -> tuple[float, list[bytes]]:
    """Run a function of this module in a process for each job; all begin at the same moment.

    Returns that moment, and the output of each process.
    """
    workers = [start_function(function) for _ in jobs]
    try:
        for worker, job in zip(workers, jobs, strict=True):
            write_line(worker, msgspec.json.encode(job).decode())
        for worker in workers:
            read_line(worker)
        begin = time.monotonic() + 0.05
        for worker in workers:
            write_line(worker, str(begin))
        return begin, [worker.communicate(timeout=600)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def _job(type_: type[T]) -> T:
    return msgspec.json.decode(sys.stdin.readline(), type=type_)


def _begin() -> float:
    """Wait for the moment at which all processes begin."""
    say("ready")
    begin = float(sys.stdin.readline())
    time.sleep(max(0.0, begin - time.monotonic()))
    return begin


def start_function(
    function: str, module: str = "interlock.bench.processes"
) -> subprocess.Popen[bytes]:
    """A process that runs a function of a module; it gets its arguments by its stdin."""
    program = f"from {module} import {function}; {function}()"
    return subprocess.Popen(  # noqa: S603 - ourselves
        [sys.executable, "-P", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def write_line(process: subprocess.Popen[bytes], line: str) -> None:
    """Write to its stdin; arguments are public, and a URL may hold a password."""
    assert process.stdin is not None  # noqa: S101 - it is a pipe
    process.stdin.write(f"{line}\n".encode())
    process.stdin.flush()


def read_line(process: subprocess.Popen[bytes]) -> str:
    """Read from its stdout."""
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    line = process.stdout.readline().decode()
    if not line:
        raise RuntimeError("the other process ended; see above")
    return line


def say(line: str) -> None:
    """Write a line to the process that started this one."""
    print(line, flush=True)  # noqa: T201 - to that process


def idle(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
    """Idle agents, each with a session and connections of its own, over two heartbeats.

    The server counts the requests of all clients: on a server that others use, theirs are in the
    figures, too.
    """
    assert isinstance(engine, NetworkEngine)  # noqa: S101 - it is measured on these alone
    agents, ttl, seconds = size.idle
    spent = asyncio.run(_idle(engine, agents, ttl, seconds))
    rates = {kind: calls / seconds for kind, calls in spent.items() if calls}
    others = {kind: rate for kind, rate in rates.items() if kind not in engine.idle}
    besides = ", ".join(f"{kind} {rate:.1f} /s" for kind, rate in sorted(others.items()))
    yield Row(
        name=f"idle, {agents} agents, ttl {ttl:.0f} s",
        rate=sum(rates[kind] for kind in rates if kind in engine.idle),
        target=engine.targets["idle"] + (f"; besides {besides}" if besides else ""),
    )


async def _idle(engine: NetworkEngine, agents: int, ttl: float, seconds: float) -> dict[str, float]:
    """How many requests of each kind the server served in these seconds."""
    url = engine.fresh()
    joining = asyncio.Semaphore(JOINING_AT_ONCE)
    async with AsyncExitStack() as stack:

        async def join(number: int) -> None:
            async with joining:
                fleet = await aio.connect(url, agent=f"idle.{number}", ttl=ttl)
            stack.push_async_callback(fleet.close)

        await asyncio.gather(*map(join, range(agents)))
        before = await asyncio.to_thread(engine.served)
        await asyncio.sleep(seconds)
        after = await asyncio.to_thread(engine.served)
        engine.wipe()
    return {kind: calls - before.get(kind, 0.0) for kind, calls in after.items()}
