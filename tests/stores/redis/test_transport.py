"""Connections: many at once, cancelled, interrupted, in a cluster."""

from __future__ import annotations

import asyncio
import gc
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from interlock.errors import StoreClosed
from interlock.store import Check, Committed, Conflict, Put
from interlock.stores import open_store, open_store_async
from interlock.stores.network import Unanswered, Unsent
from interlock.stores.redis import RedisStore
from interlock.stores.redis.scripts import pack
from interlock.stores.redis.transport import Connection
from interlock.testing.conformance.place import at_once, committed, txn, write
from interlock.testing.servers import RedisServer


def test_many_calls_in_flight_each_get_their_own_answer(store: RedisStore) -> None:
    async def one(number: int) -> None:
        for _ in range(10):
            key, value = f"p/{number}", f"{number}".encode() * 100
            answer = committed(await store.commit_async(txn(Put(key, value), reads=(key,))))
            item = answer.items[key]
            assert item is not None
            assert (item.value, item.revision) == (value, answer.revision)
            assert (await store.read_async(key))[key] == item

    async def main() -> None:
        await asyncio.gather(*(one(number) for number in range(64)))

    asyncio.run(main())


def test_a_call_with_little_time_leaves_the_others_of_its_loop_their_answers(
    store: RedisStore,
) -> None:
    transport = store.transport

    async def main() -> None:
        await store.read_async("a")
        hasty = asyncio.ensure_future(transport.call_async(pack(("BLPOP", "none", "1")), 0.05))
        await asyncio.sleep(0)
        others = [transport.call_async(pack(("ECHO", f"{number}"))) for number in range(3)]
        with pytest.raises(Unanswered, match="within"):
            await hasty
        assert await asyncio.gather(*others) == [b"0", b"1", b"2"]

    asyncio.run(main())


def test_all_calls_of_a_loop_share_two_connections(
    redis_server: RedisServer, store: RedisStore
) -> None:
    def connections() -> int:
        return int(redis_server.info("clients")["connected_clients"])

    async def main() -> None:
        before = connections()
        await asyncio.gather(*(store.read_async("a") for _ in range(64)))
        watches = [store.watch(f"p/{number}", 0) for number in range(20)]
        await asyncio.gather(*(watch.take_async(0.05) for watch in watches))
        assert connections() - before == 2
        for watch in watches:
            watch.close()

    asyncio.run(main())


def test_a_cancelled_call_does_not_shift_the_answers(store: RedisStore) -> None:
    write(store, *(Put(f"p/{number}", str(number).encode()) for number in range(50)))

    async def main() -> None:
        await store.read_async()
        for _ in range(20):
            tasks = {n: asyncio.create_task(_read(store, f"p/{n}")) for n in range(50)}
            await asyncio.sleep(0)
            for number in range(0, 50, 3):
                tasks[number].cancel()
            await asyncio.wait(tasks.values())
            for number, task in tasks.items():
                assert task.cancelled() or task.result() == str(number).encode()
            assert sum(task.cancelled() for task in tasks.values()) == 17

    asyncio.run(main())


async def _read(store: RedisStore, key: str) -> bytes | None:
    item = (await store.read_async(key))[key]
    return None if item is None else item.value


def test_a_large_commit_among_small_ones_goes_through_whole(store: RedisStore) -> None:
    async def main() -> None:
        large = [txn(Put(f"p/{n}", bytes([n]) * 1_000_000)) for n in range(12)]
        small = [txn(Put(f"q/{n}", b"")) for n in range(50)]
        answers = await asyncio.gather(*map(store.commit_async, [*large, *small]))
        assert all(isinstance(answer, Committed) for answer in answers)

    asyncio.run(main())
    for number in range(12):
        item = store.read(f"p/{number}")[f"p/{number}"]
        assert item is not None
        assert item.value == bytes([number]) * 1_000_000


def test_threads_that_block_do_not_wait_for_each_other(store: RedisStore) -> None:
    watch = store.watch("p/", 0)

    def waits() -> object:
        return watch.take(30)

    def writes() -> object:
        for number in range(50):
            write(store, Put(f"q/{number}", b""))
        return write(store, Put("p/a", b""))

    found, *revisions = at_once(waits, writes, writes)
    assert found
    assert len(set(revisions)) == 2
    watch.close()


def test_an_interrupt_in_an_exchange_ends_that_connection(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, Put("a", b"1"), Put("b", b"2"))
    connection = store.transport._idle[-1]

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(connection, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.read("a")
    item = store.read("b")["b"]
    assert item is not None
    assert item.value == b"2"
    assert connection.sock.fileno() == -1


def test_what_never_left_is_told_apart_from_what_was_not_answered() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = Connection(ours)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(Unanswered):
            connection.exchange(pack(("PING",)))
        theirs.close()
        with pytest.raises(Unsent):
            connection.exchange(pack(("PING",)))


def test_what_left_in_part_counts_as_sent() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = Connection(ours)
        timer = threading.Timer(0.1, theirs.close)
        timer.start()
        with pytest.raises(Unanswered):
            connection.exchange(bytes(10_000_000))
        timer.join()


def test_close_ends_calls_of_all_threads_and_loops(redis_url: str) -> None:
    store = open_store(redis_url)
    ended: list[str] = []
    ready = threading.Barrier(3)

    def blocks() -> None:
        watch = store.watch("p/", 0)
        watch.take(0.01)
        ready.wait()
        with pytest.raises(StoreClosed):
            watch.take(20)
        ended.append("blocking")

    def loops() -> None:
        async def main() -> None:
            watch = store.watch("p/", 0)
            await watch.take_async(0.01)
            ready.wait()
            with pytest.raises(StoreClosed):
                await watch.take_async(20)

        asyncio.run(main())
        ended.append("async")

    threads = [threading.Thread(target=work) for work in (blocks, loops)]
    for thread in threads:
        thread.start()
    ready.wait()
    store.close()
    for thread in threads:
        thread.join(60)
    assert sorted(ended) == ["async", "blocking"]


def test_a_closed_watch_wakes_who_waits_for_it(store: RedisStore) -> None:
    watch = store.watch("p/", 0)
    watch.take(0.01)
    timer = threading.Timer(0.1, watch.close)
    timer.start()
    with pytest.raises(StoreClosed):
        watch.take(30)
    timer.join()
    write(store, Put("p/a", b""))
    assert len(store.watch("p/", 0).take(30)) == 1


def test_one_store_serves_one_loop_after_another(store: RedisStore) -> None:
    watch = store.watch("p/", 0)

    async def main(number: int) -> None:
        await store.commit_async(txn(Put(f"p/{number}", b"")))
        assert [getattr(c, "key", "") for c in await watch.take_async(5)] == [f"p/{number}"]

    for number in range(3):
        asyncio.run(main(number))
        write(store, Put(f"p/{number}", b""))
        assert len(watch.take(30)) == 1
    watch.close()
    gc.collect()


def test_a_loop_that_ends_while_connecting_leaves_nothing_behind(redis_url: str) -> None:
    store = open_store(redis_url)

    async def main() -> None:
        task = asyncio.create_task(_read(store, "a"))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()

    for _ in range(5):
        asyncio.run(main())
    store.close()
    gc.collect()


def test_a_unix_socket_will_do(tmp_path: Path) -> None:
    path = str(tmp_path / "redis.sock")
    with RedisServer(tmp_path, socket=path):
        store = open_store(f"redis+unix://{path}")
        write(store, Put("a", b""))
        assert store.read("a")["a"] is not None
        store.close()


def test_a_cluster_of_one_will_do(tmp_path: Path) -> None:
    with RedisServer(tmp_path, cluster=True) as server:
        store = open_store(server.url("in/a:cluster"))
        watch = store.watch("p/", 0)
        answer = store.commit(txn(Put("p/a", b""), checks=(Check("p/a", "absent"),)))
        assert not isinstance(answer, Conflict)
        assert len(watch.take(30)) == 1
        watch.close()
        assert store.sweep() == 0
        assert store.examine()
        store.close()


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_a_slot_that_moved_is_followed(
    redis_server: RedisServer, redis_url: str, kind: str
) -> None:
    """The node in the URL names another one, where the slot is."""
    info = "redis_version:7.0.15\r\nrole:master"
    told = f"+OK\r\n*2\r\n$1\r\n1\r\n$1\r\n0\r\n*0\r\n${len(info)}\r\n{info}\r\n"
    told += f"-MOVED 1 127.0.0.1:{redis_server.port}\r\n"
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def speak() -> None:
            connected, _ = listening.accept()
            with connected:
                asked.append(connected.recv(4096))
                connected.sendall(told.encode())
                connected.recv(4096)

        thread = threading.Thread(target=speak)
        thread.start()
        url = redis_url.replace(str(redis_server.port), str(listening.getsockname()[1]))
        if kind == "blocking":
            store = open_store(url)
            write(store, Put("a", b""))
            store.close()
        else:

            async def main() -> None:
                store = await open_store_async(url)
                committed(await store.commit_async(txn(Put("a", b""))))
                await store.close_async()

            asyncio.run(main())
        thread.join()
    assert len(asked) == 1


def test_a_blocking_caller_pays_neither_for_asyncio_nor_for_tls(redis_url: str) -> None:
    script = f"""
import sys
from interlock.stores import open_store
from interlock.store import Put, Txn
store = open_store({redis_url!r})
store.commit(Txn(id="txn_1", puts=(Put("p/a", b""),)))
store.read("p/a")
watch = store.watch("p/", 0)
assert watch.take(30)
watch.close()
store.close()
print([name for name in ("asyncio", "ssl", "hashlib", "socketserver") if name in sys.modules])
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert ran.stdout.strip() == "[]"


def test_facts_for_people(
    redis_server: RedisServer, store: RedisStore, opened: Callable[[str], RedisStore]
) -> None:
    write(store, Put("a", b""))
    info = store.info()
    assert info["engine"] == "redis"
    assert info["server"] == f"redis {redis_server.version}"
    assert (info["items"], info["entries"], info["format"]) == (1, 1, 2)
    assert str(info["durability"]).startswith("process")  # the server of the tests syncs nothing
    redis_server.command("CONFIG", "SET", "appendfsync", "always")
    try:
        safe = opened(redis_server.url("safe"))
        assert str(safe.info()["durability"]).startswith("power loss")
        assert {finding.verdict for finding in safe.examine()} == {"ok"}
    finally:
        redis_server.command("CONFIG", "SET", "appendfsync", "no")
