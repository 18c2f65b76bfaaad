from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from interlock.stores import open_store
from interlock.stores.redis import RedisStore
from interlock.testing.servers import RedisServer

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One for all tests that leave it as it was."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def url(server: RedisServer) -> str:
    """A fresh namespace."""
    return server.url(f"ns{next(_numbers)}")


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
def store(url: str, opened: Callable[[str], RedisStore]) -> RedisStore:
    return opened(url)
