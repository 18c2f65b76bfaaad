from __future__ import annotations

import asyncio
import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.stores.etcd.etcds import opened

from interlock.errors import OutcomeUnknown, StoreAway, StoreClosed
from interlock.store import LOG, VOID, Change, Item, Put, Watch, void
from interlock.stores import open_store_async
from interlock.stores.etcd import EtcdStore
from interlock.stores.network import PATIENCE
from interlock.testing.conformance.place import at_once, committed, txn, write
from interlock.testing.servers import EtcdCluster, EtcdServer, until
from interlock.testing.servers.etcd import etcd_url

BUSY = 10.0
"""Seconds that a busy machine may add; far less than the time after which gRPC itself notices."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path) as server:
        yield server


def test_nothing_acknowledged_is_lost_when_etcd_is_killed_and_watches_go_on(
    server: EtcdServer,
) -> None:
    store = opened(server.url(), patience=30)
    watch = store.watch("p/", store.read().revision)
    killed = threading.Event()

    def kills() -> list[tuple[int, str]]:
        for _ in range(2):
            time.sleep(0.3)
            server.kill()
            server.restart()
        killed.set()
        return []

    def writes() -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        while not killed.is_set():
            found.append(_surely(store, f"p/{len(found)}"))
        return [*found, (write(store, Put("p/last", b"")), "p/last")]

    written, seen, _ = at_once(writes, partial(_until_last, watch), kills)
    assert seen == written
    for revision, key in written:
        item = store.read(key)[key]
        assert item is not None
        assert item.revision == revision
    assert store.outage == ""
    store.close()


def test_a_frozen_server_is_noticed_within_seconds_by_calls_and_by_who_waits(
    server: EtcdServer,
) -> None:
    store = opened(server.url(), patience=0.5)
    other = opened(server.url(), patience=0.5)
    watch = other.watch("p/", other.read().revision)
    watch.take(0.1)
    write(store, Put("a", b""))
    server.freeze()
    started = time.monotonic()

    def reads() -> float:
        with pytest.raises(StoreAway, match="does not answer"):
            store.read("a")
        return time.monotonic() - started

    def waits() -> float:
        with pytest.raises(StoreAway, match=r"silent for 4 s|ping timeout"):
            watch.take(30)
        return time.monotonic() - started

    def tells() -> float:
        until(lambda: other.outage, "trouble")
        return time.monotonic() - started

    def commits() -> float:
        with pytest.raises(OutcomeUnknown):
            store.commit(txn(Put("a", b"")))
        return time.monotonic() - started

    async def asks() -> float:
        with pytest.raises(StoreAway, match="does not answer"):
            await store.read_async("a")
        return time.monotonic() - started

    took = at_once(reads, waits, tells, commits, lambda: asyncio.run(asks()))
    assert all(2.5 < each < 5 + BUSY for each in took), took
    server.thaw()
    store.patience = other.patience = PATIENCE
    revision = write(store, Put("p/1", b""))
    assert watch.take(30) == [Change(revision, "p/1")]
    store.close()
    other.close()


def test_a_server_that_is_not_there_is_away_and_comes_back(server: EtcdServer) -> None:
    url = server.url()
    store = opened(url, patience=0.3)
    server.kill()
    with pytest.raises(StoreAway):  # from here on the connection is known to be broken
        store.read("a")
    with pytest.raises(StoreAway) as caught:
        store.commit(txn(Put("a", b"")))
    assert "refused" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "does not answer for" in store.outage
    with pytest.raises(StoreAway):
        opened(url, patience=0.2)
    with pytest.raises(StoreAway):
        store.watch("p/", 1).take(5)
    server.start()
    store.patience = PATIENCE
    write(store, Put("a", b""))
    assert store.outage == ""
    store.close()


def test_a_cluster_that_loses_its_leader_goes_on_under_load(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path) as cluster:
        stores = [opened(cluster.url(), patience=30) for _ in range(3)]
        watches = [store.watch("p/", store.read().revision) for store in stores]
        over = threading.Event()
        last = threading.Barrier(len(stores))

        def loses() -> list[tuple[int, str]]:
            time.sleep(0.3)
            lost = cluster.leader()
            lost.kill()
            cluster.leader()
            time.sleep(0.3)
            lost.start()
            cluster.leader().freeze()
            time.sleep(1.5)
            over.set()
            return []

        def writes(number: int, store: EtcdStore) -> list[tuple[int, str]]:
            found: list[tuple[int, str]] = []
            while not over.is_set():
                found.append(_surely(store, f"p/{number}/{len(found)}"))
            if last.wait(60) == 0:
                found.append(_surely(store, "p/last"))
            return found

        works = [partial(writes, *pair) for pair in enumerate(stores)]
        results = at_once(*works, *(partial(_until_last, each) for each in watches), loses)
        written = sorted(pair for result in results[:3] for pair in result)
        assert len(written) > 10
        assert results[3] == results[4] == results[5] == written
        for store in stores:
            store.close()


def test_another_endpoint_is_taken_when_one_hangs(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path) as cluster:
        followers = cluster.followers()
        store = opened(etcd_url(followers, "test"))
        hung = followers[store.transport.number]
        watch = store.watch("p/", store.read().revision)
        watch.take(0.1)
        other = opened(cluster.leader().url("test"))
        hung.freeze()
        started = time.monotonic()
        revision = write(other, Put("p/1", b""))
        assert watch.take(20) == [Change(revision, "p/1")]
        assert store.read("p/1")["p/1"] is not None
        assert time.monotonic() - started < 6 + BUSY
        other.close()
        store.close()


def forks(url: str) -> None:
    """Use a store in a child that was forked while its parent had it open."""
    store = opened(url)
    write(store, Put("a", b"1"))
    store.watch("a", 0).take(30)
    answers: multiprocessing.Queue[object] = multiprocessing.get_context("fork").Queue()
    child = multiprocessing.get_context("fork").Process(target=_child, args=(store, url, answers))
    child.start()
    assert answers.get(timeout=20) == ["StoreClosed", b"1", b"2"]
    child.join(20)
    assert child.exitcode == 0
    item = store.read("a")["a"]
    assert item is not None
    assert item.value == b"2"
    store.close()


def test_a_child_of_a_fork_connects_anew(server: EtcdServer) -> None:
    """In a process of its own: a child inherits the locks that other threads of its parent hold."""
    words = f"from {forks.__module__} import forks; forks({server.url()!r})"
    subprocess.run([sys.executable, "-c", words], cwd=Path(__file__).parents[3], check=True)


def test_event_loops_one_after_the_other_use_one_store(server: EtcdServer) -> None:
    store = opened(server.url())

    async def counts(number: int) -> int:
        await asyncio.gather(*(store.commit_async(txn(Put(f"a/{number}", b""))) for _ in range(20)))
        return (await store.read_async()).revision

    revisions = [asyncio.run(counts(number)) for number in range(4)]
    assert sorted(revisions) == revisions
    store.close()
    with pytest.raises(StoreClosed):
        asyncio.run(counts(9))


def test_an_event_loop_opens_and_closes_without_leaving_anything(server: EtcdServer) -> None:
    async def main() -> None:
        store = await open_store_async(server.url())
        task = asyncio.create_task(_wait(store.watch("p/", 0)))
        await store.commit_async(txn(Put("p/1", b"", ttl=None)))
        assert await task
        await store.close_async()

    asyncio.run(main(), debug=True)
    until(
        lambda: "interlock-etcd" not in {each.name for each in threading.enumerate()}, "no thread"
    )


async def _wait(watch: Watch) -> bool:
    return bool(await watch.take_async(30))


def _child(store: EtcdStore, url: str, answers: multiprocessing.Queue[object]) -> None:
    found: list[object] = []
    try:
        store.read("a")
    except StoreClosed as error:
        found.append(type(error).__name__)
    store.close()
    own = opened(url)
    for value in (b"2", b"3"):
        item = own.read("a")["a"]
        found.append(item and item.value)
        if value == b"2":
            write(own, Put("a", value))
    own.close()
    answers.put(found)


def _surely(store: EtcdStore, key: str) -> tuple[int, str]:
    """Put a key, whatever it takes, as the runner does; returns the revision that did it."""
    while True:
        change = txn(Put(key, b""))
        try:
            return committed(store.commit(change)).revision, key
        except OutcomeUnknown:
            entry = _settled(store, change.id)
        if entry.value != VOID:
            return entry.revision, key


def _settled(store: EtcdStore, id_: str) -> Item:
    """What stands in the log for good."""
    while True:
        try:
            store.commit(void(id_))
            entry = store.read(LOG + id_)[LOG + id_]
        except OutcomeUnknown:
            continue
        assert entry is not None
        return entry


def _until_last(watch: Watch) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    while not found or found[-1][1] != "p/last":
        for change in watch.take(20):
            assert isinstance(change, Change)
            found.append((change.revision, change.key))
    return found
