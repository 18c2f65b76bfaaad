from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.certificates import certify

from interlock.testing.servers import (
    EtcdCluster,
    EtcdServer,
    RedisError,
    RedisServer,
    Server,
    ServerTrouble,
    until,
)
from interlock.testing.servers.etcd import coded
from interlock.testing.servers.process import HOST, Port


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(params=["redis", "etcd"])
def server(request: pytest.FixtureRequest) -> Server:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Server)
    return found


def put(server: Server, key: str, value: str) -> None:
    if isinstance(server, RedisServer):
        assert server.command("SET", key, value) == "OK"
    elif isinstance(server, EtcdServer):
        server.call("/v3/kv/put", {"key": coded(key), "value": coded(value)})


def get(server: Server, key: str) -> str | None:
    if isinstance(server, RedisServer):
        found = server.command("GET", key)
        return None if found is None else str(found)
    assert isinstance(server, EtcdServer)
    kvs = server.call("/v3/kv/range", {"key": coded(key)}).get("kvs", [])
    return {coded(text): text for text in ("1", "2")}[kvs[0]["value"]] if kvs else None


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_port_is_nobody_elses_while_its_server_is_down() -> None:
    ports = [Port() for _ in range(200)]
    numbers = {port.number for port in ports}
    for port in ports:
        port.close()
    assert len(numbers) == 200


def test_a_killed_server_comes_back_with_its_port_and_its_data(server: Server) -> None:
    put(server, "kept", "1")
    port, pid = server.port, server.pid
    server.kill()
    assert not server.running
    assert not exists(pid)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, port), 1)
    server.restart()
    assert (server.port, get(server, "kept")) == (port, "1")
    assert server.pid != pid


def test_a_stopped_server_comes_back_too(server: Server) -> None:
    put(server, "stopped", "2")
    server.stop()
    assert not server.running
    server.start()
    assert get(server, "stopped") == "2"


def test_a_running_server_is_not_started_twice(server: Server) -> None:
    pid = server.pid
    for start in (server.start, server.launch):
        with pytest.raises(ServerTrouble, match="already"):
            start()
    assert (server.running, server.pid) == (True, pid)


def test_a_frozen_server_takes_connections_and_says_nothing(server: Server) -> None:
    put(server, "warm", "1")
    server.freeze()
    try:
        assert server.frozen
        assert server.running
        with socket.create_connection((HOST, server.port), 0.2) as client:
            client.sendall(b"PING\r\n")
            with pytest.raises(TimeoutError):
                client.recv(1)
    finally:
        server.thaw()
    assert get(server, "warm") == "1"


def test_a_frozen_server_can_be_killed(server: Server) -> None:
    server.freeze()
    server.restart()
    assert not server.frozen
    put(server, "again", "1")


def test_a_server_says_where_and_what_it_is(redis: RedisServer, etcd: EtcdServer) -> None:
    assert redis.url("a") == f"redis://127.0.0.1:{redis.port}/0?ns=a"
    assert etcd.url("a") == f"etcd://127.0.0.1:{etcd.port}/a"
    assert int(redis.version.split(".")[0]) >= 7
    assert etcd.version.startswith("3.")


def test_redis_speaks_in_every_kind_of_reply(redis: RedisServer) -> None:
    redis.command("DEL", "list", "number")
    assert redis.command("RPUSH", "list", "a", b"\xff", 3) == 3
    assert redis.command("LRANGE", "list", 0, -1) == ["a", "\udcff", "3"]
    assert redis.command("GET", "nothing") is None
    with pytest.raises(RedisError, match="WRONGTYPE"):
        redis.command("INCR", "list")


def test_etcd_measures_itself(etcd: EtcdServer) -> None:
    before = etcd.metrics()
    put(etcd, "measured", "1")
    counted = "etcd_mvcc_put_total"
    if counted not in before:  # As older versions name it.
        counted = "etcd_debugging_mvcc_put_total"
    assert etcd.metrics()[counted] == before[counted] + 1


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(ServerTrouble, match="no-such-option"):
        RedisServer(tmp_path / "redis", extra=["--no-such-option", "1"]).start()
    with pytest.raises(ServerTrouble, match="no-such-option"):
        EtcdServer(tmp_path / "etcd", extra=["--no-such-option"]).start()


@pytest.mark.parametrize("kind", [RedisServer, EtcdServer])
def test_a_taken_port_makes_it_pick_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[RedisServer | EtcdServer]
) -> None:
    with socket.create_server((HOST, 0)) as stranger:
        taken: int = stranger.getsockname()[1]
        offered: list[int] = []

        def take(self: Port) -> None:
            Port_init(self)
            offered.append(self.number)
            if len(offered) == 1:
                self.number = taken

        Port_init = Port.__init__  # noqa: N806 - what it was
        monkeypatch.setattr(Port, "__init__", take)
        with kind(tmp_path) as server:
            assert server.port != taken
            assert len(offered) > 1
        monkeypatch.undo()


def test_a_missing_binary_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ServerTrouble, match=r"no etcd on PATH.*apt install etcd-server"):
        EtcdServer(tmp_path / "etcd").start()


def test_an_unpacked_binary_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked = tmp_path / "interlock" / "servers" / "bin"
    unpacked.mkdir(parents=True)
    (unpacked / "redis-server").write_text("#!/bin/sh\necho unpacked, but broken\n")
    (unpacked / "redis-server").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ServerTrouble, match="unpacked, but broken"):
        RedisServer(tmp_path / "redis").start()


def test_redis_asks_for_a_password(tmp_path: Path) -> None:
    with RedisServer(tmp_path, password="se/cret") as redis:
        assert redis.url("a") == f"redis://:se%2Fcret@127.0.0.1:{redis.port}/0?ns=a"
        assert redis.command("PING") == "PONG"
        with socket.create_connection((HOST, redis.port), 5) as client:
            client.sendall(b"PING\r\n")
            assert client.recv(100).startswith(b"-NOAUTH")


def test_redis_listens_on_a_socket_too(tmp_path: Path) -> None:
    path = os.path.relpath(tmp_path / "s")  # The name of a socket must be short.
    with RedisServer(tmp_path, socket=str(tmp_path / "s")), socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        client.sendall(b"PING\r\n")
        assert client.recv(100) == b"+PONG\r\n"


def test_redis_forgets_without_its_file(tmp_path: Path) -> None:
    with RedisServer(tmp_path, appendonly=False) as redis:
        put(redis, "a", "1")
        redis.restart()
        assert get(redis, "a") is None


def test_redis_follows_another(tmp_path: Path, redis: RedisServer) -> None:
    put(redis, "followed", "1")
    with RedisServer(tmp_path, replicaof=redis) as replica:
        until(lambda: get(replica, "followed") == "1", "the replica has it")
        assert replica.info("replication")["role"] == "slave"
        with pytest.raises(RedisError, match="READONLY"):
            replica.command("SET", "a", "1")


def test_redis_is_a_cluster_of_one(tmp_path: Path) -> None:
    with RedisServer(tmp_path, cluster=True) as redis:
        put(redis, "a", "1")
        with pytest.raises(RedisError, match="CROSSSLOT"):
            redis.command("MGET", "a", "b")


@pytest.mark.parametrize("clients", [False, True])
@pytest.mark.parametrize("kind", [RedisServer, EtcdServer])
def test_a_server_speaks_tls(
    tmp_path: Path, kind: type[RedisServer | EtcdServer], clients: bool
) -> None:
    tls = certify(tmp_path, clients=clients)
    with kind(tmp_path / "server", tls=tls) as server:
        put(server, "a", "1")
        assert get(server, "a") == "1"
        assert server.url().startswith(("rediss://", "etcds://"))
        assert f"ca={tls.ca}" in server.url()
        assert (f"key={tls.key}" in server.url()) is clients


def test_etcd_asks_who_is_there(tmp_path: Path) -> None:
    with EtcdServer(tmp_path, auth=("ada", "secret")) as etcd:
        assert etcd.url("a") == f"etcd://ada:secret@127.0.0.1:{etcd.port}/a"
        put(etcd, "a", "1")
        etcd.restart()
        assert get(etcd, "a") == "1"
        etcd.auth = None
        with pytest.raises(ServerTrouble, match="user name is empty"):
            put(etcd, "a", "2")


def test_a_cluster_elects_another_leader(tmp_path: Path) -> None:
    def holds(member: EtcdServer, value: str) -> bool:
        try:
            return get(member, "a") == value
        except ServerTrouble:  # An election is under way, says etcd.
            return False

    def takes(member: EtcdServer, value: str) -> bool:
        try:
            put(member, "a", value)
        except ServerTrouble:
            return False
        return True

    with EtcdCluster(tmp_path) as cluster:
        assert cluster.url("a").count(HOST) == 3
        first = cluster.leader()
        until(lambda: takes(first, "1"), "the first leader writes")
        first.kill()
        second = cluster.leader()
        assert second is not first
        until(lambda: holds(second, "1"), "nothing is lost")
        first.restart()
        until(lambda: holds(first, "1"), "it is back")
        second = cluster.leader()
        second.freeze()
        third = cluster.leader()
        assert third is not second
        until(lambda: takes(third, "2"), "the others go on without it")
        second.thaw()
        until(lambda: holds(second, "2"), "it catches up")


LIVES = """
import os, sys, threading, time
from interlock.testing.servers import RedisServer

server = RedisServer(sys.argv[1])
starter = threading.Thread(target=server.start)  # A guard that heeds threads would end it here.
starter.start()
starter.join()
if not os.fork():
    time.sleep(600)  # A child that outlives us does not keep it either.
assert server.command("PING") == "PONG"
print(server.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["exit", "SIGKILL", "SIGTERM"])
def test_no_server_outlives_its_test(tmp_path: Path, end: str) -> None:
    script = LIVES.replace("if not os.fork():\n", "if False:\n") if end == "exit" else LIVES
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as test:
        assert test.stdin is not None
        assert test.stdout is not None
        pid = int(test.stdout.readline())
        assert exists(pid)
        if end == "exit":
            test.stdin.close()
        elif end == "SIGKILL":
            test.kill()
        else:
            test.terminate()
        test.wait(60)
        until(lambda: not exists(pid), "the end of the server")
        if end != "exit":
            os.killpg(test.pid, 9)
