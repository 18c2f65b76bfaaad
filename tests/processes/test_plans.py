"""Plans published and needs completed by real processes that are killed between two commits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.processes import checks
from tests.processes.helpers import ProcessGroup
from tests.processes.plan_programs import TASKS, specs

import interlock
from interlock.core import keys
from interlock.nouns.tasks import task_outcomes
from interlock.nouns.tasks.task_outcomes import Imported, PlanExists
from interlock.store import Range

MANY = {f"t{number}" for number in range(TASKS)}


@pytest.fixture
def planners() -> Iterator[ProcessGroup]:
    with ProcessGroup("tests.processes.plan_programs") as everybody:
        yield everybody


def listed(fleet: interlock.Fleet, prefix: str = keys.READY) -> set[str]:
    """The tasks in an index, by default the ready ones."""
    page = Range(prefix)
    return {keys.task_in_index(item.key) for item in fleet.store.read(page).ranges[page]}


def publish(url: str, planners: ProcessGroup, commits: int) -> bool:
    """One process is killed, and another repeats its work; whether the first had finished."""
    planners.start("publishes", url, commits).died()
    with interlock.connect(url, agent="bob") as fleet:
        assert listed(fleet) <= {"root"}, "nothing else may begin"
        outcome = fleet.tasks.publish_all(specs())
        assert isinstance(outcome, Imported | PlanExists)
        assert not isinstance(outcome, PlanExists) or not outcome.task
        assert listed(fleet) == {"root"}
        assert isinstance(fleet.tasks.claim("root"), task_outcomes.Claimed)
        fleet.tasks.complete("root")
        assert listed(fleet) == MANY
    checks.sound(url)
    return isinstance(outcome, PlanExists)


def complete(url: str, planners: ProcessGroup, commits: int) -> None:
    """A process is killed after it completed the task that all need; the next one continues."""
    with interlock.connect(url, agent="bob") as fleet:
        fleet.tasks.publish_all(specs())
        planners.start("completes", url, commits).died()
        assert listed(fleet, keys.TODO) == {"root"}, "it died too late"
        assert listed(fleet) < MANY
        done = set()
        while isinstance(claim := fleet.tasks.next(), task_outcomes.Claimed):
            done.add(claim.task)
            assert isinstance(fleet.tasks.complete(claim.task), task_outcomes.TaskCompleted)
        assert done == {*MANY, "end"}
    checks.sound(url)


def test_a_plan_whose_publisher_was_killed_is_finished_by_the_next(
    url: str, planners: ProcessGroup
) -> None:
    assert not publish(url, planners, 3)


@pytest.mark.parametrize("where", ["redis", "etcd"])
def test_what_was_left_by_whoever_was_killed_while_others_waited_is_moved_on(
    request: pytest.FixtureRequest, where: str, planners: ProcessGroup
) -> None:
    complete(request.getfixturevalue(f"{where}_url"), planners, 2)


@pytest.mark.proof
@pytest.mark.parametrize("commits", range(5))
def test_killed_before_any_commit_a_plan_is_finished_by_the_next(
    url: str, planners: ProcessGroup, commits: int
) -> None:
    publish(url, planners, commits)
