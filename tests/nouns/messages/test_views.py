"""An inbox is listed, searched and waited for without acknowledging anything."""

from __future__ import annotations

import pytest
from tests.nouns.messages.helpers import sent, waiting

from interlock.core import keys
from interlock.errors import BadInput
from interlock.nouns.messages import decode
from interlock.nouns.messages.message import Acknowledged, Arrived, NothingUnread
from interlock.steps import NextChanges
from interlock.testing.testbed import Client, Testbed


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


def found(client: Client, **wanted: object) -> list[object]:
    shown = client.run(client.messages.inbox(**wanted))  # type: ignore[arg-type]
    return [each.data for each in shown.messages]


def test_the_urgent_are_at_the_top_then_the_order_of_sending(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    ada.run(ada.messages.send("bob", 1))
    ada.run(ada.messages.send("all", 2))
    ada.run(ada.messages.send("bob", 0, urgent=True))
    assert waiting(bob) == [0, 1, 2]
    assert waiting(bob) == [0, 1, 2]


def test_what_is_looked_for_is_found(stage: Testbed) -> None:
    ada, bob, eve = (stage.client(name) for name in ("ada", "bob", "eve"))
    bob.run(bob.messages.subscribe("build"))
    ada.run(ada.messages.send("bob", "The Release", subject="plan"))
    eve.run(eve.messages.share("bob", "figures", {"rows": ["Straße"]}))
    ada.run(ada.messages.alert("build", "red"))
    ada.run(ada.messages.stop("bob", "enough"))
    assert found(bob, kind="mail") == ["The Release"]
    assert found(bob, sender="eve") == [{"rows": ["Straße"]}]
    assert found(bob, type="build") == ["red"]
    assert found(bob, search="release") == ["The Release"]
    assert found(bob, search="PLAN") == ["The Release"]
    assert found(bob, search="STRASSE") == [{"rows": ["Straße"]}]
    assert found(bob, search="nothing") == []
    with pytest.raises(BadInput, match="there are: alert, query"):
        found(bob, kind="letter")


def test_a_limit_says_that_there_is_more(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    for number in range(5):
        ada.run(ada.messages.send("bob", number))
    some = bob.run(bob.messages.inbox(limit=3))
    assert ([each.data for each in some.messages], some.more) == ([0, 1, 2], True)
    last = bob.run(bob.messages.inbox(all=True, limit=3))
    assert ([each.data for each in last.messages], last.more) == ([2, 3, 4], True)
    assert not bob.run(bob.messages.inbox(limit=5)).more


def test_all_that_is_kept_is_in_the_order_of_sending_whenever_it_was_read(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    ids = [sent(ada, ada.messages.send("bob", number)) for number in range(3)]
    everybody = sent(ada, ada.messages.send("all", 3))
    stage.clock.advance(10)
    for id_ in (ids[2], ids[0], everybody):
        bob.run(bob.messages.ack(id_))
    shown = bob.run(bob.messages.inbox(all=True)).messages
    assert [each.data for each in shown] == [0, 1, 2, 3]
    assert [each.read for each in shown] == [True, False, True, True]
    assert [each.seq for each in shown] == sorted(each.seq for each in shown)
    now = stage.clock.wall()
    assert [each.read_at for each in shown] == [now, None, now, None]


def test_all_that_is_kept_has_what_is_unread_and_alerts_that_were_read(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    ada.run(ada.messages.alert("build", "before"))
    bob.run(bob.messages.subscribe("build", senders=["ada"]))
    bob.run(bob.messages.alert("build", "not asked for"))
    read = sent(ada, ada.messages.alert("build", "read"))
    ada.run(ada.messages.alert("build", "unread"))
    ada.run(ada.messages.alert("other", "nor this"))
    ada.start(ada.messages.query("?rust", "able?", timeout=60, hold=True))
    bob.run(bob.messages.ack(read))
    shown = bob.run(bob.messages.inbox(all=True, can=["rust"])).messages
    assert [(each.data, each.read) for each in shown] == [
        ("read", True), ("unread", False), ("able?", False),
    ]  # fmt: skip
    assert found(bob, can=["rust"]) == ["unread", "able?"]


def test_a_thread_has_both_sides_of_it(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    first = sent(ada, ada.messages.send("bob", "question", subject="plan"))
    answer = sent(bob, bob.messages.send("ada", "answer", reply_to=first, acks=[first]))
    ada.run(ada.messages.send("bob", "thanks", reply_to=answer))
    ada.run(ada.messages.send("bob", "unrelated"))
    for each in (ada, bob):
        assert found(each, thread=first) == ["question", "answer", "thanks"]


def test_our_own_mail_is_shown_with_that_to_all(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    ada.run(ada.messages.send("bob", "to bob"))
    ada.run(ada.messages.send("all", "to all"))
    bob.run(bob.messages.send("ada", "to ada"))
    assert found(ada, sent=True) == ["to bob", "to all"]


def test_our_own_mail_to_all_is_among_all_that_is_kept_and_nothing_to_be_read(
    stage: Testbed,
) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    ada.run(ada.messages.send("all", "ours"))
    theirs = sent(bob, bob.messages.send("all", "theirs"))
    ada.run(ada.messages.ack(theirs))
    shown = ada.run(ada.messages.inbox(all=True)).messages
    assert [(each.data, each.read) for each in shown] == [("ours", False), ("theirs", True)]


def test_all_that_is_kept_says_what_became_of_questions(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    for id_ in ("qry_over", "qry_open", "qry_said", "qry_read"):
        timeout = 5 if id_ == "qry_over" else 60
        ada.start(ada.messages.query("bob", id_, timeout=timeout, id=id_))
    bob.run(bob.messages.reply("qry_said", "yes"))
    bob.run(bob.messages.ack("qry_read"))
    stage.clock.advance(6)
    shown = {each.id: each for each in bob.run(bob.messages.inbox(all=True)).messages}
    assert {id_: each.state for id_, each in shown.items()} == {
        "qry_over": "expired",
        "qry_open": "",
        "qry_said": "answered",
        "qry_read": "",
    }
    assert shown["qry_over"].expires_in is None
    assert shown["qry_open"].expires_in is not None
    query = decode.query(stage.store.read(keys.query("qry_over"))[keys.query("qry_over")])
    assert query is not None
    assert query.state == "open", "a look at all changes nothing"


def test_what_we_can_do_is_what_our_session_says(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.agents.status("idle", can=["review"]))
    ada.start(ada.messages.query("?review", "ok?", timeout=60, id="qry_1"))
    assert found(bob) == ["ok?"]
    assert found(bob, can=[]) == []
    acked = bob.run(bob.messages.ack("qry_1"))
    assert acked == Acknowledged(messages=("qry_1",))
    assert found(bob) == []


def test_a_wait_ends_with_what_comes_and_acknowledges_nothing(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    waits = bob.start(bob.messages.wait())
    ada.run(ada.messages.send("bob", 1))
    arrived = waits.run().result()
    assert isinstance(arrived, Arrived)
    assert [each.data for each in arrived.messages] == [1]
    assert waiting(bob) == [1]
    before = stage.store.read().revision
    assert isinstance(bob.run(bob.messages.wait(5)), Arrived)
    assert stage.store.read().revision == before


def test_a_wait_in_vain_ends_in_time_and_leaves_nothing(stage: Testbed) -> None:
    bob = stage.client("bob")
    assert isinstance(bob.run(bob.messages.wait(0)), NothingUnread)
    waits = bob.start(bob.messages.wait(5))
    key = keys.serving("bob", bob.someone.name)
    assert stage.store.read(key)[key] is not None
    stage.clock.advance(5)
    assert waits.run().result() == NothingUnread()
    assert stage.store.read(key)[key] is None


def test_a_wait_that_is_interrupted_leaves_nothing(stage: Testbed) -> None:
    bob = stage.client("bob")
    waits = bob.start(bob.messages.wait())
    assert any(isinstance(step, NextChanges) for step in waits.steps) or waits.asleep
    with pytest.raises(KeyboardInterrupt):
        waits.interrupt(KeyboardInterrupt()).result()
    key = keys.serving("bob", bob.someone.name)
    assert stage.store.read(key)[key] is None


def test_a_question_whose_time_is_up_is_not_shown_and_ended(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    ada.start(ada.messages.query("bob", "gone?", timeout=5, id="qry_1"))
    ada.start(ada.messages.query("?review", "gone?", timeout=5, id="qry_2", hold=True))
    ada.start(ada.messages.query("bob", "still?", timeout=60, id="qry_3"))
    assert found(bob, can=["review"]) == ["gone?", "gone?", "still?"]
    stage.clock.advance(6)
    assert found(bob, can=["review"]) == ["still?"]
    for id_ in ("qry_1", "qry_2"):
        query = decode.query(stage.store.read(keys.query(id_))[keys.query(id_)])
        assert query is not None
        assert query.state == "expired"
