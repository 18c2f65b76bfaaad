"""A grant that could not be released during an outage is released as soon as the store answers."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import interlock
from interlock import aio
from interlock.core.decision import Proof
from interlock.errors import InterlockError, StoreBusy
from interlock.nouns.grants.lock import LockAcquired, LockFenced, LockTarget
from interlock.steps import Op, Step
from interlock.store import Store
from interlock.stores.sqlite import SQLiteStore
from interlock.testing.testbed import Testbed


@contextmanager
def held_up(path: Path) -> Iterator[None]:
    """Nobody gets a turn to write meanwhile."""
    turn = os.open(f"{path}-bells/turn", os.O_RDWR)
    fcntl.flock(turn, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(turn)


def carry_on(op: Op[object], step: Step, store: Store) -> None:
    """Drive the rest of an operation."""
    while True:
        try:
            answer = step.perform(store)
        except InterlockError as error:
            step = op.throw(error)
        else:
            step = op.send(answer)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def test_a_lock_that_could_not_be_released_is_given_back_later(path: Path) -> None:
    with (
        closing(SQLiteStore(str(path), patience=0.1)) as store,
        interlock.connect(agent="ada", store=store) as ada,
        interlock.connect(str(path), agent="bob") as bob,
    ):
        block = ada.lock("merge")
        block.__enter__()
        with held_up(path):
            block.__exit__(None, None, None)
        assert isinstance(bob.locks.acquire("merge", wait=20), LockAcquired)


def test_an_async_block_gives_its_lock_back_later_too(path: Path) -> None:
    async def main() -> None:
        store = SQLiteStore(str(path), patience=0.1)
        with closing(store):
            await body(store)

    async def body(store: SQLiteStore) -> None:
        async with (
            await aio.connect(agent="ada", store=store) as ada,
            await aio.connect(str(path), agent="bob") as bob,
        ):
            block = ada.lock("merge")
            await block.__aenter__()
            with held_up(path):
                await block.__aexit__(None, None, None)
            assert isinstance(await bob.locks.acquire("merge", wait=20), LockAcquired)

    asyncio.run(main())


def test_a_wait_that_could_not_be_withdrawn_never_gets_the_lock(path: Path) -> None:
    with (
        closing(SQLiteStore(str(path), patience=0.1)) as store,
        interlock.connect(agent="ada", store=store) as ada,
        interlock.connect(str(path), agent="bob") as bob,
    ):
        bob.locks.acquire("merge")
        waiting = ada.context.grants.acquire(ada.context.identity, LockTarget("merge"), wait=2)
        step = next(waiting)
        while not bob.locks.show("merge").waiters:
            step = waiting.send(step.perform(ada.store))
        with held_up(path), pytest.raises(StoreBusy):
            carry_on(waiting, step, ada.store)
        bob.locks.release("merge")
        assert isinstance(bob.locks.acquire("merge", wait=20), LockAcquired)


def test_a_proof_that_ended_while_we_waited_gives_the_lock_back() -> None:
    stage = Testbed()
    ada, bob, cleo = (stage.client(name) for name in ("ada", "bob", "cleo"))
    first = ada.run(ada.locks.acquire("A", max_hold=5))
    assert isinstance(first, LockAcquired)
    proof = Proof(thing="lock/A", grant=first.grant, token=first.token or 0)
    bob.run(bob.locks.acquire("B"))
    waiting = ada.start(ada.locks.acquire("B", wait=60, given=[proof]))
    stage.clock.advance(6)
    for client in (ada, bob, cleo):
        client.run(client.agents.beat())
    bob.run(bob.locks.release("B"))
    assert isinstance(waiting.run().result(), LockFenced)
    assert cleo.run(cleo.locks.show("B")).state == "free"


def test_a_held_lock_that_was_released_counts_as_lost(path: Path) -> None:
    with interlock.connect(str(path), agent="ada") as ada, ada.lock("merge") as held:
        held.release()
        assert held.lost


def test_a_grant_never_claims_to_outlive_its_maximum_hold(path: Path) -> None:
    with interlock.connect(str(path), agent="ada") as ada:
        taken = ada.locks.acquire("merge", ttl=60, max_hold=5)
        assert isinstance(taken, LockAcquired)
        assert taken.expires_in == 5
        beat = ada.locks.heartbeat("merge", token=taken.token)
        assert getattr(beat, "expires_in", 60) <= 5


def test_a_program_that_forgets_to_close_leaves_nothing_held(path: Path) -> None:
    program = """
import sys, interlock
interlock.connect(sys.argv[1], agent="ada").locks.acquire("m")
"""
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)
    with interlock.connect(str(path)) as fleet:
        assert fleet.locks.show("m").state == "free"
        assert fleet.agents.list() == ()


def test_what_is_owed_in_a_session_that_goes_on_is_paid_before_we_go(path: Path) -> None:
    with interlock.connect(str(path), agent="ada") as ada:
        shell = interlock.connect(str(path), session=ada.session, agent="ada")
        shell.locks.acquire("merge")
        grant = shell.locks.acquire("merge")
        assert isinstance(grant, interlock.Extended)
        shell.context.grants.release_later(shell.context.identity, LockTarget("merge"), grant.grant)
        shell.close()
        assert ada.locks.show("merge").state == "free"


def test_paying_stops_at_the_first_debt_that_cannot_be_paid_yet() -> None:
    stage = Testbed()
    ada = stage.client("ada")
    identity = ada.context.identity
    for name in ("a", "b", "c"):
        ada.context.grants.release_later(identity, LockTarget(name), "grt_0")
    paying = ada.context.grants.release_pending()
    next(paying)
    with pytest.raises(StopIteration):
        paying.throw(StoreBusy("held up"))
    assert [debt.thing for debt in ada.context.grants.pending] == ["lock/b", "lock/c", "lock/a"]
