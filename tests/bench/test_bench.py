"""Each engine's bench comes to an end, prints all of its rows and leaves nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from interlock import bench
from interlock.bench import measuring, operations, page, run_bench
from interlock.bench.engine import local, with_namespace
from interlock.bench.measuring import Measured, Row, Sizes
from interlock.errors import BadInput
from interlock.nouns.grants.lock import LockAcquired
from interlock.stores.address import parse
from interlock.testing.servers import EtcdServer, RedisServer
from interlock.testing.servers.etcd import coded

SHARE = "the record's share of an acquire"
NETWORK_ROWS = [
    "acquire, blocking",
    "acquire, async",
    "acquire a slot, blocking",
    "acquire a slot, async",
    "two locks and a slot at once, beside one lock",
    SHARE,
    "claim by name, blocking",
    "claim by name, async",
    "release, read first",
    "publish to the worker that claims it",
    "alert, blocking",
    "alert to 5 subscribers, beside one to 1",
    "alert to a subscriber, same process",
    "alert to a subscriber, another process",
    "query and its answer, 2 processes",
    "alert while another agent floods",
    "handoff, 2 processes",
    "handoff, 2 processes, p95",
    "handoff, 3 processes",
    "handoff of a slot, 3 processes",
    "publish to follower",
    "claim and complete, 2 processes, 12 tasks",
    "discover, from the cache",
    "discover, read from home and bus",
    "request and its result, 2 processes",
    "acquire a slot, 64 in flight",
    "claim the next and complete, 64 in flight",
    "alert, 64 in flight",
    "share, 64 in flight",
    "acquire, 64 in flight",
]
REQUESTS_IN_FLIGHT = ["requests, 50 in flight", "request and its result, 50 in flight"]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Sizes(
        one_by_one=3,
        rounds=2,
        each=2,
        wakeups=3,
        handoff_processes=3,
        handoff_seconds=0.3,
        drain_processes=2,
        drained=12,
        subscribers=5,
        flood_seconds=0.05,
        requests_each=1,
        cold_starts=2,
        idle=(3, 2.0, 1.0),
        page=(20, 2, 1, 0.2),
    )
    monkeypatch.setattr(measuring, "QUICK", small)


def measured(store: str, only: str | None = None) -> list[str]:
    found: list[Measured] = []
    assert run_bench(store, write=found.append, only=only, quick=True) == 0
    return [row.name for measured in found for row in measured]


def test_rows_are_printed_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def first(*_: object) -> list[Row]:
        return [Row(name="acquire", p50=0.5), Row(name="release", p50=12.0, target="< 20 ms")]

    def second(*_: object) -> list[Row]:
        above, *rows = "\n".join(said).splitlines()
        assert [line.split()[0] for line in (above, *rows)] == ["operation", "acquire", "release"]
        assert rows[1].index("12 ms") + 5 == above.index("p50") + 3
        return [Row(name="a row with a longer name", rate=2000.0)]

    monkeypatch.setattr(bench, "MEASUREMENTS", {"one": first, "two": second})
    monkeypatch.setattr(bench, "LOCAL", ("one", "two"))
    assert run_bench(str(tmp_path), say=said.append) == 0
    assert said[-1].split()[-1] == "2,000"


def test_redis_is_measured_in_a_namespace_that_is_gone_afterwards(
    redis_server: RedisServer, redis_url: str
) -> None:
    assert measured(redis_url, "acquire") == ["acquire, blocking"]
    assert measured(redis_url, "idle") == ["idle, 3 agents, ttl 2 s"]
    assert redis_server.command("KEYS", "{bench-*") == []


def test_etcd_is_measured_in_a_namespace_that_is_gone_afterwards(
    etcd_server: EtcdServer, etcd_url: str
) -> None:
    assert measured(etcd_url, "acquire") == ["acquire, blocking"]
    assert measured(etcd_url, "idle") == ["idle, 3 agents, ttl 2 s"]
    nothing_left(etcd_server)


@pytest.mark.proof
def test_everything_is_measured_on_redis(redis_server: RedisServer, redis_url: str) -> None:
    assert measured(redis_url) == [
        *NETWORK_ROWS,
        "acquire, 64 in flight, beside redis-py",
        *REQUESTS_IN_FLIGHT,
    ]
    assert redis_server.command("KEYS", "{bench-*") == []


@pytest.mark.proof
def test_everything_is_measured_on_etcd_that_is_on_redis(
    etcd_server: EtcdServer, etcd_url: str
) -> None:
    assert measured(etcd_url) == [
        *[row for row in NETWORK_ROWS if row != SHARE],
        *REQUESTS_IN_FLIGHT,
    ]
    nothing_left(etcd_server)


def nothing_left(server: EtcdServer) -> None:
    scope = {"key": coded("bench-"), "range_end": coded("bench."), "count_only": True}
    assert "count" not in server.call("/v3/kv/range", scope)


def test_sqlite_is_measured_beside_the_file_that_was_named(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "store.db"):
        assert measured(str(place), "acquire") == ["acquire, blocking"]
        assert os.listdir(tmp_path) == []


def test_a_command_is_measured_with_and_without_a_warm_process(tmp_path: Path) -> None:
    assert measured(str(tmp_path), "cold") == ["cold lock acquire", "warm lock acquire"]


def test_a_server_is_measured_as_its_callers_see_it(tmp_path: Path) -> None:
    assert measured(str(tmp_path), "http") == ["http, warm lock acquire"]
    assert measured(str(tmp_path), "http-event") == ["event to an open stream"]


def test_the_page_is_measured_in_a_browser_and_left_out_plainly_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page.missing():
        pytest.skip(page.missing())
    monkeypatch.setattr(page, "SETTLED", 100)
    monkeypatch.setattr(page, "CHANGES", 1)
    assert measured(str(tmp_path), "page") == [
        "first rows of the page, 20 tasks",
        "a change on the page, from its commit to its row",
        "frame while it scrolls, 20 tasks, 2 agents",
    ]
    monkeypatch.setattr("interlock.bench.LOCAL", ("acquire", "page"))
    monkeypatch.setattr(page, "find_spec", lambda name: None if name == "playwright" else True)
    found: list[Measured] = []
    run_bench(str(tmp_path), write=found.append, quick=True)
    assert [row.name for row in found[0]] == ["acquire, blocking"]
    (said,) = found[0].left_out
    assert said == "page is not measured: it needs playwright; run: pip install playwright"
    with pytest.raises(BadInput, match="pip install playwright"):
        run_bench(str(tmp_path), only="page", quick=True)


@pytest.mark.parametrize(
    ("only", "row"),
    [
        ("slots", "acquire a slot, blocking"),
        ("slots-async", "acquire a slot, async"),
        ("slots-in-flight", "acquire a slot, 64 in flight"),
        ("several", "two locks and a slot at once, beside one lock"),
        ("share", SHARE),
        ("slots-handoff", "handoff of a slot, 3 processes"),
    ],
)
def test_semaphores_and_the_record_are_measured_on_sqlite(
    tmp_path: Path, only: str, row: str
) -> None:
    assert measured(str(tmp_path), only) == [row]


@pytest.mark.parametrize(
    ("only", "rows"),
    [
        ("alert", ["alert, blocking"]),
        ("messages-in-flight", ["alert, 64 in flight", "share, 64 in flight"]),
        ("heard-here", ["alert to a subscriber, same process"]),
        ("query", ["query and its answer, 2 processes"]),
        ("flooded", ["alert while another agent floods"]),
    ],
)
def test_messages_are_measured_on_sqlite(tmp_path: Path, only: str, rows: list[str]) -> None:
    assert measured(str(tmp_path), only) == rows


def test_requests_between_swarms_are_measured_on_sqlite(tmp_path: Path) -> None:
    assert measured(str(tmp_path), "discovery")[0] == "discover, from the cache"
    assert measured(str(tmp_path), "requests") == ["request and its result, 2 processes"]
    assert measured(str(tmp_path), "requests-in-flight") == REQUESTS_IN_FLIGHT
    assert os.listdir(tmp_path) == []


def test_an_alert_is_one_commit_however_many_subscribed(tmp_path: Path) -> None:
    found: list[Measured] = []
    assert run_bench(str(tmp_path), write=found.append, only="subscribers", quick=True) == 0
    ((row,),) = found
    assert row.target == "commits for each alert: 1"


def test_the_record_is_measured_beside_a_client_that_keeps_none(tmp_path: Path) -> None:
    url = str(tmp_path / "store.db")
    with operations.unrecorded(url) as fleet:
        assert isinstance(fleet.locks.acquire("merge"), LockAcquired)
        assert fleet.locks.show("merge").holder == "bench"
        assert fleet.record.log() == ()


def test_an_unknown_measurement_is_refused_with_those_of_the_engine() -> None:
    with pytest.raises(BadInput, match="cold"):
        run_bench(only="idle")
    with pytest.raises(BadInput, match="idle"):
        run_bench("redis://localhost", only="cold")


@pytest.mark.parametrize(
    "url",
    [
        "redis://:secret@host:1/2?ns=a/b&log=7",
        "redis+unix:///run/redis.sock?db=3",
        "etcd://one:1,two:2",
        "etcds://ada:secret@one/team?ca=/ca.pem",
    ],
)
def test_the_same_server_is_measured_in_another_namespace(url: str) -> None:
    address = parse(url)
    other = parse(with_namespace(url, address, "bench-1/0"))
    assert other.namespace == "bench-1/0"
    assert (other.hosts, other.socket, other.db) == (address.hosts, address.socket, address.db)
    assert (other.user, other.password) == (address.user, address.password)
    assert {**other.options, "ns": ""} == {**address.options, "ns": ""}


@pytest.mark.parametrize("url", ["memory:", "postgres://localhost/x"])
def test_an_engine_without_a_floor_is_refused(url: str) -> None:
    with pytest.raises(BadInput, match="SQLite, Redis or etcd"):
        local(url)
