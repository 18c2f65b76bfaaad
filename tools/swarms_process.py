"""One process of ``swarms_load.py``: a swarm whose agents ask other swarms and answer them."""  # noqa: INP001 - a script

from __future__ import annotations

import asyncio
import logging
import random
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack

import msgspec
from msgspec import Struct

import interlock
from interlock import aio
from interlock.bench.processes import say
from interlock.errors import InterlockError
from interlock.nouns.requests.serving import ServedRequest

ABILITY = "work"
PATIENCE = 60.0
"""Seconds that a caller waits for its result; the request goes on."""
MOST = 4000
"""Requests under way at once, above which the process is too slow for the rate."""


class Plan(Struct, frozen=True, kw_only=True):
    """The work of one process.

    ``rate`` is how many requests its agents send each second; without one, each agent sends the
    next request when it has the answer to the last one.  ``work`` is how many seconds an execution
    takes, ``ttl`` after how many another worker begins if this process dies.
    """

    swarm: str
    url: str
    peers: list[str]
    agents: int
    executors: int
    at_once: int
    rate: float
    work: float
    ttl: float
    effects: str


class Share(Struct, frozen=True, kw_only=True):
    """What the callers of a process saw: outcomes, and latencies of answers in milliseconds."""

    outcomes: dict[str, int]
    took: list[float]


class SwarmProcess:
    """The agents of one swarm in one process: all of them ask, some of them execute."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._outcomes: Counter[str] = Counter()
        self._took: list[float] = []
        self._under_way: set[asyncio.Task[None]] = set()
        self._effects = sqlite3.connect(plan.effects, isolation_level=None)
        self._effects.execute("PRAGMA synchronous = OFF")  # a killed process loses nothing by it

    async def run(self) -> Share:
        """Ask and execute between two times, then execute until stdin ends."""
        plan = self._plan
        async with AsyncExitStack() as stack:
            fleets: list[aio.Fleet] = []
            for number in range(plan.agents):
                shared = fleets[0].store if fleets else None
                agent = f"{plan.swarm}.{number}"
                fleet = await aio.connect(plan.url, agent=agent, store=shared, ttl=60)
                if fleets:
                    fleet.context.share_requests(fleets[0].context)
                fleets.append(await stack.enter_async_context(fleet))
            serving = [
                asyncio.create_task(self._serve(fleet)) for fleet in fleets[: plan.executors]
            ]
            say("ready")
            times = (await asyncio.to_thread(sys.stdin.readline)).split()
            begin, end = map(float, times)
            begin = max(begin, time.monotonic())  # a process that was started again goes on
            await asyncio.sleep(begin - time.monotonic())
            if plan.rate:
                await self._at_a_rate(fleets, begin, end)
            else:
                await asyncio.gather(*[self._one_after_the_other(fleet, end) for fleet in fleets])
            await asyncio.to_thread(sys.stdin.read)
            for task in (*self._under_way, *serving):
                task.cancel()
            await asyncio.gather(*self._under_way, *serving, return_exceptions=True)
        return Share(outcomes=dict(self._outcomes), took=self._took)

    async def _serve(self, fleet: aio.Fleet) -> None:
        await fleet.requests.serve(
            self._execute,
            can=[ABILITY],
            concurrency=self._plan.at_once,
            ttl=self._plan.ttl,
            stop_on_signals=False,
            stop_on_messages=False,
        )

    async def _execute(self, request: ServedRequest) -> object:
        """Each execution is noted; the effect is once, since the id is its key."""
        self._effects.execute("INSERT INTO executions VALUES (?)", (request.id,))
        await asyncio.sleep(self._plan.work)
        self._effects.execute("INSERT OR IGNORE INTO effects VALUES (?)", (request.id,))
        return request.payload

    async def _at_a_rate(self, fleets: Sequence[aio.Fleet], begin: float, end: float) -> None:
        """One request after the other, each at its time, by one agent after the other."""
        peers, number = self._plan.peers, 0
        while (moment := begin + number / self._plan.rate) < end:
            await asyncio.sleep(moment - time.monotonic())
            fleet, peer = fleets[number % len(fleets)], peers[number % len(peers)]
            number += 1
            if len(self._under_way) >= MOST:
                self._outcomes["not sent, since too many are under way"] += 1
                continue
            task = asyncio.create_task(self._ask(fleet, peer, number))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _one_after_the_other(self, fleet: aio.Fleet, end: float) -> None:
        number = 0
        while time.monotonic() < end:
            await self._ask(fleet, random.choice(self._plan.peers), number)  # noqa: S311
            number += 1

    async def _ask(self, fleet: aio.Fleet, peer: str, number: int) -> None:
        began = time.monotonic()
        try:
            found: object = await fleet.requests.send(peer, f"can:{ABILITY}", number, wait=PATIENCE)
        except InterlockError as error:
            self._outcomes[type(error).__name__] += 1
            return
        self._outcomes[type(found).__name__] += 1
        if isinstance(found, interlock.RequestAnswered):
            self._took.append((time.monotonic() - began) * 1000)


def main() -> None:
    """Carry out the plan on the first line of stdin; the last line of stdout is the share."""
    logging.disable(logging.WARNING)  # that the bus does not answer is what the load wants
    plan = msgspec.json.decode(sys.stdin.readline(), type=Plan)
    share = asyncio.run(SwarmProcess(plan).run())
    say(msgspec.json.encode(share).decode())


if __name__ == "__main__":
    main()
