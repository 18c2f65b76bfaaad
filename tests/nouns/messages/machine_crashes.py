"""Crashes at a commit: a restarted process repeats its call, and the effect happens once."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace
from tests.nouns.messages.machine_queries import Questions
from tests.nouns.messages.machine_world import ABLE, FAULTS, TOPICS, Process

from interlock.core import keys
from interlock.steps import Op
from interlock.testing.faults import Crash, Fault, FaultyStore


class Deaths(Questions):
    """Processes that crash while they send, acknowledge, answer, ask or subscribe."""

    def _doomed(self, agent: str, fault: Fault, commit: int) -> Process:
        """A process across a network that will crash."""
        network = FaultyStore(self.under, sleep=lambda _: None)
        process = self._start(agent, store=network)
        network.script([None] * commit + [fault])
        return process

    def _dies(self, process: Process, op: Op[Any]) -> None:
        with suppress(Crash):
            process.run(op)
        assert isinstance(process.client.store, FaultyStore)
        process.client.store.deliver()

    def _stands(self, key: str) -> bool:
        return self.under.read(key)[key] is not None

    def die_saying(self, data: st.DataObject) -> None:
        """Sent or not: repeated with the same id, it is sent once."""
        heir, fault = self._process(data), data.draw(FAULTS, "fault")
        said, doomed = self._said(heir.agent, data), self._doomed(heir.agent, fault, 0)
        letter, now = said.letter, self.clock.wall()
        to = () if letter.topic else letter.to
        refused = self.model.refusal(letter.sender, to, now, hold=said.hold)
        self._dies(doomed, said.by(doomed.calls))
        key = keys.topic(letter.topic, letter.id) if letter.topic else keys.message(letter.id)
        if self._stands(key):
            assert not refused
            self.model.send(letter, now, said.acks)
            self._forget(heir.agent, said.acks)
        self._say(heir, said)

    def die_acknowledging(self, data: st.DataObject) -> None:
        heir, fault = self._process(data), data.draw(FAULTS, "fault")
        ids = self._ids(heir, data)
        if not ids:
            return
        doomed = self._doomed(heir.agent, fault, data.draw(st.integers(0, 1), "commit"))
        self._dies(doomed, doomed.calls.ack(*ids, can=ABLE[heir.agent]))
        left = {each.id for each in self._seen(heir.agent)}
        unread = {each.id for each in self._unread(heir.agent)[0]}
        for id_ in ids:
            if id_ in unread - left:
                self.model.acknowledge(heir.agent, id_)
                self._forget(heir.agent, [id_])
        self._acknowledged(heir, ids, heir.calls.ack(*ids, can=ABLE[heir.agent]))

    def die_replying(self, data: st.DataObject) -> None:
        fit = [
            (process, each)
            for process in self.processes
            for each in self.model.questions.values()
            if each.state == "open" and self.now < each.ends and self._may(process.agent, each)
        ]
        if not fit:
            return
        heir, question = data.draw(st.sampled_from(fit), "question")
        doomed = self._doomed(heir.agent, data.draw(FAULTS, "fault"), 0)
        self._dies(doomed, doomed.calls.reply(question.id, 1, can=ABLE[doomed.agent]))
        if self._query(question.id).state == "answered":
            self._answered(question, heir.agent, 1)
        self._replies(heir, question, 1)

    def die_subscribing(self, data: st.DataObject) -> None:
        heir, topic = self._process(data), data.draw(st.sampled_from(TOPICS), "type")
        doomed = self._doomed(heir.agent, data.draw(FAULTS, "fault"), 0)
        self._dies(doomed, doomed.calls.subscribe(topic, last=1))
        heir.run(heir.calls.subscribe(topic, last=1))
        self.model.subscribe(heir.agent, topic, (), {}, 1)

    def die_asking(self, data: st.DataObject) -> None:
        """A restarted asker asks with the same id, and waits on."""
        heir = self._process(data)
        letter, question, _ = self._question(heir.agent, data)
        now, ends = self.clock.wall(), self.now + question.ends
        fault: Fault = data.draw(st.sampled_from(["crash before", "crash after"]), "fault")
        doomed = self._doomed(heir.agent, fault, 0)
        hand = doomed.client.start(self._op(doomed, question, hold=True))
        assert hand.done, "it was struck, or refused"
        self._met()  # it may have crashed while it freed quota slots
        if self._stands(keys.query(question.id)):
            question.ends = ends
            self.model.ask(question, letter, now)
            again = replace(question, ends=1e6)
            hand = heir.client.start(self._op(heir, again, hold=True))
            self.asking.append((question.id, hand, heir))
        else:
            self._ask(heir, letter, question, hold=True)
