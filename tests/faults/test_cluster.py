"""Three etcds: what becomes of clients when one of them dies or stands still under load."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from tests.faults.lock_workload import Notes, check_told_once, take_in_turns
from tests.faults.setup import WAYS, Etcd, Setup, settle
from tests.processes import checks

from interlock.nouns.grants.lock import LockGranted
from interlock.store import Check, Committed, Put
from interlock.stores import open_store
from interlock.stores.etcd import EtcdStore
from interlock.stores.etcd.server import fixed_in
from interlock.testing.conformance.place import txn, write
from interlock.testing.servers import EtcdCluster
from interlock.testing.servers.etcd import etcd_url

BOUND = 60.0
"""Seconds within which all clients work again: an election, and some silence before it."""


def test_a_cluster_serves_on_when_a_member_dies_or_freezes(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path) as cluster, Setup(Etcd(cluster.members[0])) as setup:
        setup.url = cluster.url("faults")
        bob = setup.client("bob", ttl=60)
        token = bob.acquire("taken").token
        waiters = [setup.client(f"idle-{way}", None, way, ttl=60) for way in WAYS]
        waits = [setup.begin(each.acquire, "taken", wait=90) for each in waiters]
        settle(lambda: len(bob.show("taken").waiters) == 2, "waiters")
        workers = [setup.client(f"{way}-{n}", None, way, ttl=60) for way in WAYS for n in range(2)]
        notes = [Notes() for _ in workers]
        over = threading.Event()
        work = [
            setup.begin(take_in_turns, each, ("a", "b"), own, over)
            for each, own in zip(workers, notes, strict=True)
        ]

        def go_on() -> float:
            """All clients work, by now or within the bound."""
            began = time.monotonic()
            known = [len(each) for each in notes]
            settle(
                lambda: all(
                    len(each) > before + 2 or done.done()
                    for each, before, done in zip(notes, known, work, strict=True)
                ),
                "work",
                BOUND,
            )
            return time.monotonic() - began

        go_on()
        leader = cluster.leader()
        leader.kill()
        go_on()
        leader.start()
        for member in (cluster.followers()[0], cluster.leader()):
            member.freeze()
            go_on()
            member.thaw()
        assert not any(wait.done() for wait in waits)
        bob.release("taken")
        for number in range(2):
            settle(lambda n=number: sum(w.done() for w in waits) > n, "a waiter", BOUND)  # type: ignore[misc]
            done = [each for each in waits if each.done()]
            grant = max((each.result() for each in done), key=lambda each: each.token)
            assert isinstance(grant, LockGranted)
            assert grant.token is not None
            assert grant.token > token
            token = grant.token
            waiters[waits.index(next(w for w in done if w.result() is grant))].release("taken")
        over.set()
        for each in work:
            each.result(60)
        check_told_once(setup.url, _all(notes))
        checks.sound(setup.url, heads=2)


def _all(notes: list[Notes]) -> Notes:
    whole = Notes()
    for each in notes:
        for lock, tokens in each.tokens.items():
            for token in tokens:
                whole.got(lock, token)
        whole.released += each.released
    whole.released += 3  # of the lock that was waited for
    return whole


def test_a_cluster_whose_former_leader_may_end_renewed_leases_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with EtcdCluster(tmp_path, members=2) as cluster:
        needed = fixed_in(cluster.members[0].version)
        for _ in range(2):
            store = open_store(cluster.url("old"))
            assert isinstance(store, EtcdStore)
            assert bool(store.caution) == bool(needed)
            finding = next(each for each in store.examine() if each.name == "etcd")
            assert finding.verdict == ("warn" if needed else "ok")
            assert needed in finding.remedy
            store.close()
    told = [each.getMessage() for each in caplog.records if "former leader" in each.getMessage()]
    assert len(told) == bool(needed), "once in a process"
    assert all(f"install {needed} or newer" in each for each in told)


@pytest.mark.proof
def test_what_was_renewed_elsewhere_outlives_the_return_of_a_frozen_leader(tmp_path: Path) -> None:
    """Before 3.4.31 and 3.5.13 a former leader that thaws revokes such leases."""
    ttl, count = 8.0, 24
    with EtcdCluster(tmp_path, election=0.2) as cluster:
        leader = cluster.leader()
        others = [member for member in cluster.members if member is not leader]
        store = open_store(etcd_url(others, "thaw"))
        names = [f"live/{number}" for number in range(count)]
        for name in names:
            write(store, Put(name, b"", ttl=ttl))
        leader.freeze()
        began, thawed = time.monotonic(), False
        while (age := time.monotonic() - began) < 2 * ttl:
            if not thawed and age > ttl + 3:
                leader.thaw()
                thawed = True
            for name in names:
                again = txn(Put(name, b"", ttl=ttl), checks=(Check(name, "exists"),), quiet=True)
                assert isinstance(store.commit(again), Committed), f"{name} is lost after {age} s"
            time.sleep(0.25)
        assert thawed
        store.close()
