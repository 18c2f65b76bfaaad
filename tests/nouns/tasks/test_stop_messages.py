"""Stop messages to a worker: the first lets it finish its task, the second makes it release it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest
from tests.processes.helpers import until

import interlock
from interlock import aio
from interlock.aio_tasks import Claim as AsyncClaim
from interlock.client_tasks import Claim
from interlock.clock import SystemClock
from interlock.core import keys
from interlock.errors import Lost
from interlock.nouns.messages.message import Sent
from interlock.nouns.tasks.task import State
from interlock.nouns.tasks.task_reader import decode_status
from interlock.stores.memory import MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(SystemClock())


@pytest.fixture
def boss(store: MemoryStore) -> Iterator[interlock.Fleet]:
    with interlock.connect(agent="boss", store=store) as fleet:
        fleet.tasks.publish("t1", backoff=0)
        fleet.tasks.publish("t2", backoff=0)
        yield fleet


@pytest.fixture
def ada(store: MemoryStore, boss: interlock.Fleet) -> Iterator[interlock.Fleet]:
    with interlock.connect(agent="ada", store=store) as fleet:
        yield fleet


def stands(store: MemoryStore) -> list[State]:
    found = [decode_status(store.read(key)[key]) for key in map(keys.status, ("t1", "t2"))]
    return [status.state for status in found if status is not None]


def stop(boss: interlock.Fleet, reason: str = "enough") -> None:
    assert isinstance(boss.messages.stop("ada", reason), Sent)


def test_a_worker_finishes_the_claim_at_hand_and_acknowledges_the_stop(
    boss: interlock.Fleet, ada: interlock.Fleet, store: MemoryStore
) -> None:
    worker = ada.tasks.work()
    for claim in worker:
        with claim:
            stop(boss)
            until(lambda: worker.stopped)
    assert worker.stopped == "boss asked: enough"
    assert stands(store) == ["complete", "pending"]
    assert ada.messages.inbox().messages == ()


def test_a_second_stop_interrupts_the_main_thread_wherever_it_waits(
    boss: interlock.Fleet, ada: interlock.Fleet, store: MemoryStore
) -> None:
    inside: list[Claim] = []

    def tell() -> None:
        until(lambda: inside)
        stop(boss)
        stop(boss, "now")

    def wait(claim: Claim) -> None:
        inside.append(claim)
        time.sleep(90)  # in the kernel: Python's own locks break if they are struck

    began, teller = time.monotonic(), threading.Thread(target=tell)
    teller.start()
    with pytest.raises(SystemExit) as ended:
        ada.tasks.serve(wait)
    teller.join()
    assert ended.value.code == 143
    assert time.monotonic() - began < 60, "it was woken, and not late"
    assert stands(store) == ["pending", "pending"]
    assert ada.messages.inbox().messages == ()


@pytest.mark.parametrize("signals", [True, False])
def test_where_no_signal_can_interrupt_a_second_stop_takes_the_claim_away(
    boss: interlock.Fleet, ada: interlock.Fleet, store: MemoryStore, *, signals: bool
) -> None:
    lost: list[str] = []

    def work() -> None:
        for claim in ada.tasks.work(stop_on_signals=signals):
            with claim:
                stop(boss)
                stop(boss, "now")
                until(partial(getattr, claim, "lost"))
            with pytest.raises(Lost):
                claim.complete()
            lost.append(claim.task)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert (lost, stands(store)) == (["t1"], ["pending", "pending"])


def test_a_worker_in_an_event_loop_finishes_what_is_open_and_the_second_stop_cancels_that(
    boss: interlock.Fleet, store: MemoryStore
) -> None:
    async def finishes(fleet: aio.Fleet) -> None:
        worker = fleet.tasks.work()
        async for claim in worker:
            async with claim:
                await asyncio.to_thread(stop, boss)
                while not worker.stopped:  # noqa: ASYNC110 - there is no event to wait for
                    await asyncio.sleep(0)
        assert worker.stopped == "boss asked: enough"

    async def waits(_claim: AsyncClaim) -> None:
        await asyncio.to_thread(stop, boss)
        await asyncio.to_thread(stop, boss, "now")
        await asyncio.sleep(60)

    async def main() -> None:
        async with await aio.connect(agent="ada", store=store) as fleet:
            await finishes(fleet)
            assert stands(store) == ["complete", "pending"]
            with pytest.raises(asyncio.CancelledError):
                await asyncio.create_task(fleet.tasks.serve(waits))
            assert stands(store) == ["complete", "pending"]
            assert (await fleet.messages.inbox()).messages == ()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_loop_that_is_left_and_begun_again_listens_again(
    boss: interlock.Fleet, ada: interlock.Fleet, store: MemoryStore
) -> None:
    worker = ada.tasks.work()
    for claim in worker:
        assert claim.task == "t1"
        break
    assert stands(store) == ["pending", "pending"]
    for claim in worker:
        with claim:
            stop(boss)
            until(lambda: worker.stopped)
    assert stands(store) == ["complete", "pending"]
