"""A stage for services: one store, one clock, and clients whose every step is driven by hand.

    stage = Stage()
    ada, bob = stage.client("ada"), stage.client("bob")
    held = ada.run(ada.locks.acquire("merge"))
    waits = bob.start(bob.locks.acquire("merge", wait=60))   # asleep in the queue
    ada.run(ada.locks.release("merge"))
    waits.run().result()                                     # Acquired

A remote client talks through a FaultyStore of its own, as a process across a network does.
"""

from __future__ import annotations

from random import Random
from typing import TypeVar

from interlock.driving import Op
from interlock.nouns.agents.calls import AgentCalls
from interlock.nouns.grants.calls import LockCalls, SemaphoreCalls, SeveralCalls
from interlock.nouns.messages.calls import MessageCalls
from interlock.nouns.record.calls import RecordCalls
from interlock.nouns.tasks.calls import TaskCalls
from interlock.runtime.callers import Someone
from interlock.runtime.context import Context, FleetCalls
from interlock.runtime.runner import Runner
from interlock.store import Store
from interlock.stores.memory import MemoryStore
from interlock.testing.clock import FakeClock
from interlock.testing.faults import Chances, FaultyStore
from interlock.testing.hand import Hand, by_hand

T = TypeVar("T")


class Client:
    """One agent at the store; ``run`` and ``start`` carry out what its calls return."""

    def __init__(self, stage: Stage, agent: str, store: Store) -> None:
        self.store = store
        self.clock = stage.clock
        self.runner = Runner(store, clock=stage.clock, randomness=stage.random.randbytes)
        self.context = Context(store, agent, "", self.runner)
        self.someone = Someone(self.runner.new_id("tsk"))
        self.context.queues.speaks = lambda: self.someone
        self.locks = LockCalls(self.context)
        self.semaphores = SemaphoreCalls(self.context)
        self.several = SeveralCalls(self.context)
        self.tasks = TaskCalls(self.context)
        self.agents = AgentCalls(self.context)
        self.messages = MessageCalls(self.context)
        self.record = RecordCalls(self.context)
        self.fleet = FleetCalls(self.context)

    @property
    def session(self) -> str:
        """The id of its session."""
        return self.context.identity.actor.session

    @property
    def network(self) -> FaultyStore:
        """What a remote client talks through."""
        assert isinstance(self.store, FaultyStore)
        return self.store

    def run(self, op: Op[T]) -> T:
        """Carry it out; where it sleeps, time passes at once."""
        return by_hand(op, self.store, self.clock)

    def start(self, op: Op[T]) -> Hand[T]:
        """Carry it out until it sleeps."""
        return Hand(op, self.store, self.clock).run()


class Stage:
    """Everything starts empty, at one moment, and repeatably."""

    def __init__(self, seed: int = 0) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.random = Random(seed)

    def client(self, agent: str, *, ttl: float | None = 30.0, store: Store | None = None) -> Client:
        """A client in this process; without a ttl it begins no session."""
        client = Client(self, agent, store or self.store)
        if ttl is not None:
            client.run(client.context.join(ttl))
        return client

    def remote(
        self, agent: str, *, ttl: float | None = 30.0, chances: Chances | None = None
    ) -> Client:
        """A client across a network, which fails by chance or by script once it has joined."""
        network = FaultyStore(
            self.store, seed=self.random.getrandbits(32), sleep=self.clock.advance
        )
        client = self.client(agent, ttl=ttl, store=network)
        network.chances = chances or Chances()
        return client
