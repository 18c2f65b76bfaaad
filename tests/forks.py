"""Processes without the wait for Python: forked from one that has imported everything already.

A command of Interlock spends nine tenths of its time on starting Python.  Here a template has done
that: it imports what is named, and from then on forks for every request.  What it forks is a real
process, with a folder, an environment, files and an end of its own.

    we --- request ---> template --- fork ---> the process
    we <-- its pid, then its status --'

The template does what a shell would: it waits for the process and reports how it ended.
A process between the two would cost a third of a command: each fork copies what it touches.

The imported modules must start no threads: these would be missing in a forked process.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

LARGEST = 1 << 17
SHOW_STACKS = signal.SIGUSR2
"""Makes a forked process write what its threads do to its stderr: for one that does not end."""
_FILES = 1 << 12


class Request(NamedTuple):
    """What a process is to be: ``main()`` of a module, with words on its command line."""

    program: str
    words: tuple[str, ...]
    folder: str
    environment: dict[str, str]


class Fork:
    """A forked process, with the methods of one of ``subprocess``."""

    def __init__(self, status: int) -> None:
        self._news = os.fdopen(status)
        self.returncode: int | None = None
        self.pid = int(self._news.readline())

    def poll(self) -> int | None:
        """How it ended, if it did."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """How it ends."""
        found = self._look(timeout)
        if found is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return found

    def send_signal(self, signum: int) -> None:
        """Send a signal to it, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, and its status is on the way
                os.kill(self.pid, signum)

    def kill(self) -> None:
        """End it as a power cut would."""
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            events = select.poll()
            events.register(self._news, select.POLLIN)
            if events.poll(None if timeout is None else timeout * 1000):
                self.returncode = os.waitstatus_to_exitcode(int(self._news.readline()))
                self._news.close()
        return self.returncode


class Template:
    """A process that imported some modules, and forks."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *modules],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        atexit.register(self._end)

    def fork(
        self,
        program: str,
        words: Sequence[str | bytes],
        files: tuple[int, int, int],
        *,
        folder: Path | str = ".",
        environment: Mapping[str, str] | None = None,
    ) -> Fork:
        """A process that runs a program, with these three standard files."""
        request = Request(
            program,
            tuple(os.fsdecode(word) for word in words),
            os.path.abspath(folder),
            dict(os.environ if environment is None else environment),
        )
        status, told = os.pipe()
        try:
            socket.send_fds(self._ours, [pickle.dumps(request)], [*files, told])
        finally:
            os.close(told)
        return Fork(status)

    def _end(self) -> None:
        self._ours.close()
        self._process.wait()


@cache
def template(*modules: str) -> Template:
    """The one of this test run that imported these modules."""
    return Template(modules)


def _serve(line: socket.socket) -> Request:
    """Fork for every request; what returns is the process that was asked for."""
    events = select.poll()
    events.register(line, select.POLLIN)
    running: dict[int, tuple[int, int]] = {}
    while True:
        for file, _ in events.poll():
            if file in running:
                events.unregister(file)
                os.close(file)
                _report(*running.pop(file))
                continue
            data, files, _, _ = socket.recv_fds(line, LARGEST, 4)
            if not data:
                os._exit(0)
            *standard, told = files
            pid = os.fork()
            if pid == 0:
                line.close()
                return _begin(pickle.loads(data), standard)  # noqa: S301 - from the test itself
            for each in standard:
                os.close(each)
            _tell(told, pid)
            end = os.pidfd_open(pid)
            running[end] = pid, told
            events.register(end, select.POLLIN)


def _report(pid: int, told: int) -> None:
    """Report how a process ended."""
    _tell(told, os.waitpid(pid, 0)[1])
    os.close(told)


def _tell(told: int, number: int) -> None:
    with suppress(BrokenPipeError):  # the test has ended, or no longer wants to know
        os.write(told, f"{number}\n".encode())


def _begin(request: Request, standard: Sequence[int]) -> Request:
    """In the process: its files, its folder, its environment and its words."""
    for number, file in enumerate(standard):
        os.dup2(file, number)
    os.closerange(3, _FILES)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.argv[1:] = request.words
    faulthandler.register(SHOW_STACKS)
    return request


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parent.parent)
    for name in sys.argv[2:]:
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "threads do not survive a fork"
    gc.collect()
    gc.freeze()
    asked = _serve(socket.socket(fileno=int(sys.argv[1])))
    importlib.import_module(asked.program).main()
