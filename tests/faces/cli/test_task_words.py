"""Wrong words about tasks: one line that says what to do, and nothing is changed."""

from __future__ import annotations

import msgspec
import pytest
from tests.faces.shell import Here

import interlock

ROOM = 1024 * 1024


@pytest.fixture
def shell(here: Here) -> Here:
    """A store with a task that is complete, one that is there, and one that needs it."""
    with interlock.connect(agent="ada") as fleet:
        for task in ("over", "here"):
            fleet.tasks.publish(task)
        fleet.tasks.claim("over")
        fleet.tasks.complete("over")
        fleet.tasks.publish("later", needs=["here"])
    return here


def said(shell: Here, *words: str) -> tuple[int, str]:
    """The status of a command, and the one line that it said."""
    status, out, err = shell.run("task", *words)
    assert (out + err).count("\n") == 1, (out, err)
    return status, out + err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("add", "a\tb"), "task id"),
        (("add", "task/a"), "drop 'task/'"),
        (("add", "+a"), "task id"),
        (("add", "a", "--needs", "a"), "task 'a' needs itself; drop that need"),
        (("add", "a", "--needs", "here,nope"), "needs 'nope', which does not exist"),
        (("add", "a", "--needs", "here,,over"), "needs is empty"),
        (("add", "a", "--requires", "a\tb"), "requires"),
        (("add", "a", "--requires", ",".join(map(str, range(33)))), "32 are allowed"),
        (("add", "a", "--label", "a\u200bb"), "label"),
        (("add", "a", "--data", "{"), "--data is not JSON"),
        (("add", "a", "--data", "@nope.json"), "No such file"),
        (("add", "a", "--data", "@/"), "name a file"),
        (("add", "a", "--data", f'"{"x" * ROOM}"'), f"{ROOM} are allowed"),
        (("add", "a", "--data", "[" * 40 + "]" * 40), "nested too deeply"),
        (("add", "a", "--priority", "high"), "whole number"),
        (("add", "a", "--priority", "-1000001"), "give -1000000 to 1000000"),
        (("add", "a", "--retries", "-1"), "give 0 to 1000"),
        (("add", "a", "--backoff", "soon"), "backoff"),
        (("add", "a", "--not-before", "soon"), "not-before is no moment"),
        (("add", "a", "--deadline", "yesterday"), "deadline is no moment"),
        (("add", "a", "--deadlne", "1h"), "did you mean --deadline?"),
        (("claim",), "TASK is missing"),
        (("claim", "here", "--ttl", "1ms"), "too short"),
        (("claim", "here", "there"), "one word too many"),
        (("next", "--can", "a\tb"), "ability"),
        (("next", "--wait", "soon"), "wait"),
        (("done", "here", "--token", "x"), "whole number"),
        (("done", "here", "--result", "{"), "--result is not JSON"),
        (("fail", "here", "x" * 20_000), "16384 are allowed: shorten it"),
        (("fail", "here", "two", "words"), "one word too many"),
        (("progress", "here", "50"), "a number from 0 to 1, like 0.4 or 40%, not 50"),
        (("progress", "here", "half"), "like 0.4 or 40%, not 'half'"),
        (("edit", "here", "--deadline", "1h", "--in", "2h"), "change both"),
        (("edit", "here", "--in", "2h", "--at", "2030-01-01T00:00"), "give one of them"),
        (("list", "--state", "ready"), "there are blocked, pending"),
        (("list", "--limit", "0"), "give 1 to"),
        (("list", "--prefix", "//"), "no task id begins with"),
        (("create", "a"), "did you mean 'task add'?"),
        (("finish", "a"), "did you mean 'task done'?"),
    ],
)
def test_wrong_words_are_refused_with_what_to_do(
    shell: Here, words: tuple[str, ...], hint: str
) -> None:
    status, line = said(shell, *words)
    assert (status, hint in line) == (2, True), line
    with interlock.connect() as fleet:
        assert [each.task for each in fleet.tasks.list(all=True).tasks] == ["here", "later", "over"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("add", "over"), "exists over: it is complete; choose another id"),
        (("add", "here", "--data", "[2]"), "exists here: it is pending"),
        (("claim", "over"), "nothing over: ada completed it"),
        (("claim", "nope"), "nothing nope: there is no task nope; see 'interlock task list'"),
        (("claim", "later"), "blocked later: it needs here"),
        (("done", "nope"), "unknown nope: there is no such task"),
        (("done", "here"), "not owner here: no worker has it, it is pending; claim it first"),
        (
            ("done", "later"),
            "not owner later: no worker has it, it is blocked; see 'interlock why",
        ),
        (
            ("done", "over"),
            "not owner over: it is complete already; see 'interlock task show over'",
        ),
        (("fail", "over", "--token", "5"), "fenced over: that claim is over; it is complete"),
        (("retry", "over"), "unchanged over: it is complete; only a failed"),
        (("cancel", "over"), "unchanged over: it is complete already"),
        (("show", "nope"), "nothing nope: there is no task nope"),
    ],
)
def test_an_ordinary_no_is_one_line_and_status_1(
    shell: Here, words: tuple[str, ...], line: str
) -> None:
    status, told = said(shell, *words)
    assert (status, told[: len(line)]) == (1, line)


def test_ten_megabytes_of_data_are_too_large_wherever_they_come_from(shell: Here) -> None:
    (shell.folder / "big.json").write_bytes(msgspec.json.encode("x" * 10 * ROOM))
    for words in (("add", "a", "--data"), ("done", "here", "--token", "1", "--result")):
        status, answer = shell.json("task", *words, "@big.json")
        assert (status, answer["error"]) == (2, "too_large")
        assert f"{ROOM} are allowed" in answer["message"]


def test_a_list_without_a_task_fits_whatever_it_was_asked_for(shell: Here) -> None:
    for words in (("--state", "complete"), ()):
        status, out = said(shell, "list", "--prefix", "x/", *words)
        assert (status, out.partition(";")[0]) == (0, "no task fits")
