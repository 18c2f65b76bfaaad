"""Which ended tasks may be deleted: the rules alone."""

from __future__ import annotations

import pytest

from interlock.core import keys
from interlock.nouns.tasks import retention_rules
from interlock.nouns.tasks.retention_rules import EndedTask, RetentionSurvey
from interlock.nouns.tasks.task import Spec, State, TaskStatus
from interlock.nouns.tasks.task_change import TaskChanges, TaskFacts
from interlock.runtime import retention_clock
from interlock.runtime.retention import RetentionLimits
from interlock.runtime.retention_clock import RecordedTime

NOW, AGE = 1000.0, 100.0


def ended(task: str, revision: int, at: float) -> EndedTask:
    return EndedTask(task=task, revision=revision, at=at, complete=True)


def going(*some: EndedTask, cut: int = 0) -> list[str]:
    young = retention_rules.young(some, AGE, NOW)
    return [each.task for each in retention_rules.expired(some, NOW - AGE, young, cut)]


@pytest.mark.parametrize("state", ["blocked", "pending", "running"])
def test_what_is_not_over_has_no_past(state: State) -> None:
    assert retention_rules.ended_task("t", 1, TaskStatus(state=state), Spec(at=0.0)) is None


@pytest.mark.parametrize("state", ["complete", "failed", "dead"])
def test_what_is_over_counts_from_its_end_and_not_from_before_it_was_published(
    state: State,
) -> None:
    late = retention_rules.ended_task("t", 7, TaskStatus(state=state, since=50.0), Spec(at=3.0))
    assert late == EndedTask(task="t", revision=7, at=50.0, complete=state == "complete")
    slow = retention_rules.ended_task("t", 7, TaskStatus(state=state, since=1.0), Spec(at=3.0))
    assert slow is not None
    assert slow.at == 3.0


def test_an_import_is_over_only_when_it_is_complete() -> None:
    begun = Spec(at=0.0)
    assert retention_rules.ended_task("+imp", 1, TaskStatus(state="failed"), begun) is None
    assert retention_rules.ended_task("+imp", 1, TaskStatus(state="complete"), begun) is not None


def test_what_is_older_than_the_age_goes_and_what_ended_up_to_the_cut() -> None:
    some = ended("old", 1, 800.0), ended("young", 5, 950.0), ended("cut", 3, 940.0)
    assert going(*some) == ["old"]
    assert going(*some, cut=3) == ["old", "cut"]


def test_a_clock_that_is_slow_does_not_make_a_fresh_end_old() -> None:
    assert going(ended("slow", 9, 1.0), ended("right", 8, 990.0)) == []


def test_a_clock_that_is_ahead_makes_nobody_elses_end_younger() -> None:
    assert going(ended("ahead", 1, 9000.0), ended("old", 2, 800.0)) == ["old"]


def said(agent: str, at: float, writer: str = "") -> RecordedTime:
    return RecordedTime(revision=1, at=at, writer=writer or agent, agent=agent)


@pytest.mark.parametrize(
    ("entries", "now"),
    [
        ([], NOW),
        ([said("us", 500.0)], NOW),
        ([said("ada", 500.0)], 500.0),
        ([said("ada", 500.0), said("ada", 600.0), said("ada", 400.0)], 600.0),
        ([said("ada", 9000.0)], NOW),
        ([said("ada", 500.0), said("us", 900.0, "before")], 500.0),
        ([said("ada", 500.0), said("bob", 600.0), said("us", 900.0, "before")], 600.0),
    ],
)
def test_it_is_no_later_than_our_clock_says_nor_than_most_others_wrote_last(
    entries: list[RecordedTime], now: float
) -> None:
    assert retention_clock.median_time(NOW, entries, "us") == now


def test_the_cut_leaves_as_many_as_are_kept_those_that_ended_last() -> None:
    assert retention_rules.count_cut([5, 2, 9, 7], 4) == 0
    assert retention_rules.count_cut([5, 2, 9, 7], 1) == 7
    assert retention_rules.count_cut([5, 2, 9, 7], 0) == 9


def test_of_what_ended_with_one_commit_all_stay_or_none() -> None:
    assert retention_rules.count_cut([5, 5, 5, 9], 2) == 4
    assert retention_rules.count_cut([5, 5, 5, 9], 1) == 5
    assert retention_rules.count_cut([5, 5], 0) == 5


def test_a_survey_settles_until_the_oldest_is_too_old_or_too_many_can_have_ended() -> None:
    survey, keep = (
        RetentionSurvey(revision=10, at=NOW, oldest=950.0, count=3),
        RetentionLimits(age=AGE, count=4),
    )
    assert survey.settles(keep, NOW + 9, 2)
    assert not survey.settles(keep, NOW + 9, 3), "a quarter more than are kept"
    assert survey.settles(keep, 950.0 + AGE, 2)
    assert not survey.settles(keep, 951.0 + AGE, 2)


def test_a_survey_by_a_clock_that_is_ahead_settles_nothing() -> None:
    survey = RetentionSurvey(revision=10, at=NOW, oldest=NOW, count=0)
    keep = RetentionLimits(age=9 * retention_rules.DAY, count=4)
    assert survey.settles(keep, NOW - retention_rules.DAY, 0)
    assert not survey.settles(keep, NOW - retention_rules.DAY - 1, 0)


def test_whoever_saw_what_is_old_and_needed_looks_again_after_a_while() -> None:
    late, keep = (
        RetentionSurvey(revision=10, at=NOW, oldest=-1e6, count=3),
        RetentionLimits(age=6400.0, count=128),
    )
    assert not late.settles(keep, NOW + 1, 1)
    assert late.rests(keep, NOW + 99, 2)
    assert not late.rests(keep, NOW + 101, 2)
    assert not late.rests(keep, NOW + 99, 3)


def test_an_older_survey_does_not_replace_a_newer_one() -> None:
    old, new = (RetentionSurvey(revision=number, at=0.0, oldest=0.0, count=0) for number in (1, 2))
    assert retention_rules.note(new, old).changes
    assert not retention_rules.note(old, new).changes


def known(*, revision: int = 4, todo: bool = False) -> TaskFacts:
    facts = TaskFacts()
    facts.statuses["t"] = TaskStatus(state="complete", since=1.0)
    facts.newest["t"] = revision
    facts.exists[keys.todo("t")] = todo
    facts.note_numbers["t"] = None
    return facts


def test_all_that_is_of_a_task_goes_at_once_and_what_that_relies_on_is_checked() -> None:
    facts = known()
    decision = retention_rules.delete(TaskChanges(facts, NOW), {"t": 4})
    assert decision.outcome.count == 1
    assert (decision.verb, decision.thing) == ("task.forget", "task/t")
    assert {*decision.deletes} == {keys.data("t"), keys.status("t"), keys.result("t")}
    assert {*facts.relied} == {keys.status("t"), keys.todo("t"), keys.notes("t")}
    failed = retention_rules.delete(TaskChanges(known(), NOW), {"t": 4}, failed=True)
    assert keys.ended("t") in failed.deletes
    assert [write.key for write in failed.puts] == [keys.NEEDED]


@pytest.mark.parametrize("facts", [known(revision=5), known(todo=True)])
def test_what_changed_since_it_was_seen_stays_and_so_does_what_is_not_worked_off(
    facts: TaskFacts,
) -> None:
    decision = retention_rules.delete(TaskChanges(facts, NOW), {"t": 4})
    assert not decision.changes
    assert decision.outcome.count == 0
