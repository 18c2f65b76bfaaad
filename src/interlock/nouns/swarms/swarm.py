"""Swarms: what a home store knows of itself and of its peers.

    swarm/self      OwnSwarm     our name, our bus, our keys; written when we register or rotate
    swarm/entry     OwnEntry     the last version of our registry entry, and when it was signed
    peers/{swarm}   Peer         a swarm that we allow or deny, and the keys of it that we trust
    floors/{swarm}  Floor        the newest registry entry of a peer that we accepted

``Peer`` is what trust is: it changes only when trust does, and never when a registry entry is read
again.  So each intake relies on its revision: a key that is revoked between the check of a message
and its commit makes that commit conflict.  The keys of agents are in the ``Floor``, so an intake
that used one of those relies on that revision, too.

A peer that is denied keeps its revoked keys, since a revocation is permanent.

Times are seconds of the wall clock; those inside of a registry entry are milliseconds.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from interlock.core import codec
from interlock.nouns.swarms.head import ListedKey, RegistryHead
from interlock.store import Item

HowTrusted: TypeAlias = Literal["pinned", "first_use", "rotated", "listed"]
"""By our operator, by the first entry that was read, by an earlier key, as the key of an agent."""


class OwnSwarm(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Our home as a swarm.

    ``bus`` is the URL of the bus and may hold a password: show ``bus_shown``.  ``bus_id`` is the id
    that the bus had when we registered.  ``keys`` are the keys that sign for us, the current one
    first; ``key`` is the name, path or fingerprint by which processes find the current one.
    """

    name: str
    bus: str
    bus_shown: str
    bus_id: str
    key: str
    keys: tuple[ListedKey, ...]
    registered: float

    @property
    def fingerprint(self) -> str:
        """The name of the current key."""
        return self.keys[0].fingerprint


class OwnEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last registry entry that a process of our home has signed, or was about to sign."""

    version: int
    at: float
    content: str = ""
    """The digest of what it says, without its version and times."""


class PeerKey(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key of a peer, how it came to be trusted, since when, and until when if it was rotated.

    ``public`` is the key in base64; it is empty for a pinned fingerprint whose entry was not read
    yet.
    """

    fingerprint: str
    how: HowTrusted
    since: float
    public: str = ""
    until: float | None = None


class Peer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A swarm that we allow, or no longer; one item, and each intake relies on its revision.

    ``first_use`` means that the keys of the next valid entry are trusted, once.
    """

    swarm: str
    allowed: bool = True
    keys: tuple[PeerKey, ...] = ()
    revoked: tuple[str, ...] = ()
    first_use: bool = False


class Floor(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The highest version of a peer's entry that was accepted, and the entry.

    ``digest`` is the SHA-256 of the signed bytes.  ``fetched`` is when the bus was last asked, with
    any result, and ``live`` whether a process of the peer was there then.  ``refused`` counts, by
    reason, the entries and revocations of this peer that were refused; ``last_refused`` is the last
    one, for people.
    """

    swarm: str
    version: int = 0
    digest: str = ""
    entry: RegistryHead | None = None
    fetched: float = 0.0
    live: bool = False
    refused: dict[str, int] = {}
    last_refused: str = ""
    refused_at: float = 0.0
    refused_digest: str = ""


_OWN = codec.Decoder(OwnSwarm)
_ENTRY = codec.Decoder(OwnEntry)
_PEER = codec.Decoder(Peer)
_FLOOR = codec.Decoder(Floor)


def decode_own(item: Item) -> OwnSwarm:
    """The item ``swarm/self``."""
    return _OWN.read(item)


def decode_own_entry(item: Item) -> OwnEntry:
    """The item ``swarm/entry``."""
    return _ENTRY.read(item)


def decode_peer(item: Item) -> Peer:
    """An item under ``peers/``."""
    return _PEER.read(item)


def decode_floor(item: Item) -> Floor:
    """An item under ``floors/``."""
    return _FLOOR.read(item)
