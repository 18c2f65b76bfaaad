from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from interlock.stores import open_store
from interlock.testing.conformance import Conformance, Place
from interlock.testing.servers import RedisServer

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


class TestRedisStore(Conformance):
    @pytest.fixture
    def place(self, server: RedisServer) -> Iterator[Place]:
        url = server.url(f"conformance{next(_numbers)}")
        place = Place(lambda: open_store(url))
        yield place
        place.close()
