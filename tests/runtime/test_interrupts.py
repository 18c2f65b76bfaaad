"""An operation that is interrupted, at whichever step, leaves nothing behind that nobody owns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from interlock import aio
from interlock.nouns.grants.held_grant import take
from interlock.nouns.grants.lock import LockBusy, LockTarget
from interlock.nouns.grants.request import GrantTerms
from interlock.steps import Op
from interlock.store import Committed, Work
from interlock.stores.memory import MemoryStore
from interlock.testing.audit import audit
from interlock.testing.testbed import Client, Stepper, Testbed

TERMS = GrantTerms(wait=60, ttl=None, max_hold=None, metadata=None, given=())


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


@pytest.fixture(params=["near", "far"])
def ada(request: pytest.FixtureRequest, stage: Testbed) -> Client:
    return stage.client("ada") if request.param == "near" else stage.remote("ada")


def interrupted(client: Client, make: Callable[[], Op[object]], at: int) -> bool:
    """Interrupt an operation before its n-th step; False if it has not that many."""
    hand = Stepper(make(), client.store, client.clock)
    for _ in range(at):
        hand.go()
    if hand.done:
        return False
    hand.interrupt(asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        hand.result()
    return True


def test_an_interrupted_acquire_leaves_the_lock_free(stage: Testbed, ada: Client) -> None:
    at = 0
    while interrupted(ada, lambda: ada.locks.acquire("merge"), at):
        assert ada.run(ada.locks.show("merge")).state == "free"
        at += 1
    assert at > 0
    assert audit(stage.store) == []


def test_an_interrupted_wait_leaves_the_queue(stage: Testbed, ada: Client) -> None:
    bob = stage.client("bob")
    bob.run(bob.locks.acquire("merge"))
    for at in range(5):
        assert interrupted(ada, lambda: ada.locks.acquire("merge", wait=60), at)
        shown = bob.run(bob.locks.show("merge"))
        assert (shown.holder, shown.waiters) == ("bob", ())
    assert audit(stage.store) == []


def test_an_interrupted_wait_that_just_got_the_lock_passes_it_on(
    stage: Testbed, ada: Client
) -> None:
    bob, cleo = stage.client("bob"), stage.client("cleo")
    bob.run(bob.locks.acquire("merge"))
    wait = ada.start(ada.locks.acquire("merge", wait=60))
    behind = cleo.start(cleo.locks.acquire("merge", wait=60))
    bob.run(bob.locks.release("merge"))
    wait.interrupt(asyncio.CancelledError())
    assert behind.run().done
    assert cleo.run(cleo.locks.show("merge")).holder == "cleo"


def test_an_interrupted_release_gives_the_lock_back_all_the_same(
    stage: Testbed, ada: Client
) -> None:
    at = 0
    while True:
        held = ada.run(take(ada.context, LockTarget("merge"), None, TERMS))
        if not interrupted(ada, held.release, at):
            break
        assert ada.run(ada.locks.show("merge")).state == "free"
        at += 1
    assert at > 0
    assert audit(stage.store) == []


def test_an_interrupted_release_takes_nothing_from_its_successor(
    stage: Testbed, ada: Client
) -> None:
    bob = stage.client("bob")
    held = ada.run(take(ada.context, LockTarget("merge"), None, TERMS))
    wait = bob.start(bob.locks.acquire("merge", wait=60))
    hand = Stepper(held.release(), ada.store, stage.clock)
    while not hand.done:
        hand.go()
        if wait.run().done and not hand.done:
            hand.interrupt(asyncio.CancelledError())
    assert isinstance(ada.run(ada.locks.acquire("merge")), LockBusy)
    assert bob.run(bob.locks.show("merge")).holder == "bob"


class _Belated(MemoryStore):
    """Begins a transaction only when its caller has been interrupted already."""

    def __init__(self, stage: Testbed) -> None:
        super().__init__(stage.clock)
        self.begun: list[Work] = []

    def transact(self, work: Work) -> Committed | None:
        if not self.begun:
            self.begun.append(work)
            raise KeyboardInterrupt
        return super().transact(work)


def test_work_that_was_interrupted_before_it_ran_does_not_run_later(stage: Testbed) -> None:
    store = _Belated(stage)
    ada = stage.client("ada", ttl=None, store=store)
    with pytest.raises(KeyboardInterrupt):
        ada.run(ada.locks.acquire("merge"))
    assert store.transact(store.begun[0]) is None
    assert ada.run(ada.locks.show("merge")).state == "free"


@pytest.mark.parametrize("seed", range(4))
def test_tasks_that_time_out_anywhere_leave_nothing_held_and_the_record_whole(
    tmp_path: Path, seed: int
) -> None:
    random = Random(seed)

    async def work(fleet: aio.Fleet) -> None:
        for _ in range(6):
            try:
                async with asyncio.timeout(random.random() * 0.01):
                    async with fleet.lock(f"lock-{random.randrange(3)}"):
                        await asyncio.sleep(random.random() * 0.002)
            except TimeoutError:
                continue

    async def main() -> None:
        async with await aio.connect(str(tmp_path / "store.db"), agent="ada") as fleet:
            await asyncio.gather(*(work(fleet) for _ in range(12)))
            assert await fleet.locks.list() == ()
            await fleet.locks.acquire("last")
            assert audit(fleet.store) == []

    asyncio.run(main())


class _Slow(MemoryStore):
    """Takes some turns of the event loop for each transaction."""

    async def transact_async(self, work: Work) -> Committed | None:
        for _ in range(5):
            await asyncio.sleep(0)
        return self.transact(work)


def test_a_task_that_is_cancelled_again_and_again_still_leaves_the_queue() -> None:
    async def main() -> None:
        store = _Slow()
        fleet = await aio.connect(agent="ada", store=store)
        await fleet.locks.acquire("merge")
        waiting = asyncio.create_task(fleet.locks.acquire("merge", wait=60))
        while not (await fleet.locks.show("merge")).waiters:  # noqa: ASYNC110
            await asyncio.sleep(0)
        while not waiting.done():
            waiting.cancel()
            await asyncio.sleep(0)
        assert waiting.cancelled()
        assert (await fleet.locks.show("merge")).waiters == ()
        await fleet.close()

    asyncio.run(main())
