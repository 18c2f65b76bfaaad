"""A testbed for services: one store, one clock, and clients whose operations run step by step.

    bed = Testbed()
    ada, bob = bed.client("ada"), bed.client("bob")
    held = ada.run(ada.locks.acquire("merge"))
    waits = bob.start(bob.locks.acquire("merge", wait=60))   # asleep in the queue
    ada.run(ada.locks.release("merge"))
    waits.run().result()                                     # Acquired

A remote client talks through a FaultyStore of its own, as a process across a network does.

Each step of an operation is one atomic act on the store.  A test chooses which operation performs
its next step, so it can produce every interleaving of threads, tasks or processes, and repeat it.
A pause takes no time.  A wait ends when something arrived, or when the clock of the test has
passed its timeout.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Generic, TypeVar, cast

from interlock.client_context import Context
from interlock.clock import Clock
from interlock.nouns.agents.calls import AgentCalls
from interlock.nouns.fleet.calls import FleetCalls
from interlock.nouns.grants.calls import LockCalls
from interlock.nouns.grants.semaphore_calls import SemaphoreCalls
from interlock.nouns.grants.several_calls import SeveralCalls
from interlock.nouns.guards.calls import GuardCalls
from interlock.nouns.messages.calls import MessageCalls
from interlock.nouns.record.calls import RecordCalls
from interlock.nouns.tasks.calls import TaskCalls
from interlock.runtime.callers import LocalCaller
from interlock.runtime.runner import Runner
from interlock.steps import NextChanges, Op, Pause, Step
from interlock.store import Store
from interlock.stores.memory import MemoryStore
from interlock.testing.clock import FakeClock
from interlock.testing.faults import Chances, FaultyStore

T = TypeVar("T")


class Client:
    """One agent at the store; ``run`` and ``start`` perform the operations of its calls."""

    def __init__(self, bed: Testbed, agent: str, store: Store) -> None:
        self.store = store
        self.clock = bed.clock
        self.runner = Runner(store, clock=bed.clock, randomness=bed.random.randbytes)
        self.context = Context(store, agent, "", self.runner)
        self.someone = LocalCaller(self.runner.new_id("tsk"))
        self.context.grants.current_caller = lambda: self.someone
        self.locks = LockCalls(self.context)
        self.semaphores = SemaphoreCalls(self.context)
        self.several = SeveralCalls(self.context)
        self.guards = GuardCalls(self.context)
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
        """The faulty store of a remote client."""
        assert isinstance(self.store, FaultyStore)
        return self.store

    def run(self, op: Op[T]) -> T:
        """Perform the operation to its end; when it sleeps, the clock jumps."""
        return run_steps(op, self.store, self.clock)

    def start(self, op: Op[T]) -> Stepper[T]:
        """Perform the operation until it sleeps."""
        return Stepper(op, self.store, self.clock).run()


class Testbed:
    """An empty store and a clock at a fixed time; one seed makes all of it repeatable."""

    __test__ = False  # its name looks like that of a test class to pytest

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


class Stepper(Generic[T]):
    """One operation in progress; ``steps`` are those it performed."""

    def __init__(self, op: Op[T], store: Store, clock: Clock) -> None:
        self.steps: list[Step] = []
        self.done = False
        self._op = op
        self._store = store
        self._clock = clock
        self._next: Step | None = None
        self._wakes = 0.0
        self._outcome: T | None = None
        self._error: BaseException | None = None
        self._move(lambda: next(op))

    @property
    def asleep(self) -> bool:
        """Whether its next step is a wait."""
        return isinstance(self._next, NextChanges)

    @property
    def wakes(self) -> float:
        """The monotonic moment at which it wakes by itself."""
        return self._wakes if self.asleep else self._clock.monotonic()

    def go(self) -> bool:
        """Perform the next step; False if it still sleeps, or is done."""
        step = self._next
        if step is None:
            return False
        if isinstance(step, NextChanges):
            found = step.watch.take(0)
            if not found and self._clock.monotonic() < self._wakes:
                return False
            self._perform(step, lambda: found)
        else:
            self._perform(
                step, lambda: None if isinstance(step, Pause) else step.perform(self._store)
            )
        return True

    def run(self) -> Stepper[T]:
        """Perform steps until it sleeps or is done."""
        while self.go():
            pass
        return self

    def interrupt(self, error: BaseException) -> Stepper[T]:
        """Raise an exception at its present step, and run its cleanup."""
        if not self.done:
            self._move(lambda: self._op.throw(error))
        return self.run()

    def result(self) -> T:
        """Its return value, or its exception raised again."""
        if self._error is not None:
            raise self._error
        assert self.done, "it is not done yet"
        return cast("T", self._outcome)

    def _perform(self, step: Step, act: Callable[[], object]) -> None:
        self.steps.append(step)
        try:
            answer = act()
        except BaseException as error:  # noqa: BLE001 - the operation decides
            raised = error
            self._move(lambda: self._op.throw(raised))
        else:
            self._move(lambda: self._op.send(answer))

    def _move(self, move: Callable[[], Step]) -> None:
        self._next = None
        try:
            self._next = move()
        except StopIteration as done:
            self.done, self._outcome = True, done.value
        except BaseException as error:  # noqa: BLE001 - kept for result()
            self.done, self._error = True, error
        if isinstance(self._next, NextChanges):
            timeout = self._next.timeout
            self._wakes = float("inf") if timeout is None else self._clock.monotonic() + timeout


def run_steps(op: Op[T], store: Store, clock: FakeClock) -> T:
    """Perform one operation to its end; when it sleeps, the clock jumps."""
    stepper = Stepper(op, store, clock)
    while not stepper.run().done:
        assert stepper.wakes < float("inf"), "it waits without a timeout"
        clock.advance(max(0.0, stepper.wakes - clock.monotonic()))
    return stepper.result()
