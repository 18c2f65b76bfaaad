from __future__ import annotations

import pytest

from interlock.stores.memory import MemoryStore
from interlock.testing.clock import FakeClock
from interlock.testing.conformance import LocalConformance, Place


class MemoryPlace(Place):
    """A second store object beside the first is the first; after a restart it is empty."""

    def __init__(self) -> None:
        super().__init__(lambda: self._store)
        self._clock = FakeClock()
        self._store = MemoryStore(self._clock)
        self.monotonic = self._clock.monotonic  # type: ignore[method-assign]

    def tick(self) -> None:
        self._clock.advance(0.05)

    def close(self) -> None:
        super().close()
        self._store = MemoryStore(self._clock)


class TestMemoryStore(LocalConformance):
    @pytest.fixture
    def place(self) -> Place:
        return MemoryPlace()
