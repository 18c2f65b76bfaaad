"""Two homes and a bus on every engine, and on two at once: the whole way of requests."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.faces.shell import until

import interlock
from interlock import aio
from interlock.core import keys
from interlock.nouns.requests import service
from interlock.nouns.requests.serving import ServedRequest
from interlock.nouns.swarms import bus, key_files
from interlock.nouns.swarms.results import SwarmAllowed, SwarmRegistered
from interlock.store import Put, Range, Txn
from interlock.stores import open_store
from interlock.testing.audit import audit
from interlock.testing.servers import EtcdServer, RedisServer
from interlock.testing.servers.proxy import Proxy

ENGINES = [("etcd", "etcd"), ("sqlite", "redis"), ("etcd", "sqlite"), ("redis", "etcd")]


class Two:
    """Shop and bank, which trust each other, and their bus."""

    def __init__(self, shop: str, bank: str, bus: str, cut: Callable[[], None]) -> None:
        self.shop, self.bank, self.bus = shop, bank, bus
        self.cut = cut
        self.heal: Callable[[], None] = lambda: None
        prints = {}
        for name, url in (("shop", shop), ("bank", bank)):
            key_files.create(name)
            with interlock.connect(url, agent="ops") as fleet:
                done = fleet.swarms.register(name, bus=bus, key=name)
                assert isinstance(done, SwarmRegistered), done
                prints[name] = done.fingerprint
        for url, other in ((shop, "bank"), (bank, "shop")):
            with interlock.connect(url, agent="ops") as fleet:
                allowed = fleet.swarms.allow(other, key=prints[other])
                assert isinstance(allowed, SwarmAllowed), allowed


@pytest.fixture
def at(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, str], Two]]:
    """Homes on one engine, the bus on another one behind a line that can be cut."""
    monkeypatch.setenv(key_files.FOLDER, f"{tmp_path}/keys")
    for module in (bus, service):
        monkeypatch.setattr(module, "RECONNECT", 0.1)
    numbers, name = itertools.count(), uuid.uuid4().hex
    made: list[Two] = []
    with ExitStack() as open_:

        def place(engine: str) -> str:
            if engine == "sqlite":
                return f"{tmp_path}/{next(numbers)}.db"
            server: RedisServer | EtcdServer = request.getfixturevalue(f"{engine}_server")
            return str(server.url(f"{name}-{next(numbers)}"))

        def make(home: str, between: str) -> Two:
            url = place(between)
            if between == "sqlite":
                two = Two(place(home), place(home), url, lambda: _moved(url, f"{url}.away"))
                two.heal = lambda: _moved(f"{url}.away", url)
            else:
                server = request.getfixturevalue(f"{between}_server")
                proxy = open_.enter_context(Proxy("127.0.0.1", server.port))
                two = Two(place(home), place(home), proxy.through(url), proxy.cut)
                two.heal = proxy.heal
            made.append(two)
            return two

        yield make
        for two in made:
            two.heal()
            for url in (two.shop, two.bank, two.bus):
                with closing(open_store(url)) as store:
                    assert audit(store, heads=20) == []  # of many at once
                with interlock.connect(url) as fleet:
                    assert fleet.record.verify()


def _moved(source: str, target: str) -> None:
    for end in ("", "-wal", "-shm"):
        if Path(source + end).exists():
            Path(source + end).rename(target + end)


@contextmanager
def serving(url: str, handler: Callable[[ServedRequest], object]) -> Iterator[None]:
    """A worker of the bank in a thread."""
    ready = threading.Event()

    def serve() -> None:
        with interlock.connect(url, agent="bob") as fleet:
            ready.set()
            fleet.requests.serve(handler, can=["sum"], stop_on_signals=False)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert ready.wait(10)
        yield
    finally:
        with interlock.connect(url, agent="boss") as boss:
            boss.messages.stop("bob", "the test is over")
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.parametrize(("home", "between"), ENGINES)
def test_a_request_is_answered_also_after_an_outage_of_the_bus(
    at: Callable[[str, str], Two], home: str, between: str
) -> None:
    two = at(home, between)
    with (
        interlock.connect(two.shop, agent="ada") as shop,
        serving(two.bank, lambda request: sum(request.payload)),
    ):
        found = shop.requests.send("bank", "can:sum", [1, 2], wait=30)
        assert isinstance(found, interlock.RequestAnswered), found
        assert (found.result, found.executed_by) == (3, "bob")
        two.cut()
        sent = [shop.requests.send("bank", "bob", [number]) for number in range(2)]
        assert all(isinstance(each, interlock.RequestSent) and each.spooled for each in sent), sent
        two.heal()
        ids = [each.request for each in sent if isinstance(each, interlock.RequestSent)]

        def answered() -> bool:
            shop.requests.tend()
            states = [shop.requests.result(id_) for id_ in ids]
            return all(isinstance(each, interlock.RequestAnswered) for each in states)

        until(answered)
        assert [shop.requests.result(id_).result for id_ in ids] == [0, 1]  # type: ignore[union-attr]


@pytest.mark.parametrize(("home", "between"), [("redis", "redis"), ("etcd", "sqlite")])
def test_a_key_that_is_revoked_between_verifying_and_committing_counts_no_more(
    at: Callable[[str, str], Two], home: str, between: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = at(home, between)
    with (
        interlock.connect(two.shop, agent="ada") as shop,
        interlock.connect(two.bank, agent="bob") as bank,
        interlock.connect(two.bank, agent="ops") as operator,
    ):
        assert isinstance(shop.requests.send("bank", "bob", 1), interlock.RequestSent)
        incoming = bank.context.requests.incoming
        verify = incoming.open

        def verify_and_deny(*args: Any) -> Any:
            found = verify(*args)
            if found[0]:
                operator.swarms.deny("shop")
            return found

        monkeypatch.setattr(incoming, "open", verify_and_deny)
        bank.requests.tend()
        assert [each.reason for each in bank.quarantine.list()] == ["unknown_key"]
        assert len(bank.requests.list(received=True)) == 0


@pytest.mark.parametrize(
    ("home", "between"), [("etcd", "etcd"), ("sqlite", "redis"), ("redis", "redis")]
)
def test_async_clients_ask_and_serve_many_at_once(
    at: Callable[[str, str], Two], home: str, between: str
) -> None:
    two = at(home, between)

    async def handler(request: ServedRequest) -> object:
        return request.payload

    async def scenario() -> list[Any]:
        async with (
            await aio.connect(two.shop, agent="ada") as shop,
            await aio.connect(two.bank, agent="bob") as bank,
        ):
            serving = asyncio.create_task(
                bank.requests.serve(handler, can=["echo"], concurrency=8, stop_on_signals=False)
            )
            found = await asyncio.gather(
                *[shop.requests.send("bank", "can:echo", number, wait=30) for number in range(12)]
            )
            serving.cancel()
            await asyncio.wait((serving,))
            return found

    assert [each.result for each in asyncio.run(scenario())] == list(range(12))


READER = """
import os, resource, sys
import cryptography.hazmat.primitives.asymmetric.ed25519
import interlock

with interlock.connect(sys.argv[1], agent="ops") as fleet:
    fleet.requests.tend()  # everything is imported and connected
    pages = int(open("/proc/self/statm").read().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    print("ready", flush=True)
    sys.stdin.readline()
    fleet.requests.tend()
    print(len(list(fleet.tasks.list())), len(list(fleet.quarantine.list())), flush=True)
"""


@pytest.mark.parametrize("between", ["sqlite", "redis"])
def test_many_large_values_on_the_bus_cost_their_reader_no_memory_and_stop_no_request(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    between: str,
) -> None:
    monkeypatch.setenv(key_files.FOLDER, f"{tmp_path}/keys")
    url = f"{tmp_path}/bus.db"
    if between == "redis":
        url = request.getfixturevalue("redis_server").url(uuid.uuid4().hex)
    two = Two(f"{tmp_path}/shop.db", f"{tmp_path}/bank.db", url, lambda: None)
    megabyte, large = 1 << 20, b"x" * (1 << 20)
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, two.bank, str(24 * megabyte)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with reader, closing(open_store(two.bus)) as store:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        with interlock.connect(two.shop, agent="ada") as shop:
            for number in range(12):
                shop.requests.send("bank", "can:sum", [number])
        page = Range("req-body/bank/")
        stolen = [item.key for item in store.read(page).ranges[page]][:2]
        rubbish = [keys.bus_request("bank", f"a{number:02}") for number in range(50)]
        for key in (*rubbish, *stolen):
            store.commit(Txn(id=f"txn_{uuid.uuid4().hex}", entry=b"{}", puts=(Put(key, large),)))
        found, _ = reader.communicate("\n", timeout=60)
        assert found == "10 52\n"
        assert [item.key for item in store.read(Range("req"), longest=0).ranges[Range("req")]] == []


def test_the_lease_of_the_intake_is_renewed_as_rarely_as_the_engine_is_slow() -> None:
    assert [service.lease_time(least) for least in (0.5, 2.0, 10.0, 30.0)] == [
        5.0,
        20.0,
        60.0,
        60.0,
    ]
