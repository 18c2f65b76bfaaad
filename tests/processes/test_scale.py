"""What many cost: a claim among a million tasks, and a fleet that has nothing to do."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median

import pytest

import interlock
from interlock import aio
from interlock.nouns.tasks.task_outcomes import Claimed
from interlock.testing.servers import RedisServer

FEW, MANY = 1_000, 1_000_000
PORTION = 10_000
MEASURED = 500
FLAT = 1.5


@pytest.mark.proof
def test_claims_cost_the_same_in_a_store_with_a_million_tasks(tmp_path: Path) -> None:
    with interlock.connect(str(tmp_path / "store.db"), agent="ada") as fleet:
        publish(fleet, 0, FEW)
        cost(fleet)  # the first ones are slower in any case
        few = cost(fleet)
        for start in range(FEW, MANY, PORTION):
            publish(fleet, start, min(PORTION, MANY - start))
        cost(fleet)
        many = cost(fleet)
        grown = resident()
        for _ in range(20):
            cost(fleet)
        kept = resident()
    print(f"a claim and its completion: {few * 1e6:.0f} us of CPU, then {many * 1e6:.0f} us")  # noqa: T201 - for the person who runs it
    assert many < FLAT * few
    assert kept - grown < 5 << 20, "a client that keeps working does not grow"


@pytest.mark.proof
def test_a_hundred_tasks_with_a_label_are_listed_in_10_ms_among_100_000(tmp_path: Path) -> None:
    with interlock.connect(str(tmp_path / "store.db"), agent="ada") as fleet:
        for start in range(0, 100_000, PORTION):
            some = range(start, start + PORTION)
            named = [(f"t{n:06}", ["web", "rare"] if n % 1000 == 0 else ["web"]) for n in some]
            fleet.tasks.publish_all([{"id": id_, "labels": labels} for id_, labels in named])
        for label in ("rare", "web"):
            spent = []
            for _ in range(20):
                began = time.process_time()
                assert len(fleet.tasks.list(label=[label])) == 100
                spent.append(time.process_time() - began)
            print(f"the label {label}: {median(spent) * 1000:.1f} ms of CPU")  # noqa: T201
            assert median(spent) < 0.010


@pytest.mark.proof
def test_idle_workers_and_receivers_ask_a_redis_at_most_fifty_times_a_second(
    tmp_path: Path,
) -> None:
    """A hundred of each, every one with a session and connections of its own."""
    with RedisServer(tmp_path, appendonly=False) as server:
        asked = asyncio.run(_asked_while_idle(server, 100))
    print(f"{asked:.1f} scripts and pings a second")  # noqa: T201 - for the person who runs it
    assert asked <= 50


async def _asked_while_idle(server: RedisServer, number: int) -> float:
    """Scripts and pings in a second, when all have waited for a minute."""
    door = asyncio.Semaphore(10)

    async def joined(stack: AsyncExitStack, agent: str) -> aio.Fleet:
        async with door:
            fleet = await aio.connect(server.url("idle"), agent=agent)
        stack.push_async_callback(fleet.close)
        return fleet

    async def works(fleet: aio.Fleet) -> None:
        async for _ in fleet.tasks.work():
            raise AssertionError("there is no task")

    async def receives(fleet: aio.Fleet) -> None:
        async for _ in fleet.messages.recv():
            raise AssertionError("there is no message")

    async with AsyncExitStack() as stack:
        names = [f"{kind}{each}" for kind in ("worker", "reader") for each in range(number)]
        fleets = await asyncio.gather(*(joined(stack, name) for name in names))
        tasks = [
            asyncio.create_task(works(fleet) if name.startswith("w") else receives(fleet))
            for name, fleet in zip(names, fleets, strict=True)
        ]
        await asyncio.sleep(60)
        before, began = _served(server), time.monotonic()
        await asyncio.sleep(20)
        asked = (_served(server) - before) / (time.monotonic() - began)
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in ends)
    return asked


def _served(server: RedisServer) -> int:
    told = server.info("commandstats")
    counts = [told.get(f"cmdstat_{name}", "calls=0") for name in ("eval", "evalsha", "ping")]
    return sum(int(each.partition("calls=")[2].partition(",")[0]) for each in counts)


def publish(fleet: interlock.Fleet, start: int, number: int) -> None:
    """This many tasks, of which every second one is for another agent."""
    fleet.tasks.publish_all(
        [
            {"id": f"t{each}", "data": each, "requires": ["gpu"] if each % 2 else []}
            for each in range(start, start + number)
        ],
        id=f"from-{start}",
    )


def cost(fleet: interlock.Fleet) -> float:
    """Seconds of CPU for one claim of the next task and its completion, in the middle."""
    spans = []
    for _ in range(MEASURED // 5):
        began = time.process_time()
        claim = fleet.tasks.next()
        assert isinstance(claim, Claimed)
        fleet.tasks.complete(claim.task, token=claim.token)
        spans.append(time.process_time() - began)
    return median(spans)


def resident() -> int:
    """Bytes of memory that this process has."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096
