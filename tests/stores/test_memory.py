from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

import interlock
from interlock import aio
from interlock.errors import StoreClosed
from interlock.store import Put, Range
from interlock.stores.memory import MemoryStore
from interlock.testing.clock import FakeClock
from interlock.testing.conformance import LocalConformance, MovableConformance, Place
from interlock.testing.conformance.place import at_once, write


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


class CountedList(list[str]):
    """It counts the elements that are taken out of it."""

    taken = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        self.taken += len(found) if isinstance(at, slice) else 1
        return found


def test_a_read_of_a_range_looks_at_the_keys_of_the_range_alone() -> None:
    store = MemoryStore(FakeClock())
    write(store, *(Put(f"p/{number:05}", b"") for number in range(10_000)))
    store._order = order = CountedList(store._order)
    for page in (Range("p/0000"), Range("p/", limit=10), Range("p/", after="p/00100", limit=10)):
        assert len(store.read(page).ranges[page]) == 10
    assert order.taken < 100


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
