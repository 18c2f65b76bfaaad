from __future__ import annotations

import asyncio
from functools import partial

import pytest

import interlock
from interlock import aio
from interlock.errors import StoreClosed
from interlock.stores.memory import MemoryStore
from interlock.testing.clock import FakeClock
from interlock.testing.conformance import LocalConformance, MovableConformance, Place
from interlock.testing.conformance.place import at_once


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


def test_clients_that_name_one_store_in_memory_share_it() -> None:
    with (
        interlock.connect("memory:build", agent="ada") as ada,
        interlock.connect("memory:build", agent="bob") as bob,
        interlock.connect("memory:other", agent="eve") as eve,
        interlock.connect("memory:", agent="dan") as dan,
    ):
        assert ada.store is bob.store
        assert isinstance(ada.locks.acquire("merge"), interlock.Acquired)
        assert isinstance(bob.locks.acquire("merge"), interlock.LockBusy)
        assert isinstance(eve.locks.acquire("merge"), interlock.Acquired)
        assert isinstance(dan.locks.acquire("merge"), interlock.Acquired)


def test_a_named_store_in_memory_lives_until_its_last_client_is_closed() -> None:
    ada = interlock.connect("memory:build", agent="ada")
    bob = interlock.connect("memory:build", agent="bob")
    ada.locks.acquire("merge")
    ada.locks.acquire("deploy", ttl=60)
    ada.close()
    ada.close()
    assert isinstance(bob.locks.acquire("merge"), interlock.Acquired)
    bob.close()
    with pytest.raises(StoreClosed):
        bob.locks.list()
    with interlock.connect("memory:build", agent="eve") as eve:
        assert eve.locks.list() == ()


def test_threads_and_event_loops_share_a_named_store_in_memory() -> None:
    rounds = 50

    async def loop(name: str) -> None:
        async with await aio.connect("memory:build", agent=name) as fleet:
            for _ in range(rounds):
                async with fleet.lock("merge"):
                    counted.append(name)

    def thread(name: str) -> None:
        with interlock.connect("memory:build", agent=name) as fleet:
            for _ in range(rounds):
                with fleet.lock("merge"):
                    counted.append(name)

    counted: list[str] = []
    with interlock.connect("memory:build"):  # it lives as long as this one at least
        loops = [partial(asyncio.run, loop(name)) for name in ("a", "b")]
        at_once(*loops, partial(thread, "c"), partial(thread, "d"))
    assert sorted(counted) == sorted("abcd" * rounds)


class TestMemoryStore(LocalConformance, MovableConformance):
    @pytest.fixture
    def place(self) -> Place:
        return MemoryPlace()
