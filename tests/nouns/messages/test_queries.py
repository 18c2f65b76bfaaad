"""A question is answered once, in time, by its recipient; every other end is reported."""

from __future__ import annotations

from typing import Any

import pytest
from tests.nouns.messages.helpers import answer, came, sent, waiting

from interlock.core import keys
from interlock.errors import BadInput
from interlock.nouns.messages import decode
from interlock.nouns.messages.decision import AlreadyResolved, Resolved, UnknownDecision
from interlock.nouns.messages.message import (
    Acknowledged,
    InboxFull,
    Sent,
    UnknownAgent,
    UnknownMessages,
)
from interlock.nouns.messages.query import (
    AskOutcome,
    Handed,
    Late,
    NobodyToAsk,
    NotAsked,
    QueryAnswered,
    QueryCancelled,
    QueryExists,
    Replied,
    TakenBack,
    TimedOut,
    TooMany,
    UnknownQuery,
)
from interlock.store import Put, Range, Ref, Snapshot, Txn
from interlock.testing.faults import Crash, Fault
from interlock.testing.testbed import Client, Stepper, Testbed


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


def asking(
    client: Client, to: str = "bob", id_: str = "qry_1", **more: object
) -> Stepper[AskOutcome]:
    terms: dict[str, object] = {"timeout": 60, "id": id_, **more}
    return client.start(client.messages.query(to, "API?", **terms))  # type: ignore[arg-type]


@pytest.mark.parametrize("local", [True, False])
def test_the_answer_reaches_the_asker_and_the_question_is_read(
    stage: Testbed, *, local: bool
) -> None:
    open_ = stage.client if local else stage.remote
    ada, bob = open_("ada"), open_("bob")
    asks = asking(ada)
    (question,) = came(bob, bob.messages.receiver())
    assert (question.kind, question.data, question.sender) == ("query", "API?", "ada")
    assert question.expires_in == pytest.approx(60)
    assert bob.run(bob.messages.reply("qry_1", {"url": 1})) == Replied(query="qry_1", to="ada")
    assert answer(asks.run().result()) == QueryAnswered(query="qry_1", answer={"url": 1}, by="bob")
    assert waiting(bob) == []
    assert bob.run(bob.messages.ack("qry_1")) == Acknowledged(already=("qry_1",))


def test_the_same_answer_again_is_the_same_and_another_is_late(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    asking(ada)
    bob.run(bob.messages.reply("qry_1", 1))
    assert bob.run(bob.messages.reply("qry_1", 1)) == Replied(query="qry_1", to="ada")
    late = Late(query="qry_1", state="answered", by="bob")
    assert bob.run(bob.messages.reply("qry_1", 2)) == late


def test_after_the_deadline_an_answer_is_refused_and_nothing_is_left_open(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    asks = asking(ada, timeout=5)
    stage.clock.advance(5)
    assert asks.run().result() == TimedOut(query="qry_1", to="bob", timeout=5.0)
    assert bob.run(bob.messages.reply("qry_1", 1)) == Late(query="qry_1", state="expired")
    assert waiting(bob) == []
    key = keys.open_query("ada", "qry_1")
    assert stage.store.read(key)[key] is None


def test_an_answer_to_an_asker_that_was_killed_is_late_and_ends_the_question(
    stage: Testbed,
) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    asking(ada, timeout=5)
    stage.clock.advance(6)
    assert bob.run(bob.messages.reply("qry_1", 1)) == Late(query="qry_1", state="expired")
    assert waiting(bob) == []


def test_a_question_is_taken_back_by_its_asker_alone(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    asks = asking(ada)
    assert bob.run(bob.messages.cancel("qry_1")) == NotAsked(query="qry_1", agent="ada")
    assert ada.run(ada.messages.cancel("qry_1")) == QueryCancelled(query="qry_1")
    assert asks.run().result() == TakenBack(query="qry_1")
    assert ada.run(ada.messages.cancel("qry_1")) == QueryCancelled(query="qry_1")
    assert bob.run(bob.messages.reply("qry_1", 1)) == Late(query="qry_1", state="cancelled")
    assert waiting(bob) == []


def test_an_answered_question_cannot_be_taken_back(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    asking(ada)
    bob.run(bob.messages.reply("qry_1", 1))
    late = Late(query="qry_1", state="answered", by="bob")
    assert ada.run(ada.messages.cancel("qry_1")) == late


def test_a_foreign_or_unknown_question_cannot_be_answered(stage: Testbed) -> None:
    ada, _, eve = (stage.client(name) for name in ("ada", "bob", "eve"))
    asking(ada)
    assert eve.run(eve.messages.reply("qry_1", 1)) == NotAsked(query="qry_1", agent="bob")
    unknown = UnknownQuery(unknown=("qry_none",), query="qry_none")
    assert eve.run(eve.messages.reply("qry_none", 1)) == unknown
    assert eve.run(eve.messages.cancel("qry_none")) == unknown


def test_an_asker_that_comes_back_waits_on_or_has_the_answer(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    asking(ada, timeout=60)
    again = stage.client("ada")
    asks = asking(again)
    assert len(came(bob, bob.messages.receiver())) == 1
    bob.run(bob.messages.reply("qry_1", "yes"))
    due = QueryAnswered(query="qry_1", answer="yes", by="bob")
    assert answer(asks.run().result()) == due
    third = stage.client("ada")
    assert answer(asking(third).run().result()) == due


def test_an_asker_that_comes_back_has_no_more_time_than_it_had(stage: Testbed) -> None:
    ada, _ = stage.client("ada"), stage.client("bob")
    asking(ada, timeout=10)
    stage.clock.advance(7)
    asks = asking(stage.client("ada"), timeout=10)
    stage.clock.advance(3)
    assert isinstance(asks.run().result(), TimedOut)


def test_an_answerer_that_restarts_finds_the_question_in_its_inbox(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    asks = asking(ada)
    came(bob, bob.messages.receiver())
    restarted = stage.client("bob")
    (question,) = came(restarted, restarted.messages.receiver())
    restarted.run(restarted.messages.reply(question.id, "yes"))
    assert isinstance(asks.run().result(), QueryAnswered)


def test_the_id_of_another_agents_question_is_taken(stage: Testbed) -> None:
    ada, _, eve = (stage.client(name) for name in ("ada", "bob", "eve"))
    asking(ada)
    assert asking(eve).run().result() == QueryExists(query="qry_1")


def test_an_interrupted_asker_takes_its_question_back_unless_it_can_be_resumed(
    stage: Testbed,
) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    asks = ada.start(ada.messages.query("bob", "?", timeout=60))
    assert len(waiting(bob)) == 1
    with pytest.raises(KeyboardInterrupt):
        asks.interrupt(KeyboardInterrupt()).result()
    assert waiting(bob) == []
    named = asking(ada)
    with pytest.raises(KeyboardInterrupt):
        named.interrupt(KeyboardInterrupt()).result()
    assert len(waiting(bob)) == 1


def test_a_known_answer_will_do_if_it_is_young_enough(stage: Testbed) -> None:
    ada, bob, eve = (stage.client(name) for name in ("ada", "bob", "eve"))
    asking(ada)
    bob.run(bob.messages.reply("qry_1", "yes"))
    stage.clock.advance(10)
    known = eve.run(eve.messages.query("bob", "API?", cached=20))
    assert answer(known) == QueryAnswered(query="qry_1", answer="yes", by="bob", age=10.0)
    assert isinstance(eve.run(eve.messages.query("bob", "API?", cached=5, timeout=1)), TimedOut)
    assert isinstance(eve.run(eve.messages.query("bob", "other", cached=20, timeout=1)), TimedOut)


def test_a_question_to_an_ability_needs_an_agent_that_has_it(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    assert asking(ada, "?review").run().result() == NobodyToAsk(to="?review")
    bob.run(bob.agents.status("idle", can=["review"]))
    asks = asking(ada, "?review")
    assert bob.run(bob.messages.inbox()).messages[0].data == "API?"
    assert ada.run(ada.messages.reply("qry_1", "me")) == NotAsked(query="qry_1", agent="?review")
    bob.run(bob.messages.reply("qry_1", "ok"))
    assert answer(asks.run().result()) == QueryAnswered(query="qry_1", answer="ok", by="bob")


@pytest.mark.parametrize("ttl", [30.0, None], ids=["session", "shell"])
def test_who_takes_questions_of_an_ability_is_there_for_them(
    stage: Testbed, ttl: float | None
) -> None:
    ada, bob = stage.client("ada"), stage.client("bob", ttl=ttl)
    waits = bob.start(bob.messages.wait(600, can=["review"]))
    assert asking(ada, "?build", "qry_0").run().result() == NobodyToAsk(to="?build")
    asks = asking(ada, "?review")
    assert [each.id for each in waits.run().result().messages] == ["qry_1"]  # type: ignore[union-attr]
    assert asking(ada, "?review", "qry_2").run().result() == NobodyToAsk(to="?review"), "it is gone"
    assert isinstance(bob.run(bob.messages.reply("qry_1", "ok")), NotAsked), "it says so no more"
    bob.run(bob.messages.reply("qry_1", "ok", can=["review"]))
    assert answer(asks.run().result()) == QueryAnswered(query="qry_1", answer="ok", by="bob")


@pytest.mark.parametrize("says", ["report", "recv", "reply"])
def test_only_who_is_able_answers_what_the_able_are_asked(stage: Testbed, says: str) -> None:
    ada, bob, eve = (stage.client(name) for name in ("ada", "bob", "eve"))
    asking(ada, "?review", hold=True)
    other = eve.run(eve.messages.reply("qry_1", "no", can=["build"]))
    assert other == NotAsked(query="qry_1", agent="?review")
    if says == "report":
        bob.run(bob.agents.status("idle", can=["review"]))
        done = bob.run(bob.messages.reply("qry_1", "ok"))
    elif says == "recv":
        reception = bob.messages.reception(can=["review"])
        (question,) = bob.run(reception.take())
        done = bob.run(bob.messages.reply(question.id, "ok"))
    else:
        done = bob.run(bob.messages.reply("qry_1", "ok", can=["review"]))
    assert done == Replied(query="qry_1", to="ada")


def test_who_had_a_session_and_has_none_is_away_unless_the_question_is_held(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.agents.leave())
    assert asking(ada).run().result() == NobodyToAsk(to="bob")
    asks = asking(ada, hold=True)
    back = stage.client("bob")
    back.run(back.messages.reply("qry_1", "here"))
    assert isinstance(asks.run().result(), QueryAnswered)
    assert asking(ada, "nobody", "qry_2").run().result() == UnknownAgent(unknown=("nobody",))


def test_a_shell_that_had_a_session_for_a_moment_is_not_away_once_it_looked(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.agents.leave())
    shell = stage.client("bob", ttl=None)
    shell.run(shell.messages.inbox())
    asks = asking(ada)
    shell.run(shell.messages.reply("qry_1", "here"))
    assert isinstance(asks.run().result(), QueryAnswered)
    bob = stage.client("bob")
    bob.run(bob.messages.inbox())
    bob.run(bob.agents.leave())
    assert asking(ada, id_="qry_2").run().result() == NobodyToAsk(to="bob")


def test_who_looks_into_the_inbox_of_a_living_session_does_not_change_how_that_counts(
    stage: Testbed,
) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    person = stage.client("bob", ttl=None)
    before = stage.store.read().revision
    person.run(person.messages.inbox())
    assert stage.store.read().revision == before, "a look writes nothing"
    bob.run(bob.agents.leave())
    assert asking(ada).run().result() == NobodyToAsk(to="bob")


@pytest.mark.parametrize("local", [True, False])
def test_a_session_that_begins_while_a_shell_looks_counts(*, local: bool) -> None:
    """Before any step of that read."""
    for steps in range(9):
        stage = Testbed()
        ada, bob = stage.client("ada"), stage.client("bob")
        bob.run(bob.agents.leave())
        shell = (stage.client if local else stage.remote)("bob", ttl=None)
        looks = Stepper(shell.messages.inbox(), shell.store, shell.clock)
        assert all(looks.go() for _ in range(steps))
        again = stage.client("bob")
        looks.run().result()
        again.run(again.agents.leave())
        assert asking(ada).run().result() == NobodyToAsk(to="bob"), steps


def test_a_shell_that_waits_for_messages_is_there(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.agents.leave())
    shell = stage.client("bob", ttl=None)
    waits = shell.start(shell.messages.wait(600))
    asks = asking(ada)
    assert [each.id for each in waits.run().result().messages] == ["qry_1"]  # type: ignore[union-attr]
    key = keys.serving("bob", shell.someone.name)
    assert stage.store.read(key)[key] is None
    shell.run(shell.messages.reply("qry_1", "here"))
    assert isinstance(asks.run().result(), QueryAnswered)


def test_a_person_may_answer_when_no_agent_does(stage: Testbed) -> None:
    ada, bob, eve = (stage.client(name) for name in ("ada", "bob", "eve"))
    asks = asking(ada, timeout=5, person=True)
    stage.clock.advance(5)
    handed = asks.run().result()
    assert isinstance(handed, Handed)
    assert waiting(bob) == []
    (open_,) = eve.run(eve.messages.decisions())
    assert (open_.decision, open_.state, open_.question) == (handed.decision, "open", "API?")
    done = eve.run(eve.messages.resolve(handed.decision, "v2"))
    assert done == Resolved(decision=handed.decision, about="query/qry_1")
    (told,) = came(ada, ada.messages.receiver())
    assert (told.kind, told.data, told.sender) == ("answer", "v2", "eve")
    assert told.reply_to == "qry_1"
    assert answer(asking(ada).run().result()) == QueryAnswered(query="qry_1", answer="v2", by="eve")
    again = eve.run(eve.messages.resolve(handed.decision, "v3"))
    assert again == AlreadyResolved(decision=handed.decision, by="eve")
    unknown = UnknownDecision(unknown=("dec_none",), decision="dec_none")
    assert eve.run(eve.messages.resolve("dec_none", 1)) == unknown
    assert eve.run(eve.messages.decision("dec_none")) == unknown


def test_an_agent_may_still_answer_what_a_person_is_asked(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.agents.leave())
    handed = asking(ada, person=True).run().result()
    assert isinstance(handed, Handed)
    back = stage.client("bob")
    assert isinstance(back.run(back.messages.reply("qry_1", "late but here")), Replied)
    assert waiting(ada) == ["late but here"]
    (closed,) = ada.run(ada.messages.decisions())
    assert (closed.state, closed.by) == ("resolved", "bob")


def test_a_question_that_a_person_was_asked_can_be_taken_back(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.agents.leave())
    asking(ada, person=True)
    assert ada.run(ada.messages.cancel("qry_1")) == QueryCancelled(query="qry_1")
    assert ada.run(ada.messages.decisions()) == ()


@pytest.fixture
def room_for_four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_OPEN_QUERIES", "4")


@pytest.mark.usefixtures("room_for_four")
def test_one_agent_may_have_half_of_the_open_questions(stage: Testbed) -> None:
    ada, bob, eve = (stage.client(name) for name in ("ada", "bob", "eve"))
    asking(ada, id_="qry_1")
    asking(ada, id_="qry_2")
    refused = asking(ada, id_="qry_3").run().result()
    assert refused == TooMany(open=2, limit=2, agent="ada", by={"ada": 2}, retry_in=60.0)
    assert not asking(eve, id_="qry_4").done, "others may still ask"
    bob.run(bob.messages.reply("qry_1", 1))
    assert not asking(ada, id_="qry_3").done


@pytest.mark.usefixtures("room_for_four")
def test_too_many_open_questions_are_refused_and_the_refusal_says_whose_they_are(
    stage: Testbed,
) -> None:
    ada, _, eve, dan = (stage.client(name) for name in ("ada", "bob", "eve", "dan"))
    for number, client in enumerate((ada, eve, eve, dan)):
        asking(client, id_=f"qry_{number}")
    refused = asking(ada, id_="qry_9").run().result()
    assert refused == TooMany(open=4, limit=4, by={"eve": 2, "ada": 1, "dan": 1}, retry_in=60.0)


def older_reply(client: Client, query: str) -> None:
    """Answer as a client of an older version does, which leaves the question's quota slots."""
    page = Range(keys.ASKING)
    kept = client.store.read(page).ranges[page]
    client.run(client.messages.reply(query, 1))
    puts = tuple(Put(item.key, item.value) for item in kept)
    client.store.commit(Txn(id=client.runner.new_id("txn"), entry=b"{}", puts=puts))


@pytest.mark.usefixtures("room_for_four")
@pytest.mark.parametrize("by", ["the asker", "maintenance"])
def test_questions_that_an_older_client_answered_take_no_room(stage: Testbed, by: str) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    for number in range(2):
        asking(ada, id_=f"qry_{number}")
        older_reply(bob, f"qry_{number}")
    page = Range(keys.ASKING)
    asking(stage.client("eve"), id_="qry_open")
    if by == "maintenance":
        ada.run(ada.fleet.maintain())
        left = stage.store.read(page).ranges[page]
        assert {decode.slot_query(item) for item in left} == {"qry_open"}
    for number in range(5, 9):  # without a pause in between
        assert not asking(ada, id_=f"qry_{number}").done
        older_reply(bob, f"qry_{number}")


@pytest.mark.usefixtures("room_for_four")
def test_questions_of_the_past_take_no_room(stage: Testbed) -> None:
    ada, bob, eve = (stage.client(name) for name in ("ada", "bob", "eve"))
    for number, client in enumerate((ada, ada, eve, eve)):
        asking(client, id_=f"qry_{number}", timeout=5)
    assert isinstance(asking(ada, id_="qry_8").run().result(), TooMany)
    stage.clock.advance(6)
    assert not asking(ada, id_="qry_9").done
    assert [each.id for each in bob.run(bob.messages.inbox()).messages] == ["qry_9"]


@pytest.mark.usefixtures("room_for_four")
def test_a_question_that_is_ended_to_make_room_is_out_of_a_full_inbox_as_well(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_INBOX", "2")
    ada, bob = stage.client("ada"), stage.client("bob")
    asking(ada, id_="qry_1", timeout=5)
    stage.clock.advance(6)
    asking(ada, id_="qry_2")
    assert isinstance(ada.run(ada.messages.share("bob", "note")), InboxFull)
    assert not asking(ada, id_="qry_3").done
    assert [each.id for each in bob.run(bob.messages.inbox()).messages] == ["qry_2", "qry_3"]


@pytest.mark.usefixtures("room_for_four")
@pytest.mark.parametrize("fault", ["crash before", "crash after"])
def test_quota_slots_freed_by_a_killed_client_go_to_the_next(stage: Testbed, fault: Fault) -> None:
    ada, heir, doomed = stage.client("ada"), stage.client("ada"), stage.remote("ada")
    stage.client("bob")
    for number in range(2):
        asking(ada, id_=f"qry_{number}", timeout=5)
    stage.clock.advance(6)
    doomed.network.script([fault])
    with pytest.raises(Crash):
        asking(doomed, id_="qry_9").result()
    assert not asking(heir, id_="qry_9").done


@pytest.mark.usefixtures("room_for_four")
@pytest.mark.parametrize("local", [True, False])
def test_a_burst_of_questions_does_not_pass_the_limit(stage: Testbed, *, local: bool) -> None:
    """All of them check before any of them commits."""
    open_ = stage.client if local else stage.remote
    ada, bob = open_("ada"), open_("bob")
    hands = [
        Stepper(ada.messages.query("bob", number, timeout=60), ada.store, stage.clock)
        for number in range(9)
    ]
    while sum(hand.go() for hand in hands):  # all of them go one step, in turns
        pass
    assert len(waiting(bob)) == 2
    assert sum(isinstance(hand.result(), TooMany) for hand in hands if hand.done) == 7


def test_a_question_needs_words_that_can_be_asked(stage: Testbed) -> None:
    ada = stage.client("ada")
    with pytest.raises(BadInput, match="use an alert"):
        ada.run(ada.messages.query("all", "?"))
    with pytest.raises(BadInput, match="write qry_ and"):
        ada.run(ada.messages.query("bob", "?", id="msg_1"))


@pytest.mark.parametrize("after", range(1, 14))
@pytest.mark.parametrize("local", [True, False])
def test_an_answerer_that_is_killed_between_any_two_steps_answers_or_not(
    stage: Testbed, after: int, *, local: bool
) -> None:
    ada, bob = stage.client("ada"), (stage.client if local else stage.remote)("bob")
    asks = asking(ada)
    act = Stepper(bob.messages.reply("qry_1", "yes"), bob.store, stage.clock)
    for _ in range(after):
        act.go()
    again = stage.client("bob")
    for question in came(again, again.messages.receiver()):
        again.run(again.messages.reply(question.id, "yes"))
    assert answer(asks.run().result()) == QueryAnswered(query="qry_1", answer="yes", by="bob")


def test_a_question_is_the_same_however_its_json_is_written(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    asks = ada.start(ada.messages.query("bob", {"a": 1, "b": [2]}, id="qry_1"))
    bob.run(bob.messages.reply("qry_1", "yes"))
    asks.run()
    known = ada.run(ada.messages.query("bob", {"b": [2], "a": 1}, cached=60))
    assert isinstance(known, QueryAnswered)
    assert known.query == "qry_1", "that of the question that was answered"


def test_an_id_stands_for_one_question_to_one_agent(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    stage.client("cyd")
    ada.start(ada.messages.query("bob", {"a": 1, "b": 2}, id="qry_1"))
    bob.run(bob.messages.reply("qry_1", "yes"))
    other = QueryExists(query="qry_1", ours=True)
    assert ada.run(ada.messages.query("bob", "else?", id="qry_1")) == other
    assert ada.run(ada.messages.query("cyd", {"a": 1, "b": 2}, id="qry_1")) == other
    again = ada.run(ada.messages.query("bob", {"b": 2, "a": 1}, id="qry_1"))
    assert answer(again) == QueryAnswered(query="qry_1", answer="yes", by="bob")


@pytest.mark.parametrize("killed", [True, False])
def test_an_ended_question_stays_ended_when_it_is_asked_again(
    stage: Testbed, *, killed: bool
) -> None:
    ada = stage.client("ada")
    stage.client("bob")
    asks = asking(ada, timeout=5)
    stage.clock.advance(5)
    if not killed:
        assert asks.run().result() == TimedOut(query="qry_1", to="bob", timeout=5.0)
    over = TimedOut(query="qry_1", to="bob", timeout=5.0, over=True)
    assert asking(ada, timeout=90).run().result() == over


@pytest.mark.parametrize("to", ["bob", "all"])
def test_a_reply_to_mail_is_mail_to_its_sender_and_acknowledges_it(stage: Testbed, to: str) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    id_ = sent(ada, ada.messages.send(to, "hi", subject="lunch"))
    assert isinstance(bob.run(bob.messages.reply(id_, "hello")), Sent)
    assert waiting(bob) == []
    (answer,) = ada.run(ada.messages.inbox()).messages
    assert (answer.sender, answer.body, answer.subject) == ("bob", "hello", "lunch")
    assert (answer.reply_to, answer.thread) == (id_, id_)
    # an acknowledged one can be answered again, and the own answer continues the talk
    assert isinstance(bob.run(bob.messages.reply(id_, "and bye")), Sent)
    assert isinstance(ada.run(ada.messages.reply(id_, "still there?")), Sent)
    assert waiting(bob) == ["still there?"]


def test_a_reply_to_an_unknown_message_sends_nothing(stage: Testbed) -> None:
    bob = stage.client("bob")
    unknown = UnknownMessages(unknown=("msg_9",))
    assert bob.run(bob.messages.reply("msg_9", "hello")) == unknown


def test_a_question_to_an_ability_reads_only_agents_that_have_it(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, bob, cy = (stage.client(name) for name in ("ada", "bob", "cy"))
    bob.run(bob.agents.status("idle", can=["rust"]))
    cy.run(cy.agents.status("idle", can=["go"]))
    looked: list[str] = []
    read = stage.store.read

    def noted(*refs: Ref, **how: Any) -> Snapshot:
        looked.extend(ref if isinstance(ref, str) else getattr(ref, "prefix", "") for ref in refs)
        return read(*refs, **how)

    monkeypatch.setattr(stage.store, "read", noted)
    asks = ada.start(ada.messages.query("?rust", "edition?", id="qry_1", timeout=60))
    assert not asks.done
    assert keys.able("rust") in looked
    assert not {keys.REPORTS, keys.SERVING, keys.SESSIONS}.intersection(looked)
    assert keys.live(cy.session) not in looked
    bob.run(bob.agents.status("idle", can=["python"]))
    bob.run(bob.messages.reply("qry_1", 1, can=["rust"]))
    assert ada.run(ada.messages.query("?rust", "edition?")) == NobodyToAsk(to="?rust")
    bob.run(bob.agents.leave())
    cy.run(cy.agents.leave())
    page = Range(keys.ABLE)
    assert read(page).ranges[page] == ()


def test_abilities_of_a_dead_session_are_deleted(stage: Testbed) -> None:
    ada, bob = stage.client("ada", ttl=1e6), stage.client("bob")
    bob.run(bob.agents.status("idle", can=["rust"]))
    stage.clock.advance(31)
    assert ada.run(ada.messages.query("?rust", "edition?")) == NobodyToAsk(to="?rust")
    ada.run(ada.fleet.maintain())
    page = Range(keys.ABLE)
    assert stage.store.read(page).ranges[page] == ()
