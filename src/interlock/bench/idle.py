"""What clients cost that have nothing to do, as the server counts it.

The server counts for everybody: on one that others use too, their requests are in the figures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack

from interlock import aio
from interlock.bench.engine import NetworkEngine
from interlock.bench.table import Row

SIZES = {"quick": (100, 6.0, 5.2), "full": (500, 30.0, 26.0)}
"""Agents, their ttl, and the seconds of two beats: the same load on the server in either."""
_AT_ONCE = 20


def measure(engine: NetworkEngine, quick: bool) -> Iterator[Row]:
    """Idle agents, each with a session and connections of its own, over two beats."""
    agents, ttl, seconds = SIZES["quick" if quick else "full"]
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
    """How many requests of each kind the server got meanwhile."""
    url = engine.fresh()
    door = asyncio.Semaphore(_AT_ONCE)
    async with AsyncExitStack() as stack:

        async def join(number: int) -> None:
            async with door:
                fleet = await aio.connect(url, agent=f"idle.{number}", ttl=ttl)
            stack.push_async_callback(fleet.close)

        await asyncio.gather(*map(join, range(agents)))
        before = await asyncio.to_thread(engine.served)
        await asyncio.sleep(seconds)
        after = await asyncio.to_thread(engine.served)
        engine.wipe()
    return {kind: calls - before.get(kind, 0.0) for kind, calls in after.items()}
