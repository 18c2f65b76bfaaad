"""What others make of the same engine, for whoever has them installed: for reference only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import aclosing
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from interlock.bench import locks
from interlock.bench.engine import NetworkEngine, together
from interlock.bench.table import Row
from interlock.stores.address import Address

if TYPE_CHECKING:
    from interlock.bench.redis import RedisEngine


def in_flight(engine: NetworkEngine, quick: bool) -> Iterator[Row]:
    """Ours, and beside it redis-py if it is there."""
    yield from locks.in_flight(engine, quick)
    if engine.address.engine == "redis" and find_spec("redis") is not None:
        from interlock.bench.redis import RedisEngine

        if isinstance(engine, RedisEngine) and not engine.address.tls:
            yield from _redis_py(engine, quick)


def _redis_py(engine: RedisEngine, quick: bool) -> Iterator[Row]:
    """The script of the floor through redis-py, in turns with the floor itself."""
    rounds, each = locks.ROUNDS["quick" if quick else "full"]
    names = [[f"{count}.{n}" for n in range(locks.IN_FLIGHT)] for count in range(each)]
    theirs = bare = 0.0

    async def measure() -> None:
        nonlocal theirs, bare
        client = _client(engine.address)
        async with aclosing(await engine.floor_async()) as floor, client:

            async def commit(name: str) -> None:
                await client.execute_command(*floor.command(name))

            for _ in range(rounds):
                began = time.perf_counter()
                await together(commit, names)
                between = time.perf_counter()
                await floor.in_flight(names)
                theirs += between - began
                bare += time.perf_counter() - between

    asyncio.run(measure())
    done = rounds * each * locks.IN_FLIGHT
    yield Row(
        name=f"redis-py, {locks.IN_FLIGHT} in flight",
        floor=done / bare,
        rate=done / theirs,
        ratio=bare / theirs,
        target="for reference",
        unit="/s",
    )


def _client(address: Address) -> Any:  # noqa: ANN401 - of a library that may not be there
    place: dict[str, object] = {"unix_socket_path": address.socket}
    if address.hosts:
        host, port = address.hosts[0]
        place = {"host": host, "port": port}
    return import_module("redis.asyncio").Redis(
        **place, db=address.db, username=address.user or None, password=address.password or None
    )
