"""``task run``: a program works on a task, as a shell and a service manager run it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from tests.faces.shell import PATIENCE, Here, Shell, gone, until

from interlock.faces.cli.task_run import KEPT

DAEMON = """
import os, signal, sys, time
if os.fork():
    time.sleep(1000)
os.setsid()
if os.fork():
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("daemon.new", "w").write(str(os.getpid()))
os.rename("daemon.new", "daemon")
time.sleep(1000)
"""
"""A program that starts a daemon in a session of its own, which ignores SIGTERM."""
STUBBORN = "trap '' TERM; echo $$ > new; mv new pid; while :; do sleep 1000; done"


def state(shell: Shell, task: str) -> dict[str, Any]:
    return shell.json("task", "show", task)[1]


def number(shell: Shell, name: str) -> int:
    path = shell.folder / name
    return int(until(lambda: path.exists() and path.read_text().strip()))


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, errors


def test_a_program_gets_its_task_and_its_end_is_the_result(ada: Shell) -> None:
    ada.run("task", "add", "t1", "--data", '{"x": 1}')
    script = 'cat; echo " $INTERLOCK_TASK $INTERLOCK_ATTEMPT $INTERLOCK_AGENT"; echo hm >&2'
    done = ada.run("task", "run", "--", "sh", "-c", script)
    assert (done.status, done.out) == (0, '{"x":1} t1 1 ada\n')
    assert done.err == "hm\ninterlock: completed t1\n"
    kept = {"status": 0, "output": '{"x":1} t1 1 ada\n', "errors": "hm\n"}
    assert (state(ada, "t1")["state"], state(ada, "t1")["result"]) == ("complete", kept)
    again = ada.run("task", "run", "--", "true")
    assert (again.status, again.out.startswith("nothing")) == (1, True)


def test_a_program_ends_its_own_claim_with_its_token_and_the_worker_agrees(ada: Shell) -> None:
    ada.run("task", "add", "t1", "--retries", "5")
    own = f'"{sys.executable}" -m interlock task fail t1 broken --final --token $INTERLOCK_TOKEN'
    done = ada.run("task", "run", "t1", "--", "sh", "-c", f"{own} >&2; exit 3")
    assert done.status == 3
    assert (state(ada, "t1")["state"], state(ada, "t1")["reason"]) == ("failed", "broken")


def test_another_status_fails_the_attempt_with_the_end_of_what_was_printed(ada: Shell) -> None:
    ada.run("task", "add", "t1", "--retries", "1", "--backoff", "10ms")
    done = ada.run("task", "run", "t1", "--", "sh", "-c", "echo no disk; exit 7")
    assert (done.status, "t1: the program ended with status 7" in done.err) == (7, True)
    killed = ada.run("task", "run", "t1", "--wait", "1m", "--", "sh", "-c", "kill -9 $$")
    assert (killed.status, "killed by signal 9" in killed.err) == (137, True)
    found = state(ada, "t1")
    assert (found["state"], found["error"]) == ("dead", {"status": 137})


def test_a_program_that_takes_too_long_is_ended_and_fails(ada: Shell) -> None:
    ada.run("task", "add", "t1")
    words = ("--timeout", "100ms", "--grace", "100ms")
    done = ada.run("task", "run", "t1", *words, "--", "sh", "-c", STUBBORN)
    assert (done.status, "took longer than" in done.err) == (124, True)
    assert gone(number(ada, "pid"))
    assert state(ada, "t1")["attempts"] == 1


def test_bytes_and_floods_are_passed_on_whole_and_kept_as_the_end_in_text(ada: Shell) -> None:
    ada.run("task", "add", "t1")
    script = r"printf '\000\377'; yes ä | head -c 3000001; printf '\377end'"
    with (ada.folder / "out").open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-m", "interlock", "task", "run", "--", "sh", "-c", script],
            cwd=ada.folder,
            env=ada.environment(),
            stdout=file,
            stderr=subprocess.DEVNULL,
            timeout=PATIENCE,
            check=False,
        )
    printed = (ada.folder / "out").read_bytes()
    assert (done.returncode, len(printed), printed[:2]) == (0, 3_000_007, b"\x00\xff")
    output = state(ada, "t1")["result"]["output"]
    assert output.endswith("\\xffend")
    assert KEPT - 8 <= len(output.encode()) <= KEPT + 16
    assert set(output[:100]) == {"ä", "\n"}


def test_a_program_that_reads_no_input_or_whose_output_nobody_reads_is_no_problem(
    ada: Shell,
) -> None:
    (ada.folder / "data.json").write_text(json.dumps("x" * 1_000_000))
    ada.run("task", "add", "t1", "--data", "@data.json")
    assert ada.run("task", "run", "t1", "--", "true").status == 0
    ada.run("task", "add", "t2")
    process = ada.start("task", "run", "t2", "--", "sh", "-c", "yes | head -c 300000")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(PATIENCE) == 0
    assert state(ada, "t2")["state"] == "complete"


def test_a_program_that_cannot_be_started_costs_no_task_an_attempt(ada: Shell) -> None:
    for task in ("t1", "t2"):
        ada.run("task", "add", task, "--retries", "0")
    missing = ada.run("task", "run", "--loop", "--", "no-such-program")
    assert (missing.status, "check its name and PATH" in missing.err) == (127, True)
    (ada.folder / "plain").touch(0o600)
    plain = ada.run("task", "run", "--loop", "--", "./plain")
    assert (plain.status, "make it so: chmod +x ./plain" in plain.err) == (126, True)
    script = ada.folder / "build"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o700)
    for words in (("--loop", "--jobs", "2"), ()):
        broken = ada.run("task", "run", *words, "--", "./build")
        assert (broken.status, "is back in the queue" in broken.err) == (126, True)
    found = ada.json("task", "list")[1]["tasks"]
    assert [(each["state"], each["attempts"]) for each in found] == [("pending", 0)] * 2


@pytest.mark.parametrize("number_", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_one_program_and_releases_its_task(ada: Shell, number_: int) -> None:
    ada.run("task", "add", "t1")
    process = ada.start("task", "run", "t1", "--grace", "200ms", "--", "sh", "-c", STUBBORN)
    program = number(ada, "pid")
    process.send_signal(number_)
    status, errors = ended(process)
    assert (status, "task t1 waits for another worker" in errors) == (128 + number_, True)
    assert gone(program)
    assert (state(ada, "t1")["state"], state(ada, "t1")["attempts"]) == ("pending", 0)


def test_a_stop_message_ends_the_program_and_a_second_one_leaves_no_grace(ada: Shell) -> None:
    ada.run("task", "add", "t1")
    process = ada.start("task", "run", "t1", "--grace", "1h", "--", "sh", "-c", STUBBORN)
    program = number(ada, "pid")
    for reason in ("please", "now"):
        assert ada.run("stop", "ada", reason, "--agent", "bob").status == 0
    status, errors = ended(process)
    assert (status, "bob asked: please" in errors) == (143, True)
    assert gone(program)
    assert state(ada, "t1")["state"] == "pending"


def test_a_lost_claim_ends_the_program_with_every_daemon_it_started(ada: Shell) -> None:
    ada.run("task", "add", "t1")
    words = ("--ttl", "1s", "--grace", "200ms", "--", sys.executable, "-c", DAEMON)
    process = ada.start("task", "run", "t1", *words)
    daemon = number(ada, "daemon")
    ada.run("task", "requeue", "t1", "--reason", "ada hangs", "--agent", "maria")
    status, errors = ended(process)
    assert (status, "maria" in errors) == (1, True), errors
    assert gone(daemon)


def test_a_killed_worker_leaves_no_program_behind_and_its_task_to_the_next(ada: Shell) -> None:
    ada.run("task", "add", "t1")
    words = ("--loop", "--ttl", "1s", "--grace", "100ms", "--", sys.executable, "-c", DAEMON)
    process = ada.start("task", "run", *words)
    daemon = number(ada, "daemon")
    process.kill()
    until(lambda: gone(daemon))
    done = ada.run("task", "run", "t1", "--wait", "1m", "--", "true")
    assert (done.status, state(ada, "t1")["attempts"]) == (0, 1)


def test_a_loop_runs_several_at_once_and_finishes_them_when_told_to_stop(ada: Shell) -> None:
    """Each program waits until all three run, and none ends before the worker was told."""
    for task in range(3):
        ada.run("task", "add", f"t{task}")
    os.mkfifo(ada.folder / "gate")
    script = "touch began-$INTERLOCK_TASK; read line < gate; echo $INTERLOCK_TASK"
    words = ("--loop", "--jobs", "3", "--json", "--", "sh", "-c", script)
    process = ada.start("task", "run", *words)
    until(lambda: len(list(ada.folder.glob("began-*"))) == 3)
    process.terminate()
    until(lambda: process.stderr is not None and "a second signal" in process.stderr.readline())
    with (ada.folder / "gate").open("w") as gate:
        gate.write("go\n" * 3)
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert {json.loads(line)["outcome"] for line in out.splitlines()} == {"completed"}
    assert len(out.splitlines()) == 3


def test_a_second_signal_ends_the_programs_of_a_loop_and_releases_their_tasks(ada: Shell) -> None:
    ada.run("task", "add", "t1")
    process = ada.start("task", "run", "--loop", "--grace", "100ms", "--", "sh", "-c", STUBBORN)
    program = number(ada, "pid")
    process.terminate()
    until(lambda: process.stderr is not None and "a second signal" in process.stderr.readline())
    process.terminate()
    status, errors = ended(process)
    assert (status, "their tasks wait for another worker" in errors) == (143, True)
    assert gone(program)
    assert (state(ada, "t1")["state"], state(ada, "t1")["attempts"]) == ("pending", 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("t1",), "which program?"),
        (("t1", "--loop", "--", "true"), "leave the id and --wait out"),
        (("--jobs", "2", "--", "true"), "add --loop"),
        (("t1", "--can", "rust", "--", "true"), "'can' chooses the next task"),
        (("--timeout", "soon", "--", "true"), "soon"),
    ],
)
def test_words_that_do_not_fit_are_refused(here: Here, words: tuple[str, ...], said: str) -> None:
    done = here.run("task", "run", *words, "--agent", "ada")
    assert (done.status, said in done.err) == (2, True), done.err
