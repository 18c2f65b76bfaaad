"""Acknowledging by id reads no more than it must, however much there is."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from tests.nouns.messages.helpers import sent, waiting

from interlock.core import keys
from interlock.nouns.messages import decode, inbox_service
from interlock.nouns.messages.message import Acknowledged
from interlock.steps import Read, Step
from interlock.store import Range
from interlock.testing.testbed import Client, Stepper, Testbed


@pytest.fixture(autouse=True)
def any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_RATE", "0")


def pair(*types: str) -> tuple[Client, Client]:
    stage = Testbed()
    ada, bob = stage.client("ada"), stage.client("bob")
    for type_ in types:
        bob.run(bob.messages.subscribe(type_))
    return ada, bob


def pages(steps: Iterable[Step], topic: str) -> list[int]:
    """How many messages of a topic each read asked for."""
    refs = [ref for step in steps if isinstance(step, Read) for ref in step.refs]
    found = [ref for ref in refs if isinstance(ref, Range)]
    return [ref.limit for ref in found if ref.prefix == keys.topic(topic)]


def also(client: Client, topic: str) -> tuple[int, ...]:
    key = keys.cursor("bob", topic)
    cursor = decode.cursor(client.store.read(key)[key])
    assert cursor is not None
    return cursor.also


def test_one_of_many_large_messages_is_acknowledged_without_reading_them_all() -> None:
    ada, bob = pair("big")
    ids = [sent(ada, ada.messages.alert("big", "x" * 50_000)) for _ in range(60)]
    acks = Stepper(bob.messages.ack(ids[0]), bob.store, bob.clock).run()
    assert acks.result() == Acknowledged(messages=(ids[0],))
    assert sum(pages(acks.steps, "big")) <= 16
    assert len(waiting(bob)) == 59


def test_large_messages_are_read_few_at_a_time() -> None:
    ada, bob = pair("big")
    for _ in range(40):
        ada.run(ada.messages.alert("big", "x" * 100_000))
    looks = Stepper(bob.messages.inbox(limit=1), bob.store, bob.clock).run()
    assert max(pages(looks.steps, "big")) <= 16


def test_a_cursor_stays_short_however_many_are_acknowledged_by_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inbox_service, "_LONG_CURSOR", 5)
    monkeypatch.setattr(inbox_service, "_BYTES", 100)
    ada, bob = pair("build")
    ids = [sent(ada, ada.messages.alert("build", number)) for number in range(20)]
    for id_ in ids[:-1]:
        bob.run(bob.messages.ack(id_))
        assert len(also(bob, "build")) <= 5
    assert waiting(bob) == [19]


def test_many_of_many_topics_are_found_with_one_look_at_each() -> None:
    ada, bob = pair(*[f"t{number}" for number in range(50)])
    ids = [sent(ada, ada.messages.alert(f"t{number % 50}", number)) for number in range(300)]
    letter = sent(ada, ada.messages.send("bob", "letter"))
    acks = Stepper(bob.messages.ack(*ids, letter), bob.store, bob.clock).run()
    assert acks.result() == Acknowledged(messages=(*ids, letter))
    assert len([step for step in acks.steps if isinstance(step, Read)]) < 130
    assert waiting(bob) == []
    assert bob.run(bob.messages.ack(*ids)) == Acknowledged(already=tuple(ids))
