"""What calls about keys and swarms answer; it imports little, since every command may need it."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from msgspec import Struct

from interlock.core import item_outcomes, outcomes
from interlock.core.decision import Refusal, Success
from interlock.core.outcomes import Listing
from interlock.nouns.swarms.breaker import BreakerState
from interlock.nouns.swarms.reputation import Standing

SwarmStatus: TypeAlias = Literal["online", "degraded", "offline"]
HowTrusted: TypeAlias = Literal["pinned", "first_use", "rotated"]
"""By our operator, by the first entry that was read, or because an earlier key vouched for it."""


class FoundAgent(Struct, frozen=True, kw_only=True):
    """An agent with the wanted ability."""

    swarm: str
    agent: str
    load: int


# Keys.


class KeyMade(Success, frozen=True, kw_only=True, tag="made"):
    """A new key; ``public_key`` is its line for others, ``fingerprint`` is what they pin."""

    own_words = (
        "path",
        "public_key",
    )

    key: str
    fingerprint: str
    public_key: str
    path: str


class KeyView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key of this user; ``age`` in seconds, ``problem`` says why it cannot be used."""

    key: str
    path: str
    age: float
    fingerprint: str = ""
    public_key: str = ""
    retired: bool = False
    overdue: bool = False
    problem: str = ""


class KeyList(Listing[KeyView], frozen=True, kw_only=True):
    """The keys of this user."""

    listed: ClassVar[str] = "keys"

    keys: tuple[KeyView, ...]
    folder: str


class KeyRotated(Success, frozen=True, kw_only=True, tag="rotated"):
    """A new key has taken the place of an old one, which is kept as ``old``.

    In a swarm that signs with it, the old key still counts ``until`` a time; ``version`` is the
    registry entry that both keys signed, and ``trouble`` says why it is not on the bus yet.
    """

    key: str
    fingerprint: str
    old: str
    old_fingerprint: str
    swarm: str = ""
    version: int | None = None
    until: float | None = None
    trouble: str = ""


class KeyRevoked(Success, frozen=True, kw_only=True, tag="revoked"):
    """The key counts no more; ``trouble`` says why peers cannot read that yet.

    ``current`` is the key that signs for the swarm now; without one, register again.  ``agent`` is
    set for the key of an agent.
    """

    swarm: str
    fingerprint: str
    current: str = ""
    agent: str = ""
    already: bool = False
    trouble: str = ""


# Swarms.


class NotRegistered(Refusal, frozen=True, kw_only=True, tag="not_registered"):
    """This home is no swarm yet, so it has no bus."""


class NameTaken(item_outcomes.Exists, Refusal, frozen=True, kw_only=True, tag="exists"):
    """Another swarm has this name on the bus, or this home has another name already."""

    own_words = ("reason",)

    swarm: str
    reason: str


class SwarmRegistered(Success, frozen=True, kw_only=True, tag="registered"):
    """This home is a swarm; ``version`` is its registry entry.

    ``alone`` is true if no other swarm was on the bus when this one came: it is the first, or the
    address is not the one that the others have.  ``trouble`` says why the entry is not on the bus
    yet.
    """

    swarm: str
    bus: str
    bus_id: str
    fingerprint: str
    version: int
    alone: bool = False
    trouble: str = ""


class TrustedKeyView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key of a swarm, how it came to be trusted, and when it ends."""

    fingerprint: str
    how: HowTrusted | Literal["own"]
    since: float
    until: float | None = None


class SwarmView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A swarm as it is listed.

    ``role``      own, a peer that we allow, one that we deny, or a stranger: an entry on the bus
                  that nothing here vouches for, with the fingerprint that it claims
    ``version``   of the newest entry that we accepted, with its number of agents and its depth
    ``agent_keys``  the keys of its agents that sign for themselves, the current one first
    ``refused``   how many entries and revocations were refused, by reason
    """

    swarm: str
    role: Literal["own", "peer", "denied", "stranger"]
    status: SwarmStatus | Literal["unknown"]
    version: int | None = None
    agents: int | None = None
    depth: int | None = None
    read_at: float | None = None
    expires_at: float | None = None
    keys: tuple[TrustedKeyView, ...] = ()
    agent_keys: dict[str, tuple[str, ...]] = {}
    claims: str = ""
    first_use: bool = False
    refused: dict[str, int] = {}
    last_refused: str = ""
    refused_at: float | None = None


class SwarmList(Listing[SwarmView], frozen=True, kw_only=True, omit_defaults=True):
    """This swarm first, then its peers, then strangers; ``trouble`` if the bus does not answer."""

    listed: ClassVar[str] = "swarms"

    swarms: tuple[SwarmView, ...]
    bus: str = ""
    trouble: str = ""


class Discovered(Listing[FoundAgent], frozen=True, kw_only=True, omit_defaults=True):
    """The agents of live peers with an ability, least loaded first.

    ``age`` is how old what we know is, in seconds; ``trouble`` says why it could not be read again.
    """

    listed: ClassVar[str] = "agents"

    ability: str
    agents: tuple[FoundAgent, ...]
    age: float
    trouble: str = ""


class SwarmAllowed(
    item_outcomes.Allowed, frozen=True, kw_only=True, tag="allowed", omit_defaults=True
):
    """The peer may send requests and gets ours.

    ``how`` says which key is trusted: the pinned ``fingerprint``, the one of the first entry that
    is read, or the one that was trusted before.  ``entry`` is the version that was accepted at
    once, if any; ``trouble`` says why none was.  One agent makes at most ``rate`` requests in a
    ``window`` of seconds (0 for any number), ``queue`` requests may wait, and ``marks`` messages
    are remembered against replay.
    """

    swarm: str
    how: Literal["pinned", "first_use", "unchanged"]
    rate: int
    window: float
    queue: int
    marks: int
    fingerprint: str = ""
    entry: int | None = None
    trouble: str = ""


class SwarmRevokedKey(Refusal, frozen=True, kw_only=True, tag="revoked_key"):
    """This key is revoked, permanently, so it cannot be trusted."""

    exit_status = 3
    http_status = 403

    swarm: str
    fingerprint: str


class SwarmDenied(item_outcomes.Denied, frozen=True, kw_only=True, tag="denied"):
    """Nothing is taken from the peer and nothing is sent to it, from this commit on."""

    swarm: str
    already: bool = False


class UnknownSwarm(outcomes.Unknown, frozen=True, kw_only=True, tag="unknown"):
    """No peer has this name here."""


class BreakerView(Struct, frozen=True, kw_only=True):
    """The circuit breaker of a peer; ``retry_in`` seconds until a request goes through."""

    state: BreakerState
    timeouts: int
    opened: int
    retry_in: float


class PeerTrust(Struct, frozen=True, kw_only=True):
    """What our own record says about a peer, and its limits (as in ``SwarmAllowed``)."""

    swarm: str
    allowed: bool
    standing: Standing
    breaker: BreakerView
    rate: int
    window: float
    queue: int
    marks: int


class PeerTrustList(Listing[PeerTrust], frozen=True, kw_only=True):
    """The reputation and the circuit breaker of each peer."""

    listed: ClassVar[str] = "peers"

    peers: tuple[PeerTrust, ...]


class Forgiven(Success, frozen=True, kw_only=True, tag="forgiven"):
    """The record of a peer is cleared, and its breaker is closed."""

    swarm: str
    samples: int


class EntryRefused(Struct, frozen=True, kw_only=True):
    """An entry or a revocation of a peer that does not count."""

    swarm: str
    reason: str
    detail: str


class SwarmSynced(Success, frozen=True, kw_only=True, tag="synced", omit_defaults=True):
    """One pass of the link between this swarm and its bus.

    ``version`` is that of our entry on the bus, and ``published`` whether this pass put it there;
    ``state`` and ``stated`` say the same of our snapshot.  ``posted`` writes of shared values are
    on the bus now, and people have to make the ``decisions`` about others.  ``trouble`` says what
    could not be done, for example because the bus is away.
    """

    swarm: str
    version: int
    published: bool = False
    state: int = 0
    stated: bool = False
    accepted: tuple[str, ...] = ()
    refused: tuple[EntryRefused, ...] = ()
    revoked: tuple[str, ...] = ()
    posted: int = 0
    decisions: tuple[str, ...] = ()
    trouble: str = ""


class SwarmNotSynced(Refusal, frozen=True, kw_only=True, tag="not_synced", omit_defaults=True):
    """A pass could not do all it should: the bus is away, or a key is not on this host.

    ``trouble`` says which; the other fields are what the pass did in spite of that.
    """

    swarm: str
    trouble: str
    version: int = 0
    published: bool = False
    accepted: tuple[str, ...] = ()
    refused: tuple[EntryRefused, ...] = ()
    revoked: tuple[str, ...] = ()


RegisterOutcome: TypeAlias = SwarmRegistered | NameTaken
AllowOutcome: TypeAlias = SwarmAllowed | SwarmRevokedKey
DenyOutcome: TypeAlias = SwarmDenied | UnknownSwarm
TrustOutcome: TypeAlias = PeerTrustList | Forgiven | UnknownSwarm
SyncOutcome: TypeAlias = SwarmSynced | SwarmNotSynced | NotRegistered
DiscoverOutcome: TypeAlias = Discovered | NotRegistered
RotateOutcome: TypeAlias = KeyRotated
RevokeOutcome: TypeAlias = KeyRevoked | NotRegistered
