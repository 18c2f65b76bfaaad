from __future__ import annotations

from functools import partial

import pytest
from tests.nouns.tasks import task_truths

from interlock.core import keys
from interlock.nouns.tasks import housekeeping, task_outcomes
from interlock.nouns.tasks.housekeeping import TaskHousekeeping, TaskMaintenance
from interlock.runtime.housekeeping import HousekeepingPass, Maintained
from interlock.runtime.identity import Actor
from interlock.store import Log, Range, Txn
from interlock.testing.audit import audit
from interlock.testing.testbed import Client, Stepper, Testbed


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


def maintain(stage: Testbed, bound: int = 1000) -> Maintained:
    keeper = stage.client("keeper", ttl=None)
    return keeper.run(HousekeepingPass(keeper.runner).run(Actor("keeper"), bound))


def lost(stage: Testbed, count: int) -> None:
    """Workers that each claimed a task and are gone."""
    for number in range(count):
        worker = stage.client(f"worker-{number}", ttl=1.0)
        worker.run(worker.tasks.publish(f"t{number}"))
        worker.run(worker.tasks.claim(f"t{number}"))
    stage.clock.advance(2.0)


def state(client: Client, task: str) -> str:
    outcome = client.run(client.tasks.publish(task))
    assert isinstance(outcome, task_outcomes.TaskExists)
    return outcome.state


def test_a_pass_puts_back_what_the_lost_worked_on_and_clears_their_sessions(stage: Testbed) -> None:
    lost(stage, 3)
    assert maintain(stage) == Maintained(reclaimed=6)
    assert maintain(stage) == Maintained()
    bob = stage.client("bob")
    assert state(bob, "t0") == "pending"
    assert bob.run(bob.agents.list())[0].agent == "bob"
    assert audit(stage.store) == []


def test_a_session_is_cleared_only_when_its_claims_are_put_back(stage: Testbed) -> None:
    lost(stage, 3)
    assert maintain(stage, bound=2) == Maintained(reclaimed=2, left=1 + 3)
    assert maintain(stage, bound=2) == Maintained(reclaimed=2, left=2)
    assert maintain(stage) == Maintained(reclaimed=2)


@pytest.mark.parametrize("steps", range(1, 12))
def test_a_session_that_lapses_during_a_pass_does_not_leave_its_claims_alone(steps: int) -> None:
    stage = Testbed()
    ada, keeper = stage.client("ada", ttl=1.0), stage.client("keeper", ttl=None)
    ada.run(ada.tasks.publish("t1"))
    ada.run(ada.tasks.claim("t1"))
    hand = Stepper(HousekeepingPass(keeper.runner).run(Actor("keeper")), keeper.store, stage.clock)
    for _ in range(steps):
        hand.go()
    stage.clock.advance(2.0)
    hand.run().result()
    held = stage.store.read(keys.session(ada.session), keys.owner("t1"))
    assert held[keys.session(ada.session)] or not held[keys.owner("t1")]
    maintain(stage)
    assert maintain(stage) == Maintained()
    assert not stage.store.read(keys.session(ada.session))[keys.session(ada.session)]


def test_nothing_expires_before_its_deadline(stage: Testbed) -> None:
    ada = stage.client("ada")
    ada.run(ada.tasks.publish("t1"))
    ada.run(ada.tasks.publish("t2", deadline=10))
    progress = TaskHousekeeping(ada.runner)
    for task in ("t1", "t2"):
        assert ada.run(progress.expire(Actor("keeper"), (task,))) == 0
        assert state(ada, task) == "pending"


def test_a_claim_with_a_ttl_of_its_own_does_not_keep_a_lapsed_session(stage: Testbed) -> None:
    ada = stage.client("ada", ttl=1.0)
    ada.run(ada.tasks.publish("t1"))
    ada.run(ada.tasks.claim("t1", ttl=60))
    stage.clock.advance(2.0)
    assert maintain(stage) == Maintained(reclaimed=1)
    assert state(ada, "t1") == "running"


def test_tasks_whose_time_has_come_are_ready(stage: Testbed) -> None:
    ada = stage.client("ada")
    for number in range(20):
        ada.run(ada.tasks.publish(f"t{number}", not_before=10))
    ada.run(ada.tasks.publish("later", not_before=20))
    assert maintain(stage) == Maintained()
    stage.clock.advance(10.0)
    assert maintain(stage) == Maintained(moved=20)
    assert maintain(stage) == Maintained()
    assert ready(stage) == 20


def test_a_rest_ends_by_the_clock_of_the_store(stage: Testbed) -> None:
    ada = stage.client("ada")
    ada.run(ada.tasks.publish("t1", backoff=5))
    ada.run(ada.tasks.claim("t1"))
    ada.run(ada.tasks.fail("t1"))
    stage.clock.jump_wall(-3600)
    assert maintain(stage) == Maintained()
    stage.clock.advance(10.0)
    assert maintain(stage) == Maintained(moved=1)


def test_what_nobody_began_in_time_is_a_dead_letter(stage: Testbed) -> None:
    ada = stage.client("ada")
    ada.run(ada.tasks.publish("t1", deadline=10))
    ada.run(ada.tasks.publish("t2", deadline=10))
    ada.run(ada.tasks.claim("t2"))
    stage.clock.advance(11.0)
    assert maintain(stage) == Maintained(moved=1)
    assert (state(ada, "t1"), state(ada, "t2")) == ("dead", "running")
    assert maintain(stage) == Maintained()


def test_what_was_left_hanging_on_a_complete_need_goes_on(stage: Testbed) -> None:
    ada = stage.remote("ada")
    ada.run(ada.tasks.publish("need"))
    for number in range(300):
        ada.run(ada.tasks.publish(f"t{number}", needs=["need"]))
    ada.run(ada.tasks.claim("need"))
    completing = Stepper(ada.tasks.complete("need"), ada.store, stage.clock)
    while not stage.store.read(keys.todo("need"))[keys.todo("need")]:
        assert completing.go()
    before = ready(stage)
    assert 0 < before < 300
    assert maintain(stage).moved == 300 - before
    assert (ready(stage), maintain(stage)) == (300, Maintained())


def test_the_place_of_a_task_that_runs_is_taken_away(stage: Testbed) -> None:
    """Who claims by name across a network does not know the place, and leaves it standing."""
    ada = stage.remote("ada")
    ada.run(ada.tasks.publish("t1"))
    ada.run(ada.tasks.claim("t1"))
    assert ready(stage) == 1
    assert maintain(stage) == Maintained(reclaimed=1)
    assert (ready(stage), maintain(stage)) == (0, Maintained())
    assert isinstance(ada.run(ada.tasks.complete("t1")), task_outcomes.TaskCompleted)


def test_two_passes_at_once_do_everything_once(stage: Testbed) -> None:
    lost(stage, 3)
    ada = stage.client("ada")
    ada.run(ada.tasks.publish("late", deadline=0.5))
    stage.clock.advance(1.0)
    keepers = [stage.remote("one", ttl=None), stage.remote("two", ttl=None)]
    hands = [
        Stepper(TaskMaintenance(each.runner).run(Actor(), 100), each.store, stage.clock)
        for each in keepers
    ]
    while not all(hand.done for hand in hands):
        for hand in hands:
            hand.go()
    assert sum(hand.result().reclaimed for hand in hands) == 3
    assert sum(hand.result().moved for hand in hands) == 1
    assert audit(stage.store) == []


def test_a_store_without_tasks_costs_one_look(stage: Testbed) -> None:
    keeper = stage.client("keeper")
    hand = Stepper(TaskMaintenance(keeper.runner).run(Actor(), 100), keeper.store, stage.clock)
    hand.go()
    assert hand.done


def ready(stage: Testbed) -> int:
    page = Range(keys.READY)
    return len(stage.store.read(page).ranges[page])


@pytest.mark.parametrize("many", [1000, 1])
def test_a_pass_lists_tasks_under_labels_that_an_older_client_published(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    monkeypatch.setattr(housekeeping, "_MANY", many)
    ada = stage.client("ada")
    for task in ("a", "b", "c"):
        ada.run(ada.tasks.publish(task, labels=["x", "y"]))
    lost = (keys.label("x", "a"), keys.label("x", "b"), keys.label("y", "b"))
    stage.store.commit(Txn(id="drop", deletes=lost, quiet=True))
    work = partial(housekeeping.restore_labels, ada.runner, ada.context.me().actor)
    assert ada.run(work(1)) == 1
    assert ada.run(work(100)) == 0
    assert task_truths.complaints(task_truths.look(stage.store)) == []
    before = stage.store.read(Log(limit=1)).revision
    assert ada.run(work(100)) == 0
    assert stage.store.read(Log(limit=1)).revision == before
