"""Two shells that would wait for each other for ever: the one that comes last is told at once."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from tests.faces.shell import COMMAND, PATIENCE, Shell, until

A_MINUTE = ("--wait", "60s")


def waiting(shell: Shell, lock: str, agent: str) -> None:
    until(lambda: shell.json("lock", "show", lock)[1].get("waiters") == [agent])


def shell_of(ada: Shell, agent: str) -> Shell:
    """A second shell in the same folder, with a session of its own."""
    joined = ada.json("agent", "join", "--agent", agent)[1]["session"]
    return Shell(ada.folder, INTERLOCK_SESSION=joined)


def test_two_shells_that_name_their_agents(shell: Shell) -> None:
    shell.run("lock", "acquire", "A", "--agent", "ada")
    _, held = shell.json("lock", "acquire", "B", "--agent", "bob")
    waiter = shell.start("lock", "acquire", "B", "--agent", "ada", *A_MINUTE, "--json")
    waiting(shell, "B", "ada")
    words = ("lock", "acquire", "A", "--agent", "bob", *A_MINUTE)
    assert shell.json(*words) == (1, {"outcome": "deadlock", "lock": "A", "cycle": ["bob", "ada"]})
    assert shell.run(*words).out == (
        "deadlock A: waiting would never end (bob -> ada -> bob);"
        " release what you hold, answer your open questions, then retry\n"
    )
    shell.run("lock", "release", "B", "--agent", "bob", "--token", str(held["token"]))
    assert '"outcome":"acquired"' in waiter.communicate()[0], "the one that came first goes on"


def test_two_shells_with_sessions(shell: Shell) -> None:
    ada, bob = shell_of(shell, "ada"), shell_of(shell, "bob")
    ada.run("lock", "acquire", "A")
    bob.run("lock", "acquire", "B")
    waiter = ada.start("lock", "acquire", "B", *A_MINUTE, "--json")
    waiting(shell, "B", "ada")
    assert bob.json("lock", "acquire", "A", *A_MINUTE) == (
        1,
        {"outcome": "deadlock", "lock": "A", "cycle": ["bob", "ada"]},
    )
    assert bob.run("agent", "leave").status == 0
    assert '"outcome":"acquired"' in waiter.communicate()[0]


def test_who_waits_for_a_task_whose_worker_waits_for_it(shell: Shell) -> None:
    ada, bob = shell_of(shell, "ada"), shell_of(shell, "bob")
    ada.run("task", "add", "build")
    ada.run("task", "add", "deploy", "--needs", "build")
    ada.run("task", "claim", "build")
    bob.run("lock", "acquire", "site")
    waiter = ada.start("lock", "acquire", "site", *A_MINUTE, "--json")
    waiting(shell, "site", "ada")
    words = ("task", "claim", "deploy", *A_MINUTE)
    told = {"outcome": "deadlock", "task": "deploy", "cycle": ["bob", "ada"]}
    assert bob.json(*words) == (1, told)
    assert bob.run(*words).out == (
        "deadlock deploy: waiting would never end (bob -> ada -> bob);"
        " release what you hold, answer your open questions, then retry\n"
    )
    assert bob.run("agent", "leave").status == 0
    assert '"outcome":"acquired"' in waiter.communicate()[0]


def test_two_names_in_one_hand_are_no_circle(shell: Shell) -> None:
    """Ada waits while bob works: nobody else is in the way."""
    shell.run("lock", "acquire", "A", "--agent", "ada")
    status, answer = shell.json("lock", "acquire", "A", "--agent", "bob", "--wait", "200ms")
    assert (status, answer["outcome"]) == (1, "busy")


@pytest.mark.parametrize("nested", ["lock run", "run --hold", "a run between"])
def test_commands_inside_a_run_are_one_caller_with_it(shell: Shell, nested: str) -> None:
    first, second = runs(nested, "a", "b"), runs(nested, "b", "a")
    ada = shell.start(*first[0], "--agent", "ada", "--", "sh", "-c", meets(shell, "b", first[1]))
    bob = shell.start(*second[0], "--agent", "bob", "--", "sh", "-c", meets(shell, "a", second[1]))
    outs = sorted([(each.returncode, out) for each, out in map(ended, (ada, bob))])
    assert outs[0] == (0, "worked\n")
    status, out = outs[1]
    assert status == 1
    assert '"outcome":"deadlock"' in out


def runs(nested: str, outer: str, inner: str) -> tuple[tuple[str, ...], str]:
    """A command that holds the outer lock, and the one inside of it for the other."""
    ours = " ".join(map(shlex.quote, COMMAND))
    if nested != "run --hold":
        between = f"{ours} run -- " if nested == "a run between" else ""
        then = f"{between}{ours} lock run {inner} --wait 60s --json -- echo worked"
        return ("lock", "run", outer), then
    hold = f"{ours} run --hold lock/{inner} --wait 60s --json -- echo worked"
    return ("run", "--hold", f"lock/{outer}"), hold


def meets(shell: Shell, other: str, then: str) -> str:
    """Go on when the other lock is held, so that each holds one."""
    ours = " ".join(map(shlex.quote, COMMAND))
    return f"until {ours} lock show {other} | grep -q held; do :; done; {then}"


def ended(process: subprocess.Popen[str]) -> tuple[subprocess.Popen[str], str]:
    out, _ = process.communicate(timeout=PATIENCE)
    return process, out


def test_a_semaphore_in_the_circle(shell: Shell) -> None:
    shell.run("sem", "acquire", "builds", "--capacity", "2", "--weight", "2", "--agent", "ada")
    shell.run("lock", "acquire", "merge", "--agent", "bob")
    waiter = shell.start("lock", "acquire", "merge", "--agent", "ada", *A_MINUTE)
    waiting(shell, "merge", "ada")
    words = ("sem", "acquire", "builds", "--agent", "bob", *A_MINUTE)
    status, answer = shell.json(*words)
    assert (status, answer) == (
        1,
        {"outcome": "deadlock", "semaphore": "builds", "cycle": ["bob", "ada"]},
    )
    status, answer = shell.json("acquire", "sem/builds", "lock/free", "--agent", "bob", *A_MINUTE)
    assert (status, answer["outcome"], answer["cycle"]) == (1, "deadlock", ["bob", "ada"])
    assert shell.json("lock", "show", "free")[1]["state"] == "free"
    waiter.terminate()


def test_one_of_several_slots_may_come_back_so_that_is_no_circle(shell: Shell) -> None:
    """Cleo holds the other slot, and does not wait."""
    shell.run("sem", "acquire", "builds", "--capacity", "2", "--agent", "ada")
    _, other = shell.json("sem", "acquire", "builds", "--agent", "cleo")
    shell.run("lock", "acquire", "merge", "--agent", "bob")
    waiter = shell.start("lock", "acquire", "merge", "--agent", "ada", *A_MINUTE)
    waiting(shell, "merge", "ada")
    second = shell.start("sem", "acquire", "builds", "--agent", "bob", *A_MINUTE, "--json")
    until(lambda: shell.json("sem", "show", "builds")[1].get("waiters"))
    token = ("--token", str(other["token"]))
    shell.run("sem", "release", "builds", "--agent", "cleo", *token)
    assert '"outcome":"acquired"' in second.communicate()[0]
    waiter.terminate()
