"""Programs inside a session or a lock: they never outlive it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest
from tests.faces.shell import COMMAND, Shell, gone, hold_the_turn, until

SHOW = (
    "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if 'INTERLOCK' in k}))"
)
NAP = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
STUBBORN = (
    "import os, signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "inner = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
    "print(os.getpid(), inner.pid, flush=True); time.sleep(60)"
)


def python(script: str, *options: str) -> tuple[str, ...]:
    return ("--", sys.executable, *options, "-c", script)


def first_line(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    return [int(word) for word in process.stdout.readline().split()]


@pytest.mark.parametrize("status", [0, 7])
def test_the_status_is_that_of_the_program(ada: Shell, status: int) -> None:
    exits = python(f"raise SystemExit({status})")
    assert ada.run("run", *exits).status == status
    assert ada.run("lock", "run", "merge", *exits).status == status


def test_a_signal_is_told_as_a_shell_tells_it(ada: Shell) -> None:
    done = ada.run("run", *python("import os; os.kill(os.getpid(), 9)"))
    assert (done.status, done.err) == (137, "")


def test_the_program_knows_its_session(ada: Shell) -> None:
    done = ada.run("run", "--trace", "t-1", *python(SHOW))
    known = json.loads(done.out)
    assert known["INTERLOCK_AGENT"] == "ada"
    assert known["INTERLOCK_TRACE"] == "t-1"
    assert known["INTERLOCK_SESSION"].startswith("ses_")
    assert known["INTERLOCK_STORE"] == str(ada.folder / ".interlock" / "store.db")
    assert ada.json("agent", "list")[1]["agents"] == [], "it left at the end"


def test_the_program_knows_its_lock(ada: Shell) -> None:
    done = ada.run("lock", "run", "merge", *python(SHOW))
    known = json.loads(done.out)
    assert known["INTERLOCK_LOCK"] == "merge"
    assert int(known["INTERLOCK_TOKEN"]) > 0
    assert ada.json("lock", "list")[1] == {"locks": []}


def test_a_lock_with_a_ttl_of_its_own_is_given_back_too(ada: Shell) -> None:
    (ada.folder / ".interlock" / "config.toml").write_text("[lock.'*']\nttl = '5m'\n")
    assert ada.run("lock", "run", "merge", "--", "true").status == 0
    assert ada.json("lock", "list")[1] == {"locks": []}


def test_commands_inside_carry_the_session(ada: Shell) -> None:
    inside = " ".join(COMMAND)
    done = ada.run("run", "--", "sh", "-c", f"{inside} lock acquire m; {inside} lock acquire m")
    assert [line.split()[0] for line in done.out.splitlines()] == ["acquired", "extended"]
    assert ada.json("lock", "list")[1] == {"locks": []}, "what lived by the session is given back"


def test_the_program_needs_no_dashes(ada: Shell) -> None:
    assert ada.run("lock", "run", "merge", "echo", "--json", "-v").out == "--json -v\n"


def test_a_busy_lock_names_its_holder_and_nothing_runs(ada: Shell) -> None:
    ada.run("lock", "acquire", "merge")
    mark = ada.folder / "ran"
    done = ada.run("lock", "run", "merge", "--agent", "bob", "--", "touch", str(mark))
    assert done.status == 1
    assert "held by ada" in done.out
    status, answer = ada.json("lock", "run", "merge", "--agent", "bob", "--", "touch", str(mark))
    assert (status, answer["outcome"], answer["holder"]) == (1, "busy", "ada")
    assert not mark.exists()


def test_programs_take_turns(ada: Shell) -> None:
    log = ada.folder / "log"
    script = f"import os; f = open({str(log)!r}, 'a'); f.write('in '); f.flush(); f.write('out ')"
    racers = [
        ada.start("lock", "run", "merge", "--wait", "forever", *python(script)) for _ in range(4)
    ]
    for racer in racers:
        racer.communicate()
        assert racer.returncode == 0
    assert log.read_text() == "in out " * 4


@pytest.mark.parametrize(("program", "status"), [("/no/such/program", 127), ("/", 126)])
def test_a_program_that_cannot_be_run_costs_no_lock(ada: Shell, program: str, status: int) -> None:
    done = ada.run("lock", "run", "merge", "--", program)
    assert done.status == status
    assert program in done.err
    assert done.err.count("\n") == 1
    assert ada.json("lock", "list")[1] == {"locks": []}
    assert ada.run("run", "--", program).status == status


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_passed_on(ada: Shell, signum: signal.Signals) -> None:
    script = (
        f"import signal, sys; signal.signal({int(signum)}, lambda *_: sys.exit(33));"
        "print(1, flush=True); signal.pause()"
    )
    process = ada.start("run", *python(script))
    first_line(process)
    process.send_signal(signum)
    process.communicate()
    assert process.returncode == 33


def test_a_waiting_command_can_be_stopped(ada: Shell) -> None:
    ada.run("lock", "acquire", "merge")
    waiter = ada.start("lock", "run", "merge", "--wait", "forever", "--", "echo", "ran")
    until(lambda: ada.json("lock", "show", "merge")[1].get("waiters"))
    waiter.send_signal(signal.SIGTERM)
    out, err = waiter.communicate()
    assert (waiter.returncode, out, err) == (143, "", "")
    assert "waiters" not in ada.json("lock", "show", "merge")[1]


def test_the_program_dies_with_us(ada: Shell) -> None:
    process = ada.start("lock", "run", "merge", *python(NAP))
    (pid,) = first_line(process)
    process.kill()
    until(lambda: gone(pid), "the end of the program")


def test_the_program_ends_before_its_maximum_hold(ada: Shell) -> None:
    """It ignores SIGTERM and has a child of its own: both are killed in time."""
    started = time.monotonic()
    process = ada.start("lock", "run", "merge", "--max-hold", "2s", *python(STUBBORN))
    pids = first_line(process)
    _, err = process.communicate()
    assert time.monotonic() - started < 2.5
    assert process.returncode == 137
    assert "lock 'merge' could not be kept" in err
    assert all(gone(pid) for pid in pids)
    assert ada.json("lock", "acquire", "merge")[0] == 0


def test_a_program_that_shrugs_off_the_loss_does_not_succeed(ada: Shell) -> None:
    script = "import signal, sys; signal.signal(15, lambda *_: sys.exit(0)); signal.pause()"
    done = ada.run("lock", "run", "merge", "--max-hold", "1s", *python(script))
    assert done.status == 1


def test_a_lost_session_ends_the_program(ada: Shell) -> None:
    """Somebody ended our session in the store: the next beat finds out."""
    for words in (("run", "--ttl", "1s"), ("lock", "run", "merge", "--ttl", "1s")):
        process = ada.start(*words, *python(NAP))
        (pid,) = first_line(process)
        (agent,) = ada.json("agent", "list")[1]["agents"]
        ada.run("agent", "leave", "--session", agent["session"])
        _, err = process.communicate()
        assert process.returncode in (137, 143)
        assert "the program was ended" in err
        assert gone(pid)


def test_a_store_that_is_held_up_ends_the_program_in_time(ada: Shell) -> None:
    """We cannot renew: the program is over before the grant can lapse."""
    process = ada.start("lock", "run", "merge", "--ttl", "1500ms", *python(NAP))
    (pid,) = first_line(process)
    blocker = hold_the_turn(ada.folder / ".interlock" / "store.db-bells")
    try:
        until(lambda: gone(pid), "the end of the program")
        shown = ada.json("lock", "show", "merge")[1]
        assert shown["state"] == "held", "nobody else could have started yet"
    finally:
        blocker.kill()
        blocker.communicate()
    process.communicate()
    assert process.returncode in (137, 143)
