"""A reader of the registry: which entries count, and which keys."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from interlock.core.codec import digest, encode
from interlock.errors import BadInput
from interlock.nouns.swarms import registry
from interlock.nouns.swarms.registry import ListedAgent, ListedKey, RegistryEntry
from interlock.nouns.swarms.registry_rules import (
    ENTRY_LIMIT,
    REVOKED_LIMIT,
    EntryAccepted,
    Peer,
    RegistryRefusal,
    SignedEntry,
    TrustedKey,
    VersionFloor,
    accept,
    pin,
    revoke,
    signing_key,
    trust_first_use,
)

NOW = 1_700_000_000.0
HOUR = 3600.0


def key(name: str, until: float | None = None) -> ListedKey:
    end = None if until is None else round(until * 1000)
    return ListedKey(fingerprint=f"SHA256:{name}", public=name, until=end)


def agent(name: str, own: ListedKey | None = None) -> ListedAgent:
    return ListedAgent(agent=name, capabilities=("search",), load=0, key=own)


def entry(version: int = 1, *keys: ListedKey, at: float = NOW) -> RegistryEntry:
    return RegistryEntry(
        swarm="bank",
        bus="bus-1",
        version=version,
        issued=round(at * 1000),
        expires=round((at + registry.ENTRY_TTL) * 1000),
        keys=keys or (key("old"),),
        agents=(agent("ada"),),
        depth=0,
    )


def signed(said: RegistryEntry, *by: str) -> SignedEntry:
    data = encode(said)
    signers = by or tuple(each.public for each in said.keys)
    return SignedEntry(
        entry=said,
        digest=digest(data),
        size=len(data),
        signers=frozenset(f"SHA256:{each}" for each in signers),
    )


def pinned(name: str = "old") -> Peer:
    peer = pin(None, "bank", f"SHA256:{name}", NOW)
    assert isinstance(peer, Peer)
    return peer


def read(peer: Peer, said: RegistryEntry, *by: str, now: float = NOW) -> Peer:
    """The peer after an entry that is accepted."""
    found = accept(peer, signed(said, *by), "bus-1", now)
    assert isinstance(found, EntryAccepted), found
    return found.peer


def refused(peer: Peer, said: RegistryEntry, *by: str, now: float = NOW) -> str:
    """Why an entry is refused."""
    found = accept(peer, signed(said, *by), "bus-1", now)
    assert isinstance(found, RegistryRefusal), found
    assert found.detail
    assert found.alarm == (found.reason == "equivocation")
    return found.reason


def prints(peer: Peer) -> list[str]:
    return [each.fingerprint.removeprefix("SHA256:") for each in peer.keys]


def test_the_entry_of_a_pinned_key_is_accepted_and_sets_the_floor() -> None:
    said = entry(7)
    peer = read(pinned(), said)
    assert peer.floor == VersionFloor(version=7, digest=digest(encode(said)))
    trusted = TrustedKey(fingerprint="SHA256:old", how="pinned", since=NOW, public="old")
    assert peer.keys == (trusted,)


def test_the_same_entry_again_changes_nothing() -> None:
    peer = read(pinned(), entry(7))
    assert read(peer, entry(7), now=NOW + 600) == peer


def test_an_older_version_is_a_rollback_although_its_signature_is_valid() -> None:
    assert refused(read(pinned(), entry(7)), entry(6)) == "rollback"


def test_the_same_version_with_other_bytes_is_an_alarm_also_after_its_expiry() -> None:
    peer = read(pinned(), entry(7))
    other = replace(entry(7), depth=3)
    assert refused(peer, other) == "equivocation"
    assert refused(peer, other, now=NOW + HOUR) == "equivocation"


def test_an_entry_that_stands_still_expires() -> None:
    peer = read(pinned(), entry(7))
    ends = NOW + registry.ENTRY_TTL + registry.CLOCK_SKEW
    assert read(peer, entry(7), now=ends) == peer
    assert refused(peer, entry(7), now=ends + 1) == "expired"


def test_an_entry_of_the_future_is_refused_beyond_the_skew_of_clocks() -> None:
    assert prints(read(pinned(), entry(at=NOW + 30))) == ["old"]
    assert refused(pinned(), entry(at=NOW + 31)) == "from_the_future"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda e: replace(e, expires=e.expires + 1), "malformed"),
        (lambda e: replace(e, expires=e.issued), "malformed"),
        (lambda e: replace(e, version=0), "malformed"),
        (lambda e: replace(e, version=2**53 + 1), "malformed"),
        (lambda e: replace(e, keys=()), "malformed"),
        (lambda e: replace(e, keys=(key("old"), key("old", NOW))), "malformed"),
        (lambda e: replace(e, keys=tuple(key(f"{n}") for n in range(5))), "malformed"),
        (lambda e: replace(e, agents=(agent("ada"), agent("ada"))), "malformed"),
        (lambda e: replace(e, agents=(agent("../etc"),)), "malformed"),
        (lambda e: replace(e, agents=(agent("e\u0301"),)), "malformed"),
        (lambda e: replace(e, agents=tuple(agent(f"a{n}") for n in range(1001))), "malformed"),
        (
            lambda e: replace(e, agents=(replace(agent("ada"), capabilities=("b", "b")),)),
            "malformed",
        ),
        (lambda e: replace(e, depth=-1), "malformed"),
        (lambda e: replace(e, agents=(replace(agent("ada"), load=-1),)), "malformed"),
        (lambda e: replace(e, swarm="shop"), "other_swarm"),
        (lambda e: replace(e, bus="bus-2"), "other_bus"),
        (lambda e: replace(e, keys=(key("old", NOW + HOUR),)), "retired_key"),
    ],
)
def test_a_signature_makes_no_bad_entry_good(
    change: Callable[[RegistryEntry], RegistryEntry], reason: str
) -> None:
    assert refused(pinned(), change(entry())) == reason


def test_an_entry_that_is_too_large_is_refused() -> None:
    large = replace(signed(entry()), size=ENTRY_LIMIT + 1)
    found = accept(pinned(), large, "bus-1", NOW)
    assert isinstance(found, RegistryRefusal)
    assert found.reason == "too_large"


def test_an_entry_of_another_key_is_refused() -> None:
    assert refused(pinned(), entry(1, key("thief"))) == "unknown_key"
    assert refused(pinned(), entry(1, key("old"), key("thief")), "old") == "unproven_key"


def test_nothing_is_accepted_of_a_peer_without_a_key() -> None:
    assert refused(Peer(swarm="bank"), entry()) == "not_pinned"


def test_the_first_entry_is_trusted_once_if_the_operator_said_so() -> None:
    peer = read(trust_first_use(None, "bank"), entry())
    assert [each.how for each in peer.keys] == ["first_use"]
    assert refused(peer, entry(2, key("thief"))) == "unknown_key"


def test_first_use_replaces_no_pinned_key_and_revives_no_revoked_one() -> None:
    assert trust_first_use(pinned(), "bank") == pinned()
    bare = revoke(pinned(), None, "SHA256:old", None)
    assert isinstance(bare, Peer)
    assert refused(trust_first_use(bare, "bank"), entry()) == "revoked_key"


def test_pinning_again_is_the_way_back_from_a_version_that_a_thief_made_too_high() -> None:
    peer = read(pinned(), entry(2**53))
    assert refused(peer, entry(8)) == "rollback"
    again = pin(peer, "bank", "SHA256:new", NOW)
    assert isinstance(again, Peer)
    assert prints(read(again, entry(8, key("new")))) == ["new"]


# Rotation.


def rotated(at: float = NOW) -> RegistryEntry:
    return registry.rotate(entry(1, key("old")), key("new"), at)


def test_a_rotation_is_the_next_version_with_both_keys() -> None:
    said = rotated()
    assert said.version == 2
    assert [(each.public, each.until) for each in said.keys] == [
        ("new", None),
        ("old", round((NOW + registry.OVERLAP) * 1000)),
    ]


def test_a_reader_follows_a_rotation_that_both_keys_signed() -> None:
    peer = read(read(pinned(), entry(1)), rotated())
    assert prints(peer) == ["new", "old"]
    assert [each.how for each in peer.keys] == ["rotated", "pinned"]


def test_the_new_key_alone_does_not_rotate() -> None:
    peer = read(pinned(), entry(1))
    assert refused(peer, replace(rotated(), keys=(key("new"),)), "new") == "unknown_key"
    assert refused(peer, rotated(), "new") == "unproven_key"
    assert refused(peer, rotated(), "old") == "unproven_key"


def test_a_reader_that_missed_the_first_entry_of_a_rotation_follows_a_later_one() -> None:
    later = registry.renew(rotated(), (agent("bob"),), 4, NOW + HOUR)
    peer = read(pinned(), later, now=NOW + HOUR)
    assert (later.version, later.depth, prints(peer)) == (3, 4, ["new", "old"])


def test_a_thief_of_the_old_key_cannot_take_the_swarm_over_after_the_rotation() -> None:
    peer = read(pinned(), rotated())
    assert refused(peer, entry(3, key("old"))) == "retired_key"
    assert refused(peer, entry(3, key("thief"), key("old", NOW + HOUR))) == "retired_key"


def test_the_old_key_signs_requests_until_the_overlap_ends() -> None:
    peer = read(pinned(), rotated())
    ends = NOW + registry.OVERLAP

    def judged(now: float) -> str:
        found = signing_key(peer, None, "SHA256:old", "ada", now)
        return found.reason if isinstance(found, RegistryRefusal) else "trusted"

    assert judged(NOW + registry.LONGEST_DEADLINE) == "trusted"
    assert judged(ends) == "trusted"
    assert judged(ends + registry.CLOCK_SKEW + 1) == "retired_key"


def test_an_entry_after_the_overlap_leaves_the_old_key_out() -> None:
    later = registry.renew(rotated(), (), 0, NOW + registry.OVERLAP)
    assert [each.public for each in later.keys] == ["new"]
    peer = read(read(pinned(), rotated()), later, now=NOW + registry.OVERLAP)
    assert prints(peer) == ["new"]


def test_rotations_beyond_the_number_of_keys_wait() -> None:
    said = entry()
    for name in ("k2", "k3", "k4"):
        said = registry.rotate(said, key(name), NOW)
    with pytest.raises(BadInput, match="rotate again in 1 d"):
        registry.rotate(said, key("k5"), NOW)


# Revocation.


def test_a_key_may_revoke_itself_and_a_current_key_another_one() -> None:
    peer = read(pinned(), rotated())
    by_itself = revoke(peer, None, "SHA256:old", frozenset(["SHA256:old"]))
    by_new = revoke(peer, None, "SHA256:old", frozenset(["SHA256:new"]))
    assert by_itself == by_new
    assert isinstance(by_new, Peer)
    assert prints(by_new) == ["new"]
    assert by_new.revoked == ("SHA256:old",)


def test_a_rotated_key_revokes_no_other() -> None:
    peer = read(pinned(), rotated())
    found = revoke(peer, None, "SHA256:new", frozenset(["SHA256:old"]))
    assert isinstance(found, RegistryRefusal)
    assert found.reason == "unknown_key"


def test_a_revoked_key_signs_nothing_more_and_is_never_pinned_again() -> None:
    peer = revoke(read(pinned(), rotated()), None, "SHA256:old", None)
    assert isinstance(peer, Peer)
    for found in (
        signing_key(peer, None, "SHA256:old", "ada", NOW),
        pin(peer, "bank", "SHA256:old", NOW),
    ):
        assert isinstance(found, RegistryRefusal)
        assert found.reason == "revoked_key"
    assert refused(peer, registry.renew(rotated(), (), 0, NOW)) == "revoked_key"
    new_alone = replace(rotated(), version=3, keys=(key("new"),))
    assert prints(read(peer, new_alone)) == ["new"]


def test_a_peer_that_revoked_all_its_keys_is_refused_until_a_key_is_pinned() -> None:
    peer = revoke(pinned(), None, "SHA256:old", frozenset(["SHA256:old"]))
    assert isinstance(peer, Peer)
    assert refused(peer, entry(1, key("new"))) == "not_pinned"


def test_no_revocation_ends_an_earlier_one() -> None:
    first = revoke(read(pinned(), rotated()), None, "SHA256:old", None)
    assert isinstance(first, Peer)
    both = revoke(first, None, "SHA256:new", None)
    assert isinstance(both, Peer)
    assert both.revoked == ("SHA256:old", "SHA256:new")


def test_a_revocation_ends_the_trust_in_the_first_entry() -> None:
    waiting = revoke(trust_first_use(None, "bank"), None, "SHA256:old", None)
    assert isinstance(waiting, Peer)
    assert refused(waiting, entry(1, key("new"))) == "not_pinned"


def test_revoking_twice_changes_nothing() -> None:
    peer = revoke(pinned(), None, "SHA256:old", None)
    assert isinstance(peer, Peer)
    assert revoke(peer, None, "SHA256:old", frozenset()) == peer


def test_a_peer_cannot_fill_our_store_with_revocations() -> None:
    full = replace(pinned(), revoked=tuple(f"r{n}" for n in range(REVOKED_LIMIT)))
    found = revoke(full, None, "SHA256:any", frozenset(["SHA256:old"]))
    assert isinstance(found, RegistryRefusal)
    assert isinstance(revoke(full, None, "SHA256:old", None), Peer)


# Keys of agents.


def test_the_key_of_an_agent_signs_for_that_agent_alone() -> None:
    said = replace(entry(), agents=(agent("ada", key("ada")), agent("bob")))
    peer = read(pinned(), said)
    found = signing_key(peer, said, "SHA256:ada", "ada", NOW + HOUR)
    assert isinstance(found, TrustedKey)
    assert (found.public, found.how) == ("ada", "listed")
    other = signing_key(peer, said, "SHA256:ada", "bob", NOW)
    assert isinstance(other, RegistryRefusal)
    assert other.reason == "unknown_key"


def test_the_key_of_an_agent_can_be_revoked_by_itself() -> None:
    said = replace(entry(), agents=(agent("ada", key("ada")),))
    peer = revoke(read(pinned(), said), said, "SHA256:ada", frozenset(["SHA256:ada"]))
    assert isinstance(peer, Peer)
    found = signing_key(peer, said, "SHA256:ada", "ada", NOW)
    assert isinstance(found, RegistryRefusal)
    assert found.reason == "revoked_key"


# In any order.


@given(order=st.lists(st.integers(1, 12), min_size=1, max_size=40))
def test_in_any_order_of_entries_the_accepted_versions_only_rise(order: list[int]) -> None:
    peer, last = pinned(), 0
    for version in order:
        found = accept(peer, signed(entry(version)), "bus-1", NOW)
        assert isinstance(found, EntryAccepted) == (version >= last)
        if isinstance(found, EntryAccepted):
            peer, last = found.peer, version


@given(
    listed=st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True),
    signers=st.sets(st.sampled_from("abcd")),
    trusted=st.sampled_from("abcd"),
    revoked=st.sets(st.sampled_from("abcd")),
)
def test_a_key_is_trusted_only_with_its_own_signature_and_that_of_a_trusted_key(
    listed: list[str], signers: set[str], trusted: str, revoked: set[str]
) -> None:
    peer = replace(pinned(trusted), revoked=tuple(f"SHA256:{each}" for each in sorted(revoked)))
    said = signed(entry(1, *[key(each) for each in listed]), *sorted(signers or {"none"}))
    found = accept(peer, said, "bus-1", NOW)
    fine = trusted in signers and signers >= set(listed) and not revoked & set(listed)
    assert isinstance(found, EntryAccepted) == fine
    if isinstance(found, EntryAccepted):
        assert prints(found.peer) == listed


def test_an_entry_encodes_back_to_the_bytes_that_were_signed() -> None:
    data = encode(replace(rotated(), agents=(agent("ada", key("ada")), agent("bob"))))
    assert encode(msgspec.json.decode(data, type=RegistryEntry)) == data
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(data[:-1] + b',"more":1}', type=RegistryEntry)
