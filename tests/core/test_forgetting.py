"""Which tasks that are over may go: the rules alone."""

from __future__ import annotations

import pytest

from interlock.core import forgetting, keys
from interlock.core.board import Board, Known
from interlock.core.forgetting import Past, Survey
from interlock.core.retention import Keep
from interlock.core.task import Spec, State, Status

NOW, AGE = 1000.0, 100.0


def ended(task: str, revision: int, at: float) -> Past:
    return Past(task=task, revision=revision, at=at, complete=True)


def names(some: list[Past]) -> list[str]:
    return [each.task for each in some]


@pytest.mark.parametrize("state", ["blocked", "pending", "running"])
def test_what_is_not_over_has_no_past(state: State) -> None:
    assert forgetting.past("t", 1, Status(state=state), Spec(at=0.0)) is None


@pytest.mark.parametrize("state", ["complete", "failed", "dead"])
def test_what_is_over_counts_from_its_end_and_not_from_before_it_was_published(
    state: State,
) -> None:
    late = forgetting.past("t", 7, Status(state=state, since=50.0), Spec(at=3.0))
    assert late == Past(task="t", revision=7, at=50.0, complete=state == "complete")
    slow = forgetting.past("t", 7, Status(state=state, since=1.0), Spec(at=3.0))
    assert slow is not None
    assert slow.at == 3.0


def test_an_import_is_over_only_when_it_is_complete() -> None:
    begun = Spec(at=0.0)
    assert forgetting.past("+imp", 1, Status(state="failed"), begun) is None
    assert forgetting.past("+imp", 1, Status(state="complete"), begun) is not None


def test_what_is_older_than_the_age_goes_and_what_ended_up_to_the_cut() -> None:
    some = [ended("old", 1, 800.0), ended("young", 5, 950.0), ended("cut", 3, 940.0)]
    assert names(forgetting.going(some, AGE, 0, NOW)) == ["old"]
    assert names(forgetting.going(some, AGE, 3, NOW)) == ["old", "cut"]


def test_a_clock_that_is_slow_does_not_make_a_fresh_end_old() -> None:
    some = [ended("slow", 9, 1.0), ended("right", 8, 990.0)]
    assert forgetting.going(some, AGE, 0, NOW) == []


def test_a_clock_that_is_ahead_makes_nobody_elses_end_younger() -> None:
    some = [ended("ahead", 1, 9000.0), ended("old", 2, 800.0)]
    assert names(forgetting.going(some, AGE, 0, NOW)) == ["old"]


def test_the_cut_leaves_as_many_as_are_kept_those_that_ended_last() -> None:
    assert forgetting.cut([5, 2, 9, 7], 4) == 0
    assert forgetting.cut([5, 2, 9, 7], 1) == 7
    assert forgetting.cut([5, 2, 9, 7], 0) == 9


def test_of_what_ended_with_one_commit_all_stay_or_none() -> None:
    assert forgetting.cut([5, 5, 5, 9], 2) == 4
    assert forgetting.cut([5, 5, 5, 9], 1) == 5
    assert forgetting.cut([5, 5], 0) == 5


def test_a_survey_settles_until_the_oldest_is_too_old_or_too_many_can_have_ended() -> None:
    survey, keep = Survey(revision=10, at=NOW, oldest=950.0, count=3), Keep(age=AGE, count=4)
    assert survey.settles(keep, NOW + 9, 12)
    assert not survey.settles(keep, NOW + 9, 13), "a quarter more than are kept"
    assert survey.settles(keep, NOW, 1_000_000), "none can have ended in no time"
    assert survey.settles(keep, 950.0 + AGE, 12)
    assert not survey.settles(keep, 951.0 + AGE, 12)


def test_whoever_saw_what_is_old_and_needed_looks_again_after_a_while() -> None:
    late, keep = Survey(revision=10, at=NOW, oldest=-1e6, count=3), Keep(age=6400.0, count=128)
    assert not late.settles(keep, NOW + 1, 11)
    assert late.rests(keep, NOW + 99, 12)
    assert not late.rests(keep, NOW + 101, 12)
    assert not late.rests(keep, NOW + 99, 13)


def test_an_older_survey_does_not_replace_a_newer_one() -> None:
    old, new = (Survey(revision=number, at=0.0, oldest=0.0, count=0) for number in (1, 2))
    assert forgetting.note(new, old).changes
    assert not forgetting.note(old, new).changes


def known(*, revision: int = 4, todo: bool = False) -> Known:
    facts = Known()
    facts.statuses["t"] = Status(state="complete", since=1.0)
    facts.newest["t"] = revision
    facts.there[keys.todo("t")] = todo
    return facts


def test_all_that_is_of_a_task_goes_at_once_and_what_that_relies_on_is_checked() -> None:
    facts = known()
    decision = forgetting.forget(Board(facts, NOW), {"t": 4})
    assert decision.outcome.count == 1
    assert (decision.verb, decision.thing) == ("task.forget", "task/t")
    assert {*decision.deletes} == {keys.data("t"), keys.status("t"), keys.result("t")}
    assert {*facts.relied} == {keys.status("t"), keys.todo("t")}
    failed = forgetting.forget(Board(known(), NOW), {"t": 4}, failed=True)
    assert keys.ended("t") in failed.deletes
    assert [write.key for write in failed.puts] == [keys.NEEDED]


@pytest.mark.parametrize("facts", [known(revision=5), known(todo=True)])
def test_what_changed_since_it_was_seen_stays_and_so_does_what_is_not_worked_off(
    facts: Known,
) -> None:
    decision = forgetting.forget(Board(facts, NOW), {"t": 4})
    assert not decision.changes
    assert decision.outcome.count == 0
