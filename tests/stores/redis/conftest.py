from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest

from interlock.store import Change, Resync, Watch
from interlock.stores import open_store
from interlock.stores.redis import RedisStore

Take: TypeAlias = Callable[[float | None], list[Change | Resync]]


@pytest.fixture
def opened() -> Iterator[Callable[[str], RedisStore]]:
    """Opens stores, and closes them in the end."""
    stores: list[RedisStore] = []

    def opens(url: str) -> RedisStore:
        store = open_store(url)
        assert isinstance(store, RedisStore)
        stores.append(store)
        return store

    yield opens
    for store in stores:
        store.close()


@pytest.fixture
def store(redis_url: str, opened: Callable[[str], RedisStore]) -> RedisStore:
    return opened(redis_url)


@pytest.fixture(params=["blocking", "async"])
def taking(request: pytest.FixtureRequest) -> Iterator[Callable[[Watch], Take]]:
    """How a watch is asked: by a caller that blocks, or always in the same event loop."""
    if request.param == "blocking":
        yield lambda watch: watch.take
        return
    with asyncio.Runner() as runner:

        async def take(watch: Watch, timeout: float | None) -> list[Change | Resync]:
            return await watch.take_async(timeout)

        yield lambda watch: lambda timeout: runner.run(take(watch, timeout))
