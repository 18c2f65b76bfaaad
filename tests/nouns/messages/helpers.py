"""Helpers for tests of messages."""

from __future__ import annotations

from msgspec.structs import replace

from interlock.nouns.messages.message import Received, Sent
from interlock.nouns.messages.query import QueryAnswered
from interlock.nouns.messages.receiver import InboxReceiver
from interlock.steps import Op
from interlock.testing.testbed import Client


def sent(client: Client, op: Op[object]) -> str:
    """The id of the sent message."""
    outcome = client.run(op)
    assert isinstance(outcome, Sent), outcome
    return outcome.message


def came(client: Client, receiver: InboxReceiver) -> list[Received]:
    """The messages that a receiver gets now."""
    return client.run(receiver.take(0))


def said(client: Client, receiver: InboxReceiver) -> list[object]:
    """The bodies of the messages that a receiver gets now."""
    return [each.data for each in came(client, receiver)]


def waiting(client: Client) -> list[object]:
    """The bodies of the unread messages."""
    return [each.data for each in client.run(client.messages.inbox()).messages]


def answer(outcome: object) -> object:
    """An outcome; an answer without its time, which must be set."""
    if not isinstance(outcome, QueryAnswered):
        return outcome
    assert outcome.replied_at
    return replace(outcome, replied_at=None)
