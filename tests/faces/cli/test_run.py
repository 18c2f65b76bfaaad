"""Programs inside a session or a lock: they never outlive it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from tests.faces.shell import COMMAND, PATIENCE, Shell, gone, hold_the_turn, until

import interlock

SHOW = (
    "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if 'INTERLOCK' in k}))"
)
# In a shell: who has little time must not spend it on starting Python.
NAP = ("--", "sh", "-c", "echo $$; exec sleep 1000")
STUBBORN = ("--", "sh", "-c", "trap '' TERM; sleep 1000 & echo $$ $!; wait")
SHRUG = ("--", "sh", "-c", "trap 'exit 0' TERM; sleep 1000 & wait")
TICKS = (
    "import os, time; print(os.getpid(), flush=True)\n"
    "while True: print(time.monotonic(), flush=True); time.sleep(0.01)"
)
LOOK = (
    "import os; status = open('/proc/self/status').read().splitlines();"
    "print([line for line in status if line.startswith(('SigBlk', 'SigIgn'))]);"
    "print(sorted(os.listdir('/proc/self/fd')), os.getpgrp(), os.getsid(0))"
)
HEADLESS = (
    "import ctypes, os, threading, time;"
    "threading.Thread(target=lambda: [print(os.getpid(), flush=True), time.sleep(60)]).start();"
    "ctypes.CDLL(None).pthread_exit(None)"
)
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="there is no guardian elsewhere")


def python(script: str, *options: str) -> tuple[str, ...]:
    return ("--", sys.executable, *options, "-c", script)


def first_line(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    return [int(word) for word in process.stdout.readline().split()]


def guardian_between(ours: int, pid: int) -> int:
    while (above := parent(pid)) != ours:
        pid = above
    return pid


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


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
    assert ada.json("lock", "list")[1] == {"locks": [], "count": 0}


def test_a_lock_with_a_ttl_of_its_own_is_given_back_too(ada: Shell) -> None:
    ada.configure("[lock.'*']\nttl = '5m'\n")
    assert ada.run("lock", "run", "merge", "--", "true").status == 0
    assert ada.json("lock", "list")[1] == {"locks": [], "count": 0}


def test_commands_inside_carry_the_session(ada: Shell) -> None:
    inside = " ".join(COMMAND)
    done = ada.run("run", "--", "sh", "-c", f"{inside} lock acquire m; {inside} lock acquire m")
    assert [line.split()[0] for line in done.out.splitlines()] == ["acquired", "extended"]
    assert ada.json("lock", "list")[1] == {"locks": [], "count": 0}, (
        "what lived by the session is given back"
    )


def test_a_second_name_inside_is_refused_with_the_remedy(ada: Shell) -> None:
    command = " ".join(COMMAND)
    script = (
        f"INTERLOCK_AGENT=bob {command} lock acquire x; echo $?;"
        f" {command} lock acquire x --agent cleo; echo $?;"
        f" INTERLOCK_AGENT=bob {command} run -- {command} lock acquire y;"
        f' eval "$({command} agent join --agent dan)"; {command} lock acquire z'
    )
    done = ada.run("run", "--", "bash", "-c", script)
    first, second, own, joined = done.out.splitlines()
    assert (first, second) == ("2", "2")
    assert own.startswith("acquired y"), "bob has a session of his own"
    assert joined.startswith("acquired z")
    for name in ("bob", "cleo"):
        assert f"belongs to ada, not to {name}" in done.err
        assert f"interlock run --agent {name} --" in done.err
        assert f"interlock agent join --agent {name}" in done.err
    assert ada.json("lock", "show", "z")[1]["holder"] == "dan"
    assert ada.json("lock", "list")[1]["locks"][0]["lock"] == "z", "nothing was taken for ada"


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
    assert ada.json("lock", "list")[1] == {"locks": [], "count": 0}
    assert ada.run("run", "--", program).status == status


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_passed_on(ada: Shell, signum: signal.Signals) -> None:
    script = (
        f"import signal, sys; awaited = {{{int(signum)}}};"
        "signal.pthread_sigmask(signal.SIG_BLOCK, awaited);"  # else it may come before we wait
        "print(1, flush=True); signal.sigwait(awaited); sys.exit(33)"
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
    assert ada.json("lock", "show", "merge")[1]["waiters"] == []


def test_the_program_dies_with_us(ada: Shell) -> None:
    process = ada.start("lock", "run", "merge", *NAP)
    (pid,) = first_line(process)
    process.kill()
    until(lambda: gone(pid), "the end of the program")


@LINUX
@pytest.mark.parametrize("words", [("run",), ("lock", "run", "merge")])
@pytest.mark.parametrize(
    "script",
    [
        "sleep 1000 & echo $$ $!; sleep 1001",
        "setsid sleep 1000 & echo $$ $!; exec sleep 1001",
        "setsid sh -c 'sleep 1000 & echo $$ $!; sleep 1001'",
        "(setsid sleep 1000 & echo $! $$); sleep 1001",
        "trap '' TERM HUP INT; sleep 1000 & echo $$ $!; wait",
    ],
)
def test_all_that_the_program_started_dies_with_us(
    ada: Shell, words: tuple[str, ...], script: str
) -> None:
    process = ada.start(*words, "--", "sh", "-c", script)
    pids = first_line(process)
    assert len(pids) == 2
    guardian = guardian_between(process.pid, pids[0])
    process.kill()
    until(lambda: all(gone(pid) for pid in (*pids, guardian)), "the end of all")
    process.communicate()  # nobody is left who could write to its pipes


@LINUX
def test_a_kill_of_our_whole_group_or_by_our_name_leaves_nothing_either(ada: Shell) -> None:
    script = "setsid sleep 1000 & echo $$ $!; sleep 1001"
    process = subprocess.Popen(
        [*COMMAND, "lock", "run", "merge", "--", "sh", "-c", script],
        cwd=ada.folder,
        env=ada.environment(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    pids = first_line(process)
    guardian = guardian_between(process.pid, pids[0])
    until(lambda: "guard" in Path(f"/proc/{guardian}/cmdline").read_text(), "its own name")
    for file in ("cmdline", "comm"):
        assert "interlock" not in Path(f"/proc/{guardian}/{file}").read_text()
    os.killpg(process.pid, signal.SIGKILL)
    until(lambda: all(gone(pid) for pid in (*pids, guardian)), "the end of all")
    process.communicate()


@LINUX
def test_a_program_without_its_first_thread_dies_too(ada: Shell) -> None:
    process = ada.start("run", *python(HEADLESS))
    (pid,) = first_line(process)
    until(lambda: gone(pid), "the end of its first thread")
    assert len(os.listdir(f"/proc/{pid}/task")) > 1
    process.kill()
    until(lambda: not Path(f"/proc/{pid}").exists(), "its end")


@LINUX
def test_who_kills_the_guardian_kills_the_program(ada: Shell) -> None:
    process = ada.start("lock", "run", "merge", *NAP)
    (pid,) = first_line(process)
    os.kill(guardian_between(process.pid, pid), signal.SIGKILL)
    process.communicate()
    assert process.returncode == 137
    assert gone(pid)
    assert ada.json("lock", "list")[1] == {"locks": [], "count": 0}


@LINUX
def test_the_guardian_shrugs_off_what_a_terminal_sends(ada: Shell) -> None:
    process = ada.start("run", *NAP)
    (pid,) = first_line(process)
    guardian = guardian_between(process.pid, pid)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP):
        os.kill(guardian, signum)
    os.kill(pid, signal.SIGUSR1)
    process.communicate()
    assert process.returncode == 128 + signal.SIGUSR1
    until(lambda: not Path(f"/proc/{guardian}").exists(), "the end of the guardian")


@LINUX
@pytest.mark.parametrize("options", [{}, {"stdin": subprocess.DEVNULL}], ids=["forked", "started"])
def test_the_program_finds_everything_as_without_us(ada: Shell, options: dict[str, int]) -> None:
    """The same descriptors, signals, group and session."""
    plain = subprocess.run(
        [sys.executable, "-c", LOOK],
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    assert ada.run("run", *python(LOOK), **options).out == plain.stdout


@LINUX
def test_what_a_program_leaves_behind_at_its_end_may_go_on(ada: Shell) -> None:
    done = ada.run("run", "--", "sh", "-c", "sleep 1000 >&- 2>&- & echo $!")
    pid = int(done.out)
    assert not gone(pid)
    os.kill(pid, signal.SIGKILL)


@LINUX
def test_what_the_program_orphans_is_reaped(ada: Shell) -> None:
    process = ada.start("run", "--", "sh", "-c", "(sleep 0.1 & echo $!); exec sleep 1000")
    (pid,) = first_line(process)
    until(lambda: not Path(f"/proc/{pid}").exists(), "its reaping")


def test_the_program_ends_before_its_maximum_hold(ada: Shell) -> None:
    """It ignores SIGTERM and has a child of its own: both are gone when somebody else begins."""
    process = ada.start("lock", "run", "merge", "--max-hold", "3s", *STUBBORN)
    pids = first_line(process)
    assert len(pids) == 2
    assert ada.json("lock", "acquire", "merge", "--agent", "bob", "--wait", "50s")[0] == 0
    assert all(gone(pid) for pid in pids)
    _, err = process.communicate()
    assert process.returncode == 137
    assert err == (
        "interlock: the maximum hold of lock/merge, 3 s, is over; the program was ended\n"
    )


def test_a_program_that_shrugs_off_the_loss_does_not_succeed(ada: Shell) -> None:
    assert ada.run("lock", "run", "merge", "--max-hold", "2s", *SHRUG).status == 1


def test_a_lock_that_an_operator_ends_ends_the_program_with_the_reason(ada: Shell) -> None:
    program = ("sh", "-c", "echo begun; exec sleep 1000")
    running = ada.start("lock", "run", "merge", "--ttl", "1s", "--", *program)
    assert running.stdout is not None
    assert running.stdout.readline() == "begun\n"
    words = ("lock", "break", "merge", "--reason", "it hangs", "--agent", "maria")
    assert ada.json(*words)[1]["outcome"] == "broken"
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode != 0
    assert "maria ended lock/merge: 'it hangs'; the program was ended" in err


def test_a_lost_session_ends_the_program(ada: Shell) -> None:
    """Somebody ended our session in the store: the next beat finds out."""
    for words in (("run", "--ttl", "3s"), ("lock", "run", "merge", "--ttl", "3s")):
        process = ada.start(*words, *NAP)
        (pid,) = first_line(process)
        (agent,) = ada.json("agent", "list")[1]["agents"]
        ada.run("agent", "leave", "--session", agent["session"])
        _, err = process.communicate()
        assert process.returncode in (137, 143)
        assert "the program was ended" in err
        assert gone(pid)


@pytest.mark.parametrize("words", [("run",), ("lock", "run", "merge")])
def test_a_store_that_is_moved_away_ends_the_program_with_that_cause(
    ada: Shell, words: tuple[str, ...]
) -> None:
    process = ada.start(*words, "--ttl", "3s", *NAP)
    (pid,) = first_line(process)
    (ada.folder / ".interlock").rename(ada.folder / "elsewhere")
    _, err = process.communicate(timeout=PATIENCE)
    assert "was moved, deleted or replaced while it was in use); the program was ended" in err
    assert gone(pid)


def test_a_store_that_is_held_up_ends_the_program_in_time(ada: Shell) -> None:
    """We cannot renew: the program is over before the grant can lapse."""
    process = ada.start("lock", "run", "merge", "--ttl", "3s", *python(TICKS))
    (pid,) = first_line(process)
    blocker = hold_the_turn(ada.folder / ".interlock" / "store.db-bells")
    try:
        with interlock.connect(str(ada.folder / ".interlock" / "store.db")) as fleet:
            left = fleet.locks.show("merge").expires_in
        lapses = time.monotonic() + (left or 0)
        until(lambda: gone(pid), "the end of the program")
    finally:
        blocker.kill()
        blocker.communicate()
    out, _ = process.communicate()
    ticks = [float(tick) for tick in out.split()]
    stood = max((after - before for before, after in pairwise(ticks)), default=0.0)
    assert left is None or ticks[-1] < lapses + stood, "nobody else could have started yet"
    assert process.returncode in (137, 143)
