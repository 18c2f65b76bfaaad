"""Logs of agents at the command line: shown, followed, uploaded."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
from tests.faces.shell import COMMAND, Shell, hold_the_turn, until


class Worker:
    """A program whose output goes to ``agent log --upload -``."""

    def __init__(self, shell: Shell, name: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "agent", "log", name, "--upload", "-"],
            cwd=shell.folder,
            env=shell.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def say(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out.decode(), err.decode()


@pytest.fixture
def worker(shell: Shell) -> Iterator[Worker]:
    started = Worker(shell, "ada")
    yield started
    if started.process.poll() is None:
        started.process.kill()
        started.process.communicate()


def lines(shell: Shell, *words: str) -> list[str]:
    return shell.run("agent", "log", "ada", *words).out.splitlines()


def test_a_file_is_uploaded_and_shown(shell: Shell) -> None:
    (shell.folder / "worker.log").write_bytes(b"one\ntwo \x1b[31m\xff\nthree")
    done = shell.run("agent", "log", "ada", "--upload", "worker.log")
    assert (done.status, done.out) == (0, "uploaded 3 lines to ada\n")
    assert lines(shell) == ["one", "two \\x1b[31m\ufffd", "three"]
    assert lines(shell, "--limit", "1") == ["three"]
    status, answer = shell.json("agent", "log", "ada", "--limit", "2")
    assert (status, answer["agent"]) == (0, "ada")
    found = [(line["number"], line["text"]) for line in answer["lines"]]
    assert found == [(2, "two \x1b[31m\ufffd"), (3, "three")]
    assert shell.run("record", "verify").status == 0


def test_a_whole_file_is_uploaded_under_its_name_and_read_by_it(shell: Shell) -> None:
    (shell.folder / "logs").mkdir()
    path = shell.folder / "logs" / "build.log"
    path.write_bytes(b"one\ntwo\n\nthree")
    done = shell.run("agent", "log", "ada", "--file", "logs/build.log")
    assert (done.status, done.out) == (0, "uploaded build.log of ada, 4 lines\n")
    assert lines(shell, "--read", "build.log") == ["one", "two", "", "three"]
    assert lines(shell, "--read", "build.log", "--limit", "1") == ["three"]
    assert shell.run("agent", "log", "ada").status == 1, "its log is another one"
    path.write_bytes(b"new\n")
    status, answer = shell.json("agent", "log", "ada", "--file", str(path))
    assert (status, answer["file"], answer["lines"], answer["cut"]) == (0, "build.log", 1, 0)
    assert lines(shell, "--read", "build.log") == ["new"]
    assert lines(shell, "--files") == ["build.log  1 line"]
    status, found = shell.json("agent", "log", "ada", "--files")
    assert (status, [each["name"] for each in found["files"]]) == (0, ["build.log"])
    done = shell.run("agent", "log", "ada", "--read", "other.log")
    assert (done.status, "--files" in done.out) == (1, True)
    assert shell.run("record", "verify").status == 0


def test_what_a_program_writes_is_seen_while_it_writes(shell: Shell, worker: Worker) -> None:
    worker.say(b"begins\n")
    until(lambda: lines(shell) == ["begins"], "the first line")
    worker.say(b"goes on\nends")
    status, out, err = worker.end()
    assert (status, out, err) == (0, "uploaded 3 lines to ada\n", "")
    assert lines(shell) == ["begins", "goes on", "ends"]


def test_who_is_stopped_ends_with_its_status(shell: Shell, worker: Worker) -> None:
    worker.say(b"begins\n")
    until(lambda: lines(shell) == ["begins"], "the first line")
    worker.process.send_signal(signal.SIGTERM)
    assert worker.end() == (128 + signal.SIGTERM, "", "")


def test_more_than_fits_into_memory_at_once_is_uploaded_whole(shell: Shell) -> None:
    said = [f"{number} ".ljust(90, "x") for number in range(30_000)]
    (shell.folder / "worker.log").write_text("\n".join(said) + "\n")
    _, answer = shell.json("agent", "log", "ada", "--upload", "worker.log")
    assert (answer["outcome"], answer["agent"], answer["lines"]) == ("uploaded", "ada", 30_000)
    found = lines(shell, "--limit", "30000")
    assert found == said, "no line is dropped while the store takes them"


def test_a_store_that_is_held_up_holds_up_no_worker(shell: Shell, worker: Worker) -> None:
    worker.say(b"begins\n")
    until(lambda: lines(shell) == ["begins"], "the first line")
    blocker = hold_the_turn(next((shell.folder / ".interlock").glob("*bells*")))
    try:
        worker.say(b"x" * 80 + b"\n")
        for _ in range(40):
            worker.say(b"a line of a worker\n" * 100)  # more than a pipe holds
    finally:
        blocker.kill()
        blocker.wait()
        assert blocker.stdout is not None
        blocker.stdout.close()
    assert worker.end()[0] == 0
    assert len(lines(shell, "--limit", "9999")) == 4002


def test_a_log_is_followed(shell: Shell) -> None:
    shell.run("agent", "log", "ada", "--upload", os.devnull)
    reader = shell.start("agent", "log", "ada", "--follow")
    assert reader.stdout is not None
    (shell.folder / "a.log").write_text("one\n")
    (shell.folder / "b.log").write_text("two\nthree\n")
    shell.run("agent", "log", "ada", "--upload", "a.log")
    assert reader.stdout.readline() == "one\n"
    shell.run("agent", "log", "ada", "--upload", "b.log")
    assert [reader.stdout.readline(), reader.stdout.readline()] == ["two\n", "three\n"]
    reader.send_signal(signal.SIGTERM)
    assert reader.wait(60) == 128 + signal.SIGTERM


def test_nothing_to_show_is_an_ordinary_no(shell: Shell) -> None:
    nothing = {"outcome": "nothing", "agent": "ada", "file": ""}
    assert shell.json("agent", "log", "ada") == (1, nothing)
    assert "--upload -" in shell.run("agent", "log", "ada").out


def test_wrong_words_get_a_hint(shell: Shell) -> None:
    for words, hint in (
        (("ada", "--upload", "nothing.log"), "cannot be read"),
        (("ada", "--upload", "-", "--follow"), "leave --follow out"),
        (("ada", "--file", "nothing.log"), "cannot be read"),
        (("ada", "--file", "."), "segment"),
        (("ada", "--file", "a.log", "--read", "a.log"), "exclude each other"),
        (("ada", "--read", "a.log", "--follow"), "leave --follow out"),
        (("a\tb",), "cannot be seen"),
        (("ada", "--limit", "0"), "out of bounds"),
        ((), "NAME is missing"),
    ):
        done = shell.run("agent", "log", *words)
        assert (done.status, done.err.count("\n")) == (2, 1)
        assert hint in done.err
