"""Deadlocks as commands meet them: by session, by name, and programs inside of programs."""

from __future__ import annotations

import sys

from tests.faces.shell import PATIENCE, Shell, until

INTERLOCK = f"{sys.executable} -m interlock"


def waits(shell: Shell, lock: str) -> bool:
    _, shown = shell.json("lock", "show", lock)
    return bool(shown.get("waiters"))


def token(shell: Shell, lock: str) -> int:
    _, shown = shell.json("lock", "show", lock)
    return int(shown["token"])


def test_two_who_go_by_one_name_wait_for_each_other_without_a_fuss(shell: Shell) -> None:
    shell.run("lock", "acquire", "deploy", "--agent", "ci")
    second = shell.start("lock", "acquire", "deploy", "--agent", "ci", "--wait", "50s")
    until(lambda: waits(shell, "deploy"))
    number = str(token(shell, "deploy"))
    assert shell.run("lock", "release", "deploy", "--agent", "ci", "--token", number).status == 0
    assert second.wait(PATIENCE) == 0


def test_programs_side_by_side_inside_of_another_wait_for_each_other(shell: Shell) -> None:
    first = f"touch held; until {INTERLOCK} --json lock show inner | grep -q 'ada.*ada'; do :; done"
    both = f"""
        {INTERLOCK} lock run inner -- sh -c "{first}" &
        until [ -e held ]; do :; done
        {INTERLOCK} lock run inner --wait 50s -- true && wait $!
    """
    done = shell.run("lock", "run", "outer", "--agent", "ada", "--", "sh", "-c", both)
    assert (done.status, done.err) == (0, "")


def test_a_program_that_waits_for_what_is_held_around_it_is_refused(shell: Shell) -> None:
    inner = ["sh", "-c", f"{INTERLOCK} lock run outer --wait 50s -- true"]
    done = shell.run("lock", "run", "outer", "--agent", "ada", "--", *inner)
    assert done.status == 1
    assert "deadlock" in done.out + done.err


def test_a_program_inside_of_another_is_part_of_its_circle(shell: Shell) -> None:
    shell.run("lock", "acquire", "b", "--agent", "bob")
    inner = ["sh", "-c", f"{INTERLOCK} lock run b --wait 50s -- true"]
    outer = shell.start("lock", "run", "a", "--agent", "ada", "--", *inner)
    until(lambda: waits(shell, "b"))
    status, refused = shell.json("lock", "acquire", "a", "--agent", "bob", "--wait", "50s")
    assert (status, refused["outcome"], refused["cycle"]) == (1, "deadlock", ["bob", "ada"])
    shell.run("lock", "release", "b", "--agent", "bob", "--token", str(token(shell, "b")))
    assert outer.wait(PATIENCE) == 0
