"""Messages, watched by somebody who only knows what they are for.

The machine lets agents tell and ask each other things in all ways: alerts, shares, stops, mail to
one, to some and to all, questions; with filters, limits, depths and pauses; repeated, cancelled,
too late, and struck dead at a commit.  Receivers open, close and die; messages are acknowledged in
any order, by whoever.  After each act
    the answer is what a model says that knows neither stores nor commits (``post_model.py``),
    every inbox holds exactly what the model says, in its order, and
    every question stands as the model says.
A receiver must give out all that waits, in the order of each sender, each once until it is due
again, and never what was acknowledged, refused or taken back.

It runs on a store in memory, on one with room for little, across a bad network, and on each engine;
there only the clock of the agents can be moved, so nothing lapses by itself.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)
from msgspec import Struct, field
from msgspec.structs import replace
from tests.searches import budget
from tests.services.message.post_model import ALL, Letter, Model, Question, Terms

from interlock.core import keys, matter, message, post, query
from interlock.core.message import Received
from interlock.driving import Op, drive
from interlock.services.gather import every
from interlock.services.message import states
from interlock.services.message.calls import MessageCalls
from interlock.services.message.receiver import Receiver
from interlock.services.runner import Deciding
from interlock.settings import Settings
from interlock.store import Store
from interlock.stores import open_store
from interlock.testing.audit import audit
from interlock.testing.faults import Chances, Crash, Fault, FaultyStore
from interlock.testing.hand import Hand
from interlock.testing.stage import Client, Stage

TERMS = Terms(rate=6, window=4.0, depth=5, open=4)
AGENTS = ("ada", "bob", "cyd")
ABLE = {"ada": (), "bob": ("maths",), "cyd": ("maths",)}
TOPICS = ("built", "failed")
NEVER_CAME = "zed"
GONE = "eve"
REDELIVER = 5.5
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
ACTS = (
    *(["say", "receive", "acknowledge", "acknowledge_in_a_receiver", "advance"] * 3),
    *("ask", "reply", "ask", "reply", "answer_what_may_be_over", "cancel", "ask_again"),
    *("subscribe", "subscribe", "unsubscribe", "repeat", "close", "crash", "open", "resolve"),
    *("pause", "die_saying", "die_acknowledging", "die_replying", "die_subscribing", "die_asking"),
)


class Small(Settings):
    """Limits that are met soon."""

    def message(self) -> dict[str, float]:
        return {
            "rate": TERMS.rate,
            "window": TERMS.window,
            "inbox": TERMS.depth,
            "open_queries": TERMS.open,
        }


class Process(Struct, kw_only=True):
    """One process of an agent, and what its receiver has given out: how often, and when."""

    agent: str
    client: Client
    calls: MessageCalls
    receiver: Receiver | None = None
    given: dict[str, tuple[int, float]] = field(default_factory=dict)
    latest: dict[tuple[str, str], int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{self.agent}:{id(self) % 997}"

    def run(self, op: Op[Any]) -> Any:
        return self.client.run(op)


class Said(Struct, kw_only=True):
    """Something to be sent, and how."""

    kind: str
    letter: Letter
    words: dict[str, Any]
    hold: bool = False
    acks: tuple[str, ...] = ()

    def by(self, calls: MessageCalls) -> Op[Any]:
        letter, more = self.letter, {"id": self.letter.id, "acks": self.acks, **self.words}
        match self.kind:
            case "alert":
                return calls.alert(letter.topic, letter.data, urgent=letter.urgent, **more)
            case "share":
                return calls.share(
                    letter.to[0], "data", letter.data, urgent=letter.urgent, hold=self.hold, **more
                )
            case "stop":
                return calls.stop(letter.to[0], str(letter.data), **more)
        return calls.send(letter.to, letter.data, urgent=letter.urgent, hold=self.hold, **more)


class MessageMachine(RuleBasedStateMachine):
    """The acts, and what must be true after each."""

    moves = True
    in_one_order = True

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage()
        self.under, self.store = self.make()
        self.clock = self.stage.clock
        self.model = Model(TERMS)
        self.processes: list[Process] = []
        self.eyes: dict[str, Process] = {}
        self.asking: list[tuple[str, Hand[Any], Process]] = []
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
        self.observe()

    def _start(self, agent: str, *, join: bool = True, store: Store | None = None) -> Process:
        client = self.stage.client(agent, ttl=1e6 if join else None, store=store or self.store)
        client.desk.settings = Small()
        if join:
            self.model.known.add(agent)
        return Process(agent=agent, client=client, calls=MessageCalls(client.desk))

    def _open(self, agent: str) -> None:
        process = self._start(agent)
        process.receiver = process.calls.receiver(can=ABLE[agent], redeliver=REDELIVER)
        self.processes.append(process)

    def _of(self, agent: str) -> Process:
        return next(each for each in self.processes if each.agent == agent)

    @rule(act=st.sampled_from(ACTS), data=st.data())
    def act(self, act: str, data: st.DataObject) -> None:
        """One rule for all, so that each search does a little of everything."""
        getattr(self, act)(data)
        self.observe()

    def _process(self, data: st.DataObject) -> Process:
        return data.draw(st.sampled_from(self.processes), "process")

    # Telling.

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
        return Said(kind=kind, letter=letter, words={}, hold=hold, acks=self._acks(sender, data))

    def _acks(self, agent: str, data: st.DataObject) -> tuple[str, ...]:
        own = sorted(self.model.waiting.get(agent, ()))
        return tuple(data.draw(st.lists(st.sampled_from(own), max_size=1))) if own else ()

    def _say(self, process: Process, said: Said) -> None:
        letter, now = said.letter, self.clock.wall()
        to = () if letter.topic else letter.to
        refused = self.model.refusal(letter.sender, to, now, hold=said.hold)
        exists = letter.id in self.model.letters
        got = process.run(said.by(process.calls))
        if exists:
            assert got == message.Exists(message=letter.id)
        elif refused:
            self._refused(got, refused)
        else:
            assert isinstance(got, message.Sent), got
            self.model.send(letter, now, said.acks)
            self._forget(process.agent, said.acks)

    def _refused(self, got: Any, word: str) -> None:
        kinds = {
            "paused": message.Halted,
            "unknown": message.Unknown,
            "full": message.Full,
            "limited": message.Limited,
        }
        assert type(got) is kinds[word], (got, word)
        if isinstance(got, message.Limited):
            assert 0 < got.retry_in <= TERMS.window

    def repeat(self, data: st.DataObject) -> None:
        """The same call once more, by any process of the same agent: it was sent once."""
        process = self._process(data)
        own = [
            each
            for each in self.model.letters.values()
            if each.sender == process.agent and each.kind in ("alert", "share", "stop", "mail")
        ]
        if own:
            letter = data.draw(st.sampled_from(own), "letter")
            self._say(process, Said(kind=letter.kind, letter=letter, words={}))

    def pause(self, data: st.DataObject) -> None:
        agent, by = data.draw(NAMES, "agent"), self._process(data)
        begins = agent not in self.model.paused
        (self.model.paused.add if begins else self.model.paused.discard)(agent)
        self._set(by, agent, paused=begins)

    def _set(self, by: Process, agent: str, *, paused: bool) -> None:
        key = keys.paused(agent)

        def deciding() -> Deciding[Any]:
            before = states.paused((yield (key,))[key])
            if paused:
                return post.pause(before, agent, by.agent, "", self.clock.wall())
            return post.resume(before, agent)

        by.run(by.client.runner.change(deciding, by.client.desk.me().who))

    # Hearing.

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
        if process.receiver is None:
            return
        wanted, unsure = self._unread(process.agent)
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
            assert not self.moves and time.monotonic() < ends, f"not received: {due}"
            time.sleep(0.002)

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
        """As it was sent; but what was sent before somebody asked for it comes when it asks."""
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
        if process.receiver is not None and (ids := self._ids(process, data)):
            self._acknowledged(process, ids, process.receiver.ack(ids))

    def _ids(self, process: Process, data: st.DataObject) -> list[str]:
        """What waits, as a rule; also what does not any more, and what never did."""
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
        """A receiver that ends well; the next one begins with all that waits."""
        process = self._process(data)
        if process.receiver is not None:
            process.receiver.close()
        process.receiver = process.calls.receiver(can=ABLE[process.agent], redeliver=REDELIVER)
        process.given, process.latest = {}, {}

    def crash(self, data: st.DataObject) -> None:
        """A process that ends in whatever way, with all that it had in its hands."""
        process = self._process(data)
        self.processes.remove(process)
        if process.receiver is not None:
            process.receiver.close()
        self.asking = [waits for waits in self.asking if waits[2] is not process]
        self._open(process.agent)

    def open(self, data: st.DataObject) -> None:
        if len(self.processes) < 6:
            self._open(data.draw(NAMES, "agent"))

    # Asking.

    def ask(self, data: st.DataObject) -> None:
        process = self._process(data)
        letter, question, hold = self._question(process.agent, data)
        self._ask(process, letter, question, hold=hold)

    def _question(self, agent: str, data: st.DataObject) -> tuple[Letter, Question, bool]:
        ability = data.draw(RARELY, "ability")
        to = "?maths" if ability else data.draw(READERS, "to")
        timeout = data.draw(TIMEOUTS, "timeout")
        letter = Letter(
            id=f"qry_{next(self.numbers)}",
            kind="query",
            sender=agent,
            to=(to,),
            topic=to if ability else "",
            data="why?",
        )
        question = Question(
            id=letter.id,
            asker=agent,
            to=to,
            ends=timeout,
            person=data.draw(RARELY, "person"),
        )
        return letter, question, ability or data.draw(RARELY, "hold")

    def _op(self, process: Process, question: Question, *, hold: bool) -> Op[Any]:
        return process.calls.query(
            question.to,
            "why?",
            timeout=question.ends,
            hold=hold,
            person=question.person,
            id=question.id,
        )

    def _ask(self, process: Process, letter: Letter, question: Question, *, hold: bool) -> None:
        now, to = self.clock.wall(), () if letter.topic else letter.to
        refused = self.model.refusal(letter.sender, to, now, hold=hold)
        many = self.model.open() >= TERMS.open
        hand = process.client.start(self._op(process, question, hold=hold))
        if many:
            assert isinstance(hand.result(), query.TooMany)
        elif refused:
            self._refused(hand.result(), refused)
        elif letter.to[0] == GONE and not hold:
            self._away(hand.result(), question, now)
        else:
            question.ends = self.now + question.ends
            self.model.ask(question, letter, now)
            self.asking.append((question.id, hand, process))

    def _away(self, got: Any, question: Question, now: float) -> None:
        if not question.person:
            assert got == query.Away(to=GONE)
            return
        assert isinstance(got, query.Handed)
        self.model.turns.setdefault(question.asker, []).append(now)
        self.model.known.add(question.asker)
        question.state, question.decision = "handed", got.decision
        self.model.questions[question.id] = question

    def ask_again(self, data: st.DataObject) -> None:
        """With the same id, by any process of the same agent: it is the same question."""
        process = self._process(data)
        own = [each for each in self.model.questions.values() if each.asker == process.agent]
        if own:
            asked = data.draw(st.sampled_from(own), "question")
            same = replace(asked, ends=1000.0)
            hand = process.client.start(self._op(process, same, hold=False))
            self.asking.append((asked.id, hand, process))

    def reply(self, data: st.DataObject) -> None:
        unanswered = [each for each in self.model.questions.values() if each.state == "open"]
        if unanswered:
            self._reply(data.draw(st.sampled_from(unanswered), "question"), data)

    def answer_what_may_be_over(self, data: st.DataObject) -> None:
        process = self._process(data)
        assert process.run(process.calls.reply("qry_nothing", 1)) == query.NoQuery(
            query="qry_nothing"
        )
        if self.model.questions:
            known = sorted(self.model.questions)
            self._reply(self.model.questions[data.draw(st.sampled_from(known), "question")], data)

    def _reply(self, question: Question, data: st.DataObject) -> None:
        able = [each for each in self.processes if self._may(each.agent, question)]
        process = data.draw(st.sampled_from((able or self.processes) * 3 + self.processes), "by")
        self._replies(process, question, data.draw(st.integers(1, 2), "answer"))

    def _may(self, agent: str, question: Question) -> bool:
        if question.to == "?maths":
            return agent != question.asker
        return agent == question.to

    def _replies(self, process: Process, question: Question, answer: int) -> None:
        before = question.state
        late = before == "open" and self.moves and self.now >= question.ends
        got = process.run(process.calls.reply(question.id, answer))
        if not self._may(process.agent, question):
            assert isinstance(got, query.NotAsked), got
        elif before == "answered" and (question.by, question.answer) == (process.agent, answer):
            assert isinstance(got, query.Replied)
        elif late:
            self._late(question)
            assert (type(got), got.state) == (query.Late, question.state)
        elif before in ("open", "handed"):
            assert isinstance(got, query.Replied), got
            self._answered(question, process.agent, answer)
        else:
            assert (type(got), got.state) == (query.Late, before)

    def _late(self, question: Question) -> None:
        self.model.close(question, "handed" if question.person else "expired")

    def _answered(self, question: Question, by: str, answer: int) -> None:
        handed = question.state == "handed"
        if question.id in self.model.waiting.get(by, ()):
            self.model.read.setdefault(by, set()).add(question.id)
        self.model.close(question, "answered")
        question.by, question.answer = by, answer
        if handed:
            self._sent_to_the_asker(question)

    def _sent_to_the_asker(self, question: Question) -> None:
        """Who does not wait any more gets the answer as a message, once."""
        found = [states.message(each) for each in drive(every(keys.MESSAGES), self.under)]
        said = [each for each in found if each.reply_to == question.id]
        assert len(said) == 1, said
        letter = Letter(
            id=said[0].id,
            kind="answer",
            sender=question.by,
            to=(question.asker,),
            data=question.answer,
        )
        self.model.send(letter, float("-inf"))

    def cancel(self, data: st.DataObject) -> None:
        if not self.model.questions:
            return
        process = self._process(data)
        known = sorted(
            self.model.questions.values(), key=lambda each: (each.state != "open", each.id)
        )
        question = data.draw(st.sampled_from(known), "question")
        got = process.run(process.calls.cancel(question.id))
        if process.agent != question.asker:
            assert isinstance(got, query.NotAsked)
        elif question.state in ("open", "handed"):
            assert got == query.Cancelled(query=question.id)
            self.model.close(question, "cancelled")
        elif question.state == "cancelled":
            assert got == query.Cancelled(query=question.id)
        else:
            assert (type(got), got.state) == (query.Late, question.state)

    def resolve(self, data: st.DataObject) -> None:
        """A person decides."""
        process = self._process(data)
        shown = process.run(process.calls.decisions())
        unanswered = {each.id: each for each in self.model.questions.values() if each.decision}
        open_now = {each.about.removeprefix("query/") for each in shown if each.state == "open"}
        assert open_now == {id_ for id_, each in unanswered.items() if each.state == "handed"}
        got = process.run(process.calls.resolve("dec_nothing", 1))
        assert isinstance(got, matter.NoMatter)
        if unanswered:
            question = data.draw(st.sampled_from([*unanswered.values()]), "question")
            got = process.run(process.calls.resolve(question.decision, 7))
            if question.state == "handed":
                assert isinstance(got, matter.Resolved)
                self._answered(question, process.agent, 7)
            else:
                assert isinstance(got, matter.Already | matter.NoMatter)

    # Dying.

    def _doomed(self, agent: str, fault: Fault, commit: int) -> Process:
        """A process across a network, which will be struck."""
        network = FaultyStore(self.under, sleep=lambda _: None)
        process = self._start(agent, store=network)
        network.script([None] * commit + [fault])
        return process

    def _dies(self, process: Process, op: Op[Any]) -> None:
        try:
            process.run(op)
        except Crash:
            pass
        assert isinstance(process.client.store, FaultyStore)
        process.client.store.deliver()

    def _stands(self, key: str) -> bool:
        return self.under.read(key)[key] is not None

    def die_saying(self, data: st.DataObject) -> None:
        """Whether it was sent or not: repeated with the same id, it is sent once."""
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
        self._dies(doomed, doomed.calls.reply(question.id, 1))
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
        """Whoever comes back asks with the same id, and waits on."""
        heir = self._process(data)
        letter, question, _ = self._question(heir.agent, data)
        now, ends = self.clock.wall(), self.now + question.ends
        fault: Fault = data.draw(st.sampled_from(["crash before", "crash after"]), "fault")
        doomed = self._doomed(heir.agent, fault, 0)
        hand = doomed.client.start(self._op(doomed, question, hold=True))
        assert hand.done, "it was struck, or refused"
        if self._stands(keys.query(question.id)):
            question.ends = ends
            self.model.ask(question, letter, now)
            again = replace(question, ends=1000.0)
            hand = heir.client.start(self._op(heir, again, hold=True))
            self.asking.append((question.id, hand, heir))
        else:
            self._ask(heir, letter, question, hold=True)

    # What happens by itself.

    def advance(self, data: st.DataObject) -> None:
        for _ in range(data.draw(st.integers(1, 3), "seconds")):
            self.clock.advance(1)
            self._deliver()
            self._follow()

    def _deliver(self) -> None:
        if isinstance(self.store, FaultyStore):
            self.store.deliver()

    def _follow(self) -> None:
        """Let those who asked go on, and hold them to what they are told."""
        for waits in list(self.asking):
            id_, hand, _ = waits
            question = self.model.questions[id_]
            self._lapse(question, hand)
            if not hand.run().done:
                continue
            self.asking.remove(waits)
            self._told(question, hand.result())

    def _lapse(self, question: Question, hand: Hand[Any]) -> None:
        """Whoever waits ends the question when the time is up."""
        if question.state == "open" and self.now >= question.ends:
            hand.run()
            if hand.done or self.moves:
                self._late(question)

    def _told(self, question: Question, got: Any) -> None:
        if isinstance(got, query.Deadlock):
            assert self.model.knotted(question)
            if question.state == "open":
                self.model.close(question, "deadlock")
        match question.state:
            case "answered":
                told = query.Answered(query=question.id, answer=question.answer, by=question.by)
                assert got == told
            case "cancelled":
                assert got == query.Cancelled(query=question.id)
            case "expired":
                assert isinstance(got, query.TimedOut)
            case "handed":
                assert isinstance(got, query.Handed)
                question.decision = got.decision
            case other:
                assert (other, type(got)) == ("deadlock", query.Deadlock)

    # What must be true.

    def _seen(self, agent: str) -> tuple[Received, ...]:
        eye = self.eyes[agent]
        found = eye.run(eye.calls.inbox(limit=1000, can=ABLE[agent]))
        return tuple(found.messages)

    def _unread(self, agent: str) -> tuple[list[Letter], set[str]]:
        return self.model.unread(agent, ABLE[agent], self.now if self.moves else 0.0)

    def _query(self, id_: str) -> query.Query:
        found = states.query(self.under.read(keys.query(id_))[keys.query(id_)])
        assert found is not None
        return found

    def observe(self) -> None:
        self._follow()
        for agent in AGENTS:
            wanted, unsure = self._unread(agent)
            seen = [each.id for each in self._seen(agent) if each.id not in unsure]
            assert seen == [each.id for each in wanted], agent
        for question in self.model.questions.values():
            found = self._query(question.id)
            if question.state == "open" and self.moves and self.now >= question.ends:
                if found.state != "open":  # whoever meets it may say so
                    self._late(question)
            assert (found.state, found.by) == (question.state, question.by), question
            question.decision = found.decision or question.decision
        closed = [each for each in self.asking if self.model.questions[each[0]].state != "open"]
        assert not closed or not self.moves, "whoever waits is told"

    def teardown(self) -> None:
        """Whatever happened before: all that waits is received by the next who comes, once."""
        self._deliver()
        for agent in self.eyes:
            self._drain(agent)
        ends = time.monotonic() + PATIENCE
        while self.asking and time.monotonic() < ends:
            self.clock.advance(1)
            self._deliver()
            self._follow()
        assert not self.asking, "no question waits for ever"
        assert audit(self.under) == []
        for process in self.processes:
            if process.receiver is not None:
                process.receiver.close()
        self.finish()

    def _drain(self, agent: str) -> None:
        process = self._start(agent)
        receiver = process.calls.receiver(can=ABLE[agent])
        wanted, unsure = self._unread(agent)
        got = process.run(receiver.take(0.001))
        assert [each.id for each in got if each.id not in unsure] == [each.id for each in wanted]
        if got:
            process.run(receiver.ack([each.id for each in got]))
        for each in got:
            self.model.acknowledge(agent, each.id)
        assert process.run(receiver.take(0.001)) == []
        receiver.close()
        assert not [each for each in self._seen(agent) if each.id not in unsure]

    def finish(self) -> None:
        """Nothing is left to do with a store in memory."""


class CrampedMachine(MessageMachine):
    """On a store whose commits have room for little, so that acknowledging takes several."""

    def make(self) -> tuple[Store, Store]:
        memory = self.stage.store
        memory.capabilities = replace(memory.capabilities, max_operations=26)
        return memory, memory


class Bad(FaultyStore):
    """A network that is bad, but never for so long that an outcome stays unknown."""

    _in_a_row = 0

    def _draw(self) -> Fault | None:
        fault = super()._draw()
        self._in_a_row = self._in_a_row + 1 if fault else 0
        return fault if self._in_a_row < 5 else None


class FaultyMachine(MessageMachine):
    """Across a bad network."""

    @initialize(seed=st.integers(0, 2**16))
    def sow(self, seed: int) -> None:
        assert isinstance(self.store, FaultyStore)
        self.store.sow(seed)

    def make(self) -> tuple[Store, Store]:
        chances = Chances(conflict=0.1, lost_reply=0.1, late_arrival=0.1)
        faulty = Bad(self.stage.store, chances=chances, sleep=lambda _: None)
        return self.stage.store, faulty


class CrampedFaultyMachine(FaultyMachine):
    """Both."""

    def make(self) -> tuple[Store, Store]:
        memory = self.stage.store
        memory.capabilities = replace(memory.capabilities, max_operations=26)
        return super().make()


class EngineMachine(MessageMachine):
    """On an engine with a clock of its own: nothing lapses while we play."""

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


def bounds(examples: int, steps: int = 40, *, shrink: bool = False) -> settings:
    """Everyday a failure is shown as it was found: to make it smaller may take minutes."""
    phases = tuple(Phase) if shrink else (Phase.explicit, Phase.generate)
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        phases=phases,
        deadline=None,
        print_blob=True,
    )


def run(machine: Callable[[], MessageMachine], its_bounds: settings) -> None:
    run_state_machine_as_test(machine, settings=its_bounds)  # type: ignore[no-untyped-call]


MACHINES = [MessageMachine, CrampedMachine, FaultyMachine, CrampedFaultyMachine]


@pytest.mark.parametrize("machine", MACHINES)
def test_nothing_is_lost_doubled_or_reordered(machine: type[MessageMachine]) -> None:
    run(machine, bounds(20))


@pytest.mark.proof
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", MACHINES)
def test_nothing_is_lost_doubled_or_reordered_for_long(machine: type[MessageMachine]) -> None:
    run(machine, bounds(2000, 60, shrink=True))


@pytest.fixture(params=["sqlite", "redis", "etcd"])
def place(request: pytest.FixtureRequest) -> Callable[[], str]:
    """An empty store of an engine, another one each time."""
    numbers = itertools.count()
    if request.param == "sqlite":
        folder = request.getfixturevalue("tmp_path")
        return lambda: f"{folder}/{next(numbers)}.db"
    server = request.getfixturevalue(f"{request.param}_server")
    name = uuid.uuid4().hex
    return lambda: str(server.url(f"{name}-{next(numbers)}"))


def test_nothing_is_lost_doubled_or_reordered_on_any_engine(place: Callable[[], str]) -> None:
    run(lambda: EngineMachine(place), bounds(3, 25))


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_nothing_is_lost_doubled_or_reordered_on_any_engine_for_long(
    place: Callable[[], str],
) -> None:
    run(lambda: EngineMachine(place), bounds(200, 50, shrink=True))
