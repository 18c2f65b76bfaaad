"""A program that must not outlive its grant.

It is forked before anything else happens, while this process has one thread and no store, and
waits behind a pipe until its session or lock is there; so a program is never started in vain, and
no lock of an engine is ever copied into it.

Between us and the program stands a guardian.  It does nothing but wait for the end of one of us.
If the program ends, it tells us; we dismiss it, and the program becomes ours to be reaped.  If we
end before that, by SIGKILL too, then the pipe breaks, and it kills the program and everything that
the program started, in whatever session that is.  If somebody kills the guardian, the kernel kills
the program.

All this needs Linux.  Elsewhere there is no guardian, and a program goes on if we are killed.

If its time is up, or somebody asked it to stop, it and all that it started get SIGTERM, and SIGKILL
by the moment at which somebody else may begin, or after some time of grace.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
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
        self._running = False
        # Whatever the program leaves behind becomes ours, so that it can be found and ended.
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        line, self._line = os.pipe()  # open as long as we are
        self._report, report = os.pipe()
        self._over, over = os.pipe()  # its other end is closed at the end of the program
        os.set_blocking(self._over, False)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._line)
            if sys.platform == "linux":
                _stand_guard(command, line, report, over)
            _become(command, parent, line, report)
        self._guardian = self.pid if sys.platform == "linux" else 0
        for end in (line, report, over):
            os.close(end)

    def start(self, environment: Mapping[str, str]) -> OSError | None:
        """Let it go; an error if there is no such program."""
        pairs = (os.fsencode(f"{name}={value}") for name, value in environment.items())
        with suppress(BrokenPipeError):  # it was killed meanwhile: its status will tell
            os.write(self._line, b"\0".join(pairs) + b"\0\0")
        code = self._hear()
        self._running = not code
        return OSError(code, os.strerror(code)) if code else None

    def poll(self) -> int | None:
        """Its exit status, 128+n for a signal; None while it runs."""
        if self._guardian and self._is_over():
            self._dismiss()
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
            if pid == self._guardian:
                self._guardian = 0
        return self._status

    def send(self, signum: int) -> None:
        """Pass a signal on to it."""
        if self._status is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def end(self, kill_at: Callable[[], float]) -> int:
        """End it and everything that it started: politely, then by force at a moment.

        The moment is asked for again and again: something may bring it forward.
        """
        _tell(signal.SIGTERM, self._guardian)
        while time.monotonic() < (ends := kill_at()) and _descendants(self._guardian):
            self.poll()
            time.sleep(min(_TICK, max(ends - time.monotonic(), 0.0)))
        while _tell(signal.SIGKILL, self._guardian):
            self.poll()
            time.sleep(_TICK / 10)
        while (status := self.poll()) is None:
            time.sleep(_TICK / 10)
        return status

    def abandon(self) -> None:
        """It is not to run after all."""
        if self._running:
            return
        os.close(self._line)
        if self._report >= 0:
            self._hear()
        for pid in (self._guardian, self.pid):
            with suppress(ChildProcessError):
                if pid:
                    os.waitpid(pid, 0)

    def _hear(self) -> int:
        """Who the program is, and which error kept it from running, if any."""
        said = b""
        while part := os.read(self._report, 64):
            said += part
        os.close(self._report)
        self._report = -1
        pid, _, code = said.partition(b" ")
        self.pid = int(pid or 0) or self.pid
        return int(code or 0)

    def _is_over(self) -> bool:
        with suppress(BlockingIOError):
            return not os.read(self._over, 1)
        return False

    def _dismiss(self) -> None:
        """Let the guardian go: its children, the ended program too, become ours."""
        os.kill(self._guardian, signal.SIGKILL)
        os.waitpid(self._guardian, 0)
        if self.pid == self._guardian:  # the program was killed before it could say who it is
            self._status = _KILLED
        self._guardian = 0


def _stand_guard(command: tuple[str, ...], line: int, report: int, over: int) -> None:
    """In the guardian: fork the program, and let nothing of it outlive the other end of the line.

    The program stays in our group and session, with the signals as they were; the guardian leaves
    them, so that no signal to a group or from a terminal can end it together with its parent.
    """
    try:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        parent, guardian = os.getppid(), os.getpid()
        program = os.fork()
        if program == 0:
            _become(command, guardian, line, report)
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals() - {signal.SIGCHLD})
        os.setsid()
        _close_all_but(line, over)
        with suppress(OSError, ValueError):
            _rename(f"guard of {program}".encode())
        if _watch(program, line):
            # We wait to be dismissed: if our parent was killed together with the program, it never
            # comes to that, and what the program started is still ours to kill.
            os.close(over)
            if os.getppid() == parent:
                os.kill(parent, signal.SIGCHLD)
            _wait_for_break(line)
        _kill_all()
    except OSError as error:
        with suppress(OSError):
            os.write(report, f"0 {error.errno}".encode())
    finally:
        os._exit(0)


def _watch(program: int, line: int) -> bool:
    """Wait until the program ends (True) or the line breaks (False).

    The program is left for our parent to reap: until then nobody else gets its number, so no
    signal can go astray.
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
                return True
            os.waitpid(ended.si_pid, 0)
        if any(end == line for end, _ in events.poll()):
            return False
        with suppress(BlockingIOError):
            os.read(woken, 4096)


def _wait_for_break(line: int) -> None:
    events = select.poll()
    events.register(line, 0)
    events.poll()


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


def _close_all_but(*kept: int) -> None:
    """Whoever reads what the program writes must not wait for the guardian too."""
    with suppress(FileNotFoundError):
        for name in os.listdir("/proc/self/fd"):
            if int(name) not in kept:
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
