"""The snapshot of a swarm: what it measures, when it is written, and how others read it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.nouns.swarms.swarm_homes import Process, Swarms, floor_of, met, write

import interlock
from interlock.client import Fleet
from interlock.core import keys
from interlock.nouns.swarms import state_service
from interlock.nouns.swarms.state_service import count_record
from interlock.nouns.swarms.sync_results import (
    SharedView,
    ShareUndecided,
    SwarmState,
    ValueShared,
)
from interlock.nouns.swarms.sync_rules import SYNC_EVERY
from interlock.nouns.tasks.task_outcomes import Claimed
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
        found.pair()
        yield found
        for fleet in found.homes.values():
            assert audit(fleet.store) == []
        assert audit(found.bus) == []


@pytest.fixture
def bank(swarms: Swarms) -> Fleet:
    return swarms.homes["bank"]


def state_of(home: Fleet, name: str) -> SwarmState:
    found = home.swarms.states()
    assert found
    return next(each for each in found if each.swarm == name)


def work(swarms: Swarms, home: Fleet, task: str, seconds: float) -> None:
    home.tasks.publish(task)
    claimed = home.tasks.claim(task)
    assert isinstance(claimed, Claimed)
    swarms.clock.advance(seconds)
    assert home.tasks.complete(task, token=claimed.token)


# What it measures.


def test_a_snapshot_has_measured_numbers_that_peers_read(swarms: Swarms, bank: Fleet) -> None:
    work(swarms, bank, "a", 2.0)
    work(swarms, bank, "b", 4.0)
    for name in ("c", "d"):
        bank.tasks.publish(name)
    bank.tasks.publish("later", not_before="1h")
    bank.tasks.publish("blocked", needs=["c"])
    for _ in range(30):
        bank.messages.send("bank-bot", "hi")
    done = swarms.sync("bank")
    assert (done.state, done.stated) == (1, True)
    swarms.sync("shop")
    found = state_of(swarms.homes["shop"], "bank")
    assert found == SwarmState(
        swarm="bank",
        role="peer",
        version=1,
        hash=state_of(bank, "bank").hash,
        at=swarms.clock.wall(),
        agents=("bank-bot",),
        completed_tasks=2,
        pending_tasks=4,
        avg_execution_time_ms=3000.0,
        memory=found.memory,
        avg_latency_ms=0.0,
        message_throughput_per_sec=0.1,
    )
    assert 1_000_000 < found.memory < 10_000_000_000
    assert found.hash == floor_of(swarms.homes["shop"], "bank").state_digest


def test_totals_go_on_and_averages_are_of_the_time_since_the_snapshot_before(
    swarms: Swarms, bank: Fleet
) -> None:
    work(swarms, bank, "a", 2.0)
    bank.tasks.publish("long")
    claimed = bank.tasks.claim("long")
    swarms.sync("bank")
    swarms.clock.advance(SYNC_EVERY)
    for _ in range(60):
        bank.messages.send("bank-bot", "hi")
    bank.tasks.complete("long", token=claimed.token if isinstance(claimed, Claimed) else None)
    swarms.sync("bank")
    found = state_of(bank, "bank")
    assert (found.completed_tasks, found.avg_execution_time_ms) == (2, SYNC_EVERY * 1000)
    assert found.message_throughput_per_sec == pytest.approx(60 / SYNC_EVERY, abs=0.001)
    swarms.clock.advance(SYNC_EVERY)
    swarms.sync("bank")
    found = state_of(bank, "bank")
    assert (found.completed_tasks, found.avg_execution_time_ms) == (2, 0.0)
    assert found.message_throughput_per_sec == 0.0


def test_a_claim_that_ended_otherwise_is_not_counted_from_its_begin(
    swarms: Swarms, bank: Fleet
) -> None:
    bank.tasks.publish("a")
    claimed = bank.tasks.claim("a")
    assert isinstance(claimed, Claimed)
    swarms.clock.advance(100)
    bank.tasks.release("a", token=claimed.token)
    again = bank.tasks.claim("a")
    assert isinstance(again, Claimed)
    swarms.clock.advance(1)
    bank.tasks.complete("a", token=again.token)
    swarms.sync("bank")
    assert state_of(bank, "bank").avg_execution_time_ms == 1000.0


def test_a_long_record_is_counted_in_several_snapshots(
    swarms: Swarms, bank: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        work(swarms, bank, f"t{number}", 0.1)
    whole = drive(count_record(None, 0.0), bank.store)
    assert whole.completed == 20
    monkeypatch.setattr(state_service, "ENTRIES_AT_ONCE", 20)
    counted = [0]
    while counted[-1] < 20:
        swarms.sync("bank")
        counted.append(state_of(bank, "bank").completed_tasks)
    assert counted == sorted(counted)
    assert len(set(counted)) > 3
    swarms.sync("bank")
    assert state_of(bank, "bank").completed_tasks == 20


def test_two_processes_that_count_the_record_at_once_count_it_once(
    swarms: Swarms, bank: Fleet
) -> None:
    for number in range(3):
        work(swarms, bank, f"t{number}", 0.1)
    slow_process = Process(swarms, bank.store, "slow")
    slow = Stepper(slow_process.swarms.sync(force=True), slow_process.home, swarms.clock)
    for _ in range(12):
        slow.go()
    work(swarms, bank, "one more", 0.1)
    Process(swarms, bank.store, "quick").sync()
    slow.run()
    swarms.sync("bank")
    assert state_of(bank, "bank").completed_tasks == 4


def test_this_process_has_memory_also_where_the_system_does_not_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = state_service.memory()
    monkeypatch.setattr("builtins.open", _no_file)
    assert 0.5 * measured < state_service.memory() < 10 * measured


def _no_file(*args: object, **more: object) -> object:
    raise OSError("no such file")


# When.


def test_a_snapshot_is_written_every_five_minutes(swarms: Swarms, bank: Fleet) -> None:
    assert swarms.sync("bank", force=False).stated
    swarms.clock.advance(SYNC_EVERY - 1)
    again = swarms.sync("bank", force=False)
    assert (again.state, again.stated) == (1, False)
    swarms.clock.advance(1)
    assert swarms.sync("bank", force=False).state == 2
    assert bank.swarms.states()


def test_a_rotated_key_signs_the_next_snapshot_at_once_and_revoking_the_old_one_refuses_nothing(
    swarms: Swarms, bank: Fleet
) -> None:
    swarms.sync("bank")
    swarms.sync("shop")
    rotated = bank.keys.rotate("bank")
    swarms.sync("shop")
    bank.keys.revoke(rotated.old_fingerprint)
    assert swarms.sync("shop").refused == ()
    assert swarms.sync("bank", force=False).state == 2
    swarms.sync("shop")
    assert state_of(swarms.homes["shop"], "bank").version == 2


def test_a_clock_that_was_set_back_does_not_stop_snapshots(swarms: Swarms) -> None:
    swarms.sync("bank", force=False)
    swarms.clock.jump_wall(-86400)
    assert swarms.sync("bank", force=False).state == 2


def test_a_host_without_the_key_says_so_and_does_the_rest(
    swarms: Swarms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_KEYS_DIR", str(tmp_path / "none"))
    done = swarms.unsynced("bank", force=False)
    assert done.accepted == ()
    assert "not on this host" in done.trouble


def test_the_snapshots_of_peers_can_be_read_while_the_bus_is_away(swarms: Swarms) -> None:
    swarms.sync("bank")
    swarms.sync("shop")
    swarms.connections["shop"].cut = True
    swarms.clock.advance(86400)
    listed = swarms.homes["shop"].swarms.states()
    assert listed
    assert [(each.swarm, each.version) for each in listed] == [("shop", None), ("bank", 1)]
    assert "cut off" in listed.trouble


def test_a_home_that_was_restored_from_a_copy_goes_on_above_the_bus(
    swarms: Swarms, bank: Fleet
) -> None:
    swarms.sync("bank")
    before = bank.store.read(keys.OWN_STATE)[keys.OWN_STATE]
    assert before is not None
    swarms.sync("bank")
    swarms.sync("bank")
    write(bank, keys.OWN_STATE, msgspec.json.decode(before.value))
    assert swarms.sync("bank").state == 4


# On real stores.


@pytest.mark.parametrize("engine", ["sqlite", "redis"])
def test_two_homes_share_values_and_read_their_states(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    bus = f"{tmp_path}/bus.db"
    homes = [f"{tmp_path}/shop.db", f"{tmp_path}/bank.db"]
    if engine == "redis":
        server = request.getfixturevalue("redis_server")
        bus, *homes = (server.url(f"sync-{name}") for name in ("bus", "shop", "bank"))
    with (
        interlock.connect(homes[0], agent="shop-bot") as first,
        interlock.connect(homes[1], agent="bank-bot") as second,
        interlock.connect(homes[1], agent="maria") as maria,
    ):
        for fleet in (first, second):
            fleet.agents.status("idle", can=["translate"])
        met(first, second, bus)
        for fleet in (first, second):
            assert fleet.swarms.sync(force=True)
        first.swarms.sync(force=True)
        state = state_of(first, "bank")
        assert state.version == 1
        assert state.agents == ("bank-bot", "maria")
        assert state.avg_latency_ms > 0
        base = first.swarms.share("k", 1)
        assert isinstance(base, ValueShared)
        assert isinstance(second.swarms.shared("k"), SharedView)
        assert isinstance(second.swarms.share("k", 2), ValueShared)
        stale = second.swarms.share("k", 3, base=0)
        assert isinstance(stale, ShareUndecided)
        assert maria.messages.resolve(stale.decision, "take_other")
        found = first.swarms.shared("k")
        assert isinstance(found, SharedView)
        assert (found.value, found.swarm) == (3, "bank")
    for url in (bus, *homes):
        store = open_store(url, create=False)
        assert audit(store) == []
        store.close()
