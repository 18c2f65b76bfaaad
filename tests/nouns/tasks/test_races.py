"""Two clients across a network at the same tasks, step by step."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.nouns.tasks import task_truths

from interlock.nouns.tasks.task_outcomes import Claimed, NoTask, TaskCompleted, TaskFenced
from interlock.steps import Commit
from interlock.testing.faults import Fault
from interlock.testing.testbed import Client, Stepper, Testbed


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


def claim(client: Client, task: str) -> int:
    got = client.run(client.tasks.claim(task))
    assert isinstance(got, Claimed)
    return got.token or 0


def before_commit(hand: Stepper[Any]) -> Stepper[Any]:
    """Go on up to the commit."""
    while not isinstance(hand._next, Commit):
        assert hand.go()
    return hand


def start(client: Client, op: Any) -> Stepper[Any]:
    """Begin without a step."""
    return Stepper(op, client.store, client.clock)


def sound(stage: Testbed) -> None:
    assert task_truths.complaints(task_truths.look(stage.store)) == []


def test_a_task_that_begins_to_hang_while_its_need_is_completed_is_not_forgotten(
    stage: Testbed,
) -> None:
    ada, bob = stage.remote("ada"), stage.remote("bob")
    ada.run(ada.tasks.publish("need"))
    ada.run(ada.tasks.publish("first", needs=["need"]))
    token = claim(ada, "need")
    completing = before_commit(start(ada, ada.tasks.complete("need", token=token)))
    bob.run(bob.tasks.publish("late", needs=["need"]))
    assert isinstance(completing.run().result(), TaskCompleted)
    sound(stage)
    for task in ("first", "late"):
        claim(bob, task)


def cramped(stage: Testbed, name: str) -> Client:
    """A client whose commits have room for little, so that more is left to do."""
    client = stage.remote(name)
    client.runner.capabilities = replace(client.runner.capabilities, max_operations=30)
    return client


@pytest.mark.parametrize("steps", range(8))
def test_two_who_drain_the_same_need_skip_none_of_the_others(stage: Testbed, steps: int) -> None:
    ada, bob = cramped(stage, "ada"), cramped(stage, "bob")

    def left(need: str) -> list[str]:
        hangs = task_truths.look(stage.store).hangs
        return [task for task, on in hangs.items() if on == [need]]

    for need in ("one", "two"):
        ada.run(ada.tasks.publish(need))
    for number in range(9):
        ada.run(ada.tasks.publish(f"t{number}", needs=["one", "two"]))
    completing = start(ada, ada.tasks.complete("one", token=claim(ada, "one")))
    while not task_truths.look(stage.store).todo:
        assert completing.go()
    late = start(bob, bob.context.tasks.housekeeping.drain(bob.context.me().actor, "one"))
    for _ in range(steps):
        late.go()
    before = len(left("one"))
    while len(left("one")) == before:
        assert completing.go()
    late.run().result()
    completing.run().result()
    sound(stage)
    assert isinstance(got := bob.run(bob.tasks.next()), Claimed)
    assert got.task == "two"
    assert isinstance(bob.run(bob.tasks.next()), NoTask)


def test_a_place_that_was_left_behind_is_no_lost_race(stage: Testbed) -> None:
    """Who is alone keeps the exact order, though it claims by name now and then."""
    ada = stage.remote("ada")
    for number in range(40):
        ada.run(ada.tasks.publish(f"t{number:02}", deadline=5 if number % 3 == 1 else None))
    taken = [claim(ada, f"t{number:02}") and number for number in range(0, 40, 3)]
    stage.clock.advance(6)
    while isinstance(got := ada.run(ada.tasks.next()), Claimed):
        taken.append(int(got.task[1:]))
    assert taken == [*range(0, 40, 3), *range(2, 40, 3)]


@pytest.mark.parametrize("fault", ["lost reply", "late arrival"])
def test_a_claim_whose_reply_was_lost_has_its_data(stage: Testbed, fault: Fault) -> None:
    ada = stage.remote("ada")
    ada.run(ada.tasks.publish("t", {"x": 1}, priority=2))
    ada.network.script([fault])
    got = ada.run(ada.tasks.claim("t"))
    assert isinstance(got, Claimed)
    assert (got.data, got.priority) == ({"x": 1}, 2)
    assert isinstance(ada.run(ada.tasks.complete("t", token=got.token)), TaskCompleted)


def test_who_wrote_about_its_task_since_it_was_claimed_looks_before_it_ends_the_claim(
    stage: Testbed,
) -> None:
    ada, bob = stage.remote("ada"), stage.remote("bob")
    ada.run(ada.tasks.publish("t"))
    token = claim(ada, "t")
    ada.run(ada.tasks.cancel("t"))
    assert isinstance(ada.run(ada.tasks.release("t", token=token)), TaskFenced)
    ada.run(ada.tasks.retry("t"))
    token = claim(ada, "t")
    bob.run(bob.tasks.cancel("t"))
    bob.run(bob.tasks.retry("t"))
    ada.run(ada.tasks.publish("hangs", needs=["t"]))
    assert isinstance(ada.run(ada.tasks.complete("t", token=token)), TaskFenced)
