"""What anyone with the bus's credentials can do to snapshots and shared values: nothing counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import count
from pathlib import Path

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace
from tests.nouns.swarms.swarm_homes import Process, Swarms, floor_of, own_of

from interlock.client import Fleet
from interlock.core import codec, keys
from interlock.core.signing import KeySigner, from_base64
from interlock.nouns.swarms import key_files
from interlock.nouns.swarms.envelope import sign_head
from interlock.nouns.swarms.head import milliseconds
from interlock.nouns.swarms.shared import ITEM_LIMIT, SharedItem, decode_copy
from interlock.nouns.swarms.sync_heads import SharedHead, StateHead
from interlock.nouns.swarms.sync_results import (
    SharedView,
    ShareUndecided,
    SwarmState,
    UnknownShared,
    ValueShared,
)
from interlock.nouns.swarms.sync_rules import SYNC_EVERY
from interlock.store import Put, Range, Txn
from interlock.testing.testbed import Stepper


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
def bank(swarms: Swarms) -> Fleet:
    return swarms.homes["bank"]


def key_of(name: str) -> KeySigner:
    return key_files.load(name)


@pytest.fixture
def thief() -> KeySigner:
    key_files.create("thief")
    return key_of("thief")


# Shared values.


def head_on(swarms: Swarms, key: str = "k") -> SharedHead:
    data = swarms.on_bus(keys.shared(key))
    assert data is not None
    envelope = msgspec.json.decode(data)["envelope"]
    return msgspec.json.decode(from_base64(envelope["payload"]) or b"", type=SharedHead)


def item(head: SharedHead, by: KeySigner, value: bytes = b"66") -> bytes:
    """An item on the bus, signed by this key; the hash of the value is right."""
    fits = replace(
        head,
        key=by.fingerprint,
        source_hash=sha256(value).hexdigest(),
        source_size=len(value),
    )
    return codec.encode(SharedItem(envelope=Raw(sign_head(fits, by)), value=Raw(value)))


def put(swarms: Swarms, data: bytes, key: str = "k") -> None:
    swarms.put_on_bus(keys.shared(key), data)


def view(home: Fleet, key: str = "k") -> SharedView:
    found = home.swarms.shared(key)
    assert isinstance(found, SharedView), found
    return found


@pytest.fixture
def read(swarms: Swarms, shop: Fleet, bank: Fleet) -> SharedHead:
    """A value of the bank that the shop has read, after another one."""
    for value in (1, 2):
        assert isinstance(bank.swarms.share("k", value), ValueShared)
        assert view(shop).value == value
    return head_on(swarms)


def next_head(swarms: Swarms, head: SharedHead) -> SharedHead:
    """A head that would be accepted, if the bank had signed it."""
    stands = swarms.bus.read(keys.shared("k"))[keys.shared("k")]
    assert stands is not None
    return replace(head, replaces=stands.revision, base=stands.revision)


Attack = Callable[[Swarms, SharedHead, KeySigner], bytes]
ATTACKS: dict[str, tuple[str, Attack]] = {
    "forged": ("unknown_key", lambda _, head, thief: item(head, thief)),
    "in the name of another swarm": (
        "wrong_sender",
        lambda _, head, thief: item(replace(head, from_swarm="shop"), key_of("bank")),
    ),
    "for another key": (
        "wrong_key",
        lambda _, head, thief: item(replace(head, shared_key="other"), key_of("bank")),
    ),
    "for another bus": (
        "wrong_bus",
        lambda _, head, thief: item(replace(head, bus="bus_2"), key_of("bank")),
    ),
    "another value beside the envelope": (
        "body_mismatch",
        lambda _, head, thief: item(head, key_of("bank")).replace(b":66}", b":67}"),
    ),
    "nested too deep": (
        "malformed",
        lambda _, head, thief: item(head, key_of("bank"), b"[" * 20_000 + b"]" * 20_000),
    ),
    "no JSON": ("malformed", lambda _, head, thief: b"\x00\xff"),
    "another field": (
        "malformed",
        lambda _, head, thief: item(head, key_of("bank"))[:-1] + b',"more":1}',
    ),
    "truncated": ("malformed", lambda _, head, thief: item(head, key_of("bank"))[:-20]),
    "too large": ("too_large", lambda _, head, thief: b"[" + b" " * ITEM_LIMIT + b"]"),
    "a request": (
        "wrong_type",
        lambda _, head, thief: item(head, key_of("bank")).replace(b"shared.v1", b"requst.v1"),
    ),
    "replayed": (
        "rollback",
        lambda swarms, head, thief: item(
            replace(head, replaces=head.replaces - 1, base=0), key_of("bank")
        ),
    ),
    "from the future of the bus": (
        "rollback",
        lambda _, head, thief: item(replace(head, replaces=2**40, base=0), key_of("bank")),
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_what_does_not_count_is_refused_and_our_copy_stays(
    swarms: Swarms, shop: Fleet, read: SharedHead, thief: KeySigner, name: str
) -> None:
    reason, attack = ATTACKS[name]
    put(swarms, attack(swarms, next_head(swarms, read) if reason != "rollback" else read, thief))
    found = view(shop)
    assert (found.value, found.swarm) == (2, "bank")
    assert found.refused.startswith(f"{reason}: "), found.refused
    said = shop.why("shared/k")
    assert said.blocked
    asked = shop.swarms.share("k", 3)
    assert isinstance(asked, ShareUndecided)
    assert (asked.swarm, asked.value) == ("", None)


def test_a_valid_next_head_of_the_bank_would_be_accepted(
    swarms: Swarms, shop: Fleet, read: SharedHead
) -> None:
    put(swarms, item(next_head(swarms, read), key_of("bank")))
    assert view(shop).value == 66


def test_an_item_that_is_put_back_is_a_replay_though_its_bytes_are_those_of_our_copy(
    swarms: Swarms, shop: Fleet, bank: Fleet, read: SharedHead
) -> None:
    before = swarms.on_bus(keys.shared("k"))
    assert before is not None
    assert isinstance(bank.swarms.share("k", 3), ValueShared)
    put(swarms, before)
    found = view(shop)
    assert found.value == 2
    assert found.refused.startswith("rollback")
    assert isinstance(bank.swarms.shared("k"), SharedView)
    assert view(bank).value == 3


def test_a_value_that_was_deleted_is_still_known_and_not_written_without_a_person(
    swarms: Swarms, shop: Fleet, read: SharedHead
) -> None:
    swarms.bus.commit(Txn(id="txn_gone", deletes=(keys.shared("k"),), quiet=True))
    swarms.tampered = True
    found = view(shop)
    assert found.value == 2
    assert found.refused.startswith("deleted")
    asked = shop.swarms.share("k", 3)
    assert isinstance(asked, ShareUndecided)
    assert asked.revision == 0
    maria = Process(swarms, shop.store, "maria")
    maria.run(maria.messages.resolve(asked.decision, "take_other"))
    assert (view(shop).value, view(shop).refused) == (3, "")


def test_a_bus_that_was_set_back_is_refused_until_an_operator_accepts_it(
    swarms: Swarms, shop: Fleet, bank: Fleet, read: SharedHead
) -> None:
    old = swarms.on_bus(keys.shared("k"))
    assert old is not None
    bank.swarms.share("k", 3)
    assert view(shop).value == 3
    put(swarms, old)
    assert view(shop).refused.startswith("rollback")
    found = shop.swarms.shared("k", accept=True)
    assert isinstance(found, SharedView)
    assert (found.value, found.refused) == (2, "")
    assert isinstance(shop.swarms.share("k", 4), ValueShared)


def test_a_value_of_a_stranger_is_not_overwritten_without_a_person(
    swarms: Swarms, shop: Fleet, bank: Fleet
) -> None:
    """The bank trusts the school, and the shop does not."""
    school = swarms.register("school").fingerprint
    bank.swarms.allow("school", key=school)
    assert isinstance(swarms.homes["school"].swarms.share("k", "lesson"), ValueShared)
    refused = view(shop)
    assert (refused.value, refused.swarm) == (None, "")
    assert refused.refused.startswith("unknown_key")
    assert shop.store.read(keys.copy("k"))[keys.copy("k")] is None
    assert isinstance(shop.swarms.share("k", "price"), ShareUndecided)
    assert view(bank).value == "lesson"


def test_nothing_counts_that_was_verified_with_a_trust_that_has_ended_before_the_commit(
    swarms: Swarms, shop: Fleet, bank: Fleet, read: SharedHead
) -> None:
    """The shop denies the bank after each step of a process that reads a newer value."""
    assert isinstance(bank.swarms.share("k", 3), ValueShared)
    for before in count():
        process = Process(swarms, shop.store, f"slow{before}")
        slow = Stepper(process.swarms.shared("k"), process.home, swarms.clock)
        for _ in range(before):
            slow.go()
        kept = decode_copy(shop.store.read(keys.copy("k"))[keys.copy("k")])
        assert kept is not None
        shop.swarms.deny("bank")
        slow.run()
        found = slow.result()
        assert isinstance(found, SharedView)
        if bytes(kept.value) == b"3":  # the commit was before that
            assert before > 3
            assert found.value == 3
            return
        assert found.value == 2
        assert found.refused.startswith("unknown_key")
        shop.swarms.allow("bank", key=own_of(bank).fingerprint)


def test_the_key_that_measures_the_age_cannot_be_used_to_win(
    swarms: Swarms, shop: Fleet, bank: Fleet
) -> None:
    """An attacker makes a value look as if it was stored just now, or long ago."""
    shop.swarms.share("k", 1)
    swarms.clock.advance(1)
    live = keys.shared_live("k")
    swarms.bus.commit(Txn(id="txn_1", puts=(Put(live, b'"x"', 1e6),), quiet=True))
    found = bank.swarms.share("k", 2)
    assert isinstance(found, ShareUndecided)
    assert found.reason == "simultaneous_update"
    shop.swarms.share("j", 1)
    swarms.clock.advance(1)
    swarms.bus.commit(Txn(id="txn_2", deletes=(keys.shared_live("j"),), quiet=True))
    swarms.tampered = True
    found = bank.swarms.share("j", 2)
    assert isinstance(found, ShareUndecided)
    assert found.reason == "stale_base"


def test_a_forged_note_of_our_last_write_does_not_make_a_write_disappear(
    swarms: Swarms, shop: Fleet, bank: Fleet, thief: KeySigner
) -> None:
    shop.swarms.share("k", 1)
    swarms.connections["shop"].cut = True
    shop.swarms.share("k", 2)
    (waits,) = every_key(shop, keys.SHARED_WRITES)
    id_ = keys.id_of(waits).partition(".")[2]
    for by, swarm in ((thief, "shop"), (key_of("bank"), "bank"), (key_of("bank"), "shop")):
        forged = replace(head_on(swarms), write_id=id_, from_swarm=swarm, key=by.fingerprint)
        swarms.put_on_bus(keys.shared_last("shop", "k"), sign_head(forged, by))
        swarms.connections["shop"].cut = False
        swarms.clock.advance(20)
        if swarms.sync("shop", force=False).posted:
            break
    assert view(bank).value == 2


def every_key(home: Fleet, prefix: str) -> list[str]:
    page = Range(prefix)
    return [item.key for item in home.store.read(page).ranges[page]]


def test_a_flood_of_keys_on_the_bus_fills_no_home(swarms: Swarms, shop: Fleet) -> None:
    for number in range(150):
        put(swarms, b'"rubbish"', f"k{number:03}")
    shop.swarms.share("zzz", 1)
    for _ in range(2):
        swarms.sync("shop")
    listed = shop.swarms.shared_list()
    assert listed
    assert len(listed) == 101
    assert listed.values[-1].key == "zzz"
    assert every_key(shop, keys.COPIES) == [keys.copy("zzz")]


def test_the_same_refusal_is_recorded_once_in_five_minutes(
    swarms: Swarms, shop: Fleet, read: SharedHead
) -> None:
    put(swarms, b'"rubbish"')
    view(shop)
    before = shop.store.read(keys.OWN_SWARM).revision
    for _ in range(3):
        view(shop)
        swarms.clock.advance(60)
    assert shop.store.read(keys.OWN_SWARM).revision == before
    swarms.clock.advance(SYNC_EVERY)
    view(shop)
    assert shop.store.read(keys.OWN_SWARM).revision == before + 1


def test_an_unknown_value_that_is_refused_is_not_shown(swarms: Swarms, shop: Fleet) -> None:
    put(swarms, b'{"envelope":1,"value":"secret"}')
    assert view(shop).value is None
    assert isinstance(shop.swarms.shared("other"), UnknownShared)


# Snapshots.


def state_on(swarms: Swarms, name: str) -> StateHead:
    data = swarms.on_bus(keys.state(name))
    assert data is not None
    payload = from_base64(msgspec.json.decode(data)["payload"])
    return msgspec.json.decode(payload or b"", type=StateHead)


def state_of(home: Fleet, name: str) -> SwarmState:
    found = home.swarms.states()
    assert found
    return next(each for each in found if each.swarm == name)


@pytest.fixture
def state(swarms: Swarms) -> StateHead:
    """The second snapshot of the bank, which the shop has accepted."""
    for _ in range(2):
        swarms.sync("bank")
        swarms.sync("shop")
    return state_on(swarms, "bank")


STATE_ATTACKS: dict[str, tuple[str, Callable[[StateHead, KeySigner], bytes]]] = {
    "forged": (
        "unknown_key",
        lambda head, thief: sign_head(replace(head, version=9, key=thief.fingerprint), thief),
    ),
    "replayed": (
        "rollback",
        lambda head, thief: sign_head(replace(head, version=1), key_of("bank")),
    ),
    "of another swarm": (
        "unknown_key",
        lambda head, thief: sign_head(
            replace(head, version=9, from_swarm="shop", key=key_of("shop").fingerprint),
            key_of("shop"),
        ),
    ),
    "for another bus": (
        "wrong_bus",
        lambda head, thief: sign_head(replace(head, version=9, bus="bus_2"), key_of("bank")),
    ),
    "of another time": (
        "future",
        lambda head, thief: sign_head(
            replace(
                head,
                version=9,
                timestamp=head.timestamp + 3_600_000,
                expires=head.expires + 3_600_000,
            ),
            key_of("bank"),
        ),
    ),
    "too large": ("too_large", lambda head, thief: b"[" + b" " * 300_000 + b"]"),
    "rubbish": ("malformed", lambda head, thief: b"{}"),
    "two states as one version": (
        "divergence",
        lambda head, thief: sign_head(replace(head, completed_tasks=99), key_of("bank")),
    ),
}


@pytest.mark.parametrize("name", STATE_ATTACKS)
def test_a_snapshot_that_does_not_count_is_refused_and_the_last_one_stays(
    swarms: Swarms, shop: Fleet, state: StateHead, thief: KeySigner, name: str
) -> None:
    reason, attack = STATE_ATTACKS[name]
    swarms.put_on_bus(keys.state("bank"), attack(state, thief))
    assert [each.reason for each in swarms.sync("shop").refused] == [reason]
    found = state_of(shop, "bank")
    assert (found.version, found.completed_tasks) == (2, 0)
    assert floor_of(shop, "bank").refused == {reason: 1}
    alarms = [each.says for each in shop.health().problems if "two different states" in each.says]
    assert bool(alarms) == (reason == "divergence")
    assert bool(found.refused) == (reason == "divergence")


def test_the_swarm_itself_replaces_a_snapshot_that_it_did_not_sign(
    swarms: Swarms, shop: Fleet, state: StateHead, thief: KeySigner
) -> None:
    forged = replace(state, version=9, key=thief.fingerprint)
    swarms.put_on_bus(keys.state("bank"), sign_head(forged, thief))
    assert swarms.sync("bank", force=False).stated
    swarms.sync("shop")
    assert state_of(shop, "bank").version == 3


def test_a_bus_that_lost_all_snapshots_gets_them_again_with_a_higher_version(
    swarms: Swarms, shop: Fleet, state: StateHead
) -> None:
    swarms.bus.commit(Txn(id="txn_x", deletes=(keys.state("bank"),), quiet=True))
    swarms.tampered = True
    swarms.sync("shop")
    assert state_of(shop, "bank").version == state.version
    assert swarms.sync("bank", force=False).state == state.version + 1
    swarms.sync("shop")
    assert state_of(shop, "bank").version == state.version + 1


def test_an_old_snapshot_of_a_swarm_that_is_away_is_shown_with_its_time_and_not_counted(
    swarms: Swarms, shop: Fleet, state: StateHead
) -> None:
    swarms.clock.advance(86400)
    refused = [each for each in swarms.sync("shop").refused if "state" in each.detail]
    assert refused == []
    assert milliseconds(state_of(shop, "bank").at or 0) == state.timestamp
