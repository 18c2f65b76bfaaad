"""Tasks: claiming one by name, many in flight, many processes at one queue, and who is told."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing, closing

import msgspec

import interlock
from interlock import aio
from interlock.bench import locks, pairs
from interlock.bench.engine import CLAIM, COMPLETE, PUBLISH, Act, Engine
from interlock.bench.engines import local, network
from interlock.bench.table import Row, percentile, timed
from interlock.bench.workers import tell
from interlock.nouns.tasks.task import Claimed, Completed
from interlock.stores import is_network

DRAINED = {"quick": 400, "full": 5000}
PROCESSES = 8
_PUBLISHED_AT_ONCE = 500


def by_name(engine: Engine, quick: bool) -> Iterator[Row]:
    """A claim of a task that nobody else wants, in turns with a bare commit."""
    ours: list[float] = []
    bare: list[float] = []
    names = locks.names(quick)
    with (
        closing(engine.floor()) as floor,
        interlock.connect(engine.fresh(), agent="bench") as fleet,
    ):
        for name in names:
            fleet.tasks.publish(name, {"x": 1})
        floor.commit(*names, act=PUBLISH)
        for name in names:
            began = time.perf_counter()
            outcome = fleet.tasks.claim(name)
            between = time.perf_counter()
            floor.commit(name, act=_claim(engine))
            ours.append(between - began)
            bare.append(time.perf_counter() - between)
            assert isinstance(outcome, Claimed)  # noqa: S101 - nobody else is there
        engine.wipe()
    yield timed("claim by name, blocking", ours, bare, engine.targets["claim"])


def by_name_async(engine: Engine, quick: bool) -> Iterator[Row]:
    """The same through the async client."""
    ours: list[float] = []
    bare: list[float] = []
    names = locks.names(quick)

    async def measure() -> None:
        async with (
            aclosing(await engine.floor_async()) as floor,
            await aio.connect(engine.fresh(), agent="bench") as fleet,
        ):
            for name in names:
                await fleet.tasks.publish(name, {"x": 1})
            for name in names:
                await floor.commit(name, PUBLISH)
            for name in names:
                began = time.perf_counter()
                await fleet.tasks.claim(name)
                between = time.perf_counter()
                await floor.commit(name, _claim(engine))
                ours.append(between - began)
                bare.append(time.perf_counter() - between)
            engine.wipe()

    asyncio.run(measure())
    yield timed("claim by name, async", ours, bare, engine.targets["claim-async"])


def in_flight(engine: Engine, quick: bool) -> Iterator[Row]:
    """64 in one process that claim the next task and complete it, in turns with bare commits."""
    rounds, each = locks.ROUNDS["quick" if quick else "full"]
    ours = bare = 0.0

    async def measure() -> None:
        nonlocal ours, bare
        async with (
            aclosing(await engine.floor_async()) as floor,
            await aio.connect(engine.fresh(), agent="bench") as fleet,
        ):
            for turn in range(rounds):
                names = [
                    [f"bench.{turn}.{number}.{count}" for number in range(locks.IN_FLIGHT)]
                    for count in range(each)
                ]
                for some in names:
                    await asyncio.gather(*(fleet.tasks.publish(name) for name in some))
                await floor.in_flight(names, PUBLISH)
                began = time.perf_counter()
                await asyncio.gather(*(_work(fleet, each) for _ in range(locks.IN_FLIGHT)))
                ours += time.perf_counter() - began
                began = time.perf_counter()
                for some in names:
                    await floor.in_flight([some], CLAIM)
                    await floor.in_flight([some], COMPLETE)
                bare += time.perf_counter() - began
            engine.wipe()

    asyncio.run(measure())
    done = 2 * rounds * each * locks.IN_FLIGHT
    yield Row(
        name=f"claim the next and complete, {locks.IN_FLIGHT} in flight",
        floor=done / bare,
        rate=done / ours,
        ratio=bare / ours,
        target=engine.targets["tasks-in-flight"],
        unit="/s",
    )


def drain(engine: Engine, quick: bool) -> Iterator[Row]:
    """Eight processes at one queue, beside eight bare ones that commit as much, each by itself."""
    number = DRAINED["quick" if quick else "full"] // PROCESSES * PROCESSES
    names = [f"bench.{each}" for each in range(number)]
    url, place = engine.fresh(), engine.place()
    with closing(engine.floor(place)) as floor:
        floor.commit(*names, act=PUBLISH)
    _fill(url, names)
    shares = [names[worker::PROCESSES] for worker in range(PROCESSES)]
    bare = compete("bare", [(url, place, share) for share in shares])
    ours = compete("empty", [(url, "", [])] * PROCESSES)
    done = [task for share in ours.done for task in share]
    if len(done) != number or len(set(done)) != number:
        raise RuntimeError(f"{number} tasks, {len(done)} done, {len(set(done))} of them once")
    least = min(map(len, ours.done)) / (number / PROCESSES)
    yield Row(
        name=f"claim and complete, {PROCESSES} processes, {number:,} tasks",
        floor=2 * number / bare.seconds,
        rate=2 * number / ours.seconds,
        ratio=bare.seconds / ours.seconds,
        unit="/s",
        target=f"{engine.targets['drain']}least share {least:.2f} of the mean",
    )


def told(engine: Engine, quick: bool) -> Iterator[Row]:
    """Publishing a task to the return of who waits for one, in another process."""
    url = engine.fresh()
    names = map(str, range(1_000_000))
    spans: list[float] = []
    with interlock.connect(url, agent="bench") as fleet, pairs.Partner(url) as partner:
        for _ in range(pairs.ROUNDS["quick" if quick else "full"]):
            partner.begin("task")
            time.sleep(pairs.SETTLED)
            began = time.monotonic()
            fleet.tasks.publish(next(names))
            spans.append(partner.woken() - began)
    yield Row(
        name="publish to the worker that claims it",
        p50=percentile(spans, 0.5) * 1000,
        p95=percentile(spans, 0.95) * 1000,
        p99=percentile(spans, 0.99) * 1000,
        target=engine.targets["told"],
    )


class Competed(msgspec.Struct, frozen=True):
    """What each process did, and how long all of them took."""

    done: list[list[str]]
    seconds: float


def compete(what: str, shares: Sequence[tuple[str, str, Sequence[str]]]) -> Competed:
    """One real process for each share, which begin at the same moment."""
    program = f"from interlock.bench import tasks; tasks.{what}()"
    workers = [
        subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in shares
    ]
    try:
        for worker, share in zip(workers, shares, strict=True):
            tell((worker,), msgspec.json.encode(share).decode())
        for worker in workers:
            assert worker.stdout is not None  # noqa: S101 - it is a pipe
            worker.stdout.readline()
        begin = time.monotonic() + 0.05
        tell(workers, str(begin))
        outputs = [worker.communicate(timeout=600)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    ends = [msgspec.json.decode(output, type=tuple[float, list[str]]) for output in outputs]
    return Competed([done for _, done in ends], max(ended for ended, _ in ends) - begin)


def empty() -> None:
    """A worker: join, wait for the others, then work until there is nothing left."""
    done: list[str] = []
    with interlock.connect(_share()[0], agent="bench") as fleet:
        _wait_for_others()
        while isinstance(claim := fleet.tasks.next(), Claimed):
            outcome = fleet.tasks.complete(claim.task, token=claim.token)
            assert isinstance(outcome, Completed)  # noqa: S101 - it was ours
            done.append(claim.task)
        ended = time.monotonic()
    sys.stdout.buffer.write(msgspec.json.encode((ended, done)))


def bare() -> None:
    """The same number of commits by the bare engine."""
    url, place, names = _share()
    engine = network(url) if is_network(url) else local(None)
    with closing(engine), closing(engine.floor(place)) as floor:
        _wait_for_others()
        for name in names:
            floor.commit(name, act=CLAIM)
            floor.commit(name, act=COMPLETE)
        ended = time.monotonic()
    sys.stdout.buffer.write(msgspec.json.encode((ended, names)))


def _share() -> tuple[str, str, list[str]]:
    return msgspec.json.decode(sys.stdin.readline(), type=tuple[str, str, list[str]])


def _wait_for_others() -> None:
    print("ready", flush=True)  # noqa: T201 - to the process that started us
    time.sleep(max(0.0, float(sys.stdin.readline()) - time.monotonic()))


def _fill(url: str, names: Sequence[str]) -> None:
    """Publish many tasks, many at once."""

    async def publish() -> None:
        async with await aio.connect(url, agent="bench") as fleet:
            for start in range(0, len(names), _PUBLISHED_AT_ONCE):
                some = names[start : start + _PUBLISHED_AT_ONCE]
                await asyncio.gather(*(fleet.tasks.publish(name) for name in some))

    asyncio.run(publish())


async def _work(fleet: aio.Fleet, number: int) -> None:
    for _ in range(number):
        claim = await fleet.tasks.next()
        assert isinstance(claim, Claimed)  # noqa: S101 - there is one for each
        await fleet.tasks.complete(claim.task, token=claim.token)


def _claim(engine: Engine) -> Act:
    """What a claim by name writes: across a network it leaves the task's place to its end."""
    return CLAIM if engine.local else msgspec.structs.replace(CLAIM, deletes=())
