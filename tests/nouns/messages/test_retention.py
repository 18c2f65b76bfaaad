"""Retention of messages: unread ones stay, no deletion is silent, and passes are bounded."""

from __future__ import annotations

import itertools
from contextlib import closing
from pathlib import Path

import pytest
from tests.nouns.record.records import agree

import interlock
from interlock.core import keys
from interlock.nouns.messages import decode, retention, retention_rules
from interlock.nouns.messages.inbox_rules import TopicTrim
from interlock.nouns.messages.message import Inbox, MessageExists, Sent
from interlock.nouns.messages.query import Late, QueryAnswered, Replied, TimedOut, UnknownQuery
from interlock.nouns.messages.retention_rules import RetentionItem
from interlock.runtime.housekeeping import Maintained
from interlock.runtime.identity import Actor
from interlock.runtime.retention import RetentionLimits
from interlock.steps import Read
from interlock.store import Put, Range, Txn
from interlock.stores import open_store
from interlock.testing.audit import audit
from interlock.testing.testbed import Client, Stepper, Testbed

DAY = 86400.0


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


def pair(stage: Testbed) -> tuple[Client, Client]:
    """Two agents without a session, so that moving the clock by days ends nothing."""
    ada, bob = stage.client("ada", ttl=None), stage.client("bob", ttl=None)
    for each in (ada, bob):
        each.run(each.messages.subscribe("hello"))
    return ada, bob


def sent(client: Client, to: str | tuple[str, ...], body: str = "") -> str:
    outcome = client.run(client.messages.send(to, body))
    assert isinstance(outcome, Sent)
    client.clock.advance(1)
    return outcome.message


def alerts(client: Client, count: int) -> list[str]:
    done = [client.run(client.messages.alert("built", number)) for number in range(count)]
    return [each.message for each in done if isinstance(each, Sent)]


def folder(stage: Testbed, prefix: str) -> list[str]:
    page = Range(prefix)
    return [item.key for item in stage.store.read(page).ranges[page]]


def maintained(client: Client) -> int:
    return client.run(client.fleet.maintain()).forgotten


def unread(client: Client) -> Inbox:
    return client.run(client.messages.inbox())


def test_a_message_goes_with_the_last_mark_of_it(stage: Testbed) -> None:
    ada, bob = pair(stage)
    first = sent(ada, ("bob", "ada"))
    bob.run(bob.messages.ack(first))
    stage.clock.advance(DAY + 1)
    assert maintained(ada) == 2, "what bob read, and what ada sent"
    assert folder(stage, keys.MESSAGES) == [keys.message(first)], "ada has not read it"
    ada.run(ada.messages.ack(first))
    assert maintained(ada) == 0
    stage.clock.advance(DAY + 1)
    assert maintained(ada) == 1
    assert [folder(stage, each) for each in (keys.MESSAGES, keys.READ, keys.SENT)] == [[], [], []]


def test_unread_messages_are_never_deleted(stage: Testbed) -> None:
    ada, bob = pair(stage)
    first = sent(ada, "bob", "still here?")
    ada.run(ada.messages.share("bob", "fact", {"x": 1}))
    stage.clock.advance(400 * DAY)
    assert maintained(ada) == 1, "that ada sent it"
    assert [each.id for each in unread(bob).messages][:1] == [first]
    assert len(unread(bob).messages) == 2


def test_the_newest_read_messages_are_kept(stage: Testbed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_KEPT", "2")
    ada, bob = pair(stage)
    ids = [sent(ada, "bob") for _ in range(5)]
    bob.run(bob.messages.ack(*ids))
    assert maintained(ada) == 6, "three that were read, and three that were sent"
    assert folder(stage, keys.MESSAGES) == sorted(map(keys.message, ids[3:]))
    kept = bob.run(bob.messages.inbox(all=True)).messages
    assert [each.id for each in kept] == ids[3:]
    assert audit(stage.store) == []


def test_a_chosen_id_is_taken_for_as_long_as_messages_are_kept_and_no_longer(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_KEPT", "1")
    monkeypatch.setattr(retention, "MOST_PAGE", 2)
    ada, bob = pair(stage)
    ids = [f"msg_{number}" for number in range(5)]
    for id_ in ids:
        ada.run(ada.messages.share("bob", "note", id=id_))
    bob.run(bob.messages.ack(*ids))
    assert maintained(ada) == 4
    assert ada.run(ada.messages.share("bob", "note", id=ids[0])) == MessageExists(message=ids[0])
    stage.clock.advance(DAY + 1)
    maintained(ada)
    assert folder(stage, keys.IDS) == []
    assert isinstance(ada.run(ada.messages.share("bob", "note", id=ids[0])), Sent)
    assert audit(stage.store) == []


def test_small_parts_of_a_round_come_to_every_chosen_id(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "MOST_PAGE", 2)
    monkeypatch.setattr(retention, "SMALL_PASS_READS", 2)
    monkeypatch.setattr(retention, "SMALL_PASS", 2)
    ada, _ = pair(stage)
    for number in range(7):
        ada.run(ada.messages.alert("built", id=f"msg_{number}"))
    stage.clock.advance(DAY + 1)
    ada.run(ada.messages.alert("built", id="msg_a"))
    passes = retention.MessageRetention(ada.runner, ada.messages.limits)
    for _ in range(20):
        ada.run(passes.some(Actor("ada")))
    assert folder(stage, keys.IDS) == [keys.chosen_id("msg_a")]


def test_a_topic_of_which_more_is_kept_than_is_walked_at_once_is_trimmed_by_count(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_ALERTS", "6")
    monkeypatch.setattr(retention, "_READ_AT_ONCE", 4)
    monkeypatch.setattr(retention, "_FIRST_PAGE", 2)
    ada, _ = pair(stage)
    ids = alerts(ada, 9)
    maintained(ada)
    assert folder(stage, keys.topic("built")) == sorted(keys.topic("built", id_) for id_ in ids[3:])


def looked_at(client: Client, passes: retention.MessageRetention) -> int:
    """How many alerts a small pass reads."""
    passes._position = (retention.FOLDERS.index(keys.TOPICS), "")
    hand = Stepper(passes.some(Actor("ada")), client.store, client.clock).run()
    pages = [ref for step in hand.steps if isinstance(step, Read) for ref in step.refs]
    return sum(isinstance(each, Range) and each.prefix == keys.topic("built") for each in pages)


def test_small_parts_of_a_round_walk_a_topic_only_when_much_can_have_come(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_ALERTS", "8")
    monkeypatch.setattr(retention, "_FIRST_PAGE", 2)
    monkeypatch.setattr(retention, "SMALL_PASS_GROUPS", 1)
    ada, _ = pair(stage)
    passes = retention.MessageRetention(ada.runner, ada.messages.limits)
    alerts(ada, 12)
    looked_at(ada, passes)
    assert len(folder(stage, keys.topic("built"))) == 8
    assert looked_at(ada, passes) == 1
    alerts(ada, 1)
    assert looked_at(ada, passes) == 1
    alerts(ada, 3)
    assert looked_at(ada, passes) > 1
    assert len(folder(stage, keys.topic("built"))) == 8
    stage.clock.advance(DAY + 1)
    assert looked_at(ada, passes) > 1
    assert folder(stage, keys.topic("built")) == []


def test_a_topic_is_walked_only_when_much_can_have_come_on_every_engine(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if a revision is a time, and does not count commits."""
    monkeypatch.setenv("INTERLOCK_MESSAGE_ALERTS", "8")
    monkeypatch.setattr(retention, "_FIRST_PAGE", 2)
    monkeypatch.setattr(retention, "SMALL_PASS_GROUPS", 1)
    with closing(open_store(url)) as store:
        ada = Testbed().client("ada", ttl=None, store=store)
        passes = retention.MessageRetention(ada.runner, ada.messages.limits)
        alerts(ada, 12)
        assert looked_at(ada, passes) > 1
        alerts(ada, 1)
        assert looked_at(ada, passes) == 1
        alerts(ada, 3)
        assert looked_at(ada, passes) > 1


def test_a_topic_is_walked_once_though_its_trimming_takes_several_parts(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_ALERTS", "2")
    monkeypatch.setattr(retention, "SMALL_PASS", 2)
    monkeypatch.setattr(retention, "SMALL_PASS_GROUPS", 1)
    ada, _ = pair(stage)
    passes = retention.MessageRetention(ada.runner, ada.messages.limits)
    ids = alerts(ada, 8)
    assert [looked_at(ada, passes) for _ in range(3)] == [2, 0, 0]
    assert folder(stage, keys.topic("built")) == sorted(keys.topic("built", id_) for id_ in ids[6:])


def test_an_answer_as_large_as_its_question_may_be_is_kept_beside_it_and_goes_with_it(
    stage: Testbed,
) -> None:
    ada, bob = pair(stage)
    large = "x" * 1_000_000
    asks = ada.start(ada.messages.query("bob", large, id="qry_1", timeout=60))
    bob.run(bob.messages.reply("qry_1", large.upper()))
    got = asks.run().result()
    assert isinstance(got, QueryAnswered)
    assert got.answer == large.upper()
    again = ada.run(ada.messages.query("bob", large, id="qry_1"))
    cached = ada.run(ada.messages.query("bob", large, cached=60))
    assert [each.answer for each in (again, cached) if isinstance(each, QueryAnswered)] == [
        got.answer
    ] * 2
    assert isinstance(bob.run(bob.messages.reply("qry_1", large.upper())), Replied)
    assert isinstance(bob.run(bob.messages.reply("qry_1", large)), Late)
    stage.clock.advance(DAY + 61)
    maintained(ada)
    assert folder(stage, keys.QUERIES) + folder(stage, keys.REPLIES) == []
    assert audit(stage.store) == []


def test_a_subscriber_that_missed_deleted_messages_gets_a_notice(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_ALERTS", "2")
    ada, bob, cleo = *pair(stage), stage.client("cleo", ttl=None)
    for each in (bob, cleo):
        each.run(each.messages.subscribe("built"))
    ids = alerts(ada, 3)
    cleo.run(cleo.messages.ack(*ids))
    ids += alerts(ada, 2)
    assert maintained(ada) == 3
    missed, *left = unread(bob).messages
    assert (missed.kind, missed.type, missed.data["trimmed"]) == ("missed", "built", 3)
    assert [each.id for each in left] == ids[3:]
    assert [each.id for each in unread(cleo).messages] == ids[3:], "she had read the others"
    bob.run(bob.messages.ack(missed.id))
    assert [each.id for each in unread(bob).messages] == ids[3:]


def test_a_notice_says_whether_a_filter_may_have_dropped_the_messages(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_ALERTS", "2")
    ada, bob, cleo = *pair(stage), stage.client("cleo", ttl=None)
    bob.run(bob.messages.subscribe("built", senders=["eve"]))
    cleo.run(cleo.messages.subscribe("built"))
    alerts(ada, 3)
    assert maintained(ada) == 1
    told = [unread(each).messages[0] for each in (bob, cleo)]
    assert [(each.kind, each.data["filtered"]) for each in told] == [
        ("missed", True),
        ("missed", False),
    ]


def test_a_sender_does_not_miss_its_own_mail_to_all(stage: Testbed) -> None:
    ada, bob = pair(stage)
    for each in (bob, ada):
        sent(each, "all")
        stage.clock.advance(DAY + 1)
        maintained(ada)
    assert [each.kind for each in unread(bob).messages] == ["missed"]
    (missed,) = unread(ada).messages
    assert missed.kind == "missed", "that of bob"
    ada.run(ada.messages.ack(missed.id))
    for _ in range(2):
        sent(ada, "all")
        stage.clock.advance(DAY + 1)
        maintained(bob)
        assert unread(ada).messages == ()
    sent(bob, "all")
    stage.clock.advance(DAY + 1)
    maintained(bob)
    assert [each.kind for each in unread(ada).messages] == ["missed"]


@pytest.mark.parametrize("cut", range(5))
def test_each_sender_learns_of_deletions_without_its_own_messages(cut: int) -> None:
    for senders in itertools.product("abc", repeat=4):
        marks = [RetentionItem(f"k{at}", at, 0.0, sender) for at, sender in enumerate(senders, 1)]
        trimmed = None
        for some in filter(None, (marks[:cut], marks[cut:])):
            (put,) = retention_rules.trim("*", some, trimmed).puts
            assert isinstance(put.value, TopicTrim)
            trimmed = put.value
        assert trimmed is not None
        assert (trimmed.count, trimmed.missing()) == (4, 4)
        for reader in "abcd":
            others = [each.created for each in marks if each.sender != reader]
            assert trimmed.missing(reader) == max(others, default=0)


def test_a_later_subscriber_gets_no_notice(stage: Testbed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_ALERTS", "0")
    ada, bob = pair(stage)
    alerts(ada, 3)
    assert maintained(ada) == 3
    bob.run(bob.messages.subscribe("built", last=5))
    assert unread(bob).messages == ()


def test_two_passes_at_once_leave_nothing_behind(stage: Testbed) -> None:
    ada, bob = pair(stage)
    first = sent(ada, ("bob", "ada"))
    for each in (ada, bob):
        each.run(each.messages.ack(first))
    alerts(ada, 3)
    stage.clock.advance(DAY + 1)
    remotes = [stage.remote("one", ttl=None), stage.remote("two", ttl=None)]
    hands = [
        Stepper(each.messages.retention.run(Actor()), each.store, stage.clock) for each in remotes
    ]
    while not all(hand.done for hand in hands):
        for hand in hands:
            hand.go()
    assert sum(hand.result().forgotten for hand in hands) == 6
    told = decode.trimmed(stage.store.read(keys.trimmed("built"))[keys.trimmed("built")])
    assert told is not None
    assert told.count == 3
    assert [folder(stage, each) for each in (keys.MESSAGES, keys.READ, keys.SENT)] == [[], [], []]
    assert audit(stage.store) == []


def test_a_query_that_is_over_goes_with_the_note_of_its_answer(stage: Testbed) -> None:
    ada, bob = pair(stage)
    asked = ada.start(ada.messages.query("bob", "where?", id="qry_1"))
    bob.run(bob.messages.reply("qry_1", "here"))
    assert isinstance(asked.run().result(), QueryAnswered)
    assert folder(stage, keys.ANSWERS)
    stage.clock.advance(DAY + 1)
    maintained(ada)
    assert [folder(stage, each) for each in (keys.QUERIES, keys.ANSWERS, keys.READ)] == [[], [], []]
    assert isinstance(bob.run(bob.messages.reply("qry_1", "here")), UnknownQuery)


def test_a_question_whose_asker_was_killed_is_over_in_time(stage: Testbed) -> None:
    ada, bob = pair(stage)
    ada.start(ada.messages.query("bob", "where?", id="qry_1", timeout="10s"))
    stage.clock.advance(11)
    assert folder(stage, keys.UNREAD) == [keys.unread("bob", "qry_1")]
    assert bob.run(bob.fleet.maintain()).reclaimed > 0
    assert bob.run(bob.fleet.maintain()) == Maintained(), "and with it all that said so"
    assert unread(bob).messages == ()
    assert [folder(stage, each) for each in (keys.OPEN, keys.UNREAD)] == [[], []]
    again = ada.run(ada.messages.query("bob", "where?", id="qry_1"))
    assert isinstance(again, TimedOut)


def test_a_question_for_a_person_is_handed_over_in_time(stage: Testbed) -> None:
    ada, bob = pair(stage)
    ada.start(ada.messages.query("bob", "may I?", person=True, timeout="10s"))
    stage.clock.advance(11)
    bob.run(bob.fleet.maintain())
    (matter,) = bob.run(bob.messages.decisions())
    bob.run(bob.messages.resolve(matter.decision, "yes"))
    assert [each.data for each in unread(ada).messages] == ["yes"]
    stage.clock.advance(DAY + 1)
    maintained(ada)
    assert bob.run(bob.messages.decisions()) == ()


def test_turns_of_who_sends_no_more_and_dead_servers_go(stage: Testbed) -> None:
    from interlock.nouns.messages.presence import announce_receiver

    ada, bob = pair(stage)
    sent(ada, "bob")
    bob.run(announce_receiver(bob.runner, bob.context.me().actor, "c1", 10.0))
    assert ada.run(ada.fleet.maintain()) == Maintained()
    stage.clock.advance(DAY + 1)
    assert ada.run(ada.fleet.maintain()) == Maintained(reclaimed=1, forgotten=1)
    assert [folder(stage, each) for each in (keys.RATES, keys.SERVING)] == [[], []]


def test_unreadable_items_stay_and_stop_no_pass(stage: Testbed) -> None:
    ada, bob = pair(stage)
    ids = [sent(ada, "bob") for _ in range(2)]
    bob.run(bob.messages.ack(*ids))
    broken = (Put(keys.message(ids[0]), b"{"), Put(keys.query("qry_0"), b"["))
    stage.store.commit(Txn(id="hand", puts=broken, quiet=True))
    stage.clock.advance(DAY + 1)
    assert maintained(ada) == 2
    assert folder(stage, keys.MESSAGES) == [keys.message(ids[0])]


def test_a_small_part_goes_on_where_the_last_one_ended(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "SMALL_PASS_GROUPS", 3)
    readers = [stage.client(f"agent-{number}", ttl=None) for number in range(12)]
    ada = stage.client("ada", ttl=None)
    for each in readers:
        each.run(each.messages.subscribe("hello"))
        id_ = ada.run(ada.messages.share(each.context.me().actor.agent, "fact")).message  # type: ignore[union-attr]
        each.run(each.messages.ack(id_))
    stage.clock.advance(DAY + 1)
    parts = [ada.run(ada.messages.retention.some(Actor())).forgotten for _ in range(16)]
    assert max(parts) <= 3 * 100, "a group of turns is the largest here"
    assert folder(stage, keys.READ) == folder(stage, keys.MESSAGES) == []


def kept_up(client: Client) -> int:
    """Let the keeper run what is due; the number of runs."""
    turns = 0
    while client.context.housekeeping.due:
        client.run(client.context.keeper.run_due())
        turns += 1
    return turns


def test_a_busy_sender_makes_small_passes(stage: Testbed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_ALERTS", "10")
    monkeypatch.setenv("INTERLOCK_MESSAGE_RATE", "0")
    ada = stage.client("ada")
    alerts(ada, 1000)
    assert kept_up(ada) == 1 + 990 // retention.SMALL_PASS, "much to do: one part follows the other"
    assert len(folder(stage, keys.TOPICS)) == 10


def test_an_alert_stays_one_commit_during_a_pass(stage: Testbed) -> None:
    ada, bob = pair(stage)
    bob.run(bob.messages.subscribe("built"))
    before = stage.store.read().revision
    alerts(ada, 1)
    assert stage.store.read().revision == before + 1


def test_every_engine_deletes_the_same(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_KEPT", "1")
    monkeypatch.setenv("INTERLOCK_MESSAGE_ALERTS", "1")
    with (
        interlock.connect(url, "ada", join=False) as ada,
        interlock.connect(url, "bob", join=False) as bob,
    ):
        bob.messages.subscribe("built")
        ids = []
        for number in range(80):
            ids += [ada.messages.share("bob", "fact", number).message]  # type: ignore[union-attr]
        ada.messages.alert("built", 1)
        ada.messages.alert("built", 2)
        bob.messages.ack(*ids[:-1])
        bob.messages.ack(ids[-1])
        assert ada.maintain().forgotten == 80
        assert [each.kind for each in bob.messages.inbox().messages] == ["missed", "alert"]
        assert [each.id for each in bob.messages.inbox(kind="share", all=True).messages] == ids[-1:]
        assert ada.record.verify().exit_status == 0
        assert ada.health().healthy


@pytest.mark.parametrize(
    ("moments", "gone"),
    [
        ((0.0, 50.0, 99.0), 1),
        ((50.0, 0.0, 0.0), 0),  # slow clocks behind one that is right
        ((5000.0, 0.0, 99.0), 1),  # one that is far ahead stays, and keeps no other
        ((None, 0.0, None), 1),
    ],
)
def test_what_is_old_is_judged_in_the_order_of_commits(
    moments: tuple[float | None, ...], gone: int
) -> None:
    marks = [RetentionItem(str(number), number, at) for number, at in enumerate(moments)]
    assert (
        len(retention_rules.expired_items(marks, RetentionLimits(age=60.0, count=10), 100.0))
        == gone
    )


def test_a_record_of_messages_sent_read_and_deleted_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_KEPT", "1")
    monkeypatch.setenv("INTERLOCK_MESSAGE_ALERTS", "1")
    url = str(tmp_path / "store.db")
    with interlock.connect(url, "ada") as ada, interlock.connect(url, "bob") as bob:
        bob.messages.subscribe("built")
        for number in range(3):
            first = ada.messages.send(["bob", "ada"], number)
            assert isinstance(first, Sent)
            ada.messages.alert("built", number)
            bob.messages.ack(*[each.id for each in bob.messages.inbox().messages])
            ada.messages.send("bob", reply_to=first.message, acks=[first.message])
        ada.messages.query("bob", "late?", timeout=0)
        ada.messages.query("?nothing", "who?", person=True)
        (matter,) = ada.messages.decisions()
        bob.messages.resolve(matter.decision, "me")
        ada.maintain()
        found = agree(ada, tmp_path)
        assert (found.integrity, found.completeness, found.findings) == ("ok", "ok", ())
        assert found.truncation != "bad"


def test_the_rate_slots_of_a_sender_that_is_gone_expire(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_KEEP", "30d")
    ada, bob = pair(stage)
    alerts(ada, 3)
    stage.clock.advance(retention.RATE_SLOT_AGE + 1)
    alerts(bob, 2)
    maintained(bob)
    assert {key.split("/")[1] for key in folder(stage, keys.RATES)} == {"bob"}
    alerts(ada, 1)
    assert len(folder(stage, keys.RATES)) == 3, "one that comes back has a slot again"


def test_rate_slots_of_a_long_window_stay_as_long_as_it(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_WINDOW", "12h")
    ada, bob = pair(stage)
    alerts(ada, 3)
    stage.clock.advance(retention.RATE_SLOT_AGE + 1)
    maintained(bob)
    assert len(folder(stage, keys.RATES)) == 3
