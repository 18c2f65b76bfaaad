"""What is measured between two swarms: discovery, and requests with their results.

Each swarm has a home, and they share a bus; all three are stores of the measured engine.  The asker
is in this process, an executor that does nothing in another one.  The floor of a request is its own
commits with the bare engine, one after the other: those that lie on the way of the asker for one
request, all of them for many at once.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, aclosing, closing, contextmanager
from typing import Self

import interlock
from interlock import aio
from interlock.bench.engine import (
    CLAIM,
    BenchEngine,
    EngineFloor,
    FloorCommit,
)
from interlock.bench.measuring import Row, Sizes, in_turns, percentile, timed
from interlock.bench.operations import DATA, SETTLED
from interlock.bench.processes import PATIENCE, read_line, say, start_function, write_line
from interlock.nouns.requests.outcomes import RequestAnswered
from interlock.nouns.requests.serving import ServedRequest
from interlock.nouns.swarms import key_files
from interlock.nouns.swarms.results import Discovered, SwarmAllowed, SwarmRegistered

ASKER, SERVER = "asker", "server"
ABILITY = "echo"
IN_FLIGHT = 50
CACHED_AT_ONCE = 100
CACHED = "50 µs"
COLD = "under 5 ms"
ONE_OF_MANY = "p99 under 200 ms"
_REQUEST = f"req_{0:020x}{{}}"
_MESSAGE = f"msg_{0:020x}{{}}"
_TASK = f"{_REQUEST}@{ASKER}"
_ENVELOPE = b"x" * 1200

SEND = FloorCommit(
    reads=(
        f"requests/{_REQUEST}",
        f"peers/{SERVER}",
        f"breakers/{SERVER}",
        f"reputations/{SERVER}",
    ),
    puts=(
        (f"requests/{_REQUEST}", b"x" * 560),
        (f"request-due/1794762331.636564/{_REQUEST}", b"{}"),
        (f"request-body/{_REQUEST}", b"x" * 10),
        (f"outbox/{SERVER}/{_MESSAGE}", _ENVELOPE),
    ),
    entry=b"x" * 1150,
)
POST = FloorCommit(
    reads=(),
    puts=((f"req/{SERVER}/{_MESSAGE}", _ENVELOPE), (f"req-body/{SERVER}/{_MESSAGE}", b"x" * 10)),
    entry=b"x" * 700,
)
TAKE_IN = FloorCommit(
    reads=(
        f"peers/{ASKER}",
        f"seen/{ASKER}/{_MESSAGE}",
        f"reputations/{ASKER}",
        f"peer-counts/{ASKER}",
        f"tasks/{_TASK}/status",
    ),
    puts=(
        (f"tasks/{_TASK}/status", b"x" * 19),
        (f"tasks/{_TASK}/data", b"x" * 560),
        (f"ready/can:echo/1000005.1794762331636564/{_TASK}", b"{}"),
        (f"received/{ASKER}/{_REQUEST}", b"x" * 900),
        (f"unanswered/{ASKER}/{_REQUEST}", b"{}"),
        (f"seen/{ASKER}/{_MESSAGE}", b"x" * 200),
        (f"peer-counts/{ASKER}", b"x" * 90),
    ),
    entry=b"x" * 1700,
)
FINISH = FloorCommit(
    reads=(f"tasks/{_TASK}/status", f"tasks/{_TASK}/owner", f"received/{ASKER}/{_REQUEST}"),
    puts=(
        (f"tasks/{_TASK}/status", b"x" * 69),
        (f"tasks/{_TASK}/result", b"x" * 80),
        (f"received/{ASKER}/{_REQUEST}", b"x" * 980),
        (f"outbox/{ASKER}/{_MESSAGE}", _ENVELOPE),
    ),
    deletes=(f"tasks/{_TASK}/owner", f"unanswered/{ASKER}/{_REQUEST}"),
    entry=b"x" * 1700,
)
REPLY = FloorCommit(
    reads=(),
    puts=((f"res/{ASKER}/{_REQUEST}", _ENVELOPE), (f"res-body/{ASKER}/{_REQUEST}", b"x" * 10)),
    entry=b"x" * 700,
)
ACCEPT = FloorCommit(
    reads=(
        f"peers/{SERVER}",
        f"requests/{_REQUEST}",
        f"breakers/{SERVER}",
        f"reputations/{SERVER}",
    ),
    puts=((f"requests/{_REQUEST}", b"x" * 580), (f"findings/{_REQUEST}", b"x" * 300)),
    deletes=(f"request-due/1794762331.636564/{_REQUEST}", f"request-body/{_REQUEST}"),
    entry=b"x" * 1150,
)
ON_THE_WAY = (SEND, POST, TAKE_IN, CLAIM, FINISH, REPLY, ACCEPT)
"""The commits between the call and its return; four others delete outbox entries and envelopes."""


class Swarms:
    """Two homes that trust each other, and their bus."""

    def __init__(self, engine: BenchEngine) -> None:
        self.homes = {ASKER: engine.fresh(), SERVER: engine.fresh()}
        self.bus = engine.fresh()

    def set_up(self) -> None:
        """Register both, and let each trust the key of the other."""
        fingerprints: dict[str, str] = {}
        with ExitStack() as stack:
            fleets = {
                name: stack.enter_context(interlock.connect(url, agent=f"{name}.bench"))
                for name, url in self.homes.items()
            }
            for name, fleet in fleets.items():
                key_files.create(name)
                fleet.agents.status("idle", can=[ABILITY])
                done = fleet.swarms.register(name, bus=self.bus, key=name)
                assert isinstance(done, SwarmRegistered)  # noqa: S101 - the bus is new
                fingerprints[name] = done.fingerprint
            for own, other in ((ASKER, SERVER), (SERVER, ASKER)):
                allowed = fleets[own].swarms.allow(other, key=fingerprints[other], rate="0")
                assert isinstance(allowed, SwarmAllowed)  # noqa: S101 - it has an entry


@contextmanager
def swarms(engine: BenchEngine) -> Iterator[Swarms]:
    """Two swarms, with keys in a folder that is removed afterwards."""
    before = os.environ.get(key_files.FOLDER)
    folder = os.environ[key_files.FOLDER] = tempfile.mkdtemp(prefix="interlock-bench-keys-")
    try:
        found = Swarms(engine)
        found.set_up()
        yield found
        engine.wipe()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if before is None:
            del os.environ[key_files.FOLDER]
        else:
            os.environ[key_files.FOLDER] = before


class Executor:
    """A second process, which serves requests with a handler that does nothing."""

    def __init__(self, url: str) -> None:
        self._process = start_function("serve", __name__)
        write_line(self._process, url)
        read_line(self._process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=PATIENCE)


def serve() -> None:
    """The second process: serve until stdin ends."""

    async def handler(request: ServedRequest) -> object:
        return request.payload

    async def main(url: str) -> None:
        async with await aio.connect(url, agent="executor") as fleet:
            serving = asyncio.create_task(
                fleet.requests.serve(
                    handler, can=[ABILITY], concurrency=IN_FLIGHT, stop_on_signals=False
                )
            )
            await asyncio.sleep(SETTLED)
            say("ready")
            reading = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
            await asyncio.wait((serving, reading), return_when=asyncio.FIRST_COMPLETED)
            serving.cancel()
            await asyncio.wait((serving,))

    asyncio.run(main(sys.stdin.readline().strip()))


def discovery(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
    """Who can do something: from the cache of this process, and read from home and bus."""
    with (
        swarms(engine) as pair,
        closing(engine.floor()) as floor,
        interlock.connect(pair.homes[ASKER], agent="bench") as fleet,
    ):

        def discover(*, fresh: bool) -> None:
            found = fleet.swarms.discover(ABILITY, fresh=fresh)
            assert isinstance(found, Discovered)  # noqa: S101 - the home is a swarm
            assert found.agents  # noqa: S101 - one agent has the ability

        def cached(_: str) -> None:
            for _number in range(CACHED_AT_ONCE):
                discover(fresh=False)

        discover(fresh=True)
        names = size.names[: max(3, size.one_by_one // 5)]
        many, bare = in_turns(names, cached, floor.commit)
        cold, beside = in_turns(names, lambda _: discover(fresh=True), floor.commit)
    yield timed("discover, from the cache", [each / CACHED_AT_ONCE for each in many], bare, CACHED)
    yield timed("discover, read from home and bus", cold, beside, COLD)


def request_latency(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
    """A request and its result, one after the other, beside its bare commits."""
    ours: list[float] = []
    bare: list[float] = []
    with (
        swarms(engine) as pair,
        ExitStack() as stack,
        interlock.connect(pair.homes[ASKER], agent="bench") as fleet,
        Executor(pair.homes[SERVER]),
    ):
        floors = [stack.enter_context(closing(engine.floor())) for _ in range(3)]
        for number in range(size.wakeups + 5):
            began = time.monotonic()
            found = fleet.requests.send(SERVER, f"can:{ABILITY}", DATA, wait=PATIENCE)
            ours.append(time.monotonic() - began)
            assert isinstance(found, RequestAnswered)  # noqa: S101 - the executor does nothing
            began = time.monotonic()
            _bare_request(floors, str(number))
            bare.append(time.monotonic() - began)
    row = "request and its result, 2 processes"
    yield timed(row, ours[5:], bare[5:], engine.targets["requests"])


def _bare_request(floors: list[EngineFloor], name: str) -> None:
    """The commits of a request, each at its store: home, bus, home of the other."""
    home, bus, other = floors
    for floor, kind in zip((home, bus, other, other, other, bus, home), ON_THE_WAY, strict=True):
        floor.commit(name, kind=kind)


def requests_in_flight(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
    """Many requests of one process at once, all answered by one other process."""
    number = IN_FLIGHT * size.requests_each
    spans: list[float] = []

    async def worker(fleet: aio.Fleet, left: list[int]) -> None:
        while left:
            left.pop()
            began = time.monotonic()
            found = await fleet.requests.send(SERVER, f"can:{ABILITY}", DATA, wait=PATIENCE)
            spans.append(time.monotonic() - began)
            assert isinstance(found, RequestAnswered)  # noqa: S101 - the executor does nothing

    async def measure(url: str) -> tuple[float, float]:
        async with await aio.connect(url, agent="bench") as fleet:
            await asyncio.gather(*[worker(fleet, [0]) for _ in range(IN_FLIGHT)])
            spans.clear()
            left = list(range(number))
            began = time.monotonic()
            await asyncio.gather(*[worker(fleet, left) for _ in range(IN_FLIGHT)])
            took = time.monotonic() - began
        async with aclosing(await engine.floor_async()) as floor:
            rounds = [[f"{r}.{n}" for n in range(IN_FLIGHT)] for r in range(number // IN_FLIGHT)]
            began = time.monotonic()
            for some in rounds:
                for kind in ON_THE_WAY:
                    await floor.in_flight([some], kind)
            return took, time.monotonic() - began

    with swarms(engine) as pair, Executor(pair.homes[SERVER]):
        took, bare = asyncio.run(measure(pair.homes[ASKER]))
    yield Row(
        name=f"requests, {IN_FLIGHT} in flight",
        floor=number / bare,
        rate=number / took,
        ratio=bare / took,
        target=engine.targets["requests-in-flight"],
        unit="/s",
    )
    yield Row(
        name=f"request and its result, {IN_FLIGHT} in flight",
        p50=percentile(spans, 0.5) * 1000,
        p95=percentile(spans, 0.95) * 1000,
        p99=percentile(spans, 0.99) * 1000,
        target=ONE_OF_MANY,
    )
