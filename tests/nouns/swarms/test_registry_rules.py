"""A reader of the registry: which entries count, and which keys."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.nouns.swarms.swarm_heads import sign_bytes, signer

from interlock.core import signing
from interlock.core.signing import KeySigner
from interlock.errors import BadInput
from interlock.nouns.swarms import registry
from interlock.nouns.swarms.envelope import open_envelope, sign_head
from interlock.nouns.swarms.head import (
    DEADLINE,
    ListedKey,
    RegisteredAgent,
    RegistryHead,
    RevocationHead,
    digest,
    encode,
    milliseconds,
    registered_agent,
)
from interlock.nouns.swarms.registry_rules import (
    REVOKED_LIMIT,
    EntryAccepted,
    RegistryRefusal,
    all_trusted_keys,
    judge_entry,
    judge_revocation,
    pin,
    refused,
    revoke,
    trust_first_use,
    trusted_keys,
)
from interlock.nouns.swarms.swarm import Floor, Peer, PeerKey

NOW = 1_700_000_000.0
HOUR = 3600.0
BUS = "bus_1"
OLD, NEW, THIEF, ADA, FOURTH, FIFTH = (signer(number) for number in range(11, 17))
EMPTY = Floor(swarm="bank")


def listed(key: KeySigner, until: float = 0.0) -> ListedKey:
    return ListedKey(public=signing.to_base64(key.public_key), until=milliseconds(until))


def entry(version: int = 1, *keys: ListedKey, at: float = NOW) -> RegistryHead:
    agents = (RegisteredAgent(agent="ada", can=("search",)),)
    return registry.next_entry(
        "bank", BUS, version, keys=keys or (listed(OLD),), agents=agents, depth=0, now=at
    )


def signed(said: RegistryHead, *by: KeySigner) -> bytes:
    return sign_head(said, *(by or (OLD,)))


def unchecked(said: RegistryHead, by: KeySigner) -> bytes:
    """An entry that ``sign_head`` would refuse to sign, as a hostile swarm signs it."""
    return sign_bytes(encode(said), by, RegistryHead)


def pinned(key: KeySigner = OLD) -> Peer:
    peer = pin(None, "bank", key.fingerprint, NOW)
    assert isinstance(peer, Peer)
    return peer


def read(peer: Peer, data: bytes, floor: Floor = EMPTY, now: float = NOW) -> tuple[Peer, Floor]:
    """The peer and the floor after an entry that is accepted."""
    found = judge_entry(peer, floor, data, BUS, now)
    assert isinstance(found, EntryAccepted), found
    return found.peer, found.floor


def refusal(peer: Peer, data: bytes, floor: Floor = EMPTY, now: float = NOW) -> str:
    """Why an entry is refused."""
    found = judge_entry(peer, floor, data, BUS, now)
    assert isinstance(found, RegistryRefusal), found
    assert found.detail
    assert found.alarm == (found.reason == "equivocation")
    return found.reason


def prints(peer: Peer) -> list[str]:
    return [each.fingerprint for each in peer.keys]


def named(*keys: KeySigner) -> list[str]:
    return [key.fingerprint for key in keys]


def test_the_entry_of_a_pinned_key_is_accepted_and_sets_the_floor() -> None:
    said = entry(7)
    peer, floor = read(pinned(), signed(said))
    assert (floor.version, floor.digest, floor.entry) == (7, digest(said), said)
    public = signing.to_base64(OLD.public_key)
    trusted = PeerKey(fingerprint=OLD.fingerprint, how="pinned", since=NOW, public=public)
    assert peer.keys == (trusted,)


def test_the_same_entry_again_changes_nothing_but_when_it_was_read() -> None:
    peer, floor = read(pinned(), signed(entry(7)))
    again = read(peer, signed(entry(7)), floor, now=NOW + 600)
    assert again == (peer, replace(floor, fetched=NOW + 600))


def test_an_older_version_is_a_rollback_although_its_signature_is_valid() -> None:
    peer, floor = read(pinned(), signed(entry(7)))
    assert refusal(peer, signed(entry(6)), floor) == "rollback"


def test_the_same_version_with_other_bytes_is_an_alarm_also_after_its_expiry() -> None:
    peer, floor = read(pinned(), signed(entry(7)))
    other = signed(replace(entry(7), depth=3))
    assert refusal(peer, other, floor) == "equivocation"
    assert refusal(peer, other, floor, now=NOW + HOUR) == "equivocation"


def test_an_entry_that_stands_still_expires() -> None:
    peer, floor = read(pinned(), signed(entry(7)))
    ends = NOW + registry.ENTRY_TTL + registry.CLOCK_SKEW
    assert read(peer, signed(entry(7)), floor, now=ends)[0] == peer
    assert refusal(peer, signed(entry(7)), floor, now=ends + 1) == "expired"


def test_an_entry_of_the_future_is_refused_beyond_the_skew_of_clocks() -> None:
    assert prints(read(pinned(), signed(entry(at=NOW + 30)))[0]) == named(OLD)
    assert refusal(pinned(), signed(entry(at=NOW + 31))) == "future"


def with_agents(*agents: RegisteredAgent) -> Callable[[RegistryHead], RegistryHead]:
    return lambda said: replace(said, agents=agents)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda e: replace(e, expires=e.expires + 1), "malformed"),
        (lambda e: replace(e, expires=e.timestamp - 1), "malformed"),
        (lambda e: replace(e, version=0), "malformed"),
        (lambda e: replace(e, version=2**53 + 1), "malformed"),
        (lambda e: replace(e, keys=(listed(OLD), listed(OLD, NOW))), "malformed"),
        (lambda e: replace(e, keys=(listed(OLD, NOW + HOUR),)), "malformed"),
        (lambda e: replace(e, depth=-1), "malformed"),
        (with_agents(registered_agent("ada"), registered_agent("ada")), "malformed"),
        (with_agents(registered_agent("../etc")), "malformed"),
        (with_agents(registered_agent("e\u0301")), "malformed"),
        (with_agents(*[registered_agent(f"a{n}") for n in range(1001)]), "malformed"),
        (with_agents(registered_agent("ada", ("b", "b"))), "malformed"),
        (with_agents(registered_agent("ada", load=-1)), "malformed"),
        (lambda e: replace(e, from_swarm="shop"), "wrong_sender"),
        (lambda e: replace(e, bus="bus_2"), "wrong_bus"),
    ],
)
def test_a_signature_makes_no_bad_entry_good(
    change: Callable[[RegistryHead], RegistryHead], reason: str
) -> None:
    peer, _ = read(pinned(), signed(entry()))
    assert refusal(peer, unchecked(change(entry()), OLD)) == reason


def test_an_entry_that_is_too_large_is_refused() -> None:
    assert refusal(pinned(), b"x" * (RegistryHead.limit + 1)) == "too_large"


def test_an_entry_of_another_key_is_refused() -> None:
    assert refusal(pinned(), signed(entry(1, listed(THIEF)), THIEF)) == "unknown_key"


def test_a_listed_key_that_did_not_sign_makes_the_entry_worthless() -> None:
    both = entry(1, listed(OLD), listed(THIEF, NOW + HOUR))
    assert refusal(pinned(), unchecked(both, OLD)) == "malformed"


def test_nothing_is_accepted_of_a_peer_without_a_key_or_without_leave() -> None:
    assert refusal(Peer(swarm="bank"), signed(entry())) == "not_pinned"
    assert refusal(replace(pinned(), allowed=False), signed(entry())) == "not_allowed"


def test_a_small_order_key_never_carries_an_entry() -> None:
    weak = ListedKey(public=signing.to_base64(bytes(32)))
    pinned_weak = pin(None, "bank", signing.fingerprint(bytes(32)), NOW)
    assert isinstance(pinned_weak, Peer)
    said = replace(entry(), keys=(weak,), key=signing.fingerprint(bytes(32)))
    assert refusal(pinned_weak, unchecked(said, OLD)) in ("unknown_key", "malformed")
    first = trust_first_use(None, "bank")
    assert refusal(first, unchecked(said, OLD)) in ("unknown_key", "malformed")


def test_the_first_entry_is_trusted_once_if_the_operator_said_so() -> None:
    peer, floor = read(trust_first_use(None, "bank"), signed(entry()))
    assert [each.how for each in peer.keys] == ["first_use"]
    assert refusal(peer, signed(entry(2, listed(THIEF)), THIEF), floor) == "unknown_key"


def test_first_use_replaces_no_pinned_key_and_revives_no_revoked_one() -> None:
    assert trust_first_use(pinned(), "bank") == pinned()
    bare = revoke(pinned(), EMPTY, OLD.fingerprint, None)
    assert isinstance(bare, Peer)
    assert refusal(trust_first_use(bare, "bank"), signed(entry())) == "revoked_key"


def test_pinning_again_is_the_way_back_from_a_version_that_a_thief_made_too_high() -> None:
    peer, floor = read(pinned(), signed(entry(2**53)))
    assert refusal(peer, signed(entry(8)), floor) == "rollback"
    again = pin(peer, "bank", NEW.fingerprint, NOW)
    assert isinstance(again, Peer)
    later = signed(entry(8, listed(NEW)), NEW)
    assert refusal(again, later, floor) == "rollback"
    assert prints(read(again, later, EMPTY)[0]) == named(NEW)


def test_refusals_are_counted_by_reason_and_the_same_bytes_once_in_a_while() -> None:
    said = RegistryRefusal(reason="rollback", detail="version 6 is older than 7")
    floor = refused(refused(EMPTY, said, b"6", NOW), said, b"5", NOW + 1)
    assert floor.refused == {"rollback": 2}
    assert refused(floor, said, b"5", NOW + 2) == floor
    assert refused(floor, said, b"5", NOW + 1 + registry.CACHED).refused == {"rollback": 3}
    assert floor.last_refused == "rollback: version 6 is older than 7"


# Rotation.


def rotated(at: float = NOW, version: int = 2) -> RegistryHead:
    keys = registry.rotated((listed(OLD),), listed(NEW), "bank", at)
    return entry(version, *keys, at=at)


def test_a_rotation_lists_the_new_key_and_the_end_of_the_old_one() -> None:
    assert rotated().keys == (listed(NEW), listed(OLD, NOW + registry.OVERLAP))


def test_a_reader_follows_a_rotation_that_both_keys_signed() -> None:
    peer, floor = read(pinned(), signed(entry(1)))
    after, _ = read(peer, signed(rotated(), NEW, OLD), floor)
    assert prints(after) == named(NEW, OLD)
    assert [each.how for each in after.keys] == ["rotated", "pinned"]


def test_the_new_key_alone_does_not_rotate() -> None:
    peer, floor = read(pinned(), signed(entry(1)))
    alone = signed(replace(rotated(), keys=(listed(NEW),)), NEW)
    assert refusal(peer, alone, floor) == "unknown_key"
    assert refusal(peer, unchecked(rotated(), NEW), floor) == "unknown_key"
    assert refusal(peer, unchecked(rotated(), OLD), floor) == "malformed"


def test_a_reader_that_missed_the_first_entry_of_a_rotation_follows_a_later_one() -> None:
    later = entry(3, *rotated().keys, at=NOW + HOUR)
    peer, floor = read(pinned(), signed(later, NEW, OLD), now=NOW + HOUR)
    assert (floor.version, prints(peer)) == (3, named(NEW, OLD))


def test_a_thief_of_the_old_key_cannot_take_the_swarm_over_after_the_rotation() -> None:
    peer, floor = read(pinned(), signed(rotated(), NEW, OLD))
    assert refusal(peer, signed(entry(3)), floor) == "retired_key"
    taken = entry(3, listed(THIEF), listed(OLD, NOW + HOUR))
    assert refusal(peer, signed(taken, THIEF, OLD), floor) == "retired_key"


def test_the_old_key_signs_messages_until_the_overlap_ends() -> None:
    peer, floor = read(pinned(), signed(rotated(), NEW, OLD))
    ends = NOW + registry.OVERLAP

    def counts(now: float) -> bool:
        return OLD.fingerprint in trusted_keys(peer, floor, now)

    assert counts(NOW + DEADLINE)
    assert counts(ends)
    assert not counts(ends + registry.CLOCK_SKEW + 1)


def test_an_entry_after_the_overlap_leaves_the_old_key_out() -> None:
    peer, floor = read(pinned(), signed(rotated(), NEW, OLD))
    after = NOW + registry.OVERLAP
    later = entry(3, *rotated().keys, at=after)
    assert later.keys == (listed(NEW),)
    assert prints(read(peer, signed(later, NEW), floor, now=after)[0]) == named(NEW)


def test_rotations_beyond_the_number_of_keys_wait() -> None:
    keys: tuple[ListedKey, ...] = (listed(OLD),)
    for key in (NEW, ADA, FOURTH):
        keys = registry.rotated(keys, listed(key), "bank", NOW)
    with pytest.raises(BadInput, match="rotate again in 7 d"):
        registry.rotated(keys, listed(FIFTH), "bank", NOW)
    assert len(registry.rotated(keys, listed(FIFTH), "bank", NOW + registry.OVERLAP)) == 2


def test_only_what_readers_must_learn_soon_makes_an_entry_new() -> None:
    said = entry(1)
    assert registry.content(replace(said, version=2, depth=9)) == registry.content(said)
    busier = replace(said, agents=(replace(said.agents[0], load=100),))
    assert registry.content(busier) == registry.content(said)
    for changed in (rotated(), replace(said, agents=(registered_agent("bob"),))):
        assert registry.content(changed) != registry.content(said)


# Revocation.


def a_revocation(by: KeySigner, of: KeySigner) -> bytes:
    head = RevocationHead(
        from_swarm="bank",
        key=by.fingerprint,
        timestamp=milliseconds(NOW),
        revokes=of.fingerprint,
        reason="lost",
    )
    return sign_head(head, by)


def test_a_key_may_revoke_itself_and_a_current_key_another_one() -> None:
    peer, floor = read(pinned(), signed(rotated(), NEW, OLD))
    for by in (OLD, NEW):
        found = judge_revocation(peer, floor, a_revocation(by, OLD), BUS, NOW)
        assert isinstance(found, Peer)
        assert prints(found) == named(NEW)
        assert found.revoked == (OLD.fingerprint,)


def test_a_rotated_key_and_a_stranger_revoke_no_other() -> None:
    peer, floor = read(pinned(), signed(rotated(), NEW, OLD))
    for by in (OLD, THIEF):
        found = judge_revocation(peer, floor, a_revocation(by, NEW), BUS, NOW)
        assert isinstance(found, RegistryRefusal)
        assert found.reason == "unknown_key"


def test_a_swarm_cannot_revoke_the_key_of_another_one() -> None:
    peer, floor = read(pinned(), signed(entry()))
    found = judge_revocation(peer, floor, a_revocation(OLD, FOURTH), BUS, NOW)
    assert isinstance(found, RegistryRefusal)
    assert found.reason == "unknown_key"


def test_a_revoked_key_signs_nothing_more_and_is_never_pinned_again() -> None:
    peer, floor = read(pinned(), signed(rotated(), NEW, OLD))
    after = revoke(peer, floor, OLD.fingerprint, None)
    assert isinstance(after, Peer)
    assert trusted_keys(after, floor, NOW)[OLD.fingerprint].revoked
    again = pin(after, "bank", OLD.fingerprint, NOW)
    assert isinstance(again, RegistryRefusal)
    assert again.reason == "revoked_key"
    both = signed(entry(3, *rotated().keys), NEW, OLD)
    assert refusal(after, both, floor) == "revoked_key"
    alone = signed(entry(3, listed(NEW)), NEW)
    assert prints(read(after, alone, floor)[0]) == named(NEW)


def test_a_message_of_a_revoked_key_says_so_though_the_key_is_forgotten() -> None:
    peer, floor = read(pinned(), signed(entry()))
    after = revoke(peer, floor, OLD.fingerprint, None)
    assert isinstance(after, Peer)
    trusted = trusted_keys(after, floor, NOW)
    found = open_envelope(signed(entry()), RegistryHead, trusted.get, bus=BUS, now=NOW)
    assert getattr(found, "reason", "") == "revoked_key"


def test_a_peer_that_revoked_all_its_keys_is_refused_until_a_key_is_pinned() -> None:
    peer = revoke(pinned(), EMPTY, OLD.fingerprint, OLD.fingerprint)
    assert isinstance(peer, Peer)
    assert refusal(peer, signed(entry(1, listed(NEW)), NEW)) == "not_pinned"


def test_no_revocation_ends_an_earlier_one_and_twice_is_once() -> None:
    peer, floor = read(pinned(), signed(rotated(), NEW, OLD))
    for key in (OLD, NEW, OLD):
        found = revoke(peer, floor, key.fingerprint, None)
        assert isinstance(found, Peer)
        peer = found
    assert peer.revoked == (OLD.fingerprint, NEW.fingerprint)


def test_a_revocation_ends_the_trust_in_the_first_entry() -> None:
    waiting = revoke(trust_first_use(None, "bank"), EMPTY, OLD.fingerprint, None)
    assert isinstance(waiting, Peer)
    assert refusal(waiting, signed(entry(1, listed(NEW)), NEW)) == "not_pinned"


def test_a_peer_cannot_fill_our_store_with_revocations() -> None:
    peer, floor = read(pinned(), signed(entry()))
    full = replace(peer, revoked=tuple(f"r{n}" for n in range(REVOKED_LIMIT)))
    found = judge_revocation(full, floor, a_revocation(OLD, OLD), BUS, NOW)
    assert isinstance(found, RegistryRefusal)
    assert found.reason == "too_large"
    assert isinstance(revoke(full, floor, OLD.fingerprint, None), Peer)


# Keys of agents.


def with_ada() -> RegistryHead:
    own = registered_agent("ada", swarm="bank", signer=ADA)
    return replace(entry(), agents=(own, registered_agent("bob")))


def test_the_key_of_an_agent_counts_for_that_agent_alone() -> None:
    peer, floor = read(pinned(), signed(with_ada()))
    found = trusted_keys(peer, floor, NOW + HOUR)[ADA.fingerprint]
    assert (found.public_key, found.swarm, found.agent) == (ADA.public_key, "bank", "ada")


def test_the_key_of_an_agent_can_be_revoked_by_itself() -> None:
    peer, floor = read(pinned(), signed(with_ada()))
    found = judge_revocation(peer, floor, a_revocation(ADA, ADA), BUS, NOW)
    assert isinstance(found, Peer)
    assert trusted_keys(found, floor, NOW)[ADA.fingerprint].revoked


def test_a_peer_that_is_denied_has_no_keys() -> None:
    peer, floor = read(pinned(), signed(with_ada()))
    assert trusted_keys(replace(peer, allowed=False), floor, NOW) == {}


def test_a_key_that_one_swarm_revoked_counts_for_no_other() -> None:
    peer, floor = read(pinned(), signed(entry()))
    other = replace(peer, swarm="shop")
    gone = revoke(peer, floor, OLD.fingerprint, None)
    assert isinstance(gone, Peer)
    for peers in ((other, gone), (gone, other)):
        assert all_trusted_keys(peers, {}, NOW)[OLD.fingerprint].revoked


# In any order.


@given(order=st.lists(st.integers(1, 12), min_size=1, max_size=40))
def test_in_any_order_of_entries_the_accepted_versions_only_rise(order: list[int]) -> None:
    peer, floor, last = pinned(), EMPTY, 0
    for version in order:
        found = judge_entry(peer, floor, signed(entry(version)), BUS, NOW)
        assert isinstance(found, EntryAccepted) == (version >= last)
        if isinstance(found, EntryAccepted):
            peer, floor, last = found.peer, found.floor, version


POOL = (OLD, NEW, THIEF, ADA)


@given(
    current=st.sampled_from(POOL),
    rotating=st.sets(st.sampled_from(POOL), max_size=2),
    trusted=st.sampled_from(POOL),
    revoked=st.sets(st.sampled_from(POOL)),
)
def test_a_key_is_trusted_only_beside_a_trusted_one_and_never_once_revoked(
    current: KeySigner, rotating: set[KeySigner], trusted: KeySigner, revoked: set[KeySigner]
) -> None:
    keys = [current, *sorted(rotating - {current}, key=lambda key: key.fingerprint)]
    said = entry(1, listed(keys[0]), *[listed(key, NOW + HOUR) for key in keys[1:]])
    peer = replace(pinned(trusted), revoked=tuple(named(*revoked)))
    found = judge_entry(peer, EMPTY, signed(said, *keys), BUS, NOW)
    assert isinstance(found, EntryAccepted) == (trusted in keys and not revoked & set(keys))
    if isinstance(found, EntryAccepted):
        assert prints(found.peer) == named(*keys)
