"""Every condition: true, false and unknown, with its reason and the acts that clear it."""

from __future__ import annotations

import math

import pytest
from tests.for_each import for_each

from interlock.nouns.guards import condition as c
from interlock.nouns.guards import rules, shell
from interlock.nouns.guards.leaf_kinds import KINDS

FREE = c.LockFact()
HELD = c.LockFact(holder="ada", since=940.0)
BOB = c.TasksFact(
    states={"complete": 2, "running": 1, "pending": 1},
    open=(("build.3", "running", "bob"), ("build.4", "pending", "")),
)
STUCK = c.TasksFact(
    states={"blocked": 1, "dead": 1, "running": 1},
    open=(("r", "running", "bob"), ("b", "blocked", ""), ("d", "dead", "")),
)
DONE = c.TasksFact(states={"complete": 3})
TEST = c.PipelineFact(phase="test", state="running", since=400.0)


def seen(value: bool | int | None, says: str = "as it is") -> c.Observation:
    return c.Observation(value=value, says=says, host="ci", at=990.0)


CASES: list[tuple[str, c.Fact | None, str, str, str]] = [
    # the condition, its fact, the verdict, the reason, and the act that would clear it
    ("lock-free=deploy", FREE, "true", "lock deploy is free", ""),
    (
        "lock-free=deploy", HELD, "false", "ada holds lock deploy, for 60 s",
        "ada releases lock deploy",
    ),
    ("lock-free=deploy", None, "unknown", "it was not looked at", "read lock deploy again"),
    ("lock-held=deploy", HELD, "true", "ada holds lock deploy, for 60 s", ""),
    ("lock-held=deploy", FREE, "false", "lock deploy is free", "an agent acquires lock deploy"),
    ("lock-held=deploy,by=ada", HELD, "true", "ada holds lock deploy, for 60 s", ""),
    (
        "lock-held=deploy,by=bob", HELD, "false", "ada holds lock deploy, for 60 s, not bob",
        "ada releases lock deploy, then bob acquires it",
    ),
    ("lock-held=deploy", None, "unknown", "it was not looked at", "read lock deploy again"),
    (
        "semaphore-available=s,slots=2", c.SemaphoreFact(capacity=3, available=2), "true",
        "2 of 3 slots of semaphore s free", "",
    ),
    (
        "semaphore-available=s,slots=2",
        c.SemaphoreFact(capacity=3, available=1, holders=("ada", "bob")), "false",
        "1 of 3 slots of semaphore s free, 2 wanted (ada, bob hold some)",
        "ada, bob release 1 slot of semaphore s",
    ),
    (
        "semaphore-available=s,slots=5", c.SemaphoreFact(capacity=3, available=3), "false",
        "3 of 3 slots of semaphore s free, 5 wanted", "an operator resizes semaphore s to 5",
    ),
    (
        "semaphore-available=s", c.SemaphoreFact(), "unknown", "semaphore s has no capacity yet",
        "an agent acquires a slot of semaphore s and says its capacity",
    ),
    ("semaphore-available=s", None, "unknown", "not looked at", "read semaphore s again"),
    ("tasks-complete=build.", DONE, "true", "3 of 3 tasks build.* complete", ""),
    (
        "tasks-complete=build.", BOB, "false",
        ": build.3 is running (bob works on it), build.4 is pending",
        "complete task build.3 (bob works on it), complete task build.4 (it is pending)",
    ),
    (
        "tasks-complete=build.", c.TasksFact(), "false",
        "there is no task build.*, and none is not enough", "publish a task build.*",
    ),
    (
        "tasks-complete=build.,none-ok", c.TasksFact(), "true",
        "there is no task build.*; none is needed", "",
    ),
    (
        "tasks-complete=build.", c.TasksFact(states={"complete": 9}, partial=True), "unknown",
        "more than 9 tasks build.*, and not all were read", "narrow the filter",
    ),
    (
        "tasks-complete=,none-ok", c.TasksFact(partial=True), "unknown",
        "more than 0 tasks, and not all were read", "narrow the filter",
    ),
    (
        "tasks-complete",
        c.TasksFact(states={"failed": 9}, partial=True, open=(("f", "failed", ""),)),
        "false", "9 of 9 tasks not complete: f is failed",
        "complete 9 tasks; first: retry task f (failed)",
    ),
    ("tasks-complete", None, "unknown", "it was not looked at", "read the tasks again"),
    ("no-blocked-tasks", BOB, "true", "no task is blocked, dead or failed", ""),
    ("no-blocked-tasks", c.TasksFact(), "true", "no task is blocked, dead or failed", ""),
    (
        "no-blocked-tasks=,label=x", STUCK, "false",
        "2 tasks with label x blocked, dead or failed: b is blocked, d is dead",
        "unblock task b, retry task d (dead)",
    ),
    (
        "no-blocked-tasks", c.TasksFact(states={"pending": 2}, partial=True), "unknown",
        "more than 2 tasks, and not all were read", "narrow the filter",
    ),
    ("no-blocked-tasks", None, "unknown", "it was not looked at", "read the tasks again"),
    ("pipeline-in-phase=r,phase=test", TEST, "true", "pipeline r is in phase test, for 10 min", ""),
    (
        "pipeline-in-phase=r,phase=build", TEST, "false", "pipeline r is in phase test",
        "advance pipeline r to phase build",
    ),
    (
        "pipeline-in-phase=r,phase=test", c.PipelineFact(phase="test", state="failed"), "false",
        "pipeline r is failed in phase test", "start pipeline r again (it is failed)",
    ),
    (
        "pipeline-in-phase=r,phase=test", c.PipelineFact(), "false", "there is no pipeline r",
        "start pipeline r",
    ),
    ("pipeline-in-phase=r,phase=test", None, "unknown", "not looked at", "read pipeline r again"),
    ("pipeline-complete=r", c.PipelineFact(state="complete"), "true", "pipeline r is complete", ""),
    (
        "pipeline-complete=r", TEST, "false", "pipeline r is in phase test, for 10 min",
        "advance pipeline r to its end (it is in phase test)",
    ),
    (
        "pipeline-complete=r", c.PipelineFact(phase="a", state="cancelled"), "false",
        "pipeline r is cancelled in phase a", "start pipeline r again (it is cancelled)",
    ),
    (
        "pipeline-complete=r", c.NoFact(says="the store does not answer"), "unknown",
        "the store does not answer", "read pipeline r again when the store answers",
    ),
    ("branch-exists=x", seen(value=True), "true", "as it is (host ci)", ""),
    ("branch-exists=x", seen(value=False), "false", "as it is (host ci)", "create branch x"),
    (
        "branch-exists=x", None, "unknown", "not looked at",
        "have a person allow it on a host that has the repository of branch x",
    ),
    ("branch-clean=x", seen(value=True), "true", "as it is", ""),
    ("branch-clean=x", seen(value=False), "false", "as it is", "commit or undo the changes"),
    (
        "branch-clean=x", seen(None, "no repository"), "unknown", "no repository (host ci)",
        "host ci looks again (no repository)",
    ),
    ("branch-merged=x,into=main", seen(value=True), "true", "as it is", ""),
    (
        "branch-merged=x,into=main", seen(value=False), "false", "as it is",
        "merge branch x into main",
    ),
    (
        "branch-merged=x,into=main", c.NoFact(says="no host may look"), "unknown",
        "no host may look", "have a person allow it on a host that has the repository of branch x",
    ),
    ("file-exists=STOP", seen(value=True), "true", "as it is", ""),
    ("file-exists=STOP", seen(value=False), "false", "as it is", "create file STOP"),
    (
        "file-exists=STOP", None, "unknown", "it was not looked at",
        "have a person allow it on a host that has the folder of file STOP",
    ),
    ("!file-exists=STOP", seen(value=True), "false", "as it is", "remove file STOP"),
    ("file-contains=C,text=1.2", seen(value=True), "true", "as it is", ""),
    (
        "file-contains=C,text=1.2", seen(value=False), "false", "as it is",
        "write the text 1.2 into file C",
    ),
    (
        "file-contains=C,pattern=1+", seen(value=False), "false", "as it is",
        "write text that matches 1+ into file C",
    ),
    ("file-contains=C,text=1.2", seen(None), "unknown", "as it is", "host ci looks again"),
    ("command=make test", seen(0), "true", "as it is", ""),
    ("command=make test", seen(2, ""), "false", "it ended with status 2 (host ci)", "'make test'"),
    ("command=make test", seen(-9), "false", "as it is", "make command 'make test' succeed"),
    ("command=make", seen(None, "too slow"), "unknown", "too slow (host ci)", "host ci looks"),
    ("command=make", seen(value=True, says=""), "unknown", "cannot say", "host ci looks again"),
    (
        "command=make", None, "unknown", "it was not looked at",
        "have a person allow it on a host that has command make",
    ),
    ("command-fails=make", seen(2), "true", "as it is", ""),
    ("command-fails=make", seen(0), "false", "as it is", "make command make fail"),
    ("command,expect=3,run=make", seen(3), "true", "as it is", ""),
    ("command,expect=3,run=make", seen(2), "false", "as it is", "end with status 3"),
    ("command,expect=1,run=make", seen(value=True), "unknown", "as it is", "host ci looks again"),
]  # fmt: skip


def facts(condition: c.Condition, fact: c.Fact | None) -> dict[c.FactNeed, c.Fact]:
    (need,) = rules.needs(condition)
    return {} if fact is None else {need: fact}


@pytest.mark.parametrize(("word", "fact", "verdict", "reason", "act"), CASES)
def test_a_condition_on_a_fact(
    word: str, fact: c.Fact | None, verdict: str, reason: str, act: str
) -> None:
    condition = shell.parse(word)
    found = rules.evaluate(condition, facts(condition, fact), 1000.0)
    assert found.text == word.replace("=,", ",")
    assert (found.verdict, found.fact if found.part == "leaf" else fact) == (verdict, fact)
    assert reason in found.reason
    acts = rules.acts(found)
    assert len(acts) == (0 if verdict == "true" else 1)
    assert act in "".join(acts)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verdict", ["true", "false", "unknown"])
def test_every_condition_has_a_case_of_every_verdict(kind: str, verdict: str) -> None:
    words = [word.lstrip("!") for word, _, found, _, _ in CASES if found == verdict]
    assert any(word.startswith(kind.replace("_", "-")) for word in words)


@pytest.mark.parametrize(("word", "fact", "verdict", "reason", "act"), CASES)
def test_a_condition_that_should_be_false_has_an_act_too(
    word: str, fact: c.Fact | None, verdict: str, reason: str, act: str
) -> None:
    condition = shell.parse(word)
    found = rules.evaluate(c.Not(of=condition), facts(condition, fact), 1000.0)
    assert found.verdict == {"true": "false", "false": "true"}.get(verdict, verdict)
    acts = rules.acts(found)
    assert len(acts) == (found.verdict != "true")
    assert all(acts)


@for_each("word", [word for word, *_ in CASES])
@for_each("fact", [FREE, c.SemaphoreFact(capacity=1), DONE, TEST, seen(value=True)])
def test_a_fact_of_another_need_decides_nothing(word: str, fact: c.Fact) -> None:
    condition = shell.parse(word)
    own = next(of for text, of, *_ in CASES if text == word and of is not None)
    found = rules.evaluate(condition, facts(condition, fact))
    if type(own) is not type(fact) and not isinstance(own, c.NoFact):
        assert found.verdict == "unknown"
        assert found.reason == "another fact was found than it needs"


def test_without_the_time_a_reason_says_since_when() -> None:
    found = rules.evaluate(shell.parse("lock-free=deploy"), {c.LockNeed("deploy"): HELD})
    assert found.reason == "ada holds lock deploy, since 1970-01-01 00:15:40 UTC"


@pytest.mark.parametrize("since", [math.inf, -math.inf, math.nan, 1e300, -1e300])
@pytest.mark.parametrize("now", [None, 5.0, 1e300])
def test_a_time_that_is_none_is_left_out(since: float, now: float | None) -> None:
    free = shell.parse("lock-free=deploy")
    found = rules.evaluate(free, facts(free, c.LockFact(holder="ada", since=since)), now)
    assert found.reason.startswith("ada holds lock deploy")


def test_a_holder_whose_clock_is_ahead_holds_for_no_time() -> None:
    free = shell.parse("lock-free=deploy")
    found = rules.evaluate(free, facts(free, c.LockFact(holder="ada", since=2000.0)), 1000.0)
    assert found.reason == "ada holds lock deploy, for 0 s"


def test_of_many_holders_and_tasks_the_first_few_are_named() -> None:
    many = c.SemaphoreFact(capacity=9, available=0, holders=tuple("abcdef"))
    slots = shell.parse("semaphore-available=s")
    assert "(a, b, c, 3 more hold some)" in rules.evaluate(slots, facts(slots, many)).reason
    open_ = tuple((f"t{n}", "pending", "") for n in range(20))
    tasks = shell.parse("tasks-complete")
    found = rules.evaluate(tasks, facts(tasks, c.TasksFact(states={"pending": 40}, open=open_)))
    assert found.reason.endswith(": t0 is pending, t1 is pending, t2 is pending")
    assert rules.acts(found) == ("complete 40 tasks; first: complete task t0 (it is pending)",)
