"""A program that must not outlive its grant.

It is forked before anything else happens, while this process has one thread and no store, and
waits behind a pipe until its session or lock is there; so a program is never started in vain, and
no lock of an engine is ever copied into it.

Between us and the program stands a guardian.  It does nothing but wait for the end of one of us.
If the program ends, the guardian goes without a word, and the program becomes ours to be reaped.
If we end first, by SIGKILL too, then the pipe breaks, and it kills the program and everything that
the program started, in whatever session that is.  If somebody kills the guardian, the kernel kills
the program.

All this needs Linux.  Elsewhere there is no guardian, and a program goes on if we are killed.

If its time is up, it and all that it started get SIGTERM, and SIGKILL by the moment at which
somebody else may begin.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_NOT_FOUND = 127
_KILLED = 128 + signal.SIGKILL
_TICK = 0.02
# In /proc/PID/stat after the name: how many threads, and where the command line is kept.
_THREADS = 17
_ARGUMENTS = slice(45, 47)


class Child:
    """The program, first waiting, then running, then ended."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._status: int | None = None
        self._started = False
        # Whatever the program leaves behind becomes ours, so that it can be found and ended.
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        line, self._line = os.pipe()  # open as long as we are
        self._report, report = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._line)
            if sys.platform == "linux":
                _stand_guard(command, line, report)
            _become(command, parent, line, report)
        self._guardian = self.pid if sys.platform == "linux" else 0
        os.close(line)
        os.close(report)

    def start(self, environment: Mapping[str, str]) -> OSError | None:
        """Let it go; an error if there is no such program."""
        self._started = True
        pairs = (os.fsencode(f"{name}={value}") for name, value in environment.items())
        with suppress(BrokenPipeError):  # it was killed meanwhile: its status will tell
            os.write(self._line, b"\0".join(pairs) + b"\0\0")
        code = self._hear()
        return OSError(code, os.strerror(code)) if code else None

    def poll(self) -> int | None:
        """Its exit status, 128+n for a signal; None while it runs."""
        while self._status is None:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return _NOT_FOUND
            if pid == 0:
                return None
            if pid == self._guardian:
                self._guardian = 0
            if pid == self.pid:
                code = os.waitstatus_to_exitcode(status)
                self._status = code if code >= 0 else 128 - code
                self._dismiss()
        return self._status

    def send(self, signum: int) -> None:
        """Pass a signal on to it."""
        if self._status is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def end(self, kill_at: float) -> int:
        """End it and everything that it started: politely, then by force at this moment."""
        _tell(signal.SIGTERM, self._guardian)
        while time.monotonic() < kill_at and _descendants(self._guardian):
            self.poll()
            time.sleep(min(_TICK, max(kill_at - time.monotonic(), 0.0)))
        while _tell(signal.SIGKILL, self._guardian):
            self.poll()
            time.sleep(_TICK / 10)
        while (status := self.poll()) is None:
            time.sleep(_TICK / 10)
        return status

    def abandon(self) -> None:
        """It is not to run after all."""
        if not self._started:
            self._started = True
            os.close(self._line)
            self._hear()
            self._dismiss()
            with suppress(ChildProcessError):
                os.waitpid(self.pid, 0)

    def _hear(self) -> int:
        """Who the program is, and which error kept it from running, if any."""
        said = b""
        while part := os.read(self._report, 64):
            said += part
        os.close(self._report)
        pid, _, code = said.partition(b" ")
        self.pid = int(pid or 0) or self.pid
        return int(code or 0)

    def _dismiss(self) -> None:
        """Reap the guardian: it is about to go, or gone."""
        if self._guardian:
            with suppress(ChildProcessError):
                os.waitpid(self._guardian, 0)
            self._guardian = 0


def _stand_guard(command: tuple[str, ...], line: int, report: int) -> None:
    """In the guardian: fork the program, and let nothing of it outlive the other end of the line.

    The program stays in our group and session, with the signals as they were; the guardian leaves
    them, so that no signal to a group or from a terminal can end it together with its parent.
    """
    try:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        guardian = os.getpid()
        program = os.fork()
        if program == 0:
            _become(command, guardian, line, report)
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals() - {signal.SIGCHLD})
        os.setsid()
        _close_all_but(line)
        with suppress(OSError, ValueError):
            _rename(f"guard of {program}".encode())
        _watch(program, line)
        _kill_all()
    except OSError as error:
        with suppress(OSError):
            os.write(report, f"0 {error.errno}".encode())
    finally:
        # Only looked at if the program was killed before it could say who it is.
        os._exit(_KILLED)


def _watch(program: int, line: int) -> None:
    """Return when the line breaks; exit at the end of the program, but leave it to our parent.

    Its number is not used again before the parent has reaped it, so no signal can go astray.
    """
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    events = select.poll()
    events.register(line, 0)  # only whether it broke: what is said on it is for the program
    events.register(woken, select.POLLIN)
    while True:
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while (ended := os.waitid(os.P_ALL, 0, options)) is not None:
            if ended.si_pid == program:
                os._exit(_KILLED)
            os.waitpid(ended.si_pid, 0)
        if any(end == line for end, _ in events.poll()):
            return
        with suppress(BlockingIOError):
            os.read(woken, 4096)


def _kill_all() -> None:
    """Kill all descendants, again and again until there are none."""
    pause = _TICK / 10
    with suppress(ChildProcessError):
        while True:
            _tell(signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(pause)
            pause = min(pause * 2, _TICK * 10)  # some may not be ours to kill: sudo


def _close_all_but(kept: int) -> None:
    """Whoever reads what the program writes must not wait for the guardian too."""
    with suppress(FileNotFoundError):
        for name in os.listdir("/proc/self/fd"):
            if int(name) != kept:
                with suppress(OSError):
                    os.close(int(name))


def _rename(title: bytes) -> None:
    """Take another name, so that ``pkill -f`` of our command does not kill the guardian with it."""
    import ctypes

    with open("/proc/self/comm", "wb") as file:
        file.write(title)
    with open("/proc/self/stat", "rb") as file:
        start, end = map(int, file.read().rpartition(b") ")[2].split()[_ARGUMENTS])
    if 0 < start < end:
        ctypes.memmove(
            start, title.ljust(end - start, b"\0")[: end - start - 1] + b"\0", end - start
        )


def _become(command: tuple[str, ...], parent: int, go: int, report: int) -> None:
    """In the child: wait for the word, then be the program."""
    status = _NOT_FOUND
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(status)
        _restore_signals()
        os.write(report, f"{os.getpid()} ".encode())
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


def _tell(signum: int, spared: int = 0) -> list[int]:
    """Send a signal to all descendants but one, and return them."""
    found = _descendants(spared)
    for pid in found:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)
    return found


def _descendants(spared: int = 0) -> list[int]:
    """All processes but one that we started, directly or not, and that still run."""
    children: dict[int, list[int]] = {}
    for pid, parent in _processes():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    left = [os.getpid()]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return [pid for pid in found if pid != spared]


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
                known = file.read().rpartition(b") ")[2].split()
        except OSError:
            continue
        # One whose first thread ended looks like a zombie, but its other threads go on.
        if known[0] != b"Z" or int(known[_THREADS]) > 1:
            yield int(name), int(known[1])


def _listed() -> Iterator[tuple[int, int]]:
    """The same where there is no /proc."""
    import subprocess

    lines = subprocess.run(
        ["/bin/ps", "-axo", "pid=,ppid=,stat="], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for pid, parent, state in (line.split() for line in lines):
        if not state.startswith("Z"):
            yield int(pid), int(parent)
