"""What is in the way of tasks, as a person at a shell finds out."""

from __future__ import annotations

import re
from typing import Any, get_args, get_type_hints

import pytest
from tests.faces.shell import Here, until

from interlock.runtime.health import GRAVEST_FIRST, Health, Problem


def claim(here: Here, task: str, *words: str) -> tuple[str, str]:
    answer: dict[str, Any] = here.json("task", "claim", task, *words)[1]
    return "--token", str(answer["token"])


def test_why_leads_from_a_blocked_task_to_a_dead_one_and_back(here: Here) -> None:
    here.run("task", "add", "build", "--retries", "0")
    here.run("task", "add", "deploy", "--needs", "build")
    mine = claim(here, "build", "--agent", "bob")
    status, answer = here.json("why", "deploy")
    assert (status, answer["state"], answer["by"]) == (0, "blocked", "bob")
    assert [each["task"] for each in answer["needs"]] == ["build"]
    here.run("task", "fail", "build", "out of disk", *mine, "--agent", "bob")
    said = here.run("why", "task/deploy").out
    died = r"it needs build \(dead\): it died \d+ s ago after 1 failed attempt: 'out of disk'"
    assert re.search(died, said), said
    assert said.splitlines()[-1].endswith("interlock task retry build --agent NAME")
    done = here.run("health")
    assert done.status == 1
    dead, blocked = done.out.splitlines()
    assert dead == (
        "dead_letter 1 task died: build ('out of disk'); fix the cause, then retry what is"
        " still wanted: interlock task retry build --agent NAME"
    )
    assert blocked.startswith("blocked task/deploy: it needs build, which died ")
    assert blocked.endswith(
        "send the need back: interlock task retry build --agent NAME;"
        " or give up what needs it: interlock task cancel deploy --agent NAME"
    )
    here.run("task", "retry", "build")
    assert here.run("health").status == 0
    assert here.run("why", "build").out == (
        "task/build is pending: it waits for a worker; claim it: interlock task claim build\n"
    )


def test_a_task_that_runs_too_long_is_told_to_a_monitor(here: Here) -> None:
    here.run("task", "add", "t1")
    claim(here, "t1")
    status, answer = here.json("health", "--stuck", "0s")
    assert (status, [each["kind"] for each in answer["problems"]]) == (1, ["stuck"])
    assert here.json("health", "--stuck", "1h")[0] == 0


def test_the_story_of_a_task_is_told_and_its_entries_are_found(here: Here) -> None:
    here.run("task", "add", "t0")
    here.run("task", "add", "t1", "--needs", "t0")
    here.run("task", "done", "t0", *claim(here, "t0"))
    here.run("task", "done", "t1", *claim(here, "t1"))
    said = [
        line.split(" ago  ")[1]
        for line in here.run("record", "explain", "task/t1").out.splitlines()
    ]
    assert said[0].split(None, 1) == ["ada", "published, blocked on t0"]
    assert said[1].split(None, 1) == ["-", "unblocked, since ada completed t0"]
    assert said[2].startswith("ada  claimed, token 5, attempt 1")
    assert said[3].startswith("ada  completed, worked ")
    found = here.json("record", "log", "--verb", "task", "--thing", "task/t1")[1]["entries"]
    assert [each["verb"] for each in found] == [
        *("task.publish", "task.complete", "task.claim", "task.complete")
    ]
    assert "task/t0, ready: t1" in here.run("record", "log", "--verb", "task.complete").out


ASKING = (("why",), ("record", "explain"))


@pytest.mark.parametrize("words", ASKING)
def test_a_plain_name_is_a_task_if_there_is_one_else_a_lock(
    here: Here, words: tuple[str, ...]
) -> None:
    here.run("lock", "acquire", "merge")
    assert here.json(*words, "merge")[1]["thing"] == "lock/merge"
    here.run("task", "add", "boom")
    assert here.json(*words, "boom")[1]["thing"] == "task/boom"


@pytest.mark.parametrize("words", ASKING)
def test_a_plain_name_finds_a_pipeline_a_semaphore_and_a_guard(
    here: Here, words: tuple[str, ...]
) -> None:
    (here.folder / "all.toml").write_text(
        '[guard.calm]\nwhen = {lock_free = "deploy"}\n[[pipeline.release.phase]]\nname = "build"\n'
    )
    here.run("guard", "define", "all.toml")
    here.run("pipeline", "define", "all.toml")
    here.run("pipeline", "start", "release", "--id", "r1")
    here.run("sem", "acquire", "builds", "--capacity", "2")
    for name, thing in (("r1", "pipeline/r1"), ("builds", "sem/builds"), ("calm", "guard/calm")):
        assert here.json(*words, name)[1]["thing"] == thing
    here.run("lock", "acquire", "r1")
    assert "'pipeline/r1' or for 'lock/r1'" in here.run(*words, "r1").err


@pytest.mark.parametrize("words", ASKING)
def test_a_name_that_is_a_task_and_a_lock_has_to_be_said_in_full(
    here: Here, words: tuple[str, ...]
) -> None:
    here.run("task", "add", "merge")
    here.run("lock", "acquire", "merge")
    done = here.run(*words, "merge")
    assert (done.status, "'task/merge' or for 'lock/merge'" in done.err) == (2, True)


def test_why_of_what_is_not_there_says_so(here: Here) -> None:
    done = here.run("why", "nope")
    said = "lock/nope is not blocked: free, and nothing else has that name; acquire it\n"
    assert (done.status, done.out) == (0, said)
    done = here.run("why", "task/nope")
    assert (done.status, "there is no such task" in done.out) == (1, True)
    assert here.run("why", "query/nope").status == 1


def test_why_of_a_name_finds_the_agent_that_has_it(here: Here) -> None:
    here.run("inbox", "--agent", "bob")
    here.run("agent", "pause", "bob", "--agent", "maria")
    for name in ("bob", "agent/bob"):
        done = here.run("why", name)
        assert "thing        agent/bob is paused\n" in done.out
        assert "clears when  the cause is fixed: 'interlock agent resume bob --agent" in done.out
    _, grant = here.json("lock", "acquire", "bob")
    assert "lock/bob" in here.run("why", "bob").out
    here.run("lock", "release", "bob", "--token", str(grant["token"]))
    assert "agent/bob" in here.run("why", "bob").out


def test_maintain_says_what_it_moved_on(here: Here) -> None:
    here.run("task", "add", "t1", "--backoff", "500ms")
    _, claim = here.json("task", "claim", "t1")
    here.run("task", "fail", "t1", "--token", str(claim["token"]))
    moved = "reclaimed 0, sealed 0, left 0, advanced 1 task\n"
    until(lambda: here.run("maintain").out == moved)
    maintained = here.json("maintain")[1]
    assert (maintained["reclaimed"], maintained["left"]) == (0, 0)


def test_why_alone_says_the_gravest_problem_and_how_many_more_there_are(here: Here) -> None:
    done = here.run("why")
    assert (done.status, done.out) == (0, "healthy\n")
    here.run("inbox", "--agent", "bob")
    here.run("agent", "pause", "bob", "--reason", "floods", "--agent", "maria")
    here.run("task", "add", "build", "--retries", "0")
    here.run("task", "add", "deploy", "--needs", "build")
    mine = claim(here, "build", "--agent", "bob")
    here.run("task", "fail", "build", "out of disk", *mine, "--agent", "bob")
    done = here.run("why")
    assert done.status == 1
    gravest, more = done.out.splitlines()
    assert gravest.startswith("dead_letter 1 task died: build ('out of disk'); fix the cause")
    assert more == "and 2 more: interlock health"
    status, answer = here.json("why")
    assert (status, answer["healthy"], answer["more"]) == (1, False, 2)
    assert [each["kind"] for each in answer["problems"]] == ["dead_letter"]
    assert [each["kind"] for each in here.json("health")[1]["problems"]] != ["dead_letter"]


def test_each_kind_of_problem_has_a_place_in_the_order() -> None:
    kinds = get_args(get_type_hints(Problem)["kind"])
    assert sorted(GRAVEST_FIRST) == sorted(kinds)
    late, early = (Problem(kind="dead", says="x", since=since) for since in (2.0, 1.0))
    other = Problem(kind="unread", says="x", since=0.0)
    found = Health(healthy=False, problems=(other, late, early)).gravest()
    assert (found.problems, found.more) == ((early,), 2)
