"""Asking and answering: the actions of the state machine, and what each must result in."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace
from tests.nouns.messages.machine_messages import Letters
from tests.nouns.messages.machine_model import Letter, Question
from tests.nouns.messages.machine_world import ABLE, GONE, RARELY, READERS, TERMS, TIMEOUTS, Process

from interlock.core import keys
from interlock.nouns.messages import decision as decisions
from interlock.nouns.messages import decode
from interlock.nouns.messages import query as queries
from interlock.runtime.reads import every
from interlock.steps import Op, drive
from interlock.testing.testbed import Stepper


class Questions(Letters):
    """Agents that ask, answer, cancel and decide, while others wait."""

    def ask(self, data: st.DataObject) -> None:
        process = self._process(data)
        letter, question, hold = self._question(process.agent, data)
        self._ask(process, letter, question, hold=hold)

    def _question(self, agent: str, data: st.DataObject) -> tuple[Letter, Question, bool]:
        ability = data.draw(RARELY, "ability")
        to = "?maths" if ability else data.draw(READERS, "to")
        timeout = data.draw(TIMEOUTS, "timeout") * (1 if self.moves else 1000)
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
            timeout=timeout,
            person=data.draw(RARELY, "person"),
        )
        return letter, question, ability or data.draw(RARELY, "hold")

    def _op(self, process: Process, question: Question, *, hold: bool) -> Op[Any]:
        return process.calls.query(
            question.to,
            "why?",
            timeout=question.timeout,
            hold=hold,
            person=question.person,
            id=question.id,
        )

    def _ask(self, process: Process, letter: Letter, question: Question, *, hold: bool) -> None:
        now, to = self.clock.wall(), () if letter.topic else letter.to
        many = self._too_many(letter.sender)  # a question that this ends also leaves inboxes
        refused = self.model.refusal(letter.sender, to, now, hold=hold)
        hand = process.client.start(self._op(process, question, hold=hold))
        if many:
            assert isinstance(hand.result(), queries.TooMany)
        elif refused:
            self._refused(hand.result(), refused)
        elif letter.to[0] == GONE and not hold:
            self._away(hand.result(), question, now)
        else:
            question.ends = self.now + question.ends
            self.model.ask(question, letter, now)
            self.asking.append((question.id, hand, process))

    def _too_many(self, agent: str) -> bool:
        """An asker that finds no free slot ends expired questions."""
        if self._no_room(agent):
            for each in self.model.questions.values():
                if each.state == "open" and self.moves and self.now >= each.ends:
                    self._late(each)
        return self._no_room(agent)

    def _no_room(self, agent: str) -> bool:
        own = self.model.open(agent) >= queries.agent_share(TERMS.open)
        return own or self.model.open() >= TERMS.open

    def _away(self, got: Any, question: Question, now: float) -> None:
        if not question.person:
            assert got == queries.NobodyToAsk(to=GONE)
            return
        assert isinstance(got, queries.Handed)
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
            hand = process.client.start(self._op(process, asked, hold=False))
            self.asking.append((asked.id, hand, process))

    def reply(self, data: st.DataObject) -> None:
        unanswered = [each for each in self.model.questions.values() if each.state == "open"]
        if unanswered:
            self._reply(data.draw(st.sampled_from(unanswered), "question"), data)

    def answer_what_may_be_over(self, data: st.DataObject) -> None:
        process = self._process(data)
        assert process.run(process.calls.reply("qry_nothing", 1)) == queries.UnknownQuery(
            unknown=("qry_nothing",), query="qry_nothing"
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
            return agent != question.asker and "maths" in ABLE[agent]
        return agent == question.to

    def _replies(self, process: Process, question: Question, answer: int) -> None:
        before = question.state
        late = before == "open" and self.moves and self.now >= question.ends
        got = process.run(process.calls.reply(question.id, answer, can=ABLE[process.agent]))
        if not self._may(process.agent, question):
            assert isinstance(got, queries.NotAsked), got
        elif before == "answered" and (question.by, question.answer) == (process.agent, answer):
            assert isinstance(got, queries.Replied)
        elif late:
            self._late(question)
            assert (type(got), got.state) == (queries.Late, question.state)
        elif before in ("open", "handed"):
            assert isinstance(got, queries.Replied), got
            self._answered(question, process.agent, answer)
        else:
            assert (type(got), got.state) == (queries.Late, before)

    def _late(self, question: Question) -> None:
        self.model.close(question, "handed" if question.person else "expired")

    def _met(self) -> None:
        """A receiver that finds an expired question may end it."""
        for each in self.model.questions.values():
            over = self.moves and self.now >= each.ends
            if each.state == "open" and over and self._query(each.id).state != "open":
                self._late(each)

    def _answered(self, question: Question, by: str, answer: int) -> None:
        handed = question.state == "handed"
        if question.id in self.model.waiting.get(by, ()):
            self.model.read.setdefault(by, set()).add(question.id)
        self.model.close(question, "answered")
        question.by, question.answer = by, answer
        if handed:
            self._sent_to_the_asker(question)

    def _sent_to_the_asker(self, question: Question) -> None:
        """An asker that no longer waits gets the answer as a message, once."""
        found = [decode.message(each) for each in drive(every(keys.MESSAGES), self.under)]
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

    def outlive(self, data: st.DataObject) -> None:
        """The asker is killed, and its question expires without an answer."""
        unanswered = [each for each in self.model.questions.values() if each.state == "open"]
        if unanswered:
            question = data.draw(st.sampled_from(unanswered), "question")
            self.asking = [waits for waits in self.asking if waits[0] != question.id]
            self.clock.advance(6)
            self._deliver()
            self._follow()
            self._reply(question, data)

    def cancel(self, data: st.DataObject) -> None:
        if not self.model.questions:
            return
        known = sorted(
            self.model.questions.values(), key=lambda each: (each.state != "open", each.id)
        )
        question = data.draw(st.sampled_from(known), "question")
        own = [each for each in self.processes if each.agent == question.asker]
        process = data.draw(st.sampled_from(own * 3 + self.processes), "process")
        got = process.run(process.calls.cancel(question.id))
        if process.agent != question.asker:
            assert isinstance(got, queries.NotAsked)
        elif question.state in ("open", "handed"):
            assert got == queries.QueryCancelled(query=question.id)
            self.model.close(question, "cancelled")
        elif question.state == "cancelled":
            assert got == queries.QueryCancelled(query=question.id)
        else:
            assert (type(got), got.state) == (queries.Late, question.state)

    def resolve(self, data: st.DataObject) -> None:
        """A person decides."""
        process = self._process(data)
        shown = process.run(process.calls.decisions())
        unanswered = {each.id: each for each in self.model.questions.values() if each.decision}
        open_now = {each.about.removeprefix("query/") for each in shown if each.state == "open"}
        assert open_now == {id_ for id_, each in unanswered.items() if each.state == "handed"}
        got = process.run(process.calls.resolve("dec_nothing", 1))
        assert isinstance(got, decisions.UnknownDecision)
        if unanswered:
            question = data.draw(st.sampled_from([*unanswered.values()]), "question")
            got = process.run(process.calls.resolve(question.decision, 7))
            if question.state == "handed" and process.agent == question.asker:
                assert isinstance(got, decisions.OwnDecision)
            elif question.state == "handed":
                assert isinstance(got, decisions.Resolved)
                self._answered(question, process.agent, 7)
            else:
                assert isinstance(got, decisions.AlreadyResolved | decisions.UnknownDecision)

    def advance(self, data: st.DataObject) -> None:
        for _ in range(data.draw(st.integers(1, 3), "seconds")):
            self.clock.advance(1)
            self._deliver()
            self._follow()

    def _follow(self) -> None:
        """Let the askers continue, and check their outcomes."""
        for waits in list(self.asking):
            id_, hand, _ = waits
            question = self.model.questions[id_]
            self._lapse(question, hand)
            if not hand.run().done:
                continue
            self.asking.remove(waits)
            self._told(question, hand.result())

    def _lapse(self, question: Question, hand: Stepper[Any]) -> None:
        """An asker ends its question when it expires."""
        if question.state == "open" and self.now >= question.ends:
            hand.run()
            if hand.done or self.moves:
                self._late(question)

    def _told(self, question: Question, got: Any) -> None:
        if isinstance(got, queries.QueryDeadlock):
            assert self.model.knotted(question)
            if question.state == "open":
                self.model.close(question, "deadlock")
        match question.state:
            case "answered":
                told = queries.QueryAnswered(
                    query=question.id, answer=question.answer, by=question.by
                )
                assert replace(got, replied_at=None) == told
            case "cancelled":
                assert got == queries.TakenBack(query=question.id)
            case "expired":
                assert isinstance(got, queries.TimedOut)
            case "handed":
                assert isinstance(got, queries.Handed)
                question.decision = got.decision
            case other:
                assert (other, type(got)) == ("deadlock", queries.QueryDeadlock)
