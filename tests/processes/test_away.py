"""The engine goes away and comes back: holders stop in time, waiters keep waiting, nothing is lost.

Every process here runs on one machine, so their monotonic clocks can be compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from tests.processes import checks
from tests.processes.helpers import LockWaiters, ProcessGroup, store_times, until
from tests.processes.lock_programs import opened

import interlock
from interlock.errors import StoreAway
from interlock.testing.servers import EtcdServer, GitHttpServer, RedisServer
from interlock.testing.servers.proxy import Proxy

Engine = RedisServer | EtcdServer | GitHttpServer
WAYS = ("blocking", "interrupt", "async")


def trouble(name: str, server: Engine, proxy: Proxy) -> tuple[Callable[[], None], ...]:
    """How to bring it about, and how to end it."""
    return {
        "killed": (server.kill, server.restart),
        "frozen": (server.freeze, server.thaw),
        "cut": (proxy.cut, proxy.heal),
        "half open": (proxy.half_open, proxy.heal),
    }[name]  # type: ignore[return-value]  # what they return does not matter


@pytest.mark.parametrize("name", ["killed", "frozen", "cut", "half open"])
def test_a_holder_that_cannot_reach_the_engine_stops_before_anybody_else_begins(
    server: Engine, proxy: Proxy, programs: ProcessGroup, name: str
) -> None:
    url = server.url("away")
    ttl, late = (
        store_times(url).at_least(3.0),
        store_times(url).late,
    )  # who stops a tenth before the end must get the processor then
    begin, end = trouble(name, server, proxy)
    holders = {
        way: programs.start("through_trouble", "hold", proxy.through(url), way, ttl, way)
        for way in WAYS
    }
    tokens = {way: int(holder.read_line().split()[1]) for way, holder in holders.items()}
    heirs = LockWaiters(url, WAYS)
    heirs.wait()
    began = time.monotonic()
    begin()
    gone = time.monotonic()
    stops = {way: holder.read_line().split() for way, holder in holders.items()}
    if server.running and not server.frozen:
        heirs.came()  # though the holders are cut off
    end()
    for way, (later, moment) in heirs.came().items():
        word, stop, stood = stops[way]
        assert word == "stopped"
        assert began < float(stop) < gone + ttl + late, "by its own clock: it got no message"
        assert float(stop) < moment + float(stood), "before another holder began, if it could"
        assert tokens[way] < later
    for holder in holders.values():
        assert holder.read_line() == "raised Lost"
        holder.finish()
    checks.sound(url, heads=3)


def test_holders_and_waiters_survive_a_restart_of_the_engine(
    server: Engine, programs: ProcessGroup
) -> None:
    url = server.url("restart")
    with interlock.connect(url, agent="holder", ttl=60) as fleet:
        with fleet.lock("merge") as held:
            waiters = []
            for number, name in enumerate(("acquire", "acquire_async", "acquire"), 1):
                actor = ("through_trouble", "fast_asleep", name)
                waiters.append(programs.start(*actor, url, "merge", 60, 60))
                assert waiters[-1].read_line() == "ready"
                until(lambda n=number: len(fleet.locks.show("merge").waiters) == n)  # type: ignore[misc]
            server.kill()
            server.restart()
            held.check()
            assert len(fleet.locks.show("merge").waiters) == 3
            for waiter in waiters:
                waiter.freeze()  # so that no watch is open again before the notification
            server.kill()
            server.restart()
            held.check()
            token = held.token
        for waiter in waiters:
            waiter.thaw()
        for waiter in waiters:  # in the order in which they came
            later = int(waiter.read_line().split()[0])  # it sleeps until the notification arrives
            assert later > token
            token = later
            waiter.write_line()
            waiter.finish()
    checks.sound(url, heads=3)


def busy(
    url: str, tmp_path: Path, programs: ProcessGroup, strike: Callable[[], object], times: int
) -> None:
    """Four processes change as much as they can while their engine fails."""
    ttl = store_times(url).ttl
    books = [tmp_path / f"notes{n}" for n in range(4)]
    actors = [programs.start("through_trouble", "busy", url, book, ttl) for book in books]
    for actor in actors:
        assert actor.read_line() == "ready"
    for _ in range(times):
        _work(books)
        strike()  # while all of them are at it
    _work(books)
    for actor in actors:
        actor.kill()
    found = checks.notes(str(tmp_path / "notes*"))
    assert checks.tokens_grow(found) > len(books) * 5 * times
    checks.one_holder(found)
    checks.nothing_lost(url, found)
    checks.sound(url, heads=1 + 2 * times)


def _work(books: Sequence[Path]) -> None:
    """Wait until each of them got a few locks more."""

    def grants() -> list[int]:
        return [book.read_bytes().count(b"got") for book in books]

    until(lambda: all(book.exists() for book in books))
    before = grants()
    until(lambda: all(now > then + 5 for now, then in zip(grants(), before, strict=True)))


def test_nothing_acknowledged_is_lost_when_the_engine_is_killed_again_and_again(
    server: Engine, tmp_path: Path, programs: ProcessGroup
) -> None:
    busy(server.url("again"), tmp_path, programs, server.restart, times=3)


@pytest.mark.proof
@pytest.mark.timeout(1200)
def test_fifty_kills_of_the_engine_lose_nothing_acknowledged(
    server: Engine, tmp_path: Path, programs: ProcessGroup
) -> None:
    busy(server.url("fifty"), tmp_path, programs, server.restart, times=50)


@pytest.mark.proof
@pytest.mark.timeout(1200)
def test_what_a_frozen_engine_does_late_is_what_its_clients_were_told(
    server: Engine, tmp_path: Path, programs: ProcessGroup
) -> None:
    url = server.url("late")
    store = opened(url, patience=1)

    def freeze() -> None:
        server.freeze()
        with pytest.raises(StoreAway):  # so the others gave up what they had sent, too
            store.read("meta/base")
        server.thaw()

    busy(url, tmp_path, programs, freeze, times=6)
    store.close()


def test_the_trouble_ends_even_if_the_session_lapsed_meanwhile(server: Engine) -> None:
    url = server.url("lapsed")
    ttl = store_times(url).ttl
    store = opened(url, patience=1)
    with closing(store), interlock.connect(agent="ada", store=store, ttl=ttl) as fleet:
        lease = fleet.context.session_lease
        assert lease is not None
        server.kill()
        until(lambda: fleet.trouble)
        until(lambda: lease.lost)
        server.restart()
        until(lambda: not fleet.trouble)


def test_the_trouble_is_told_while_it_lasts_and_no_longer(server: Engine, proxy: Proxy) -> None:
    url = proxy.through(server.url("trouble"))
    for begin, end in (
        (server.kill, server.restart),
        (proxy.cut, proxy.heal),
        (server.freeze, server.thaw),
    ):
        with interlock.connect(url, agent="ada", ttl=4) as fleet:  # whose beats find out
            assert fleet.trouble == ""
            begin()
            told = until(lambda: fleet.trouble)
            assert "does not answer" in told
            assert f"127.0.0.1:{proxy.port}" in told
            end()
            until(lambda: not fleet.trouble)
            with interlock.connect(server.url("trouble"), agent="bob") as other:
                assert other.trouble == ""
