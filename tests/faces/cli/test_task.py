"""Tasks at the command line: each outcome with its word, its exit status and its JSON."""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import subprocess
import termios
from pathlib import Path
from typing import Any

from tests.faces.shell import COMMAND, Here, Shell, until


def token(answer: dict[str, Any]) -> tuple[str, str]:
    return "--token", str(answer["token"])


def claim(shell: Shell, task: str, *words: str) -> dict[str, Any]:
    """A claim on a task that is ready."""
    status, answer = shell.json("task", "claim", task, *words)
    assert (status, answer["outcome"]) == (0, "claimed"), answer
    return answer


def session(shell: Shell) -> Shell:
    """The same shell after it joined."""
    shell.exported["INTERLOCK_SESSION"] = shell.json("agent", "join")[1]["session"]
    return shell


def begin(answer: dict[str, Any], many: int) -> dict[str, Any]:
    """The first fields of an answer, which tell most."""
    return dict(list(answer.items())[:many])


def test_the_promised_words_are_answered_as_promised(ada: Shell) -> None:
    """A session at the command line, field by field."""
    ada.run("task", "add", "t0")
    done = claim(ada, "t0")
    ada.run("task", "done", "t0", *token(done))
    add = ("task", "add", "t1", "--data", '{"x":1}', "--priority", "2")
    words = (*add, "--needs", "t0", "--requires", "rust")
    status, added = ada.json(*words)
    assert (status, begin(added, 2)) == (0, {"outcome": "published", "task": "t1"})
    assert (added["state"], added["ended"]) == ("pending", [])
    status, claimed = ada.json("task", "next", "--can", "rust")
    own = token(claimed)
    assert (status, claimed["outcome"], claimed["task"]) == (0, "claimed", "t1")
    assert (claimed["data"], claimed["holder"], claimed["expires_in"]) == ({"x": 1}, "ada", 900)
    assert (claimed["priority"], claimed["attempt"]) == (2, 1)
    status, taken = ada.json("task", "claim", "t1", "--agent", "bob")
    assert taken.pop("since") > 0
    assert 0 < taken.pop("expires_in") <= 900
    assert (status, begin(taken, 3)) == (1, {"outcome": "taken", "task": "t1", "holder": "ada"})
    status, completed = ada.json("task", "done", "t1", *own)
    assert (status, begin(completed, 2)) == (0, {"outcome": "completed", "task": "t1"})
    assert ada.json("task", "done", "t1", *own) == (0, {**completed, "already": True})


def test_a_task_says_what_it_is_about_in_every_answer(ada: Shell) -> None:
    ada.run("task", "add", "bare")
    assert "TITLE" not in ada.run("task", "list").out
    words = (
        "--title",
        "Fix the login",
        "--text",
        "First\n  then",
        "--label",
        "web",
        "--label",
        "a,b",
    )
    ada.run("task", "add", "t1", *words, "--priority", "1")
    assert "'Fix the login'  web,a,b" in ada.run("task", "list", "--label", "web").out
    assert ada.run("task", "show", "t1").out.endswith("\n\n  | First\n  |   then\n")
    assert ": 'Fix the login'\n  | First\n  |   then\n" in ada.run("task", "next").out
    assert ada.json("task", "show", "t1")[1]["text"] == "First\n  then"
    refused = ada.run("task", "add", "t2", "--text", "x" * 70_000)
    assert "shorten it, or put it in a file" in refused.err
    assert "begins or ends with a space" in ada.run("task", "add", "t2", "--label", "  ").err


def test_a_list_is_as_wide_as_the_terminal_and_whole_for_a_program(ada: Shell) -> None:
    ada.run("task", "add", "t1", "--title", "long " * 30)
    assert "long " * 29 in ada.run("task", "list").out
    terminal, end = os.openpty()
    try:
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 70, 0, 0))
        environment = ada.environment() | {"NO_COLOR": "1"}
        environment.pop("COLUMNS", None)
        words = [*COMMAND, "task", "list"]
        subprocess.run(words, cwd=ada.folder, env=environment, stdout=end, check=True)
        said = os.read(terminal, 10_000).decode()
    finally:
        os.close(terminal)
        os.close(end)
    lines = said.splitlines()
    assert len(lines) == 2
    assert max(map(len, lines)) <= 70
    assert "long…" in lines[1].replace(" …", "…")


def test_a_task_behind_guards_says_what_keeps_it_and_what_it_lacks(
    ada: Shell, tmp_path: Path
) -> None:
    ada.allow_in(tmp_path / "home")
    (ada.folder / "guards.toml").write_text(
        '[guard.calm]\nwhen = {lock_free = "deploy"}\n[guard.built]\nwhen = {file_exists = "app"}\n'
    )
    ada.run("guard", "define", "guards.toml")
    lock = ada.json("lock", "acquire", "deploy")[1]
    add = ("task", "add", "t1", "--guard", "calm", "--evidence", "built")
    assert "it begins when guard calm passes: lock-free=deploy" in ada.run(*add).out
    status, blocked = ada.json("task", "claim", "t1")
    assert (status, blocked["outcome"], blocked["guard"]) == (1, "blocked", "calm")
    assert (blocked["leaf"], blocked["acts"]) == ("lock-free=deploy", ["ada releases lock deploy"])
    assert "guard calm: lock-free=deploy: ada holds lock deploy" in ada.run("task", "list").out
    assert "ada releases lock deploy" in ada.run("why", "task/t1").out
    shown = ada.json("task", "show", "t1")[1]
    assert (shown["guards"], shown["evidence"]) == (["calm"], ["built"])
    ada.run("lock", "release", "deploy", *token(lock))
    claimed = ada.json("task", "next")[1]
    ada.run("guard", "allow", "guards.toml")
    done = ada.run("task", "done", "t1", *token(claimed))
    assert "it lacks evidence; guard built: file-exists=app" in done.out
    assert "the claim stays yours: complete the task again, or fail it" in done.out
    (ada.folder / "app").touch()
    assert ada.json("task", "done", "t1", *token(claimed))[1]["outcome"] == "completed"


def test_a_plan_is_changed_task_by_task(ada: Shell) -> None:
    for name, *needs in (("a",), ("b", "--needs", "a", "--label", "x,y")):
        assert ada.run("task", "add", name, *needs).status == 0
    done = ada.run("task", "edit", "b", "--label", "", "--text", "-", input="Do it.\n\tWell.\n")
    assert done.out == "edited b: labels x,y -> none; text none -> 'Do it.\\n\\tWell.\\n'\n"
    status, view = ada.json("task", "show", "b")
    assert (status, view["text"], view["labels"]) == (0, "Do it.\n\tWell.\n", [])
    assert ada.run("task", "edit", "b", "--text", "x\x07").status == 2
    assert ada.run("task", "edit", "b", "--add-label", " ").status == 2
    assert ada.run("task", "edit", "b").status == 2
    cycle = ada.run("task", "edit", "a", "--add-needs", "b")
    assert (cycle.status, "a -> b -> a" in cycle.err) == (2, True)
    assert ada.run("task", "drop", "a", "zz").status == 1
    status, dropped = ada.json("task", "drop", "a", "--reason", "no")
    assert (status, dropped) == (0, {"outcome": "dropped", "tasks": ["a"], "blocked": ["b"]})
    assert "interlock task edit b --remove-needs a" in ada.run("why", "task/b").out
    assert ada.run("task", "claim", "a").status == 1
    assert "--again" in ada.run("task", "add", "a").out
    assert ada.run("task", "add", "a", "--again").out == "published a\n"


def test_whoever_comes_too_late_is_told_what_is_in_the_way(here: Here) -> None:
    here.run("task", "add", "t0")
    done = here.run("task", "add", "t1", "--needs", "t0")
    assert done.out == "published t1; it begins when all it needs is complete\n"
    done = here.run("task", "claim", "t1")
    assert (done.status, done.out) == (
        1,
        "blocked t1: it needs t0, which is not complete; see 'interlock task show t0'\n",
    )
    assert here.json("task", "claim", "t1")[1]["on"] == "t0"
    claim(here, "t0", "--ttl", "30s")
    done = here.run("task", "claim", "t0", "--agent", "bob")
    assert re.fullmatch(r"taken t0: ada has worked on it for .* s, expires in \d+ s\n", done.out)
    done = here.run("task", "next", "--agent", "bob", "--wait", "50ms")
    assert (done.status, done.out) == (
        1,
        "nothing: no task that is ready is one that you can do; see 'interlock task list'\n",
    )
    assert here.json("task", "next", "--agent", "bob")[1]["outcome"] == "nothing"


def test_within_a_session_a_claim_needs_no_token_and_lives_by_it(here: Here) -> None:
    session(here)
    for task in ("a", "b", "c"):
        here.run("task", "add", task)
        claim(here, task)
    assert here.json("task", "beat", "a")[1]["outcome"] == "extended"
    status, done = here.json("task", "done", "a", "--result", '{"pull": 7}')
    assert (status, done["outcome"]) == (0, "completed")
    assert here.json("task", "show", "a")[1]["result"] == {"pull": 7}
    released = {"outcome": "released", "later": False, "task": "b"}
    assert here.json("task", "release", "b") == (0, released)
    assert here.json("agent", "leave")[1]["released"] == ["task/c"]
    del here.exported["INTERLOCK_SESSION"]
    states = {each["task"]: each["state"] for each in here.json("task", "list")[1]["tasks"]}
    assert states == {"b": "pending", "c": "pending"}


def test_only_the_owner_of_this_very_claim_is_heard(here: Here) -> None:
    here.run("task", "add", "t")
    first = claim(here, "t")
    late = ("done", "release", "beat", "fail")
    for verb in late:
        status, refused = here.json("task", verb, "t", "--agent", "bob")
        assert (status, refused["outcome"], refused["holder"]) == (1, "not_owner", "ada")
    assert here.run("task", "done", "t", "--agent", "bob").out == "not owner t: ada works on it\n"
    here.run("task", "release", "t", *token(first))
    second = claim(here, "t", "--agent", "bob")
    for verb in late:
        status, refused = here.json("task", verb, "t", *token(first))
        assert (status, refused["outcome"], refused["token"]) == (1, "fenced", second["token"])
    done = here.run("task", "done", "t", *token(first))
    assert done.out == (
        f"fenced t: that claim is over; bob works on it with token {second['token']}\n"
    )
    assert here.json("task", "done", "t", *token(second), "--agent", "bob")[0] == 0
    assert here.run("task", "done", "t", *token(first)).out == (
        "fenced t: that claim is over; it is complete\n"
    )
    log = here.json("record", "log", "--thing", "task/t", "--limit", "50")[1]["entries"]
    outcomes = [each["outcome"] for each in log]
    assert "not_owner" in outcomes, "a refusal is recorded, once in a while"


def test_a_task_that_fails_too_often_is_a_dead_letter_and_can_be_sent_back(here: Here) -> None:
    here.run("task", "add", "t", "--retries", "1", "--backoff", "0")
    first = claim(here, "t")
    words = ("task", "fail", "t", "no luck", "--error", '{"line": 3}')
    assert here.json(*words, *token(first)) == (
        0,
        {
            "outcome": "failed",
            "task": "t",
            "state": "pending",
            "attempts": 1,
            "retry_in": None,
            "already": False,
            "next": None,
        },
    )
    second = claim(here, "t")
    assert second["attempt"] == 2
    done = here.run(*words, *token(second))
    dead = "failed t after 2 attempts, and is dead; to send it back: interlock task retry t\n"
    assert done.out == dead
    assert here.json("task", "done", "t", *token(second))[1]["outcome"] == "fenced"
    status, nothing = here.json("task", "claim", "t")
    assert (status, nothing["outcome"], nothing["state"]) == (1, "nothing", "dead")
    shown = here.json("task", "show", "t")[1]
    assert (shown["state"], shown["reason"], shown["error"]) == ("dead", "no luck", {"line": 3})
    assert here.run("task", "retry", "t").out == "retried t; it is pending\n"
    assert here.json("task", "retry", "t")[1]["outcome"] == "unchanged"
    third = claim(here, "t")
    done = here.run("task", "fail", "t", "--final", *token(third))
    assert done.out == "failed t for good; to send it back: interlock task retry t\n"


def test_a_failed_attempt_rests_and_is_tried_again(here: Here) -> None:
    here.run("task", "add", "t", "--backoff", "500ms")
    first = claim(here, "t")
    status, failed = here.json("task", "fail", "t", *token(first))
    assert (status, failed["state"]) == (0, "pending")
    assert 0 < failed["retry_in"] < 1
    second = claim(here, "t", "--wait", "10s")
    assert second["attempt"] == 2
    assert second["token"] > first["token"]


def test_a_cancelled_task_is_over_for_whoever_works_on_it(here: Here) -> None:
    here.run("task", "add", "t")
    held = claim(here, "t", "--agent", "bob")
    assert here.run("task", "cancel", "t", "not needed").out == "cancelled t\n"
    assert here.json("task", "cancel", "t")[1] == {
        "outcome": "cancelled",
        "task": "t",
        "already": True,
    }
    status, fenced = here.json("task", "done", "t", *token(held), "--agent", "bob")
    assert (status, fenced) == (
        1,
        {
            "outcome": "fenced",
            "task": "t",
            "state": "failed",
            "holder": "",
            "token": None,
            "by": "",
            "reason": "",
        },
    )
    assert here.json("task", "show", "t")[1]["reason"] == "cancelled by ada: not needed"
    assert here.run("task", "cancel", "u").out == (
        "unchanged u: there is no task u; see 'interlock task list'\n"
    )


def test_a_lost_worker_is_stale_and_its_task_goes_to_the_next(here: Here) -> None:
    here.run("task", "add", "t", "--backoff", "0")
    lost = claim(here, "t", "--ttl", "500ms")
    until(lambda: here.json("task", "show", "t")[1].get("stale"))
    assert here.json("task", "show", "t")[1]["holder"] == "ada"
    assert len(here.json("task", "list", "--holder", "ada")[1]["tasks"]) == 1
    assert here.json("task", "list", "--holder", "bob")[1] == {"tasks": [], "more": "", "count": 0}
    assert "ada is stale; the next worker takes it over" in here.run("task", "list").out
    taken = claim(here, "t", "--agent", "bob")
    assert taken["attempt"] == 2
    assert here.json("task", "done", "t", *token(lost))[1]["outcome"] == "fenced"


def test_who_waits_for_the_next_task_hears_of_it(ada: Shell) -> None:
    waiter = ada.start("task", "next", "--can", "rust", "--wait", "20s", "--json")
    until(lambda: ada.json("agent", "list")[1]["agents"])
    ada.run("task", "add", "deaf", "--requires", "gpu")
    ada.run("task", "add", "t", "--requires", "rust", "--data", "[1]")
    out, err = waiter.communicate()
    answer = json.loads(out)
    assert (waiter.returncode, answer["task"], answer["data"], err) == (0, "t", [1], "")
    assert ada.json("task", "done", "t", *token(answer))[0] == 0


def test_a_claim_by_name_says_what_the_task_requires(here: Here) -> None:
    here.run("task", "add", "train", "--requires", "gpu,rust")
    assert here.run("task", "next", "--can", "rust").status == 1
    done = here.run("task", "claim", "train", "--ttl", "15m")
    assert re.fullmatch(
        r"claimed train, token \d+, expires in 15 min; it requires gpu, rust\n", done.out
    )


def test_who_needs_what_will_not_be_complete_by_itself_is_told_how_to_go_on(here: Here) -> None:
    for task in ("fine", "boom", "gone"):
        here.run("task", "add", task, "--retries", "0")
    here.run("task", "fail", "boom", *token(claim(here, "boom")))
    here.run("task", "cancel", "gone")
    assert here.run("task", "add", "after", "--needs", "fine,boom,gone").out == (
        "published after; it begins when all it needs is complete, but boom, gone failed;"
        " to send the first back: interlock task retry boom\n"
    )
    here.run("task", "retry", "boom")
    assert here.json("task", "add", "later", "--needs", "fine,boom")[1]["ended"] == []


def test_the_best_priority_comes_first_then_the_oldest(here: Here) -> None:
    for task, priority in (("late", "7"), ("old", "-3"), ("young", "-3"), ("soon", "-20")):
        here.run("task", "add", task, "--priority", priority)
    here.run("task", "add", "first", "--priority=-21")
    order = [here.json("task", "next")[1]["task"] for _ in range(5)]
    assert order == ["first", "soon", "old", "young", "late"]


def test_tasks_are_listed_and_shown(here: Here) -> None:
    assert here.json("task", "list") == (0, {"tasks": [], "more": "", "count": 0})
    here.run("task", "add", "a", "--label", "red,big", "--requires", "gpu")
    here.run("task", "add", "b", "--needs", "a", "--label", "red", "--deadline", "1h")
    here.run("task", "add", "c", "--not-before", "2h", "--data", '{"x": "\\n"}')
    head, *rows = here.run("task", "list").out.splitlines()
    assert head.split() == ["TASK", "STATE", "PRIORITY", "LABELS", "NOTE"]
    assert [row.split() for row in rows] == [
        ["a", "pending", "5", "red,big", "requires", "gpu"],
        ["b", "blocked", "5", "red", "needs", "a"],
        ["c", "pending", "5", "begins", "in", "2", "h"],
    ]
    listed = here.json("task", "list", "--limit", "2")[1]
    assert [each["task"] for each in listed["tasks"]] == ["a", "b"]
    assert "data" not in listed["tasks"][0]
    later = here.json("task", "list", "--after", listed["more"])[1]
    assert ([each["task"] for each in later["tasks"]], later["more"]) == (["c"], "")
    assert here.run("task", "list", "--limit", "1").out.endswith("more: --after a\n")
    shown = here.run("task", "show", "c").out
    assert 'data        {"x":"\\n"}' in shown.splitlines()
    assert "not before  in 2 h" in shown.splitlines()
    status, nothing = here.json("task", "show", "nope")
    assert (status, nothing["outcome"], nothing["state"]) == (1, "nothing", "unknown")


def test_a_task_without_an_id_gets_one_that_works(here: Here) -> None:
    _, made = here.json("task", "add", "--data", '"hi"')
    assert made["task"].startswith("tsk_")
    assert claim(here, made["task"])["data"] == "hi"


def test_data_come_from_the_words_a_file_or_stdin(here: Here) -> None:
    (here.folder / "spec.json").write_text('{"from": "file"}')
    here.run("task", "add", "a", "--data", "@spec.json")
    done = here.run("task", "add", "b", "--data", "-", input='{"from": "stdin"}')
    assert done.out == "published b\n"
    assert claim(here, "a")["data"] == {"from": "file"}
    done = here.run("task", "claim", "b")
    assert done.out.splitlines()[1] == '{"from":"stdin"}'


def test_a_late_holder_changes_nothing_with_given(ada: Shell) -> None:
    token = ada.json("lock", "acquire", "deploy")[1]["token"]
    given = ("--given", f"lock/deploy={token}")
    assert ada.json("task", "add", "t1", *given)[1]["outcome"] == "published"
    claim = ada.json("task", "claim", "t1", *given)[1]["token"]
    ada.json("lock", "release", "deploy", "--token", str(token))
    fenced = (1, {"outcome": "fenced", "given": "lock/deploy", "token": None})
    assert ada.json("task", "add", "t2", *given) == fenced
    assert ada.json("task", "done", "t1", "--token", str(claim), *given) == fenced
    assert ada.json("alert", "build", *given) == fenced
    assert ada.json("inbox")[0] == 0
    said = ada.run("send", "ada", "hello", *given)
    assert (said.status, said.out) == (
        1,
        "fenced lock/deploy: that grant is over, so nothing was done; acquire lock/deploy again\n",
    )
    wrong = ada.run("task", "add", "t2", "--given", "deploy")
    assert wrong.status == 2
    assert "lock/deploy=12" in wrong.err


def test_an_operator_puts_a_task_back_and_the_worker_reads_why(ada: Shell) -> None:
    ada.run("task", "add", "t1")
    _, claimed = ada.json("task", "claim", "t1", "--agent", "bob")
    words = ("task", "requeue", "t1", "--reason", "bob hangs", "--agent", "maria")
    status, done = ada.json(*words)
    assert (status, done["outcome"], done["holder"]) == (0, "requeued", "bob")
    late = ada.run("task", "done", "t1", "--agent", "bob", "--token", str(claimed["token"]))
    assert late.status == 1
    assert late.out == (
        "fenced t1: that claim is over; maria ended it; it is pending\n  | bob hangs\n"
    )
    assert "maria ended the grant of bob" in ada.run("why", "t1").out
    told = ada.run("record", "explain", "task/t1").out
    assert "its claim was ended by maria, the reason: 'bob hangs'" in told
    assert ada.json(*words)[1]["outcome"] == "unchanged"


def test_several_tasks_are_claimed_with_one_command(ada: Shell) -> None:
    for name in ("a", "b", "c"):
        ada.run("task", "add", name, "--data", f'"{name}"')
    lines = ada.run("task", "next", "--limit", "2").out.splitlines()
    assert [line.split(",")[0] for line in lines[::2]] == ["claimed a", "claimed b"]
    _, last = ada.json("task", "next", "--limit", "2")
    assert (last["task"], last.get("others", [])) == ("c", [])
    assert ada.run("task", "next", "--limit", "65").status == 2
