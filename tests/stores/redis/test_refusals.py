"""Servers that will not do, and what is said about them: one line, what is wrong, what to do."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.certificates import certify

from interlock.errors import (
    BadInput,
    StoreAway,
    StoreDamaged,
    StoreFull,
    StoreNewer,
    StoreReadOnly,
    StoreRefused,
    StoreTrouble,
    StoreUnsuitable,
)
from interlock.store import Put
from interlock.stores import open_store, open_store_async
from interlock.stores.address import parse
from interlock.stores.network import Unsent
from interlock.stores.redis import RedisStore
from interlock.stores.redis.packing import pack
from interlock.stores.redis.replies import meaning
from interlock.testing.conformance.place import txn, write
from interlock.testing.servers import RedisServer


def refused(url: str, error: type[StoreTrouble], *words: str) -> str:
    """Opening it fails the same way on both sides, in one line without the password."""

    async def opens() -> None:
        await open_store_async(url)

    with pytest.raises(error) as blocking:
        open_store(url)
    with pytest.raises(error) as in_loop:
        asyncio.run(opens())
    line = str(blocking.value)
    assert str(in_loop.value) == line
    assert type(blocking.value) is error
    assert "\n" not in line
    assert "geheim" not in line
    for word in words:
        assert word in line
    return line


def test_a_server_that_evicts_is_refused(tmp_path: Path) -> None:
    extra = ("--maxmemory-policy", "allkeys-lru")
    with RedisServer(tmp_path, extra=extra) as server:
        refused(server.url(), StoreUnsuitable, "allkeys-lru", "set: maxmemory-policy noeviction")


def test_a_replica_is_refused_and_its_master_named(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    with RedisServer(tmp_path, replicaof=redis_server) as replica:
        refused(replica.url(), StoreReadOnly, f"127.0.0.1:{redis_server.port}")


def test_a_master_that_becomes_a_replica_is_refused_at_the_next_commit(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    with RedisServer(tmp_path) as server:
        store = open_store(server.url())
        write(store, Put("a", b""))
        server.command("REPLICAOF", "127.0.0.1", redis_server.port)
        with pytest.raises(StoreReadOnly):
            write(store, Put("a", b""))
        store.close()


def test_passwords(tmp_path: Path, redis_server: RedisServer) -> None:
    with RedisServer(tmp_path, password="geheim") as server:
        place = server.place
        open_store(server.url()).close()
        refused(f"redis://{place}", StoreRefused, "wants a password")
        refused(f"redis://:geheim2@{place}", StoreRefused, "correct the URL")
        refused(f"redis://geheim:geheim@{place}", StoreRefused, "correct the URL")
        server.command("ACL", "SETUSER", "geheim", "on", ">geheim", "~*", "+ping", "+info", "+time")
        refused(f"redis://geheim:geheim@{place}", StoreRefused, "forbids")
    refused(f"redis://:geheim@{redis_server.place}", StoreRefused, "has no password")


def test_a_user_with_the_rights_that_are_needed_is_let_in(tmp_path: Path) -> None:
    """What the decision says that a user needs; CONFIG is not among it."""
    with RedisServer(tmp_path, password="geheim") as server:
        rights = (
            "~{interlock}:*",
            "&{interlock}:*",
            *("+client|setname", "+info", "+time", "+ping", "+select"),
            *("+hget", "+hmget", "+hset", "+hdel", "+hexists", "+hlen"),
            *("+zadd", "+zrem", "+zrangebylex", "+zrangebyscore"),
            *("+xadd", "+xrange", "+xrevrange", "+xlen", "+xtrim"),
            *("+eval", "+evalsha", "+publish", "+subscribe", "+unsubscribe"),
        )
        server.command("ACL", "SETUSER", "ada", "on", ">pw", *rights)
        store = open_store(f"redis://ada:pw@{server.place}")
        assert store.capabilities.durability == "none", "the usual setting is assumed"
        write(store, Put("a/b", b""), Put("live/a", b"", ttl=60), deletes=("b",))
        watch = store.watch("a/", 0)
        assert len(watch.take(30)) == 1
        watch.close()
        assert store.examine()
        assert store.sweep() == 0
        store.close()


def test_tls(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "server", tls=certify(tmp_path / "one")) as server:
        store = open_store(server.url())
        write(store, Put("a", bytes(1 << 20)))
        watch = store.watch("a", 0)
        assert len(watch.take(30)) == 1
        watch.close()

        async def main() -> None:
            store = await open_store_async(server.url())
            items = (await store.read_async("a")).items
            assert items["a"] is not None
            assert len(items["a"].value) == 1 << 20
            many = await asyncio.gather(*(store.read_async("a") for _ in range(8)))
            assert {snapshot.revision for snapshot in many} == {many[0].revision}
            watch = store.watch("a", 0)
            assert len(await watch.take_async(5)) == 1
            watch.close()
            await store.close_async()

        asyncio.run(main())
        store.close()
        other = certify(tmp_path / "two").ca
        place = server.place
        refused(f"rediss://{place}", StoreRefused, "not trusted", "?ca=")
        refused(f"rediss://{place}?ca={other}", StoreRefused, "not trusted")
        refused(f"rediss://{place}?ca=/nowhere", StoreRefused, "ca=")


def test_a_server_that_does_not_speak_tls_is_recognised(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.stores.redis.connection.CONNECT", 0.2)
    refused(f"rediss://{redis_server.place}", StoreRefused, "does not speak TLS", "redis://")


def test_a_server_that_speaks_tls_is_recognised(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "server", tls=certify(tmp_path / "one")) as server:
        refused(f"redis://{server.place}", StoreRefused, "speaks TLS", "rediss://")


def test_a_server_that_wants_a_certificate_gets_one(tmp_path: Path) -> None:
    tls = certify(tmp_path / "one", clients=True)
    with RedisServer(tmp_path / "server", tls=tls) as server:
        open_store(server.url()).close()
        refused(f"rediss://{server.place}?ca={tls.ca}", StoreRefused, "?cert=FILE&key=FILE")


def test_a_full_server_takes_no_commit_but_lets_go(tmp_path: Path) -> None:
    with RedisServer(tmp_path, appendonly=False) as server:
        store = open_store(server.url())
        last = write(store, Put("a", bytes(100_000)), Put("live/a", b"", ttl=60))
        watch = store.watch("", last)
        assert watch.take(0.01) == []
        server.command("CONFIG", "SET", "maxmemory", "1mb")
        for change in (
            txn(Put("b", b"")),
            txn(),
            txn(signals=("a",)),
            txn(Put("a", b""), quiet=True),
        ):
            with pytest.raises(StoreFull, match="raise maxmemory"):
                store.commit(change)
        assert store.read("a").revision == last
        assert watch.take(0.05) == [], "what was refused is told to nobody"
        write(store, deletes=("a",))
        assert store.read("a")["a"] is None
        assert len(watch.take(30)) == 2
        watch.close()
        assert "memory" in {each.name for each in store.examine() if each.verdict == "warn"}
        store.close()
        open_store(server.url()).close()


def test_a_later_format_is_refused_also_by_who_is_connected(store: RedisStore) -> None:
    write(store, Put("a", b""))
    store.wire.call(pack(("HSET", store.keys["meta"], "format", "2")))
    with pytest.raises(StoreNewer, match="upgrade"):
        write(store, Put("a", b""))
    refused(store.where, StoreNewer, "format 2", "upgrade")


def test_something_else_under_our_keys_is_refused(store: RedisStore) -> None:
    store.wire.call(pack(("SET", store.keys["items"], "x")))
    with pytest.raises(StoreDamaged, match="ns="):
        store.read("a")
    store.wire.call(pack(("DEL", store.keys["items"])))


def test_a_database_that_is_not_there(redis_server: RedisServer) -> None:
    refused(f"redis://{redis_server.place}/99", StoreUnsuitable, "no database")


def test_nobody_there() -> None:
    with socket.socket() as deaf:  # ours, so that nobody else listens there
        deaf.bind(("127.0.0.1", 0))
        port = deaf.getsockname()[1]
        store = RedisStore(parse(f"redis://:geheim@127.0.0.1:{port}"), patience=0.1)
        with pytest.raises(StoreAway, match="connection refused") as error:
            store.open()
    assert "geheim" not in str(error.value)
    store.close()


def test_a_bound_that_is_no_number() -> None:
    with pytest.raises(BadInput, match="log="):
        open_store("redis://localhost?log=many")


@contextmanager
def speaker(answer: bytes) -> Iterator[str]:
    """Something that says the same to everybody; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def speak() -> None:
            with suppress(OSError):
                while True:
                    connected, _ = listening.accept()
                    with connected:
                        connected.recv(4096)
                        connected.sendall(answer)
                        connected.recv(4096)

        thread = threading.Thread(target=speak, daemon=True)
        thread.start()
        yield f"redis://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def greeting(info: str) -> bytes:
    text = f"${len(info)}\r\n{info}\r\n"
    return f"+OK\r\n*2\r\n$1\r\n1\r\n$1\r\n0\r\n*0\r\n{text}$-1\r\n".encode()


def test_something_that_is_no_redis_is_refused() -> None:
    with speaker(b"HTTP/1.1 400 Bad Request\r\n\r\n") as url:
        refused(url, StoreUnsuitable, "is not a Redis server")
    with speaker(greeting("other:1")) as url:
        refused(url, StoreUnsuitable, "is not a Redis server")


def test_an_old_redis_is_refused() -> None:
    with speaker(greeting("redis_version:6.0.16\r\nrole:master")) as url:
        refused(url, StoreUnsuitable, "Redis 6.0.16", "6.2")


def test_a_sentinel_is_refused() -> None:
    with speaker(greeting("redis_version:7.0.1\r\nredis_mode:sentinel")) as url:
        refused(url, StoreUnsuitable, "sentinel")


@pytest.mark.parametrize(
    ("text", "error", "word"),
    [
        ("LOADING Redis is loading the dataset in memory", Unsent, "loading"),
        ("BUSY Redis is busy running a script.", Unsent, "busy"),
        ("CLUSTERDOWN The cluster is down", Unsent, "cluster"),
        ("MISCONF Redis is configured to save RDB snapshots", StoreFull, "disk"),
        ("NOREPLICAS Not enough good replicas to write.", StoreTrouble, "replicas"),
        ("OOM command not allowed when used memory > 'maxmemory'.", StoreFull, "memory"),
        (
            "ERR Error running script (call to f_0): @user_script:9: -OOM command not allowed",
            StoreFull,
            "memory",
        ),
        ("READONLY You can't write against a read only replica.", StoreReadOnly, "master"),
        ("ERR something new", StoreTrouble, "something new"),
    ],
)
def test_each_error_has_its_meaning(text: str, error: type[Exception], word: str) -> None:
    found = meaning(text, "redis://host")
    assert type(found) is error
    assert word in str(found)
