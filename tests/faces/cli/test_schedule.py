"""Schedules at the command line: each outcome with its word, its exit status and its JSON."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faces.shell import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    made = Shell(tmp_path, INTERLOCK_STORE=f"{tmp_path}/store.db", INTERLOCK_AGENT="ada")
    assert made.run("init").status == 0
    return made


def test_a_schedule_from_add_to_drop(shell: Shell) -> None:
    words = ("schedule", "add", "s", "--every", "1s", "--title", "A title", "--label", "ops")
    assert shell.json(*words)[1]["outcome"] == "added"
    status, again = shell.json(*words)
    assert (status, again["outcome"]) == (1, "exists")
    got = shell.json("task", "next", "--wait", "1m")[1]
    assert got["title"] == "A title"
    task = shell.json("task", "show", got["task"])[1]
    assert (task["schedule"], task["labels"]) == ("s", ["ops"])
    assert shell.json("schedule", "pause", "s", "for now")[1]["outcome"] == "paused"
    assert "for now" in shell.run("schedule", "list").out
    assert "for now" in shell.run("why", "s").out
    assert shell.json("schedule", "resume", "s")[1]["outcome"] == "resumed"
    shown = shell.json("schedule", "show", "s")[1]
    assert (shown["state"], shown["last_task"], shown["every"]) == ("active", got["task"], 1.0)
    assert f"published, {got['task']}" in shell.run("record", "explain", "s").out
    assert shell.json("schedule", "drop", "s")[1]["outcome"] == "dropped"
    status, gone = shell.json("schedule", "drop", "s")
    assert (status, gone["outcome"], gone["unknown"]) == (1, "unknown", ["s"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--cron", "0 0 30 2 *"), "as in '0 9 * * 1-5'"),
        (("--cron", "0 9 * * 1-5 *"), "it has 6 fields, not 5"),
        (("--cron", "0 0 * * *", "--zone", "Mars/Base"), "tzdata"),
        (("--every", "500ms"), "whole number of seconds"),
        ((), "--every 1h"),
    ],
)
def test_a_schedule_without_times_is_refused_with_what_to_write(
    shell: Shell, words: tuple[str, ...], says: str
) -> None:
    done = shell.run("schedule", "add", "s", *words)
    assert done.status == 2
    assert says in done.err


def test_a_task_begins_at_a_time_or_after_a_while(shell: Shell) -> None:
    assert shell.run("task", "add", "a", "--in", "2h").status == 0
    assert shell.run("task", "add", "b", "--at", "2040-01-01T00:00").status == 0
    assert shell.json("task", "next")[1]["outcome"] == "nothing"
    assert 7100 < shell.json("task", "show", "a")[1]["retry_in"] <= 7200
    both = shell.run("task", "add", "c", "--at", "2040-01-01", "--in", "2h")
    assert both.status == 2
    assert "give one of them" in both.err
