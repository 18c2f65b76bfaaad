"""The history of messages from the record, and why a question has no answer yet."""

from __future__ import annotations

import pytest

from interlock.core.history import HistoryEvent
from interlock.nouns.messages.message import Sent
from interlock.runtime import history
from interlock.runtime.why import Why
from interlock.testing.testbed import Client, Testbed


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


def pair(stage: Testbed) -> tuple[Client, Client]:
    return stage.client("ada", ttl=None), stage.client("bob")


def told(client: Client, thing: str, limit: int = 100) -> tuple[HistoryEvent, ...]:
    return client.run(client.record.explain(thing, limit=limit)).happenings


def short(happenings: tuple[HistoryEvent, ...]) -> list[tuple[str, str]]:
    return [(each.agent, each.what) for each in happenings]


def sent(outcome: object) -> str:
    assert isinstance(outcome, Sent)
    return outcome.message


def why(client: Client, thing: str) -> Why:
    return client.run(client.fleet.why(thing))


def test_the_history_of_a_message_is_sent_read_and_deleted(stage: Testbed) -> None:
    ada, bob = pair(stage)
    stage.client("cleo")
    id_ = sent(ada.run(ada.messages.send(("bob", "cleo"), "hello")))
    stage.clock.advance(3)
    bob.run(bob.messages.ack(id_))
    first, read = told(ada, id_)
    assert (first.agent, first.what, first.went_to) == ("ada", "sent", ("bob", "cleo"))
    assert (read.agent, read.what, read.waited, read.session) == ("bob", "received", 3, bob.session)
    share = sent(ada.run(ada.messages.share("bob", "fact")))
    bob.run(bob.messages.ack(share))
    stage.clock.advance(90_000)
    ada.run(ada.fleet.maintain())
    assert short(told(ada, f"message/{share}"))[-1] == ("", "forgotten")


def test_what_a_message_acknowledges_is_a_part_of_both_stories(stage: Testbed) -> None:
    ada, bob = pair(stage)
    first = sent(ada.run(ada.messages.share("bob", "fact")))
    second = sent(bob.run(bob.messages.alert("built", acks=[first])))
    assert short(told(ada, first)) == [("ada", "sent"), ("bob", "received")]
    (alert,) = told(ada, second)
    assert (alert.what, alert.on) == ("sent", "alert/built")


def test_all_alerts_of_a_type_are_one_story(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_ALERTS", "1")
    ada, bob = pair(stage)
    bob.run(bob.messages.subscribe("built"))
    for _ in range(2):
        ada.run(ada.messages.alert("built"))
    ada.run(ada.fleet.maintain())
    found = told(ada, "alert/built")
    assert short(found) == [("bob", "subscribed"), *[("ada", "sent")] * 2, ("", "forgotten")]
    assert (found[-1].count, found[-1].on) == (1, "alerts")


def test_a_question_is_asked_and_answered(stage: Testbed) -> None:
    ada, bob = pair(stage)
    asked = ada.start(ada.messages.query("bob", "where?", id="qry_1"))
    stage.clock.advance(2)
    bob.run(bob.messages.reply("qry_1", "here"))
    asked.run()
    first, last = told(ada, "qry_1")
    assert (first.agent, first.what, first.went_to) == ("ada", "asked", ("bob",))
    assert (last.agent, last.what, last.waited) == ("bob", "replied", 2)


def test_a_question_that_was_only_read_is_in_its_own_story(stage: Testbed) -> None:
    ada, bob = pair(stage)
    ada.start(ada.messages.query("bob", "where?", id="qry_1"))
    bob.run(bob.messages.ack("qry_1"))
    assert short(told(ada, "query/qry_1")) == [("ada", "asked"), ("bob", "received")]


@pytest.mark.parametrize("resolved", [True, False])
def test_a_decision_is_in_the_history_of_the_question_and_of_itself(
    stage: Testbed, resolved: bool
) -> None:
    ada, bob = pair(stage)
    asked = ada.start(ada.messages.query("bob", "may I?", id="qry_1", person=True, timeout="5s"))
    stage.clock.advance(6)
    asked.run()
    (matter,) = bob.run(bob.messages.decisions())
    if resolved:
        bob.run(bob.messages.resolve(matter.decision, "yes"))
    else:
        bob.run(bob.messages.reply("qry_1", "yes"))
    question = told(ada, "query/qry_1")
    assert short(question) == [("ada", "asked"), ("ada", "handed"), ("bob", "replied")]
    assert question[1].on == f"decision/{matter.decision}"
    assert short(told(ada, matter.decision)) == [("ada", "asked"), ("bob", "resolved")]


def test_who_is_asked_to_stop_has_it_in_its_story(stage: Testbed) -> None:
    ada, _ = pair(stage)
    ada.run(ada.messages.stop("bob", "enough"))
    stopped = told(ada, "agent/bob")[-1]
    assert (stopped.what, stopped.agent, stopped.by) == ("stop", "bob", "ada")


def test_messages_do_not_drown_the_story_of_an_agent(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_RATE", "0")
    monkeypatch.setattr(history, "_BEFORE", 0)
    ada, bob = pair(stage)
    bob.run(bob.locks.acquire("merge"))
    ids = []
    for _ in range(30):
        ids.append(sent(ada.run(ada.messages.share("bob", "fact"))))
        bob.run(bob.messages.alert("built"))
    bob.run(bob.messages.ack(*ids))
    bob.run(bob.locks.release("merge"))
    bob.run(bob.messages.alert("built"))
    found = told(ada, "agent/bob", limit=20)
    assert short(found) == [
        ("bob", word) for word in ("joined", "acquired", "sent", "received", "released", "sent")
    ]
    assert [(each.count, each.on) for each in found[2:4]] == [(30, "messages")] * 2


def test_why_a_question_has_no_answer(stage: Testbed) -> None:
    ada, bob = pair(stage)
    ada.start(ada.messages.query("bob", "where?", id="qry_1", timeout="10s"))
    bob.run(bob.agents.status("busy", doing="task/t1"))
    found = why(ada, "qry_1")
    assert (found.blocked, found.by, found.since) == (True, "bob", stage.clock.wall())
    assert found.because == "ada asked bob, who is here, busy with task/t1"
    assert found.clear == "bob answers, or its time is up in 10 s"
    assert found.expires_in == 10
    bob.run(bob.agents.leave())
    assert why(ada, "query/qry_1").because == "ada asked bob, who is not here"
    stage.clock.advance(11)
    assert why(ada, "qry_1").clear == "run 'interlock maintain'"
    ada.run(ada.fleet.maintain())
    assert (why(ada, "qry_1").state, why(ada, "qry_1").blocked) == ("expired", False)
    assert "no such question" in why(ada, "qry_2").because


def test_why_a_question_to_an_ability_has_no_answer(stage: Testbed) -> None:
    ada, bob = pair(stage)
    ada.start(ada.messages.query("?gpu", "who?", id="qry_1", hold=True))
    assert "no agent here reports that it can" in why(ada, "qry_1").because
    bob.run(bob.agents.status("idle", can=["gpu"]))
    assert why(ada, "qry_1").because == "ada asked an agent that can gpu, and an agent here can"
    bob.run(bob.messages.reply("qry_1", "me"))
    assert why(ada, "qry_1").because == "bob answered 0 s ago"


def test_why_a_question_waits_for_a_person(stage: Testbed) -> None:
    ada, bob = pair(stage)
    bob.run(bob.agents.leave())
    ada.run(ada.messages.query("bob", "may I?", id="qry_1", person=True))
    assert short(told(ada, "query/qry_1")) == [("ada", "asked"), ("ada", "handed")]
    found = why(ada, "qry_1")
    assert (found.state, found.blocked) == ("handed", True)
    assert "interlock decision resolve dec_" in found.clear
