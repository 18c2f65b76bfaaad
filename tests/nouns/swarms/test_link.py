"""The stream that keeps a swarm on its bus, and swarms on real stores."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from tests.nouns.swarms.swarm_homes import (
    BusConnection,
    SameStore,
    Swarms,
    floor_of,
    made_key,
    met,
    peer_of,
)

import interlock
from interlock import aio
from interlock.client import Fleet
from interlock.core import keys
from interlock.nouns.messages.decision import DecisionView
from interlock.nouns.swarms import key_files, registry
from interlock.nouns.swarms.link import CALM, LOOK_FOR_LEASE, SwarmLink
from interlock.nouns.swarms.results import (
    Discovered,
    KeyRotated,
    SwarmSynced,
)
from interlock.nouns.swarms.sync_results import (
    SharedView,
    ShareSpooled,
    ShareUndecided,
    ValueShared,
)
from interlock.nouns.swarms.sync_rules import DECIDE_IN
from interlock.steps import drive
from interlock.stores import open_store
from interlock.testing.audit import audit
from interlock.testing.testbed import Stepper


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_KEYS_DIR", str(tmp_path / "keys"))


@pytest.fixture
def swarms() -> Iterator[Swarms]:
    with Swarms() as found:
        yield found


class Kept:
    """A link whose passes the test lets happen, one after the other."""

    def __init__(self, swarms: Swarms, name: str, home: Fleet | None = None) -> None:
        self._swarms = swarms
        self._home = home or swarms.homes[name]
        self.link = SwarmLink(self._home.context)
        self._take = self._begin()

    def _begin(self) -> Stepper[tuple[SwarmSynced, ...]]:
        return Stepper(self.link.take(None), self._home.store, self._swarms.clock)

    def news(self) -> SwarmSynced | None:
        """What the link says as far as the time has come."""
        if not self._take.run().done:
            return None
        (found,) = self._take.result()
        self._take = self._begin()
        return found


@pytest.fixture
def kept(swarms: Swarms) -> Iterator[Kept]:
    swarms.pair()
    found = Kept(swarms, "shop")
    yield found
    found.link.close()


def test_a_link_keeps_the_swarm_alive_on_the_bus(swarms: Swarms, kept: Kept) -> None:
    for _ in range(20):
        kept.news()
        swarms.clock.advance(registry.LIVE_TTL / 3)
        assert swarms.on_bus(keys.swarm_live("shop")) is not None


def test_a_link_signs_the_entry_again_before_it_expires(swarms: Swarms, kept: Kept) -> None:
    published = []
    for _ in range(100):
        news = kept.news()
        if news is not None and news.published:
            published.append(swarms.clock.wall())
        swarms.clock.advance(10)
    assert len(published) == 3
    assert all(later - one < 340 for one, later in pairwise(published))


def test_a_link_reads_its_peers_when_they_are_due(swarms: Swarms, kept: Kept) -> None:
    for _ in range(40):
        kept.news()
        swarms.clock.advance(10)
        swarms.sync("bank")
    assert floor_of(swarms.homes["shop"], "bank").version > 20


def test_a_change_at_home_starts_a_pass_at_once(swarms: Swarms, kept: Kept) -> None:
    while kept.news():
        pass
    new, _ = key_files.rotate("shop", swarms.clock.wall())
    swarms.homes["shop"].swarms.deny("bank")
    news = kept.news()
    assert news is not None
    assert news.published
    swarms.sync("bank")
    assert peer_of(swarms.homes["bank"], "shop").keys[0].fingerprint == new.fingerprint


def test_a_link_reports_that_the_bus_is_away_once_and_that_it_is_back(
    swarms: Swarms, kept: Kept
) -> None:
    while kept.news():
        pass
    swarms.connections["shop"].cut = True
    said = []
    for _ in range(9):
        swarms.clock.advance(10)
        if (news := kept.news()) is not None:
            said.append(news.trouble)
    assert len(said) == 1
    assert "cut off" in said[0]
    swarms.connections["shop"].cut = False
    swarms.clock.advance(10)
    news = kept.news()
    assert news is not None
    assert news.trouble == ""
    assert swarms.on_bus(keys.swarm_live("shop")) is not None


def test_a_link_writes_a_snapshot_every_five_minutes(swarms: Swarms, kept: Kept) -> None:
    versions = set()
    for _ in range(100):
        kept.news()
        swarms.clock.advance(10)
        versions.add(swarms.on_bus(keys.state("shop")))
    assert len(versions) in (3, 4)


def test_a_link_posts_writes_that_wait_and_leaves_those_to_their_callers_that_are_new(
    swarms: Swarms, kept: Kept
) -> None:
    while kept.news():
        pass
    shop, bank = swarms.homes["shop"], swarms.homes["bank"]
    swarms.connections["shop"].cut = True
    assert isinstance(shop.swarms.share("k", 1), ShareSpooled)
    swarms.connections["shop"].cut = False
    swarms.clock.advance(20)
    news = kept.news()
    assert news is not None
    assert news.posted == 1
    found = bank.swarms.shared("k")
    assert isinstance(found, SharedView)
    assert found.value == 1


def test_a_link_ends_decisions_about_shared_values_also_while_the_bus_is_away(
    swarms: Swarms, kept: Kept
) -> None:
    shop, bank = swarms.homes["shop"], swarms.homes["bank"]
    bank.swarms.share("k", 1)
    asked = shop.swarms.share("k", 2)
    assert isinstance(asked, ShareUndecided)
    swarms.connections["shop"].cut = True
    swarms.clock.advance(DECIDE_IN + 1)
    while kept.news():
        pass
    found = shop.messages.decision(asked.decision)
    assert isinstance(found, DecisionView)
    assert found.state == "expired"


def test_a_link_says_that_a_person_has_to_decide(swarms: Swarms, kept: Kept) -> None:
    while kept.news():
        pass
    shop, bank = swarms.homes["shop"], swarms.homes["bank"]
    swarms.connections["shop"].cut = True
    shop.swarms.share("k", 1)
    bank.swarms.share("k", 2)
    swarms.connections["shop"].cut = False
    swarms.clock.advance(20)
    news = kept.news()
    assert news is not None
    assert len(news.decisions) == 1


# Several processes of one swarm.


@pytest.fixture
def second(swarms: Swarms, kept: Kept) -> Iterator[Kept]:
    """Another process of the shop, with a connection to the bus of its own."""
    store = SameStore(swarms.homes["shop"].store)
    with interlock.connect(store=store, agent="carl", clock=swarms.clock, ttl=86400) as fleet:
        swarms.connections["carl"] = BusConnection(swarms.bus, sleep=swarms.clock.advance)
        swarms.connect_bus(fleet.context, swarms.connections["carl"])
        found = Kept(swarms, "shop", fleet)
        yield found
        found.link.close()


def entries(swarms: Swarms, name: str) -> int:
    """How many entries a process has put on the bus."""
    posted = swarms.connections[name].posted
    return sum(put.key == keys.registry_entry("shop") for txn in posted for put in txn.puts)


def test_one_process_at_a_time_keeps_the_entry_and_the_liveness(
    swarms: Swarms, kept: Kept, second: Kept
) -> None:
    for _ in range(100):
        kept.news()
        second.news()
        swarms.clock.advance(10)
        assert swarms.on_bus(keys.swarm_live("shop")) is not None
    assert entries(swarms, "shop") > 2
    assert swarms.connections["carl"].posted == []


def test_another_process_goes_on_before_the_liveness_of_one_that_died_ends(
    swarms: Swarms, kept: Kept, second: Kept
) -> None:
    kept.news()
    for _ in range(30):
        second.news()
        assert swarms.on_bus(keys.swarm_live("shop")) is not None
        swarms.clock.advance(LOOK_FOR_LEASE)


def test_a_process_that_leaves_lets_another_go_on_at_its_next_look(
    swarms: Swarms, kept: Kept, second: Kept
) -> None:
    kept.news()
    second.news()
    drive(kept.link.leave(), swarms.homes["shop"].store)
    swarms.homes["shop"].swarms.allow("bank", rate="7/1h")  # which starts a pass
    second.news()
    assert swarms.connections["carl"].posted != []


def test_a_process_that_does_not_reach_the_bus_lets_another_one_try(
    swarms: Swarms, kept: Kept, second: Kept
) -> None:
    kept.news()
    swarms.connections["shop"].cut = True
    for _ in range(30):
        kept.news()
        second.news()
        assert swarms.on_bus(keys.swarm_live("shop")) is not None
        swarms.clock.advance(LOOK_FOR_LEASE)


def test_a_process_without_the_key_lets_another_one_sign(
    swarms: Swarms, kept: Kept, monkeypatch: pytest.MonkeyPatch, second: Kept
) -> None:
    before, elsewhere = os.environ[key_files.FOLDER], f"{os.environ[key_files.FOLDER]}-elsewhere"
    said = []
    for _ in range(100):
        monkeypatch.setenv(key_files.FOLDER, elsewhere)
        said += [news.trouble for news in (kept.news(),) if news is not None]
        monkeypatch.setenv(key_files.FOLDER, before)
        second.news()
        swarms.clock.advance(10)
    assert entries(swarms, "carl") > 1
    assert len([each for each in said if each]) == 1
    assert "not on this host" in said[0]


def test_a_new_ability_is_on_the_bus_at_once_and_a_repeated_report_is_no_news(
    swarms: Swarms, kept: Kept
) -> None:
    while kept.news():
        pass
    shop, bank = swarms.homes["shop"], swarms.homes["bank"]
    shop.agents.status("idle", can=["paint"])
    kept.news()
    found = bank.swarms.discover("paint", fresh=True)
    assert isinstance(found, Discovered)
    assert [each.agent for each in found] == ["shop-bot"]
    entered = entries(swarms, "shop")
    for _ in range(20):
        shop.agents.status("busy", can=["paint"])
        assert kept.news() is None
        swarms.clock.advance(CALM / 10)
    assert entries(swarms, "shop") == entered


def test_many_agents_that_join_at_once_make_few_entries(swarms: Swarms, kept: Kept) -> None:
    while kept.news():
        pass
    shop, entered = swarms.homes["shop"], entries(swarms, "shop")
    for number in range(20):
        shop.agents.status("idle", can=[f"a{each}" for each in range(number + 1)])
        kept.news()
        swarms.clock.advance(CALM / 10)
    swarms.clock.advance(CALM)
    kept.news()
    assert entries(swarms, "shop") - entered in (3, 4)
    found = swarms.homes["bank"].swarms.discover("a19", fresh=True)
    assert isinstance(found, Discovered)
    assert found.agents


# On real stores.


@pytest.mark.parametrize("engine", ["sqlite", "redis"])
def test_two_homes_meet_on_a_bus(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    bus = f"{tmp_path}/bus.db"
    homes = [f"{tmp_path}/shop.db", f"{tmp_path}/bank.db"]
    if engine == "redis":
        server = request.getfixturevalue("redis_server")
        bus, *homes = (server.url(f"swarm-{name}") for name in ("bus", "shop", "bank"))
    with (
        interlock.connect(homes[0], agent="shop-bot") as first,
        interlock.connect(homes[1], agent="bank-bot") as second,
    ):
        for fleet in (first, second):
            fleet.agents.status("idle", can=["translate"])
        met(first, second, bus)
        rotated = second.keys.rotate("bank")
        assert isinstance(rotated, KeyRotated)
        assert rotated.trouble == ""
        done = first.swarms.sync(force=True)
        assert isinstance(done, SwarmSynced)
        assert done.accepted == ("bank",)
        assert peer_of(first, "bank").keys[0].fingerprint == rotated.fingerprint
    for url in (bus, *homes):
        store = open_store(url, create=False)
        assert audit(store) == []
        store.close()


def test_the_async_client_has_the_same_calls_and_a_link_in_the_background(tmp_path: Path) -> None:
    async def main() -> list[str]:
        store, bus = f"{tmp_path}/home.db", f"{tmp_path}/bus.db"
        said: asyncio.Queue[SwarmSynced] = asyncio.Queue()
        async with await aio.connect(store, agent="ada") as fleet:
            assert await fleet.swarms.register("shop", bus=bus, key=made_key("shop"))
            async with fleet.swarms.keep(said.put_nowait):
                await fleet.keys.rotate("shop")
                await fleet.agents.status("idle", can=["paint"])
                await fleet.swarms.allow("bank", first_use=True)
                while not (await said.get()).published:
                    pass
            shared = await fleet.swarms.share("k", {"a": 1})
            assert isinstance(shared, ValueShared)
            found = await fleet.swarms.shared("k")
            assert isinstance(found, SharedView)
            assert (found.value, found.revision) == ({"a": 1}, shared.revision)
            assert [each.key for each in await fleet.swarms.shared_list() or ()] == ["k"]
            assert not await fleet.swarms.conflicts()
            assert [each.swarm for each in await fleet.swarms.states() or ()] == ["shop", "bank"]
            listed = await fleet.swarms.list()
            assert listed
            return [each.swarm for each in listed]

    assert asyncio.run(main()) == ["shop", "bank"]


def test_the_blocking_client_keeps_a_link_in_the_background(tmp_path: Path) -> None:
    import queue

    store, bus = f"{tmp_path}/home.db", f"{tmp_path}/bus.db"
    said: queue.Queue[SwarmSynced] = queue.Queue()
    with interlock.connect(store, agent="ada") as fleet:
        assert fleet.swarms.register("shop", bus=bus, key=made_key("shop"))
        with fleet.swarms.keep(said.put):
            key_files.rotate("shop", 1_900_000_000.0)
            fleet.swarms.allow("bank", first_use=True)
            while not said.get(timeout=20).published:
                pass


def test_a_discovery_from_the_cache_takes_microseconds(swarms: Swarms) -> None:
    import time

    shop, _ = swarms.pair()
    shop.swarms.discover("translate")
    best = min(_timed(lambda: shop.swarms.discover("translate"), time.perf_counter))
    assert best < 200e-6


def _timed(work: Callable[[], object], clock: Callable[[], float]) -> Iterator[float]:
    for _ in range(50):
        began = clock()
        work()
        yield clock() - began
