"""Two swarms with a home each and a bus between them, in memory, with one clock."""

from __future__ import annotations

from random import Random
from typing import Any, TypeVar, cast

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from interlock.client_context import Context
from interlock.core import keys, signing
from interlock.core.decision import Decision, Write
from interlock.core.signing import KeySigner
from interlock.errors import StoreAway
from interlock.nouns.requests.outcomes import RequestSent
from interlock.nouns.requests.send_service import RequestDraft
from interlock.nouns.swarms.bus import Bus
from interlock.nouns.swarms.head import ListedKey
from interlock.nouns.swarms.limits import PeerLimits
from interlock.nouns.swarms.swarm import OwnSwarm, Peer, PeerKey
from interlock.nouns.tasks.calls import TaskCalls
from interlock.nouns.tasks.task_outcomes import Claimed
from interlock.runtime.attempt import DecideOp
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Runner
from interlock.settings import Settings
from interlock.steps import Op
from interlock.store import Capabilities, Store
from interlock.stores.memory import MemoryStore
from interlock.testing.clock import FakeClock
from interlock.testing.faults import FaultyStore
from interlock.testing.testbed import run_steps

T = TypeVar("T")

BUS_ID = "bus_1"


def new_key(seed: int) -> KeySigner:
    return KeySigner(Ed25519PrivateKey.from_private_bytes(Random(seed).randbytes(32)))


class Opener:
    """Opens the store of a test."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def place(self, url: str) -> tuple[str, str]:
        return url, url

    def blocking(self, url: str, *, create: bool) -> Store:
        del url, create
        return self.store

    async def awaited(self, url: str, *, create: bool) -> Store:
        return self.blocking(url, create=create)


class Cable:
    """The way to a store, which can be cut, or take less than the store does."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.is_cut = False
        self.max_value = store.capabilities.max_value

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.store.capabilities, max_value=self.max_value)

    def close(self) -> None:
        """The store stays open for others."""

    def __getattr__(self, name: str) -> Any:
        if self.is_cut and name in ("read", "commit", "transact", "renew", "watch"):
            raise StoreAway("the cable is cut")
        return getattr(self.store, name)


class Swarm:
    """One process of a swarm: its home and the bus, each across a network that may fail."""

    def __init__(self, pair: Pair, name: str, agent: str, *, faulty: bool = False) -> None:
        self.name = name
        self.pair = pair
        home, bus = pair.homes[name], cast("Store", pair.cable(name))
        self.home: Store = home
        self.bus: Store = bus
        if faulty:
            seeds = pair.random.getrandbits(32), pair.random.getrandbits(32)
            self.home = FaultyStore(home, seed=seeds[0], sleep=pair.clock.advance)
            self.bus = FaultyStore(bus, seed=seeds[1], sleep=pair.clock.advance)
        self.runner = Runner(self.home, clock=pair.clock, randomness=pair.random.randbytes)
        self.context = Context(self.home, agent, "", self.runner)
        self.context.__dict__["bus"] = Bus(self.runner, Opener(self.bus), Settings())
        self.run(self.context.join(1e6))
        self.tasks = TaskCalls(self.context)
        self.requests = self.context.requests
        signer = pair.keys[name]
        self.requests.home._signers[name, signer.fingerprint] = signer

    @property
    def actor(self) -> Actor:
        return self.context.identity.actor

    def run(self, op: Op[T]) -> T:
        return run_steps(op, self.home, self.pair.clock)

    def own(self) -> OwnSwarm:
        return self.run(self.requests.home.own())

    def send(
        self, to: str = "south", whom: str = "can:sum", body: bytes = b"[1,2]", **more: Any
    ) -> Any:
        return self.run(self.sending(to, whom, body, **more))

    def sending(
        self, to: str = "south", whom: str = "can:sum", body: bytes = b"[1,2]", **more: Any
    ) -> Op[Any]:
        draft = RequestDraft(
            to_swarm=to,
            to_agent=whom,
            body=body,
            task_type=more.pop("task_type", "sum"),
            priority=more.pop("priority", 5),
            timeout=more.pop("timeout", 30.0),
            deadline=more.pop("deadline", 86400.0),
            **more,
        )
        return self.requests.sender.send(self.actor, draft)

    def sent(self, **more: Any) -> str:
        outcome = self.send(**more)
        assert isinstance(outcome, RequestSent), outcome
        return outcome.request

    def result(self, request: str) -> Any:
        return self.run(self.requests.sender.result(self.actor, request, 0))

    def take_in(self) -> int:
        return self.run(self.requests.take_in(self.actor, self.own()))

    def tend(self) -> int:
        return self.run(self.requests.tend(self.actor))

    def claim(self, can: str = "can:sum") -> Claimed | None:
        outcome = self.run(self.tasks.next(can=[can], ttl=60))
        return outcome if isinstance(outcome, Claimed) else None

    def answer(self, claimed: Claimed, body: bytes = b"3") -> Any:
        return self.run(self.answering(claimed, body))

    def answering(self, claimed: Claimed, body: bytes = b"3") -> Op[Any]:
        from interlock.nouns.requests.serving import answer_claim

        return answer_claim(self.context, claimed, "success", body)

    def work(self) -> bool:
        """Take in, and do one task."""
        self.take_in()
        claimed = self.claim()
        if claimed is None:
            return False
        self.answer(claimed)
        return True

    def put(self, key: str, value: object) -> None:
        def deciding() -> DecideOp[None]:
            yield (key,)
            puts = (Write(key, value),)
            return Decision(outcome=None, verb="test.put", thing="test", puts=puts)

        self.run(self.runner.change(deciding, self.actor))


class Pair:
    """Swarms north and south, which trust each other."""

    def __init__(
        self,
        seed: int = 0,
        names: tuple[str, ...] = ("north", "south"),
        bus: Store | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.random = Random(seed)
        self.homes = {name: MemoryStore(self.clock) for name in names}
        self.bus: Store = bus or MemoryStore(self.clock)
        self.keys = {name: new_key(place) for place, name in enumerate(names)}
        self._cables: dict[str, Cable] = {}
        for name in names:
            self._set_up(name)
        self.bus_is_named()

    def swarm(self, name: str, agent: str = "ada", *, faulty: bool = False) -> Swarm:
        return Swarm(self, name, agent, faulty=faulty)

    def cable(self, name: str) -> Cable:
        """The way of a swarm to the bus."""
        return self._cables.setdefault(name, Cable(self.bus))

    def bus_is_named(self) -> None:
        _put(self.bus, self.clock, self.random, keys.BUS, BUS_ID)

    def _set_up(self, name: str) -> None:
        own = OwnSwarm(
            name=name,
            bus="memory:bus",
            bus_shown="memory:bus",
            bus_id=BUS_ID,
            key=name,
            keys=(ListedKey(public=signing.to_base64(self.keys[name].public_key)),),
            registered=0.0,
        )
        _put(self.homes[name], self.clock, self.random, keys.OWN_SWARM, own)
        for other in self.homes:
            if other != name:
                self.trust(name, other)

    def add(self, name: str) -> None:
        """Another swarm, which trusts all and is trusted by none."""
        self.homes[name] = MemoryStore(self.clock)
        self.keys[name] = new_key(len(self.keys))
        self._set_up(name)

    def peer(self, name: str, public: str = "", fingerprint: str = "") -> Peer:
        """A swarm as another one trusts it."""
        signer = self.keys[name]
        key = PeerKey(
            fingerprint=fingerprint or signer.fingerprint,
            how="pinned",
            since=0.0,
            public=public or signing.to_base64(signer.public_key),
        )
        return Peer(swarm=name, keys=(key,))

    def trust(self, name: str, other: str, **limits: Any) -> None:
        """A swarm allows another one, with these limits."""
        peer = replace(self.peer(other), limits=PeerLimits(**limits))
        put_item(self, self.homes[name], keys.peer(other), peer)


def put_item(pair: Pair, store: Store, key: str, value: object) -> None:
    """Write an item, as a client with the credentials of the store can."""
    _put(store, pair.clock, pair.random, key, value)


def _put(store: Store, clock: FakeClock, random: Random, key: str, value: object) -> None:
    runner = Runner(store, clock=clock, randomness=random.randbytes)

    def deciding() -> DecideOp[None]:
        yield (key,)
        puts = (Write(key, value),)
        return Decision(outcome=None, verb="test.put", thing="test", puts=puts)

    run_steps(runner.change(deciding, Actor("test")), store, clock)
