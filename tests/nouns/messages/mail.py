"""What tests of messages do again and again."""

from __future__ import annotations

from msgspec.structs import replace

from interlock.drivers import Op
from interlock.nouns.messages.message import Received, Sent
from interlock.nouns.messages.query_rules import Answered
from interlock.nouns.messages.receiver import InboxReceiver
from interlock.testing.testbed import Client


def sent(client: Client, op: Op[object]) -> str:
    """The id of what was sent."""
    outcome = client.run(op)
    assert isinstance(outcome, Sent), outcome
    return outcome.message


def came(client: Client, receiver: InboxReceiver) -> list[Received]:
    """What is there for a receiver now."""
    return client.run(receiver.take(0))


def said(client: Client, receiver: InboxReceiver) -> list[object]:
    """The same: only what they say."""
    return [each.data for each in came(client, receiver)]


def waiting(client: Client) -> list[object]:
    """What the messages say that are unread."""
    return [each.data for each in client.run(client.messages.inbox()).messages]


def answer(outcome: object) -> object:
    """An outcome; an answer without the moment at which it was given, which must be there."""
    if not isinstance(outcome, Answered):
        return outcome
    assert outcome.replied_at
    return replace(outcome, replied_at=None)
