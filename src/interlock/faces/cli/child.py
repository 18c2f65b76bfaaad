"""A program that must not outlive its grant.

The command forks it first, while it has one thread and no store.  The child waits at a pipe until
the session or lock is acquired; so no program is started without its grant, and no lock of a
storage engine is copied into it.

Between the command and the program is a guardian process, which waits for the end of either.
If the program ends, the guardian notifies the command, which dismisses the guardian and reaps the
program.  If the command ends first, even by SIGKILL, then the pipe breaks, and the guardian kills
the program and all its descendants, in any process session.  If the guardian is killed, the kernel
kills the program.

All this needs Linux.  Elsewhere there is no guardian, and the program continues if the command is
killed.

When its grant ends, or a message asks it to stop, the program and all its descendants get SIGTERM.
SIGKILL follows before another agent can acquire the grant, or after the grace period.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from interlock.runtime.processes.tree import (
    become_subreaper,
    descendants,
    end_with_parent,
    kill_descendants,
    signal_descendants,
)

NOT_FOUND = 127
"""The exit status for a program that does not exist, as of a shell."""
NOT_EXECUTABLE = 126
_KILLED = 128 + signal.SIGKILL
_TICK = 0.02
# In /proc/PID/stat after the name: the addresses of the command line.
_ARGUMENTS = slice(45, 47)


class Child:
    """The program, first waiting, then running, then ended."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._status: int | None = None
        self._running = False
        # Orphans of the program become children of this process, so that it can end them.
        become_subreaper()
        line, self._line = os.pipe()  # open while this process lives
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

    def start(self, environment: Mapping[str, str], folder: str = "") -> OSError | None:
        """Start the program, in another folder if one is named; returns why it cannot be run."""
        pairs = [os.fsencode(f"{name}={value}") for name, value in environment.items()]
        if folder:
            pairs.append(b"=" + os.fsencode(folder))
        with suppress(BrokenPipeError):  # it was killed while it waited: its status says so
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
                return NOT_FOUND
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
        """End the program and its descendants: with SIGTERM, then with SIGKILL at ``kill_at()``.

        ``kill_at`` is called again and again, since that time may become earlier.
        """
        signal_descendants(signal.SIGTERM, self._guardian)
        while time.monotonic() < (ends := kill_at()) and descendants(self._guardian):
            self.poll()
            time.sleep(min(_TICK, max(ends - time.monotonic(), 0.0)))
        while signal_descendants(signal.SIGKILL, self._guardian):
            self.poll()
            time.sleep(_TICK / 10)
        while (status := self.poll()) is None:
            time.sleep(_TICK / 10)
        return status

    def abandon(self) -> None:
        """Discard a program that was not started."""
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
        """Read the pid of the program; returns the error that prevented its start, or 0."""
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
        """End the guardian: its children, with the ended program, become those of this process."""
        os.kill(self._guardian, signal.SIGKILL)
        os.waitpid(self._guardian, 0)
        if self.pid == self._guardian:  # the program was killed before it could report its pid
            self._status = _KILLED
        self._guardian = 0


def _stand_guard(command: tuple[str, ...], line: int, report: int, over: int) -> None:
    """In the guardian: fork the program, and kill all of it when the parent ends.

    The program stays in the process group and session of the command, with unchanged signals; the
    guardian leaves them, so that no signal to a group or from a terminal can end it together with
    its parent.
    """
    try:
        become_subreaper()
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
            # Wait until the parent dismisses the guardian.  If the parent was killed together with
            # the program, the pipe breaks instead, and the descendants must be killed.
            os.close(over)
            if os.getppid() == parent:
                os.kill(parent, signal.SIGCHLD)
            _wait_for_break(line)
        kill_descendants()
    except OSError as error:
        with suppress(OSError):
            os.write(report, f"0 {error.errno}".encode())
    finally:
        os._exit(0)


def _watch(program: int, line: int) -> bool:
    """Wait until the program ends (True) or the pipe breaks (False).

    The parent reaps the program: until then its pid is not reused, so no signal reaches a wrong
    process.
    """
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    events = select.poll()
    events.register(line, 0)  # only whether it broke: the data in it is for the program
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


def _close_all_but(*kept: int) -> None:
    """Close inherited files: a reader of the program's output must not wait for the guardian."""
    with suppress(FileNotFoundError):
        for name in os.listdir("/proc/self/fd"):
            if int(name) not in kept:
                with suppress(OSError):
                    os.close(int(name))


def _rename(title: bytes) -> None:
    """Change the process title, so that ``pkill -f`` of the command spares the guardian."""
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
    """In the child: wait for the environment, then execute the program."""
    status = NOT_FOUND
    try:
        end_with_parent()
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
            if name:
                os.environb[name] = value
            else:
                os.chdir(value)
        os.execvp(command[0], command)  # noqa: S606 - the purpose of the command
    except OSError as error:
        os.write(report, str(error.errno).encode())
    except BaseException:  # noqa: BLE001 - nothing of the parent may run in the child
        os.write(report, b"5")
    finally:
        os._exit(status)


def _restore_signals() -> None:
    """Undo the changes that Python makes to signals for itself."""
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_DFL)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
