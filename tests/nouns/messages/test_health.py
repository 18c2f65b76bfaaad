"""``health`` and ``doctor`` on messages: what an operator should know, and nothing else."""

from __future__ import annotations

import pytest

from interlock.core import codec, keys
from interlock.nouns.agents.session_rules import SenderPause
from interlock.nouns.messages import decode, send_rules
from interlock.nouns.messages.presence import announce_receiver
from interlock.runtime.health import Problem
from interlock.store import Put, Range, Txn
from interlock.testing.testbed import Client, Testbed

HOUR = 3600.0


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


def problems(client: Client) -> tuple[Problem, ...]:
    found = client.run(client.fleet.health(dead_after="300d"))
    assert not found.partial
    return found.problems


def one(client: Client) -> Problem:
    (found,) = problems(client)
    return found


def test_mail_to_an_agent_that_never_joined_is_reported_in_time(stage: Testbed) -> None:
    ada = stage.client("ada", ttl=None)
    for number in range(2):
        ada.run(ada.messages.send("ghost", str(number), hold=True))
        stage.clock.advance(HOUR / 2)
    assert problems(ada) == ()
    stage.clock.advance(1)
    found = one(ada)
    assert (found.kind, found.agent, found.thing) == ("unread", "ghost", "agent/ghost")
    assert found.since == stage.clock.wall() - HOUR - 1
    assert "2 messages wait for ghost" in found.says
    assert "no agent of that name has a session" in found.says
    assert "interlock inbox --agent ghost" in found.remedy


def test_mail_to_a_present_agent_is_no_problem(stage: Testbed) -> None:
    ada, bob = stage.client("ada", ttl=None), stage.client("bob", ttl=10 * HOUR)
    ada.run(ada.messages.send("bob"))
    stage.clock.advance(2 * HOUR)
    assert problems(ada) == ()
    bob.run(bob.agents.leave())
    assert "it is not here" in one(ada).says


def test_an_inbox_that_is_nearly_full_is_reported(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_INBOX", "10")
    ada = stage.client("ada", ttl=None)
    stage.client("bob")
    for _ in range(9):
        assert problems(ada) == ()
        ada.run(ada.messages.send("bob"))
    assert (one(ada).kind, one(ada).agent) == ("full", "bob")


def test_an_open_decision_is_reported_at_once(stage: Testbed) -> None:
    ada, bob = stage.client("ada", ttl=None), stage.client("bob")
    bob.run(bob.agents.leave())
    ada.run(ada.messages.query("bob", "may I?", person=True))
    found = one(ada)
    assert (found.kind, found.agent) == ("undecided", "ada")
    assert found.remedy == f"see 'interlock decision show {found.thing.removeprefix('decision/')}'"
    bob.run(bob.messages.resolve(found.thing.removeprefix("decision/"), "yes"))
    assert problems(ada) == ()


def test_an_expired_question_and_a_dead_receiver_are_reported(stage: Testbed) -> None:
    ada, bob = stage.client("ada", ttl=None), stage.client("bob", ttl=HOUR)
    bob.run(announce_receiver(bob.runner, bob.context.me().actor, "c1", 10.0))
    ada.start(ada.messages.query("bob", "where?", timeout="10s"))
    stage.clock.advance(70.0)
    assert [each.kind for each in problems(ada)] == ["stale"]
    stage.clock.advance(1.0)
    assert [each.kind for each in problems(ada)] == ["leftover", "stale"]
    ada.run(ada.fleet.maintain())
    assert problems(ada) == ()


def test_a_paused_agent_is_reported_with_the_reason(stage: Testbed) -> None:
    ada = stage.client("ada", ttl=None)
    halt = SenderPause(agent="spam", by="ada", since=stage.clock.wall(), reason="floods")
    known = send_rules.PauseState(known=True, paused=None)
    assert send_rules.pause(known, "spam", "ada", "floods", halt.since).puts[0].value == halt
    stage.store.commit(Txn(id="t", puts=(put("paused/spam", halt),), quiet=True))
    assert one(ada).says == "agent/spam: ada does not let it send: floods"


def test_an_unreadable_item_is_reported_alone(stage: Testbed) -> None:
    ada = stage.client("ada", ttl=None)
    ada.run(ada.messages.send("ghost", hold=True))
    (message,) = _keys(stage, keys.MESSAGES)
    broken = (
        message,
        "decisions/d",
        "paused/p",
        "serving/bob/c",
        "open/ada/qry_1",
        "queries/qry_1",
    )
    stage.store.commit(Txn(id="t", puts=tuple(Put(key, b"[") for key in broken), quiet=True))
    stage.clock.advance(2 * HOUR)
    *said, last = problems(ada)
    assert {each.kind for each in (*said, last)} == {"damaged"}
    assert last.says == f"store: {len(broken) - len(said)} more cannot be read"


def test_a_pass_says_if_there_is_more_than_it_reads(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.nouns.messages.health.MARKS", 0)
    ada = stage.client("ada", ttl=None)
    assert ada.run(ada.fleet.health()).partial


def _keys(stage: Testbed, prefix: str) -> list[str]:
    page = Range(prefix)
    return [item.key for item in stage.store.read(page).ranges[page]]


def put(key: str, value: object) -> Put:
    return Put(key, codec.encode(value))


def test_all_that_is_written_can_be_examined(stage: Testbed) -> None:
    """Doctor finds no damage in a sound store: every folder of messages can be decoded."""
    ada, bob = stage.client("ada", ttl=None), stage.client("bob", ttl=None)
    bob.run(bob.messages.subscribe("built", senders=["ada"], where={"x": 1}))
    sent = ada.run(ada.messages.alert("built", {"x": 1}))
    bob.run(bob.messages.ack(sent.message))  # type: ignore[union-attr]
    ada.run(ada.messages.send(("bob", "ada"), "hello", urgent=True))
    asked = ada.start(ada.messages.query("bob", "where?", id="qry_1"))
    bob.run(bob.messages.reply("qry_1", "here"))
    asked.run()
    ada.start(ada.messages.query("?gpu", "who?", hold=True))
    for folder in keys.MESSAGE_FOLDERS:
        page = Range(folder)
        for item in stage.store.read(page).ranges[page]:
            decode.examine(item)
