"""What happens inside the server: the clock, late requests, trimming, sizes."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

import interlock
from interlock.nouns.grants.lock import LockBusy
from interlock.store import LOG, VOID, Check, Conflict, Extent, Log, Put, Range, Resync, void
from interlock.stores.redis import RedisStore, scripts
from interlock.stores.redis.errors import RequestTooLate
from interlock.stores.redis.scripts import pack, packed_commit
from interlock.stores.redis.transport import LATEST
from interlock.testing.conformance.place import committed, gather, txn, write
from interlock.testing.servers import RedisServer
from interlock.testing.servers.proxy import Proxy

HOUR = 3600 * 1_000_000
BOTH = pytest.mark.parametrize("kind", ["blocking", "async"])


def now() -> int:
    return time.time_ns() // 1000


def turn_ahead(store: RedisStore, microseconds: int) -> int:
    """As if the clock had been ahead by so much at the last commit, and was turned back."""
    revision = now() + microseconds
    ask(store, "HSET", store.keys["meta"], "rev", str(revision))
    return revision


def ask(store: RedisStore, *words: scripts.Argument) -> Any:
    return store.transport.call(pack(words))


@BOTH
def test_a_server_that_forgot_the_scripts_gets_them_again(
    redis_server: RedisServer, store: RedisStore, kind: str
) -> None:
    redis_server.command("SCRIPT", "FLUSH")
    if kind == "async":

        async def both() -> int:
            answer = committed(await store.commit_async(txn(Put("a", b"1"))))
            redis_server.command("SCRIPT", "FLUSH")
            return (await store.read_async("a")).revision - answer.revision

        assert asyncio.run(both()) == 0
        return
    revision = write(store, Put("a", b"1"))
    redis_server.command("SCRIPT", "FLUSH")
    assert store.read("a").revision == revision
    redis_server.command("SCRIPT", "FLUSH")
    assert [change.key for change in gather(store.watch("a", 0), bool)] == ["a"]
    redis_server.command("SCRIPT", "FLUSH")
    assert store.sweep() == 0


def test_revisions_follow_the_clock_of_the_server(store: RedisStore) -> None:
    before = now()
    revision = write(store, Put("a", b""))
    assert before - 1000 <= revision <= now() + 1000


def test_a_clock_that_is_turned_back_repeats_no_revision(store: RedisStore) -> None:
    write(store, Put("a", b""))
    ahead = turn_ahead(store, HOUR)
    assert write(store, Put("a", b"")) == ahead + 1
    assert write(store, Put("a", b""), quiet=True) == ahead + 2


def test_a_clock_that_is_turned_back_revives_nothing(store: RedisStore) -> None:
    write(store, Put("live/a", b"", ttl=5))
    turn_ahead(store, 10_000_000)
    assert store.read("live/a")["live/a"] is None
    assert not isinstance(store.commit(txn(checks=(Check("live/a", "absent"),))), Conflict)
    assert store.sweep() == 1
    write(store, Put("live/a", b"", ttl=500))
    item = store.read("live/a")["live/a"]
    assert item is not None
    assert item.expires_in is not None
    assert 400 < item.expires_in <= 500


def test_a_request_that_comes_too_late_has_no_effect(store: RedisStore) -> None:
    write(store)
    late = txn(Put("a", b"1"))
    stale = store.transport.commits.request([packed_commit(late)], now() - 1_000_000)
    with pytest.raises(RequestTooLate):
        store.transport.call(stale)
    assert store.read("a", LOG + late.id).items == {"a": None, LOG + late.id: None}


@BOTH
def test_a_clock_that_jumps_ahead_is_learnt_and_stops_nobody(store: RedisStore, kind: str) -> None:
    store.transport.learn(now() - HOUR)
    if kind == "blocking":
        committed(store.commit(txn(Put("a", b""))))
    else:

        async def commits() -> None:
            committed(await store.commit_async(txn(Put("a", b""))))

        asyncio.run(commits())
    assert abs(store.transport.latest() - LATEST - now()) < 5_000_000


def test_young_entries_stay_however_many_there_are(
    redis_url: str, opened: Callable[[str], RedisStore]
) -> None:
    store = opened(f"{redis_url}&log=10")
    for _ in range(100):
        write(store)
    assert store.info()["entries"] == 100


def test_old_entries_go_a_few_at_a_time_and_their_ids_with_them(
    redis_url: str, opened: Callable[[str], RedisStore]
) -> None:
    store = opened(f"{redis_url}&log=10")
    for _ in range(300):
        write(store)
    turn_ahead(store, 200_000_000)
    counts = []
    for _ in range(4):
        write(store)
        counts.append(store.info()["entries"])
    assert counts == [173, 46, 47, 48]
    assert ask(store, "HLEN", store.keys["ids"]) == 48
    last = Log()
    assert len(store.read(last).ranges[last]) == 48


def test_what_is_trimmed_takes_its_id_along_and_the_young_stay(store: RedisStore) -> None:
    revisions = [write(store) for _ in range(20)]
    assert store.trim(revisions[-1]) == 0
    turn_ahead(store, 200_000_000)
    assert store.trim(revisions[9]) == 10
    assert ask(store, "HLEN", store.keys["ids"]) == 10
    assert store.extent() == Extent(10, revisions[9])


def test_a_void_outlives_the_request_that_it_keeps_out(
    redis_url: str, opened: Callable[[str], RedisStore]
) -> None:
    store = opened(f"{redis_url}&log=0")
    late = txn(Put("a", b"1"))
    request = store.transport.commits.request([packed_commit(late)], store.transport.latest())
    committed(store.commit(void(late.id)))
    turn_ahead(store, LATEST - 1_000_000)
    for _ in range(200):
        write(store)
    assert store.transport.call(request)[0] == 0
    turn_ahead(store, 400_000_000)
    for _ in range(3):
        write(store)
    assert store.read(LOG + late.id)[LOG + late.id] is None, "trimmed by now"
    with pytest.raises(RequestTooLate):
        store.transport.call(request)
    assert store.read("a")["a"] is None


def test_a_request_that_was_refused_commits_never(store: RedisStore) -> None:
    """It is delivered twice, and finds what it wanted to be absent gone the second time."""
    write(store, Put("a", b"1"))
    wanted = txn(Put("a", b"2"), checks=(Check("a", "absent"),))
    request = store.transport.commits.request([packed_commit(wanted)], store.transport.latest())
    assert store.transport.call(request)[:3] == [0, mock.ANY, None]
    committed(store.commit(txn(deletes=("a",))))
    assert store.transport.call(request)[0] == 0
    assert store.read("a", LOG + wanted.id).items == {"a": None, LOG + wanted.id: None}
    settled = store.commit(void(wanted.id))
    assert isinstance(settled, Conflict)
    item = settled.items[LOG + wanted.id]
    assert item is not None
    assert item.value == VOID


def test_an_acquire_that_is_delivered_again_after_it_was_refused_takes_nothing(
    redis_server: RedisServer, redis_url: str
) -> None:
    seen: list[bytes] = []
    with (
        Proxy("127.0.0.1", redis_server.port) as proxy,
        interlock.connect(redis_url, agent="bob") as bob,
        interlock.connect(proxy.through(redis_url), agent="ada") as ada,
    ):
        bob.locks.acquire("merge")
        proxy.on_request(seen.append)
        assert isinstance(ada.locks.acquire("merge"), LockBusy)
        (request,) = [each for each in seen if b'"verb":"lock.acquire"' in each]
        bob.locks.release("merge")
        with socket.create_connection(("127.0.0.1", redis_server.port)) as again:
            again.sendall(request)
            assert again.recv(4096).startswith(b"*")
        assert bob.locks.show("merge").state == "free"


def test_the_marks_of_refused_requests_go_when_these_are_too_late(store: RedisStore) -> None:
    write(store, Put("a", b"1"))
    for _ in range(20):
        assert isinstance(store.commit(txn(checks=(Check("a", "absent"),))), Conflict)
    assert ask(store, "ZCARD", store.keys["refused"]) == 20
    turn_ahead(store, LATEST + 1_000_000)
    store.transport.learn(now() + LATEST + 1_000_000)
    for _ in range(2):
        assert isinstance(store.commit(txn(checks=(Check("a", "absent"),))), Conflict)
    assert ask(store, "ZCARD", store.keys["refused"]) == 2
    assert ask(store, "HLEN", store.keys["ids"]) == 1 + 2


def test_a_refusal_that_can_never_become_a_yes_leaves_no_mark(store: RedisStore) -> None:
    first = write(store, Put("a", b"1"))
    write(store, Put("a", b"2"))
    for check in (Check("a", "at", first), Check("b", "at", first), Check("live/x", "exists")):
        assert isinstance(store.commit(txn(checks=(check,))), Conflict)
    assert ask(store, "EXISTS", store.keys["refused"]) == 0


def test_trimming_troubles_only_a_watch_that_is_behind(
    redis_url: str, opened: Callable[[str], RedisStore]
) -> None:
    store = opened(f"{redis_url}&log=10")
    first = write(store, Put("p/0", b""))
    follows, late = store.watch("p/", first), store.watch("p/", first)
    assert follows.take(0.01) == []
    for number in range(1, 100):
        write(store, Put(f"p/{number}", b""))
    assert len(gather(follows, lambda found: len(found) == 99)) == 99
    turn_ahead(store, 200_000_000)
    last = write(store, Put("p/100", b""))
    assert [change.revision for change in gather(follows, bool)] == [last]
    assert late.take(1) == [Resync(last)]
    follows.close()
    late.close()


def test_a_long_range_comes_whole_and_in_order(store: RedisStore) -> None:
    keys = [f"p/{number:05}" for number in range(1700)]
    write(store, *(Put(key, key.encode()) for key in keys))
    everything = Range("p/", limit=5000)
    assert [item.key for item in store.read(everything).ranges[everything]] == keys
    page = Range("p/", after=keys[99], limit=1501)
    assert [item.key for item in store.read(page).ranges[page]] == keys[100:1601]


def test_thousands_of_lapsed_keys_take_no_room_in_a_page(store: RedisStore) -> None:
    write(store, *(Put(f"live/{number:05}", b"", ttl=0.5) for number in range(1200)))
    write(store, Put("live/x", b"", ttl=60))
    turn_ahead(store, 2_000_000)
    page = Range("live/", limit=2)
    assert [item.key for item in store.read(page).ranges[page]] == ["live/x"]
    assert [store.sweep() for _ in range(3)] == [1000, 200, 0]
    assert store.info()["items"] == 1


def test_names_and_values_may_be_anything(store: RedisStore) -> None:
    key = "p/ü {x} 1:+\n\0😀"
    value = b" 1 2 0 :" + bytes(range(256))
    watch = store.watch("p/", 0)
    revision = write(store, Put(key, value))
    item = store.read(key)[key]
    assert item is not None
    assert item.value == value
    assert not isinstance(store.commit(txn(checks=(Check(key, "has", value=value),))), Conflict)
    assert [(change.revision, change.key) for change in gather(watch, bool)] == [(revision, key)]
    write(store, Put(key, b""))
    assert [change.key for change in gather(watch, bool)] == [key]
    watch.close()


def test_namespaces_know_nothing_of_each_other(
    redis_server: RedisServer, opened: Callable[[str], RedisStore]
) -> None:
    one, two = opened(redis_server.url("apart")), opened(redis_server.url("apart2"))
    watch = two.watch("", 0)
    assert watch.take(0.01) == []
    write(one, Put("a", b"1"))
    assert two.read("a").items == {"a": None}
    assert watch.take(0.05) == []
    watch.close()


def test_a_watch_of_everything_that_misses_a_bell_looks_into_the_log(store: RedisStore) -> None:
    watch = store.watch("", store.read().revision)
    assert watch.take(0.01) == []
    revision = write(store, Put("a", b""))
    position = watch.position.after
    watch._subscription.receive(1)  # type: ignore[union-attr]  # the bell is lost
    second = write(store, Put("b", b""))
    assert watch.position.after == position
    found = gather(watch, lambda found: len(found) == 4)
    assert [change.revision for change in found] == [revision] * 2 + [second] * 2
    watch.close()


def test_a_namespace_that_was_emptied_is_a_resync(store: RedisStore) -> None:
    watch = store.watch("p/", write(store, Put("p/a", b"")))
    assert watch.take(0.01) == []
    ask(store, "DEL", *store.keys.values())
    write(store, Put("q/a", b""))
    watch._leave(well=False)
    assert watch.take(30) == [Resync(store.read().revision)]
    watch.close()
