from __future__ import annotations

import asyncio
import http.server
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import certify
from tests.stores.etcd.etcds import opened

from interlock.errors import (
    InterlockError,
    StoreAway,
    StoreNewer,
    StoreRefused,
    StoreUnsuitable,
    TooLarge,
)
from interlock.steps import drive
from interlock.store import Change, Check, Put
from interlock.stores.address import parse
from interlock.stores.etcd import EtcdStore
from interlock.stores.etcd import rpc_pb2 as rpc
from interlock.stores.etcd import server as etcd_server
from interlock.stores.etcd.encoding import wrapped
from interlock.stores.etcd.server import _compaction
from interlock.stores.network import PATIENCE
from interlock.testing.conformance.place import gather, txn, write
from interlock.testing.servers import EtcdServer, RedisServer
from interlock.testing.servers.etcd import coded

SECRET = "s3cret/word"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("guarded"), auth=("ada", SECRET)) as server:
        yield server


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    folder = tmp_path_factory.mktemp("secure")
    with EtcdServer(folder, tls=certify(folder / "tls", clients=True)) as server:
        yield server


def test_a_user_with_a_password_is_let_in_and_stays_in(guarded: EtcdServer) -> None:
    store = opened(guarded.url("auth"))
    revision = write(store, Put("p/1", b""))
    watch = store.watch("p/", revision - 1)
    assert gather(watch, bool) == [Change(revision, "p/1")]

    def lose_the_token() -> None:
        store.transport._metadata = (*store.transport._metadata[:1], ("token", "no longer valid"))

    lose_the_token()
    revision = write(store, Put("p/2", b""))
    lose_the_token()
    assert asyncio.run(_revision(store)) == revision
    lose_the_token()
    later = store.watch("p/", revision - 1)
    store.feed._cut()
    assert gather(later, bool) == [Change(revision, "p/2")]
    assert gather(watch, bool) == [Change(revision, "p/2")]
    store.close()


def test_who_is_not_let_in_is_refused_in_one_line_without_the_password(
    guarded: EtcdServer, server: EtcdServer
) -> None:
    place = guarded.endpoint
    assert "USER:PASSWORD" in _refused(f"etcd://{place}/auth", StoreRefused)
    wrong = _refused(f"etcd://ada:{SECRET.replace('/', '-')}@{place}/auth", StoreRefused)
    assert "refuses this user and password" in wrong
    assert SECRET.replace("/", "-") not in wrong
    guarded.call("/v3/auth/user/add", {"name": "eve", "password": SECRET})
    denied = _refused(f"etcd://eve:{SECRET.replace('/', '%2F')}@{place}/auth", StoreRefused)
    assert "grant read and write" in denied
    assert SECRET not in denied
    opened(server.url("x").replace("://", f"://ada:{SECRET.replace('/', '%2F')}@")).close()


def test_tls_with_certificates_on_both_sides(secure: EtcdServer) -> None:
    store = opened(secure.url())
    revision = write(store, Put("p/1", b""))
    assert gather(store.watch("p/", revision - 1), bool) == [Change(revision, "p/1")]
    assert asyncio.run(_revision(store)) == revision
    assert store.info()["quota_bytes"] == 2 << 30
    store.close()


def test_what_is_wrong_with_tls_is_told(
    secure: EtcdServer, server: EtcdServer, tmp_path: Path
) -> None:
    tls = secure.tls
    assert tls is not None
    other = certify(tmp_path / "other")
    bare = f"etcds://{secure.endpoint}/x"
    files = f"cert={tls.cert}&key={tls.key}"
    assert "not trusted" in _refused(f"{bare}?ca={other.ca}&{files}", StoreRefused)
    assert "client certificate" in _refused(f"{bare}?ca={tls.ca}", StoreRefused)
    assert "etcds://" in _refused(f"etcd://{secure.endpoint}/x", StoreRefused)
    plain = _refused(f"etcds://{server.endpoint}/x?ca={tls.ca}", StoreRefused)
    assert "does not speak TLS" in plain
    assert "cannot be read" in _refused(f"{bare}?ca=/no/such/file", StoreRefused)


@pytest.mark.parametrize("end", [ConnectionResetError, BrokenPipeError])
def test_a_server_that_hangs_up_on_a_handshake_is_asked_without_tls(
    server: EtcdServer, monkeypatch: pytest.MonkeyPatch, end: type[OSError]
) -> None:
    """Whether it hangs up or complains depends on who is quicker."""

    def hangs_up(*_: object, **__: object) -> None:
        raise end

    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", hangs_up)
    with pytest.raises(StoreRefused, match="does not speak TLS"):
        etcd_server.probe(parse(f"etcds://{server.endpoint}/x"), 0)


def test_what_is_no_etcd_is_told(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as redis:
        assert "not an etcd" in _refused(f"etcd://{redis.endpoint}/x", StoreUnsuitable)
    web = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=web.serve_forever)
    thread.start()
    try:
        _refused(f"etcd://127.0.0.1:{web.server_port}/x", StoreUnsuitable)
    finally:
        web.shutdown()
        thread.join()
        web.server_close()


def test_nobody_there_is_told() -> None:
    message = _refused("etcd://127.0.0.1:9/x", StoreAway)
    assert "refused" in message
    _refused("etcd://no-such-host.invalid/x", StoreAway)


@pytest.mark.parametrize(
    ("version", "fits"), [("3.3.27", False), ("2.3.8", False), ("3.4.0", True)]
)
def test_an_etcd_that_is_too_old_is_unsuitable(version: str, fits: bool) -> None:
    store = EtcdStore(parse("etcd://localhost/x"))

    class Old:
        def call(self, request: Any, _within: float) -> Any:
            if isinstance(request, tuple) and "Status" in request[0]:
                return rpc.StatusResponse(version=version)
            if isinstance(request, tuple) and "MemberList" in request[0]:
                return rpc.MemberListResponse()
            format_ = rpc.KeyValue(value=wrapped(b"1", "", "", quiet=True))
            found = rpc.ResponseOp(range=rpc.RangeResponse(kvs=[format_]))
            nothing = rpc.ResponseOp(range=rpc.RangeResponse())
            return rpc.TxnResponse(responses=[found, nothing, nothing, found])

    if fits:
        drive(store._open(), Old())
    else:
        with pytest.raises(StoreUnsuitable, match=version):
            drive(store._open(), Old())
    store.close()


def test_a_namespace_of_a_later_version_is_left_alone(server: EtcdServer) -> None:
    value = coded(wrapped(b"4", "", "", quiet=True))
    server.call("/v3/kv/put", {"key": coded("later/meta/format"), "value": value})
    assert "update Interlock" in _refused(server.url("later"), StoreNewer)


def test_what_etcd_does_not_take_at_once_is_too_large(url: str) -> None:
    store = opened(url)
    for change in (
        txn(Put("a", bytes(2 << 20))),
        txn(*(Put(f"a/{number}", b"") for number in range(200))),
        txn(checks=tuple(Check(f"a/{number}", "absent") for number in range(200))),
    ):
        with pytest.raises(TooLarge) as caught:
            store.commit(change)
        assert "\n" not in str(caught.value)
    assert store.read("a")["a"] is None
    store.close()


def test_many_keys_are_read_at_one_revision(url: str) -> None:
    store = opened(url)
    keys = [f"a/{number}" for number in range(300)]
    write(store, *(Put(key, b"") for key in keys[:100]))
    snapshot = store.read(*keys)
    assert list(snapshot.items) == keys
    assert [key for key, item in snapshot.items.items() if item] == keys[:100]
    store.close()


def test_info_and_doctor_tell_what_there_is(server: EtcdServer, url: str) -> None:
    store = opened(url)
    write(store, Put("a", b""))
    info = store.info()
    assert info["engine"] == "etcd"
    assert info["version"] == server.version
    assert info["leader"] == "alone"
    assert info["quota_bytes"] == 2 << 30
    assert info["items"] == 3
    assert info["revision"] == store.read().revision
    found = {finding.name: finding.verdict for finding in store.examine()}
    assert found == dict.fromkeys(
        ("etcd", "endpoint", "leader", "alarms", "room", "compaction"), "ok"
    )
    assert store.sweep() == 0
    store.close()


def _refused(url: str, kind: type[InterlockError]) -> str:
    with pytest.raises(kind) as caught:
        opened(url, patience=0.2 if kind is StoreAway else PATIENCE)
    message = str(caught.value)
    assert "\n" not in message
    assert ";" in message
    return message


async def _revision(store: EtcdStore) -> int:
    return (await store.read_async()).revision


def test_doctor_tells_a_history_that_nobody_compacts(server: EtcdServer, url: str) -> None:
    store = opened(url)
    for _ in range(3):
        write(store, Put("a", b""))
    (before,) = (each for each in store.examine() if each.name == "compaction")
    assert before.verdict == "ok"
    assert int(before.fact.split()[0]) >= 3
    warned = _compaction(2_000_000, 500_000)
    assert (warned.verdict, warned.fact) == ("warn", "1500000 revisions kept")
    assert "--auto-compaction-retention" in warned.remedy
    store.close()
