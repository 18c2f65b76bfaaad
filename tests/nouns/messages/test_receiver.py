"""A receiver delivers each message in order until it is acknowledged, and then never again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.hypothesis_settings import budget
from tests.nouns.messages.helpers import came, said, sent, waiting

from interlock.core import keys
from interlock.errors import StoreBusy
from interlock.nouns.messages import decode
from interlock.nouns.messages.inbox_reader import InboxEntry
from interlock.nouns.messages.message import Acknowledged, Received
from interlock.nouns.messages.query import QueryAnswered
from interlock.nouns.messages.receiver import DeliveryQueue
from interlock.steps import NextChanges, Read
from interlock.store import Change, Put, Range, Txn
from interlock.testing.testbed import Client, Stepper, Testbed


@pytest.fixture(autouse=True)
def any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_RATE", "0")


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


def test_messages_of_all_kinds_come_in_the_order_of_their_commits(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.messages.subscribe("build"))
    early = bob.messages.receiver()
    assert said(bob, early) == []
    for number in range(0, 8, 4):
        ada.run(ada.messages.send("bob", number))
        ada.run(ada.messages.alert("build", number + 1))
        ada.run(ada.messages.send("all", number + 2))
        ada.run(ada.messages.share("bob", "note", number + 3))
    assert said(bob, early) == list(range(8))
    assert said(bob, bob.messages.receiver()) == list(range(8))


def test_it_wakes_with_the_commit_and_not_by_looking(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    waits = bob.start(bob.messages.receiver().take(None))
    assert waits.asleep
    assert waits.wakes == float("inf")
    ada.run(ada.messages.send("bob", 1))
    assert [each.data for each in waits.run().result()] == [1]


def test_the_urgent_come_first_though_many_wait(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    receiver = bob.messages.receiver()
    for number in range(100):
        ada.run(ada.messages.send("bob", number))
    ada.run(ada.messages.send("bob", "now", urgent=True))
    first = came(bob, receiver)
    assert [each.data for each in first] == ["now", *range(len(first) - 1)]
    ada.run(ada.messages.stop("bob", "stop"))
    rest = came(bob, receiver)
    assert [each.data for each in rest] == ["stop", *range(len(first) - 1, 100)]


def test_what_is_not_acknowledged_comes_again_with_its_count(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.messages.subscribe("build"))
    receiver = bob.messages.receiver(redeliver=60)
    ada.run(ada.messages.send("bob", "mail"))
    ada.run(ada.messages.alert("build", "alert"))
    first = came(bob, receiver)
    assert [each.attempt for each in first] == [1, 1]
    bob.run(receiver.ack([first[0].id]))
    stage.clock.advance(59)
    assert came(bob, receiver) == []
    stage.clock.advance(2)
    (again,) = came(bob, receiver)
    assert (again.id, again.data, again.attempt) == (first[1].id, "alert", 2)
    bob.run(receiver.ack([again.id]))
    stage.clock.advance(61)
    assert came(bob, receiver) == []


def test_a_sleeper_wakes_by_itself_for_what_is_to_come_again(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    receiver = bob.messages.receiver(redeliver=60)
    ada.run(ada.messages.send("bob", 1))
    came(bob, receiver)
    (again,) = bob.run(receiver.take(None))
    assert again.attempt == 2


def test_the_next_receiver_gets_at_once_what_the_last_one_left(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.messages.subscribe("build"))
    for number in range(3):
        ada.run(ada.messages.alert("build", number))
    first = bob.messages.receiver()
    got = came(bob, first)
    bob.run(first.ack([got[1].id]))
    first.close()
    restarted = stage.client("bob")
    assert said(restarted, restarted.messages.receiver()) == [0, 2]


def test_two_receivers_under_one_name_repeat_nothing_that_one_acknowledged(stage: Testbed) -> None:
    ada, bob, other = stage.client("ada"), stage.client("bob"), stage.client("bob")
    bob.run(bob.messages.subscribe("build"))
    mine, theirs = bob.messages.receiver(redeliver=60), other.messages.receiver(redeliver=60)
    came(bob, mine)
    came(other, theirs)
    ada.run(ada.messages.send("bob", "mail"))
    ada.run(ada.messages.alert("build", "alert"))
    got = came(bob, mine)
    assert said(other, theirs) == ["mail", "alert"]
    bob.run(mine.ack([each.id for each in got]))
    stage.clock.advance(61)
    assert came(other, theirs) == []
    ada.run(ada.messages.alert("build", "next"))
    (following,) = came(bob, mine)
    bob.run(mine.ack([following.id]))
    assert came(other, theirs) == []


def test_what_was_acknowledged_a_moment_ago_is_not_given_out_again(stage: Testbed) -> None:
    """Also if the receiver does not know of the acknowledgement yet."""
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.messages.subscribe("build"))
    receiver = bob.messages.receiver(redeliver=60)
    mail = sent(ada, ada.messages.send("bob", "mail"))
    alert = sent(ada, ada.messages.alert("build", "alert"))
    came(bob, receiver)
    stage.clock.advance(61)
    again = Stepper(receiver.take(0), bob.store, bob.clock)
    again.go()
    assert isinstance(again.steps[-1], NextChanges)
    bob.run(bob.messages.ack(mail, alert))
    assert again.run().result() == []


@pytest.mark.parametrize("after", range(8))
def test_what_is_acknowledged_while_all_is_read_anew_does_not_come_again(after: int) -> None:
    stage = Testbed()
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.messages.subscribe("build"))
    receiver = bob.messages.receiver()
    ada.run(ada.messages.send("bob", "mail"))
    ada.run(ada.messages.alert("build", "alert"))
    ids = [each.id for each in came(bob, receiver)]
    bob.run(bob.messages.subscribe("test"))
    anew = Stepper(receiver.take(0), bob.store, bob.clock)
    for _ in range(after):
        anew.go()
    bob.run(receiver.ack(ids))
    assert anew.run().result() == []


def test_acknowledging_twice_and_from_two_receivers_is_reported(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.messages.subscribe("build"))
    receiver = bob.messages.receiver()
    ada.run(ada.messages.send("bob", "mail"))
    ada.run(ada.messages.alert("build", "alert"))
    ids = tuple(each.id for each in came(bob, receiver))
    unseen = sent(ada, ada.messages.send("bob", "unseen"))
    assert bob.run(bob.messages.ack(ids[0])) == Acknowledged(messages=ids[:1])
    done = bob.run(receiver.ack([*ids, unseen]))
    assert done == Acknowledged(messages=(ids[1], unseen), already=ids[:1])
    assert waiting(bob) == []


def test_a_batch_is_acknowledged_with_one_commit(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.messages.subscribe("build"))
    for number in range(10):
        ada.run(ada.messages.send("bob", number))
        ada.run(ada.messages.alert("build", number))
    receiver = bob.messages.receiver()
    ids = [each.id for each in came(bob, receiver)]
    before = stage.store.read().revision
    bob.run(receiver.ack(ids))
    assert stage.store.read().revision == before + 1


def test_acknowledged_in_order_a_cursor_stays_one_number(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.messages.subscribe("build", where={"ok": False}))
    receiver = bob.messages.receiver()
    for number in range(20):
        ada.run(ada.messages.alert("build", {"ok": number % 3 == 0}))
        for each in came(bob, receiver):
            bob.run(receiver.ack([each.id]))
    key = keys.cursor("bob", "build")
    item = stage.store.read(key)[key]
    assert item is not None
    assert b"also" not in item.value


def test_mail_to_all_comes_to_all_but_its_sender(stage: Testbed) -> None:
    ada, again, bob = stage.client("ada"), stage.client("ada"), stage.client("bob")
    open_before = ada.messages.receiver()
    assert said(ada, open_before) == []
    ada.run(ada.messages.send("all", "moved"))
    assert said(bob, bob.messages.receiver()) == waiting(bob) == ["moved"]
    for each in (ada, again):
        assert said(each, each.messages.receiver()) == waiting(each) == []
    assert said(ada, open_before) == []
    assert [each.data for each in ada.run(ada.messages.inbox(sent=True)).messages] == ["moved"]


def test_a_cursor_passes_what_its_reader_sent_to_all_itself(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    receiver = ada.messages.receiver()
    for number in range(3):
        ada.run(ada.messages.send("all", "own"))
        bob.run(bob.messages.send("all", number))
    got = came(ada, receiver)
    ada.run(receiver.ack([each.id for each in got]))
    cursor = decode.cursor(stage.store.read(keys.cursor("ada", "*"))[keys.cursor("ada", "*")])
    assert cursor is not None
    assert ([each.data for each in got], cursor.also) == ([0, 1, 2], ())
    assert cursor.after >= got[-1].seq


def test_a_subscriber_gets_its_own_alerts(stage: Testbed) -> None:
    ada = stage.client("ada")
    ada.run(ada.messages.subscribe("build"))
    ada.run(ada.messages.alert("build", "red"))
    assert said(ada, ada.messages.receiver()) == waiting(ada) == ["red"]


def test_subscriptions_that_change_under_it_are_followed(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    receiver = bob.messages.receiver()
    ada.run(ada.messages.send("bob", "held"))
    (held,) = came(bob, receiver)
    ada.run(ada.messages.alert("build", "too early"))
    bob.run(bob.messages.subscribe("build"))
    ada.run(ada.messages.alert("build", 1))
    ada.run(ada.messages.alert("test", "not asked for"))
    assert said(bob, receiver) == [1]
    bob.run(bob.messages.unsubscribe("build"))
    ada.run(ada.messages.alert("build", "too late"))
    assert said(bob, receiver) == []
    assert bob.run(receiver.ack([held.id])) == Acknowledged(messages=(held.id,))


def test_a_cursor_does_not_pass_messages_that_a_wider_filter_admits(
    stage: Testbed,
) -> None:
    """Changes of topics and subscriptions may arrive in any order: here the latter come last."""
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.messages.subscribe("build", where={"ok": False}))
    receiver = bob.messages.receiver()
    ada.run(ada.messages.alert("build", {"ok": False}))
    (first,) = came(bob, receiver)
    ada.run(ada.messages.alert("build", {"ok": False}))
    (second,) = came(bob, receiver)
    bob.run(bob.messages.subscribe("build"))
    ada.run(ada.messages.alert("build", {"ok": True}))
    watch = receiver._watch
    assert watch is not None
    told = [each for each in watch.take(0) if isinstance(each, Change)]
    bob.run(receiver._apply([each for each in told if each.key.startswith(keys.TOPICS)]))
    bob.run(receiver.ack([first.id, second.id]))
    assert waiting(bob) == [{"ok": True}]
    assert said(bob, bob.messages.receiver()) == [{"ok": True}]


def test_a_subscription_that_changes_while_all_is_acknowledged_does_not_deafen_it(
    stage: Testbed,
) -> None:
    """Another thread acknowledges the only message to deliver."""
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.messages.subscribe("build"))
    receiver = bob.messages.receiver()
    first = sent(ada, ada.messages.alert("build", 1))
    takes = Stepper(receiver.take(None), bob.store, bob.clock)
    while first not in receiver._queue:
        takes.go()
    bob.run(bob.messages.subscribe("build", senders=["ada"]))
    bob.run(bob.messages.ack(first))
    receiver.discard([first])
    assert takes.run().asleep
    took = [each for each in takes.steps if isinstance(each, NextChanges)]
    assert not took, "it does not listen to what it closed"
    ada.run(ada.messages.alert("build", 2))
    assert [each.data for each in takes.run().result()] == [2]


def test_what_one_unsubscribed_from_does_not_come_again(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.messages.subscribe("build"))
    receiver = bob.messages.receiver(redeliver=60)
    ada.run(ada.messages.alert("build", 1))
    came(bob, receiver)
    bob.run(bob.messages.unsubscribe("build"))
    stage.clock.advance(61)
    assert came(bob, receiver) == []


def test_a_message_between_the_read_and_the_watch_is_delivered(stage: Testbed) -> None:
    """Another agent's step between any two of a receiver's own."""
    for after in range(8):
        stage = Testbed()
        ada, bob = stage.client("ada"), stage.client("bob")
        receiver = bob.messages.receiver()
        begins = Stepper(receiver.take(0), bob.store, bob.clock)
        for _ in range(after):
            begins.go()
        bob.run(bob.messages.subscribe("build"))
        ada.run(ada.messages.send("bob", 1))
        ada.run(ada.messages.alert("build", 2))
        ada.run(ada.messages.send("bob", 3))
        got = [each.data for each in begins.run().result()]
        got += said(bob, receiver)
        assert got == [1, 2, 3], after


def test_a_gap_in_history_is_read_over(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.messages.subscribe("build"))
    receiver = bob.messages.receiver()
    ada.run(ada.messages.send("bob", 0))
    (held,) = came(bob, receiver)
    for number in range(1, 4):
        ada.run(ada.messages.alert("build", number))
    while stage.store.trim(stage.store.read().revision):
        pass
    assert said(bob, receiver) == [1, 2, 3]
    bob.run(receiver.ack([held.id]))
    assert came(bob, receiver) == []


@pytest.mark.parametrize("after", range(1, 10))
def test_trouble_at_any_step_loses_and_doubles_nothing(stage: Testbed, after: int) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.messages.subscribe("build"))
    receiver = bob.messages.receiver()
    ada.run(ada.messages.alert("build", 0))
    (held,) = came(bob, receiver)
    ada.run(ada.messages.send("bob", 1))
    ada.run(ada.messages.alert("build", 2))
    hears = Stepper(receiver.take(0), bob.store, bob.clock)
    for _ in range(after):
        hears.go()
    struck = not hears.done
    if struck:
        with pytest.raises(StoreBusy):
            hears.interrupt(StoreBusy("another client holds the lock")).result()
    bob.run(receiver.ack([held.id]))
    assert waiting(bob) == [1, 2]
    assert said(bob, receiver) == ([1, 2] if struck else [])


def test_trouble_while_it_reads_anew_lets_no_cursor_pass_what_is_unread(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.messages.subscribe("build"))
    receiver = bob.messages.receiver()
    for number in range(120):
        ada.run(ada.messages.alert("build", number))
    got = came(bob, receiver)
    bob.run(bob.messages.subscribe("test"))
    hears = Stepper(receiver.take(0), bob.store, bob.clock)
    hears.go()
    with pytest.raises(StoreBusy):
        hears.interrupt(StoreBusy("another client holds the lock")).result()
    bob.run(receiver.ack([each.id for each in got]))
    assert waiting(bob) == list(range(len(got), 120))


def trimmed(stage: Testbed, topic: str, ids: list[str], upto: int, count: int) -> None:
    """Delete messages of a topic as retention does."""
    note = Put(keys.trimmed(topic), b'{"upto":%d,"count":%d}' % (upto, count))
    gone = tuple(keys.topic(topic, id_) for id_ in ids)
    stage.store.commit(Txn(id=f"trm_{upto}", entry=b"{}", puts=(note,), deletes=gone))


def test_a_late_subscriber_learns_that_it_missed_messages(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.messages.subscribe("build"))
    alerts = [sent(ada, ada.messages.alert("build", number)) for number in range(3)]
    upto = stage.store.read(Range(keys.topic("build"))).ranges
    (items,) = upto.values()
    trimmed(stage, "build", alerts[:2], items[1].created, 2)
    receiver = bob.messages.receiver()
    missed, last = came(bob, receiver)
    assert (missed.kind, missed.type, last.data) == ("missed", "build", 2)
    assert missed.data["trimmed"] == 2
    bob.run(receiver.ack([missed.id, last.id]))
    assert said(bob, bob.messages.receiver()) == []


def test_what_was_unread_is_missed_though_a_later_one_was_acknowledged(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.messages.subscribe("build"))
    alerts = [sent(ada, ada.messages.alert("build", number)) for number in range(3)]
    last = stage.store.read(keys.topic("build", alerts[2]))[keys.topic("build", alerts[2])]
    assert last is not None
    bob.run(bob.messages.ack(alerts[2]))
    trimmed(stage, "build", alerts, last.created, 3)
    receiver = bob.messages.receiver()
    (missed,) = came(bob, receiver)
    assert missed.kind == "missed"
    assert [each.kind for each in bob.run(bob.messages.inbox()).messages] == ["missed"]
    assert bob.run(receiver.ack([missed.id])) == Acknowledged(messages=(missed.id,))
    assert bob.run(bob.messages.ack(missed.id)) == Acknowledged(already=(missed.id,))
    assert came(bob, receiver) == came(bob, bob.messages.receiver()) == []


def test_a_delivered_message_that_is_deleted_is_reported_instead_of_redelivered(
    stage: Testbed,
) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.messages.subscribe("build"))
    receiver = bob.messages.receiver(redeliver=60)
    alert = sent(ada, ada.messages.alert("build", 1))
    (got,) = came(bob, receiver)
    trimmed(stage, "build", [alert], got.seq, 1)
    stage.clock.advance(61)
    (missed,) = bob.run(receiver.take(5))
    assert missed.kind == "missed"
    bob.run(receiver.ack([missed.id]))
    assert bob.run(receiver.take(5)) == []


def test_a_queued_message_that_is_deleted_is_reported(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.messages.subscribe("build"))
    receiver = bob.messages.receiver()
    alerts = [sent(ada, ada.messages.alert("build", number)) for number in range(90)]
    first = came(bob, receiver)
    (items,) = stage.store.read(Range(keys.topic("build"))).ranges.values()
    trimmed(stage, "build", alerts[:85], items[84].created, 85)
    missed, *rest = came(bob, receiver)
    assert missed.kind == "missed"
    assert [each.data for each in rest] == list(range(85, 90))
    ids = [each.id for each in (*first, missed, *rest)]
    assert bob.run(receiver.ack(ids)) == Acknowledged(messages=tuple(ids))
    assert waiting(bob) == []


def test_a_newcomer_has_missed_no_mail_to_all_from_before_it_was_there(stage: Testbed) -> None:
    ada = stage.client("ada")
    old = sent(ada, ada.messages.send("all", "old"))
    trimmed(stage, "*", [old], stage.store.read().revision, 1)
    stranger = stage.client("bob", ttl=None)
    assert waiting(stranger) == []
    bob = stage.client("bob")
    assert waiting(bob) == said(bob, bob.messages.receiver()) == []
    new = sent(ada, ada.messages.send("all", "new"))
    trimmed(stage, "*", [new], stage.store.read().revision, 2)
    assert [each.kind for each in came(bob, bob.messages.receiver())] == ["missed"]


def test_read_messages_are_deleted_without_a_notice(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.messages.subscribe("build"))
    receiver = bob.messages.receiver()
    alert = sent(ada, ada.messages.alert("build", 1))
    (got,) = came(bob, receiver)
    trimmed(stage, "build", [alert], got.seq, 1)
    assert came(bob, receiver) == []
    assert bob.run(receiver.ack([got.id])) == Acknowledged(messages=(got.id,))
    assert came(bob, bob.messages.receiver()) == []


def test_questions_to_an_ability_end_for_all_with_the_first_answer(stage: Testbed) -> None:
    ada, bob, eve = (stage.client(name) for name in ("ada", "bob", "eve"))
    for each in (bob, eve):
        each.run(each.agents.status("idle", can=["review"]))
    asks = ada.start(ada.messages.query("?review", "ok?", timeout=600))
    bobs, eves = (each.messages.receiver(can=["review"], redeliver=60) for each in (bob, eve))
    (question,) = came(bob, bobs)
    assert [each.id for each in came(eve, eves)] == [question.id]
    bob.run(bob.messages.reply(question.id, "yes"))
    answer = asks.run().result()
    assert isinstance(answer, QueryAnswered)
    assert (answer.answer, answer.by) == ("yes", "bob")
    stage.clock.advance(61)
    assert came(eve, eves) == []
    assert came(bob, bobs) == []


def test_an_agent_that_can_do_everything_gets_every_question(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.agents.status("idle", can=["*"]))
    receiver = bob.messages.receiver(can=["*"])
    ada.start(ada.messages.query("?old", "before", timeout=60))
    assert said(bob, receiver) == ["before"]
    ada.start(ada.messages.query("?new", "after", timeout=60))
    ada.run(ada.messages.alert("build", "not asked for"))
    (question,) = came(bob, receiver)
    assert question.data == "after"
    bob.run(receiver.ack([question.id]))
    assert said(bob, bob.messages.receiver(can=["*"])) == ["before"]


def test_an_expired_question_is_ended_by_the_receiver_that_finds_it(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    ada.start(ada.messages.query("bob", "anybody?", timeout=5, id="qry_1"))
    stage.clock.advance(6)
    assert came(bob, bob.messages.receiver()) == []
    assert stage.store.read(keys.unread("bob", "qry_1")).items == {"unread/bob/qry_1": None}
    assert b'"expired"' in stage.store.read(keys.query("qry_1"))[keys.query("qry_1")].value  # type: ignore[union-attr]


def test_a_question_that_was_withdrawn_does_not_come(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    receiver = bob.messages.receiver(redeliver=60)
    ada.start(ada.messages.query("bob", "?", timeout=600, id="qry_1"))
    came(bob, receiver)
    ada.run(ada.messages.cancel("qry_1"))
    stage.clock.advance(61)
    assert came(bob, receiver) == []


def test_ten_thousand_that_wait_are_given_out_in_portions(stage: Testbed) -> None:
    """Only their keys are held: each body is read once, on delivery."""
    bob = stage.client("bob")
    puts = [
        (Put(keys.message(f"msg_{number:05d}"), _body(number)), Put(_mark(number), b"{}"))
        for number in range(10_000)
    ]
    for start in range(0, len(puts), 500):
        some = tuple(put for pair in puts[start : start + 500] for put in pair)
        stage.store.commit(Txn(id=f"txn_{start}", entry=b"{}", puts=some))
    receiver, got = bob.messages.receiver(), list[Received]()
    while found := came(bob, receiver):
        assert len(found) <= 100
        got += found
        bob.run(receiver.ack([each.id for each in found]))
    assert [each.data for each in got] == list(range(10_000))


def _body(number: int) -> bytes:
    text = '{"id":"msg_%05d","kind":"mail","from":"ada","at":1.0,"to":["bob"],"data":%d}'
    return (text % (number, number)).encode()


def _mark(number: int) -> str:
    return keys.unread("bob", f"msg_{number:05d}")


def test_idle_it_asks_the_store_for_nothing(stage: Testbed) -> None:
    _, bob = stage.client("ada"), stage.client("bob")
    receiver = bob.messages.receiver()
    came(bob, receiver)
    idle = Stepper(receiver.take(5), bob.store, bob.clock)
    idle.run()
    stage.clock.advance(5)
    idle.run()
    assert {type(step) for step in idle.steps} == {NextChanges}


def test_what_comes_is_had_with_one_read(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.messages.subscribe("build"))
    receiver = bob.messages.receiver()
    came(bob, receiver)
    ada.run(ada.messages.send("bob", 1))
    ada.run(ada.messages.alert("build", 2))
    hears = Stepper(receiver.take(0), bob.store, bob.clock)
    assert [each.data for each in hears.run().result()] == [1, 2]
    assert len([step for step in hears.steps if isinstance(step, Read)]) == 1


@settings(max_examples=budget(20))
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.sampled_from(("join", "drop")))))
def test_a_line_has_the_urgent_first_then_the_oldest(
    acts: list[tuple[bool, int, str]],
) -> None:
    line, model = DeliveryQueue(), dict[str, InboxEntry]()
    for urgent, seq, act in acts:
        found = InboxEntry(id=str(seq), seq=seq, key="", urgent=urgent)
        if act == "join":
            line.add(found)
            model.setdefault(found.id, found)
        else:
            assert line.drop(found.id) == (model.pop(found.id, None) is not None)
        order = sorted(model.values(), key=lambda each: each.order)
        assert line.first(3) == order[:3]
        assert len(line) == len(model)


class Crew:
    """Agents that send at random, and one that receives with random restarts."""

    def __init__(self) -> None:
        self.stage = Testbed()
        self.senders = [self.stage.client(name) for name in ("ada", "eve")]
        self.bob: Client = self.stage.client("bob")
        self.bob.run(self.bob.messages.subscribe("build"))
        self.receiver = self.bob.messages.receiver(redeliver=60)
        self.sent: dict[str, list[str]] = {"ada": [], "eve": []}
        self.got: dict[str, list[str]] = {"ada": [], "eve": []}
        self.held: list[str] = []
        self.acked: set[str] = set()

    def send(self, number: int) -> None:
        sender = self.senders[number % 2]
        messages = sender.messages
        op = messages.send("bob", number) if number % 3 else messages.alert("build", number)
        self.sent[sender.context.me().actor.agent].append(sent(sender, op))

    def receive(self) -> None:
        for each in came(self.bob, self.receiver):
            assert each.id not in self.acked, "an acknowledged message was redelivered"
            if each.id not in self.got[each.sender]:
                self.got[each.sender].append(each.id)
            self.held.append(each.id)

    def ack(self, number: int) -> None:
        some = self.held[number % 3 :: 2]
        self.bob.run(self.receiver.ack(list(dict.fromkeys(some))))
        self.acked |= set(some)
        self.held = [each for each in self.held if each not in self.acked]

    def restart(self) -> None:
        self.receiver.close()
        self.bob = self.stage.client("bob")
        self.receiver = self.bob.messages.receiver(redeliver=60)
        self.held = []


@settings(max_examples=budget(15))
@given(st.lists(st.tuples(st.integers(0, 11), st.sampled_from("sssrrakt")), max_size=40))
def test_each_comes_once_and_in_order_whatever_is_restarted(acts: list[tuple[int, str]]) -> None:
    crew = Crew()
    for number, act in [*acts, (0, "k"), (0, "r"), (0, "r")]:
        match act:
            case "s":
                crew.send(number)
            case "r":
                crew.receive()
            case "a":
                crew.ack(number)
            case "t":
                crew.stage.clock.advance(61)
            case _:
                crew.restart()
    assert crew.got == crew.sent
