"""Messages against a model: a state machine with all operations, in any order.

The machine lets agents send and ask in all ways: alerts, shares, stops, mail to one, to some and to
all, questions; with filters, limits, depths and pauses; repeated, cancelled, late, and killed at a
commit. Receivers open, close and crash; any process acknowledges messages, in any order. After each
action

    the outcome is what a model says that knows neither stores nor commits (``machine_model.py``),
    every inbox holds exactly what the model says, in its order, and
    every question has the state that the model says.

A receiver must deliver all unread messages, in the order of each sender, each once until it is due
again, and never an acknowledged, refused or cancelled one, nor a stop from before its session.

It runs on a store in memory, on one with small commits, across a bad network, and on each engine;
there only the clock of the agents can be moved, so nothing expires by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    rule,
)
from msgspec.structs import replace
from tests.hypothesis_settings import across_a_bad_network, bounds, run
from tests.nouns.messages.machine_crashes import Deaths
from tests.nouns.messages.machine_world import ABLE, AGENTS, PATIENCE

from interlock.store import Store
from interlock.stores import open_store
from interlock.testing.audit import audit
from interlock.testing.faults import FaultyStore

ACTS = (
    *(["say", "receive", "acknowledge", "acknowledge_in_a_receiver", "advance"] * 3),
    *("ask", "ask", "ask", "reply", "reply", "outlive", "cancel", "ask_again"),
    *(["answer_what_may_be_over"] * 2),
    *("subscribe", "subscribe", "unsubscribe", "repeat", "close", "crash", "open", "resolve"),
    *(
        "maintain",
        "pause",
        "die_saying",
        "die_acknowledging",
        "die_replying",
        "die_subscribing",
        "die_asking",
    ),
)


class MessageMachine(Deaths):
    """All actions, in any order."""

    @rule(act=st.sampled_from(ACTS), data=st.data())
    def act(self, act: str, data: st.DataObject) -> None:
        """One rule for all, so that each search does a little of everything."""
        getattr(self, act)(data)
        self.observe()

    def observe(self) -> None:
        self._follow()
        for agent in AGENTS:
            wanted, unsure = self._unread(agent)
            seen = [each.id for each in self._seen(agent) if each.id not in unsure]
            assert seen == [each.id for each in wanted], agent
        self._met()
        for question in self.model.questions.values():
            found = self._query(question.id)
            assert (found.state, found.by) == (question.state, question.by), question
            question.decision = found.decision or question.decision
        closed = [each for each in self.asking if self.model.questions[each[0]].state != "open"]
        assert not closed or not self.moves, "each asker gets an outcome"

    def teardown(self) -> None:
        """After any history, the next receiver gets all unread messages, once."""
        self._deliver()
        for agent in self.eyes:
            self._drain(agent)
        ends = time.monotonic() + PATIENCE
        while self.asking and time.monotonic() < ends:
            self.clock.advance(1 if self.moves else 1000)
            self._deliver()
            self._follow()
        assert not self.asking, "no question waits without end"
        assert audit(self.under) == []
        for process in self.processes:
            process.receiver.close()
        self.finish()

    def _drain(self, agent: str) -> None:
        process = self._start(agent)
        receiver = process.calls.receiver(can=ABLE[agent])
        wanted, unsure = self._due(process)
        got = process.run(receiver.take(0.001))
        assert [each.id for each in got if each.id not in unsure] == [each.id for each in wanted]
        if got:
            process.run(receiver.ack([each.id for each in got]))
        for each in got:
            self.model.acknowledge(agent, each.id)
        assert process.run(receiver.take(0.001)) == []
        receiver.close()
        left = [self.model.letters[each.id] for each in self._seen(agent)]
        assert not [each for each in left if each.id not in unsure and process.obeys(each)]


class CrampedMachine(MessageMachine):
    """On a store with small commits, so that acknowledging takes several."""

    def make(self) -> tuple[Store, Store]:
        memory = self.stage.store
        memory.capabilities = replace(memory.capabilities, max_operations=26)
        return memory, memory


class FaultyMachine(MessageMachine):
    """Across a bad network."""

    @initialize(seed=st.integers(0, 2**16))
    def sow(self, seed: int) -> None:
        assert isinstance(self.store, FaultyStore)
        self.store.sow(seed)

    def make(self) -> tuple[Store, Store]:
        return self.stage.store, across_a_bad_network(self.stage.store)


class CrampedFaultyMachine(FaultyMachine):
    """Small commits across a bad network."""

    def make(self) -> tuple[Store, Store]:
        memory = self.stage.store
        memory.capabilities = replace(memory.capabilities, max_operations=26)
        return super().make()


class EngineMachine(MessageMachine):
    """On an engine with its own clock: nothing expires during a run."""

    moves = False

    def __init__(self, place: Callable[[], str]) -> None:
        self._place = place
        super().__init__()

    def make(self) -> tuple[Store, Store]:
        url = self._place()
        self.in_one_order = not url.startswith("etcd")
        store = open_store(url)
        return store, store

    def finish(self) -> None:
        with closing(self.under):
            pass


MACHINES = [MessageMachine, CrampedMachine, FaultyMachine, CrampedFaultyMachine]


@pytest.mark.parametrize("machine", MACHINES)
def test_nothing_is_lost_doubled_or_reordered(machine: type[MessageMachine]) -> None:
    run(machine, bounds(12))


@pytest.mark.proof
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", MACHINES)
def test_nothing_is_lost_doubled_or_reordered_for_long(machine: type[MessageMachine]) -> None:
    run(machine, bounds(2000, 60, shrink=True))


def test_nothing_is_lost_doubled_or_reordered_on_any_engine(places: Callable[[], str]) -> None:
    run(lambda: EngineMachine(places), bounds(3, 25))


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_nothing_is_lost_doubled_or_reordered_on_any_engine_for_long(
    places: Callable[[], str],
) -> None:
    run(lambda: EngineMachine(places), bounds(200, 50, shrink=True))
