"""Commands: their status is the fact, and nothing of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from tests.faces.shell import PATIENCE, gone, until
from tests.nouns.guards.outside import HOST, WALL, look, value

from interlock.nouns.guards.condition import CommandNeed, OutsideNeed
from interlock.nouns.guards.outside import observe
from interlock.testing.clock import FakeClock

LIMIT = 1.0
"""Long enough to start a shell on a busy machine."""
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(sys.argv[1], "w") as file:
            file.write(str(os.getpid()))
        os.rename(sys.argv[1], sys.argv[1] + ".pid")
        time.sleep(1000)
    os._exit(0)
os.wait()
while not os.path.exists(sys.argv[1] + ".pid"):
    time.sleep(0.001)
"""


def shell(script: str, timeout: float = 30.0, env: tuple[str, ...] = ()) -> CommandNeed:
    return CommandNeed(run=(script,), shell=True, timeout=timeout, env=env)  # noqa: S604


def command(*words: str, timeout: float = 30.0) -> CommandNeed:
    return CommandNeed(run=words, timeout=timeout)


def pid(path: Path) -> int:
    return int(until(lambda: path.exists() and path.read_text().strip()))


def test_a_command_ends_with_a_status(tmp_path: Path) -> None:
    seen = look(command("true"), tmp_path)
    assert (seen.value, seen.says) == (0, "true ended with status 0")
    assert (seen.host, seen.at, len(seen.digest)) == (HOST, WALL, 64)
    seen = look(shell("echo one; echo two >&2; echo; exit 3"), tmp_path)
    assert seen.value == 3
    assert seen.says.endswith("exit 3' ended with status 3: two")


def test_the_digest_depends_on_status_and_output(tmp_path: Path) -> None:
    scripts = ("echo a", "echo a; exit 1", "echo b")
    digests = {look(shell(script), tmp_path).digest for script in scripts}
    assert len(digests) == 3
    assert look(shell("echo a"), tmp_path).digest in digests


def test_a_command_has_no_shell_unless_it_asks_for_one(tmp_path: Path) -> None:
    seen = look(command("echo", "$HOME;", "*"), tmp_path)
    assert seen.says.endswith(": '$HOME; *'")
    assert value(command("exit 3"), tmp_path) is None
    assert value(shell("exit 3"), tmp_path) == 3


@pytest.mark.parametrize(
    "need",
    [
        command(),
        command(""),
        command("a\0b"),
        command("\udfff"),
        CommandNeed(run=("true", "x"), shell=True),  # noqa: S604
        command("true", timeout=0.0),
        command("true", timeout=float("nan")),
        command("true", "x" * 3_000_000),
    ],
)
def test_a_command_that_makes_no_sense_is_unknown(tmp_path: Path, need: CommandNeed) -> None:
    assert value(need, tmp_path) is None


def test_a_limit_without_end_is_a_limit(tmp_path: Path) -> None:
    assert value(command("true", timeout=float("inf")), tmp_path) == 0


def test_a_command_that_cannot_be_started_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("#!/bin/sh\n")
    (tmp_path / "odd").write_text(f"#!{tmp_path}/no-such-program\n")
    (tmp_path / "odd").chmod(0o755)
    (tmp_path / "text").write_bytes(b"\x7fno program")
    (tmp_path / "text").chmod(0o755)
    for name, reason in (
        ("no-such-command", "no such file or directory"),
        ("./script", "permission denied"),
        ("./odd", "no such file or directory"),
        ("./text", "exec format error"),
    ):
        seen = look(command(name), tmp_path)
        assert (seen.value, seen.says) == (None, f"{name} cannot be run: {reason}")


def test_without_its_root_a_command_is_not_started(tmp_path: Path) -> None:
    seen = look(command("true"), tmp_path / "missing")
    assert (seen.value, seen.says) == (
        None,
        "the root cannot be entered: no such file or directory",
    )


def test_a_command_runs_in_the_root_with_empty_input_and_a_chosen_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LANG", "TZ", "GUARD_TOKEN", "GUARD_SECRET", "PYTHONPATH", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, "some")
    script = f"{sys.executable} -c {SHOW!r} > shown; pwd >> shown; cat >> shown"
    assert value(shell(script, env=("GUARD_TOKEN", "MISSING")), tmp_path) == 0
    names, folder = (tmp_path / "shown").read_text().splitlines()
    assert set(names.split()) - {"LC_CTYPE", "PWD", "SHLVL", "_", "OLDPWD"} == {
        "GUARD_TOKEN", "HOME", "LANG", "PATH", "TZ",
    }  # fmt: skip
    assert folder == str(tmp_path)


SHOW = 'import os; print(" ".join(os.environ))'


def test_a_command_has_no_file_of_the_caller_and_plain_signals(tmp_path: Path) -> None:
    kept, other = os.pipe()
    os.set_inheritable(kept, True)
    status = (
        "grep -E 'Sig(Blk|Ign)|^Groups' /proc/self/status > status; ls -l /proc/self/fd > files"
    )
    assert value(shell(status), tmp_path) == 0
    for end in (kept, other):
        os.close(end)
    assert "pipe" in (tmp_path / "files").read_text()
    assert len((tmp_path / "files").read_text().splitlines()) == 5  # a total, 0 to 2, and its own
    lines = dict(line.split(":\t") for line in (tmp_path / "status").read_text().splitlines())
    plain = (1 << 31) - 1  # signals 32 and 33 belong to the C library
    assert int(lines["SigBlk"], 16) & plain == int(lines["SigIgn"], 16) & plain == 0


@pytest.mark.parametrize("name", ["TERM", "KILL", "SEGV"])
def test_a_signal_counts_as_in_a_shell(tmp_path: Path, name: str) -> None:
    number = signal.Signals[f"SIG{name}"]
    seen = look(shell(f"kill -{name} $$"), tmp_path)
    assert seen.value == 128 + number
    assert f"was ended by SIG{name}, status {128 + number}" in seen.says


def test_a_command_that_hangs_is_ended_at_its_limit(tmp_path: Path) -> None:
    begun = time.monotonic()
    seen = look(shell("echo $$ > pid; echo going; exec sleep 1000", timeout=LIMIT), tmp_path)
    assert seen.value is None
    assert seen.says.endswith("did not end within 1 s: going")
    assert time.monotonic() - begun < PATIENCE
    assert gone(pid(tmp_path / "pid"))


def test_a_command_that_ignores_the_request_to_end_is_killed(tmp_path: Path) -> None:
    script = "trap '' TERM; sleep 1000 & echo $! > child; echo $$ > pid; wait; wait"
    assert value(shell(script, timeout=LIMIT), tmp_path) is None
    assert gone(pid(tmp_path / "child"))
    assert gone(pid(tmp_path / "pid"))


def test_a_command_may_clean_up_when_it_is_ended(tmp_path: Path) -> None:
    script = "trap 'echo bye > last; exit 0' TERM; sleep 1000 & wait"
    assert value(shell(script, timeout=LIMIT), tmp_path) is None
    assert (tmp_path / "last").read_text() == "bye\n"


def test_a_daemon_that_holds_the_pipe_ends_with_its_command(tmp_path: Path) -> None:
    begun = time.monotonic()
    seen = look(command(sys.executable, "-c", DAEMON, str(tmp_path / "daemon")), tmp_path)
    assert seen.value == 0
    assert time.monotonic() - begun < 30.0
    assert gone(pid(tmp_path / "daemon.pid"))


def test_a_daemon_is_ended_at_the_limit_of_its_command(tmp_path: Path) -> None:
    script = "(setsid sh -c 'echo $$ > pid; exec sleep 1000' &); exec sleep 1000"
    assert value(shell(script, timeout=LIMIT), tmp_path) is None
    assert gone(pid(tmp_path / "pid"))


def test_a_crowd_of_processes_is_ended(tmp_path: Path) -> None:
    script = "for i in 1 2 3 4 5 6 7 8; do (setsid sh -c 'echo $$ >> pids; exec sleep 1000') & done"
    assert value(shell(f"{script}; wait", timeout=LIMIT), tmp_path) is None
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 8
    assert all(map(gone, pids))


def test_a_command_that_prints_without_end_is_ended(tmp_path: Path) -> None:
    seen = look(shell("echo $$ > pid; exec yes gigabytes"), tmp_path)
    assert seen.value is None
    assert seen.says.endswith("wrote more than 16 MiB and was ended: gigabytes")
    assert gone(pid(tmp_path / "pid"))


def test_the_last_line_of_a_long_output_is_quoted(tmp_path: Path) -> None:
    seen = look(shell("yes | head -c 1000000; printf '\\033[31mthe\\tend\\n\\n'"), tmp_path)
    assert seen.value == 0
    assert seen.says.endswith(": '\\x1b[31mthe end'")
    seen = look(shell("printf '%01000d' 7"), tmp_path)
    assert len(seen.says) < 300


def test_output_that_is_no_text_does_no_harm(tmp_path: Path) -> None:
    assert value(command("printf", r"\377\000\n"), tmp_path) == 0


def test_commands_run_side_by_side(tmp_path: Path) -> None:
    """Each waits for the other, so one after the other they would not end."""
    needs: list[OutsideNeed] = [
        shell(f"touch {own}; until [ -e {other} ]; do sleep 0.01; done")
        for own, other in (("a", "b"), ("b", "a"))
    ]
    seen = observe(needs, tmp_path, host=HOST, clock=FakeClock())
    assert [found.value for found in seen.values()] == [0, 0]


CALLER = textwrap.dedent("""
    import sys
    from pathlib import Path
    from interlock.clock import SystemClock
    from interlock.nouns.guards.condition import CommandNeed
    from interlock.nouns.guards.outside import observe
    script = "echo $$ > pid; setsid sleep 1000 & echo $! > child.new; mv child.new child; wait"
    need = CommandNeed(run=(script,), shell=True)
    observe([need], Path(sys.argv[1]), host="h", clock=SystemClock())
""")


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_caller_that_ends_leaves_no_process_behind(
    tmp_path: Path, signum: signal.Signals
) -> None:
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, str(tmp_path)], stderr=subprocess.DEVNULL
    )
    try:
        child = pid(tmp_path / "child")
    finally:
        caller.send_signal(signum)
    assert caller.wait(PATIENCE) != 0
    until(lambda: gone(child), "the end of the child")
    until(lambda: gone(pid(tmp_path / "pid")), "the end of the command")


def test_a_fork_of_the_caller_does_not_keep_its_commands_alive(tmp_path: Path) -> None:
    """The fork has the pipe to the helper."""
    fork = textwrap.dedent("""
        import os, threading, time
        def fork():
            while not os.path.exists(sys.argv[1] + "/child"):
                time.sleep(0.01)
            if os.fork() == 0:
                open(sys.argv[1] + "/fork", "w").write(str(os.getpid()))
                time.sleep(60)
                os._exit(0)
            os.kill(os.getpid(), 9)
        threading.Thread(target=fork).start()
    """)
    begin, _, end = CALLER.partition("script =")
    caller = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", f"{begin}{fork}\nscript ={end}", str(tmp_path)]
    )
    assert caller.wait(PATIENCE) == -signal.SIGKILL
    fork_pid = pid(tmp_path / "fork")
    try:
        until(lambda: gone(pid(tmp_path / "child")), "the end of the child")
        assert not gone(fork_pid)
    finally:
        os.kill(fork_pid, signal.SIGKILL)
