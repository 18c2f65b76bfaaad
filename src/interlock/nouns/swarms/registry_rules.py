"""The registry: which entry of a peer a reader accepts, and which keys it then trusts.

The bus stores the entry of each swarm (``registry.py``), and a client with the bus's credentials
can replace it with any bytes that it ever read there.  So a reader keeps, for each peer, the keys
that it trusts and the **floor**: the highest version that it accepted, with its digest.

    older version                 rollback      refused: an old entry was put back
    same version, other bytes     equivocation  refused, and an alarm: the swarm signed both
    same version, same bytes      unchanged     accepted, until it expires
    newer version                 newer         accepted, and the floor rises
    past its expiry               expired       refused: a bus that stands still must not look alive

The digest is that of the signed bytes, never of the envelope: one text has many valid envelopes.
Versions are judged before times, so that an expired forgery still raises the alarm.  An entry that
lives for longer than ``ENTRY_TTL`` is refused, since its expiry would protect nothing.

A thief of a key could publish the highest possible version, and every later entry would be a
rollback.  The way back is to pin a key again: that resets the floor.

**Keys.**  An entry lists its swarm's keys, and each listed key signs the entry: a key counts only
with its own signature.  A reader accepts an entry that one of its trusted keys signed, and then
trusts exactly the listed keys; so it follows a rotation.  A key that was rotated (it has an
``until``) still signs requests, but no entry by itself: a thief of the old key cannot take the
swarm over after the rotation.

**Revocation** ends a key at once and permanently, with every message that was not accepted yet,
also an earlier one.  The key itself may ask for it, a current key of its swarm, or our operator.
A revoked key cannot be pinned again.  A peer without a key is refused until a key is pinned.

A key that an agent signs with needs no signature on the entry: the head of each message names the
swarm, so listing a foreign key gives its owner nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import validate
from interlock.errors import InterlockError
from interlock.nouns.swarms.registry import (
    CLOCK_SKEW,
    ENTRY_TTL,
    KEYS_LIMIT,
    ListedKey,
    RegistryEntry,
)

ENTRY_LIMIT = 256 * 1024
AGENTS_LIMIT = 1000
REVOKED_LIMIT = 1000
"""Revocations of one peer: a full list refuses more of its own, and never drops one."""

RefusedFor: TypeAlias = Literal[
    "too_large",
    "malformed",
    "other_swarm",
    "other_bus",
    "not_pinned",
    "unknown_key",
    "unproven_key",
    "retired_key",
    "revoked_key",
    "rollback",
    "equivocation",
    "from_the_future",
    "expired",
]
HowTrusted: TypeAlias = Literal["pinned", "first_use", "rotated", "listed"]
"""By our operator, by the first entry that was read, by an earlier key, as the key of an agent."""
VersionOrder: TypeAlias = Literal["newer", "unchanged", "rollback", "equivocation"]


class SignedEntry(Struct, frozen=True, kw_only=True):
    """An entry as it was read, after its signatures were verified.

    ``digest`` is the SHA-256 of the signed bytes and ``size`` their number; ``signers`` are the
    fingerprints of all keys with a valid signature, each a pinned or a listed key.
    """

    entry: RegistryEntry
    digest: str
    size: int
    signers: frozenset[str]


# What a reader keeps about a peer.


class VersionFloor(Struct, frozen=True, kw_only=True):
    """The highest version that was accepted, and the digest of its bytes."""

    version: int
    digest: str


class TrustedKey(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key of a peer, how it came to be trusted, since when and until when (seconds).

    ``public`` is empty for a pinned fingerprint whose entry was not read yet.
    """

    fingerprint: str
    how: HowTrusted
    since: float
    public: str = ""
    until: float | None = None


class Peer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A swarm that we allow: one item, and each intake relies on its revision.

    ``first_use`` means that the keys of the next valid entry are trusted, once.
    """

    swarm: str
    keys: tuple[TrustedKey, ...] = ()
    revoked: tuple[str, ...] = ()
    floor: VersionFloor | None = None
    first_use: bool = False


class EntryAccepted(Struct, frozen=True, kw_only=True):
    """The entry counts; ``peer`` is what to keep, and equals the former one if unchanged."""

    peer: Peer


class RegistryRefusal(Struct, frozen=True, kw_only=True):
    """An entry, a key or a revocation that does not count, and why."""

    reason: RefusedFor
    detail: str

    @property
    def alarm(self) -> bool:
        """Whether an operator must look at it: no accident makes a swarm sign two texts."""
        return self.reason == "equivocation"


def compare(floor: VersionFloor | None, version: int, digest: str) -> VersionOrder:
    """A version against the highest one that was accepted; also for snapshots."""
    if floor is None or version > floor.version:
        return "newer"
    if version < floor.version:
        return "rollback"
    return "unchanged" if digest == floor.digest else "equivocation"


def accept(
    peer: Peer, signed: SignedEntry, bus: str, now: float
) -> EntryAccepted | RegistryRefusal:
    """Judge an entry that was read from this bus."""
    refused = (
        _bad_shape(signed)
        or _other_place(peer, signed.entry, bus)
        or _bad_keys(peer, signed)
        or _untrusted(peer, signed)
        or _bad_version(peer, signed)
        or _bad_time(signed.entry, now)
    )
    if refused is not None:
        return refused
    floor = VersionFloor(version=signed.entry.version, digest=signed.digest)
    kept = replace(peer, keys=_keys_after(peer, signed.entry, now), floor=floor, first_use=False)
    return EntryAccepted(peer=kept)


def _bad_shape(signed: SignedEntry) -> RegistryRefusal | None:
    if signed.size > ENTRY_LIMIT:
        detail = f"the entry has {signed.size} bytes; {ENTRY_LIMIT} are allowed"
        return RegistryRefusal(reason="too_large", detail=detail)
    mistake = _mistake(signed.entry)
    return RegistryRefusal(reason="malformed", detail=mistake) if mistake else None


def _mistake(entry: RegistryEntry) -> str:
    """What is wrong with the values of an entry; empty if nothing is."""
    prints = [each.fingerprint for each in entry.keys]
    names = [each.agent for each in entry.agents]
    lives = entry.expires - entry.issued
    amounts = (entry.depth, *[each.load for each in entry.agents])
    if not 1 <= entry.version <= validate.LARGEST:
        return f"version {entry.version} is out of bounds"
    if not 1 <= len(prints) <= KEYS_LIMIT or len(set(prints)) < len(prints):
        return f"it lists {len(prints)} keys; 1 to {KEYS_LIMIT} different ones are allowed"
    if len(names) > AGENTS_LIMIT or len(set(names)) < len(names):
        return f"it lists {len(names)} agents; {AGENTS_LIMIT} different ones are allowed"
    if not 0 < lives <= ENTRY_TTL * 1000:
        return f"it lives for {lives} ms; {ENTRY_TTL:.0f} s are allowed"
    if not all(0 <= each <= validate.LARGEST for each in amounts):
        return "a depth or a load is out of bounds"
    return _bad_names(entry)


def _bad_names(entry: RegistryEntry) -> str:
    """A name that is not legal, or that would be stored in another form than it was signed."""
    given = (entry.swarm, *[(each.agent, each.capabilities) for each in entry.agents])
    try:
        stored = (
            validate.name(entry.swarm, "swarm"),
            *[
                (validate.name(each.agent, "agent"), validate.abilities(each.capabilities))
                for each in entry.agents
            ],
        )
    except InterlockError as error:
        return str(error)
    other = [one for one, form in zip(given, stored, strict=True) if one != form]
    return f"{other[0]!a:.200} repeats a name, or is not in NFC" if other else ""


def _other_place(peer: Peer, entry: RegistryEntry, bus: str) -> RegistryRefusal | None:
    if entry.swarm != peer.swarm:
        detail = f"it is the entry of {entry.swarm}, not of {peer.swarm}"
        return RegistryRefusal(reason="other_swarm", detail=detail)
    if entry.bus != bus:
        detail = f"it was signed for bus {entry.bus}, not for {bus}"
        return RegistryRefusal(reason="other_bus", detail=detail)
    return None


def _bad_keys(peer: Peer, signed: SignedEntry) -> RegistryRefusal | None:
    """Each listed key has signed, none is revoked, and one of them stays."""
    listed = [each.fingerprint for each in signed.entry.keys]
    if revoked := [each for each in listed if each in peer.revoked]:
        return RegistryRefusal(reason="revoked_key", detail=f"{revoked[0]} is revoked")
    if unproven := [each for each in listed if each not in signed.signers]:
        detail = f"{unproven[0]} is listed and did not sign the entry"
        return RegistryRefusal(reason="unproven_key", detail=detail)
    if all(each.until is not None for each in signed.entry.keys):
        detail = "all of its keys end, and none is current"
        return RegistryRefusal(reason="retired_key", detail=detail)
    return None


def _untrusted(peer: Peer, signed: SignedEntry) -> RegistryRefusal | None:
    if peer.first_use:
        return None
    if not peer.keys:
        detail = f"no key of {peer.swarm} is trusted; pin one: interlock swarm allow --key"
        return RegistryRefusal(reason="not_pinned", detail=detail)
    signing = [each for each in peer.keys if each.fingerprint in signed.signers]
    if not signing:
        detail = f"it is signed by {_some(signed.signers)}; trusted is {_some(_prints(peer))}"
        return RegistryRefusal(reason="unknown_key", detail=detail)
    if all(each.until is not None for each in signing):
        detail = f"{signing[0].fingerprint} was rotated: it signs no entry without the current key"
        return RegistryRefusal(reason="retired_key", detail=detail)
    return None


def _prints(peer: Peer) -> list[str]:
    return [each.fingerprint for each in peer.keys]


def _some(fingerprints: Iterable[str]) -> str:
    return ", ".join(sorted(fingerprints)[:2]) or "no key"


def _bad_version(peer: Peer, signed: SignedEntry) -> RegistryRefusal | None:
    version = signed.entry.version
    order = compare(peer.floor, version, signed.digest)
    if peer.floor is None or order in ("newer", "unchanged"):
        return None
    if order == "rollback":
        detail = f"version {version} is older than {peer.floor.version}, which was accepted before"
        return RegistryRefusal(reason="rollback", detail=detail)
    detail = f"{peer.swarm} signed two texts as version {version}"
    return RegistryRefusal(reason="equivocation", detail=detail)


def _bad_time(entry: RegistryEntry, now: float) -> RegistryRefusal | None:
    ahead, late = entry.issued / 1000 - now, now - entry.expires / 1000
    if ahead > CLOCK_SKEW:
        detail = f"it was issued {validate.span(ahead)} from now; compare the clocks of both swarms"
        return RegistryRefusal(reason="from_the_future", detail=detail)
    if late > CLOCK_SKEW:
        return RegistryRefusal(reason="expired", detail=f"it expired {validate.span(late)} ago")
    return None


def _keys_after(peer: Peer, entry: RegistryEntry, now: float) -> tuple[TrustedKey, ...]:
    """The listed keys, each with the time since when and the way in which it is trusted."""
    before = {each.fingerprint: each for each in peer.keys}
    new: HowTrusted = "first_use" if peer.first_use else "rotated"
    known = [(each, before.get(each.fingerprint)) for each in entry.keys]
    return tuple(
        [
            _trusted(each, old.how, old.since) if old else _trusted(each, new, now)
            for each, old in known
        ]
    )


# Pins and revocations.


def pin(
    peer: Peer | None, swarm: str, fingerprint: str, now: float, public: str = ""
) -> Peer | RegistryRefusal:
    """Trust this key of a swarm and no other; the floor starts again."""
    revoked = () if peer is None else peer.revoked
    if fingerprint in revoked:
        detail = f"{fingerprint} is revoked, permanently; ask {swarm} for another key"
        return RegistryRefusal(reason="revoked_key", detail=detail)
    key = TrustedKey(fingerprint=fingerprint, how="pinned", since=now, public=public)
    return Peer(swarm=swarm, keys=(key,), revoked=revoked)


def trust_first_use(peer: Peer | None, swarm: str) -> Peer:
    """Trust the keys of the next valid entry; a peer with a trusted key stays as it is."""
    if peer is not None and peer.keys:
        return peer
    return Peer(swarm=swarm, revoked=() if peer is None else peer.revoked, first_use=True)


def revoke(
    peer: Peer, entry: RegistryEntry | None, fingerprint: str, signers: frozenset[str] | None
) -> Peer | RegistryRefusal:
    """End a key of a swarm or of one of its agents.

    ``signers`` are the keys with a valid signature on the revocation, None if our operator asks for
    it; ``entry`` is the last accepted one, which lists the keys of agents.
    """
    if fingerprint in peer.revoked:
        return peer
    if signers is not None and (refused := _may_not_revoke(peer, entry, fingerprint, signers)):
        return refused
    left = tuple([each for each in peer.keys if each.fingerprint != fingerprint])
    return replace(peer, keys=left, revoked=(*peer.revoked, fingerprint), first_use=False)


def _may_not_revoke(
    peer: Peer, entry: RegistryEntry | None, fingerprint: str, signers: frozenset[str]
) -> RegistryRefusal | None:
    agents = () if entry is None else entry.agents
    own = {*_prints(peer), *[each.key.fingerprint for each in agents if each.key is not None]}
    current = {each.fingerprint for each in peer.keys if each.until is None}
    if not (signers & current or fingerprint in signers & own):
        detail = f"neither {fingerprint} itself nor a current key of {peer.swarm} signed it"
        return RegistryRefusal(reason="unknown_key", detail=detail)
    if len(peer.revoked) >= REVOKED_LIMIT:
        detail = (
            f"{REVOKED_LIMIT} keys of {peer.swarm} are revoked; deny it, or revoke this by hand"
        )
        return RegistryRefusal(reason="too_large", detail=detail)
    return None


def signing_key(
    peer: Peer, entry: RegistryEntry | None, fingerprint: str, agent: str, now: float
) -> TrustedKey | RegistryRefusal:
    """The key that signed a message of this agent, if it may.

    ``entry`` is the last accepted one; the keys of agents count by it though it has expired, so
    that requests go on while the publisher is down.
    """
    if fingerprint in peer.revoked:
        return RegistryRefusal(reason="revoked_key", detail=f"{fingerprint} is revoked")
    for key in (*peer.keys, *_agent_keys(entry, agent)):
        if key.fingerprint == fingerprint:
            if key.until is not None and now > key.until + CLOCK_SKEW:
                ago = validate.span(now - key.until)
                detail = f"{fingerprint} ended {ago} ago; sign with the current key"
                return RegistryRefusal(reason="retired_key", detail=detail)
            return key
    detail = f"{fingerprint} is neither a trusted key of {peer.swarm} nor the key of {agent}"
    return RegistryRefusal(reason="unknown_key", detail=detail)


def _agent_keys(entry: RegistryEntry | None, agent: str) -> Iterable[TrustedKey]:
    """The key of an agent, trusted because the swarm listed it."""
    if entry is None:
        return
    for each in entry.agents:
        if each.agent == agent and each.key is not None:
            yield _trusted(each.key, "listed", entry.issued / 1000)


def _trusted(key: ListedKey, how: HowTrusted, since: float) -> TrustedKey:
    return TrustedKey(
        fingerprint=key.fingerprint,
        how=how,
        since=since,
        public=key.public,
        until=None if key.until is None else key.until / 1000,
    )
