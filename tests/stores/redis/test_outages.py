"""Servers that die, freeze, forget or cut connections."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.stores.redis.conftest import Take

from interlock.errors import OutcomeUnknown, StoreAway, StoreUnsuitable
from interlock.store import Answer, Change, Put, Resync, Scope, Txn, Watch
from interlock.stores import network
from interlock.stores.network import Unanswered
from interlock.stores.redis import RedisStore, async_connections, transport
from interlock.stores.redis import watch as redis_watch
from interlock.testing.conformance.place import committed, gather, txn, write
from interlock.testing.servers import RedisServer, until


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that a test may kill."""
    with RedisServer(tmp_path / "own") as server:
        yield server


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second and a half of silence is too long."""
    for module in (network, transport, async_connections, redis_watch):
        monkeypatch.setattr(module, "REPLY", 1.5)
    for module in (async_connections, redis_watch):
        monkeypatch.setattr(module, "PING", 0.1)


def test_nothing_acknowledged_is_lost_when_the_server_is_killed(
    own: RedisServer, opened: Callable[[str], RedisStore]
) -> None:
    store = opened(own.url())
    assert store.capabilities.durability == "power loss"
    acknowledged: dict[str, int] = {}
    done = threading.Event()

    def writes(name: int) -> None:
        number = 0
        while not done.is_set():
            key = f"{name}/{number}"
            number += 1
            with suppress(OutcomeUnknown):
                acknowledged[key] = write(store, Put(key, b""))

    threads = [threading.Thread(target=writes, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        before = len(acknowledged)
        until(lambda before=before: len(acknowledged) > before + 100, "some commits")  # type: ignore[misc]
        own.restart()
    last = max(acknowledged.values())
    until(lambda: max(acknowledged.values()) > last, "a commit after the restart")
    done.set()
    for thread in threads:
        thread.join()
    found = store.read(*acknowledged).items
    assert {key: item and item.revision for key, item in found.items()} == acknowledged
    assert len(set(acknowledged.values())) == len(acknowledged)


def test_an_ordinary_restart_between_calls_goes_unnoticed(
    own: RedisServer, opened: Callable[[str], RedisStore]
) -> None:
    store = opened(own.url())
    for _ in range(3):
        write(store, Put("a", b""))
        own.restart()
        write(store, Put("a", b""))
    assert store.outage == ""


def test_a_server_without_a_file_forgets_all_but_repeats_no_revision(
    tmp_path: Path, opened: Callable[[str], RedisStore]
) -> None:
    with RedisServer(tmp_path, appendonly=False) as server:
        store = opened(server.url())
        assert store.capabilities.durability == "none"
        last = write(store, Put("p/a", b"1"))
        watch = store.watch("p/", last)
        assert watch.take(0.01) == []
        server.restart()
        assert store.read("p/a")["p/a"] is None
        again = write(store, Put("p/b", b"1"))
        assert again > last
        assert watch.take(20) == [Resync(again)]
        watch.close()


def test_a_restart_may_change_the_grade_or_make_it_unsuitable(
    own: RedisServer, opened: Callable[[str], RedisStore]
) -> None:
    store = opened(own.url())
    write(store)
    own.fsync = "everysec"
    own.restart()
    write(store)
    assert store.capabilities.durability == "none"
    own.extra = ("--maxmemory-policy", "allkeys-lru")
    own.restart()
    with pytest.raises(StoreUnsuitable, match="maxmemory-policy noeviction"):
        write(store)


def test_a_commit_on_its_way_is_unknown_when_the_server_freezes(
    own: RedisServer, opened: Callable[[str], RedisStore], hasty: None
) -> None:
    store = opened(own.url())
    write(store)
    own.freeze()
    change = txn(Put("a", b""))
    with pytest.raises(OutcomeUnknown) as unknown:
        store.commit(change)
    assert unknown.value.txn == change.id
    assert "does not answer" in store.outage
    own.thaw()
    store.read()
    assert store.outage == ""


def test_async_calls_on_their_way_are_unknown_when_the_server_freezes(
    own: RedisServer, opened: Callable[[str], RedisStore], hasty: None
) -> None:
    store = opened(own.url())

    async def main() -> list[object]:
        await store.read_async()
        own.freeze()
        commits = (store.commit_async(txn()) for _ in range(5))
        found = await asyncio.gather(*commits, return_exceptions=True)
        own.thaw()
        await store.read_async()
        return list(found)

    assert {type(error) for error in asyncio.run(main())} == {OutcomeUnknown}


def test_a_watch_notices_a_frozen_server_and_goes_on(
    own: RedisServer,
    opened: Callable[[str], RedisStore],
    hasty: None,
    taking: Callable[[Watch], Take],
) -> None:
    store = opened(own.url())
    watch = store.watch("p/", store.read().revision)
    take = taking(watch)
    assert take(0.01) == []
    own.freeze()
    started = time.monotonic()
    assert take(0.5) == []
    assert time.monotonic() - started > 0.4
    until(lambda: take(0.1) == [] and "does not answer" in store.outage, "trouble")
    own.thaw()
    revision = write(store, Put("p/a", b""))
    assert take(20) == [Change(revision, "p/a")]
    watch.close()


def test_a_watch_of_a_server_that_stays_away_says_so(
    own: RedisServer, opened: Callable[[str], RedisStore], taking: Callable[[Watch], Take]
) -> None:
    store = opened(own.url())
    store.patience = 0.3
    watch = store.watch("p/", 0)
    take = taking(watch)
    assert take(0.01) == []
    own.kill()
    with pytest.raises(StoreAway):
        take(None)
    watch.close()


@pytest.mark.parametrize(
    ("scope", "each"), [("p/", 1), ("", 3), ("log/", 1), (("p/", "q/"), 2), (("log/", "q/"), 2)]
)
def test_a_watch_misses_and_doubles_nothing_when_its_connection_is_cut(
    redis_server: RedisServer,
    store: RedisStore,
    taking: Callable[[Watch], Take],
    scope: Scope,
    each: int,
) -> None:
    watch = store.watch(scope, store.read().revision)
    take = taking(watch)
    written: list[int] = []
    done = threading.Event()

    def writes() -> None:
        puts = ((Put(f"p/{number}", b""), Put(f"q/{number}", b"")) for number in range(200))
        written.extend(write(store, *each) for each in puts)
        done.set()

    def cuts() -> None:
        while not done.wait(0.02):
            redis_server.command("CLIENT", "KILL", "TYPE", "pubsub")

    threads = [threading.Thread(target=work) for work in (writes, cuts)]
    for thread in threads:
        thread.start()
    found: list[int] = []
    while not (done.is_set() and len(found) >= each * len(written)):  # to the very last
        for change in take(1):
            assert isinstance(change, Change)
            found.append(change.revision)
    for thread in threads:
        thread.join()
    assert found == [revision for revision in written for _ in range(each)]
    watch.close()


@pytest.mark.parametrize("cut", [True, False], ids=["cut", "time to look"])
def test_a_commit_of_which_one_piece_was_heard_is_told_in_full_and_once(
    redis_server: RedisServer, store: RedisStore, taking: Callable[[Watch], Take], cut: bool
) -> None:
    watch = store.watch(("p/", "q/"), store.read().revision)
    watch.channels = (watch.channels[0], b"elsewhere")  # the other piece never comes
    take = taking(watch)
    until(
        lambda: take(0.01) == [] and watch._subscription, "an ear"
    )  # else it would look, and see both
    revision = write(store, Put("p/a", b""), Put("q/a", b""))
    assert take(20) == [Change(revision, "p/a")]
    if cut:
        redis_server.command("CLIENT", "KILL", "TYPE", "pubsub")
    else:
        watch._due = 0.0
    assert take(20) == [Change(revision, "q/a")]
    later = write(store, Put("p/a", b""))
    assert take(20) == [Change(later, "p/a")]
    watch.close()


def test_a_watch_goes_on_after_a_restart(
    own: RedisServer, opened: Callable[[str], RedisStore]
) -> None:
    store = opened(own.url())
    watch = store.watch("p/", 0)
    first = write(store, Put("p/1", b""))
    assert watch.take(20) == [Change(first, "p/1")]
    own.restart()
    second = write(store, Put("p/2", b""))
    assert watch.take(20) == [Change(second, "p/2")]
    own.restart()
    third = write(store, Put("p/3", b""))
    assert watch.take(20) == [Change(third, "p/3")]
    watch.close()


def test_a_listener_that_is_too_slow_is_cut_off_and_misses_nothing(
    own: RedisServer, opened: Callable[[str], RedisStore]
) -> None:
    store = opened(own.url())
    own.command("CONFIG", "SET", "client-output-buffer-limit", "pubsub 64kb 0 0")
    watch = store.watch("log/", store.read().revision)
    assert watch.take(0.01) == []
    txns = [Txn(id=f"txn_{number}", entry=bytes(1 << 20)) for number in range(12)]
    for each in txns:
        committed(store.commit(each))
    assert "sub=1" not in str(own.command("CLIENT", "LIST")), "it was not cut off"
    found = gather(watch, lambda found: len(found) >= len(txns))
    assert [change.key for change in found] == [f"log/{each.id}" for each in txns]
    watch.close()


def test_an_async_watch_that_is_not_asked_for_long_misses_nothing(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_connections, "_INBOX", 5)

    async def main() -> None:
        watch = store.watch("p/", (await store.read_async()).revision)
        assert await watch.take_async(0.01) == []
        for number in range(30):
            await store.commit_async(txn(Put(f"p/{number}", b"")))
        found: list[Change | Resync] = []
        while len(found) < 30:
            found += await watch.take_async(20)
        assert [getattr(change, "key", "") for change in found] == [f"p/{n}" for n in range(30)]
        watch.close()

    asyncio.run(main())


def test_a_bell_that_nobody_rings_is_found_out(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when another server took the place of the one that we listen to."""
    monkeypatch.setattr("interlock.stores.redis.watch.LOOK", 0.1)
    watch = store.watch("p/", store.read().revision)
    watch.channels = (b"elsewhere",)
    assert watch.take(0.01) == []
    revision = write(store, Put("p/a", b""))
    assert watch.take(20) == [Change(revision, "p/a")]
    watch.close()


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_who_listens_to_silence_asks_less_and_less_often(
    own: RedisServer,
    opened: Callable[[str], RedisStore],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    for module in (async_connections, redis_watch):
        monkeypatch.setattr(module, "PING", 0.02)
    store = opened(own.url())
    watch, began = store.watch("p/", 0), time.monotonic()

    def pings() -> int:
        found = re.match("calls=([0-9]+)", own.info("commandstats").get("cmdstat_ping", ""))
        return int(found[1]) if found else 0

    first = pings()
    with asyncio.Runner() as loop:
        while pings() < first + 5:
            _ = loop.run(watch.take_async(0.1)) if kind == "async" else watch.take(0.1)
        watch.close()
    assert time.monotonic() - began > 0.02 * (1 + 2 + 4 + 8)


def test_who_listens_asks_soon_when_another_call_is_in_trouble(store: RedisStore) -> None:
    watch = store.watch("p/", 0)
    assert watch.take(0.01) == []
    line = watch._subscription
    assert isinstance(line, redis_watch.BlockingSubscription)
    line.silence.patience = redis_watch.LONGEST
    assert line.silence.due() > time.monotonic() + 4 * redis_watch.PING
    store.note_outage(Unanswered("no answer"))
    assert line.silence.due() <= time.monotonic() + redis_watch.PING
    store.note_answer()
    watch.close()


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_a_failover_is_followed_and_told_to_watches(
    own: RedisServer, tmp_path: Path, opened: Callable[[str], RedisStore], kind: str
) -> None:
    with RedisServer(tmp_path / "replica", replicaof=own) as replica, asyncio.Runner() as loop:
        runner = loop if kind == "async" else None
        store = opened(f"redis://{replica.endpoint},{own.endpoint}")
        watch = store.watch("p/", 0)
        first = _committed(store, runner, "p/1")
        assert watch.take(20) == [Change(first, "p/1")]
        until(lambda: _revision(replica, store) == first, "replication")
        replica.command("REPLICAOF", "NO", "ONE")
        own.command("REPLICAOF", "127.0.0.1", replica.port)
        second = _committed(store, runner, "p/2")
        assert second > first
        assert _revision(replica, store) == second
        assert watch.take(20) == [Change(second, "p/2")], "replicas ring too"
        own.kill()
        third = write(store, Put("p/3", b""))
        assert watch.take(20) == [Resync(third)], "something may have been forgotten"
        watch.close()


def _committed(store: RedisStore, runner: asyncio.Runner | None, key: str) -> int:
    change = txn(Put(key, b""))
    if runner is None:
        return committed(store.commit(change)).revision

    async def commit() -> Answer:
        return await store.commit_async(change)

    return committed(runner.run(commit())).revision


def _revision(server: RedisServer, store: RedisStore) -> int:
    return int(str(server.command("HGET", store.keys["meta"], "rev") or 0))
