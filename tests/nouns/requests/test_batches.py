"""Callers of one process share their commits and reads, and rely on nothing that is stale."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace
from tests.nouns.requests.pair import BUS_ID, Pair, Swarm, put_item
from tests.nouns.requests.test_clients import NAMES, set_up
from tests.nouns.requests.test_crashes import verbs_of

import interlock
from interlock import aio
from interlock.core import keys, signing
from interlock.nouns.requests import outcomes as out
from interlock.nouns.requests.serving import ServedRequest
from interlock.nouns.swarms import key_files
from interlock.nouns.swarms.head import ListedKey
from interlock.nouns.swarms.swarm import OwnSwarm
from interlock.nouns.tasks.held_claim import HeldClaim
from interlock.nouns.tasks.task_outcomes import TaskCompleted
from interlock.nouns.tasks.waiting_workers import ReservedSlot, reserved_slot
from interlock.steps import Op
from interlock.store import Range, Store
from interlock.stores import open_store
from interlock.testing.audit import audit
from interlock.testing.faults import Crash, FaultyStore

MANY = 20


@pytest.fixture
def pair() -> Pair:
    return Pair()


def items(store: Store, folder: str) -> list[str]:
    page = Range(folder)
    return [item.key for item in store.read(page).ranges[page]]


# What a request asks of the stores.


class Trips:
    """Counts what is asked of a store across a network."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[str] = Counter()
        for name in ("read", "commit"):
            monkeypatch.setattr(store, name, self._counting(name, getattr(store, name)))

    def _counting(self, name: str, method: Any) -> Any:
        def counting(*words: Any, **more: Any) -> Any:
            self.counts[name] += 1
            return method(*words, **more)

        return counting

    def since(self) -> dict[str, int]:
        """How often each was called since the last call."""
        found, self.counts = dict(self.counts), Counter()
        return found


def trips(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> tuple[Trips, Trips]:
    return Trips(swarm.home, monkeypatch), Trips(swarm.bus, monkeypatch)


def test_across_a_network_each_step_at_home_is_one_round_trip_once_the_peer_is_known(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    for swarm in NAMES:
        pair.trust(swarm, NAMES[swarm == "north"], rate=0)
    north, south = pair.swarm("north", faulty=True), pair.swarm("south", "bob", faulty=True)
    for last in (False, True):
        home, bus = trips(north, monkeypatch)
        north.sent()
        if last:
            assert home.since() == {"commit": 2}, "steps 1 and 3"
            assert bus.since() == {"commit": 1}, "step 2"
        home, bus = trips(south, monkeypatch)
        south.take_in()
        if last:
            assert home.since() == {"commit": 1, "read": 1}, "step 4, after a look at the mark"
            assert bus.since() == {"read": 2, "commit": 1}, "envelopes and bodies, step 5"
        claimed = south.claim()
        assert claimed is not None
        home, bus = trips(south, monkeypatch)
        south.answer(claimed)
        if last:
            assert home.since() == {"commit": 2}, "step 7, and the outbox is cleared"
            assert bus.since() == {"commit": 1}, "step 8"
        home, bus = trips(north, monkeypatch)
        north.take_in()
        if last:
            assert home.since() == {"commit": 1}, "step 9"
            assert bus.since() == {"read": 2, "commit": 1}, "envelopes and bodies, step 10"


# What is remembered.


def test_a_peer_that_was_denied_a_moment_ago_is_neither_asked_nor_heard(pair: Pair) -> None:
    north, south = pair.swarm("north", faulty=True), pair.swarm("south", "bob", faulty=True)
    north.sent()
    assert south.take_in() == 1
    late = north.sent()
    for name, other in (("north", "south"), ("south", "north")):
        peer = replace(pair.peer(other), allowed=False)
        put_item(pair, pair.homes[name], keys.peer(other), peer)
    assert isinstance(north.send(), out.SwarmNotAllowed)
    south.take_in()
    assert late not in {keys.id_of(key) for key in items(pair.homes["south"], keys.RECEIVED)}
    assert len(items(pair.homes["south"], keys.QUARANTINE)) == 1


def test_a_peer_that_was_allowed_a_moment_ago_is_heard(pair: Pair) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    north.sent()
    south.take_in()
    pair.add("east")
    put_item(pair, pair.homes["east"], keys.peer("south"), pair.peer("south"))
    pair.trust("south", "east")
    pair.swarm("east").sent()
    assert south.take_in() == 1
    assert items(pair.homes["south"], keys.QUARANTINE) == []


@pytest.mark.parametrize("faulty", [False, True])
def test_a_request_is_signed_for_the_swarm_that_the_home_is_now(
    pair: Pair, *, faulty: bool
) -> None:
    north = pair.swarm("north", faulty=faulty)
    north.sent()
    moved = OwnSwarm(
        name="north",
        bus="memory:bus",
        bus_shown="memory:bus",
        bus_id="bus_2",
        key="north",
        keys=(ListedKey(public=signing.to_base64(pair.keys["north"].public_key)),),
        registered=0.0,
    )
    put_item(pair, pair.homes["north"], keys.OWN_SWARM, moved)
    sent = north.send()
    assert isinstance(sent, out.RequestSent)
    assert "another bus" in sent.reason, "it was signed for the bus of now, which is away"
    assert moved.bus_id != BUS_ID


# Other processes at the same moment.


def test_a_result_that_another_process_takes_in_between_two_reads_is_not_refused(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    north, other = pair.swarm("north"), pair.swarm("north", "eve")
    request = north.sent()
    assert pair.swarm("south", "bob").work()
    read = north.requests.incoming.with_bodies

    def late(*words: Any) -> Op[Any]:
        other.take_in()
        return read(*words)

    monkeypatch.setattr(north.requests.incoming, "with_bodies", late)
    north.take_in()
    assert isinstance(north.result(request), out.RequestAnswered)
    assert items(pair.homes["north"], keys.QUARANTINE) == []
    assert audit(pair.homes["north"]) == []


# Tasks that are claimed as they are created.


class OneSlot:
    """A worker that waits for one request."""

    can = ("can:sum",)

    def __init__(self, swarm: Swarm) -> None:
        self.swarm = swarm
        self.free = True
        self.claims: list[HeldClaim | None] = []
        swarm.context.tasks.waiting.append(self)

    def reserve(self) -> ReservedSlot | None:
        if not self.free:
            return None
        self.free = False
        return reserved_slot(self, self.swarm.context, 60.0)

    def give(self, slot: ReservedSlot, claim: HeldClaim | None) -> None:
        del slot
        self.claims.append(claim)


@pytest.mark.parametrize("faulty", [False, True])
def test_a_worker_that_waits_has_the_most_urgent_request_with_the_commit_that_takes_it_in(
    pair: Pair, *, faulty: bool
) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob", faulty=faulty)
    worker = OneSlot(south)
    north.sent(whom="can:multiply")
    north.sent(priority=5)
    urgent = north.sent(priority=9)
    south.take_in()
    (held,) = worker.claims
    assert held is not None
    assert held.claimed.data["request"]["id"] == urgent
    assert (held.claimed.holder, held.claimed.attempt) == ("bob", 1)
    assert "task.claim" not in verbs_of(pair.homes["south"])
    assert isinstance(south.answer(held.claimed), TaskCompleted)
    held.drop()
    assert south.claim() is not None, "the other request waits in the queue"
    north.take_in()
    assert isinstance(north.result(urgent), out.RequestAnswered)
    assert audit(pair.homes["south"]) == []


def test_a_worker_gets_its_slot_back_if_the_request_was_taken_in_before(pair: Pair) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    north.sent()
    envelopes = {key: pair.bus.read(key)[key] for key in items(pair.bus, "req")}
    pair.swarm("south", "eve").take_in()
    for key, item in envelopes.items():
        assert item is not None
        put_item(pair, pair.bus, key, Raw(item.value))
    worker = OneSlot(south)
    south.run(south.requests.request_intake.take(south.actor, south.own(), on_bus(south)))
    assert worker.claims in ([None], [])
    assert len(items(pair.homes["south"], keys.TASKS)) == 2, "its data and its status"


def on_bus(swarm: Swarm) -> Any:
    return swarm.run(swarm.requests.incoming.look(swarm.own())).requests


@pytest.mark.parametrize("fault", ["crash before", "crash after"])
def test_a_claim_whose_worker_never_learned_of_it_is_released(pair: Pair, fault: Any) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob", faulty=True)
    worker = OneSlot(south)
    north.sent()
    own, network = south.own(), south.home
    assert isinstance(network, FaultyStore)
    network.script([None, fault])  # the first attempt hopes for the key of the clock
    with pytest.raises(Crash):
        south.run(south.requests.take_in(south.actor, own))
    assert worker.claims == [None]
    assert ("request.receive" in verbs_of(pair.homes["south"])) == (fault == "crash after")
    network.revive()
    south.run(south.context.grants.release_pending())
    heir = pair.swarm("south", "eve")
    assert heir.work()
    north.take_in()
    assert audit(pair.homes["south"]) == []


# Clients.


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv(key_files.FOLDER, f"{tmp_path}/keys")
    found = {name: f"{tmp_path}/{name}.db" for name in NAMES}
    set_up(found, f"{tmp_path}/bus.db")
    return found


def test_many_askers_of_a_process_share_their_posts_intakes_and_deletions(
    homes: dict[str, str], tmp_path: Path
) -> None:
    async def echo(request: ServedRequest) -> object:
        return request.payload

    async def scenario() -> list[Any]:
        async with (
            await aio.connect(homes["north"], agent="ada") as north,
            await aio.connect(homes["south"], agent="bob") as south,
        ):
            serving = asyncio.create_task(
                south.requests.serve(
                    echo, can=["echo"], concurrency=MANY + 2, stop_on_signals=False
                )
            )
            while not any(each.reserve() for each in south.context.tasks.waiting):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            asked = [north.requests.send("south", "can:echo", n, wait=30) for n in range(MANY)]
            found = await asyncio.gather(*asked)
            serving.cancel()
            await asyncio.wait((serving,))
            return found

    assert [each.result for each in asyncio.run(scenario())] == list(range(MANY))
    verbs = {}
    for name, url in {**homes, "bus": f"{tmp_path}/bus.db"}.items():
        store = open_store(url)
        verbs[name] = Counter(verbs_of(store))
        assert audit(store, heads=9) == []
        store.close()
    assert verbs["north"]["request.send"] == MANY
    assert verbs["north"]["request.complete"] < MANY / 2
    assert "outbox.clear" not in verbs["north"], "the answers deleted the entries of the outbox"
    assert verbs["south"]["request.receive"] < MANY / 2
    assert verbs["south"]["task.complete"] == MANY
    assert "task.claim" not in verbs["south"]
    assert verbs["bus"]["bus.post"] < MANY
    assert verbs["bus"]["bus.remove"] < MANY


def test_a_client_that_is_closed_leaves_nothing_on_the_bus_or_in_its_outbox(
    homes: dict[str, str], tmp_path: Path
) -> None:
    with interlock.connect(homes["north"], agent="ada") as north:
        sent = north.requests.send("south", "can:echo", 1, wait=0.001)
        assert isinstance(sent, interlock.RequestOpen)
    with interlock.connect(homes["south"], agent="bob") as south:
        south.requests.tend()
        claimed = south.tasks.next(can=["can:echo"])
        assert isinstance(claimed, interlock.Claimed)
        south.tasks.complete(claimed.task, token=claimed.token, result=1)
        south.requests.tend()
    with interlock.connect(homes["north"], agent="ada") as north:
        assert isinstance(north.requests.result(sent.request), interlock.RequestAnswered)
    for url, folder in (
        (homes["north"], keys.OUTBOX),
        (homes["south"], keys.OUTBOX),
        (f"{tmp_path}/bus.db", "req"),
        (f"{tmp_path}/bus.db", "res"),
    ):
        store = open_store(url)
        assert items(store, folder) == []
        store.close()
