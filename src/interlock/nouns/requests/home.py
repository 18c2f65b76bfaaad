"""A swarm's home as a client uses it for requests: its own identity, its key, its peers, its bus.

Everything that the services of this folder share.

Our own identity and the trust in peers hardly ever change, so a process keeps them, and reads them
again after a second.  Each commit that relies on them checks that they are as they were read: a
request is not signed with a key that was replaced, nor a message taken in whose key is revoked.
Across a network they are a guess of the commit (``runtime/runner.py``), so that costs no read.
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
from interlock.nouns.swarms.own_keys import no_key_left, signer_of
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
FRESH = 1.0
"""Seconds for which a process need not read our own swarm and our peers again."""
REMEMBERED = 2000
"""Items of peers that a process remembers at most."""
ANSWERS_AT_ONCE = 20
RECORD_EVERY = 5.0
"""Seconds after which answers are stored in a reputation, with the next one."""


_ABOUT_A_PEER = (keys.peer, keys.breaker, keys.reputation)


class Trust(Struct, frozen=True, kw_only=True):
    """All peers as they were read, with the items that an intake relies on."""

    keys: Mapping[str, TrustedKey]
    """By fingerprint: of the peers, and of their agents if these were read."""
    items: Mapping[str, Item]
    """By key: of each peer, and of each floor that was read."""
    limits: Mapping[str, PeerLimits]
    """By swarm, as our operator has set them."""
    read: float
    """When it was read, by the monotonic clock."""

    def relied(self, wanted: Iterable[TrustedKey]) -> dict[str, Item]:
        """The items that the trust in these keys comes from."""
        found: dict[str, None] = {}
        for key in wanted:
            found[keys.peer(key.swarm)] = None
            if key.agent:
                found[keys.floor(key.swarm)] = None
        return {key: self.items[key] for key in found}


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
        self._own: tuple[Item, OwnSwarm, float] | None = None
        self._trust: Trust | None = None
        self._known: dict[str, tuple[Item | None, float]] = {}
        """What this process last read of peers, and when by the monotonic clock."""
        self._answers: dict[str, int] = {}
        self._recorded: dict[str, float] = {}

    def at_once(self, most: int, operations: int) -> int:
        """How many things one commit at home takes, with so many operations each."""
        room = self.runner.capabilities.max_operations - OWN_OPERATIONS
        return max(1, min(most, room // operations))

    def now(self) -> float:
        """The time of this client."""
        return self.runner.clock.wall()

    def own(self, *, fresh: bool = False) -> Op[OwnSwarm]:
        """Our own swarm; NotAllowed if this home is none."""
        known = self._own
        if known is not None and not fresh and self._is_fresh(known[2]):
            return known[1]
        item = (yield Read(keys.OWN_SWARM))[keys.OWN_SWARM]
        if item is None:
            raise NotAllowed(
                "this home is no swarm yet; run: interlock swarm register NAME --bus URL --key KEY"
            )
        return self._learn_own(item)

    def is_own(self, own: OwnSwarm) -> ReadOp[bool]:
        """Whether our own swarm is still as it was read; the commit checks that."""
        item = (yield (keys.OWN_SWARM,)).items[keys.OWN_SWARM]
        return item is not None and self._learn_own(item) == own

    def _learn_own(self, item: Item) -> OwnSwarm:
        known = self._own
        same = known is not None and known[0].revision == item.revision
        own = known[1] if known is not None and same else decode_own(item)
        self._own = item, own, self.runner.clock.monotonic()
        return own

    def _is_fresh(self, read: float) -> bool:
        return self.runner.clock.monotonic() - read < FRESH

    def guess(self, *swarms: str, also: Iterable[str] = ()) -> dict[str, Item | None]:
        """What this process knows of our own swarm, of these peers and under these keys.

        A commit across a network checks it; a local one reads, and needs no guess.
        """
        found: dict[str, Item | None] = {}
        if self.runner.capabilities.transacts:
            return found
        if self._own is not None:
            found[keys.OWN_SWARM] = self._own[0]
        about = [key(swarm) for swarm in swarms for key in _ABOUT_A_PEER]
        self.learn(self.recalled(about))
        self.learn(self.recalled(also))
        for key in (*about, *also):
            known = self._known.get(key)
            if known is not None and self._is_fresh(known[1]):
                found[key] = known[0]
        return found

    def recalled(self, wanted: Iterable[str]) -> dict[str, Item | None]:
        """What this process wrote under these keys, as far as it knows that: a guess, once."""
        found: dict[str, Item | None] = {}
        if not self.runner.capabilities.transacts:
            for key in wanted:
                found |= self.runner.recall(key)
        return found

    def learn(self, items: Mapping[str, Item | None]) -> None:
        """Remember items for the next guess."""
        if len(self._known) > REMEMBERED:
            self._known.clear()
        now = self.runner.clock.monotonic()
        for key, item in items.items():
            before = self._known.get(key)
            if before is None or before[0] is not item or not self._is_fresh(before[1]):
                self._known[key] = item, now  # else it was only remembered

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
            raise NotAllowed(no_key_left(own))
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

    def remembered_trust(self) -> Trust | None:
        """All peers, if they were read a moment ago."""
        known = self._trust
        return known if known is not None and self._is_fresh(known.read) else None

    def trust(self, *, agents: Callable[[Collection[str]], bool]) -> Op[Trust]:
        """Read all peers; also the keys of their agents, if ``agents`` says so of the peers' keys.

        What is read again soon is remembered.
        """
        read = self.runner.clock.monotonic()
        items = {item.key: item for item in (yield from every(keys.PEERS))}
        peers = [peer for item in items.values() if (peer := readable(decode_peer, item))]
        floors: dict[str, Floor] = {}
        trusted = all_trusted_keys(peers, floors, self.now())
        if agents(trusted):
            for item in (yield from every(keys.FLOORS)):
                if (floor := readable(decode_floor, item)) is not None:
                    floors[floor.swarm] = floor
                    items[item.key] = item
            trusted = all_trusted_keys(peers, floors, self.now())
        limits = {peer.swarm: peer.limits for peer in peers}
        self.learn({keys.peer(peer.swarm): items[keys.peer(peer.swarm)] for peer in peers})
        self._trust = Trust(keys=trusted, items=items, limits=limits, read=read)
        return self._trust

    def relies_on(self, swarm: str) -> ReadOp[None]:
        """Read the trust in a swarm: the commit of a message to it checks that it has not changed.

        ``denies`` says afterwards what it was.
        """
        self.learn((yield (keys.peer(swarm),)).items)

    def denies(self, swarm: str) -> bool:
        """Whether a swarm was not allowed when this process last read the trust in it."""
        known = self._known.get(keys.peer(swarm))
        peer = None if known is None else _peer(known[0])
        return known is not None and (peer is None or not peer.allowed)

    def peer_facts(self, swarm: str, agent: str = "") -> ReadOp[PeerFacts]:
        """What a decision needs to know of a peer; with an agent also its rate, and the probe.

        Many requests to one peer are under way at once, and the ends of some change its reputation.
        So the commit checks the breaker and the reputation only if the request may be a probe.
        """
        own, circuit, record = keys.peer(swarm), keys.breaker(swarm), keys.reputation(swarm)
        queue = keys.peer_queue(swarm)
        items = dict((yield (own,)).items) if agent else {}
        self.learn(items)
        read = (yield Unchecked((circuit, record, queue))).items
        self.learn({key: read[key] for key in (circuit, record)})
        items |= read
        waiting = read[queue]
        breaker = decode_breaker(items[circuit]) or CLOSED
        went = decode_reputation(items[record]) or UNKNOWN
        probing = False
        if agent and (breaker.opened or reputation.standing(went, self.now()).blocked):
            probe = keys.breaker_probe(swarm)
            items = dict((yield (own, circuit, record, probe)).items)
            breaker = decode_breaker(items[circuit]) or CLOSED
            went = decode_reputation(items[record]) or UNKNOWN
            probing = items[probe] is not None
        peer = _peer(items.get(own))
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
