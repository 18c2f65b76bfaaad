"""The second store of a client: opened when it is needed, with its own errors and its own id."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import interlock
from interlock import aio
from interlock.client import Fleet
from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.errors import BusTrouble, StoreAway, StoreTrouble
from interlock.nouns.swarms.bus import RECONNECT
from interlock.nouns.swarms.head import ListedKey
from interlock.nouns.swarms.swarm import OwnSwarm
from interlock.runtime.attempt import DecideOp
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Runner
from interlock.steps import Op, Read, drive, drive_async
from interlock.store import Snapshot
from interlock.stores import open_store
from interlock.stores.memory import MemoryStore
from interlock.testing.audit import audit
from interlock.testing.clock import FakeClock

KEY = keys.registry_entry("shop")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def home(clock: FakeClock) -> Iterator[Fleet]:
    with interlock.connect(store=MemoryStore(clock), clock=clock) as fleet:
        yield fleet


@pytest.fixture
def place(tmp_path: Path) -> str:
    return f"{tmp_path}/bus.db"


def own(url: str, bus: str) -> OwnSwarm:
    return OwnSwarm(
        name="shop",
        bus=url,
        bus_shown=url,
        bus_id=bus,
        key="ops",
        keys=(ListedKey(public=""),),
        registered=0.0,
    )


def reached(home: Fleet, url: str) -> OwnSwarm:
    return own(url, drive(home.context.bus.reach(url), home.store))


def write(runner: Runner) -> Op[int]:
    def deciding() -> DecideOp[None]:
        yield (KEY,)
        puts = (Write(KEY, "entry"),)
        return Decision(outcome=None, verb="swarm.register", thing="swarm/shop", puts=puts)

    return (yield from runner.change(deciding, Actor("shop"))).revision or 0


def read(_runner: Runner) -> Op[bytes]:
    snapshot: Snapshot = yield Read(KEY)
    item = snapshot[KEY]
    return b"" if item is None else item.value


def fail(_runner: Runner) -> Op[None]:
    yield from ()
    raise StoreAway("the engine does not answer")


def on(home: Fleet, swarm: OwnSwarm, work: object, *, urgent: bool = False) -> object:
    return drive(home.context.bus.on(swarm, work, urgent=urgent), home.store)  # type: ignore[arg-type]


def test_an_operation_takes_steps_on_the_bus_and_leaves_home_alone(home: Fleet, place: str) -> None:
    swarm = reached(home, place)
    on(home, swarm, write)
    assert on(home, swarm, read) == b'"entry"'
    assert drive(read(home.context.runner), home.store) == b""
    store = open_store(place, create=False)
    assert audit(store) == []
    store.close()


def test_an_event_loop_takes_steps_on_the_bus(place: str) -> None:
    async def main() -> tuple[object, bool]:
        async with await aio.connect(store=MemoryStore()) as home:
            bus = home.context.bus
            swarm = own(place, await drive_async(bus.reach(place), home.store))
            await drive_async(bus.on(swarm, write), home.store)
            found = await drive_async(bus.on(swarm, read), home.store)
        with pytest.raises(BusTrouble, match="closed"):
            await drive_async(bus.on(swarm, read), home.store)
        return found, home.closed

    assert asyncio.run(main()) == (b'"entry"', True)


def test_two_swarms_that_reach_a_new_bus_give_it_one_id(home: Fleet, place: str) -> None:
    with interlock.connect(store=MemoryStore()) as other:
        assert reached(home, place).bus_id == reached(other, place).bus_id


def test_an_error_of_the_bus_is_no_error_of_the_home_store(home: Fleet, place: str) -> None:
    swarm = reached(home, place)
    with pytest.raises(BusTrouble, match="does not answer") as raised:
        on(home, swarm, fail)
    assert not isinstance(raised.value, StoreTrouble)
    assert isinstance(raised.value.cause, StoreAway)
    assert home.context.bus.trouble


def test_a_bus_that_is_away_is_tried_again_after_ten_seconds(
    home: Fleet, clock: FakeClock, place: str
) -> None:
    swarm = reached(home, place)
    with pytest.raises(BusTrouble):
        on(home, swarm, fail)
    with pytest.raises(BusTrouble, match="tried again in 10 s"):
        on(home, swarm, read)
    clock.advance(RECONNECT)
    assert on(home, swarm, read) == b""
    assert home.context.bus.trouble == ""


def test_an_urgent_caller_tries_at_once(home: Fleet, place: str) -> None:
    swarm = reached(home, place)
    with pytest.raises(BusTrouble):
        on(home, swarm, fail)
    assert on(home, swarm, read, urgent=True) == b""


def test_a_bus_that_was_removed_is_not_created_again(home: Fleet, place: str) -> None:
    swarm = reached(home, place)
    home.context.bus.close()
    os.unlink(place)
    with interlock.connect(store=MemoryStore()) as other, pytest.raises(BusTrouble):
        on(other, swarm, read)
    assert not os.path.exists(place)


def test_another_store_under_the_same_url_is_not_our_bus(home: Fleet, place: str) -> None:
    reached(home, place)
    with pytest.raises(BusTrouble, match="another bus"):
        on(home, own(place, "bus_of_before"), write)
    open_store(f"{place}2").close()
    with pytest.raises(BusTrouble, match="no bus any more"):
        on(home, own(f"{place}2", "bus_of_before"), write)


def test_a_bus_that_was_exchanged_is_opened_again(
    home: Fleet, clock: FakeClock, place: str
) -> None:
    swarm = reached(home, place)
    other = f"{place}.copy"
    copied = reached(home, other)
    on(home, copied, write)
    assert on(home, swarm, read) == b""
    assert on(home, copied, read) == b'"entry"'


def test_another_host_names_the_same_bus_by_another_url(
    home: Fleet, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm = reached(home, place)
    on(home, swarm, write)
    elsewhere = own("redis://nowhere.invalid", swarm.bus_id)
    monkeypatch.setenv("INTERLOCK_BUS", place)
    assert on(home, elsewhere, read) == b'"entry"'


def test_closing_a_client_closes_its_bus(place: str) -> None:
    with interlock.connect(store=MemoryStore()) as home:
        swarm = reached(home, place)
    with pytest.raises(BusTrouble, match="closed"):
        on(home, swarm, read)
