from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from interlock.store import Change, Put, Resync, Watch
from interlock.stores.etcd import EtcdStore
from interlock.stores.etcd import watch as feed
from interlock.testing.conformance.place import PATIENCE, at_once, gather, there, txn, write
from interlock.testing.servers import EtcdServer, until

_QUESTIONS = 'grpc_server_msg_received_total{grpc_method="Watch",'


def test_history_forgotten_while_the_stream_was_broken_is_one_resync(
    store: EtcdStore, server: EtcdServer
) -> None:
    watch = store.watch("p/", store.read().revision)
    first = write(store, Put("p/1", b""))
    assert gather(watch, bool) == [Change(first, "p/1")]
    _break(store)
    write(store, Put("p/2", b""))
    last = write(store, Put("p/2", b""))
    server.call("/v3/kv/compaction", {"revision": last, "physical": True})
    assert watch.take(PATIENCE) == [Resync(last)]
    later = write(store, Put("p/3", b""))
    assert watch.take(PATIENCE) == [Change(later, "p/3")]


def test_history_forgotten_in_several_scopes_is_no_gap_in_any(
    store: EtcdStore, server: EtcdServer
) -> None:
    watch = store.watch(("p/", "q/", "r/"), store.read().revision)
    assert watch.take(0.1) == []
    _break(store)
    write(store, Put("p/1", b""), Put("q/1", b""))
    last = write(store, Put("p/1", b""), Put("q/1", b""))
    server.call("/v3/kv/compaction", {"revision": last, "physical": True})
    told = watch.take(PATIENCE)
    while any(part.after < last for part in watch.scope_watches):
        told += watch.take(PATIENCE)
    told += watch.take(0)
    assert set(told) == {Resync(last)}
    later = write(store, Put("p/3", b""), Put("r/3", b""))
    found = gather(watch, lambda got: len(got) == 2)
    assert {(each.revision, each.key) for each in found} == {(later, "p/3"), (later, "r/3")}


def test_compaction_under_a_watch_that_is_up_to_date_is_no_resync(
    store: EtcdStore, server: EtcdServer
) -> None:
    watch = store.watch("p/", store.read().revision)
    for _ in range(5):
        revision = write(store, Put("p/1", b""))
        assert gather(watch, bool) == [Change(revision, "p/1")]
        server.call("/v3/kv/compaction", {"revision": revision, "physical": True})


def test_a_key_that_changed_before_its_watch_was_served_is_seen_without_its_history(
    store: EtcdStore, server: EtcdServer
) -> None:
    """Etcd serves a watch from the past late; the waiter would have to wait for that."""
    write(store, Put("kept", b""), Put("gone", b""), Put("same", b""))
    start = store.read().revision
    names = ("kept", "gone", "same", "never")
    watches = {name: store.watch(name, start) for name in names}
    write(store, Put("kept", b""))
    changed = write(store, Put("kept", b""), deletes=("gone",))
    server.call("/v3/kv/compaction", {"revision": start, "physical": True})
    kept = there(store, "kept")
    assert watches["kept"].take(PATIENCE) == [Change(changed, "kept", item=kept)]
    assert [type(each) for each in watches["gone"].take(PATIENCE)] == [Resync]
    for name in ("same", "never"):
        assert watches[name].take(0.1) == []
        later = write(store, Put(name, b""))
        assert watches[name].take(PATIENCE) == [Change(later, name, item=there(store, name))]


def test_a_watch_of_one_key_is_served_from_when_it_is_opened(
    store: EtcdStore, server: EtcdServer
) -> None:
    """Its waiter may read other things first, and the answer may come in between."""
    first = store.watch("a", store.read().revision)
    assert first.take(0.1) == []  # there is a stream
    before = _messages(server)
    store.watch("b", store.read().revision)
    until(lambda: _messages(server) > before, "the watch on its way")


def test_a_stream_that_breaks_now_and_then_loses_and_doubles_nothing(store: EtcdStore) -> None:
    watches = [store.watch(scope, store.read().revision) for scope in ("p/", "p/", "q/")]
    over = threading.Event()

    def breaks() -> list[tuple[int, str]]:
        while not over.wait(0.05):
            _break(store)
        return []

    def writes() -> list[tuple[int, str]]:
        keys = [f"p/{number}" for number in range(150)]
        found = [(write(store, Put(key, b""), Put("q/a", b"")), key) for key in keys]
        over.set()
        return found

    def reads(watch: Watch) -> list[tuple[int, str]]:
        return [(each.revision, each.key) for each in gather(watch, lambda got: len(got) >= 150)]

    _, written, *found = at_once(breaks, writes, *(partial(reads, watch) for watch in watches))
    assert found[0] == found[1] == written
    assert [revision for revision, _ in found[2]] == [revision for revision, _ in written]
    assert all(watch.take(0.05) == [] for watch in watches)


def test_several_scopes_lose_and_double_nothing_when_the_stream_breaks(store: EtcdStore) -> None:
    watch = store.watch(("p/", "q/"), store.read().revision)
    found: list[tuple[int, str]] = []
    expected: set[tuple[int, str]] = set()
    for number in range(40):
        revision = write(store, Put("p/a", b""), Put("q/a", b""))
        expected |= {(revision, "p/a"), (revision, "q/a")}
        if number % 8 == 5:
            _break(store)
        found += [(each.revision, each.key) for each in gather(watch, bool)]
    found += [
        (each.revision, each.key)
        for each in gather(watch, lambda got: len(got) >= len(expected - {*found}))
    ]
    assert len(found) == len(expected)
    assert set(found) == expected


def test_changes_that_come_twice_are_dropped_and_counted(store: EtcdStore) -> None:
    watch = store.watch("p/", store.read().revision)
    first = write(store, Put("p/1", b""))
    gather(watch, bool)
    (part,) = watch.scope_watches
    store.feed.drop(watch.scope_watches)
    part.after, after = first - 1, part.after
    with store.feed.lock:  # etcd is asked for more than the watch is told to want
        store.feed.keep_served(watch)
        part.after = after
    second = write(store, Put("p/2", b""))
    assert gather(watch, bool) == [Change(second, "p/2")]
    assert store.feed.doubles == 1


def test_a_watch_that_nobody_reads_is_left_to_etcd(
    store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "_BACKLOG", 10)
    watch = store.watch("p/", store.read().revision)
    assert watch.take(0.1) == []
    keys = [f"p/{number}" for number in range(50)]
    for key in keys:
        write(store, Put(key, b""))
    until(lambda: not watch.scope_watches[0].number, "the watch given up")
    assert len(watch.arrived) < 50
    assert [each.key for each in gather(watch, lambda found: len(found) >= 50)] == keys


def test_one_revision_comes_in_one_piece_and_in_order(store: EtcdStore) -> None:
    write(store, Put("b", b""))
    watch = store.watch("", store.read().revision)
    change = txn(Put("z", b""), Put("a", b""), deletes=("b",), signals=("c",))
    revision = store.commit(change)
    found = watch.take(PATIENCE)
    keys = [each.key for each in found if isinstance(each, Change)]
    assert keys == [f"log/{change.id}", "z", "a", "b", "c"]
    assert {each.revision for each in found} == {getattr(revision, "revision", 0)}


def test_all_watches_share_one_stream_and_only_waiting_asks_for_signs_of_life(
    store: EtcdStore, server: EtcdServer
) -> None:
    watches = [store.watch(f"p/{number}", store.read().revision) for number in range(20)]
    before, began = _messages(server), time.monotonic()

    def sent() -> int:
        return _messages(server) - before

    def most() -> int:
        """How often a silence may have been broken by a question meanwhile."""
        return int((time.monotonic() - began) / feed.SILENCE)

    at_once(*(partial(watch.take, 0.3) for watch in watches))
    until(lambda: sent() >= 21, "a message for each watch, and for that of the mark")
    assert sent() <= 21 + most()
    assert watches[0].take(1.5 * feed.SILENCE) == []
    until(lambda: sent() > 21, "a question after the silence")
    time.sleep(0.2)  # one more may be on its way
    asked = sent()
    assert asked <= 22 + most()
    time.sleep(1.1 * feed.SILENCE)
    assert sent() == asked


def test_a_watch_goes_from_one_event_loop_to_another_and_to_none(store: EtcdStore) -> None:
    watch = store.watch("p/", store.read().revision)
    for number in range(3):
        task = _later(partial(write, store, Put(f"p/{number}", b"")))
        (change,) = asyncio.run(_take(watch))
        assert (isinstance(change, Change) and change.key) == f"p/{number}"
        task.join()
        revision = write(store, Put("p/x", b""))
        assert watch.take(PATIENCE) == [Change(revision, "p/x")]


def test_a_store_closed_by_another_thread_ends_calls_of_an_event_loop(store: EtcdStore) -> None:
    async def main() -> list[str]:
        start = store.read().revision
        tasks = [asyncio.create_task(_take(store.watch(scope, start))) for scope in ("p/", "q/")]
        await store.read_async("a")
        await asyncio.to_thread(store.close)
        done, _ = await asyncio.wait(tasks, timeout=PATIENCE)
        return [type(task.exception()).__name__ for task in done]

    assert asyncio.run(main()) == ["StoreClosed", "StoreClosed"]


async def _take(watch: Watch) -> list[Change | Resync]:
    return await watch.take_async(PATIENCE)


def _later(work: Callable[[], object]) -> threading.Thread:
    def run() -> None:
        time.sleep(0.05)
        work()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def _break(store: EtcdStore) -> None:
    """Cut the stream, as a network may."""
    with store.feed.lock:
        call = store.feed._call
    if call is not None:
        call.cancel()
        until(lambda: store.feed._call is not call, "the stream given up")


def _messages(server: EtcdServer) -> int:
    """How many messages came in on watch streams."""
    found = (v for name, v in server.metrics().items() if name.startswith(_QUESTIONS))
    return int(sum(found))
