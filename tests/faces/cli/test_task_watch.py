"""``interlock task watch``: what happens to tasks, line by line, at once."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

import pytest
from tests.faces.shell import Shell


def line(watcher: subprocess.Popen[str]) -> Any:
    assert watcher.stdout is not None
    return json.loads(watcher.stdout.readline())


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_events_come_as_json_lines_until_it_is_stopped(
    ada: Shell, number: signal.Signals, status: int
) -> None:
    words = ("--title", "Build", "--data", '{"x": 1}', "--requires", "rust")
    ada.run("task", "add", "t1", *words)
    watcher = ada.start("task", "watch", "--json", "--after", "0")
    first = line(watcher)
    assert first.pop("at") > 0
    assert first.pop("at_iso").endswith("Z")
    assert first.pop("revision") > 0
    assert first == {
        "event": "published",
        "task": "t1",
        "agent": "ada",
        "priority": 5,
        "requires": ["rust"],
        "title": "Build",
        "data": {"x": 1},
        "progress": None,
        "doing": "",
    }
    ada.run("task", "claim", "t1")
    second = line(watcher)
    assert (second["event"], second["task"], second["agent"]) == ("claimed", "t1", "ada")
    watcher.send_signal(number)
    assert watcher.communicate() == ("", "")
    assert watcher.returncode == status


def test_only_what_was_asked_for_is_shown(ada: Shell) -> None:
    for task, requires in (("build/a", "rust"), ("build/b", "gpu"), ("docs", "rust")):
        ada.run("task", "add", task, "--requires", requires)
        ada.run("task", "claim", task)
    words = ("--event", "published,completed", "--can", "rust", "--prefix", "build")
    watcher = ada.start("task", "watch", "--json", "--after", "0", *words)
    first = line(watcher)
    assert (first["event"], first["task"]) == ("published", "build/a")
    ada.run("task", "add", "build/c", "--requires", "rust")
    assert line(watcher)["task"] == "build/c"
    watcher.send_signal(signal.SIGINT)
    watcher.communicate()


def test_a_reader_that_goes_away_ends_it(ada: Shell) -> None:
    watcher = ada.start("task", "watch", "--after", "0")
    assert watcher.stdout is not None
    ada.run("task", "add", "t1")
    assert watcher.stdout.readline().split()[1:] == ["published", "t1", "by", "ada"]
    watcher.stdout.close()
    assert watcher.wait(60) == 141, "though there is nothing to write"


def test_wrong_words_are_one_line(ada: Shell) -> None:
    done = ada.run("task", "watch", "--event", "finished")
    assert done.status == 2
    assert "no event of a task is called 'finished'; there are: published" in done.err
