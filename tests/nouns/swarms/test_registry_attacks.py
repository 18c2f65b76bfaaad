"""What a thief, or anyone with the bus's credentials, can put on the bus: nothing of it counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.nouns.swarms.swarm_heads import sign_bytes
from tests.nouns.swarms.swarm_homes import Swarms, floor_of, own_of, peer_of, view_of

from interlock.client import Fleet
from interlock.core import keys, signing
from interlock.core.signing import KeySigner
from interlock.nouns.swarms import head, key_files, registry
from interlock.nouns.swarms.envelope import sign_head
from interlock.nouns.swarms.head import ListedKey, RegistryHead, RevocationHead, milliseconds
from interlock.nouns.swarms.results import Discovered, SwarmAllowed

LATEST = 2**53


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_KEYS_DIR", str(tmp_path / "keys"))


@pytest.fixture
def swarms() -> Iterator[Swarms]:
    with Swarms() as found:
        found.pair()
        yield found


@pytest.fixture
def shop(swarms: Swarms) -> Fleet:
    return swarms.homes["shop"]


@pytest.fixture
def thief() -> KeySigner:
    key_files.create("thief")
    return key_files.load("thief")


def listed(key: KeySigner, until: float = 0.0) -> ListedKey:
    return ListedKey(public=signing.to_base64(key.public_key), until=milliseconds(until))


def entry(swarms: Swarms, version: int, *by: KeySigner, swarm: str = "bank") -> RegistryHead:
    """An entry of the bank with one agent more, for these keys."""
    bus = own_of(swarms.homes["bank"]).bus_id
    now = swarms.clock.wall()
    ends = now + registry.OVERLAP
    return registry.next_entry(
        swarm,
        bus,
        version,
        keys=(listed(by[0]), *[listed(key, ends) for key in by[1:]]),
        agents=(head.registered_agent("mallory", ("translate",)),),
        depth=0,
        now=now,
    )


def put(swarms: Swarms, data: bytes, swarm: str = "bank") -> None:
    swarms.put_on_bus(keys.registry_entry(swarm), data)


def refusal(swarms: Swarms) -> list[str]:
    """Why the shop refuses what stands on the bus as the bank's entry."""
    return [each.reason for each in swarms.sync("shop").refused]


def found(shop: Fleet) -> list[str]:
    answer = shop.swarms.discover("translate")
    assert isinstance(answer, Discovered)
    return [each.agent for each in answer]


def bank_key() -> KeySigner:
    return key_files.load("bank")


def test_an_entry_that_was_put_back_is_a_rollback(swarms: Swarms, shop: Fleet) -> None:
    old = swarms.on_bus(keys.registry_entry("bank")) or b""
    swarms.sync("bank")
    swarms.sync("shop")
    put(swarms, old)
    assert refusal(swarms) == ["rollback"]
    assert (floor_of(shop, "bank").version, floor_of(shop, "bank").refused) == (2, {"rollback": 1})
    assert "rollback" in view_of(shop, "bank").last_refused
    assert found(shop) == ["bank-bot"]


def test_two_texts_of_one_version_raise_an_alarm(swarms: Swarms, shop: Fleet) -> None:
    put(swarms, sign_head(entry(swarms, 1, bank_key()), bank_key()))
    assert refusal(swarms) == ["equivocation"]
    assert found(shop) == ["bank-bot"]
    (problem,) = [each for each in shop.health() if each.kind == "refused"]
    assert "two different entries" in problem.says
    last = shop.record.log(limit=1)[-1]
    assert (last.verb, last.reason) == ("swarm.refresh", "bank: equivocation")
    assert "swarm:alarm" in [event.name for event in last.events]


def test_a_bus_that_stands_still_does_not_keep_a_swarm_alive(swarms: Swarms, shop: Fleet) -> None:
    swarms.clock.advance(registry.ENTRY_TTL + registry.CLOCK_SKEW + 1)
    swarms.put_on_bus("registry-still", b"null")
    assert refusal(swarms) == ["expired"]
    assert found(shop) == []
    assert view_of(shop, "bank").status == "offline"


def test_a_version_that_a_thief_made_too_high_is_left_by_pinning_again(
    swarms: Swarms, shop: Fleet
) -> None:
    put(swarms, sign_head(entry(swarms, LATEST, bank_key()), bank_key()))
    swarms.sync("shop")
    assert floor_of(shop, "bank").version == LATEST
    stolen = own_of(swarms.homes["bank"]).fingerprint
    swarms.homes["bank"].keys.rotate("bank")  # the highest version cannot be followed
    swarms.homes["bank"].keys.revoke(stolen, "stolen")
    done = swarms.sync("bank")
    assert (done.published, done.trouble) == (True, "")
    assert "rollback" not in [each.reason for each in swarms.sync("bank").refused]
    assert stolen in swarms.sync("shop").revoked
    fresh = own_of(swarms.homes["bank"]).fingerprint
    answer = shop.swarms.allow("bank", key=fresh)
    assert isinstance(answer, SwarmAllowed)
    assert answer.entry is not None
    assert found(shop) == ["bank-bot"]


def test_the_key_inside_of_an_entry_counts_for_nothing(
    swarms: Swarms, shop: Fleet, thief: KeySigner
) -> None:
    put(swarms, sign_head(entry(swarms, 2, thief), thief))
    assert refusal(swarms) == ["unknown_key"]
    put(swarms, sign_head(entry(swarms, 2, thief, bank_key()), thief, bank_key()))
    swarms.sync("shop")  # the bank's own key vouches for the other one: that is a rotation
    assert [key.how for key in peer_of(shop, "bank").keys] == ["rotated", "pinned"]


def test_a_key_of_small_order_is_refused_with_a_signature_that_fits_everything(
    swarms: Swarms, shop: Fleet
) -> None:
    weak = bytes([1, *[0] * 31])

    class Anyone:
        public_key = weak
        fingerprint = signing.fingerprint(weak)

        def sign(self, _data: bytes) -> bytes:
            return weak + bytes(32)

    forged = replace(
        entry(swarms, 2, bank_key()),
        key=Anyone.fingerprint,
        keys=(ListedKey(public=signing.to_base64(weak)),),
    )
    data = sign_bytes(head.encode(forged), Anyone(), RegistryHead)  # type: ignore[arg-type]
    put(swarms, data)
    assert refusal(swarms) == ["unknown_key"]
    shop.swarms.deny("bank")
    shop.swarms.allow("bank", key=Anyone.fingerprint)
    assert refusal(swarms) == ["unknown_key"]
    put(swarms, data, "store")
    shop.swarms.allow("store", first_use=True)
    assert peer_of(shop, "store").keys == ()


def test_an_entry_of_a_revoked_key_is_refused(swarms: Swarms, shop: Fleet) -> None:
    rotated = swarms.homes["bank"].keys.rotate("bank")
    swarms.sync("shop")
    old = key_files.load(rotated.old)
    swarms.homes["bank"].keys.revoke(rotated.old_fingerprint)
    swarms.sync("shop")
    put(swarms, sign_head(entry(swarms, 9, bank_key(), old), bank_key(), old))
    assert refusal(swarms) == ["revoked_key"]
    put(swarms, sign_head(entry(swarms, 9, old), old))
    assert refusal(swarms) == ["revoked_key"]


def test_the_thief_of_a_rotated_key_cannot_publish_with_it(
    swarms: Swarms, shop: Fleet, thief: KeySigner
) -> None:
    rotated = swarms.homes["bank"].keys.rotate("bank")
    swarms.sync("shop")
    old = key_files.load(rotated.old)
    put(swarms, sign_head(entry(swarms, 9, old), old))
    assert refusal(swarms) == ["retired_key"]
    put(swarms, sign_head(entry(swarms, 9, thief, old), thief, old))
    assert refusal(swarms) == ["retired_key"]


def test_an_entry_is_worth_nothing_under_another_name_or_on_another_bus(
    swarms: Swarms, shop: Fleet
) -> None:
    put(swarms, sign_head(entry(swarms, 2, bank_key(), swarm="store"), bank_key()))
    assert refusal(swarms) == ["wrong_sender"]
    elsewhere = replace(entry(swarms, 2, bank_key()), bus="bus_elsewhere")
    put(swarms, sign_head(elsewhere, bank_key()))
    assert refusal(swarms) == ["wrong_bus"]


def test_a_swarm_that_is_not_on_the_list_is_not_read(
    swarms: Swarms, shop: Fleet, thief: KeySigner
) -> None:
    put(swarms, sign_head(entry(swarms, 1, thief, swarm="mafia"), thief), "mafia")
    swarms.put_on_bus(keys.swarm_live("mafia"), b'"mafia"')
    assert "mafia" not in swarms.sync("shop").accepted
    assert found(shop) == ["bank-bot"]
    assert view_of(shop, "mafia").role == "stranger"


def test_a_revocation_by_a_stranger_ends_nothing(
    swarms: Swarms, shop: Fleet, thief: KeySigner
) -> None:
    print_ = own_of(swarms.homes["bank"]).fingerprint
    forged = RevocationHead(
        from_swarm="bank",
        key=thief.fingerprint,
        timestamp=milliseconds(swarms.clock.wall()),
        revokes=print_,
        reason="",
    )
    swarms.put_on_bus(keys.revocation("bank", print_), sign_head(forged, thief))
    assert refusal(swarms) == ["unknown_key"]
    assert peer_of(shop, "bank").revoked == ()


def test_the_same_forgery_fills_neither_the_counters_nor_the_record(
    swarms: Swarms, shop: Fleet, thief: KeySigner
) -> None:
    put(swarms, sign_head(entry(swarms, 2, thief), thief))
    swarms.sync("shop")
    before = shop.store.read().revision
    for _ in range(5):
        swarms.clock.advance(31)
        shop.swarms.discover("translate")
    assert floor_of(shop, "bank").refused == {"unknown_key": 1}
    assert shop.store.read().revision <= before + 1


@pytest.mark.parametrize(
    "data", [b"", b"null", b"[" * 100_000, b"x" * 300_000, b'{"payloadType":"x"}']
)
def test_junk_is_refused_and_harms_no_other_peer(
    swarms: Swarms, shop: Fleet, data: bytes, thief: KeySigner
) -> None:
    del thief
    swarms.register("store")
    shop.swarms.allow("store", first_use=True)
    put(swarms, data or b"0")
    assert refusal(swarms)[0] in ("malformed", "too_large")
    assert "store-bot" in found(shop)


def test_trust_that_changes_during_a_refresh_makes_it_start_over(
    swarms: Swarms, shop: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    from interlock.nouns.swarms import registry_service

    print_ = own_of(swarms.homes["bank"]).fingerprint
    swarms.sync("bank")
    judged, calls = registry_service.judged, []

    def denied_meanwhile(*args: object) -> object:
        calls.append(args)
        if len(calls) == 1:
            shop.swarms.deny("bank", key=print_)
        return judged(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(registry_service, "judged", denied_meanwhile)
    swarms.sync("shop")
    assert len(calls) == 2
    assert peer_of(shop, "bank").revoked == (print_,)
    assert floor_of(shop, "bank").version == 1
