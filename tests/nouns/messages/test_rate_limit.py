"""Rate slots: a sender with a free slot never waits for its other processes."""

from __future__ import annotations

import pytest

from interlock.core.rate import Rate, slot_is_free
from interlock.nouns.messages.calls import MessageCalls
from interlock.nouns.messages.message import Limited, Sent
from interlock.nouns.messages.query import QueryAnswered
from interlock.settings import Settings
from interlock.testing.testbed import Client, Stepper, Testbed


class Few(Settings):
    """Three messages in four seconds."""

    def message(self) -> dict[str, float]:
        return {"rate": 3, "window": 4.0}


def ada(stage: Testbed) -> tuple[Client, MessageCalls]:
    client = stage.client("ada")
    client.context.settings = Few()
    return client, MessageCalls(client.context)


def test_a_turn_that_another_process_took_is_free_again_when_its_window_ends() -> None:
    stage = Testbed()
    (one, here), (other, there) = ada(stage), ada(stage)
    for _ in range(3):
        assert isinstance(other.run(there.alert("built")), Sent)
    stage.clock.advance(3)
    refused = one.run(here.alert("built"))
    assert isinstance(refused, Limited)
    assert refused.retry_in == 1.0
    stage.clock.advance(1)
    for _ in range(3):
        assert isinstance(one.run(here.alert("built")), Sent)
    assert isinstance(other.run(there.alert("built")), Limited)


def remote(stage: Testbed) -> tuple[Client, MessageCalls]:
    client = stage.remote("ada")
    client.context.settings = Few()
    return client, MessageCalls(client.context)


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("steps", range(6))
def test_across_a_network_a_rate_slot_is_taken_once(before: int, steps: int) -> None:
    for seed in range(3):
        stage = Testbed(seed)
        (one, here), (other, there) = remote(stage), remote(stage)
        sent = [other.run(there.alert("built")) for _ in range(before)]
        hand = Stepper(here.alert("built"), one.store, stage.clock)
        for _ in range(steps):
            hand.go()
        stage.clock.advance(0.5)
        sent += [other.run(there.alert("built")) for _ in range(2 - before)]
        quick = other.run(there.alert("built"))
        slow = hand.run().result()
        assert all(isinstance(each, Sent) for each in sent)
        assert {type(quick), type(slow)} == {Sent, Limited}


def test_a_turn_used_by_a_clock_ahead_of_ours_is_used_and_one_of_long_after_says_nothing() -> None:
    assert not slot_is_free(101.9, Rate(3, 2.0), 100.0)
    assert slot_is_free(102.0, Rate(3, 2.0), 100.0)
    assert slot_is_free(98.0, Rate(3, 2.0), 100.0)
    assert not slot_is_free(98.1, Rate(3, 2.0), 100.0)


def test_two_machines_share_the_turns_of_a_sender_though_one_clock_is_behind() -> None:
    stage = Testbed()
    (one, here), (other, there) = ada(stage), ada(stage)
    assert all(isinstance(other.run(there.alert("built")), Sent) for _ in range(3))
    stage.clock.jump_wall(-2)
    refused = one.run(here.alert("built"))
    assert isinstance(refused, Limited)
    assert refused.retry_in == 6.0


def test_turns_from_before_a_clock_was_set_back_are_all_free() -> None:
    stage = Testbed()
    (one, here), (other, there) = ada(stage), ada(stage)
    assert all(isinstance(one.run(here.alert("built")), Sent) for _ in range(3))
    stage.clock.jump_wall(-3600)
    sent = [one.run(here.alert("built")), other.run(there.alert("built"))]
    sent += [other.run(there.alert("built")), one.run(here.alert("built"))]
    assert [type(each) for each in sent] == [Sent, Sent, Sent, Limited]


def test_to_ask_again_with_the_same_id_takes_no_turn() -> None:
    stage = Testbed()
    (one, here), (other, there) = ada(stage), ada(stage)
    bob = stage.client("bob")
    one.start(here.query("bob", "why?", id="qry_1"))
    again = other.start(there.query("bob", "why?", id="qry_1"))
    for _ in range(2):
        assert isinstance(other.run(there.alert("built")), Sent)
    bob.run(MessageCalls(bob.context).reply("qry_1", "because"))
    assert isinstance(again.run().result(), QueryAnswered)
