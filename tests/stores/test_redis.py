from __future__ import annotations

from collections.abc import Iterator

import pytest

from interlock.stores import open_store
from interlock.testing.conformance import Conformance, Place


class TestRedisStore(Conformance):
    @pytest.fixture
    def place(self, redis_url: str) -> Iterator[Place]:
        place = Place(lambda: open_store(redis_url))
        yield place
        place.close()
