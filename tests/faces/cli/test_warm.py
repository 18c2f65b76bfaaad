"""A warm process changes no answer, and leaves nothing behind."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from tests.faces.shell import COMMAND, PATIENCE, Result, gone, until

from interlock.faces.cli import warm, warm_server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a warm process needs Linux")


class Warm(NamedTuple):
    """A warm process, and the environment of the commands that it carries out."""

    pid: int
    environment: dict[str, str]

    def children(self) -> list[int]:
        """Those that carry out commands, and one that waits for the next."""
        path = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def carries_out(self, command: subprocess.Popen[str]) -> list[int]:
        """The children with the standard error of a command.

        Children of earlier commands may still be about to end, so their number proves nothing.
        """
        error = _error_of(command.pid)
        return [pid for pid in self.children() if _error_of(pid) == error]


def _error_of(pid: int) -> str:
    """The pipe that is the standard error of a process; empty if that has ended."""
    try:
        return os.readlink(f"/proc/{pid}/fd/2")
    except OSError:
        return ""


def test_a_warm_process_that_is_stopped_holds_up_no_command_and_begins_none_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "_PATIENCE", 0.05)
    monkeypatch.delenv("INTERLOCK_WARM", raising=False)
    monkeypatch.setattr(warm, "socket_path", lambda: str(tmp_path / "s"))
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(tmp_path / "s"))
        stopped.listen()
        assert warm.hand_over(["lock", "list"]) is None
        line, _ = stopped.accept()
        with line, pytest.raises(BrokenPipeError):
            line.sendall(warm.BEGUN)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    folder = tmp_path_factory.mktemp("run")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("INTERLOCK_")}
    environment["XDG_RUNTIME_DIR"] = str(folder)
    with started(environment) as server:
        yield Warm(server.pid, environment)
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE) == 0
    assert os.listdir(folder) == []


def started(environment: dict[str, str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [*COMMAND, "warm"], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("commands are carried out by process ")
    return process


STOPPED_AT_A_FORK = """
import os, signal, sys
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGTERM))
sys.argv[1:] = ["warm"]
from interlock.faces.cli.main import main
main()
"""


def test_a_stop_in_the_midst_of_a_fork_ends_the_warm_process(tmp_path: Path) -> None:
    """What a hook of a fork raises, Python ignores."""
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED_AT_A_FORK],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as server:
        try:
            assert (server.wait(PATIENCE), server.communicate()[1]) == (0, b"")
        finally:
            server.kill()
    assert os.listdir(tmp_path) == []


def run(environment: dict[str, str], folder: Path, *words: str, text: str = "") -> Result:
    done = subprocess.run(
        [*COMMAND, *words],
        cwd=folder,
        env=environment,
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


SESSION: tuple[tuple[str, ...], ...] = (
    ("lock", "acquire", "merge", "--agent", "ada"),
    ("lock", "acquire", "merge", "--agent", "bob"),
    ("--json", "lock", "acquire", "merge", "--agent", "bob"),
    ("lock", "release", "merge", "--agent", "ada", "--token", "1"),
    ("task", "add", "t1", "--text", "-", "--title", "Grüße"),
    ("task", "claim", "t1", "--agent", "ada", "--quiet"),
    ("task", "show", "t1", "--json"),
    ("send", "bob", "hello", "--agent", "ada"),
    ("inbox", "--agent", "bob"),
    ("why", "task/t1"),
    ("lock", "acquire"),
    ("lock", "aquire", "x"),
    ("lock", "acquire", "--help"),
    ("task", "list", "--store", "elsewhere.db"),
    ("lock", "acquire", "x"),
)
_CHANGING = re.compile(
    r"[a-z]{3}_[0-9a-f]{32}|\d+-\d\d-\d\dT[0-9:.]+Z|\d\d:\d\d:\d\d|\d+\.\d+|\d+ (ms|s|min)\b"
)
"""Ids and times, which differ in any two runs."""


def test_each_command_answers_as_without_it(process: Warm, tmp_path: Path) -> None:
    answers: list[list[Result]] = []
    for name, extra in (("warm", {}), ("cold", {"INTERLOCK_WARM": "off"})):
        folder = tmp_path / name / "store"
        folder.mkdir(parents=True)
        environment = process.environment | {"INTERLOCK_STORE": "here.db"} | extra
        assert run(environment, folder, "init").status == 0
        answers.append([run(environment, folder, *words, text="a text") for words in SESSION])
    for words, ours, usual in zip(SESSION, *answers, strict=True):
        assert ours.status == usual.status, words
        for one, other in ((ours.out, usual.out), (ours.err, usual.err)):
            assert _CHANGING.sub("#", one.replace("/warm/", "/cold/")) == _CHANGING.sub("#", other)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_wait_in_a_child_of_it_ends_with_its_command(
    process: Warm, tmp_path: Path, signum: signal.Signals
) -> None:
    with waiting(process, tmp_path) as (command, child):
        command.send_signal(signum)
        status = command.wait(PATIENCE)
        until(lambda: gone(child), "the end of the child")
    expected = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}
    assert status == expected[signum]
    if signum != signal.SIGKILL:  # a killed wait stays until its session expires, as without it
        shown = run(with_store(process, tmp_path), tmp_path, "lock", "show", "merge")
        assert "bob" not in shown.out


def test_a_command_whose_child_is_killed_says_so(process: Warm, tmp_path: Path) -> None:
    with waiting(process, tmp_path) as (command, child):
        os.kill(child, signal.SIGKILL)
        _, error = command.communicate(timeout=PATIENCE)
    assert command.returncode == warm.KILLED
    assert "was killed; it may have been done" in error


def test_a_command_with_another_interpreter_is_not_served(process: Warm, tmp_path: Path) -> None:
    environment = with_store(process, tmp_path) | {"PYTHONOPTIMIZE": "1"}
    with waiting(process, tmp_path, environment, served=False) as (command, _):
        assert process.carries_out(command) == []


STAMP, WORDS, VARIABLES = ("a", "", "ü"), ("lock", "show", "\udcff"), {"PATH": "/bin", "EMPTY": ""}


def test_a_request_arrives_as_it_was_sent() -> None:
    head, texts = warm.packed(STAMP, WORDS, VARIABLES, 0o027, (True, False, True))
    assert warm_server.decoded(head, texts) == (
        STAMP, WORDS, VARIABLES, 0o027, (signal.SIGINT, signal.SIGHUP),
    )  # fmt: skip


def test_anything_else_is_no_request() -> None:
    head, texts = warm.packed(STAMP, WORDS, VARIABLES, 0o027, (False, False, False))
    none = b"\0" * warm.LENGTH
    for number in (1, 2, 3):  # the counts of texts
        at = number * warm.LENGTH
        for wrong in (0, 1, 9, 2**32 - 1):
            odd = head[:at] + wrong.to_bytes(warm.LENGTH, "big") + head[at + warm.LENGTH :]
            refused(odd, texts)
    for mask, bits in ((0o1000, 0), (2**32 - 1, 0), (0, 8)):
        end = mask.to_bytes(warm.LENGTH, "big") + bits.to_bytes(warm.LENGTH, "big")
        refused(head[:-8] + end, texts)
    refused(head, texts[:-1])
    refused(head, texts + b"\0")
    refused(head[:-1], texts)
    refused(none * 6, b"\0")
    for variables in ({"": "x"}, {"A\0B": "x"}):
        refused(*warm.packed(STAMP, WORDS, variables, 0, (False,)))
    chance = random.Random(5)
    for size in range(60):
        refused(chance.randbytes(warm.HEAD), chance.randbytes(size))


def refused(head: bytes, texts: bytes) -> None:
    with pytest.raises(warm_server.BadRequest):
        warm_server.decoded(head, texts)


@contextmanager
def connected(environment: dict[str, str]) -> Iterator[socket.socket]:
    """A line to the warm process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", environment["XDG_RUNTIME_DIR"])
        path = warm.socket_path()
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        yield line


def test_it_serves_on_after_requests_that_are_none(process: Warm, tmp_path: Path) -> None:
    environment = with_store(process, tmp_path)
    head, texts = warm.packed(STAMP, WORDS, VARIABLES, 0, (False, False, False))
    huge = (2**32 - 1).to_bytes(warm.LENGTH, "big") + head[warm.LENGTH :]
    for sent in (b"", b"x", head, huge + texts, head + texts, head + b"\xff" * len(texts)):
        with connected(environment) as line:
            assert line.recv(10) == warm.READY
            with suppress(ConnectionError):  # it may hang up before it has read all
                line.sendall(sent)
                line.shutdown(socket.SHUT_WR)
                assert line.recv(10) in (b"", warm.DECLINED)  # no files, and another stamp
    with waiting(process, tmp_path, environment):  # its child is one of the warm process
        assert not gone(process.pid)


FORGED = """
import ctypes, sys
from interlock.faces.cli import warm
own = warm.stamp()
warm.stamp = lambda: own
no_new_privileges = 38
if sys.argv[1] == "confined":
    ctypes.CDLL(None).prctl(no_new_privileges, 1, 0, 0, 0)
print(warm.hand_over(["lock", "list"]))
"""
"""A command that says of itself what it likes."""


@pytest.mark.parametrize(("sandbox", "answer"), [("none", "0"), ("confined", "None")])
def test_a_command_does_not_leave_its_sandbox_whatever_it_says_of_itself(
    process: Warm, tmp_path: Path, sandbox: str, answer: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORGED, sandbox],
        cwd=tmp_path, env=with_store(process, tmp_path), input="", capture_output=True, text=True,
        timeout=PATIENCE, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == answer


def test_what_was_sent_before_it_was_asked_for_is_not_carried_out() -> None:
    """Its sender may have ended, and another process may have its pid by now."""
    ours, theirs = socket.socketpair()
    sent = warm.packed(warm.stamp(), ("lock", "list"), os.environ, 0, (False, False, False))
    with ours, theirs:
        ours.sendall(b"".join(sent))
        own = (warm.stamp(), warm_server.confinement(os.getpid()))
        with pytest.raises(warm_server.BadRequest, match="before it was asked for"):
            warm_server._received_command(theirs, own)


def test_the_mask_is_that_of_the_command(process: Warm, tmp_path: Path) -> None:
    environment = with_store(process, tmp_path)
    script = f"umask 027; exec {' '.join(COMMAND)} metrics --file numbers"
    subprocess.run(["/bin/sh", "-c", script], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "numbers").stat().st_mode & 0o027 == 0


def test_a_command_with_other_limits_is_carried_out_by_itself(
    process: Warm, tmp_path: Path
) -> None:
    run(process.environment, tmp_path, "init")
    done = subprocess.run(
        ["bash", "-c", f"ulimit -f 0; exec {' '.join(COMMAND)} task add t1 --agent a"],
        cwd=tmp_path, env=process.environment, capture_output=True, text=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 4


def test_a_second_one_is_refused_and_stop_ends_it(tmp_path: Path) -> None:
    environment = dict(os.environ) | {"XDG_RUNTIME_DIR": str(tmp_path)}
    with started(environment) as process:
        second = run(environment, tmp_path, "warm")
        assert second.status == 2
        assert f"process {process.pid} is warm already" in second.err
        assert run(environment, tmp_path, "warm", "--stop").status == 0
        assert process.wait(PATIENCE) == 0
    again = run(environment, tmp_path, "warm", "--stop")
    assert (again.status, again.err) == (1, "interlock: there is no warm process\n")


def test_it_ends_when_it_was_not_used(tmp_path: Path) -> None:
    environment = dict(os.environ) | {"XDG_RUNTIME_DIR": str(tmp_path)}
    done = run(environment, tmp_path, "warm", "--idle", "0.1s")
    assert done.status == 0
    assert os.listdir(tmp_path) == []


def test_a_process_is_ready_for_the_next_command_and_ends_with_the_warm_one(
    tmp_path: Path,
) -> None:
    environment = dict(os.environ) | {"XDG_RUNTIME_DIR": str(tmp_path)}
    with started(environment) as server:
        warm_process = Warm(server.pid, environment)
        (ready,) = until(warm_process.children, "the child for the first command")
        with waiting(warm_process, tmp_path, with_store(warm_process, tmp_path)) as (_, child):
            others = until(lambda: {*warm_process.children()} - {child}, "the child for the next")
            assert ready not in others
            server.kill()
            server.wait(PATIENCE)
            until(lambda: all(map(gone, others)), "the end of the child for the next")
            assert not gone(child)  # it carries out a command


def test_a_command_after_a_change_of_the_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_server, "_LOOK", -1.0)
    monkeypatch.setattr(warm_server, "_received_command", lambda *_: ([], "request"))
    listener, ours, theirs = socket.socket(socket.AF_UNIX), *socket.socketpair()
    with listener, ours, theirs, socket.socket(socket.AF_UNIX) as command:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        command.connect(str(tmp_path / "s"))
        code = warm_server.LoadedCode()
        code.files["gone.py"] = 1
        assert warm_server._accepted(listener, theirs, ((), ()), code) is None
        del code.files["gone.py"]
        found = warm_server._accepted(listener, theirs, ((), ()), code)
        assert found is not None
        found[0].close()
        assert ours.recv(9) == warm.BEGUN


def test_a_change_of_the_code_is_noticed_though_commands_follow_each_other_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "module.py"
    file.touch()
    now, forks = 100.0, 0

    def fork() -> int:
        nonlocal now, forks
        now, forks = now + 0.125, forks + 1
        if forks == 20:
            os.utime(file, ns=(1, 1))
        return 1

    monkeypatch.setattr(warm_server, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(os, "fork", fork)
    monkeypatch.setattr(warm_server, "_has_begun", lambda *_: forks < 100)
    code = warm_server.LoadedCode()
    code.files = {str(file): file.stat().st_mtime_ns}
    with socket.socket(socket.AF_UNIX) as listener:
        warm_server._fork_for_commands(listener, 60.0, code)
    assert 20 <= forks <= 20 + 9  # it looks once a second


def test_a_child_has_the_variables_of_its_command_and_no_others() -> None:
    before = dict(os.environ)
    wanted = {"INTERLOCK_X": "1", "EMPTY": "", **dict(list(before.items())[1:])}
    try:
        os.environ["EMPTY"] = "full"
        warm_server._take_environment(wanted)
        assert dict(os.environ) == wanted
        shown = subprocess.run(["/usr/bin/env", "-0"], capture_output=True, check=True).stdout
        found = dict(line.split("=", 1) for line in os.fsdecode(shown).split("\0") if line)
        for name in {"LINES", "COLUMNS"} - wanted.keys():  # readline sets them behind Python's back
            found.pop(name, None)
        assert found == wanted
    finally:
        warm_server._take_environment(before)


def with_store(process: Warm, folder: Path) -> dict[str, str]:
    environment = process.environment | {"INTERLOCK_STORE": str(folder / "store.db")}
    assert run(environment, folder, "init").status in {0, 1}
    return environment


@contextmanager
def waiting(
    process: Warm, folder: Path, environment: dict[str, str] | None = None, *, served: bool = True
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A command that waits for a lock, and the child that carries it out."""
    environment = environment or with_store(process, folder)
    assert run(environment, folder, "lock", "acquire", "merge", "--agent", "ada").status == 0
    command = subprocess.Popen(
        [*COMMAND, "lock", "acquire", "merge", "--wait", "60", "--agent", "bob"],
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: "bob" in run(environment, folder, "lock", "show", "merge").out, "the wait")
        child = until(lambda: process.carries_out(command), "its child")[0] if served else 0
        yield command, child
    finally:
        if command.poll() is None:
            command.kill()
        command.communicate()
