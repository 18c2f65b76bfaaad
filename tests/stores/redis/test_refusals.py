"""Servers that will not do, and what is said about them: one line, what is wrong, what to do."""

from __future__ import annotations

import asyncio
import shlex
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
from interlock.store import Put, Store, Txn
from interlock.stores import open_store, open_store_async
from interlock.stores.address import parse
from interlock.stores.network import Unsent
from interlock.stores.redis import RedisStore
from interlock.stores.redis.errors import CHANNELS, COMMANDS, KEYS, meaning
from interlock.stores.redis.scripts import RIGHTS, pack
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
        place = server.endpoint
        open_store(server.url()).close()
        refused(f"redis://{place}", StoreRefused, "wants a password")
        refused(f"redis://:geheim2@{place}", StoreRefused, "correct the URL")
        refused(f"redis://geheim:geheim@{place}", StoreRefused, "correct the URL")
        server.command("ACL", "SETUSER", "ada", "on", ">geheim", "~*", "+ping", "+info", "+time")
        refused(f"redis://ada:geheim@{place}", StoreRefused, "forbids", "ACL SETUSER ada")
    refused(f"redis://:geheim@{redis_server.endpoint}", StoreRefused, "has no password")


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[RedisServer]:
    """A server with a user, ada, who has every right that is needed, and no other."""
    with RedisServer(tmp_path, password="geheim", appendonly=False) as server:
        _allow(server)
        yield server


def _allow(server: RedisServer) -> None:
    rights = ("~{interlock}:*", "&{interlock}:bell:*", *(f"+{each}" for each in COMMANDS))
    server.command("ACL", "SETUSER", "ada", "reset", "on", ">pw", *rights)


def _forbid(server: RedisServer, right: str) -> str:
    """Take one right away; how messages name it."""
    if right == KEYS:
        server.command("ACL", "SETUSER", "ada", "resetkeys", "~{others}:*")
        return "its keys"
    if right == CHANNELS:
        server.command("ACL", "SETUSER", "ada", "resetchannels", "&{others}:*")
        return "its channels"
    command = right.partition("|")[0]
    server.command("ACL", "SETUSER", "ada", f"-{command}")
    return right


def _dump(server: RedisServer) -> list[object]:
    """Everything that is stored, but the last revision, which may skip numbers."""
    server.command("HDEL", "{interlock}:meta", "rev")
    found: list[object] = []
    for name in ("items", "ids", "meta"):
        words = server.command("HGETALL", f"{{interlock}}:{name}")
        assert isinstance(words, list)
        found.append(dict(zip(words[::2], words[1::2], strict=True)))
    lists = [("ZRANGE", name, "0", "-1", "WITHSCORES") for name in ("index", "live")]
    for command, name, *rest in (*lists, ("XRANGE", "log", "-", "+")):
        found.append(server.command(command, f"{{interlock}}:{name}", *rest))
    return found


def _refusal(store: Store, change: Txn) -> str:
    try:
        store.commit(change)
    except StoreRefused as error:
        return str(error)
    return ""


def test_a_user_with_the_rights_that_are_needed_is_let_in(guarded: RedisServer) -> None:
    """What the decision says that a user needs; CONFIG is not among it."""
    store = open_store(f"redis://ada:pw@{guarded.endpoint}")
    assert store.capabilities.durability == "none", "the usual setting is assumed"
    write(store, Put("a/b", b""), Put("live/a", b"", ttl=60), deletes=("b",))
    watch = store.watch("a/", 0)
    assert len(watch.take(30)) == 1
    watch.close()
    assert store.examine()
    assert store.sweep() == 0
    store.trim(store.read("a/b").revision)
    store.close()


def test_each_right_that_is_missing_is_named_at_opening_with_the_line_that_gives_it(
    guarded: RedisServer,
) -> None:
    url = f"redis://ada:pw@{guarded.endpoint}"
    for right in (KEYS, CHANNELS, *COMMANDS):
        if right == "select":  # nobody needs it without a number in the URL
            continue
        named = _forbid(guarded, right)
        with pytest.raises(StoreRefused) as caught:
            open_store(url)
        message = str(caught.value)
        assert f"forbids this user {named};" in message
        assert "\n" not in message
        line = shlex.split(message.partition("; run: redis-cli ")[2])
        assert guarded.command(*line) == "OK"
        open_store(url).close()
        _allow(guarded)


def test_a_right_that_is_taken_away_later_is_named_and_nothing_is_changed(
    guarded: RedisServer,
) -> None:
    store = open_store(f"redis://ada:pw@{guarded.endpoint}?log=1")
    write(store, Put("a/b", b"1"), Put("b", b""), Put("live/a", b"", ttl=60))
    denied = set()
    for number, right in enumerate((KEYS, CHANNELS, *COMMANDS)):
        named, new = _forbid(guarded, right), Put(f"c/{number}", b"")
        deletes = txn(Put("a/b", b"2"), new, deletes=("b", "live/a"), signals=("wake/a",))
        stays = txn(Put("a/b", b"3"), Put("live/b", b""))
        for each in (deletes, stays, txn(new), txn(Put("live/a", b"", ttl=60), quiet=True)):
            before = _dump(guarded)
            message = _refusal(store, each)
            if message:
                denied.add(right)
                assert f"forbids this user {named};" in message
                assert _dump(guarded) == before, right
        _allow(guarded)
    writes = {"hset", "hdel", "zadd", "zrem", "xadd", "publish", CHANNELS, KEYS}
    assert denied >= writes
    store.close()


def test_a_server_that_cannot_be_asked_for_rights_is_tried_without_effect(
    guarded: RedisServer,
) -> None:
    store = open_store(f"redis://ada:pw@{guarded.endpoint}")
    assert isinstance(store, RedisStore)
    write(store, Put("a/b", b"1"), Put("live/a", b"", ttl=60))
    names = [store.keys[name] for name in ("items", "index", "live", "log", "ids", "meta")]
    # As before 7.0: without this function.
    old = b"local redis = {call = redis.call, pcall = redis.pcall}\n" + RIGHTS.body

    def lacking() -> list[str]:
        found = store.transport.call(pack(("EVAL", old, "6", *names, store.channel_prefix)))
        return [each.decode() for each in found]

    before = _dump(guarded)
    assert lacking() == []
    assert _dump(guarded) == before
    for right in (CHANNELS, *COMMANDS):
        _forbid(guarded, right)
        if right not in _OUTSIDE:
            assert lacking() == [right]
        _allow(guarded)
    assert _dump(guarded) == before
    store.close()


_OUTSIDE = ("client|setname", "eval", "evalsha", "info", "select", "subscribe", "unsubscribe")
"""What no script calls."""


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
        place = server.endpoint
        refused(f"rediss://{place}", StoreRefused, "not trusted", "?ca=")
        refused(f"rediss://{place}?ca={other}", StoreRefused, "not trusted")
        refused(f"rediss://{place}?ca=/nowhere", StoreRefused, "ca=")


def test_a_server_that_does_not_speak_tls_is_recognised(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.stores.redis.transport.CONNECT", 0.2)
    refused(f"rediss://{redis_server.endpoint}", StoreRefused, "does not speak TLS", "redis://")


def test_a_server_that_speaks_tls_is_recognised(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "server", tls=certify(tmp_path / "one")) as server:
        refused(f"redis://{server.endpoint}", StoreRefused, "speaks TLS", "rediss://")


def test_a_server_that_wants_a_certificate_gets_one(tmp_path: Path) -> None:
    tls = certify(tmp_path / "one", clients=True)
    with RedisServer(tmp_path / "server", tls=tls) as server:
        open_store(server.url()).close()
        refused(f"rediss://{server.endpoint}?ca={tls.ca}", StoreRefused, "?cert=FILE&key=FILE")


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
    store.transport.call(pack(("HSET", store.keys["meta"], "format", "3")))
    with pytest.raises(StoreNewer, match="upgrade"):
        write(store, Put("a", b""))
    refused(store.where, StoreNewer, "format 3", "upgrade")


def test_something_else_under_our_keys_is_refused(store: RedisStore) -> None:
    store.transport.call(pack(("SET", store.keys["items"], "x")))
    with pytest.raises(StoreDamaged, match="ns="):
        store.read("a")
    store.transport.call(pack(("DEL", store.keys["items"])))


def test_a_database_that_is_not_there(redis_server: RedisServer) -> None:
    refused(f"redis://{redis_server.endpoint}/99", StoreUnsuitable, "no database")


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
    found = meaning(text, parse("redis://host"))
    assert type(found) is error
    assert word in str(found)
