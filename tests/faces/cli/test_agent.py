from __future__ import annotations

import os
import re
import subprocess
import sys

from tests.faces.shell import COMMAND, Here, Shell, until


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
    assert ada.json("lock", "list")[1] == {"locks": [], "count": 0}


def test_a_person_whose_shell_names_the_session_that_left_is_told_to_forget_it(ada: Shell) -> None:
    """A script, which has no terminal, knows what it does."""
    for exported in (True, False):
        session = str(ada.json("agent", "join")[1]["session"])
        ada.exported["INTERLOCK_SESSION"] = session if exported else ""
        terminal, end = os.openpty()
        try:
            done = subprocess.run(
                [*COMMAND, "agent", "leave", "--session", session],
                cwd=ada.folder,
                env=ada.environment(),
                stderr=end,
                stdout=subprocess.PIPE,
                check=True,
            )
            os.write(end, b"\n")
            said = os.read(terminal, 1000)
        finally:
            os.close(terminal)
            os.close(end)
        assert done.stdout.startswith(b"left ")
        assert (b"unset INTERLOCK_SESSION" in said) == exported


def test_a_session_that_is_over_is_trouble_and_never_taken_for_busy(ada: Shell) -> None:
    ada.exported["INTERLOCK_SESSION"] = "ses_gone"
    for words in (("agent", "beat"), ("agent", "leave"), ("lock", "acquire", "m")):
        status, answer = ada.json(*words)
        assert (status, answer["error"]) == (4, "lapsed")
        assert "agent join" in answer["message"]
    assert ada.json("lock", "list")[0] == 0, "looking needs no session"


def test_a_session_is_not_somebody_elses(ada: Shell) -> None:
    _, joined = ada.json("agent", "join")
    words = ("lock", "acquire", "m", "--session", joined["session"], "--agent", "bob")
    status, answer = ada.json(*words)
    assert (status, answer["error"]) == (2, "bad_input")


def test_what_needs_a_session_says_how_to_get_one(ada: Shell) -> None:
    for verb in ("leave", "beat", "status"):
        done = ada.run("agent", verb)
        assert done.status == 2
        assert "INTERLOCK_SESSION" in done.err


def test_an_unknown_agent_is_an_ordinary_no(ada: Shell) -> None:
    assert ada.json("agent", "show", "bob") == (
        1,
        {"outcome": "nothing", "agent": "bob", "paused": None, "refusals": {}},
    )


def test_a_shell_says_how_it_stands(ada: Shell) -> None:
    _, joined = ada.json("agent", "join", "--can", "rust,gpu", "--can", "docs")
    ada.exported["INTERLOCK_SESSION"] = joined["session"]
    able = ["rust", "gpu", "docs"]
    status, first = ada.json("agent", "status")
    assert (status, first["outcome"], first["status"], first["can"]) == (
        0,
        "reported",
        "idle",
        able,
    )
    words = ("agent", "status", "busy", "--doing", "task/t1", "--note", "half way")
    assert ada.run(*words).out == "busy with task/t1 ('half way'); can rust, gpu, docs\n"
    _, listed = ada.json("agent", "show", "ada")
    (found,) = listed["agents"]
    assert (found["state"], found["status"], found["doing"]) == ("alive", "busy", "task/t1")
    assert (found["can"], found["note"]) == (able, "half way")
    assert found["heard"] >= found["since"] - 1
    assert "busy with task/t1 ('half way')" in ada.run("agent", "list").out
    assert ada.run("agent", "status", "idle", "--can", "rust").out == "idle; can rust\n"


def test_who_said_nothing_of_itself_is_told_how_to(ada: Shell) -> None:
    _, joined = ada.json("agent", "join")
    ada.exported["INTERLOCK_SESSION"] = joined["session"]
    status, answer = ada.json("agent", "status")
    assert (status, answer) == (1, {"outcome": "nothing", "session": joined["session"]})
    assert "interlock agent status busy" in ada.run("agent", "status").out
    assert "STATUS" not in ada.run("agent", "list").out, "nobody said anything"


def test_a_status_may_be_a_word_of_the_agents_own(ada: Shell) -> None:
    ada.exported["INTERLOCK_SESSION"] = ada.json("agent", "join")[1]["session"]
    assert ada.run("agent", "status", "building", "--doing", "app").out == "building with app\n"
    (found,) = ada.json("agent", "show", "ada")[1]["agents"]
    assert (found["status"], found["doing"]) == ("building", "app")
    assert "beat again within 30 s" in ada.run("agent", "beat").out
    misspelled = ada.run("agent", "status", "bussy")
    assert (misspelled.status, "did you mean busy?" in misspelled.err) == (2, True)


def test_words_of_a_status_out_of_bounds_are_refused(ada: Shell) -> None:
    ada.exported["INTERLOCK_SESSION"] = ada.json("agent", "join")[1]["session"]
    for words, hint in (
        (("a sleep",), "idle, waiting, busy or a word of your own"),
        (("busy", "--can", "a,,b"), "ability is empty"),
        (("busy", "--note", "a" * 2000), "1024"),
    ):
        done = ada.run("agent", "status", *words)
        assert (done.status, done.err.count("\n")) == (2, 1)
        assert hint in done.err


def test_the_story_of_an_agent_says_when_it_reported(ada: Shell) -> None:
    ada.exported["INTERLOCK_SESSION"] = ada.json("agent", "join")[1]["session"]
    ada.run("agent", "status", "busy")
    assert "reported, session ses_" in ada.run("record", "explain", "agent/ada").out


def test_who_has_no_name_gets_a_readable_one(shell: Shell) -> None:
    _, first = shell.json("agent", "join")
    _, second = shell.json("agent", "join")
    assert re.fullmatch(r"[a-z]+-[a-z]+-\d", first["agent"])
    assert first["agent"] != second["agent"]
    done = shell.run("agent", "join")
    name = done.out.split("INTERLOCK_AGENT=")[1].strip()
    shell.exported["INTERLOCK_SESSION"] = done.out.split("INTERLOCK_SESSION=")[1].split()[0]
    assert shell.json("lock", "acquire", "m")[1]["holder"] == name


def test_a_name_that_is_here_already_is_warned_about(ada: Shell) -> None:
    first = ada.run("agent", "join")
    assert first.err == ""
    second = ada.run("agent", "join")
    assert second.status == 0
    assert "ada is here already, with a session: each is a holder of its own" in second.err
    assert "interlock agent show ada" in second.err
    assert ada.json("agent", "join")[1]["others"] == 2


def test_the_last_heartbeat_of_a_session_is_shown(ada: Shell) -> None:
    session = ada.json("agent", "join", "--ttl", "1h")[1]["session"]
    (first,) = ada.json("agent", "show", "ada")[1]["agents"]
    assert abs(first["last_heartbeat"] - first["since"]) < 60

    def beats() -> bool:
        ada.run("agent", "beat", "--session", session)
        (found,) = ada.json("agent", "show", "ada")[1]["agents"]
        return bool(found["last_heartbeat"] > first["last_heartbeat"])

    until(beats)


def test_an_agent_without_a_session_is_shown_with_its_refusals(here: Here) -> None:
    here.run("lock", "acquire", "deploy")
    for _ in range(2):
        here.run("lock", "release", "deploy", "--agent", "bob")
    status, shown = here.json("agent", "show", "bob")
    assert (status, shown["outcome"], shown["refusals"]) == (1, "nothing", {"not_owner": 2})
    assert here.run("agent", "show", "bob").out.endswith("refused calls of bob: not_owner 2\n")
