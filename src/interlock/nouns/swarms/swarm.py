"""Swarms: what a home store knows of itself and of its peers.

    swarm/self      OwnSwarm     our name, our bus, our keys; written when we register or rotate
    swarm/entry     OwnEntry     the last version of our registry entry, and when it was signed
    agent-keys/{agent}  OwnAgentKeys  the keys with which one of our agents signs for itself
    swarm/state     OwnState     the last version of our snapshot, with the counts behind it
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

from msgspec import Struct

from interlock.core import codec, keys
from interlock.nouns.swarms.head import AgentKey, ListedKey, RegistryHead
from interlock.nouns.swarms.limits import DEFAULT_LIMITS, PeerLimits
from interlock.nouns.swarms.results import HowTrusted
from interlock.nouns.swarms.sync_heads import StateHead
from interlock.store import Item


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


class OwnSwarmChange(Struct, frozen=True, kw_only=True, tag="done"):
    """Our swarm after a commit.

    The record names the outcome of a decision by its tag alone: it must not show the bus's URL.
    """

    own: OwnSwarm


class OwnEntry(Struct, frozen=True, kw_only=True):
    """The last registry entry that a process of our home has signed, or was about to sign."""

    version: int
    at: float


class OwnAgentKeys(Struct, frozen=True, kw_only=True):
    """The keys of one of our agents, the current one first; ``at`` is when it was last used."""

    agent: str
    keys: tuple[AgentKey, ...]
    at: float


class OwnState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last snapshot that a process of our home has signed, or was about to sign.

    The record was counted up to the revision ``counted``: ``completed`` tasks in all, and the
    tasks that were ``running`` then, with the time of each claim.
    """

    version: int
    at: float
    counted: int = 0
    completed: int = 0
    running: dict[str, float] = {}


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

    ``first_use`` means that the keys of the next valid entry are trusted, once.  ``limits`` are
    those that our operator has set.
    """

    swarm: str
    allowed: bool = True
    keys: tuple[PeerKey, ...] = ()
    revoked: tuple[str, ...] = ()
    first_use: bool = False
    limits: PeerLimits = DEFAULT_LIMITS


class Floor(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The highest version of a peer's entry that was accepted, and the entry.

    ``digest`` is the SHA-256 of the signed bytes.  ``fetched`` is when the bus was last read, with
    any result, and ``live`` whether a process of the peer was there then.  ``refused`` counts, by
    reason, the entries and revocations of this peer that were refused; ``last_refused`` is the last
    one, for people.  ``state`` is the newest snapshot that was accepted, and ``state_digest`` that
    of its signed bytes.
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
    state: StateHead | None = None
    state_digest: str = ""


_OWN = codec.Decoder(OwnSwarm)
_ENTRY = codec.Decoder(OwnEntry)
_AGENT_KEYS = codec.Decoder(OwnAgentKeys)
_STATE = codec.Decoder(OwnState)
_PEER = codec.Decoder(Peer)
_FLOOR = codec.Decoder(Floor)


def decode_own(item: Item) -> OwnSwarm:
    """The item ``swarm/self``."""
    return _OWN.read(item)


def decode_own_entry(item: Item) -> OwnEntry:
    """The item ``swarm/entry``."""
    return _ENTRY.read(item)


def decode_own_state(item: Item) -> OwnState:
    """The item ``swarm/state``."""
    return _STATE.read(item)


def examine_own(item: Item) -> OwnSwarm | OwnEntry | OwnState:
    """An item under ``swarm/``, for the integrity check."""
    if item.key == keys.OWN_SWARM:
        return decode_own(item)
    return decode_own_state(item) if item.key == keys.OWN_STATE else decode_own_entry(item)


def decode_agent_keys(item: Item) -> OwnAgentKeys:
    """An item under ``agent-keys/``."""
    return _AGENT_KEYS.read(item)


def decode_peer(item: Item) -> Peer:
    """An item under ``peers/``."""
    return _PEER.read(item)


def decode_floor(item: Item) -> Floor:
    """An item under ``floors/``."""
    return _FLOOR.read(item)
