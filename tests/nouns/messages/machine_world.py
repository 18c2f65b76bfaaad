"""Agents, their processes and a model of them: the state machine's world."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
)
from msgspec import Struct, field
from tests.nouns.messages.machine_model import Letter, Model, Terms

from interlock.core import keys
from interlock.nouns.messages import decode
from interlock.nouns.messages import query as queries
from interlock.nouns.messages.calls import MessageCalls
from interlock.nouns.messages.message import Received
from interlock.nouns.messages.receiver import InboxReceiver
from interlock.settings import Settings
from interlock.steps import Op
from interlock.store import Store
from interlock.testing.faults import Fault, FaultyStore
from interlock.testing.testbed import Client, Stepper, Testbed

TERMS = Terms(rate=6, window=4.0, depth=3, open=4)
AGENTS = ("ada", "bob", "cyd")
ABLE: dict[str, tuple[str, ...]] = {"ada": (), "bob": ("maths",), "cyd": ("maths",)}
TOPICS = ("built", "failed")
NEVER_CAME = "zed"
GONE = "eve"
REDELIVER = 2.5
PATIENCE = 20.0

NAMES = st.sampled_from(AGENTS)
READERS = NAMES | NAMES | NAMES | st.sampled_from([NEVER_CAME, GONE])
DATA = st.fixed_dictionaries({"n": st.integers(0, 2)}) | st.just("text")
RARELY = st.sampled_from([False, False, False, True])
WHERE = st.sampled_from([{}, {}, {"n": 1}])
SENDERS = st.sampled_from([(), (), ("ada",)])
TIMEOUTS = st.sampled_from([2.5, 5.5])
FAULTS: st.SearchStrategy[Fault] = st.sampled_from(
    ["crash before", "crash after", "lost reply", "late arrival"]
)


class Small(Settings):
    """Limits that are soon reached."""

    def message(self) -> dict[str, float]:
        return {
            "rate": TERMS.rate,
            "window": TERMS.window,
            "inbox": TERMS.depth,
            "open_queries": TERMS.open,
        }


class Process(Struct, kw_only=True):
    """A process of an agent, and what its receiver has delivered: how often, and when.

    ``born`` is the number of letters when its session began.
    """

    agent: str
    client: Client
    calls: MessageCalls
    receiver: InboxReceiver
    born: int
    given: dict[str, tuple[int, float]] = field(default_factory=dict)
    latest: dict[tuple[str, str], int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{self.agent}:{id(self) % 997}"

    def run(self, op: Op[Any]) -> Any:
        return self.client.run(op)

    def obeys(self, letter: Letter) -> bool:
        """Whether a letter is for this process: an earlier stop was for earlier sessions."""
        return letter.kind != "stop" or letter.place > self.born


class Said(Struct, kw_only=True):
    """A message to send, and how."""

    kind: str
    letter: Letter
    hold: bool = False
    acks: tuple[str, ...] = ()

    def by(self, calls: MessageCalls) -> Op[Any]:
        letter = self.letter
        more: dict[str, Any] = {"id": letter.id, "acks": self.acks}
        match self.kind:
            case "alert":
                return calls.alert(letter.topic, letter.data, urgent=letter.urgent, **more)
            case "share":
                return calls.share(
                    letter.to[0], "data", letter.data, urgent=letter.urgent, hold=self.hold, **more
                )
            case "stop":
                return calls.stop(letter.to[0], str(letter.data), **more)
            case _:
                return calls.send(
                    letter.to, letter.data, urgent=letter.urgent, hold=self.hold, **more
                )


class World(RuleBasedStateMachine):
    """Agents with processes at one store, next to a model of each inbox."""

    moves = True
    in_one_order = True

    def __init__(self) -> None:
        super().__init__()
        self.stage = Testbed()
        self.under, self.store = self.make()
        self.clock = self.stage.clock
        self.model = Model(TERMS)
        self.processes: list[Process] = []
        self.eyes: dict[str, Process] = {}
        self.asking: list[tuple[str, Stepper[Any], Process]] = []
        self.numbers = itertools.count(1)

    def make(self) -> tuple[Store, Store]:
        """The store as it is, and as clients see it."""
        return self.stage.store, self.stage.store

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    @initialize()
    def begin(self) -> None:
        gone = self._start(GONE)
        gone.run(gone.client.agents.leave())
        self.model.known = {GONE}
        self.eyes = {agent: self._start(agent, join=False) for agent in AGENTS}
        for agent in (*AGENTS, AGENTS[0]):
            self._open(agent)
        self.model.subscribe("bob", "built", (), {}, 0)
        bob = self._of("bob")
        bob.run(bob.calls.subscribe("built"))

    def _start(self, agent: str, *, join: bool = True, store: Store | None = None) -> Process:
        client = self.stage.client(agent, ttl=1e6 if join else None, store=store or self.store)
        client.context.settings = Small()
        if join:
            self.model.known.add(agent)
        calls = MessageCalls(client.context)
        receiver = calls.receiver(can=ABLE.get(agent, ()), redeliver=REDELIVER)
        born = len(self.model.letters)
        return Process(agent=agent, client=client, calls=calls, receiver=receiver, born=born)

    def _open(self, agent: str) -> None:
        self.processes.append(self._start(agent))

    def _of(self, agent: str) -> Process:
        return next(each for each in self.processes if each.agent == agent)

    def _process(self, data: st.DataObject) -> Process:
        return data.draw(st.sampled_from(self.processes), "process")

    # What must be true.

    def _seen(self, agent: str) -> tuple[Received, ...]:
        eye = self.eyes[agent]
        found = eye.run(eye.calls.inbox(limit=1000, can=ABLE[agent]))
        return tuple(found.messages)

    def _unread(self, agent: str) -> tuple[list[Letter], set[str]]:
        return self.model.unread(agent, ABLE[agent], self.now if self.moves else 0.0)

    def _due(self, process: Process) -> tuple[list[Letter], set[str]]:
        """The letters that a receiving process must get."""
        wanted, unsure = self._unread(process.agent)
        return [each for each in wanted if process.obeys(each)], unsure

    def _query(self, id_: str) -> queries.Query:
        found = decode.query(self.under.read(keys.query(id_))[keys.query(id_)])
        assert found is not None
        return found

    def _deliver(self) -> None:
        if isinstance(self.store, FaultyStore):
            self.store.deliver()

    def finish(self) -> None:
        """A store in memory needs no cleanup."""
