"""A swarm's home as a client uses it for requests: its own identity, its key, its peers, its bus.

Everything that the services of this folder share.  The trust in a peer is read with its revision,
and each commit that relies on it checks that revision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec import Raw, Struct

from interlock.core import keys, rate
from interlock.core.signing import Signer
from interlock.errors import InterlockError, NotAllowed
from interlock.nouns.requests.exchange import (
    decode_breaker,
    decode_rate,
    decode_reputation,
)
from interlock.nouns.requests.peer_queue import PeerQueues
from interlock.nouns.requests.quarantine_service import QuarantineRoom
from interlock.nouns.requests.send_rules import PeerFacts
from interlock.nouns.swarms import registry, reputation
from interlock.nouns.swarms.agent_keys import announce, wait_until_listed
from interlock.nouns.swarms.breaker import CLOSED
from interlock.nouns.swarms.envelope import TrustedKey, sign_head
from interlock.nouns.swarms.head import Head
from interlock.nouns.swarms.limits import DEFAULT_LIMITS, PeerLimits
from interlock.nouns.swarms.own_keys import signer_of
from interlock.nouns.swarms.registry_rules import all_trusted_keys
from interlock.nouns.swarms.reputation import UNKNOWN
from interlock.nouns.swarms.results import SwarmStatus
from interlock.nouns.swarms.ssh_agent import AgentSigner
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
from interlock.steps import InThread, Op, Read
from interlock.store import Item

if TYPE_CHECKING:
    from interlock.nouns.requests.request import OutgoingRequest
    from interlock.nouns.swarms.bus import Bus
    from interlock.nouns.swarms.registry_service import SwarmRegistry
    from interlock.runtime.attempt import ReadOp
    from interlock.runtime.identity import Actor
    from interlock.runtime.runner import Runner

H = TypeVar("H", bound=Head)

LOOK_AGAIN = 5.0
"""Seconds after which a process looks again for the key of its swarm."""
ANSWERS_AT_ONCE = 20
RECORD_EVERY = 5.0
"""Seconds after which answers are stored in a reputation, with the next one."""


class Trust(Struct, frozen=True, kw_only=True):
    """All peers as they were read, with the revisions that an intake relies on."""

    keys: Mapping[str, TrustedKey]
    """By fingerprint: of the peers, and of their agents if these were read."""
    revisions: Mapping[str, int]
    """By key: of each peer, and of each floor that was read."""
    limits: Mapping[str, PeerLimits]
    """By swarm, as our operator has set them."""

    def relied(self, key: TrustedKey) -> tuple[str, ...]:
        """The keys of the items that the trust in this key comes from."""
        if not key.agent:
            return (keys.peer(key.swarm),)
        return keys.peer(key.swarm), keys.floor(key.swarm)


class Home:
    """The home store of a swarm, its bus, and the key that signs for it."""

    def __init__(self, runner: Runner, bus: Bus, swarms: SwarmRegistry) -> None:
        self.runner = runner
        self.bus = bus
        self.swarms = swarms
        self.queues = PeerQueues(runner, bus, swarms)
        self.room = QuarantineRoom(self)
        self._signers: dict[tuple[str, str], Signer] = {}
        self._missing: dict[tuple[str, str], tuple[float, str]] = {}
        """When to look again for a key of the swarm that is not here, and why it is not."""
        self._announced: tuple[str, str] | None = None
        """The agent and the key of this client, once peers may know it."""
        self.in_flight: Counter[str] = Counter()
        """Requests of this process to each swarm that were not answered yet."""
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
                "this home is no swarm yet; run: interlock swarm register NAME --bus URL --key KEY"
            )
        return decode_own(item)

    # Keys that sign.

    def signer(self, own: OwnSwarm, agent: str) -> Signer | None:
        """The key with which this process signs for an agent: that of the swarm, if it is here.

        Else the agent's own, which ``ready`` has announced; None if another process has to sign.
        """
        found = self._swarm_signer(own)
        mine = self.runner.signer
        if found is None and mine is not None and self._announced is not None:
            return mine if self._announced == (agent, mine.fingerprint) else None
        return found

    def ready(self, own: OwnSwarm, actor: Actor) -> Op[None]:
        """See that this process can sign for its agent; NotAllowed with what to do if it cannot.

        Without the key of the swarm it announces the key of its client as that of the agent, and
        waits until our registry entry lists it.
        """
        if not own.keys:
            raise NotAllowed(
                f"{own.name} has no key any more; register it again with another one:"
                f" interlock swarm register {own.name} --bus URL --key KEY"
            )
        if self._swarm_signer(own) is not None:
            return
        mine = self.runner.signer
        if mine is None:
            why = self._missing[own.key, own.fingerprint][1]
            raise NotAllowed(
                f"{why}; or give this agent a key of its own: 'interlock key new NAME', then"
                " --key NAME or INTERLOCK_KEY"
            )
        name = yield from announce(self.runner, own, actor, mine)
        if self._announced != (actor.agent, name):
            yield from wait_until_listed(self.bus, own, name, self.runner)
            self._announced = actor.agent, name

    def stay_ready(self, own: OwnSwarm, actor: Actor) -> Op[None]:
        """See from time to time that the own key of this agent is still listed, if it has one."""
        if self._announced is not None:
            yield from self.ready(own, actor)

    def sign(self, own: OwnSwarm, agent: str, make: Callable[[str], H]) -> Op[tuple[H, Raw]]:
        """A head and its envelope, signed for an agent; ``make`` gets the key's fingerprint.

        A key in an ssh-agent signs in a thread: a person may have to confirm it.
        """
        signer = self.signer(own, agent)
        if signer is None:
            raise NotAllowed(
                f"no key here may sign for {agent}: neither that of {own.name} nor that of the"
                " agent; run this where one of them is"
            )
        head = make(signer.fingerprint)
        if isinstance(signer, AgentSigner):
            return head, Raw((yield InThread(partial(sign_head, head, signer))))
        return head, Raw(sign_head(head, signer))

    def _swarm_signer(self, own: OwnSwarm) -> Signer | None:
        if not own.keys:
            return None
        known, now = (own.key, own.fingerprint), self.runner.clock.monotonic()
        if known not in self._signers and now >= self._missing.get(known, (now, ""))[0]:
            try:
                self._signers[known] = signer_of(own, own.fingerprint, self.runner.signer)
            except InterlockError as error:
                self._missing[known] = now + LOOK_AGAIN, str(error)
        return self._signers.get(known)

    # Peers.

    def trust(self, *, agents: Callable[[Collection[str]], bool]) -> Op[Trust]:
        """All peers; also the keys of their agents, if ``agents`` says so of the peers' keys."""
        items = yield from every(keys.PEERS)
        peers = {item.key: peer for item in items if (peer := readable(decode_peer, item))}
        revisions = {item.key: item.revision for item in items if item.key in peers}
        floors: dict[str, Floor] = {}
        trusted = all_trusted_keys(peers.values(), floors, self.now())
        if agents(trusted):
            for item in (yield from every(keys.FLOORS)):
                if (floor := readable(decode_floor, item)) is not None:
                    floors[floor.swarm] = floor
                    revisions[item.key] = item.revision
            trusted = all_trusted_keys(peers.values(), floors, self.now())
        limits = {peer.swarm: peer.limits for peer in peers.values()}
        return Trust(keys=trusted, revisions=revisions, limits=limits)

    def peer_facts(self, swarm: str, agent: str = "") -> ReadOp[PeerFacts]:
        """What a decision needs to know of a peer; with an agent also its rate, and the probe.

        Many requests to one peer are under way at once, and each end of one changes what is known
        of the peer.  So the commit checks it only if the request may be a probe.
        """
        own, circuit, record = keys.peer(swarm), keys.breaker(swarm), keys.reputation(swarm)
        queue = keys.peer_queue(swarm)
        items = (yield Unchecked((own, circuit, record, queue))).items
        waiting = items[queue]
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
        limits = DEFAULT_LIMITS if peer is None else peer.limits
        rates = rate.EMPTY
        if agent and limits.rate:
            key = keys.request_rate("to", swarm, agent)
            rates = decode_rate((yield (key,)).items[key]) or rate.EMPTY
        return PeerFacts(
            allowed=peer is not None and peer.allowed,
            limits=limits,
            breaker=breaker,
            probing=probing,
            reputation=went,
            rates=rates,
            queue=self.queues.check(swarm, waiting, "new", limits) if agent else None,
        )

    def status(self, own: OwnSwarm, swarm: str) -> Op[SwarmStatus]:
        """Whether a swarm is online, by what is known now; the bus is read if that is due."""
        yield from self.swarms.refresh(own, only=[swarm])
        key = keys.floor(swarm)
        item = (yield Read(key))[key]
        floor = (None if item is None else readable(decode_floor, item)) or Floor(swarm=swarm)
        return registry.status(floor.entry, self.now(), live=floor.live)

    def choose(self, ability: str, *, but: Collection[str] = ()) -> Op[str]:
        """A swarm with agents that can do this: the better of two; empty if there is none."""
        found = yield from self.swarms.discover(ability)
        agents = [] if found is None else [each for each in found[0] if each.swarm not in but]
        draws = [self.runner.random_below(1 << 20) / (1 << 20) for _ in range(2)]
        chosen = registry.choose(registry.choices(agents, self.in_flight), *draws)
        return "" if chosen is None else chosen.swarm

    def ended(self, requests: Iterable[OutgoingRequest]) -> None:
        """These requests have an answer."""
        for each in requests:
            self.in_flight[each.to_swarm] = max(0, self.in_flight[each.to_swarm] - 1)

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
