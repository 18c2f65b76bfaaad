"""An operator reads what all agents write, newest first."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.nouns.messages.test_damage import spoil

import interlock
from interlock.core import keys
from interlock.testing.testbed import Client, Testbed


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


def listed(client: Client, **wanted: object) -> list[object]:
    found = client.run(client.messages.list(**wanted))  # type: ignore[arg-type]
    return [each.data for each in found.messages]


def test_messages_of_all_kinds_and_agents_are_listed_newest_first(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.messages.subscribe("build"))
    ada.run(ada.messages.send("bob", "mail"))
    ada.run(ada.messages.send("all", "to all"))
    bob.run(bob.messages.alert("build", "red"))
    ada.run(ada.messages.share("bob", "figures", [1]))
    assert listed(stage.client("maria")) == [[1], "red", "to all", "mail"]


def test_a_read_message_stays_in_the_feed_and_nothing_is_acknowledged(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    ada.run(ada.messages.send("bob", "read", id="msg_one"))
    ada.run(ada.messages.send("bob", "unread"))
    bob.run(bob.messages.ack("msg_one"))
    assert listed(ada) == ["unread", "read"]
    assert [each.data for each in bob.run(bob.messages.inbox()).messages] == ["unread"]


def test_filters_select_messages(stage: Testbed) -> None:
    ada, bob, eve = (stage.client(name) for name in ("ada", "bob", "eve"))
    ada.run(ada.messages.send(["bob", "eve"], "one", thread="plan"))
    bob.run(bob.messages.send("ada", "two", thread="plan"))
    eve.run(eve.messages.share("ada", "figures", "three"))
    assert listed(ada, thread="plan") == ["two", "one"]
    assert listed(ada, sender="eve") == ["three"]
    assert listed(ada, to="eve") == ["one"]
    assert listed(ada, kind="share") == ["three"]
    assert listed(ada, search="TW") == ["two"]


def test_pages_follow_each_other_without_a_gap(stage: Testbed) -> None:
    ada = stage.client("ada")
    stage.client("bob").run(stage.client("bob").messages.inbox())
    for n in range(7):
        ada.run(ada.messages.send("bob", n, hold=True))
    seen: list[object] = []
    before = None
    while True:
        page = ada.run(ada.messages.list(limit=3, before=before))
        seen += [each.data for each in page.messages]
        if (before := page.more) is None:
            break
    assert seen == [6, 5, 4, 3, 2, 1, 0]


def test_a_damaged_message_does_not_hide_the_others(stage: Testbed) -> None:
    ada = stage.client("ada")
    ada.run(ada.messages.send("bob", "good", hold=True))
    ada.run(ada.messages.send("bob", "bad", hold=True, id="msg_broken"))
    spoil(stage, keys.message("msg_broken"))
    assert listed(ada) == [{"unreadable": keys.message("msg_broken")}, "good"]


def test_an_open_question_is_open_until_it_is_answered(tmp_path: Path) -> None:
    url = str(tmp_path / "store.db")
    with (
        interlock.connect(url, agent="ada") as ada,
        interlock.connect(url, agent="bob") as bob,
    ):
        asking = threading.Thread(
            target=lambda: ada.messages.query("bob", "which?", timeout=30, id="qry_which")
        )
        asking.start()
        with bob.messages.recv(timeout=30, ack=False) as received:
            question = next(iter(received))
            (found,) = ada.messages.list(open=True).messages
            assert (found.id, found.state, found.to) == ("qry_which", "open", ("bob",))
            question.reply("this")
        asking.join()
        assert not ada.messages.list(open=True).messages
        assert ada.messages.list(kind="query").messages[0].state == "answered"
