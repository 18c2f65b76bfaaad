"""What others make of the same engine: the client that most people have, if it is installed."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from interlock.bench import locks
from interlock.bench.engine import ACQUIRE, Act, NetworkEngine, together
from interlock.bench.table import Row

if TYPE_CHECKING:
    from interlock.bench.redis import AsyncRedisFloor, RedisEngine


def in_flight(engine: NetworkEngine, quick: bool) -> Iterator[Row]:
    """Beside a connection written for the purpose; and beside redis-py."""
    yield from locks.in_flight(engine, quick)
    if engine.address.engine == "redis" and find_spec("redis") is not None:
        from interlock.bench.redis import RedisEngine

        if isinstance(engine, RedisEngine) and not engine.address.tls:

            async def redis_py() -> RedisPy:
                return RedisPy(engine, await engine.floor_async())

            yield from locks.in_flight_beside(engine, quick, redis_py, ", beside redis-py")


class RedisPy:
    """The script of the floor through redis-py."""

    def __init__(self, engine: RedisEngine, floor: AsyncRedisFloor) -> None:
        self._client = _client(engine)
        self._floor = floor

    def commit(self, name: str, act: Act = ACQUIRE) -> Awaitable[object]:
        """Do this."""
        answer: Awaitable[object] = self._client.execute_command(*self._floor.command(name, act))
        return answer

    async def in_flight(self, rounds: Sequence[Sequence[str]], act: Act = ACQUIRE) -> None:
        """As many at once as a round has names."""
        await together(lambda name: self.commit(name, act), rounds)

    async def aclose(self) -> None:
        """Let go of the connections."""
        await self._client.aclose()
        await self._floor.aclose()


def _client(engine: RedisEngine) -> Any:  # noqa: ANN401 - of a library that may not be there
    address = engine.address
    place: dict[str, object] = {"unix_socket_path": address.socket}
    if address.hosts:
        host, port = address.hosts[0]
        place = {"host": host, "port": port}
    return import_module("redis.asyncio").Redis(
        **place, db=address.db, username=address.user or None, password=address.password or None
    )
