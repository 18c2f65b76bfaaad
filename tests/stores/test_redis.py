from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from interlock.store import Store
from interlock.stores import open_store
from interlock.stores.redis import RedisStore
from interlock.testing.conformance import Conformance, MovableConformance, Place
from interlock.testing.servers import RedisServer


def _opened(url: str) -> RedisStore:
    """Nothing of these tests is as old as an entry must be to be forgotten."""
    store = cast("RedisStore", open_store(url))
    store.settling = 0
    return store


class RedisPlace(Place):
    """A namespace of its own."""

    def __init__(self, server: RedisServer, url: str) -> None:
        super().__init__(lambda: _opened(url))
        self._server = server

    def trim(self, store: Store, revision: int) -> None:
        self._server.trim_log(cast("RedisStore", store).namespace, revision)


class TestRedisStore(Conformance, MovableConformance):
    @pytest.fixture
    def place(self, redis_server: RedisServer, redis_url: str) -> Iterator[Place]:
        place = RedisPlace(redis_server, redis_url)
        yield place
        place.close()
