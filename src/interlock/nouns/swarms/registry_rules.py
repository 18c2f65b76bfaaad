"""The registry: which entry of a peer a reader accepts, and which keys it then trusts.

The bus stores the entry of each swarm (``registry.py``), and a client with the bus's credentials
can replace it with any bytes that it ever read there.  So a reader keeps, for each peer, the keys
that it trusts (``Peer``) and the **floor**: the highest version that it accepted, with its digest.

    older version                 rollback      refused: an old entry was put back
    same version, other bytes     equivocation  refused, and an alarm: the swarm signed both
    same version, same bytes      unchanged     accepted, until it expires
    newer version                 newer         accepted, and the floor rises
    past its expiry               expired       refused: a bus that stands still must not look alive

The digest is that of the signed bytes, never of the envelope: one text has many valid envelopes.
Versions are judged before times, so that an expired forgery still raises the alarm.

A thief of a key could publish the highest possible version, and every later entry would be a
rollback.  The way back is to pin a key again: that resets the floor.

**Keys.**  An entry lists its swarm's keys, and each listed key signs the entry: a key counts only
with its own signature.  A reader accepts an entry that one of its trusted keys signed, and then
trusts exactly the listed keys; so it follows a rotation.  A key that was rotated (it has an
``until``) still signs requests, but no entry by itself: a thief of the old key cannot take the
swarm over after the rotation.

**Revocation** ends a key at once and permanently, with every message that was not accepted yet,
also an earlier one.  The key itself may ask for it, a current key of its swarm, or our operator;
no swarm can revoke a key that is not its own.
A revoked key cannot be pinned again.  A peer without a key is refused until a key is pinned.

The public key of a pinned fingerprint is taken from the entry that names it, since only that very
key has this fingerprint.  With ``first_use`` the first entry names the key, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import codec
from interlock.core.safe_text import foreign
from interlock.nouns.swarms.envelope import (
    EnvelopeRefused,
    Reason,
    TrustedKey,
    claimed_keys,
    open_envelope,
)
from interlock.nouns.swarms.head import (
    AgentKey,
    ListedKey,
    RegistryHead,
    RevocationHead,
    digest,
    usable_key,
)
from interlock.nouns.swarms.registry import CACHED, CLOCK_SKEW, OVERLAP
from interlock.nouns.swarms.results import HowTrusted
from interlock.nouns.swarms.swarm import Floor, Peer, PeerKey

REVOKED_LIMIT = 1000
"""Revocations of one peer: a full list refuses more of its own, and never drops one."""

RefusedFor: TypeAlias = (
    Reason
    | Literal["not_allowed", "not_pinned", "retired_key", "rollback", "equivocation", "divergence"]
)
VersionOrder: TypeAlias = Literal["newer", "unchanged", "rollback", "equivocation"]


class VersionFloor(Struct, frozen=True, kw_only=True):
    """The highest version that was accepted, and the digest of its bytes."""

    version: int
    digest: str


class EntryAccepted(Struct, frozen=True, kw_only=True):
    """The entry counts; ``peer`` and ``floor`` are what to keep."""

    peer: Peer
    floor: Floor


class RegistryRefusal(Struct, frozen=True, kw_only=True):
    """An entry, a key, a revocation or a snapshot that does not count, and why."""

    reason: RefusedFor
    detail: str

    @property
    def alarm(self) -> bool:
        """Whether an operator must look at it: no accident makes a swarm sign two texts."""
        return self.reason in ("equivocation", "divergence")


def compare(floor: VersionFloor | None, version: int, digest: str) -> VersionOrder:
    """A version against the highest one that was accepted; also for snapshots."""
    if floor is None or version > floor.version:
        return "newer"
    if version < floor.version:
        return "rollback"
    return "unchanged" if digest == floor.digest else "equivocation"


# Entries.


def judge_entry(
    peer: Peer, floor: Floor, data: bytes, bus: str, now: float
) -> EntryAccepted | RegistryRefusal:
    """Judge the bytes that stand on this bus as the entry of a peer."""
    if not peer.allowed:
        return _no(
            "not_allowed", f"{foreign(peer.swarm)} is not allowed here: interlock swarm allow"
        )
    if not peer.keys and not peer.first_use:
        return _no(
            "not_pinned", f"no key of {foreign(peer.swarm)} is trusted; pin one: swarm allow --key"
        )
    trusted = _entry_keys(peer, data)
    found = open_envelope(data, RegistryHead, trusted.get, bus=bus, now=now)
    if isinstance(found, EnvelopeRefused):
        return _late_forgery(peer, floor, found) or _no(found.reason, found.detail)
    refused = _bad_keys(peer, found.head) or _bad_version(peer, floor, found.head, found.digest)
    if refused is not None:
        return refused
    return EntryAccepted(
        peer=replace(peer, keys=_keys_after(peer, found.head, now), first_use=False),
        floor=replace(
            floor,
            version=found.head.version,
            digest=found.digest,
            entry=found.head,
            fetched=now,
        ),
    )


def _entry_keys(peer: Peer, data: bytes) -> dict[str, TrustedKey]:
    """The keys that may carry an entry of a peer, by fingerprint.

    The key of a fingerprint that is pinned is the one in the entry; so is, once, any key for
    ``first_use``.
    """
    claimed = claimed_keys(data)
    found = trusted_keys(peer, Floor(swarm=peer.swarm), None)
    wanted = list(claimed) if peer.first_use else [each.fingerprint for each in peer.keys]
    for name in wanted:
        if name in claimed and name not in found:
            found[name] = TrustedKey(public_key=claimed[name], swarm=peer.swarm)
    return found


def _late_forgery(peer: Peer, floor: Floor, found: EnvelopeRefused) -> RegistryRefusal | None:
    """The order of versions comes before times: an expired second text is still an alarm."""
    head = found.head
    if not isinstance(head, RegistryHead) or found.reason not in ("expired", "future"):
        return None
    return _bad_version(peer, floor, head, digest(head))


def _bad_keys(peer: Peer, entry: RegistryHead) -> RegistryRefusal | None:
    """None of the listed keys is revoked, and one that we trust is not a rotated one.

    The envelope proves that each listed key has signed.
    """
    listed = entry.listed_keys()
    if revoked := [each for each in listed if each in peer.revoked]:
        return _no("revoked_key", f"{revoked[0]} is revoked")
    signing_ = [each for each in peer.keys if each.fingerprint in listed]
    if signing_ and all(each.until is not None for each in signing_):
        name = signing_[0].fingerprint
        return _no(
            "retired_key", f"{foreign(name)} was rotated: it signs no entry without the current key"
        )
    return None


def _bad_version(peer: Peer, floor: Floor, entry: RegistryHead, own: str) -> RegistryRefusal | None:
    seen = VersionFloor(version=floor.version, digest=floor.digest) if floor.version else None
    match compare(seen, entry.version, own):
        case "rollback":
            detail = f"version {entry.version} is older than {floor.version}, accepted before"
            return _no("rollback", detail)
        case "equivocation":
            return _no(
                "equivocation", f"{foreign(peer.swarm)} signed two texts as version {entry.version}"
            )
        case _:
            return None


def _keys_after(peer: Peer, entry: RegistryHead, now: float) -> tuple[PeerKey, ...]:
    """The listed keys, each with the time since when and the way in which it is trusted."""
    before = {each.fingerprint: each for each in peer.keys}
    new: HowTrusted = "first_use" if peer.first_use else "rotated"
    known = [(each, before.get(each.fingerprint)) for each in entry.keys]
    return tuple(
        [
            _peer_key(each, old.how, old.since) if old else _peer_key(each, new, now)
            for each, old in known
        ]
    )


def _peer_key(key: ListedKey, how: HowTrusted, since: float) -> PeerKey:
    return PeerKey(
        fingerprint=key.fingerprint,
        how=how,
        since=since,
        public=key.public,
        until=key.until / 1000 if key.until else None,
    )


def refused(floor: Floor, refusal: RegistryRefusal, data: bytes, now: float) -> Floor:
    """The floor with a refusal of these bytes counted; its version stays."""
    if already_counted(floor, refusal, data, now):
        return floor
    counts = {**floor.refused, refusal.reason: floor.refused.get(refusal.reason, 0) + 1}
    return replace(
        floor,
        refused=counts,
        last_refused=f"{refusal.reason}: {refusal.detail}",
        refused_at=now,
        refused_digest=_refusal_digest(refusal, data),
    )


def already_counted(floor: Floor, refusal: RegistryRefusal, data: bytes, now: float) -> bool:
    """Whether the last refusal was of the same bytes for the same reason, a short time ago."""
    recent = 0 <= now - floor.refused_at < CACHED
    return recent and floor.refused_digest == _refusal_digest(refusal, data)


def _refusal_digest(refusal: RegistryRefusal, data: bytes) -> str:
    return codec.digest(refusal.reason.encode() + b" " + data)


# Pins.


def pin(
    peer: Peer | None, swarm: str, fingerprint: str, now: float, public: str = ""
) -> Peer | RegistryRefusal:
    """Trust this key of a swarm and no other; the caller resets the floor with it."""
    before = peer or Peer(swarm=swarm)
    if fingerprint in before.revoked:
        detail = f"{fingerprint} is revoked, permanently; ask {foreign(swarm)} for another key"
        return _no("revoked_key", detail)
    key = PeerKey(fingerprint=fingerprint, how="pinned", since=now, public=public)
    return replace(before, allowed=True, keys=(key,), first_use=False)


def trust_first_use(peer: Peer | None, swarm: str) -> Peer:
    """Trust the keys of the next valid entry; a peer with a trusted key stays as it is."""
    before = peer or Peer(swarm=swarm)
    return replace(before, allowed=True, first_use=not before.keys)


# Revocations.


def judge_revocation(
    peer: Peer, floor: Floor, data: bytes, bus: str, now: float
) -> Peer | RegistryRefusal:
    """The peer without a key, by a revocation that stands on the bus."""
    trusted = trusted_keys(peer, floor, None)
    found = open_envelope(data, RevocationHead, trusted.get, bus=bus, now=now)
    if isinstance(found, EnvelopeRefused):
        return _no(found.reason, found.detail)
    return revoke(peer, floor, found.head.revokes, found.head.key)


def revoke(
    peer: Peer, floor: Floor, fingerprint: str, signer: str | None
) -> Peer | RegistryRefusal:
    """End a key of a swarm or of one of its agents.

    ``signer`` is the key that signed the revocation, None if our operator asks for it.
    """
    if fingerprint in peer.revoked:
        return peer
    if signer is not None and (refused := _may_not_revoke(peer, floor, fingerprint, signer)):
        return refused
    left = tuple([each for each in peer.keys if each.fingerprint != fingerprint])
    return replace(peer, keys=left, revoked=(*peer.revoked, fingerprint), first_use=False)


def _may_not_revoke(
    peer: Peer, floor: Floor, fingerprint: str, signer: str
) -> RegistryRefusal | None:
    agents = _agent_keys(peer, floor, None)
    own = {*[each.fingerprint for each in peer.keys], *agents}
    current = {each.fingerprint for each in peer.keys if each.until is None}
    if not (signer in current or (signer == fingerprint and signer in own)):
        detail = (
            f"neither {fingerprint} itself nor a current key of {foreign(peer.swarm)} signed it"
        )
        return _no("unknown_key", detail)
    if fingerprint not in own:  # it may be the key of another peer, for which it would count, too
        return _no("unknown_key", f"{fingerprint} is no key of {foreign(peer.swarm)} that we know")
    if len(peer.revoked) >= REVOKED_LIMIT:
        detail = (
            f"{REVOKED_LIMIT} keys of {foreign(peer.swarm)} are revoked; deny it, or revoke this by"
            " hand"
        )
        return _no("too_large", detail)
    return None


# Keys of messages.


def trusted_keys(peer: Peer, floor: Floor, now: float | None) -> dict[str, TrustedKey]:
    """The keys that sign messages of a peer and of its agents, by fingerprint.

    ``.get`` of it is what ``open_envelope`` asks for.  Revoked keys are in it and marked, so that
    the refusal says so.  With ``now``, keys whose overlap has ended are left out.  A peer that is
    not allowed has no keys.
    """
    found: dict[str, TrustedKey] = {}
    if not peer.allowed:
        return found
    for name, (agent, agent_key) in _agent_keys(peer, floor, now).items():
        public_key = usable_key(agent_key.public)
        ended = now is not None and agent_key.until and now > agent_key.until / 1000 + CLOCK_SKEW
        if public_key is not None and not ended:
            found[name] = TrustedKey(public_key=public_key, swarm=peer.swarm, agent=agent)
    for each in peer.keys:
        ended = now is not None and each.until is not None and now > each.until + CLOCK_SKEW
        public_key = usable_key(each.public)
        if public_key is not None and not ended:
            found[each.fingerprint] = TrustedKey(public_key=public_key, swarm=peer.swarm)
    for name in peer.revoked:
        known = found.get(name)
        found[name] = TrustedKey(
            public_key=b"" if known is None else known.public_key, swarm=peer.swarm, revoked=True
        )
    return found


def _agent_keys(peer: Peer, floor: Floor, now: float | None) -> dict[str, tuple[str, AgentKey]]:
    """The keys of a peer's agents that its entry vouches for.

    An entry vouches while one of the keys that signed it is trusted: a revoked key vouches for
    nothing.  It does so for ``OVERLAP`` after its expiry, so that requests go on while its
    publisher is down, and no longer, since a bus may hold the next entry back.
    """
    entry = floor.entry
    if entry is None or (now is not None and now > entry.expires / 1000 + OVERLAP):
        return {}
    signed = entry.listed_keys()
    if not any(each.fingerprint in signed for each in peer.keys):
        return {}
    return entry.agent_keys()


def all_trusted_keys(
    peers: Iterable[Peer], floors: Mapping[str, Floor], now: float
) -> dict[str, TrustedKey]:
    """The keys of all peers by fingerprint; ``floors`` by swarm.

    A key that counts for one swarm never counts for another: a revoked one is revoked for all.
    """
    found: dict[str, TrustedKey] = {}
    for peer in peers:
        floor = floors.get(peer.swarm) or Floor(swarm=peer.swarm)
        for name, key in trusted_keys(peer, floor, now).items():
            if name not in found or key.revoked:
                found[name] = key
    return found


def _no(reason: RefusedFor, detail: str) -> RegistryRefusal:
    return RegistryRefusal(reason=reason, detail=detail)
