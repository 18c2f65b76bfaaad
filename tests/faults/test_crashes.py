"""The server is killed in the middle of a stream of commits, and started again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.faults.lock_workload import Notes, check_told_once, take_in_turns
from tests.faults.setup import WAYS, Redis, Setup, settle
from tests.processes import checks

from interlock.errors import Lapsed, Lost
from interlock.nouns.grants.lock import LockAcquired
from interlock.testing.servers import RedisServer


def test_what_was_acknowledged_outlives_a_kill_and_nothing_happens_twice(rough: Setup) -> None:
    notes, over = Notes(), threading.Event()
    clients = [rough.client(f"{way}-{n}", None, way) for way in WAYS for n in range(2)]
    work = [rough.begin(take_in_turns, each, ("a", "b"), notes, over) for each in clients]
    for _ in range(3):
        enough = len(notes) + 40
        settle(lambda enough=enough: len(notes) >= enough, "some commits")  # type: ignore[misc]
        rough.restart()
    enough = len(notes) + 40
    settle(lambda: len(notes) >= enough, "all clients continue")
    over.set()
    for each in work:
        each.result(60)
    check_told_once(rough.url, notes)
    checks.sound(rough.url)


def test_a_server_that_never_syncs_keeps_what_it_acknowledged_when_its_process_dies(
    tmp_path: Path,
) -> None:
    """It declares no more than that, and no less."""
    with RedisServer(tmp_path, fsync="no") as server, Setup(Redis(server)) as setup:
        notes, over = Notes(), threading.Event()
        clients = [setup.client(way, None, way) for way in WAYS]
        assert {each.fleet.store.capabilities.durability for each in clients} == {"process"}
        work = [setup.begin(take_in_turns, each, ("a", "b"), notes, over) for each in clients]
        for enough in (100, 200, 300):
            settle(lambda enough=enough: len(notes) >= enough, "some commits")  # type: ignore[misc]
            setup.restart()
        over.set()
        for each in work:
            each.result(60)
        check_told_once(setup.url, notes)
        checks.sound(setup.url)


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[Setup]:
    """A Redis that keeps nothing."""
    with RedisServer(tmp_path, appendonly=False) as server, Setup(Redis(server)) as setup:
        yield setup


@pytest.mark.usefixtures("lively")
def test_whoever_held_something_learns_that_the_server_forgot_it(forgetful: Setup) -> None:
    """Everything may be gone; but no token is given twice, and work goes on."""
    ada, amy = (forgetful.client("ada", None, way, ttl=10) for way in WAYS)
    waiters = [forgetful.client(f"bob-{way}", None, way, ttl=30) for way in WAYS]
    blocks = [ada.fleet.lock("one"), amy.fleet.lock("two")]
    one = blocks[0].__enter__()
    held: list[Any] = []

    async def holds() -> None:
        import asyncio

        async with blocks[1] as two:
            held.append(two)
            await asyncio.sleep(60)

    async_block = forgetful.begin(amy.do, lambda _: holds())
    settle(lambda: held, "the async block")
    two = held[0]
    waits = [forgetful.begin(each.acquire, "one", wait=50) for each in waiters]
    settle(lambda: len(ada.show("one").waiters) == 2, "waiters")
    last = ada.read().revision
    forgetful.restart()
    assert ada.show("one").holder != "ada"  # free, or a waiter that joined again has it
    with pytest.raises(Lost):
        one.check()
    with pytest.raises(Lost):
        amy.do(lambda _: two.check())
    settle(lambda: one.lost, "the holder knows by itself")
    with pytest.raises(Lost):
        blocks[0].__exit__(None, None, None)
    with pytest.raises(Lost):
        async_block.result(60)
    tokens = [one.token, last]
    settle(lambda: any(wait.done() for wait in waits), "a waiter that joined again and has it")
    for wait in sorted(waits, key=lambda wait: not wait.done()):
        got = wait.result(60)
        assert isinstance(got, LockAcquired)
        tokens.append(got.token or 0)
        waiters[waits.index(wait)].release("one")
    with pytest.raises(Lapsed):
        ada.acquire("one")
    for way in WAYS:
        fresh = forgetful.client("cleo", None, way)
        for lock in ("one", "two"):
            got = fresh.acquire(lock)
            assert isinstance(got, LockAcquired)
            tokens.append(got.token or 0)
            fresh.release(lock)
    assert all(before < after for before, after in pairwise(tokens))
    assert two.token < tokens[2]
