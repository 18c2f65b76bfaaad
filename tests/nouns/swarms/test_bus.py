"""The second store of a client: opened when it is needed, with its own errors and its own id."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import interlock
from interlock import aio
from interlock.client import Fleet
from interlock.client_context import StoreOpener
from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.errors import BusTrouble, StoreAway, StoreClosed, StoreTrouble
from interlock.nouns.swarms.bus import RECONNECT, Bus
from interlock.nouns.swarms.head import ListedKey
from interlock.nouns.swarms.swarm import OwnSwarm
from interlock.runtime.attempt import DecideOp
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Runner
from interlock.steps import Op, Read, drive, drive_async
from interlock.store import Snapshot, Store
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
    with interlock.connect(store=MemoryStore()) as other, pytest.raises(BusTrouble) as gone:
        on(other, swarm, read)
    assert not os.path.exists(place)
    assert "put the bus back, or set INTERLOCK_BUS" in str(gone.value)
    assert "init" not in str(gone.value), "a new store would be another bus"


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


class Sleep:
    """A step that waits until it is cancelled, or is struck at once where it would block."""

    def __init__(self, begun: asyncio.Event | None = None) -> None:
        self._begun = begun

    def perform(self, _store: object) -> None:
        raise KeyboardInterrupt

    async def perform_async(self, _store: object) -> None:
        assert self._begun is not None
        self._begun.set()
        await asyncio.Event().wait()


class Struck:
    """An operation that is struck at its first step, and cleans up with another one."""

    def __init__(self, begun: asyncio.Event | None = None) -> None:
        self._begun = begun
        self.seen: list[object] = []

    def inner(self, _runner: Runner) -> Op[None]:
        try:
            yield Sleep(self._begun)
        except BaseException as error:
            self.seen.append(type(error))
            snapshot: Snapshot = yield Read(keys.BUS)
            self.seen.append(snapshot[keys.BUS] is not None)
            raise

    def outer(self, bus: Bus, swarm: OwnSwarm) -> Op[None]:
        try:
            yield from bus.on(swarm, self.inner)
        except BaseException as error:
            snapshot: Snapshot = yield Read(keys.BUS)
            self.seen.append((type(error), snapshot[keys.BUS] is None))
            raise


def test_an_interrupt_first_cleans_up_on_the_bus_and_then_at_home(home: Fleet, place: str) -> None:
    swarm, struck = reached(home, place), Struck()
    with pytest.raises(KeyboardInterrupt):
        drive(struck.outer(home.context.bus, swarm), home.store)
    assert struck.seen == [KeyboardInterrupt, True, (KeyboardInterrupt, True)]
    assert on(home, swarm, read) == b""


def test_a_cancellation_first_cleans_up_on_the_bus_and_then_at_home(place: str) -> None:
    async def main() -> list[object]:
        async with await aio.connect(store=MemoryStore()) as home:
            bus = home.context.bus
            swarm = own(place, await drive_async(bus.reach(place), home.store))
            struck = Struck(begun := asyncio.Event())
            task = asyncio.create_task(drive_async(struck.outer(bus, swarm), home.store))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return struck.seen

    cancelled = asyncio.CancelledError
    assert asyncio.run(main()) == [cancelled, True, (cancelled, True)]


def test_threads_that_need_the_bus_at_once_share_one_connection(home: Fleet, place: str) -> None:
    swarm = reached(home, place)
    opened: list[Store] = []

    class Counting(StoreOpener):
        def blocking(self, url: str, *, create: bool) -> Store:  # type: ignore[override]
            store = StoreOpener.blocking(url, create=create)
            opened.append(store)
            gate.wait(10)
            return store

    gate = threading.Barrier(4)
    bus = Bus(home.context.runner, Counting(), home.context.settings)
    runners: list[Runner] = []

    def which(runner: Runner) -> Op[None]:
        runners.append(runner)
        yield Read(keys.BUS)

    work = [
        threading.Thread(target=lambda: drive(bus.on(swarm, which), home.store)) for _ in "1234"
    ]
    for each in work:
        each.start()
    for each in work:
        each.join()
    assert len(opened) == 4
    assert len({id(each) for each in runners}) == 1
    closed = 0
    for store in opened:
        try:
            store.read(keys.BUS)
        except StoreClosed:
            closed += 1
    assert closed == 3
    bus.close()
