"""Turns to send: nobody is told to wait who has one left, whatever its other processes do."""

from __future__ import annotations

from interlock.core.message import Limited, Sent
from interlock.core.query import Answered
from interlock.services.message.calls import MessageCalls
from interlock.settings import Settings
from interlock.testing.stage import Client, Stage


class Few(Settings):
    """Three messages in four seconds."""

    def message(self) -> dict[str, float]:
        return {"rate": 3, "window": 4.0}


def ada(stage: Stage) -> tuple[Client, MessageCalls]:
    client = stage.client("ada")
    client.desk.settings = Few()
    return client, MessageCalls(client.desk)


def test_a_turn_that_another_process_took_is_free_again_when_its_window_ends() -> None:
    stage = Stage()
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


def test_to_ask_again_with_the_same_id_takes_no_turn() -> None:
    stage = Stage()
    (one, here), (other, there) = ada(stage), ada(stage)
    bob = stage.client("bob")
    one.start(here.query("bob", "why?", id="qry_1"))
    again = other.start(there.query("bob", "why?", id="qry_1"))
    for _ in range(2):
        assert isinstance(other.run(there.alert("built")), Sent)
    bob.run(MessageCalls(bob.desk).reply("qry_1", "because"))
    assert isinstance(again.run().result(), Answered)
