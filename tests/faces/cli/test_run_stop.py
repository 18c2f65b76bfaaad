"""A stop message to the session of ``run`` ends its program: politely, then by force."""

from __future__ import annotations

import subprocess

import pytest
from tests.faces.shell import Shell, gone, until

import interlock
from interlock.nouns.messages.message import Sent

NAP = ("--", "sh", "-c", "echo $$; exec sleep 1000")
STUBBORN = ("--", "sh", "-c", "trap '' TERM; sleep 1000 & echo $$ $!; wait")
SHRUG = ("--", "sh", "-c", "trap 'exit 7' TERM; sleep 1000 & echo $$; wait")


def stop(shell: Shell, reason: str = "") -> None:
    store = str(shell.folder / ".interlock" / "store.db")
    with interlock.connect(store, agent="bob", join=False) as fleet:
        assert isinstance(fleet.messages.stop("ada", reason), Sent)


def unread(shell: Shell) -> int:
    store = str(shell.folder / ".interlock" / "store.db")
    with interlock.connect(store, agent="ada", join=False) as fleet:
        return len(fleet.messages.inbox().messages)


def begun(process: subprocess.Popen[str]) -> list[int]:
    """The program runs, and these are its processes."""
    assert process.stdout is not None
    return [int(word) for word in process.stdout.readline().split()]


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


@pytest.mark.parametrize("words", [("run",), ("lock", "run", "merge"), ("sem", "run", "builds")])
def test_a_stop_ends_the_program_and_says_who_asked_and_why(
    ada: Shell, words: tuple[str, ...]
) -> None:
    more = ("--capacity", "1") if words[0] == "sem" else ()
    process = ada.start(*words, *more, *NAP)
    (program,) = begun(process)
    stop(ada, "the budget\nis spent")
    assert ended(process) == (143, "interlock: bob asked 'sh' to stop: 'the budget is spent'\n")
    assert gone(program)
    assert unread(ada) == 0


def test_a_program_that_ends_by_itself_when_asked_to_has_its_own_status(ada: Shell) -> None:
    process = ada.start("run", *SHRUG)
    begun(process)
    stop(ada)
    assert ended(process) == (7, "interlock: bob asked 'sh' to stop\n")


def test_a_program_that_does_not_hear_is_killed_after_the_grace_with_all_it_started(
    ada: Shell,
) -> None:
    process = ada.start("run", "--grace", "200ms", *STUBBORN)
    programs = begun(process)
    stop(ada)
    status, _ = ended(process)
    assert status == 137
    assert all(map(gone, programs))


def test_a_second_stop_leaves_no_grace(ada: Shell) -> None:
    process = ada.start("run", "--grace", "1h", *STUBBORN)
    begun(process)
    stop(ada, "please")
    stop(ada, "now")
    status, errors = ended(process)
    assert (status, errors.count("asked 'sh' to stop")) == (137, 2)


def test_a_stop_ends_the_wait_for_a_lock_and_nothing_is_left_of_it(ada: Shell) -> None:
    store = str(ada.folder / ".interlock" / "store.db")
    with interlock.connect(store, agent="cleo") as cleo, cleo.lock("merge"):
        process = ada.start("lock", "run", "merge", "--wait", "1h", *NAP)
        until(lambda: ada.json("lock", "show", "merge")[1].get("waiters"))
        stop(ada, "enough")
        assert ended(process) == (143, "interlock: bob asked 'sh' to stop: enough\n")
        assert not ada.json("lock", "show", "merge")[1].get("waiters")


def test_a_stop_for_those_before_us_is_passed_over_and_cleared_away(ada: Shell) -> None:
    before = str(ada.json("agent", "join", "--agent", "ada")[1]["session"])
    stop(ada, "old")
    assert ada.run("agent", "leave", "--session", before).status == 0
    process = ada.start("run", *NAP)
    begun(process)
    until(lambda: unread(ada) == 0)
    assert process.poll() is None
    stop(ada, "new")
    assert ended(process) == (143, "interlock: bob asked 'sh' to stop: new\n")


def test_a_shell_asks_for_it_with_one_command(ada: Shell) -> None:
    process = ada.start("run", *NAP)
    begun(process)
    assert ada.run("stop", "ada", "the budget is spent", "--agent", "bob").status == 0
    assert ended(process) == (143, "interlock: bob asked 'sh' to stop: 'the budget is spent'\n")
