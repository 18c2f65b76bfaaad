"""The real command, run as a user runs it: a process, a folder, an environment.

``run`` forks it from a template, which is as real and far quicker (tests/forks.py says how);
``start``, and ``run`` with options of subprocess, start Python for it.
"""

from __future__ import annotations

import io
import json
import os
import pkgutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import pytest
from tests.forks import template
from tests.schemas import check_output

import interlock
from interlock import work_tree_list
from interlock.faces.cli import command

COMMAND = [sys.executable, "-m", "interlock"]
PATIENCE = 60.0
"""How long a test waits for what must happen; far longer than it takes, even on a busy machine."""
_APART = ("interlock.bench", "interlock.demo", "interlock.faces.tui", "interlock.testing")


class Result(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one object on stdout."""
        assert self.out.count("\n") == 1, self
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found


class Started(subprocess.Popen[str]):
    """A command that runs: the lines of JSON that a test reads of it are as their schema says."""

    words: tuple[str, ...] = ()

    def checked(self, words: tuple[str, ...]) -> Self:
        """The same, for a command of these words."""
        self.words = words
        assert self.stdout is not None
        self.stdout.readline = self._readline  # type: ignore[method-assign]
        return self

    def communicate(
        self,
        input: str | None = None,  # noqa: A002
        timeout: float | None = None,
    ) -> tuple[str, str]:
        """All that it still printed."""
        out, err = super().communicate(input, timeout)
        check_output(self.words, out[: out.rfind("\n") + 1])  # a killed one ends inside a line
        return out, err

    def _readline(self, limit: int = -1) -> str:
        assert self.stdout is not None
        line = io.TextIOWrapper.readline(cast("io.TextIOWrapper", self.stdout), limit)
        if line.endswith("\n"):
            check_output(self.words, line)
        return line


class Shell:
    """A shell in a folder: what it exports is there for each command."""

    def __init__(self, folder: Path, **exported: str) -> None:
        self.folder = folder
        self.exported = exported
        self._started: list[subprocess.Popen[str]] = []

    def run(self, *words: str | bytes, **options: Any) -> Result:
        """What a command says, and how it ends; JSON is held to the schema of the command."""
        done = self._run(words, options)
        check_output(words, done.out)
        return done

    def _run(self, words: tuple[str | bytes, ...], options: dict[str, Any]) -> Result:
        if options:
            return self._run_apart(words, options)
        with _file("out") as out, _file("err") as err:
            process = template(*_modules()).fork(
                "interlock.faces.cli.main",
                words,
                (0, out, err),
                folder=self.folder,
                environment=self.environment(),
            )
            try:
                return Result(process.wait(PATIENCE), _text(out), _text(err))
            finally:
                process.kill()

    def _run_apart(self, words: tuple[str | bytes, ...], options: dict[str, Any]) -> Result:
        done = subprocess.run(
            [*COMMAND, *words],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            **options,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def json(self, *words: str | bytes) -> tuple[int, dict[str, Any]]:
        done = self.run("--json", *words)
        assert not done.err, done
        return done.status, done.json

    def start(self, *words: str) -> subprocess.Popen[str]:
        process = Started(
            [*COMMAND, *words],
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ).checked(words)
        self._started.append(process)
        return process

    def configure(self, text: str) -> Path:
        """Write the settings of this folder, and allow them as a person does."""
        path = self.folder / ".interlock" / "config.toml"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_text(text)
        work_tree_list.allow_settings(str(path), text.encode())
        return path

    def allow_in(self, folder: Path) -> None:
        """Have another list of what is allowed, as another host has; the store is named to it."""
        self.exported["INTERLOCK_ALLOWED_DIR"] = str(folder)
        self.exported["INTERLOCK_STORE"] = str(self.folder / ".interlock" / "store.db")

    def environment(self) -> dict[str, str]:
        ours = ("INTERLOCK_", "IF_ETCD_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        return kept | self.exported

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.communicate()


@cache
def _modules() -> tuple[str, ...]:
    """What a command may import, but for what few need."""
    found = pkgutil.walk_packages(interlock.__path__, "interlock.")
    return tuple(each.name for each in found if not each.name.startswith(_APART))


@contextmanager
def _file(name: str) -> Iterator[int]:
    """A file without a place."""
    file = os.memfd_create(name)
    try:
        yield file
    finally:
        os.close(file)


def _text(file: int) -> str:
    return os.pread(file, os.fstat(file).st_size, 0).decode()


class Here(Shell):
    """The same commands in this very process: for answers, where a process would prove no more."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        super().__init__(folder)
        self._patch = monkeypatch
        self._capsys = capsys
        for variable in [name for name in os.environ if name.startswith("INTERLOCK_")]:
            monkeypatch.delenv(variable)
        monkeypatch.chdir(folder)
        monkeypatch.setattr(command, "stoppable", lambda: None)

    def _run(self, words: tuple[str | bytes, ...], options: dict[str, Any]) -> Result:
        with self._patch.context() as patch:
            for variable, value in self.exported.items():
                patch.setenv(variable, value)
            if "input" in options:
                patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(options["input"].encode())))
            status = command.run([os.fsdecode(word) for word in words])
        told = self._capsys.readouterr()
        return Result(status, told.out, told.err)


def until(condition: Callable[[], Any], what: str = "it") -> Any:
    """Wait for a condition, and return what it found."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not come true"
        threading.Event().wait(0.02)
    return found


def gone(pid: int) -> bool:
    """Whether a process is no more, or only waits to be reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


def hold_the_turn(bells: Path) -> subprocess.Popen[str]:
    """A process that keeps all others from writing."""
    script = (
        "import fcntl, signal, sys; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_EX);"
        "print(1, flush=True); signal.pause()"
    )
    blocker = subprocess.Popen(
        [sys.executable, "-c", script, os.fspath(bells / "turn")], stdout=subprocess.PIPE, text=True
    )
    assert blocker.stdout is not None
    blocker.stdout.readline()
    return blocker
