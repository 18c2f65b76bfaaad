"""A program that must not outlive its grant.

It is forked before anything else happens, while this process has one thread and no store, and
waits behind a pipe until its session or lock is there; so a program is never started in vain, and
no lock of an engine is ever copied into it.

If we are killed, the kernel kills it (Linux).  If its time is up, it and all that it started get
SIGTERM, and SIGKILL by the moment at which somebody else may begin.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_NOT_FOUND = 127
_TICK = 0.02


class Child:
    """The program, first waiting, then running, then ended."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._status: int | None = None
        read_go, self._go = os.pipe()
        self._report, write_report = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._go)
            _become(command, parent, read_go, write_report)
        os.close(read_go)
        os.close(write_report)
        # Whatever the program leaves behind becomes ours, so that it can be found and ended.
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def start(self, environment: Mapping[str, str]) -> OSError | None:
        """Let it go; an error if there is no such program."""
        pairs = (os.fsencode(f"{name}={value}") for name, value in environment.items())
        with suppress(BrokenPipeError):  # it was killed meanwhile: its status will tell
            os.write(self._go, b"\0".join(pairs) + b"\0\0")
        os.close(self._go)
        self._go = -1
        code = os.read(self._report, 16)
        os.close(self._report)
        return OSError(int(code), os.strerror(int(code))) if code else None

    def poll(self) -> int | None:
        """Its exit status, 128+n for a signal; None while it runs."""
        while self._status is None:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return _NOT_FOUND
            if pid == 0:
                return None
            if pid == self.pid:
                code = os.waitstatus_to_exitcode(status)
                self._status = code if code >= 0 else 128 - code
        return self._status

    def send(self, signum: int) -> None:
        """Pass a signal on to it."""
        if self._status is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def end(self, kill_at: float) -> int:
        """End it and everything that it started: politely, then by force at this moment."""
        _tell(signal.SIGTERM)
        while time.monotonic() < kill_at and _descendants():
            self.poll()
            time.sleep(min(_TICK, max(kill_at - time.monotonic(), 0.0)))
        while _tell(signal.SIGKILL):
            self.poll()
            time.sleep(_TICK / 10)
        while (status := self.poll()) is None:
            time.sleep(_TICK / 10)
        return status

    def abandon(self) -> None:
        """It is not to run after all."""
        if self._go >= 0:
            os.close(self._go)
            os.close(self._report)
            with suppress(ChildProcessError):
                os.waitpid(self.pid, 0)


def _become(command: tuple[str, ...], parent: int, go: int, report: int) -> None:
    """In the child: wait for the word, then be the program."""
    status = _NOT_FOUND
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(status)
        _restore_signals()
        data = b""
        while not data.endswith(b"\0\0"):
            part = os.read(go, 65536)
            if not part:
                os._exit(status)
            data += part
        for pair in data[:-2].split(b"\0"):
            name, _, value = pair.partition(b"=")
            os.environb[name] = value
        os.execvp(command[0], command)  # noqa: S606 - that is what was asked for
    except OSError as error:
        os.write(report, str(error.errno).encode())
    except BaseException:  # noqa: BLE001 - nothing of the parent may run in the child
        os.write(report, b"5")
    finally:
        os._exit(status)


def _restore_signals() -> None:
    """What Python changed for itself is no business of the program."""
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_DFL)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)


def _prctl(what: int, value: int) -> None:
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(what, value, 0, 0, 0)


def _tell(signum: int) -> list[int]:
    """Send a signal to all descendants, and return them."""
    found = _descendants()
    for pid in found:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)
    return found


def _descendants() -> list[int]:
    """All processes that we started, directly or not, and that still run."""
    children: dict[int, list[int]] = {}
    for pid, parent in _processes():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    left = [os.getpid()]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def _processes() -> Iterator[tuple[int, int]]:
    """Running processes with their parents."""
    if not os.path.isdir("/proc"):
        yield from _listed()
        return
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b") ")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state != b"Z":
            yield int(name), int(parent)


def _listed() -> Iterator[tuple[int, int]]:
    """The same where there is no /proc."""
    import subprocess

    lines = subprocess.run(
        ["/bin/ps", "-axo", "pid=,ppid=,stat="], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for pid, parent, state in (line.split() for line in lines):
        if not state.startswith("Z"):
            yield int(pid), int(parent)
