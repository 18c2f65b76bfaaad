"""Two homes and a bus: registering, publishing, discovery, trust, rotation and revocation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.nouns.swarms.swarm_homes import (
    SameStore,
    Swarms,
    floor_of,
    made_key,
    own_of,
    peer_of,
    view_of,
    write,
)

import interlock
from interlock.core import keys
from interlock.errors import BadDuration, BadInput
from interlock.nouns.swarms import key_files, registry
from interlock.nouns.swarms.head import RegistryHead
from interlock.nouns.swarms.limits import PeerLimits
from interlock.nouns.swarms.reputation import Reputation, record
from interlock.nouns.swarms.results import (
    Discovered,
    Forgiven,
    NameTaken,
    NotRegistered,
    PeerTrustList,
    SwarmAllowed,
    SwarmDenied,
    SwarmRegistered,
    SwarmRevokedKey,
    UnknownSwarm,
)
from interlock.nouns.swarms.swarm import OwnEntry
from interlock.store import Log
from interlock.testing.audit import audit

MINUTE = 60.0


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INTERLOCK_KEYS_DIR", str(tmp_path / "keys"))
    return tmp_path / "keys"


@pytest.fixture
def swarms() -> Iterator[Swarms]:
    with Swarms() as found:
        yield found
        for fleet in found.homes.values():
            assert audit(fleet.store) == []
        if found.homes and not found.tampered:
            assert audit(found.bus) == []


def entry_of(swarms: Swarms, name: str) -> RegistryHead:
    """The entry on the bus; its signature is not checked here."""
    import msgspec

    from interlock.core.signing import from_base64

    data = swarms.on_bus(keys.registry_entry(name))
    assert data is not None
    payload = from_base64(msgspec.json.decode(data)["payload"])
    return msgspec.json.decode(payload or b"", type=RegistryHead)


def agents(found: object) -> list[str]:
    assert isinstance(found, Discovered), found
    return [each.agent for each in found]


# Registering and publishing.


def test_a_home_becomes_a_swarm_with_a_signed_entry_of_its_live_agents(swarms: Swarms) -> None:
    found = swarms.register("shop")
    entry = entry_of(swarms, "shop")
    assert (found.version, found.trouble, found.bus_id) == (1, "", entry.bus)
    assert [(each.agent, each.can, each.load) for each in entry.agents] == [
        ("shop-bot", ("translate",), 0)
    ]
    assert entry.key == found.fingerprint == key_files.load("shop").fingerprint
    assert swarms.on_bus(keys.swarm_live("shop")) is not None


def test_registering_again_changes_nothing_but_the_version(swarms: Swarms) -> None:
    swarms.register("shop")
    before = own_of(swarms.homes["shop"])
    assert swarms.register("shop").version == 2
    assert own_of(swarms.homes["shop"]) == before


def test_a_home_keeps_its_name_and_a_name_belongs_to_one_swarm(swarms: Swarms) -> None:
    swarms.register("shop")
    other = swarms.homes["shop"].swarms.register("store", bus="memory:bus", key="shop")
    assert isinstance(other, NameTaken)
    taken = swarms.home("bank").swarms.register("shop", bus="memory:bus", key=made_key("bank"))
    assert isinstance(taken, NameTaken)
    assert key_files.load("shop").fingerprint in taken.reason


def test_what_nobody_signed_takes_no_name(swarms: Swarms) -> None:
    swarms.home("bank")
    swarms.put_on_bus(keys.registry_entry("shop"), b'{"junk":1}')
    assert swarms.register("shop").version == 1


def test_an_entry_is_signed_again_when_it_is_due_and_not_before(swarms: Swarms) -> None:
    swarms.register("shop")
    assert not swarms.sync("shop", force=False).published
    swarms.clock.advance(registry.REPUBLISH)
    done = swarms.sync("shop", force=False)
    assert (done.published, done.version) == (True, 2)


def test_a_new_ability_is_published_at_once_and_load_waits(swarms: Swarms) -> None:
    swarms.register("shop")
    home = swarms.homes["shop"]
    home.tasks.publish("t1")
    assert home.tasks.next()
    assert not swarms.sync("shop", force=False).published
    home.agents.status("idle", can=["translate", "paint"])
    assert swarms.sync("shop", force=False).published
    assert [(each.can, each.load) for each in entry_of(swarms, "shop").agents] == [
        (("paint", "translate"), 100)
    ]


def test_an_entry_that_was_removed_or_replaced_on_the_bus_is_put_there_again(
    swarms: Swarms,
) -> None:
    _, bank = swarms.pair()
    for version, value in ((2, b'{"junk":1}'), (3, b"null")):
        swarms.put_on_bus(keys.registry_entry("shop"), value)
        done = swarms.sync("shop", force=False)
        assert (done.published, done.version) == (True, version)
        assert swarms.sync("bank").refused == ()
    assert floor_of(bank, "shop").version == 3


def test_after_a_restored_home_the_next_version_is_above_that_on_the_bus(swarms: Swarms) -> None:
    swarms.register("shop")
    for _ in range(3):
        swarms.sync("shop")
    write(swarms.homes["shop"], keys.OWN_ENTRY, OwnEntry(version=1, at=0.0))
    assert swarms.sync("shop").version == 5


def test_liveness_lasts_thirty_seconds_and_is_put_there_again(swarms: Swarms) -> None:
    swarms.register("shop")
    swarms.clock.advance(registry.LIVE_TTL + 1)
    assert swarms.on_bus(keys.swarm_live("shop")) is None
    swarms.sync("shop", force=False)
    assert swarms.on_bus(keys.swarm_live("shop")) is not None


def test_without_the_key_an_entry_is_not_published_and_the_rest_of_a_pass_is_done(
    swarms: Swarms, folder: Path
) -> None:
    shop, _ = swarms.pair()
    (folder / "shop").unlink()
    swarms.clock.advance(registry.REPUBLISH)
    swarms.sync("bank")
    done = swarms.unsynced("shop")
    assert "not on this host" in done.trouble
    assert done.accepted == ("bank",)
    assert floor_of(shop, "bank").version == 2


def test_a_home_that_is_no_swarm_says_so(swarms: Swarms) -> None:
    home = swarms.home("shop")
    for found in (
        home.swarms.sync(),
        home.swarms.list(),
        home.swarms.discover("translate"),
        home.keys.revoke("SHA256:" + "A" * 43),
    ):
        assert isinstance(found, NotRegistered)


# The bus is away.


def test_a_pass_while_the_bus_is_away_says_so_and_the_next_one_catches_up(swarms: Swarms) -> None:
    swarms.pair()
    swarms.connections["shop"].cut = True
    swarms.clock.advance(registry.REPUBLISH)
    done = swarms.unsynced("shop", force=False)
    assert "cut off" in done.trouble
    swarms.connections["shop"].cut = False
    assert swarms.sync("shop", force=False).published


def test_what_is_known_stays_usable_while_the_bus_is_away(swarms: Swarms) -> None:
    shop, _ = swarms.pair()
    swarms.connections["shop"].cut = True
    swarms.clock.advance(registry.CACHED + 1)
    found = shop.swarms.discover("translate")
    assert agents(found) == ["bank-bot"]
    assert isinstance(found, Discovered)
    assert "cut off" in found.trouble
    assert found.age > registry.CACHED
    listed = shop.swarms.list()
    assert not isinstance(listed, NotRegistered)
    assert "cut off" in listed.trouble


# Discovery.


def test_a_discovery_that_reads_the_bus_is_in_the_histogram_and_the_depth_in_the_gauge(
    swarms: Swarms,
) -> None:
    shop, bank = swarms.pair()

    def metrics() -> dict[str, float]:
        return {each.name: each.value for each in shop.counters(since="1h").metrics}

    name = "histogram_discovery_latency_ms"
    before = metrics()[name]
    assert before > 0
    shop.swarms.discover("translate")
    assert metrics()[name] == before  # from the cache
    write(bank, keys.unanswered("shop", "req_1"), {})
    swarms.clock.advance(registry.REPUBLISH)
    swarms.sync("bank")
    shop.swarms.discover("translate", fresh=True)
    assert metrics()[name] > before
    assert metrics()["queue_depth_max_seen"] == 1


def test_agents_of_live_peers_are_found_by_ability_and_own_ones_are_not(swarms: Swarms) -> None:
    shop, _ = swarms.pair()
    assert agents(shop.swarms.discover("translate")) == ["bank-bot"]
    assert agents(shop.swarms.discover("paint")) == []
    assert agents(shop.swarms.discover("translate", swarm="other")) == []


def test_discovery_asks_no_store_for_five_minutes(swarms: Swarms) -> None:
    shop, bank = swarms.pair()
    assert agents(shop.swarms.discover("translate")) == ["bank-bot"]
    bank.agents.status("idle", can=["translate", "paint"])
    swarms.sync("bank")
    revision = shop.store.read().revision
    swarms.clock.advance(registry.CACHED - 1)
    assert agents(shop.swarms.discover("paint")) == []
    assert shop.store.read().revision == revision
    swarms.sync("bank")
    swarms.clock.advance(1)
    assert agents(shop.swarms.discover("paint")) == ["bank-bot"]


def test_a_fresh_discovery_looks_now(swarms: Swarms) -> None:
    shop, bank = swarms.pair()
    assert agents(shop.swarms.discover("paint")) == []
    bank.agents.status("idle", can=["paint"])
    swarms.sync("bank")
    assert agents(shop.swarms.discover("paint", fresh=True)) == ["bank-bot"]


def test_another_process_of_the_home_uses_the_same_look(swarms: Swarms) -> None:
    shop, _ = swarms.pair()
    with interlock.connect(store=SameStore(shop.store), clock=swarms.clock) as second:
        swarms.connect_bus(second.context, swarms.connections["shop"])
        swarms.connections["shop"].cut = True
        found = second.swarms.discover("translate")
        assert agents(found) == ["bank-bot"]
        assert isinstance(found, Discovered)
        assert found.trouble == ""


def test_a_swarm_without_a_process_is_not_found_and_is_looked_at_again_soon(
    swarms: Swarms,
) -> None:
    shop, _ = swarms.pair()
    swarms.clock.advance(registry.LIVE_TTL + 1)
    assert agents(shop.swarms.discover("translate", fresh=True)) == []
    assert view_of(shop, "bank").status == "degraded"
    swarms.clock.advance(10)
    swarms.sync("bank")
    swarms.clock.advance(20)
    assert agents(shop.swarms.discover("translate")) == ["bank-bot"]


# Trust.


def test_a_stranger_is_listed_with_what_it_claims_and_nothing_of_it_counts(
    swarms: Swarms,
) -> None:
    swarms.register("shop")
    print_ = swarms.register("bank").fingerprint
    found = view_of(swarms.homes["shop"], "bank")
    assert (found.role, found.claims, found.version) == ("stranger", print_, None)
    assert agents(swarms.homes["shop"].swarms.discover("translate", fresh=True)) == []


def test_first_use_trusts_the_key_that_is_read_and_says_so(swarms: Swarms) -> None:
    swarms.register("shop")
    print_ = swarms.register("bank").fingerprint
    found = swarms.homes["shop"].swarms.allow("bank", first_use=True)
    assert isinstance(found, SwarmAllowed)
    assert (found.how, found.fingerprint, found.entry) == ("first_use", print_, 1)
    assert peer_of(swarms.homes["shop"], "bank").keys[0].how == "first_use"


def test_a_pinned_key_that_is_another_one_is_reported_at_once(swarms: Swarms) -> None:
    swarms.register("shop")
    swarms.register("bank")
    wrong = key_files.create("wrong").fingerprint
    found = swarms.homes["shop"].swarms.allow("bank", key=wrong)
    assert isinstance(found, SwarmAllowed)
    assert found.entry is None
    assert "not on our list" in found.trouble
    assert agents(swarms.homes["shop"].swarms.discover("translate")) == []


def test_a_key_can_be_pinned_as_the_line_of_its_public_key(swarms: Swarms) -> None:
    swarms.register("shop")
    print_ = swarms.register("bank").fingerprint
    line = next(each.public_key for each in key_files.listed() if each.name == "bank")
    found = swarms.homes["shop"].swarms.allow("bank", key=line)
    assert isinstance(found, SwarmAllowed)
    assert (found.fingerprint, found.entry) == (print_, 1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "--first-use"),
        ({"key": "SHA256:short"}, "fingerprint"),
        ({"key": "SHA256:" + "A" * 43, "first_use": True}, "--first-use"),
    ],
)
def test_allowing_needs_a_key_or_the_word_first_use(
    swarms: Swarms, options: dict[str, object], says: str
) -> None:
    with pytest.raises(BadInput, match=says):
        swarms.home("shop").swarms.allow("bank", **options)  # type: ignore[arg-type]


def test_a_key_signs_for_one_swarm(swarms: Swarms) -> None:
    shop, _ = swarms.pair()
    print_ = peer_of(shop, "bank").keys[0].fingerprint
    with pytest.raises(BadInput, match="is the key of bank already"):
        shop.swarms.allow("store", key=print_)
    with pytest.raises(BadInput, match="key of this swarm"):
        shop.swarms.allow("store", key=own_of(shop).fingerprint)
    with pytest.raises(BadInput, match="this swarm itself"):
        shop.swarms.allow("shop", first_use=True)


def test_a_denied_swarm_is_neither_read_nor_found_and_can_be_allowed_again(
    swarms: Swarms,
) -> None:
    shop, _ = swarms.pair()
    print_ = peer_of(shop, "bank").keys[0].fingerprint
    assert agents(shop.swarms.discover("translate")) == ["bank-bot"]
    assert isinstance(shop.swarms.deny("bank", "the contract has ended"), SwarmDenied)
    assert agents(shop.swarms.discover("translate")) == []
    assert view_of(shop, "bank").role == "denied"
    swarms.sync("shop")
    assert floor_of(shop, "bank").refused == {}
    again = shop.swarms.deny("bank")
    assert isinstance(again, SwarmDenied)
    assert again.already
    shop.swarms.allow("bank", key=print_)
    assert agents(shop.swarms.discover("translate")) == ["bank-bot"]
    assert isinstance(shop.swarms.deny("store"), UnknownSwarm)


def test_an_operator_can_revoke_one_key_of_a_peer(swarms: Swarms) -> None:
    shop, _ = swarms.pair()
    print_ = peer_of(shop, "bank").keys[0].fingerprint
    shop.swarms.deny("bank", "stolen", key=print_)
    assert peer_of(shop, "bank").revoked == (print_,)
    found = shop.swarms.allow("bank", key=print_)
    assert isinstance(found, SwarmRevokedKey)


def test_the_trust_in_a_peer_shows_its_numbers_and_can_be_forgiven(swarms: Swarms) -> None:
    shop, _ = swarms.pair()
    bad = record(Reputation(), ["timeout"] * 30)
    write(shop, keys.reputation("bank"), bad)
    found = shop.swarms.trust()
    assert isinstance(found, PeerTrustList)
    (peer,) = found
    assert (peer.standing.timeouts, peer.standing.blocked) == (30, ("timeouts",))
    assert peer.breaker.state == "closed"
    assert shop.swarms.trust("bank", forgive=True) == Forgiven(swarm="bank", samples=30)
    found = shop.swarms.trust("bank")
    assert isinstance(found, PeerTrustList)
    assert found.peers[0].standing.samples == 0
    assert isinstance(shop.swarms.trust("store"), UnknownSwarm)
    with pytest.raises(BadInput, match="name the swarm"):
        shop.swarms.trust(forgive=True)


def test_the_limits_of_a_peer_are_set_with_its_key_or_alone_and_stay(swarms: Swarms) -> None:
    shop, _ = swarms.pair()
    found = shop.swarms.allow("bank", rate="200/10m", queue=50)
    assert isinstance(found, SwarmAllowed)
    assert (found.how, found.rate, found.window, found.queue, found.marks) == (
        "unchanged", 200, 600.0, 50, 300_000,
    )  # fmt: skip
    print_ = peer_of(shop, "bank").keys[0].fingerprint
    shop.swarms.allow("bank", key=print_)  # pinned again
    shop.swarms.deny("bank")
    shop.swarms.allow("bank", key=print_, marks=7)
    assert peer_of(shop, "bank").limits == PeerLimits(rate=200, window=600.0, queue=50, marks=7)
    shown = shop.swarms.trust("bank")
    assert isinstance(shown, PeerTrustList)
    assert (shown.peers[0].rate, shown.peers[0].marks) == (200, 7)
    shop.swarms.allow("bank", rate="0")
    assert peer_of(shop, "bank").limits.rate == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": "many"}, {"rate": "-1"}, {"rate": "10001"}, {"rate": "5/x"}, {"rate": "5/0s"},
        {"rate": "5/2d"}, {"rate": ""}, {"queue": 0}, {"marks": 10**9}, {"queue": True},
    ],
)  # fmt: skip
def test_limits_that_make_no_sense_are_refused(swarms: Swarms, wrong: dict[str, Any]) -> None:
    shop, _ = swarms.pair()
    with pytest.raises((BadInput, BadDuration)):
        shop.swarms.allow("bank", **wrong)


def test_limits_alone_allow_no_swarm(swarms: Swarms) -> None:
    shop, _ = swarms.pair()
    with pytest.raises(BadInput, match="name its key"):
        shop.swarms.allow("store", rate="5/1h")
    shop.swarms.deny("bank")
    with pytest.raises(BadInput, match="name its key"):
        shop.swarms.allow("bank", rate="5/1h")


def test_the_record_of_a_home_never_shows_where_its_bus_is(swarms: Swarms) -> None:
    """A URL may hold a password."""
    swarms.pair()
    shop = swarms.homes["shop"]
    shop.keys.rotate("shop")
    shop.keys.revoke(own_of(shop).fingerprint)
    page = Log(limit=1000)
    entries = shop.store.read(page).ranges[page]
    assert len(entries) > 5
    assert not [item for item in entries if b"memory:bus" in item.value]


def test_a_key_is_also_named_by_a_path_and_found_from_any_folder(
    swarms: Swarms, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_key("shop")
    monkeypatch.chdir(folder.parent)
    found = swarms.home("shop").swarms.register("shop", bus="memory:bus", key="./keys/shop")
    assert isinstance(found, SwarmRegistered)
    monkeypatch.chdir("/")
    assert swarms.sync("shop").trouble == ""
