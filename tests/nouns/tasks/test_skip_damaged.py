"""A damaged item delays only callers that want its task."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from interlock.core import codec, keys
from interlock.errors import Lapsed, StoreDamaged
from interlock.nouns.tasks import task as core
from interlock.nouns.tasks import task_outcomes
from interlock.nouns.tasks.claim_service import SLOW_PATH
from interlock.store import Put, Range, Txn
from interlock.testing.testbed import Client, Testbed

TTL = 100_000.0


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


@pytest.fixture(params=[True, False], ids=["local", "remote"])
def ada(stage: Testbed, request: pytest.FixtureRequest) -> Client:
    return stage.client("ada", ttl=TTL) if request.param else stage.remote("ada", ttl=TTL)


def damage(stage: Testbed, *wanted: str) -> None:
    puts = tuple(Put(key, b"garbage") for key in wanted)
    stage.store.commit(Txn(id=f"damage {wanted[0]}", puts=puts, quiet=True))


def keys_under(stage: Testbed, prefix: str) -> list[str]:
    page = Range(prefix)
    return [item.key for item in stage.store.read(page).ranges[page]]


def done(client: Client) -> list[str]:
    """Everything there is to do, in its order."""
    found = []
    while isinstance(claim := client.run(client.tasks.next(can=["*"])), task_outcomes.Claimed):
        client.run(client.tasks.complete(claim.task, token=claim.token))
        found.append(claim.task)
    return found


@pytest.mark.parametrize("part", [keys.status, keys.owner])
def test_the_next_one_is_claimed_past_a_task_that_cannot_be_read(
    stage: Testbed, ada: Client, part: Callable[[str], str]
) -> None:
    ada.run(ada.tasks.publish("bad", priority=1))
    (place,) = keys_under(stage, keys.READY)
    ada.run(ada.tasks.publish("last", priority=7))
    ada.run(ada.tasks.publish("able", requires=["gpu"]))
    ada.run(ada.tasks.publish("plain"))
    damage(stage, part("bad"))
    assert done(ada) == ["able", "plain", "last"], "the best first"
    assert keys_under(stage, keys.READY) == [place], "it stays where it is"
    with pytest.raises(StoreDamaged, match="tasks/bad/"):
        ada.run(ada.tasks.claim("bad"))


def test_the_data_of_one_task_hold_up_no_other(stage: Testbed, ada: Client) -> None:
    ada.run(ada.tasks.publish("bad", priority=1))
    ada.run(ada.tasks.publish("good"))
    damage(stage, keys.data("bad"))
    assert done(ada) == ["good"]


def test_a_place_that_cannot_be_read_is_a_place(stage: Testbed, ada: Client) -> None:
    ada.run(ada.tasks.publish("first", priority=1))
    ada.run(ada.tasks.publish("late", priority=2, deadline=1))
    damage(stage, *keys_under(stage, keys.READY))
    ada.run(ada.tasks.publish("second"))
    stage.clock.advance(2.0)
    assert done(ada) == ["first", "second"], "its status knows the deadline"


def test_what_rests_and_what_is_lost_goes_on_past_one_that_cannot_be_read(
    stage: Testbed, ada: Client
) -> None:
    bob = stage.client("bob", ttl=1.0)
    for task in ("bad", "later", "unreadable"):
        ada.run(ada.tasks.publish(task, not_before=5))
    for task in ("lost", "worse"):
        ada.run(ada.tasks.publish(task, backoff=0))
        bob.run(bob.tasks.claim(task))
    rest = next(key for key in keys_under(stage, keys.DUE) if key.endswith("unreadable"))
    damage(stage, keys.status("bad"), keys.status("worse"), rest)
    stage.clock.advance(10.0)
    assert sorted(done(ada)) == ["later", "lost", "unreadable"]


def test_requirements_that_cannot_be_read_are_nobodys_to_do(stage: Testbed, ada: Client) -> None:
    ada.run(ada.tasks.publish("g", requires=["gpu"]))
    ada.run(ada.tasks.publish("r", requires=["rust"]))
    ada.run(ada.tasks.publish("plain"))
    damage(stage, keys.requirement_set("gpu"))
    eve = stage.client("eve")
    assert done(eve) == ["r", "plain"]


def test_who_waits_is_woken_by_a_task_that_can_be_read(stage: Testbed, ada: Client) -> None:
    ada.run(ada.tasks.publish("bad"))
    damage(stage, keys.status("bad"))
    waits = ada.start(ada.tasks.next(wait=60))
    bob = stage.client("bob")
    bob.run(bob.tasks.publish("good"))
    claim = waits.run().result()
    assert isinstance(claim, task_outcomes.Claimed)
    assert claim.task == "good"
    nothing = ada.run(ada.tasks.next(wait=5))
    assert isinstance(nothing, task_outcomes.NoTask)
    assert "see 'interlock doctor'" in nothing.reason


def test_nobody_waits_past_the_end_of_its_session(stage: Testbed) -> None:
    bob = stage.client("bob", ttl=2.0)
    bob.context.no_retry = True
    bob.run(bob.tasks.publish("bad"))
    damage(stage, keys.status("bad"))
    with pytest.raises(Lapsed, match="join again"):
        bob.run(bob.tasks.next(wait=600))


def test_the_quick_way_is_not_tried_each_time_and_not_given_up(stage: Testbed, ada: Client) -> None:
    ada.run(ada.tasks.publish("bad"))
    damage(stage, keys.status("bad"))
    for _ in range(5):
        ada.run(ada.tasks.next())
    assert len(ada.context.grants.pending) == 1, "what it may have begun there"
    sound = codec.encode(core.FRESH)
    stage.store.commit(Txn(id="mend", puts=(Put(keys.status("bad"), sound),), quiet=True))
    assert done(ada) == ["bad"]
    stage.clock.advance(SLOW_PATH)
    nothing = ada.run(ada.tasks.next())
    assert isinstance(nothing, task_outcomes.NoTask)
    assert "doctor" not in nothing.reason
