"""A swarm's home as a client uses it for requests: its own identity, its key, its peers, its bus.

Everything that the services of this folder share.  The trust in a peer is read with its revision,
and each commit that relies on it checks that revision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from interlock.core import keys, rate
from interlock.core.rate import Rate
from interlock.core.signing import Signer
from interlock.errors import NotAllowed
from interlock.nouns.requests.exchange import (
    decode_breaker,
    decode_rate,
    decode_reputation,
)
from interlock.nouns.requests.send_rules import PeerFacts
from interlock.nouns.swarms import reputation
from interlock.nouns.swarms.breaker import CLOSED
from interlock.nouns.swarms.envelope import TrustedKey
from interlock.nouns.swarms.head import usable_key
from interlock.nouns.swarms.limits import REQUEST_RATE
from interlock.nouns.swarms.reputation import UNKNOWN
from interlock.nouns.swarms.swarm import (
    Floor,
    OwnSwarm,
    Peer,
    decode_floor,
    decode_own,
    decode_peer,
)
from interlock.runtime.attempt import Unchecked
from interlock.runtime.reads import OWN_OPERATIONS, every, readable
from interlock.steps import Op, Read
from interlock.store import Item

if TYPE_CHECKING:
    from interlock.nouns.swarms.bus import Bus
    from interlock.runtime.attempt import ReadOp
    from interlock.runtime.runner import Runner

T = TypeVar("T")

SKEW = 30.0
ANSWERS_AT_ONCE = 20
RECORD_EVERY = 5.0
"""Seconds after which answers are stored in a reputation, with the next one."""


class Trust(Struct, frozen=True, kw_only=True):
    """All peers as they were read, with the revisions that an intake relies on."""

    peers: Mapping[str, Peer]
    floors: Mapping[str, Floor]
    revisions: Mapping[str, int]
    """By key: of each peer, and of each floor that was read."""

    def key_of(self, fingerprint: str, now: float) -> TrustedKey | None:
        """The key of this fingerprint, if it is that of a peer, or of an agent of a peer."""
        for peer in self.peers.values():
            revoked = fingerprint in peer.revoked
            for key in peer.keys:
                if key.fingerprint == fingerprint and (
                    key.until is None or now <= key.until + SKEW
                ):
                    public = usable_key(key.public)
                    if public is not None:
                        return TrustedKey(public_key=public, swarm=peer.swarm, revoked=revoked)
            floor = self.floors.get(peer.swarm)
            if floor is None or floor.entry is None:
                continue
            if (found := floor.entry.agent_keys().get(fingerprint)) is not None:
                agent, public = found
                return TrustedKey(public_key=public, swarm=peer.swarm, agent=agent, revoked=revoked)
        return None

    def relied(self, key: TrustedKey) -> tuple[str, ...]:
        """The keys of the items that the trust in this key comes from."""
        if not key.agent:
            return (keys.peer(key.swarm),)
        return keys.peer(key.swarm), keys.floor(key.swarm)


class Home:
    """The home store of a swarm, its bus, and the key that signs for it."""

    def __init__(self, runner: Runner, bus: Bus) -> None:
        self.runner = runner
        self.bus = bus
        self.rate: Rate = REQUEST_RATE
        self._signers: dict[tuple[str, str], Signer] = {}
        self._answers: dict[str, int] = {}
        self._recorded: dict[str, float] = {}

    def at_once(self, most: int, operations: int) -> int:
        """How many things one commit at home takes, with so many operations each."""
        room = self.runner.capabilities.max_operations - OWN_OPERATIONS
        return max(1, min(most, room // operations))

    def now(self) -> float:
        """The time of this client."""
        return self.runner.clock.wall()

    def own(self) -> Op[OwnSwarm]:
        """Our own swarm; NotAllowed if this home is none."""
        item = (yield Read(keys.OWN_SWARM))[keys.OWN_SWARM]
        if item is None:
            raise NotAllowed(
                "this home is no swarm yet; run: interlock swarm register NAME --bus URL"
            )
        return decode_own(item)

    def signer(self, own: OwnSwarm) -> Signer:
        """The current key of our swarm; NotAllowed if this process does not have it."""
        known = own.key, own.fingerprint
        if (found := self._signers.get(known)) is None:
            from interlock.nouns.swarms.key_files import signer

            found = signer(own.key)
            if found.fingerprint != own.fingerprint:
                raise NotAllowed(
                    f"the key {own.key} here is {found.fingerprint}, and {own.name} signs with"
                    f" {own.fingerprint}; copy that key here, or rotate: interlock key rotate"
                )
            self._signers[known] = found
        return found

    def trust(self, *, agents: Callable[[Mapping[str, Peer]], bool]) -> Op[Trust]:
        """All peers; also the keys of their agents, if ``agents`` asks for these."""
        items = yield from every(keys.PEERS)
        found = {item.key: peer for item in items if (peer := readable(decode_peer, item))}
        peers = {peer.swarm: peer for peer in found.values() if peer.allowed}
        revisions = {item.key: item.revision for item in items if item.key in found}
        floors: dict[str, Floor] = {}
        if agents(peers):
            for item in (yield from every(keys.FLOORS)):
                if (floor := readable(decode_floor, item)) is not None:
                    floors[floor.swarm] = floor
                    revisions[item.key] = item.revision
        return Trust(peers=peers, floors=floors, revisions=revisions)

    def peer_facts(self, swarm: str, agent: str = "") -> ReadOp[PeerFacts]:
        """What a decision needs to know of a peer; with an agent also its rate, and the probe.

        Many requests to one peer are under way at once, and each end of one changes what is known
        of the peer.  So the commit checks it only if the request may be a probe.
        """
        own, circuit, record = keys.peer(swarm), keys.breaker(swarm), keys.reputation(swarm)
        items = (yield Unchecked((own, circuit, record))).items
        breaker = decode_breaker(items[circuit]) or CLOSED
        went = decode_reputation(items[record]) or UNKNOWN
        probing = False
        if agent and (breaker.opened or reputation.standing(went, self.now()).blocked):
            probe = keys.breaker_probe(swarm)
            items = (yield (own, circuit, record, probe)).items
            breaker = decode_breaker(items[circuit]) or CLOSED
            went = decode_reputation(items[record]) or UNKNOWN
            probing = items[probe] is not None
        peer = _peer(items[own])
        rates = rate.EMPTY
        if agent and self.rate.limit:
            key = keys.request_rate("to", swarm, agent)
            rates = decode_rate((yield (key,)).items[key]) or rate.EMPTY
        return PeerFacts(
            allowed=peer is not None and peer.allowed,
            breaker=breaker,
            probing=probing,
            reputation=went,
            rates=rates,
        )

    def unrecorded(self, swarm: str) -> int:
        """How many answers of a peer are not in its stored reputation yet."""
        return self._answers.get(swarm, 0)

    def records_answers(self, swarm: str, new: int) -> bool:
        """Whether the next commit stores the answers of a peer in its reputation.

        Answers need not be written one by one, where many processes would write the same item; the
        first one of a process is, since it may be the only one.
        """
        last = self._recorded.get(swarm)
        if last is None or self.unrecorded(swarm) + new >= ANSWERS_AT_ONCE:
            return True
        return self.runner.clock.monotonic() - last >= RECORD_EVERY

    def answered(self, swarm: str, new: int, *, recorded: bool) -> None:
        """Answers of a peer were committed; ``recorded`` says that its reputation has them all."""
        self._answers[swarm] = 0 if recorded else self.unrecorded(swarm) + new
        if recorded:
            self._recorded[swarm] = self.runner.clock.monotonic()


def _peer(item: Item | None) -> Peer | None:
    return None if item is None else decode_peer(item)
