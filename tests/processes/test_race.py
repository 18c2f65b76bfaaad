"""One winner for each task, in every race for it."""

from __future__ import annotations

import pytest
from tests.processes import checks
from tests.processes.helpers import fewer

import interlock
from interlock.testing.selftest import _judged, race


def race_for(url: str, tasks: int) -> None:
    raced = race(url, processes=8, tasks=tasks)
    assert raced.ok, raced
    assert (raced.winners, raced.doubles, raced.nobody, raced.misled) == (tasks, 0, 0, 0)
    with interlock.connect(url) as fleet:
        assert fleet.tasks.list().tasks == (), "nothing is left to do"
        done = fleet.tasks.list(state=["complete"], prefix=raced.where, limit=2000).tasks
    assert len(done) == tasks
    assert len({task.by for task in done}) > 1, "who is first differs"


@pytest.mark.proof_on("etcd")
@pytest.mark.timeout(240)
def test_eight_processes_race_for_each_of_many_tasks_and_each_has_one_winner(url: str) -> None:
    race_for(url, 50)


@pytest.mark.proof
def test_eight_processes_race_for_each_of_a_thousand_tasks_on_every_engine(url: str) -> None:
    race_for(url, fewer(url, 1000))


def test_a_race_that_runs_out_of_time_leaves_nothing_to_do(tmp_path: object) -> None:
    url = f"{tmp_path}/store.db"
    raced = race(url, processes=2, tasks=100_000, seconds=0.05)
    assert raced.ok, raced
    assert 0 < raced.tasks < 100_000
    with interlock.connect(url) as fleet:
        assert fleet.tasks.list().tasks == ()
    checks.sound(url)


@pytest.mark.parametrize(
    ("answers", "counted"),
    [
        (("a", "a", "a"), {"winners": 1}),
        (("a", "b", "a"), {"doubles": 1}),
        (("b", "a", "-"), {"nobody": 1}),
        (("a", "c", "a"), {"winners": 1, "misled": 1}),
        (("a", "-", "a"), {"winners": 1, "misled": 1}),
    ],
)
def test_a_race_counts_what_is_wrong(answers: tuple[str, ...], counted: dict[str, int]) -> None:
    assert +_judged(("a", "b", "c"), answers) == {"tasks": 1, **counted}
