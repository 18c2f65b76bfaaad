"""An unreadable message is reported to its recipient, and affects no other agent."""

from __future__ import annotations

import pytest
from tests.nouns.messages.helpers import came, said, sent

from interlock.core import codec, keys
from interlock.core.wait import UnqueuedWait, wait_keys
from interlock.nouns.messages import message
from interlock.nouns.messages.message import Acknowledged, Subscribed
from interlock.nouns.messages.query import TimedOut
from interlock.runtime.integrity import unreadable
from interlock.steps import drive
from interlock.store import Put, Txn
from interlock.testing.testbed import Client, Testbed


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


@pytest.fixture
def ada(stage: Testbed) -> Client:
    return stage.client("ada")


@pytest.fixture
def bob(stage: Testbed) -> Client:
    bob = stage.client("bob")
    bob.run(bob.messages.subscribe("build"))
    return bob


def spoil(stage: Testbed, *wanted: str, value: bytes = b"{") -> None:
    puts = tuple(Put(key, value) for key in wanted)
    stage.store.commit(Txn(id=f"spoil-{wanted[0]}", puts=puts, quiet=True))


def test_an_unreadable_message_is_reported_as_missed(
    stage: Testbed, ada: Client, bob: Client
) -> None:
    mail = sent(ada, ada.messages.send("bob", "lost"))
    alert = sent(ada, ada.messages.alert("build", "lost"))
    sent(ada, ada.messages.send("bob", "kept"))
    spoil(stage, keys.message(mail), keys.topic("build", alert))
    receiver = bob.messages.receiver()
    found = came(bob, receiver)
    assert [(each.id, each.kind) for each in found[:2]] == [(mail, "missed"), (alert, "missed")]
    assert found[0].data == {"unreadable": keys.message(mail)}
    assert found[2].data == "kept"
    shown = bob.run(bob.messages.inbox()).messages
    assert [each.kind for each in shown] == ["missed", "missed", "mail"]
    assert isinstance(bob.run(receiver.ack([mail, alert])), Acknowledged)
    assert said(bob, bob.messages.receiver()) == ["kept"]


def test_a_wait_ends_with_a_message_that_cannot_be_read(
    stage: Testbed, ada: Client, bob: Client
) -> None:
    spoil(stage, keys.message(sent(ada, ada.messages.send("bob", "lost"))))
    assert isinstance(bob.run(bob.messages.wait(0)), message.Arrived)


def test_an_unreadable_subscription_has_no_filter_and_can_be_replaced(
    stage: Testbed, ada: Client, bob: Client
) -> None:
    bob.run(bob.messages.subscribe("test", senders=["cy"]))
    ada.run(ada.messages.alert("test", 1))
    assert said(bob, bob.messages.receiver()) == []
    spoil(stage, keys.subscription("bob", "test"), keys.cursor("bob", "test"))
    assert said(bob, bob.messages.receiver()) == [1]
    made = bob.run(bob.messages.subscribe("test", senders=["ada"]))
    assert isinstance(made, Subscribed)
    receiver = bob.messages.receiver()
    (alert,) = came(bob, receiver)
    assert isinstance(bob.run(receiver.ack([alert.id])), Acknowledged), "the cursor is made anew"
    assert said(bob, bob.messages.receiver()) == []


def test_an_unreadable_question_does_not_prevent_others(
    stage: Testbed, ada: Client, bob: Client
) -> None:
    asleep = UnqueuedWait(
        wants=keys.query("qry_1"),
        agent="bob",
        session=bob.session,
        live=keys.live(bob.session),
        since=0.0,
    )
    (place,) = wait_keys(asleep, "qry_1")
    spoil(stage, place, value=codec.encode(asleep))
    spoil(stage, keys.query("qry_1"), keys.serving("bob", "x"))
    assert isinstance(ada.run(ada.messages.query("bob", "?", timeout=2)), TimedOut)
    spoil(stage, place)
    assert isinstance(ada.run(ada.messages.query("bob", "?", timeout=2)), TimedOut)


def test_a_question_that_cannot_be_read_ends_no_receiving(
    stage: Testbed, ada: Client, bob: Client
) -> None:
    asking = ada.start(ada.messages.query("bob", "?", id="qry_1", timeout=5))
    assert asking.asleep
    spoil(stage, keys.query("qry_1"))
    stage.clock.advance(10.0)
    ada.run(ada.messages.send("bob", "kept"))
    assert "kept" in said(bob, bob.messages.receiver())


def test_decisions_are_listed_without_those_that_cannot_be_read(
    stage: Testbed, ada: Client
) -> None:
    ada.run(ada.messages.query("?nobody", "what?", person=True, timeout=0))
    (matter,) = ada.run(ada.messages.decisions())
    spoil(stage, keys.decision("dec_1"))
    assert ada.run(ada.messages.decisions()) == (matter,)


def test_maintain_mends_what_others_say_too(stage: Testbed, ada: Client, bob: Client) -> None:
    mail = sent(ada, ada.messages.send("bob", "now", urgent=True))
    late = sent(ada, ada.messages.send("bob", "later"))
    asking = ada.start(ada.messages.query("bob", "?", id="qry_1", timeout=500))
    assert asking.asleep
    spoil(
        stage,
        keys.unread("bob", mail),
        keys.sent("ada", mail),
        keys.mailbox("bob"),
        keys.open_query("ada", "qry_1"),
        keys.serving("bob", "x"),
        keys.rate_slot("ada", 0),
        keys.report(bob.session),
        keys.waits("x", "y"),
    )
    wrong = drive(unreadable(), stage.store)
    assert len(wrong) == 8
    assert {str(each).partition("; ")[2] for each in wrong} == {"run 'interlock maintain'"}
    assert ada.run(ada.fleet.maintain()).reclaimed == len(wrong)
    assert drive(unreadable(), stage.store) == []
    first, *_ = came(bob, bob.messages.receiver())
    assert (first.id, first.urgent) == (mail, True), "the urgent first, as before"
    assert late in [each.id for each in bob.run(bob.messages.inbox()).messages]
