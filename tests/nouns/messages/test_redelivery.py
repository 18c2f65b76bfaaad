"""Redelivery: subscriptions that ended, changed, or were left behind."""

from __future__ import annotations

from msgspec.structs import replace

from interlock.nouns.messages.message import Acknowledged, Received
from interlock.nouns.messages.receiver import InboxReceiver
from interlock.testing.testbed import Client, Stepper, Testbed


def ids(found: list[Received]) -> list[str]:
    return [each.id for each in found]


def told(stage: Testbed, *numbers: int, topic: str = "built") -> None:
    ada = stage.client("ada")
    for number in numbers:
        ada.run(ada.messages.alert(topic, number, id=f"msg_{number}"))


def received(client: Client, receiver: InboxReceiver) -> list[str]:
    return ids(client.run(receiver.take(0)))


def test_what_was_given_out_does_not_come_again_once_its_subscription_ended() -> None:
    stage = Testbed()
    bob = stage.client("bob")
    bob.run(bob.messages.subscribe("built"))
    receiver = bob.messages.receiver(redeliver=5)
    told(stage, 1)
    assert received(bob, receiver) == ["msg_1"]
    bob.run(bob.messages.unsubscribe("built"))
    stage.clock.advance(6)
    assert received(bob, receiver) == []


def test_an_acknowledgement_after_the_end_of_a_subscription_does_not_reach_into_the_next() -> None:
    stage = Testbed()
    bob = stage.client("bob")
    bob.run(bob.messages.subscribe("built"))
    told(stage, 1, 2)
    receiver = bob.messages.receiver()
    assert received(bob, receiver) == ["msg_1", "msg_2"]
    bob.run(bob.messages.unsubscribe("built"))
    bob.run(receiver.ack(["msg_1", "msg_2"]))
    told(stage, 3)
    bob.run(bob.messages.subscribe("built", last=2))
    assert received(bob, receiver) == ["msg_2", "msg_3"]


def test_the_last_of_none_are_none_also_when_more_is_asked_for_later() -> None:
    stage = Testbed()
    bob = stage.client("bob")
    told(stage, 1)
    bob.run(bob.messages.subscribe("built", senders=["cyd"], last=5))
    bob.run(bob.messages.subscribe("built"))
    assert received(bob, bob.messages.receiver()) == []


def test_messages_of_many_topics_are_acknowledged_at_once_where_commits_have_room_for_few() -> None:
    stage = Testbed()
    stage.store.capabilities = replace(stage.store.capabilities, max_operations=30)
    bob = stage.client("bob")
    for number in range(40):
        bob.run(bob.messages.subscribe(f"t{number}"))
        told(stage, number, topic=f"t{number}")
    receiver = bob.messages.receiver()
    found = received(bob, receiver)
    assert len(found) == 40
    assert bob.run(receiver.ack(found)) == Acknowledged(messages=tuple(found))
    assert received(bob, bob.messages.receiver()) == []


def test_what_came_while_a_receiver_reads_is_given_out_in_the_order_in_which_it_came() -> None:
    """A direct message and then one to all, between any two of its steps."""
    for steps in range(12):
        stage = Testbed()
        ada, bob = stage.client("ada"), stage.client("bob")
        bob.run(bob.messages.subscribe("built"))
        receiver = bob.messages.receiver()
        hand = Stepper(receiver.take(0.001), bob.store, stage.clock)
        for _ in range(steps):
            hand.go()
        ada.run(ada.messages.share("bob", "number", 1, id="msg_1"))
        ada.run(ada.messages.alert("built", 2, id="msg_2"))
        while not hand.run().done:
            stage.clock.advance(0.001)
        assert [*ids(hand.result()), *received(bob, receiver)] == ["msg_1", "msg_2"]
