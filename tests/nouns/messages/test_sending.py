"""A sender knows that its message will be delivered, or why not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.nouns.messages.helpers import came, said, sent, waiting

from interlock.core import keys
from interlock.core.decision import Decision
from interlock.core.entry import Entry
from interlock.errors import BadInput, BadName, TooLarge
from interlock.nouns.agents.session_rules import SenderPause
from interlock.nouns.messages import send_rules
from interlock.nouns.messages.message import (
    Acknowledged,
    AlreadyAcknowledged,
    Halted,
    InboxFull,
    Limited,
    MessageExists,
    NotSubscribed,
    Sent,
    Subscribed,
    UnknownAgent,
    UnknownMessages,
    Unsubscribed,
)
from interlock.nouns.messages.query import QueryAnswered, TimedOut
from interlock.runtime.attempt import DecideOp
from interlock.store import VOID, Log
from interlock.testing.testbed import Client, Stepper, Testbed


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


def limited(monkeypatch: pytest.MonkeyPatch, **settings: object) -> None:
    for key, value in settings.items():
        monkeypatch.setenv(f"INTERLOCK_MESSAGE_{key.upper()}", str(value))


def decide(client: Client, decided: Callable[[], Decision[Any]]) -> None:
    def deciding() -> DecideOp[Any]:
        yield ()
        return decided()

    client.run(client.runner.change(deciding, client.context.me().actor))


def test_mail_to_one_to_several_and_to_all_reaches_each_of_them(stage: Testbed) -> None:
    ada, bob, eve = (stage.client(name) for name in ("ada", "bob", "eve"))
    ada.run(ada.messages.send("bob", "one"))
    ada.run(ada.messages.send(["bob", "eve"], "two"))
    ada.run(ada.messages.send("all", "three"))
    assert waiting(bob) == ["one", "two", "three"]
    assert waiting(eve) == ["two", "three"]
    late = stage.client("zoe")
    assert waiting(late) == ["three"]


def test_each_reader_has_its_own_read_state(stage: Testbed) -> None:
    ada, bob, eve = (stage.client(name) for name in ("ada", "bob", "eve"))
    both = sent(ada, ada.messages.send(["bob", "eve"], "both"))
    everybody = sent(ada, ada.messages.send("all", "everybody"))
    assert bob.run(bob.messages.ack(both, everybody)) == Acknowledged(messages=(both, everybody))
    assert waiting(bob) == []
    assert waiting(eve) == ["both", "everybody"]


def test_one_alert_is_one_commit_for_any_number_of_subscribers(stage: Testbed) -> None:
    ada = stage.client("ada")
    crew = [stage.client(f"w{number}") for number in range(20)]
    for each in crew:
        each.run(each.messages.subscribe("build"))
    before = stage.store.read().revision
    ada.run(ada.messages.alert("build", {"ok": True}))
    assert stage.store.read().revision == before + 1
    assert all(waiting(each) == [{"ok": True}] for each in crew)


def test_an_unknown_reader_is_refused_and_held_for_if_asked(stage: Testbed) -> None:
    ada = stage.client("ada")
    assert ada.run(ada.messages.send("bbo", "hi")) == UnknownAgent(unknown=("bbo",))
    assert ada.run(ada.messages.share("bbo", "note", 1)) == UnknownAgent(unknown=("bbo",))
    assert isinstance(ada.run(ada.messages.send("bob", "early", hold=True)), Sent)
    assert waiting(stage.client("bob")) == ["early"]


def test_an_agent_that_sent_once_can_be_answered(stage: Testbed) -> None:
    passer_by, bob = stage.client("passer-by", ttl=None), stage.client("bob")
    passer_by.run(passer_by.messages.send("bob", "hello"))
    assert isinstance(bob.run(bob.messages.send("passer-by", "hello you")), Sent)


@pytest.mark.parametrize("local", [True, False])
def test_a_call_that_is_repeated_with_its_id_sends_once(stage: Testbed, *, local: bool) -> None:
    ada, bob = (stage.client if local else stage.remote)("ada"), stage.client("bob")
    first = ada.run(ada.messages.send("bob", "once", id="msg_1"))
    assert isinstance(first, Sent)
    assert ada.run(ada.messages.send("bob", "twice", id="msg_1")) == MessageExists(message="msg_1")
    assert ada.run(ada.messages.alert("build", 1, id="msg_2")).__class__ is Sent
    assert ada.run(ada.messages.alert("build", 1, id="msg_2")) == MessageExists(message="msg_2")
    assert waiting(bob) == ["once"]


@pytest.mark.parametrize("local", [True, False])
def test_an_id_is_taken_once_whatever_is_sent_under_it(stage: Testbed, *, local: bool) -> None:
    ada = (stage.client if local else stage.remote)("ada")
    eve, bob = stage.client("eve"), stage.client("bob")
    for topic in ("build", "deploy"):
        bob.run(bob.messages.subscribe(topic))
    assert sent(eve, eve.messages.alert("build", "first", id="msg_1")) == "msg_1"
    again = (
        ada.messages.alert("deploy", "other", id="msg_1"),
        ada.messages.share("bob", "note", "other", id="msg_1"),
        ada.messages.stop("bob", "other", id="msg_1"),
        ada.messages.send("bob", "other", id="msg_1"),
        ada.messages.send("all", "other", id="msg_1"),
    )
    assert [ada.run(each) for each in again] == [MessageExists(message="msg_1")] * 5
    assert waiting(bob) == ["first"]


def test_an_id_that_was_made_here_leaves_no_mark(stage: Testbed) -> None:
    ada = stage.client("ada")
    made = sent(ada, ada.messages.alert("build"))
    assert stage.store.read(keys.chosen_id(made))[keys.chosen_id(made)] is None


def test_bad_words_are_refused_before_anything_is_sent(stage: Testbed) -> None:
    ada = stage.client("ada")
    before = stage.store.read().revision
    with pytest.raises(BadName):
        ada.run(ada.messages.alert("a\tb"))
    with pytest.raises(BadInput, match="use an alert"):
        ada.run(ada.messages.share("all", "note"))
    with pytest.raises(BadInput, match="not JSON"):
        ada.run(ada.messages.alert("build", object()))
    with pytest.raises(TooLarge, match="are allowed"):
        ada.run(ada.messages.alert("build", "x" * 2_000_000))
    with pytest.raises(BadInput, match="write msg_ and"):
        ada.run(ada.messages.alert("build", id="qry_1"))
    with pytest.raises(BadInput, match="the recipient is missing"):
        ada.run(ada.messages.send([], "x"))
    assert stage.store.read().revision == before


def test_a_full_inbox_refuses_and_names_its_limit(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(monkeypatch, inbox=3, rate=0)
    ada, bob = stage.client("ada"), stage.client("bob")
    for number in range(3):
        ada.run(ada.messages.send("bob", number))
    assert ada.run(ada.messages.send("bob", 3)) == InboxFull(agent="bob", depth=3)
    first = bob.run(bob.messages.inbox()).messages[0]
    bob.run(bob.messages.ack(first.id))
    assert isinstance(ada.run(ada.messages.send("bob", 4)), Sent)


@pytest.mark.parametrize("local", [True, False])
def test_a_burst_does_not_pass_the_depth_of_an_inbox(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch, *, local: bool
) -> None:
    limited(monkeypatch, inbox=3)
    open_ = stage.client if local else stage.remote
    ada, bob = open_("ada"), open_("bob")
    hands = [
        Stepper(ada.messages.send("bob", number), ada.store, stage.clock) for number in range(9)
    ]
    while sum(hand.go() for hand in hands):  # all of them go one step, in turns
        pass
    assert len(waiting(bob)) == 3
    assert sum(isinstance(hand.result(), InboxFull) for hand in hands) == 6
    ada.run(ada.messages.send("bob", "over"))
    bob.run(bob.messages.ack(bob.run(bob.messages.inbox()).messages[0].id))
    assert isinstance(ada.run(ada.messages.send("bob", "again")), Sent), "and room is room again"


def test_what_is_sent_acknowledges_what_it_comes_from_in_the_same_commit(stage: Testbed) -> None:
    ada, bob, eve = (stage.client(name) for name in ("ada", "bob", "eve"))
    got = sent(ada, ada.messages.send("bob", "for eve"))
    before = stage.store.read().revision
    bob.run(bob.messages.send("eve", "for you", acks=[got]))
    assert stage.store.read().revision == before + 1
    assert (waiting(bob), waiting(eve)) == ([], ["for you"])


@pytest.mark.parametrize("local", [True, False])
def test_what_was_acknowledged_already_is_not_handed_on_again(
    stage: Testbed, *, local: bool
) -> None:
    ada, eve = stage.client("ada"), stage.client("eve")
    bob = (stage.client if local else stage.remote)("bob")
    bob.run(bob.messages.subscribe("build"))
    mail = sent(ada, ada.messages.send("bob", "pay"))
    alert = sent(ada, ada.messages.alert("build"))
    other = sent(ada, ada.messages.send("bob", "other"))
    eves = sent(ada, ada.messages.send("eve", "hers"))
    sent(bob, bob.messages.send("eve", "paid", acks=[mail, alert]))
    for acks in ([mail, other], [alert, other]):
        again = bob.run(bob.messages.send("eve", "paid", acks=acks))
        assert again == AlreadyAcknowledged(messages=(acks[0],))
    foreign = bob.run(bob.messages.alert("build", acks=[other, eves, mail, "msg_none"]))
    assert foreign == AlreadyAcknowledged(messages=(mail,), unknown=(eves, "msg_none"))
    assert waiting(bob) == ["other"], "nothing was acknowledged, nor sent"
    assert waiting(eve) == ["hers", "paid"]


@pytest.mark.parametrize("local", [True, False])
def test_nothing_is_sent_with_an_acknowledgement_of_what_was_never_received(
    stage: Testbed, *, local: bool
) -> None:
    ada, eve = (stage.client if local else stage.remote)("ada"), stage.client("eve")
    eves = sent(eve, eve.messages.send("bob", "not hers", hold=True))
    for id_ in ("msg_none", eves):
        found = ada.run(ada.messages.send("eve", "done", acks=[id_]))
        assert found == AlreadyAcknowledged(messages=(), unknown=(id_,))
    assert waiting(eve) == []


def test_a_message_is_handed_on_once_by_two_processes_at_once(stage: Testbed) -> None:
    for steps in range(8):
        ada, eve = stage.client("ada"), stage.client(f"eve{steps}")
        one, other = stage.remote("bob"), stage.remote("bob")
        mail = sent(ada, ada.messages.send("bob", "pay"))
        hand = Stepper(
            one.messages.send(f"eve{steps}", "paid", acks=[mail]), one.store, stage.clock
        )
        for _ in range(steps):
            hand.go()
        quick = other.run(other.messages.send(f"eve{steps}", "paid", acks=[mail]))
        assert {type(quick), type(hand.run().result())} == {Sent, AlreadyAcknowledged}
        assert waiting(eve) == ["paid"]


def test_a_call_that_is_repeated_with_its_id_exists_though_its_acks_are_done(
    stage: Testbed,
) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    mail = sent(ada, ada.messages.send("bob", "pay"))
    calls = [bob.messages.send("ada", "paid", id="msg_1", acks=[mail]) for _ in range(2)]
    assert isinstance(bob.run(calls[0]), Sent)
    assert bob.run(calls[1]) == MessageExists(message="msg_1")


def test_an_alert_that_is_handed_on_is_acknowledged_with_that(stage: Testbed) -> None:
    ada, bob, eve = (stage.client(name) for name in ("ada", "bob", "eve"))
    bob.run(bob.messages.subscribe("build"))
    alerts = [sent(ada, ada.messages.alert("build", number)) for number in range(3)]
    mail = sent(ada, ada.messages.send("bob", "mail"))
    before = stage.store.read().revision
    bob.run(bob.messages.send("eve", "for you", acks=[alerts[1], mail]))
    assert stage.store.read().revision == before + 1
    assert (waiting(bob), waiting(eve)) == ([0, 2], ["for you"])
    again = bob.run(bob.messages.send("nobody", "for you", acks=[alerts[0]]))
    assert isinstance(again, UnknownAgent)
    assert waiting(bob) == [0, 2]


def test_a_paused_sender_learns_who_paused_it_until_it_is_resumed(stage: Testbed) -> None:
    ada, bob, eve = (stage.client(name) for name in ("ada", "bob", "eve"))
    known = send_rules.PauseState(known=True, paused=None)
    decide(eve, lambda: send_rules.pause(known, "ada", "eve", "too loud", stage.clock.wall()))
    refused = ada.run(ada.messages.send("bob", "hi"))
    assert isinstance(refused, Halted)
    assert (refused.by, refused.reason) == ("eve", "too loud")
    assert isinstance(bob.run(bob.messages.send("ada", "hi")), Sent)
    halt = SenderPause(agent="ada", by="eve", since=0.0)
    decide(eve, lambda: send_rules.resume(replace(known, paused=halt), "ada"))
    assert isinstance(ada.run(ada.messages.send("bob", "hi")), Sent)


@pytest.mark.parametrize("how", ["local", "network"])
def test_who_is_refused_too_often_within_a_minute_is_paused_if_that_is_set(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    limited(monkeypatch, rate=1, window="100s")
    monkeypatch.setenv("INTERLOCK_LIMITS_PAUSE_AFTER", "3")
    make = stage.client if how == "local" else stage.remote
    bob, eve = stage.client("bob", ttl=1e6), make("eve", ttl=1e6)
    assert isinstance(eve.run(eve.messages.send("bob", 0)), Sent)
    for wait in (30, 31, 1):  # the first is too long ago when the third comes
        assert isinstance(eve.run(eve.messages.send("bob", 1)), Limited)
        stage.clock.advance(wait)
    other = make("eve", ttl=1e6)
    halted = other.run(other.messages.send("bob", 1))
    assert isinstance(halted, Halted)
    assert (halted.by, halted.reason) == (send_rules.GUARD, "3 messages too many within a minute")
    assert isinstance(eve.run(eve.messages.send("bob", 1)), Halted)
    (problem,) = [each for each in bob.run(bob.fleet.health()).problems if each.kind == "paused"]
    assert problem.agent == "eve"
    assert "agent resume eve" in problem.remedy
    assert [e.verb for e in entries(stage)].count("agent.pause") == 1
    bob.run(bob.agents.resume("eve"))
    stage.clock.advance(100)
    assert isinstance(eve.run(eve.messages.send("bob", 1)), Sent)
    assert isinstance(eve.run(eve.messages.send("bob", 1)), Limited)


def entries(stage: Testbed) -> list[Entry]:
    page = Log()
    found = stage.store.read(page).ranges[page]
    return [msgspec.json.decode(item.value, type=Entry) for item in found if item.value != VOID]


def test_no_window_has_more_than_the_limit_by_the_times_that_messages_show(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that was begun in one window and sent in the next counts in the next."""
    limited(monkeypatch, rate=1, window="1s")
    ada, bob = stage.client("ada"), stage.client("bob")
    assert isinstance(ada.run(ada.messages.send("bob", 1)), Sent)
    stage.clock.advance(0.9996)
    begun = ada.messages.send("bob", 2)
    stage.clock.advance(0.0004)
    assert isinstance(ada.run(begun), Sent)
    stage.clock.advance(0.9996)
    asked = ada.messages.query("bob", 3)
    stage.clock.advance(0.0006)
    ada.start(asked)
    times = [each.at for each in bob.run(bob.messages.inbox()).messages]
    assert len(times) == 3
    assert all(later - earlier >= 1 for earlier, later in pairwise(times))


def test_no_window_has_more_than_the_limit(stage: Testbed, monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, rate=5, window="1s")
    ada, bob = stage.client("ada"), stage.client("bob")
    passed: list[float] = []
    for _ in range(60):
        outcome = ada.run(ada.messages.send("bob", 1))
        if isinstance(outcome, Sent):
            passed.append(stage.clock.wall())
        else:
            assert isinstance(outcome, Limited)
            assert (outcome.limit, outcome.window) == (5, 1.0)
        stage.clock.advance(0.07)
    assert all(late - early >= 1.0 - 1e-6 for early, late in zip(passed, passed[5:], strict=False))
    assert len(passed) >= 20
    assert isinstance(bob.run(bob.messages.send("ada", "unharmed")), Sent)


def test_a_refusal_says_exactly_when_to_try_again(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(monkeypatch, rate=2, window="10s")
    ada, _ = stage.client("ada"), stage.client("bob")
    ada.run(ada.messages.send("bob", 1))
    stage.clock.advance(4)
    ada.run(ada.messages.send("bob", 2))
    refused = ada.run(ada.messages.send("bob", 3))
    assert isinstance(refused, Limited)
    assert refused.retry_in == 6.0
    stage.clock.advance(5.9)
    assert isinstance(ada.run(ada.messages.send("bob", 3)), Limited)
    stage.clock.advance(0.2)
    assert isinstance(ada.run(ada.messages.send("bob", 3)), Sent)


@pytest.mark.parametrize("local", [True, False])
def test_several_clients_of_one_sender_share_its_limit(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch, *, local: bool
) -> None:
    limited(monkeypatch, rate=4, window="1s")
    open_ = stage.client if local else stage.remote
    first, second, _ = open_("ada"), open_("ada"), stage.client("bob")
    both = [first, second] * 4
    outcomes = [each.run(each.messages.send("bob", 1)) for each in both]
    assert sum(isinstance(each, Sent) for each in outcomes) == 4
    stage.clock.advance(1.01)
    again = [each.run(each.messages.send("bob", 1)) for each in both]
    assert sum(isinstance(each, Sent) for each in again) == 4


def test_a_refused_flood_is_recorded_once_a_minute(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(monkeypatch, rate=1, window="1h")
    ada, _ = stage.client("ada"), stage.client("bob")
    for _ in range(20):
        ada.run(ada.messages.send("bob", 1))
    refusals = ada.run(ada.record.log(verb="message.refuse"))
    assert len(refusals) == 1


def test_a_clock_that_was_set_back_does_not_silence_its_sender(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(monkeypatch, rate=1, window="10s")
    ada, _ = stage.client("ada"), stage.client("bob")
    ada.run(ada.messages.send("bob", 1))
    stage.clock.jump_wall(-3600)
    assert isinstance(ada.run(ada.messages.send("bob", 2)), Sent)


def test_subscribers_get_what_they_asked_for(stage: Testbed) -> None:
    ada, bob, eve = (stage.client(name) for name in ("ada", "bob", "eve"))
    bob.run(bob.messages.subscribe("build", where={"ok": False, "job.name": "docs"}))
    eve.run(eve.messages.subscribe("build", senders=["bob"]))
    ada.run(ada.messages.alert("build", {"ok": False, "job": {"name": "docs"}}))
    ada.run(ada.messages.alert("build", {"ok": True, "job": {"name": "docs"}}))
    ada.run(ada.messages.alert("build", "no object"))
    bob.run(bob.messages.alert("build", 7))
    assert waiting(bob) == [{"ok": False, "job": {"name": "docs"}}]
    assert waiting(eve) == [7]
    assert waiting(ada) == []


def test_a_new_subscriber_may_ask_for_the_last_ones(stage: Testbed) -> None:
    ada, bob, eve = (stage.client(name) for name in ("ada", "bob", "eve"))
    for number in range(5):
        ada.run(ada.messages.alert("build", number))
    assert bob.run(bob.messages.subscribe("build", last=2)) == Subscribed(type="build", last=2)
    again = Subscribed(type="build", already=True)
    assert bob.run(bob.messages.subscribe("build", last=3)) == again, "they go on where they were"
    eve.run(eve.messages.subscribe("build"))
    ada.run(ada.messages.alert("build", 5))
    assert waiting(bob) == [3, 4, 5]
    assert waiting(eve) == [5]


def test_who_unsubscribes_and_comes_back_begins_anew(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.messages.subscribe("build"))
    receiver = bob.messages.receiver()
    ada.run(ada.messages.alert("build", 0))
    (first,) = came(bob, receiver)
    assert bob.run(bob.messages.unsubscribe("build")) == Unsubscribed(type="build")
    assert bob.run(bob.messages.unsubscribe("build")) == NotSubscribed(type="build")
    bob.run(receiver.ack([first.id]))
    ada.run(ada.messages.alert("build", 1))
    bob.run(bob.messages.subscribe("build"))
    assert said(bob, receiver) == []
    ada.run(ada.messages.alert("build", 2))
    assert said(bob, receiver) == [2]


def test_acknowledging_twice_or_an_unknown_id_is_reported(stage: Testbed) -> None:
    ada, bob, eve = (stage.client(name) for name in ("ada", "bob", "eve"))
    bob.run(bob.messages.subscribe("build"))
    mail = sent(ada, ada.messages.send("bob", 1))
    alert = sent(ada, ada.messages.alert("build", 2))
    both = (mail, alert)
    assert bob.run(bob.messages.ack(*both)) == Acknowledged(messages=both)
    assert bob.run(bob.messages.ack(*both)) == Acknowledged(already=both)
    assert bob.run(bob.messages.ack("msg_none")) == UnknownMessages(unknown=("msg_none",))
    assert eve.run(eve.messages.ack(*both)) == UnknownMessages(unknown=both)


@pytest.mark.parametrize("after", range(1, 12))
def test_a_sender_that_is_killed_between_any_two_steps_has_sent_it_or_not(
    stage: Testbed, after: int
) -> None:
    ada, bob = stage.remote("ada"), stage.client("bob")
    act = Stepper(ada.messages.send("bob", "x", id="msg_1"), ada.store, stage.clock)
    for _ in range(after):
        act.go()
    again = stage.client("ada")
    again.run(again.messages.send("bob", "x", id="msg_1"))
    assert waiting(bob) == ["x"]


def test_a_query_can_be_answered_while_its_asker_is_limited(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(monkeypatch, rate=1, window="1h")
    ada, bob = stage.client("ada"), stage.client("bob")
    asks = ada.start(ada.messages.query("bob", "?", timeout=60))
    (question,) = came(bob, bob.messages.receiver())
    bob.run(bob.messages.reply(question.id, "!"))
    assert isinstance(asks.run().result(), QueryAnswered)
    assert isinstance(ada.run(ada.messages.query("bob", "?")), Limited)


def test_an_asker_without_an_answer_gets_a_timeout(stage: Testbed) -> None:
    ada, _ = stage.client("ada"), stage.client("bob")
    outcome = ada.run(ada.messages.query("bob", "?", timeout=5, id="qry_1"))
    assert outcome == TimedOut(query="qry_1", to="bob", timeout=5.0)


def test_why_says_who_has_not_read_a_message(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    ada.run(ada.messages.send(["bob", "cy"], "x", hold=True, id="msg_1"))
    for thing in ("msg_1", "message/msg_1"):
        why = ada.run(ada.fleet.why(thing))
        assert (why.blocked, why.thing) == (True, "message/msg_1")
        assert why.because == "not acknowledged yet by bob, cy"
    bob.run(bob.messages.ack("msg_1"))
    assert ada.run(ada.fleet.why("msg_1")).by == "cy"
    cy = stage.client("cy")
    cy.run(cy.messages.ack("msg_1"))
    assert ada.run(ada.fleet.why("msg_1")).because == "acknowledged by bob, cy"
    assert not ada.run(ada.fleet.why("msg_2")).blocked


def test_all_means_all_agents_and_is_no_agents_name(stage: Testbed) -> None:
    ada = stage.client("ada")
    stage.client("bob")
    for names in (["all", "bob"], ["bob", "all"]):
        with pytest.raises(BadInput, match="'all' means all agents"):
            ada.run(ada.messages.send(names, "hi"))
    with pytest.raises(BadInput, match="no agent can be called 'all'"):
        stage.client("all")
    team = stage.client("all/x")
    sent(ada, ada.messages.send("all/x", "hi"))
    assert waiting(team) == ["hi"]
