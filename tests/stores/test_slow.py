"""An engine whose commits take half a second: time limits follow its latency."""

from __future__ import annotations

import asyncio
import threading

import pytest
from msgspec.structs import replace

import interlock
from interlock.errors import TooLarge
from interlock.runtime.keeper import margin
from interlock.runtime.runner import PATIENCE
from interlock.steps import Pause
from interlock.store import Answer, Capabilities, Put, Ref, Snapshot, Txn
from interlock.stores import open_store
from interlock.stores.memory import MemoryStore
from interlock.testing.conformance.place import txn
from interlock.testing.testbed import Testbed


def limited(**changes: object) -> Capabilities:
    return replace(MemoryStore.capabilities, **changes)


class SlowStore(MemoryStore):
    capabilities = limited(latency=0.5)

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[str] = []

    def read(
        self, *refs: Ref, times: bool = False, fresh: bool = True, longest: int | None = None
    ) -> Snapshot:
        self.threads.append(threading.current_thread().name)
        return super().read(*refs, times=times, fresh=fresh, longest=longest)

    def commit(self, txn: Txn) -> Answer:
        self.threads.append(threading.current_thread().name)
        return super().commit(txn)


def test_a_limit_is_as_chosen_for_every_engine_that_is_fast(tmp_path: object) -> None:
    for url in ("memory:", f"sqlite://{tmp_path}/store.db"):
        store = open_store(url)
        assert store.capabilities.allow(PATIENCE) == PATIENCE
        store.close()


def test_a_limit_grows_with_the_latency() -> None:
    slow = SlowStore.capabilities
    assert slow.allow(PATIENCE) == 10 * PATIENCE
    assert margin(30.0) == 2.0
    assert margin(30.0, slow.allow) == 3.0
    assert margin(4.0, slow.allow) == 0.5


def test_an_event_loop_does_not_wait_for_a_slow_engine() -> None:
    store = SlowStore()

    async def main() -> None:
        await store.commit_async(txn(Put("live/a", b"", ttl=60.0)))
        assert (await store.read_async("live/a"))["live/a"] is not None
        assert await store.renew_async((Put("live/a", b"", ttl=60.0),)) == {"live/a"}

    asyncio.run(main())
    assert threading.main_thread().name not in store.threads


def test_a_slow_engine_is_given_time_between_conflicts() -> None:
    testbed = Testbed()
    ada = testbed.remote("ada")
    ada.runner.capabilities = limited(transacts=False, latency=0.5)
    ada.network.script(["conflict"] * 40)
    hand = ada.start(ada.locks.acquire("merge"))
    assert isinstance(hand.result(), interlock.LockAcquired)
    pauses = [step.seconds for step in hand.steps if isinstance(step, Pause)]
    assert 0.008 < max(pauses) <= 0.08


def test_a_transaction_with_more_bytes_than_the_engine_takes_is_refused() -> None:
    store = MemoryStore()
    store.capabilities = limited(max_bytes=10_000)
    with interlock.connect(store=store, agent="ada") as ada:
        ada.tasks.publish("small", data="x" * 2_000)
        with pytest.raises(TooLarge, match=r"bytes in one transaction and this store takes 10000"):
            ada.tasks.publish("large", data="x" * 10_000)
        ada.tasks.publish("small2", data="x" * 2_000)
