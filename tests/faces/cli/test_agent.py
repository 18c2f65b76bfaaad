from __future__ import annotations

import subprocess
import sys

from tests.faces.shell import COMMAND, Shell


def test_the_answer_to_join_is_what_a_shell_evaluates(ada: Shell) -> None:
    command = " ".join(COMMAND)
    script = f'eval "$({command} agent join)"; {command} lock acquire m; {command} lock acquire m'
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=ada.folder,
        env=ada.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["acquired", "extended"]
    assert sys.executable in command


def test_a_session_of_a_shell_is_known_by_the_shells_process(ada: Shell) -> None:
    command = " ".join(COMMAND)
    script = f'echo $$; eval "$({command} agent join)"; {command} lock acquire m; {command} why m'
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=ada.folder,
        env=ada.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"(process {done.stdout.split()[0]} on " in done.stdout


def test_a_session_ends_with_what_it_holds(ada: Shell) -> None:
    _, joined = ada.json("agent", "join", "--ttl", "1m", "--metadata", '"a note"')
    assert (joined["outcome"], joined["agent"], joined["expires_in"]) == ("joined", "ada", 60)
    ada.exported["INTERLOCK_SESSION"] = joined["session"]
    ada.run("lock", "acquire", "merge")
    _, listed = ada.json("agent", "list")
    assert [(one["agent"], one["holds"]) for one in listed["agents"]] == [("ada", ["merge"])]
    assert ada.json("agent", "show", "ada")[1]["agents"][0]["metadata"] == "a note"
    status, beat = ada.json("agent", "beat")
    assert (status, beat["outcome"], beat["expires_in"]) == (0, "renewed", 60)
    status, left = ada.json("agent", "leave")
    assert (status, left["outcome"], left["released"]) == (0, "left", ["merge"])
    assert ada.json("lock", "list")[1] == {"locks": []}


def test_a_session_that_is_over_is_an_ordinary_no(ada: Shell) -> None:
    ada.exported["INTERLOCK_SESSION"] = "ses_gone"
    for words in (("agent", "beat"), ("agent", "leave"), ("lock", "acquire", "m")):
        status, answer = ada.json(*words)
        assert (status, answer["error"]) == (1, "lapsed")
        assert "agent join" in answer["message"]
    assert ada.json("lock", "list")[0] == 0, "looking needs no session"


def test_a_session_is_not_somebody_elses(ada: Shell) -> None:
    _, joined = ada.json("agent", "join")
    words = ("lock", "acquire", "m", "--session", joined["session"], "--agent", "bob")
    status, answer = ada.json(*words)
    assert (status, answer["error"]) == (2, "bad_input")


def test_what_needs_a_session_says_how_to_get_one(ada: Shell) -> None:
    for verb in ("leave", "beat"):
        done = ada.run("agent", verb)
        assert done.status == 2
        assert "INTERLOCK_SESSION" in done.err


def test_an_unknown_agent_is_an_ordinary_no(ada: Shell) -> None:
    assert ada.json("agent", "show", "bob") == (1, {"outcome": "nothing", "agent": "bob"})
