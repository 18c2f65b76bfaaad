"""The depth of an inbox as senders count it: exceeded by a few, and cheap to check."""

from __future__ import annotations

import pytest
from tests.nouns.messages.helpers import sent, waiting

from interlock.core import keys
from interlock.nouns.messages.message import InboxFull, Limited, Sent
from interlock.steps import Read
from interlock.store import Range
from interlock.testing.testbed import Client, Stepper, Testbed


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_INBOX", "120")
    monkeypatch.setenv("INTERLOCK_MESSAGE_RATE", "0")


def fill(client: Client, count: int) -> list[object]:
    return [client.run(client.messages.share("bob", "note", number)) for number in range(count)]


def counts(client: Client) -> int:
    """How often a message counts the inbox of its recipient."""
    hand = Stepper(client.messages.share("bob", "note"), client.store, client.clock).run()
    reads = [ref for step in hand.steps if isinstance(step, Read) for ref in step.refs]
    return sum(isinstance(ref, Range) and ref.prefix == keys.unread("bob") for ref in reads)


def test_many_senders_pass_the_depth_of_an_inbox_by_few(stage: Testbed) -> None:
    stage.client("bob")
    crew = [stage.client(f"w{number}") for number in range(12)]
    rounds = [
        client.run(client.messages.share("bob", "note")) for _ in range(20) for client in crew
    ]
    assert 120 <= sum(isinstance(each, Sent) for each in rounds) <= 132


def test_that_an_inbox_is_full_is_believed_for_a_moment(stage: Testbed) -> None:
    ada, bob = stage.remote("ada"), stage.client("bob")
    assert isinstance(fill(ada, 121)[-1], InboxFull)
    assert counts(ada) == 0
    bob.run(bob.messages.ack(bob.run(bob.messages.inbox()).messages[0].id))
    stage.clock.advance(1)
    assert counts(ada) == 1
    assert len(waiting(bob)) > 0


def test_what_a_count_allowed_is_not_allowed_for_ever(stage: Testbed) -> None:
    ada, _ = stage.remote("ada"), stage.client("bob")
    fill(ada, 1)
    assert counts(ada) == 0
    stage.clock.advance(5)
    assert counts(ada) == 1


def test_a_sender_over_its_rate_is_refused_without_counting_an_inbox(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, _ = stage.client("ada"), stage.client("bob")
    fill(ada, 120)
    monkeypatch.setenv("INTERLOCK_MESSAGE_RATE", "1")
    monkeypatch.setenv("INTERLOCK_MESSAGE_WINDOW", "1h")
    eve = stage.remote("eve")
    sent(eve, eve.messages.send("ada", "her turn"))
    assert isinstance(fill(eve, 1)[0], Limited)
    assert counts(eve) == 0
