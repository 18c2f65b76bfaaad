"""Agents that sign with keys of their own, in processes without the key of their swarm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.nouns.requests.pair import new_key
from tests.nouns.swarms.swarm_homes import (
    SameStore,
    Swarms,
    floor_of,
    own_of,
    peer_of,
    view_of,
    write,
)

import interlock
from interlock.client import Fleet
from interlock.core import keys
from interlock.core.signing import Signer
from interlock.errors import NotAllowed
from interlock.nouns.requests.serving import answer_claim
from interlock.nouns.swarms import agent_keys, key_files
from interlock.nouns.swarms.agent_keys import KEPT
from interlock.nouns.swarms.bus import RECONNECT
from interlock.nouns.swarms.envelope import claimed_signers, sign_head
from interlock.nouns.swarms.head import (
    RegisteredAgent,
    RequestHead,
    ResultHead,
    request_head,
)
from interlock.nouns.swarms.registry import OVERLAP, fitting
from interlock.nouns.swarms.results import KeyRevoked
from interlock.steps import drive
from interlock.store import Range
from interlock.testing.audit import audit
from interlock.testing.clock import FakeClock

ADA, BOB, EVE = new_key(11), new_key(12), new_key(13)


class World(Swarms):
    """Shop and bank, and agents of them in processes that do not have the keys of the swarms."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.folder = folder
        self._patch = monkeypatch
        self.agents: list[Fleet] = []

    @contextmanager
    def elsewhere(self, folder: str = "elsewhere") -> Iterator[None]:
        """On another host: its user has other keys."""
        before = key_files.place()
        self._patch.setenv(key_files.FOLDER, str(self.folder / folder))
        try:
            yield
        finally:
            self._patch.setenv(key_files.FOLDER, before)

    def agent(self, swarm: str, name: str, key: Signer | str | None) -> Fleet:
        """A process of an agent."""
        store = SameStore(self.homes[swarm].store)
        fleet = interlock.connect(store=store, agent=name, clock=self.clock, key=key, ttl=86400)
        self.connect_bus(fleet.context, self.connections[swarm])
        self.agents.append(fleet)
        return fleet

    def joined(self, swarm: str, name: str, key: Signer) -> Fleet:
        """An agent whose key is in the entry of its swarm, which its peers have not read yet."""
        with self.elsewhere():
            fleet = self.agent(swarm, name, key)
            fleet.agents.join(ttl=60)
        self.sync(swarm, force=False)
        return fleet

    def send(self, fleet: Fleet, to: str = "can:sum", **more: Any) -> Any:
        with self.elsewhere():
            return fleet.requests.send("bank", to, [1, 2], **more)

    def quarantined(self, swarm: str) -> list[str]:
        return [each.reason for each in self.homes[swarm].quarantine.list()]

    def on_bus_from(self, folder: str, kind: type[Any]) -> list[str]:
        """The fingerprints that signed what stands in a folder of the bus."""
        page = Range(folder)
        items = self.bus.read(page).ranges[page]
        return [name for item in items for name in claimed_signers(item.value, kind)]

    def work(self, fleet: Fleet, can: str = "can:sum") -> Any:
        """Take in, claim one request and answer it."""
        with self.elsewhere():
            fleet.requests.tend()
            claimed = fleet.tasks.next(can=[can])
            assert isinstance(claimed, interlock.Claimed), claimed
            return drive(answer_claim(fleet.context, claimed, "success", b"3"), fleet.store)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv(key_files.FOLDER, str(tmp_path / "keys"))
    with World(tmp_path, monkeypatch) as found:
        found.pair()
        yield found
        for fleet in found.agents:
            fleet.close()
        assert [audit(fleet.store) for fleet in found.homes.values()] == [[], []]


def test_an_agent_without_the_key_of_its_swarm_asks_and_another_one_answers(world: World) -> None:
    ada, bob = world.joined("shop", "ada", ADA), world.joined("bank", "bob", BOB)
    sent = world.send(ada)
    assert isinstance(sent, interlock.RequestSent)
    assert world.on_bus_from(keys.bus_request("bank"), RequestHead) == [ADA.fingerprint]
    assert isinstance(world.work(bob), interlock.TaskCompleted)
    assert world.on_bus_from(keys.bus_result("shop"), ResultHead) == [BOB.fingerprint]
    ada.requests.tend()
    found = ada.requests.result(sent.request)
    assert isinstance(found, interlock.RequestAnswered)
    assert (found.result, found.executed_by) == (3, "bob")
    assert [world.quarantined(name) for name in world.homes] == [[], []]


def test_a_process_with_the_key_of_the_swarm_signs_with_that(world: World) -> None:
    ada = world.agent("shop", "ada", ADA)
    sent = ada.requests.send("bank", "can:sum", [1])
    assert isinstance(sent, interlock.RequestSent)
    own = own_of(world.homes["shop"]).fingerprint
    assert world.on_bus_from(keys.bus_request("bank"), RequestHead) == [own]


def test_a_process_without_any_key_is_told_how_to_get_one(world: World) -> None:
    with pytest.raises(NotAllowed, match="interlock key new NAME"):
        world.send(world.agent("shop", "ada", None))
    bob = world.agent("bank", "bob", None)
    with world.elsewhere(), pytest.raises(NotAllowed, match="INTERLOCK_KEY"):
        bob.requests.serve(lambda request: request.payload, can=["sum"])


def test_a_key_that_no_entry_lists_signs_nothing_and_the_error_says_who_lists_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_keys, "PATIENCE", 0.0)
    ada = world.agent("shop", "ada", ADA)
    with pytest.raises(NotAllowed, match="swarm sync --follow"):
        world.send(ada)
    assert list(ada.requests.list()) == []
    assert world.sync("shop", force=False).published
    assert isinstance(world.send(ada), interlock.RequestSent)


def test_while_the_bus_is_away_a_request_of_a_new_agent_waits_in_the_outbox(world: World) -> None:
    ada = world.agent("shop", "ada", ADA)
    world.connections["shop"].cut = True
    sent = world.send(ada)
    assert (sent.spooled, world.on_bus(keys.bus_request("bank", ""))) == (True, None)
    world.connections["shop"].cut = False
    world.clock.advance(RECONNECT)
    world.sync("shop", force=False)
    ada.requests.tend()
    world.homes["bank"].requests.tend()
    assert world.quarantined("bank") == []
    assert [each.agent for each in world.homes["bank"].requests.list(received=True)] == ["ada"]


def test_the_entry_of_a_peer_is_read_again_for_a_key_that_is_not_known(world: World) -> None:
    ada = world.joined("shop", "ada", ADA)
    world.send(ada)
    world.homes["bank"].requests.tend()
    assert (world.quarantined("bank"), floor_of(world.homes["bank"], "shop").version) == ([], 2)


def test_the_requests_of_a_swarm_go_on_when_its_key_is_rotated(world: World) -> None:
    shop, bank = world.homes["shop"], world.homes["bank"]
    shop.keys.rotate("shop")
    assert isinstance(shop.requests.send("bank", "can:sum", [1]), interlock.RequestSent)
    bank.requests.tend()
    assert (world.quarantined("bank"), len(bank.requests.list(received=True))) == ([], 1)


def test_unknown_keys_make_a_reader_look_at_an_entry_once_in_five_seconds(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = world.homes["bank"]
    world.clock.advance(10)
    looks: list[object] = []
    refresh = bank.context.swarms.refresh

    def counted(*args: Any, **more: Any) -> Any:
        looks.append(more)
        return refresh(*args, **more)

    monkeypatch.setattr(bank.context.swarms, "refresh", counted)
    for number in range(4):
        forge(world, EVE, number)
        bank.requests.tend()
        world.clock.advance(2)
    assert world.quarantined("bank") == ["unknown_key"] * 4
    assert len(looks) == 2


def forge(world: World, signer: Signer, number: int = 0, **changes: Any) -> None:
    """A request that claims to be from shop, signed by this key."""
    own = own_of(world.homes["shop"])
    now = world.clock.wall()
    head = request_head(
        message_id=f"msg_{round(now * 1000):012x}{number:020x}",
        request_id=f"req_{round(now * 1000):012x}{number:020x}",
        from_swarm="shop",
        from_agent="ada",
        to_swarm="bank",
        to_agent="can:sum",
        task_type="sum",
        body=b"[1]",
        key=signer.fingerprint,
        bus=own.bus_id,
        now=now,
    )
    head = replace(head, **changes)
    world.put_on_bus(keys.bus_request_body("bank", head.message_id), b"[1]")
    world.put_on_bus(keys.bus_request("bank", head.message_id), sign_head(head, signer))


def test_the_key_of_an_agent_signs_for_no_other_agent(world: World) -> None:
    world.joined("shop", "ada", ADA)
    forge(world, ADA, from_agent="carl")
    world.homes["bank"].requests.tend()
    assert world.quarantined("bank") == ["wrong_sender"]


def test_an_agent_does_not_answer_what_another_one_was_asked(world: World) -> None:
    ada, bob = world.joined("shop", "ada", ADA), world.joined("bank", "bob", BOB)
    world.send(ada, "carl")
    world.work(bob, "@carl")
    ada.requests.tend()
    assert world.quarantined("shop") == ["wrong_agent"]


# Revocation.


def test_an_agent_revokes_its_key_by_itself_and_sends_nothing_more(world: World) -> None:
    ada = world.joined("shop", "ada", ADA)
    world.send(ada)
    world.homes["bank"].requests.tend()
    with world.elsewhere():
        found = ada.keys.revoke(ADA.fingerprint, "lost")
    assert isinstance(found, KeyRevoked)
    assert (found.agent, found.trouble) == ("ada", "")
    with pytest.raises(NotAllowed, match="revoked, permanently"):
        world.send(ada)
    assert world.sync("bank").revoked == (ADA.fingerprint,)
    forge(world, ADA)
    world.homes["bank"].requests.tend()
    assert world.quarantined("bank") == ["revoked_key"]


def test_the_swarm_revokes_the_key_of_an_agent_that_it_does_not_have(world: World) -> None:
    world.joined("shop", "ada", ADA)
    found = world.homes["shop"].keys.revoke(ADA.fingerprint)
    assert isinstance(found, KeyRevoked)
    assert (found.agent, found.current) == ("ada", own_of(world.homes["shop"]).fingerprint)
    forge(world, ADA)
    world.homes["bank"].requests.tend()
    assert world.quarantined("bank") == ["unknown_key"]  # it was revoked before it was ever read


def test_the_key_of_an_agent_that_is_revoked_between_verifying_and_committing_counts_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, bank = world.joined("shop", "ada", ADA), world.homes["bank"]
    world.sync("bank")
    world.send(ada)
    incoming = bank.context.requests.incoming
    verify = incoming.open

    def verify_and_revoke(*args: Any) -> Any:
        found = verify(*args)
        if found[0]:
            bank.swarms.deny("shop", key=ADA.fingerprint)
        return found

    monkeypatch.setattr(incoming, "open", verify_and_revoke)
    bank.requests.tend()
    assert world.quarantined("bank") == ["revoked_key"]
    assert len(bank.requests.list(received=True)) == 0


def test_an_entry_that_drops_an_agent_between_verifying_and_committing_ends_its_key(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, bank = world.joined("shop", "ada", ADA), world.homes["bank"]
    world.sync("bank")
    world.send(ada)
    incoming = bank.context.requests.incoming
    verify = incoming.open

    def verify_and_drop(*args: Any) -> Any:
        found = verify(*args)
        floor = floor_of(bank, "shop")
        assert floor.entry is not None
        if found[0]:
            write(bank, keys.floor("shop"), replace(floor, entry=replace(floor.entry, agents=())))
        return found

    monkeypatch.setattr(incoming, "open", verify_and_drop)
    monkeypatch.setattr(bank.context.swarms, "look_again", lambda *_: iter(()))
    bank.requests.tend()
    assert world.quarantined("bank") == ["unknown_key"]


def test_the_keys_of_agents_end_with_the_key_that_vouched_for_them(world: World) -> None:
    ada, bank = world.joined("shop", "ada", ADA), world.homes["bank"]
    world.send(ada)
    bank.requests.tend()
    world.homes["shop"].keys.revoke("shop")
    world.sync("bank")
    assert peer_of(bank, "shop").keys == ()
    forge(world, ADA)
    bank.requests.tend()
    assert world.quarantined("bank") == ["unknown_key"]
    with pytest.raises(NotAllowed, match="has no key any more"):
        world.send(ada)


def test_a_bus_that_holds_entries_back_keeps_the_key_of_an_agent_for_a_week(world: World) -> None:
    world.joined("shop", "ada", ADA)
    bank = world.homes["bank"]
    world.sync("bank")
    for seconds, expected in ((OVERLAP, []), (15 * 60 + 60, ["unknown_key"])):
        world.clock.advance(seconds)
        forge(world, ADA, round(seconds))
        bank.requests.tend()
        assert world.quarantined("bank") == expected


# Names, rotation, leaving.


def test_another_process_under_the_name_with_another_key_is_refused(world: World) -> None:
    world.joined("shop", "ada", ADA)
    other = world.agent("shop", "ada", EVE)
    with pytest.raises(NotAllowed, match=r"signs with another key.*interlock key revoke SHA256"):
        world.send(other)
    with world.elsewhere(), pytest.raises(NotAllowed, match="take another name"):
        other.agents.join()
    world.clock.advance(KEPT + 1)
    with world.elsewhere():
        other.agents.join()
    world.sync("shop")
    assert isinstance(world.send(other), interlock.RequestSent)


def test_a_clock_that_is_ahead_takes_no_key_away(world: World) -> None:
    world.joined("shop", "ada", ADA)
    store = SameStore(world.homes["shop"].store)
    ahead = FakeClock(wall=world.clock.wall() + 30 * 86400)
    with (
        interlock.connect(store=store, agent="ada", clock=ahead, key=EVE) as other,
        world.elsewhere(),
        pytest.raises(NotAllowed, match="take another name"),
    ):
        other.agents.join()


def test_an_agent_rotates_its_key_and_the_old_one_counts_for_a_week(world: World) -> None:
    with world.elsewhere():
        key_files.create("ada")
        first = key_files.load("ada")
    old = world.joined("shop", "ada", first)
    with world.elsewhere():
        key_files.rotate("ada", world.clock.wall())
        second = key_files.load("ada")
    new = world.joined("shop", "ada", second)
    for fleet in (old, new):
        assert isinstance(world.send(fleet), interlock.RequestSent)
    world.homes["bank"].requests.tend()
    assert world.quarantined("bank") == []
    world.clock.advance(OVERLAP + 31)
    with pytest.raises(NotAllowed, match="was replaced as the key of ada"):
        world.send(old)
    world.sync("shop")
    assert isinstance(world.send(new), interlock.RequestSent)
    forge(world, first)
    world.homes["bank"].requests.tend()
    assert "unknown_key" in world.quarantined("bank")


def test_an_agent_that_has_left_is_listed_for_what_it_signed_and_then_no_more(
    world: World,
) -> None:
    ada = world.joined("shop", "ada", ADA)
    world.send(ada)
    ada.close()
    world.clock.advance(120)
    world.sync("shop")
    world.sync("bank")
    entry = floor_of(world.homes["bank"], "shop").entry
    assert entry is not None
    assert [(each.agent, each.away) for each in entry.agents] == [
        ("shop-bot", False),
        ("ada", True),
    ]
    world.homes["bank"].requests.tend()
    assert world.quarantined("bank") == []
    world.clock.advance(KEPT)
    assert "ada" not in entry_agents(world)
    world.homes["shop"].maintain()
    place = keys.agent_keys("ada")
    assert world.homes["shop"].store.read(place)[place] is None


def entry_agents(world: World) -> list[str]:
    world.sync("shop")
    world.sync("bank")
    entry = floor_of(world.homes["bank"], "shop").entry
    return [] if entry is None else [each.agent for each in entry.agents]


def test_a_swarm_whose_agents_are_all_away_is_degraded(world: World) -> None:
    world.joined("shop", "ada", ADA).close()
    world.homes["shop"].agents.leave()
    world.clock.advance(120)
    assert entry_agents(world) == ["ada"]
    assert view_of(world.homes["bank"], "shop").status == "degraded"


# Attempts.


def test_another_attempt_is_signed_by_the_swarm_or_left_to_a_process_that_can(
    world: World,
) -> None:
    ada, carl = world.joined("shop", "ada", ADA), world.joined("shop", "carl", EVE)
    assert isinstance(world.send(carl), interlock.RequestSent)
    sent = world.send(ada)
    drop_requests(world)
    world.clock.advance(61)
    with world.elsewhere():
        carl.requests.tend()
    assert world.on_bus_from(keys.bus_request("bank"), RequestHead) == [EVE.fingerprint]
    world.homes["shop"].requests.tend()
    own = own_of(world.homes["shop"]).fingerprint
    assert sorted(world.on_bus_from(keys.bus_request("bank"), RequestHead)) == sorted(
        [EVE.fingerprint, own]
    )
    world.homes["bank"].requests.tend()
    assert len(world.homes["bank"].requests.list(received=True)) == 2
    found = ada.requests.result(sent.request)
    assert isinstance(found, interlock.RequestOpen)
    assert found.attempt == 2


def drop_requests(world: World) -> None:
    """A client of the bus deletes what is there."""
    page = Range(keys.bus_request("bank"))
    for item in world.bus.read(page).ranges[page]:
        world.delete_on_bus(item.key)


# Sizes.


def test_an_entry_lists_as_many_agents_as_it_holds() -> None:
    many = [
        RegisteredAgent(agent=f"agent-{number}", can=tuple(f"can-{n:040}" for n in range(60)))
        for number in range(1000)
    ]
    found = fitting(many)
    assert 0 < len(found) < 1000
    few = [RegisteredAgent(agent=f"agent-{number}") for number in range(1200)]
    assert len(fitting(few)) == 1000


def test_a_swarm_with_too_many_agents_still_publishes(world: World) -> None:
    shop = world.homes["shop"]
    for number in range(30):
        with_key = world.agent("shop", f"a{number}" + "x" * 150, new_key(100 + number))
        with_key.agents.status("idle", can=[f"{n}" + "y" * 190 for n in range(64)])
    done = world.sync("shop")
    assert (done.published, done.trouble) == (True, "")
    assert shop.swarms.list()
