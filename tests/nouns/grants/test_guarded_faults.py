"""Locks behind guards, while callers are interrupted, answers are lost, and on every engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.nouns.grants.guarded import FREE, define, deploy, listed, quiet, state

import interlock
from interlock import aio, guard
from interlock.core.outcomes import GuardBlocked
from interlock.errors import StoreAway, Unavailable
from interlock.nouns.grants.lock import LockAcquired
from interlock.testing.faults import Fault
from interlock.testing.testbed import Stepper, Testbed


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
def test_an_interrupt_at_any_step_leaves_nothing_held_and_nothing_queued(
    far: bool, error: type[BaseException]
) -> None:
    """She waits for the guard, queues, is promoted, gives it back, waits, and acquires."""

    def play(strike: int) -> bool:
        bed = Testbed()
        ada = (bed.remote if far else bed.client)("ada", ttl=600.0)
        bob = bed.client("bob", ttl=600.0)
        define(bob, "calm", FREE)
        for lock in ("db", "deploy"):
            bob.run(bob.locks.acquire(lock))
        acts = [("release", "db"), ("acquire", "db"), ("release", "deploy"), ("release", "db")]
        op = Stepper(deploy(ada, wait=590), ada.store, bed.clock)
        steps = 0
        while not op.done:
            if steps == strike:
                if error is GeneratorExit:
                    op._op.close()
                else:
                    op.interrupt(error())
                ada.run(ada.context.grants.release_pending())
                quiet(bed, ada, bob)
                return False
            steps += op.go()
            if op.asleep and acts and not op._next.watch.take(0):  # type: ignore[union-attr]
                verb, lock = acts.pop(0)
                bob.run(getattr(bob.locks, verb)(lock))
                if verb == "acquire":  # she must not see that before she is promoted
                    bob.run(getattr(bob.locks, acts[0][0])(acts.pop(0)[1]))
        assert isinstance(op.result(), LockAcquired)
        return True

    strike = 0
    while not play(strike):
        strike += 1
    assert strike > 20


@pytest.mark.parametrize("fault", ["conflict", "lost reply", "late arrival"])
def test_an_answer_that_is_late_or_lost_changes_nothing(fault: Fault) -> None:
    for commit in range(4):
        bed = Testbed()
        ada, bob = bed.remote("ada", ttl=600.0), bed.client("bob", ttl=600.0)
        define(bob, "calm", FREE)
        for lock in ("db", "deploy"):
            bob.run(bob.locks.acquire(lock))
        ada.network.script([*[None] * commit, fault])
        waits = ada.start(deploy(ada, wait=590))
        for lock in ("db", "deploy"):
            bob.run(bob.locks.release(lock))
            for _ in range(20):
                waits.run()
                bed.clock.advance(1.0)
        assert isinstance(waits.run().result(), LockAcquired), commit
        assert state(bob)[:2] == ("held", "ada")
        ada.run(ada.locks.release("deploy"))
        quiet(bed, ada, bob)


def test_a_wait_goes_on_after_an_outage_and_is_listed_once() -> None:
    bed = Testbed()
    bob = bed.client("bob", ttl=600.0)
    bob.run(bob.locks.acquire("db"))
    define(bob, "calm", FREE, on_failure=guard.retry("10s", 3))
    ada = bed.remote("ada", ttl=600.0)
    waits = ada.start(deploy(ada, wait=590))
    bed.clock.advance(10)
    waits.run()
    waits.interrupt(StoreAway("the server is away"))
    assert waits.asleep
    ada.run(ada.context.grants.release_pending())
    assert len({key.rpartition("/")[2] for key in listed(bed)}) == 1
    bed.clock.advance(10)
    assert not waits.run().done
    bed.clock.advance(10)
    assert isinstance(waits.run().result(), GuardBlocked), "the retries of before count, too"
    quiet(bed, ada, bob)


def test_guards_gate_locks_on_every_engine(url: str) -> None:
    with (
        interlock.connect(url, agent="ada") as ada,
        interlock.connect(url, agent="bob") as bob,
        interlock.connect(url, agent="cleo") as cleo,
    ):
        bob.guards.define(guard.named("calm", FREE))
        for lock in ("db", "deploy"):
            assert bob.locks.acquire(lock)
        with ThreadPoolExecutor(2) as pool:
            hers = pool.submit(ada.locks.acquire, "deploy", guard="calm", wait=60)
            until(lambda: bob.why("lock/deploy").meanwhile)
            bob.locks.release("db")
            until(lambda: bob.locks.show("deploy").waiters == ("ada",))
            bob.locks.acquire("db")
            third = pool.submit(cleo.locks.acquire, "deploy", wait=60)
            until(lambda: bob.locks.show("deploy").waiters == ("ada", "cleo"))
            bob.locks.release("deploy")
            assert third.result(60), "she gave it back, since the guard failed"
            cleo.locks.release("deploy")
            bob.locks.release("db")
            assert hers.result(60)
        assert bob.why("lock/deploy").meanwhile == ()
        assert bob.record.verify()


def test_a_cancelled_wait_leaves_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        url = str(tmp_path / "store.db")
        async with await aio.connect(url, agent="ada") as ada, await aio.connect(url, "bob") as bob:
            await bob.guards.define(guard.named("calm", FREE))
            await bob.locks.acquire("db")
            for call in (
                lambda: ada.locks.acquire("deploy", guard="calm", wait="forever"),
                lambda: ada.lock("deploy", guard="calm").__aenter__(),
            ):
                task = asyncio.ensure_future(call())
                while not (await bob.why("lock/deploy")).meanwhile:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert (await bob.why("lock/deploy")).meanwhile == ()
            await bob.locks.release("db")
            async with ada.lock("deploy", guard="calm"), ada.slots("s", capacity=1, guard=["calm"]):
                assert (await bob.locks.show("deploy")).holder == "ada"

    asyncio.run(main())


def test_a_block_raises_what_its_guard_says(tmp_path: Path) -> None:
    with interlock.connect(str(tmp_path / "store.db"), agent="ada") as ada:
        ada.guards.define(guard.named("calm", guard.lock_held("db")))
        with pytest.raises(Unavailable, match="guard 'calm' does not let lock/deploy be acquired"):
            ada.lock("deploy", guard="calm", wait=0).__enter__()
        with pytest.raises(Unavailable, match="the store has no guard 'other'; define it"):
            ada.together("lock/x", "lock/y", guard="other").__enter__()
        ada.locks.acquire("db")
        with ada.together("lock/x", "lock/y", guard=("calm",)) as held:
            held.check()


def until(true: Callable[[], object]) -> None:
    ends = time.monotonic() + 60
    while not true():
        assert time.monotonic() < ends, "it did not come"
        time.sleep(0.002)
