"""The wait for an answer: it ends with the asker, not with the question."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.nouns.messages.helpers import answer, waiting

from interlock.core import keys
from interlock.nouns.messages.query import (
    AskOutcome,
    Handed,
    Late,
    NobodyToAsk,
    QueryAnswered,
    QueryDeadlock,
    Replied,
    TimedOut,
)
from interlock.nouns.messages.query_service import ASKER_TTL, QUICK
from interlock.steps import NextChanges
from interlock.store import Range
from interlock.testing.testbed import Client, Stepper, Testbed


@pytest.fixture(params=["near", "far"])
def two(request: pytest.FixtureRequest) -> tuple[Testbed, Client, Client]:
    stage = Testbed()
    open_ = stage.client if request.param == "near" else stage.remote
    return stage, open_("ada", ttl=900.0), open_("bob", ttl=900.0)


def shell(client: Client) -> Client:
    """A command within the session of a shell."""
    client.context.identity = replace(client.context.identity, whole_session=True, caller="*")
    return client


def asks(client: Client, to: str, timeout: float = 60, **more: object) -> Stepper[AskOutcome]:
    """A question that was not answered at once, so that its wait was checked for a cycle."""
    terms: dict[str, object] = {"timeout": timeout, **more}
    hand = client.start(client.messages.query(to, "API?", **terms))  # type: ignore[arg-type]
    client.clock.advance(QUICK)
    return hand.run()


def interrupted(hand: Stepper[AskOutcome]) -> None:
    with pytest.raises(KeyboardInterrupt):
        hand.interrupt(KeyboardInterrupt()).result()


def listed(stage: Testbed) -> list[str]:
    page = Range(keys.WAITS)
    return [item.key for item in stage.store.read(page).ranges[page]]


def test_an_asker_that_was_interrupted_waits_no_more_though_its_question_is_kept(
    two: tuple[Testbed, Client, Client],
) -> None:
    stage, ada, bob = two
    interrupted(asks(ada, "bob", id="qry_1"))
    assert listed(stage) == []
    assert waiting(bob) == ["API?"]
    assert not asks(bob, "ada").done, "ada goes on"


def test_an_asker_that_comes_back_is_listed_again(two: tuple[Testbed, Client, Client]) -> None:
    stage, ada, bob = two
    interrupted(asks(ada, "bob", id="qry_1"))
    again = asks(ada, "bob", id="qry_1")
    assert listed(stage) == [keys.waits("agent:ada", "qry_1")]
    assert isinstance(asks(bob, "ada").result(), QueryDeadlock)
    bob.run(bob.messages.reply("qry_1", "v2"))
    assert answer(again.run().result()) == QueryAnswered(query="qry_1", answer="v2", by="bob")
    assert listed(stage) == []


def test_who_left_does_not_end_the_wait_of_who_took_over(
    two: tuple[Testbed, Client, Client],
) -> None:
    stage, ada, _ = two
    first = asks(ada, "bob", id="qry_1")
    heir = stage.client("ada")
    heir.someone.holds.add("something")
    asks(heir, "bob", id="qry_1")
    interrupted(first)
    assert len(listed(stage)) == 2


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("id_", ["qry_1", None])
def test_an_asker_at_a_shell_that_was_killed_waits_no_more_soon_after(
    two: tuple[Testbed, Client, Client], id_: str | None, *, joined: bool
) -> None:
    stage, ada, bob = two
    asker = shell(ada) if joined else stage.client("cleo", ttl=None)
    killed = asks(asker, "bob", timeout=900, id=id_)
    for _ in range(5):
        stage.clock.advance(4.0)
        killed.run()
    name = asker.context.identity.actor.agent
    assert isinstance(asks(bob, name).result(), QueryDeadlock), "it still waits"
    stage.clock.advance(10.0)
    assert not asks(bob, name).done
    assert waiting(bob) == ["API?"], "and is still to be answered"


def test_an_asker_at_a_shell_that_overslept_is_not_revived_and_gets_its_answer(
    two: tuple[Testbed, Client, Client],
) -> None:
    stage, ada, bob = two
    hand = asks(shell(ada), "bob", id="qry_1")
    stage.clock.advance(ASKER_TTL + 1)
    assert not hand.run().done
    live = keys.asker_live("qry_1")
    assert stage.store.read(live)[live] is None
    bob.run(bob.messages.reply("qry_1", "v2"))
    assert isinstance(hand.run().result(), QueryAnswered)


def test_a_short_question_of_a_shell_costs_no_liveness_key_but_its_own() -> None:
    stage = Testbed()
    ada, _ = shell(stage.client("ada")), stage.client("bob")
    asks(ada, "bob", timeout=10)
    assert not [item for item in live(stage) if ".asker" in item]
    asks(ada, "bob", timeout=11, id="qry_1")
    assert keys.asker_live("qry_1") in live(stage)
    ada.run(ada.messages.cancel("qry_1"))
    assert keys.asker_live("qry_1") not in live(stage)


def live(stage: Testbed) -> list[str]:
    page = Range(keys.LIVE)
    return [item.key for item in stage.store.read(page).ranges[page]]


def test_an_asker_looks_less_and_less_often_while_nothing_happens() -> None:
    stage = Testbed()
    ada, bob = stage.client("ada", ttl=900.0), stage.client("bob", ttl=900.0)
    bob.run(bob.agents.status("idle", can=["rust"]))
    hand = asks(ada, "?rust", timeout=100, id="qry_1")
    for _ in range(63):
        stage.clock.advance(1.0)
        hand.run()
    looks = sum(isinstance(step, NextChanges) for step in hand.steps)
    assert looks == 1 + 1 + 1 + 1 + 7, "after a moment, after 1, 2, 4 s, and then every 8 s"
    bob.run(bob.messages.reply("qry_1", "2024"))
    assert isinstance(hand.run().result(), QueryAnswered), "though an answer arrives at once"


def test_a_shorter_time_ends_the_wait_and_not_the_question(
    two: tuple[Testbed, Client, Client],
) -> None:
    stage, ada, bob = two
    interrupted(asks(ada, "bob", timeout=60, id="qry_1"))
    again = asks(ada, "bob", timeout=5, id="qry_1")
    stage.clock.advance(5)
    assert again.run().result() == TimedOut(query="qry_1", to="bob", timeout=5.0)
    assert listed(stage) == []
    assert bob.run(bob.messages.reply("qry_1", "v2")) == Replied(query="qry_1", to="ada")
    assert isinstance(asks(ada, "bob", id="qry_1").result(), QueryAnswered)


def test_a_longer_time_is_that_of_the_question(two: tuple[Testbed, Client, Client]) -> None:
    stage, ada, bob = two
    first = asks(ada, "bob", timeout=5, id="qry_1")
    longer = asks(ada, "bob", timeout=60, id="qry_1")
    stage.clock.advance(5)
    assert first.run().result() == TimedOut(query="qry_1", to="bob", timeout=5.0)
    stage.clock.advance(54)
    assert not longer.run().done
    bob.run(bob.messages.reply("qry_1", "v2"))
    assert isinstance(longer.run().result(), QueryAnswered)


def test_the_end_of_the_question_ends_a_wait_that_would_have_had_more_time(
    two: tuple[Testbed, Client, Client],
) -> None:
    stage, ada, bob = two
    interrupted(asks(ada, "bob", timeout=10, id="qry_1", person=True))
    stage.clock.advance(7)
    again = asks(ada, "bob", timeout=8, id="qry_1")
    stage.clock.advance(3)
    assert isinstance(again.run().result(), Handed)
    assert isinstance(bob.run(bob.messages.reply("qry_1", 1)), Replied)


def test_a_question_whose_time_was_up_is_not_revived(two: tuple[Testbed, Client, Client]) -> None:
    stage, ada, bob = two
    interrupted(asks(ada, "bob", timeout=10, id="qry_1"))
    stage.clock.advance(11)
    ended = asks(ada, "bob", timeout=60, id="qry_1").result()
    assert ended == TimedOut(query="qry_1", to="bob", timeout=10.0, over=True)
    assert bob.run(bob.messages.reply("qry_1", 1)) == Late(query="qry_1", state="expired")


def test_an_agent_that_was_there_before_is_asked_only_while_a_session_of_it_lives(
    two: tuple[Testbed, Client, Client],
) -> None:
    """The asker knows its sessions, and reads their liveness together with the list of them."""
    stage, ada, bob = two
    interrupted(asks(ada, "bob"))
    assert not asks(ada, "bob").done
    bob.run(bob.agents.leave())
    assert isinstance(asks(ada, "bob").result(), NobodyToAsk)
    stage.client("bob", ttl=900.0)
    assert not asks(ada, "bob").done, "another session"


def test_a_question_ends_when_the_agent_that_was_asked_is_gone(
    two: tuple[Testbed, Client, Client],
) -> None:
    stage, ada, _ = two
    bob = (stage.client if ada.store.capabilities.transacts else stage.remote)("bo", ttl=20.0)
    asked = asks(ada, "bo", timeout=600, id="qry_1")
    stage.clock.advance(30)  # the process of bo is dead: its session ends
    assert not asked.run().done, "it may start again"
    stage.clock.advance(10)
    assert asked.run().result() == NobodyToAsk(to="bo")
    assert (listed(stage), waiting(bob)) == ([], [])
    late = bob.run(bob.messages.reply("qry_1", "v2"))
    assert late == Late(query="qry_1", state="away")


def test_a_question_waits_for_an_agent_that_starts_again(
    two: tuple[Testbed, Client, Client],
) -> None:
    stage, ada, bob = two
    asked = asks(ada, "bob", timeout=600, id="qry_1")
    bob.run(bob.agents.leave())
    for _ in range(3):
        stage.clock.advance(1)
        assert not asked.run().done
    open_ = stage.client if ada.store.capabilities.transacts else stage.remote
    again = open_("bob", ttl=900.0)
    stage.clock.advance(60)
    assert not asked.run().done
    again.run(again.messages.reply("qry_1", "v2"))
    assert answer(asked.run().result()) == QueryAnswered(query="qry_1", answer="v2", by="bob")


def test_a_question_on_hold_waits_for_an_agent_that_is_gone(
    two: tuple[Testbed, Client, Client],
) -> None:
    stage, ada, bob = two
    asked = asks(ada, "bob", timeout=600, hold=True)
    bob.run(bob.agents.leave())
    for _ in range(5):
        stage.clock.advance(60)
        assert not asked.run().done


def test_a_person_is_asked_when_the_agent_that_was_asked_is_gone(
    two: tuple[Testbed, Client, Client],
) -> None:
    stage, ada, bob = two
    asked = asks(ada, "bob", timeout=600, person=True)
    bob.run(bob.agents.leave())
    stage.clock.advance(2)
    asked.run()
    stage.clock.advance(10)
    assert isinstance(asked.run().result(), Handed)
