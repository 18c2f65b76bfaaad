"""``maintain --guards`` at the command line: a process that looks for things that wait."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from tests.faces.shell import Shell, gone, until

import interlock

PLAIN = """
[[pipeline.p.phase]]
name = "one"

[[pipeline.p.phase]]
name = "two"
pre = [{file_exists = "READY"}]

[[pipeline.p.phase]]
name = "three"
pre = [{file_exists = "STEADY"}]
"""


@pytest.fixture
def waiting(ada: Shell, tmp_path: Path) -> Shell:
    """A shell where a pipeline waits for a file, and a host that may look."""
    ada.allow_in(tmp_path / "home" / "list")
    (tmp_path / "p.toml").write_text(PLAIN)
    for words in (
        ("guard", "allow", "p.toml"),
        ("pipeline", "define", "p.toml"),
        ("pipeline", "start", "p", "--id", "r1"),
    ):
        assert ada.run(*words).status == 0
    assert ada.run("pipeline", "advance", "r1").status == 1
    return ada


def phase(shell: Shell) -> str:
    with interlock.connect(str(shell.folder / ".interlock" / "store.db")) as fleet:
        view: Any = fleet.pipelines.show("r1")
        return str(view.phase)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_pipeline_goes_on_when_its_file_appears_and_a_signal_ends_the_command_well(
    waiting: Shell, signum: signal.Signals
) -> None:
    process = waiting.start("maintain", "--guards", "--json")
    (waiting.folder / "READY").touch()
    until(lambda: phase(waiting) == "two")
    assert waiting.run("pipeline", "advance", "r1").status == 1
    until(lambda: "looks at it" in waiting.run("why", "pipeline/r1").out)
    process.send_signal(signum)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert '"changed":["p/two/pre"]' in out
    assert waiting.run("record", "verify").status == 0


def test_one_that_is_killed_does_no_harm(waiting: Shell) -> None:
    process = waiting.start("maintain", "--guards")
    until(lambda: "looks at it" in waiting.run("why", "pipeline/r1").out)
    process.kill()
    until(lambda: gone(process.pid))
    (waiting.folder / "READY").touch()
    status, done = waiting.json("maintain", "--guards", "--for", "0")
    assert (status, done["looks"], done["changed"]) == (0, 1, ["p/two/pre"])
    assert phase(waiting) == "two"


def test_it_names_guards_that_this_host_does_not_allow_and_ends_when_its_time_is_up(
    waiting: Shell, tmp_path: Path
) -> None:
    waiting.allow_in(tmp_path / "home" / "other")
    done = waiting.run("maintain", "--guards", "--for", "0.3s")
    assert (done.status, done.out) == (0, "reclaimed 0, sealed 0, left 0\n")
    assert done.err == (
        "interlock: guard 'p/two/pre' is waited for, and this host does not allow it;"
        " a person has to read its file and allow it here\n"
    )


def test_without_guards_it_is_one_pass_and_takes_no_time_limit(waiting: Shell) -> None:
    (waiting.folder / "READY").touch()
    assert waiting.run("maintain").out == "reclaimed 0, sealed 0, left 0\n"
    assert phase(waiting) == "one"
    done = waiting.run("maintain", "--for", "10m")
    assert (done.status, done.err) == (
        2,
        "interlock: a time limit is for guards; add --guards (guards=True)\n",
    )


def test_run_looks_for_its_program_if_the_settings_say_so(waiting: Shell) -> None:
    waiting.exported["INTERLOCK_GUARD_LOOK"] = "1"
    process = waiting.start("run", "--agent", "bob", "--", "sleep", "1000")
    (waiting.folder / "READY").touch()
    until(lambda: phase(waiting) == "two")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
