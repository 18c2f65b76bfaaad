"""A sender over its limits is refused, and other agents do not wait for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import interlock
from interlock.nouns.messages.message import InboxFull, Limited, MessageExists, Sent
from interlock.nouns.messages.query import TooMany
from interlock.store import View
from interlock.stores import open_store
from interlock.stores.sqlite import SQLiteStore

FLOOD = "ada"


@contextmanager
def somebody_writes(url: str) -> Iterator[None]:
    """A write lock that is taken and not released, as by another process."""
    begun, ended = threading.Event(), threading.Event()

    def work(_: View) -> None:
        begun.set()
        ended.wait()

    store = open_store(url)
    assert isinstance(store, SQLiteStore)
    thread = threading.Thread(target=store.transact, args=(work,))
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        store.close()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


def test_who_sends_too_often_is_refused_while_others_write(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_RATE", "2")
    monkeypatch.setenv("INTERLOCK_MESSAGE_WINDOW", "1h")
    store = SQLiteStore(url, patience=0.5)  # the refusal is counted by a commit, which waits
    with interlock.connect(agent=FLOOD, store=store) as fleet:
        sent = [fleet.messages.alert("news") for _ in range(3)]
        assert [type(each) for each in sent] == [Sent, Sent, Limited]
        with somebody_writes(url):
            assert isinstance(fleet.messages.alert("news"), Limited)


def test_who_sends_to_a_full_inbox_is_refused_while_others_write(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_INBOX", "2")
    store = SQLiteStore(url, patience=0.5)  # the refusal is counted by a commit, which waits
    with interlock.connect(agent=FLOOD, store=store) as fleet:
        sent = [fleet.messages.share(FLOOD, "news") for _ in range(3)]
        assert [type(each) for each in sent] == [Sent, Sent, InboxFull]
        with somebody_writes(url):
            assert isinstance(fleet.messages.share(FLOOD, "news"), InboxFull)
        assert isinstance(sent[0], Sent)
        fleet.messages.ack(sent[0].message)
        assert isinstance(fleet.messages.share(FLOOD, "news"), Sent)


def test_the_first_refusal_is_recorded_and_the_next_ones_are_not(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_RATE", "1")
    monkeypatch.setenv("INTERLOCK_MESSAGE_WINDOW", "1h")
    with interlock.connect(url, agent=FLOOD) as fleet:
        for _ in range(4):
            fleet.messages.alert("news")
        assert len(fleet.record.log(verb="message.refuse")) == 1


def test_what_was_sent_before_exists_though_no_turn_is_left(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_RATE", "1")
    monkeypatch.setenv("INTERLOCK_MESSAGE_WINDOW", "1h")
    with interlock.connect(url, agent=FLOOD) as fleet:
        fleet.messages.alert("news", id="msg_1")
        assert isinstance(fleet.messages.alert("news", id="msg_1"), MessageExists)


def test_several_processes_of_one_sender_share_its_turns(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rate slots that count are in the store, not in this process."""
    monkeypatch.setenv("INTERLOCK_MESSAGE_RATE", "2")
    monkeypatch.setenv("INTERLOCK_MESSAGE_WINDOW", "1h")
    with (
        interlock.connect(url, agent=FLOOD) as one,
        interlock.connect(url, agent=FLOOD) as other,
    ):
        outcomes = [type(fleet.messages.alert("news")) for fleet in (one, other, one, other)]
    assert outcomes == [Sent, Sent, Limited, Limited]


def test_too_many_open_questions_are_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_OPEN_QUERIES", "1")
    with interlock.connect(url, agent=FLOOD) as fleet:
        asking = threading.Thread(
            target=fleet.messages.query, args=("bob", "?"), kwargs={"hold": True, "id": "qry_1"}
        )
        asking.start()
        with interlock.connect(url, agent="bob") as bob:
            bob.messages.wait()
            assert isinstance(fleet.messages.query("bob", "??", hold=True), TooMany)
            bob.messages.reply("qry_1", "!")
        asking.join()
