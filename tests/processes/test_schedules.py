"""Schedules and real processes: eight look at once, publishers are killed, each run comes once."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.processes import checks
from tests.processes.helpers import ProcessGroup, fewer

import interlock
from interlock.nouns.schedules.schedule import Schedule
from interlock.nouns.schedules.service import ScheduleService
from interlock.nouns.tasks.task import Spec
from interlock.steps import drive

PROCESSES = 8


@pytest.fixture
def programs() -> Iterator[ProcessGroup]:
    with ProcessGroup("tests.processes.schedule_programs") as everybody:
        yield everybody


def overdue(fleet: interlock.Fleet, name: str, runs: int) -> None:
    """A schedule of which so many runs are due, as after an outage."""
    now = float(int(time.time()))
    start = now - 3600.0 * (runs - 1) - 60.0
    made = Schedule(at=start, by="owner", every=3600.0, start=start, run=start, missed="all")
    service = ScheduleService(fleet.context.runner)
    actor = fleet.context.me().actor
    drive(service.add(actor, name, made, Spec(at=0.0), replaces=False), fleet.store)


def published(url: str) -> Counter[str]:
    """How often the record says that each task was published."""
    found: Counter[str] = Counter()
    with interlock.connect(url) as fleet:
        for line in fleet.record.log(limit=100_000):
            for event in line.events:
                if event.name == "task:published":
                    found[event.thing or line.thing] += 1
    return found


def test_a_publisher_that_is_killed_at_a_commit_leaves_each_run_once(
    url: str, programs: ProcessGroup
) -> None:
    with interlock.connect(url, agent="owner") as fleet:
        overdue(fleet, "s", 3)
        for when in ("before", "after"):
            programs.start("die", url, "schedule.publish", when).died()
        assert fleet.maintain()
        assert [each.published for each in fleet.schedules.list()] == [3]
        assert len(fleet.tasks.list()) == 3
    assert set(published(url).values()) == {1}
    checks.sound(url)


def race(url: str, programs: ProcessGroup, schedules: int, runs: int, kills: int) -> None:
    """Eight processes look at once, and some of them are killed meanwhile."""
    with interlock.connect(url, agent="owner") as fleet:
        for number in range(schedules):
            overdue(fleet, f"s{number}", runs)
    workers = [programs.start("drain", url) for _ in range(PROCESSES)]
    for worker in workers:
        assert worker.read_line() == "ready"
    for worker in workers:
        worker.write_line()
    chance = random.Random(7)
    for worker in workers[:kills]:
        for _ in range(chance.randrange(1, 4)):
            if worker.read_line() == "end":
                break
        worker.kill()
    for worker in workers[kills:]:
        worker.finish()
    with interlock.connect(url, agent="owner") as fleet:
        fleet.maintain()
        assert [each.published for each in fleet.schedules.list()] == [runs] * schedules
        assert len(fleet.tasks.list(all=True, limit=10_000)) == schedules * runs
    counts = published(url)
    assert len(counts) == schedules * runs
    assert set(counts.values()) == {1}
    checks.sound(url)


def test_eight_processes_of_which_some_are_killed_publish_each_run_once(
    url: str, programs: ProcessGroup
) -> None:
    race(url, programs, schedules=2, runs=12, kills=3)


@pytest.mark.proof
def test_eight_processes_publish_each_of_many_runs_once(url: str, programs: ProcessGroup) -> None:
    race(url, programs, schedules=20, runs=fewer(url, 50), kills=5)
