"""What a session reports that it can do is what it can do in every claim, and in why and health."""

from __future__ import annotations

import threading

import pytest
from tests.processes.helpers import until

import interlock
from interlock.clock import SystemClock
from interlock.nouns.tasks.task_outcomes import Claimed, NoTask, TaskCompleted
from interlock.stores.memory import MemoryStore
from interlock.testing.testbed import Client, Testbed


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


@pytest.fixture(params=["client", "remote"])
def ada(stage: Testbed, request: pytest.FixtureRequest) -> Client:
    return stage.client("ada") if request.param == "client" else stage.remote("ada")


def task_of(found: object) -> str:
    return found.task if isinstance(found, Claimed) else ""


def test_the_next_task_is_one_of_what_the_session_reports(ada: Client) -> None:
    ada.run(ada.tasks.publish("t1", requires=["gpu"]))
    assert isinstance(ada.run(ada.tasks.next()), NoTask)
    ada.run(ada.agents.status(can=["gpu"]))
    found = ada.run(ada.tasks.next())
    assert task_of(found) == "t1"


def test_a_call_that_names_abilities_has_these_alone(ada: Client) -> None:
    ada.run(ada.agents.status(can=["gpu"]))
    ada.run(ada.tasks.publish("t1", requires=["gpu"]))
    ada.run(ada.tasks.publish("t2", requires=["rust"]))
    assert task_of(ada.run(ada.tasks.next(can=["rust"]))) == "t2"
    assert isinstance(ada.run(ada.tasks.next(can=[])), NoTask)
    assert task_of(ada.run(ada.tasks.next())) == "t1"


def test_what_is_no_longer_reported_is_no_longer_claimed(ada: Client) -> None:
    ada.run(ada.agents.status(can=["gpu"]))
    for task in ("t1", "t2"):
        ada.run(ada.tasks.publish(task, requires=["gpu"]))
    assert task_of(ada.run(ada.tasks.next())) == "t1"
    ada.run(ada.agents.status(can=["rust"]))
    assert isinstance(ada.run(ada.tasks.next()), NoTask)


def test_the_commit_that_ends_a_task_claims_what_the_session_can(ada: Client) -> None:
    ada.run(ada.agents.status(can=["gpu"]))
    for task in ("t1", "t2"):
        ada.run(ada.tasks.publish(task, requires=["gpu"]))
    ada.run(ada.tasks.next())
    done = ada.run(ada.tasks.complete("t1", then_next=True))
    assert isinstance(done, TaskCompleted)
    assert task_of(done.next) == "t2"


def test_several_are_claimed_of_what_the_session_can(ada: Client) -> None:
    ada.run(ada.agents.status(can=["gpu"]))
    for task in ("t1", "t2"):
        ada.run(ada.tasks.publish(task, requires=["gpu"]))
    found = ada.run(ada.tasks.next(limit=2))
    assert isinstance(found, Claimed)
    assert [task_of(each) for each in (found, *found.others)] == ["t1", "t2"]


def test_a_new_ability_ends_a_wait(ada: Client) -> None:
    ada.run(ada.tasks.publish("t1", requires=["gpu"]))
    waiting = ada.start(ada.tasks.next(wait=600))
    ada.run(ada.agents.status(can=["gpu"]))
    assert task_of(waiting.run().result()) == "t1", "without the next look at the clock"


def test_nothing_names_the_abilities_that_are_missing_for_what_is_ready(ada: Client) -> None:
    ada.run(ada.tasks.publish("t1", requires=["gpu", "rust"]))
    ada.run(ada.tasks.publish("t2", requires=["go"], needs=["t1"]))
    ada.run(ada.agents.status(can=["rust"]))
    found = ada.run(ada.tasks.next())
    assert isinstance(found, NoTask)
    assert (found.can, found.missing) == (("rust",), ("gpu",)), "t2 is not ready"
    assert "requires gpu" in found.reason


def test_nothing_names_when_the_next_task_begins(ada: Client) -> None:
    ada.run(ada.tasks.publish("t1", requires=["gpu"], not_before=60))
    ada.run(ada.tasks.publish("t2", not_before=90))
    found = ada.run(ada.tasks.next())
    assert isinstance(found, NoTask)
    assert (found.soonest, found.begins_in) == ("task/t2", 90.0), "we cannot do t1"
    assert "task t2 may begin in 90 s" in found.reason
    ada.run(ada.agents.status(can=["gpu"]))
    found = ada.run(ada.tasks.next())
    assert isinstance(found, NoTask)
    assert (found.soonest, found.begins_in) == ("task/t1", 60.0)


def test_nothing_names_a_task_that_rests(ada: Client) -> None:
    ada.run(ada.tasks.publish("t1", backoff=40))
    ada.run(ada.tasks.next())
    ada.run(ada.tasks.fail("t1", "no"))
    found = ada.run(ada.tasks.next())
    assert isinstance(found, NoTask)
    assert found.soonest == "task/t1"
    assert 0 < (found.begins_in or 0) < 60, "with jitter"


def test_nothing_at_all_names_nothing(ada: Client) -> None:
    found = ada.run(ada.tasks.next())
    assert isinstance(found, NoTask)
    assert (found.can, found.missing, found.soonest, found.begins_in) == ((), (), "", None)


def test_two_workers_of_one_session_report_what_both_can() -> None:
    store, ended = MemoryStore(SystemClock()), []
    with interlock.connect(agent="ada", store=store) as fleet:
        fleet.agents.status(can=["go"])
        workers = [
            fleet.tasks.work(can=[each], stop_on_signals=False, stop_on_messages=False)
            for each in ("gpu", "rust")
        ]
        threads = [
            threading.Thread(target=worker.serve, args=(lambda claim: ended.append(claim.task),))
            for worker in workers
        ]
        for thread in threads:
            thread.start()
        until(lambda: set(fleet.agents.show("ada")[0].can) == {"go", "gpu", "rust"})
        for ability in ("gpu", "rust", "go"):
            fleet.tasks.publish(f"t-{ability}", requires=[ability])
        until(lambda: set(ended) == {"t-gpu", "t-rust"})
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join()
        worker = fleet.tasks.work()
        for claim in worker:
            assert claim.task == "t-go"
            worker.stop()


def test_a_session_that_follows_another_can_do_the_same(stage: Testbed) -> None:
    ada = stage.client("ada")
    ada.run(ada.agents.status(can=["gpu"]))
    ada.context.pulse.be("idle")
    ada.run(ada.context.keeper.run_due())
    identity = ada.context.identity
    ada.run(ada.agents.leave())
    ada.run(ada.context.rejoin(identity))
    ada.run(ada.context.keeper.run_due())
    assert [each.can for each in ada.run(ada.agents.list()) if each.state == "alive"] == [("gpu",)]
