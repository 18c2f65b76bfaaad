"""Rotation and revocation of the keys of swarms, as their peers see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.nouns.swarms.swarm_homes import Swarms, floor_of, made_key, own_of, peer_of

from interlock.client import Fleet
from interlock.core import keys
from interlock.errors import BadInput, NotAllowed
from interlock.nouns.swarms import key_files, registry
from interlock.nouns.swarms.envelope import claimed_signers
from interlock.nouns.swarms.head import RegistryHead
from interlock.nouns.swarms.results import KeyRevoked, KeyRotated, SwarmAllowed, SwarmRegistered
from interlock.nouns.swarms.views import swarm_findings
from interlock.steps import drive
from interlock.testing.audit import audit


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INTERLOCK_KEYS_DIR", str(tmp_path / "keys"))
    return tmp_path / "keys"


@pytest.fixture
def swarms() -> Iterator[Swarms]:
    with Swarms() as found:
        yield found
        assert [audit(fleet.store) for fleet in found.homes.values()] == [[], []]
        assert found.tampered or audit(found.bus) == []


def prints(home: Fleet, name: str) -> list[str]:
    return [key.fingerprint for key in peer_of(home, name).keys]


def rotate(swarms: Swarms, name: str) -> KeyRotated:
    found = swarms.homes[name].keys.rotate(name)
    assert isinstance(found, KeyRotated)
    return found


def revoke(swarms: Swarms, name: str, key: str) -> KeyRevoked:
    found = swarms.homes[name].keys.revoke(key, "lost")
    assert isinstance(found, KeyRevoked), found
    return found


def signers(swarms: Swarms, name: str) -> tuple[str, ...]:
    data = swarms.on_bus(keys.registry_entry(name))
    return claimed_signers(data or b"", RegistryHead)


def test_a_rotation_publishes_an_entry_that_both_keys_signed(swarms: Swarms) -> None:
    shop, bank = swarms.pair()
    found = rotate(swarms, "bank")
    assert (found.swarm, found.version, found.trouble) == ("bank", 2, "")
    assert found.until == pytest.approx(swarms.clock.wall() + registry.OVERLAP)
    assert signers(swarms, "bank") == (found.fingerprint, found.old_fingerprint)
    swarms.sync("shop")
    assert prints(shop, "bank") == [found.fingerprint, found.old_fingerprint]
    assert own_of(bank).fingerprint == found.fingerprint


def test_doctor_names_a_rotated_key_that_still_counts_and_how_to_end_it(swarms: Swarms) -> None:
    _, bank = swarms.pair()
    old = rotate(swarms, "bank").old_fingerprint
    facts = [each.fact for each in drive(swarm_findings(bank.context), bank.store)]
    said = f"{old} was rotated and counts for another 7 d; if it was stolen, end it:"
    assert f"{said} interlock key revoke {old}" in facts
    swarms.clock.advance(registry.OVERLAP + 1)
    swarms.sync("bank")
    assert len(drive(swarm_findings(bank.context), bank.store)) == 1


def test_after_the_overlap_the_new_key_signs_alone_and_the_old_file_may_go(
    swarms: Swarms, folder: Path
) -> None:
    shop, _ = swarms.pair()
    found = rotate(swarms, "bank")
    swarms.sync("shop")
    swarms.clock.advance(registry.OVERLAP + 1)
    (folder / found.old).unlink()
    assert swarms.sync("bank").trouble == ""
    swarms.sync("shop")
    assert prints(shop, "bank") == [found.fingerprint]


def test_a_key_that_was_rotated_without_the_store_is_taken_over_by_the_next_pass(
    swarms: Swarms,
) -> None:
    shop, bank = swarms.pair()
    new, old = key_files.rotate("bank", swarms.clock.wall())
    swarms.sync("bank", force=False)
    assert [key.fingerprint for key in own_of(bank).keys] == [new.fingerprint, old.fingerprint]
    swarms.sync("shop")
    assert prints(shop, "bank") == [new.fingerprint, old.fingerprint]


def test_a_rotation_while_the_bus_is_away_is_published_later(swarms: Swarms) -> None:
    shop, _ = swarms.pair()
    swarms.connections["bank"].cut = True
    found = rotate(swarms, "bank")
    assert found.version is None
    assert "cut off" in found.trouble
    swarms.connections["bank"].cut = False
    assert swarms.sync("bank", force=False).published
    swarms.sync("shop")
    assert prints(shop, "bank") == [found.fingerprint, found.old_fingerprint]


def test_registering_with_another_key_is_a_rotation(swarms: Swarms) -> None:
    _, bank = swarms.pair()
    before = own_of(bank).fingerprint
    found = swarms.register("bank", key="bank2")
    assert signers(swarms, "bank") == (found.fingerprint, before)
    with pytest.raises(BadInput, match="was rotated and will end"):
        bank.swarms.register("bank", bus="memory:bus", key="bank")


def test_a_rotation_beyond_the_number_of_keys_changes_no_file(swarms: Swarms) -> None:
    swarms.pair()
    for _ in range(3):
        rotate(swarms, "bank")
        swarms.clock.advance(1)
    before = key_files.listed()
    with pytest.raises(BadInput, match="rotate again in 7 d"):
        rotate(swarms, "bank")
    assert key_files.listed() == before


def test_a_revoked_key_ends_at_every_peer_with_its_next_look(swarms: Swarms) -> None:
    shop, _ = swarms.pair()
    rotated = rotate(swarms, "bank")
    swarms.sync("shop")
    found = revoke(swarms, "bank", rotated.old)
    assert (found.fingerprint, found.current) == (rotated.old_fingerprint, rotated.fingerprint)
    done = swarms.sync("shop")
    assert done.revoked == (rotated.old_fingerprint,)
    assert prints(shop, "bank") == [rotated.fingerprint]
    assert peer_of(shop, "bank").revoked == (rotated.old_fingerprint,)
    assert floor_of(shop, "bank").refused == {}


def test_a_revocation_while_the_bus_is_away_is_posted_later(swarms: Swarms) -> None:
    swarms.pair()
    rotated = rotate(swarms, "bank")
    swarms.sync("shop")
    swarms.connections["bank"].cut = True
    assert "cut off" in revoke(swarms, "bank", rotated.old).trouble
    swarms.connections["bank"].cut = False
    again = revoke(swarms, "bank", rotated.old_fingerprint)
    assert (again.already, again.trouble) == (True, "")
    assert swarms.sync("shop").revoked == (rotated.old_fingerprint,)


def test_a_revocation_that_was_deleted_from_the_bus_is_put_there_again(swarms: Swarms) -> None:
    swarms.pair()
    rotated = rotate(swarms, "bank")
    revoke(swarms, "bank", rotated.old)
    key = keys.revocation("bank", rotated.old_fingerprint)
    posted = swarms.on_bus(key)
    swarms.put_on_bus(key, b"null")
    swarms.sync("bank", force=False)
    assert swarms.on_bus(key) == posted


def test_a_swarm_that_revokes_its_only_key_is_refused_until_another_one_is_pinned(
    swarms: Swarms,
) -> None:
    shop, bank = swarms.pair()
    only = own_of(bank).fingerprint
    assert revoke(swarms, "bank", "bank").current == ""
    assert swarms.sync("shop").revoked == (only,)
    assert prints(shop, "bank") == []
    assert "has no key any more" in swarms.unsynced("bank").trouble
    (advice,) = drive(swarm_findings(bank.context), bank.store)
    assert "has no key any more" in advice.fact
    assert "interlock key new NAME; register with it: interlock swarm register" in advice.remedy
    with pytest.raises(BadInput, match="revoked, permanently"):
        bank.swarms.register("bank", bus="memory:bus", key="bank")
    registered = bank.swarms.register("bank", bus="memory:bus", key=made_key("bank2"))
    assert isinstance(registered, SwarmRegistered)
    assert "not_pinned" in [each.reason for each in swarms.sync("shop").refused]
    found = shop.swarms.allow("bank", key=registered.fingerprint)
    assert isinstance(found, SwarmAllowed)
    assert found.entry == registered.version


def test_a_rotated_key_never_becomes_the_current_one_again(swarms: Swarms) -> None:
    _, bank = swarms.pair()
    rotate(swarms, "bank")
    found = revoke(swarms, "bank", "bank")
    assert found.current == ""
    assert own_of(bank).keys == ()
    assert "has no key any more" in swarms.unsynced("bank").trouble


def test_a_key_that_is_no_key_of_the_swarm_cannot_be_revoked(swarms: Swarms) -> None:
    swarms.pair()
    with pytest.raises(BadInput, match="signs neither for bank nor for an agent"):
        swarms.homes["bank"].keys.revoke("shop")


def test_the_keys_of_this_user_are_listed_with_their_age(swarms: Swarms, folder: Path) -> None:
    import os

    swarms.pair()
    old = folder / "shop"
    os.utime(old, (1, 1))
    found = {each.key: each for each in swarms.homes["shop"].keys.list()}
    assert found["shop"].overdue
    assert not found["bank"].overdue
    assert swarms.homes["shop"].keys.new("third").fingerprint.startswith("SHA256:")


# The file of the key.


def write_over(path: Path) -> None:
    path.write_bytes((path.parent / "shop").read_bytes())


def make_a_link(path: Path) -> None:
    path.rename(path.parent.parent / "moved")
    path.symlink_to(path.parent.parent / "moved")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (write_over, "restore the key"),
        (lambda path: path.chmod(0o644), "chmod 600"),
        (make_a_link, "is a link; name the file that it leads to"),
        (lambda path: path.write_bytes(b"rubbish"), "not a private key"),
        (lambda path: path.unlink(), "run this where it is"),
    ],
)
def test_a_key_file_that_cannot_be_used_is_never_taken_for_another_key(
    swarms: Swarms, folder: Path, damage: Callable[[Path], object], said: str
) -> None:
    _, bank = swarms.pair()
    before = own_of(bank)
    good = (folder / "bank").read_bytes()
    damage(folder / "bank")
    assert said in swarms.unsynced("bank").trouble
    assert own_of(bank) == before
    with pytest.raises(NotAllowed, match=said):
        bank.requests.send("shop", "can:sum", [1])
    (folder / "bank").unlink(missing_ok=True)
    (folder / "bank").write_bytes(good)
    (folder / "bank").chmod(0o600)
    swarms.clock.advance(10)
    assert swarms.sync("bank").trouble == ""
    assert bank.requests.send("shop", "can:sum", [1])
