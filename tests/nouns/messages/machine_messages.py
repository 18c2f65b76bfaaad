"""Sending and receiving: the actions of the state machine, and what each must result in."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import strategies as st
from tests.nouns.messages.machine_model import ALL, Letter
from tests.nouns.messages.machine_world import (
    ABLE,
    DATA,
    GONE,
    NAMES,
    NEVER_CAME,
    PATIENCE,
    RARELY,
    READERS,
    REDELIVER,
    SENDERS,
    TERMS,
    TOPICS,
    WHERE,
    Process,
    Said,
    World,
)

from interlock.nouns.messages import message
from interlock.nouns.messages.message import Received
from interlock.steps import Op
from interlock.testing.testbed import Stepper


class Letters(World):
    """Agents that send, subscribe, receive and acknowledge."""

    def say(self, data: st.DataObject) -> None:
        process = self._process(data)
        self._say(process, self._said(process.agent, data))

    def _said(self, sender: str, data: st.DataObject) -> Said:
        kind = data.draw(st.sampled_from(["alert", "alert", "share", "stop", "mail"]), "kind")
        letter = Letter(
            id=f"msg_{next(self.numbers)}",
            kind=kind,
            sender=sender,
            urgent=kind == "stop" or data.draw(RARELY, "urgent"),
            data=data.draw(DATA, "data"),
        )
        hold = kind in ("share", "mail") and data.draw(RARELY, "hold")
        if kind == "alert":
            letter.topic = data.draw(st.sampled_from(TOPICS), "type")
        elif kind == "mail" and data.draw(RARELY, "all"):
            letter.to, letter.topic = (ALL,), ALL
        else:
            most = 3 if kind == "mail" else 1
            readers = st.lists(READERS, min_size=1, max_size=most, unique=True)
            letter.to = tuple(data.draw(readers, "to"))
        if kind == "stop":
            letter.data = "enough"
        return Said(kind=kind, letter=letter, hold=hold, acks=self._acks(sender, data))

    def _acks(self, agent: str, data: st.DataObject) -> tuple[str, ...]:
        own = sorted(self.model.waiting.get(agent, ()))
        return tuple(data.draw(st.lists(st.sampled_from(own), max_size=1))) if own else ()

    def _say(self, process: Process, said: Said) -> None:
        letter, now = said.letter, self.clock.wall()
        to = () if letter.topic else letter.to
        refused = self.model.refusal(letter.sender, to, now, hold=said.hold)
        exists = letter.id in self.model.letters
        got = process.run(said.by(process.calls))
        if letter.kind == "stop" and self._is_away(letter.to[0]):
            assert got == message.NobodyToStop(to=letter.to[0])
        elif exists:
            assert got == message.MessageExists(message=letter.id)
        elif refused:
            self._refused(got, refused)
        else:
            assert isinstance(got, message.Sent), got
            self.model.send(letter, now, said.acks)
            self._forget(process.agent, said.acks)

    def _is_away(self, agent: str) -> bool:
        """Whether it has a mailbox and no session: it left, or mail is held for it."""
        return agent in (GONE, NEVER_CAME) and agent in self.model.known

    def _refused(self, got: Any, word: str) -> None:
        kinds: dict[str, type[Any]] = {
            "paused": message.Halted,
            "unknown": message.UnknownAgent,
            "full": message.InboxFull,
            "limited": message.Limited,
        }
        assert isinstance(got, kinds[word]), (got, word)
        if word == "limited":
            assert 0 < got.retry_in <= TERMS.window

    def repeat(self, data: st.DataObject) -> None:
        """The same call again, by any process of the same agent: it is sent once."""
        process = self._process(data)
        own = [
            each
            for each in self.model.letters.values()
            if each.sender == process.agent and each.kind in ("alert", "share", "stop", "mail")
        ]
        if own:
            letter = data.draw(st.sampled_from(own), "letter")
            self._say(process, Said(kind=letter.kind, letter=letter))

    def pause(self, data: st.DataObject) -> None:
        agent, by = data.draw(NAMES, "agent"), self._process(data)
        begins = agent not in self.model.paused
        (self.model.paused.add if begins else self.model.paused.discard)(agent)
        agents = by.client.agents
        by.run(agents.pause(agent) if begins else agents.resume(agent))

    def maintain(self, data: st.DataObject) -> None:
        """Retention deletes no unread message."""
        process = self._process(data)
        process.run(process.client.fleet.maintain())

    def subscribe(self, data: st.DataObject) -> None:
        process, topic = self._process(data), data.draw(st.sampled_from(TOPICS), "type")
        senders, where = data.draw(SENDERS, "senders"), data.draw(WHERE, "where")
        last = data.draw(st.integers(0, 2), "last")
        process.run(process.calls.subscribe(topic, senders=senders, where=where, last=last))
        self.model.subscribe(process.agent, topic, senders, where, last)

    def unsubscribe(self, data: st.DataObject) -> None:
        process, topic = self._process(data), data.draw(st.sampled_from(TOPICS), "type")
        known = self.model.hears.pop((process.agent, topic), None)
        got = process.run(process.calls.unsubscribe(topic))
        assert isinstance(got, message.NotSubscribed if known is None else message.Unsubscribed)

    def receive(self, data: st.DataObject) -> None:
        process = self._process(data)
        wanted, unsure = self._due(process)
        ends = time.monotonic() + PATIENCE
        before, came = self.now, set[str]()
        while True:
            got = process.run(process.receiver.take(0.001))
            self._received(process, got, {each.id for each in wanted} | unsure)
            came |= {each.id for each in got}
            due = {
                each.id
                for each in wanted
                if each.id not in process.given
                or (each.id not in came and before - process.given[each.id][1] >= REDELIVER)
            }
            if not due:
                return
            assert not self.moves, f"not received: {due}"
            assert time.monotonic() < ends, f"not received: {due}"
            time.sleep(0.002)

    def receive_while_others_act(self, data: st.DataObject) -> None:
        """Between two steps of a receiver, another agent sends or does something else."""
        process, speaker = self._process(data), self._process(data)
        if data.draw(st.booleans(), "afresh"):
            self._close(process)
        before, unsure = self._due(process)
        hand = Stepper(process.receiver.take(0.001), process.client.store, self.clock)
        for _ in range(data.draw(st.integers(0, 8), "steps")):
            hand.go()
        if act := data.draw(st.sampled_from(["", "", "", "acknowledge", "subscribe"]), "act"):
            getattr(self, act)(data)
        for _ in range(data.draw(st.integers(1, 3), "letters")):
            self._say(speaker, self._said(speaker.agent, data))
        while not hand.run().done:
            self.clock.advance(max(0.0, hand.wakes - self.now))
        after, also = self._due(process)
        self._received(process, hand.result(), {each.id for each in before + after} | unsure | also)
        left = {each.id for each in after} | also
        process.given = {id_: times for id_, times in process.given.items() if id_ in left}

    def _received(self, process: Process, got: Sequence[Received], waits: set[str]) -> None:
        for each in got:
            assert each.id in waits, f"{each.id} does not wait for {process.agent}"
            letter = self.model.letters[each.id]
            assert (each.sender, each.kind, each.data) == (letter.sender, letter.kind, letter.data)
            times, at = process.given.get(each.id, (0, 0.0))
            assert not times or self.now - at >= REDELIVER, f"{each.id} came twice"
            assert each.attempt == times + 1
            process.given[each.id] = (times + 1, self.now)
            if not times and not letter.urgent:
                self._in_order(process, letter)

    def _in_order(self, process: Process, letter: Letter) -> None:
        """In the order of sending; but messages from before a subscription come with it."""
        hears = self.model.topic(process.agent, letter.topic) if letter.topic else None
        if hears is not None and letter.place < hears.asked:
            return
        channel = (letter.sender, "" if self.in_one_order else letter.topic)
        assert letter.place > process.latest.get(channel, 0), f"{letter} came too late"
        process.latest[channel] = letter.place

    def acknowledge(self, data: st.DataObject) -> None:
        process = self._process(data)
        if ids := self._ids(process, data):
            self._acknowledged(process, ids, process.calls.ack(*ids, can=ABLE[process.agent]))

    def acknowledge_in_a_receiver(self, data: st.DataObject) -> None:
        process = self._process(data)
        if ids := self._ids(process, data):
            self._acknowledged(process, ids, process.receiver.ack(ids))

    def _ids(self, process: Process, data: st.DataObject) -> list[str]:
        """Unread ids, usually; also acknowledged and unknown ones."""
        unread = [each.id for each in self._unread(process.agent)[0]]
        others = [each.id for each in self.model.letters.values() if not each.topic]
        wild = st.sampled_from([*unread, *unread, *unread, *others, "msg_nothing"])
        return data.draw(st.lists(wild, max_size=4, unique=True), "ids")

    def _acknowledged(self, process: Process, ids: list[str], op: Op[Any]) -> None:
        got = process.run(op)
        told = {id_: self.model.acknowledge(process.agent, id_) for id_ in ids}
        assert set(got.messages) == {id_ for id_ in ids if told[id_] == "new"}, (got, told)
        assert set(got.already) == {id_ for id_ in ids if told[id_] == "already"}, (got, told)
        assert set(getattr(got, "unknown", ())) == {i for i in ids if told[i] == "unknown"}
        self._forget(process.agent, ids)

    def _forget(self, agent: str, ids: Iterable[str]) -> None:
        for process in self.processes:
            for id_ in ids if process.agent == agent else ():
                process.given.pop(id_, None)

    def close(self, data: st.DataObject) -> None:
        """A receiver that ends well; the next one begins with all unread messages."""
        self._close(self._process(data))

    def _close(self, process: Process) -> None:
        process.receiver.close()
        process.receiver = process.calls.receiver(can=ABLE[process.agent], redeliver=REDELIVER)
        process.given, process.latest = {}, {}

    def crash(self, data: st.DataObject) -> None:
        """A process that ends in any way, with unacknowledged messages."""
        process = self._process(data)
        self.processes.remove(process)
        process.receiver.close()
        self.asking = [waits for waits in self.asking if waits[2] is not process]
        self._open(process.agent)

    def open(self, data: st.DataObject) -> None:
        if len(self.processes) < 6:
            self._open(data.draw(NAMES, "agent"))
