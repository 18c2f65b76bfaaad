"""In a shell: what a session can do chooses its tasks, and the remedies of health work."""

from __future__ import annotations

import shlex

from tests.faces.shell import Shell


def joined(shell: Shell, *words: str) -> tuple[str, str]:
    return "--session", shell.json("agent", "join", "--agent", "bob", *words)[1]["session"]


def test_next_takes_what_the_session_joined_with_or_reports(ada: Shell) -> None:
    me = joined(ada, "--can", "gpu")
    ada.run("task", "add", "t1", "--requires", "gpu")
    ada.run("task", "add", "t2", "--requires", "rust")
    assert ada.json("task", "next", *me)[1]["task"] == "t1"
    status, nothing = ada.json("task", "next", *me)
    assert (status, nothing["missing"]) == (1, ["rust"])
    ada.run("agent", "status", "--can", "rust", *me)
    assert ada.json("task", "next", *me)[1]["task"] == "t2"


def test_run_takes_what_the_session_reports(ada: Shell) -> None:
    me = joined(ada, "--can", "gpu")
    ada.run("task", "add", "t1", "--requires", "gpu")
    assert ada.run("task", "run", *me, "--", "true").status == 0
    assert ada.json("task", "show", "t1")[1]["state"] == "complete"


def test_nothing_says_what_is_missing_and_how_to_take_it(ada: Shell) -> None:
    ada.run("task", "add", "t1", "--requires", "gpu,rust")
    said = ada.run("task", "next").out
    assert "what is ready requires gpu, rust; if you can: " in said
    act = said.partition("if you can: ")[2].partition(";")[0]
    assert ada.run(*shlex.split(act)[1:]).status == 0


def test_the_remedy_of_nothing_names_what_the_session_can_too(ada: Shell) -> None:
    """A call that names abilities has these alone."""
    me = joined(ada, "--can", "rust")
    ada.run("task", "add", "t1", "--requires", "gpu,rust")
    said = ada.run("task", "next", *me).out
    assert "what is ready requires gpu; if you can: " in said
    act = said.partition("if you can: ")[2].partition(";")[0]
    assert ada.json(*shlex.split(act)[1:], *me)[1]["task"] == "t1"


def test_both_remedies_of_health_move_the_task(ada: Shell) -> None:
    me = joined(ada)
    for task in ("t1", "t2"):
        ada.run("task", "add", task, "--requires", "gpu")
        (problem,) = ada.json("health")[1]["problems"]
        assert problem["kind"] == "unable"
        start, _, report = problem["remedy"].partition("; or let one report it: ")
        start = start.removeprefix("start a worker that can: ").replace("NAME", "eve")
        if task == "t1":
            assert ada.run(*shlex.split(start)[1:]).status == 0
        else:
            assert ada.run(*shlex.split(report.partition(",")[0])[1:], *me).status == 0
            assert ada.json("task", "next", *me)[1]["task"] == "t2"
        assert [each["thing"] for each in ada.json("health")[1]["problems"]] == []
