"""A Redis that takes no writes for a while: a replica, or full."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.setup import WAYS, Redis, Setup, Way, settle
from tests.processes import checks

import interlock
from interlock.errors import StoreFull, StoreReadOnly
from interlock.nouns.grants.lock import LockAcquired, LockReleased
from interlock.testing.servers import RedisServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path) as server:
        yield server


@pytest.fixture
def redis(server: RedisServer) -> Iterator[Setup]:
    with Setup(Redis(server)) as setup:
        yield setup


def test_a_master_that_becomes_a_replica_says_so_and_goes_on_when_promoted(
    server: RedisServer, redis: Setup
) -> None:
    clients = [redis.client(f"ada-{way}", None, way) for way in WAYS]
    waiters = [redis.client(f"bob-{way}", None, way) for way in WAYS]
    tokens = [each.acquire(f"own-{number}").token for number, each in enumerate(clients)]
    waits = [
        redis.begin(each.acquire, f"own-{number}", wait=50) for number, each in enumerate(waiters)
    ]
    for number, each in enumerate(clients):
        settle(lambda e=each, n=number: e.show(f"own-{n}").waiters, "a waiter")  # type: ignore[misc]
    settle(lambda: str(server.command("CLIENT", "LIST")).count(" sub=1") == 2, "listeners")
    server.command("REPLICAOF", "127.0.0.1", 1)
    for number, each in enumerate(clients):
        for call, lock in ((each.acquire, "more"), (each.release, f"own-{number}")):
            with pytest.raises(StoreReadOnly) as caught:
                call(lock)
            assert "\n" not in str(caught.value)
            assert "master" in str(caught.value)
    with pytest.raises(StoreReadOnly):
        interlock.connect(redis.url, agent="cleo")
    server.command("REPLICAOF", "NO", "ONE")
    for number, each in enumerate(clients):
        assert isinstance(each.acquire(f"more-{number}"), LockAcquired)
        assert isinstance(each.release(f"own-{number}"), LockReleased)
        assert waits[number].result(20).token > tokens[number]
    checks.sound(redis.url, heads=2)


@pytest.mark.parametrize("way", WAYS)
def test_a_full_server_takes_nothing_more_but_gives_back_and_goes_on_when_there_is_room(
    server: RedisServer, redis: Setup, way: Way
) -> None:
    ada = redis.client("ada", None, way)
    bob = redis.client("bob")
    assert isinstance(ada.acquire("merge"), LockAcquired)
    server.command("CONFIG", "SET", "maxmemory", 1)
    with pytest.raises(StoreFull, match="maxmemory") as caught:
        ada.acquire("more")
    assert "\n" not in str(caught.value)
    assert bob.show("more").state == "free"
    assert isinstance(ada.release("merge"), LockReleased)
    assert bob.show("merge").state == "free"
    with pytest.raises(StoreFull):
        bob.acquire("merge")
    server.command("CONFIG", "SET", "maxmemory", 0)
    assert isinstance(bob.acquire("merge"), LockAcquired)
    assert isinstance(ada.acquire("more"), LockAcquired)
    checks.sound(redis.url)
