"""The helper process that runs one command, and ends all of it.

It is a process of its own so that the program that asks is neither forked, which is unsafe with
threads, nor becomes the parent of orphans that it does not know.

It gets one request on its standard input, and answers with one reply on its standard output.
When the standard input breaks, the program that asked is gone or does not want the reply, and
everything is killed.  Request and reply are in the format of ``marshal``: one interpreter runs both
sides, and only the parent can write to the pipe.

The wait ends with the command, at the time limit, after too much output, or with the parent.
Then no process is left: the descendants of the command get SIGTERM, and SIGKILL after the grace
period.  So a daemon that the command leaves behind ends too, even if it called ``setsid`` and holds
the pipe of the output.

On Linux no process escapes, except one that this user may not kill.  Elsewhere a daemon that left
the process group of the command continues.
"""

from __future__ import annotations

import marshal
import os
import select
import signal
import sys
import time
from contextlib import suppress

from .tree import become_subreaper, end_with_parent, kill_descendants, reap, signal_descendants

TYPE_CHECKING = False  # importing typing would take as long as all else
if TYPE_CHECKING:
    from hashlib import _Hash

ENDED, NO_FOLDER, NOT_STARTED = "ended", "no folder", "not started"
LATE, TOO_MUCH, STOPPED = "late", "too much", "stopped"
UNKILLABLE = 2.0
"""How many seconds a process may take to end after SIGKILL, before the helper leaves it."""

_INPUT, _REPLY = 0, 1
_CHUNK = 1 << 16
_DRAIN = 1 << 20
_TICK = 0.01
_LOOK = 1.0
_STOPS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


class SupervisedCommand:
    """A command, and its limits.  Paths and words are bytes, as the kernel takes them."""

    def __init__(
        self,
        *,
        parent: int,
        command: list[bytes],
        folder: bytes,
        environment: dict[bytes, bytes],
        seconds: float,
        grace: float,
        most: int,
        kept: int,
        joined: bool,
    ) -> None:
        self.parent = parent
        self.command = command
        self.folder = folder
        self.environment = environment
        self.seconds = seconds
        self.grace = grace
        self.most = most
        """How many bytes of output are too much."""
        self.kept = kept
        """How many bytes of the beginning of an output, and of its end, are in the reply."""
        self.joined = joined
        """Whether errors and output are one."""


class Output:
    """What a command wrote: size, beginning and end, and a digest of all if these are not all."""

    def __init__(self, kept: int) -> None:
        self.size = 0
        self._kept = kept
        self._head = bytearray()
        self._tail = bytearray()
        self._digest: _Hash | None = None

    def add(self, data: bytes) -> None:
        """Take what it wrote next."""
        self.size += len(data)
        rest = data[self._kept - len(self._head) :]
        self._head += data[: len(data) - len(rest)]
        if not rest:
            return
        if self._digest is None:
            from hashlib import sha256  # most commands write little, and importing it takes time

            self._digest = sha256(self._head)
        self._digest.update(rest)
        self._tail += rest
        if len(self._tail) > 2 * self._kept:
            del self._tail[: -self._kept]

    def reply(self) -> tuple[int, bytes, bytes, str]:
        """Size, beginning, end and digest."""
        tail = bytes(self._tail[-self._kept :])
        return self.size, bytes(self._head), tail, self._digest.hexdigest() if self._digest else ""


class Program:
    """The command while it runs."""

    def __init__(self, asked: SupervisedCommand) -> None:
        self._asked = asked
        self._pid = 0
        self._status = 0
        self._outputs: dict[int, Output] = {}
        self._woken = _wake_up_pipe()
        self._events = select.poll()
        self._events.register(_INPUT, 0)  # only whether it broke
        self._events.register(self._woken, select.POLLIN)

    @property
    def written(self) -> list[Output]:
        """Its output, and its errors if they are apart."""
        return list(self._outputs.values())

    def run(self) -> tuple[str, int, bool]:
        """How it ended, its status or what prevented its start, and whether no process is left."""
        become_subreaper()
        out = self._pipe()
        err = out if self._asked.joined else self._pipe()
        problem, report = os.pipe()
        helper = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            _become(self._asked, helper, out, err, report)
        for end in {out, err, report}:
            os.close(end)
        if code := os.read(problem, 16):
            os.waitpid(self._pid, 0)
            return NOT_STARTED, int(code), True
        how = self._wait(time.monotonic() + self._asked.seconds)
        return how, self._status, self._end()

    def _pipe(self) -> int:
        """A pipe for its output; returns the end to write to."""
        read, write = os.pipe()
        os.set_blocking(read, False)
        self._events.register(read, select.POLLIN)
        self._outputs[read] = Output(self._asked.kept)
        return write

    def _wait(self, ends: float) -> str:
        """Wait until it ends, or must be ended."""
        while not self._has_ended():
            left = ends - time.monotonic()
            if left <= 0:
                return LATE
            # A fork of the parent can hold the pipe open after the end of the parent.
            if os.getppid() != self._asked.parent:
                return STOPPED
            for end, _ in self._events.poll(min(left, _LOOK) * 1000):
                if end == _INPUT or (end == self._woken and _STOPS & set(os.read(end, 4096))):
                    return STOPPED
                if end in self._outputs:
                    self._take(end)
            if sum(output.size for output in self._outputs.values()) > self._asked.most:
                return TOO_MUCH
        self._drain()
        return ENDED

    def _has_ended(self) -> bool:
        """Reap the children that ended; returns whether the command is one of them."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._pid:
                    self._status = os.waitstatus_to_exitcode(ended[1])
                    return True
        return False

    def _take(self, end: int) -> int:
        """Read one piece of output; returns its size."""
        try:
            data = os.read(end, _CHUNK)
        except BlockingIOError:
            return 0
        if not data:
            self._events.unregister(end)
        self._outputs[end].add(data)
        return len(data)

    def _drain(self) -> None:
        """Read the rest of the output, which fits into the pipe; a daemon may write without end."""
        for end in self._outputs:
            with suppress(KeyError):
                left = _DRAIN
                while left > 0 and (size := self._take(end)):
                    left -= size

    def _end(self) -> bool:
        """End all processes that are left; returns whether none is."""
        kill_at = time.monotonic() + self._asked.grace
        if reap():
            self._signal(signal.SIGTERM)
        while reap() and time.monotonic() < kill_at:
            time.sleep(_TICK)
        if reap():
            self._signal(signal.SIGKILL)
        return kill_descendants(time.monotonic() + UNKILLABLE)

    def _signal(self, signum: int) -> None:
        signal_descendants(signum)
        if sys.platform != "linux":  # orphans are not among the descendants there
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signum)


def main() -> None:
    """Run the command of the request, and answer."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a thread of the parent may block signals
    asked = SupervisedCommand(**marshal.loads(_receive()))  # noqa: S302 - from the parent
    program = Program(asked)
    try:
        os.chdir(asked.folder)
    except OSError as error:
        _answer((NO_FOLDER, error.errno or 0, True, []))
    else:
        _answer((*program.run(), [output.reply() for output in program.written]))


def _receive() -> bytes:
    """The request: its length in one line, then itself."""
    data = b""
    while b"\n" not in data:
        data += _more()
    length, _, data = data.partition(b"\n")
    while len(data) < int(length):
        data += _more()
    return data


def _more() -> bytes:
    data = os.read(_INPUT, _CHUNK)
    if not data:
        sys.exit(0)
    return data


def _answer(reply: tuple[object, ...]) -> None:
    data = memoryview(marshal.dumps(reply))  # type: ignore[arg-type]
    with suppress(BrokenPipeError):
        while data:
            data = data[os.write(_REPLY, data) :]


def _wake_up_pipe() -> int:
    """A pipe that can be read after a signal: one byte a signal, its number."""
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for signum in (signal.SIGCHLD, *_STOPS):
        signal.signal(signum, lambda *_: None)
    return woken


def _become(asked: SupervisedCommand, helper: int, out: int, err: int, report: int) -> None:
    """In the child: execute the command, or report what prevents it."""
    try:
        signal.set_wakeup_fd(-1)
        end_with_parent()
        if os.getppid() != helper:
            os._exit(1)
        os.setpgid(0, 0)  # a command that signals its own group does not signal the helper
        _reset_signals()
        for end, standard in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
            os.dup2(end, standard)
        os.execvpe(asked.command[0], asked.command, asked.environment)  # noqa: S606
    except OSError as error:
        os.write(report, str(error.errno).encode())
    except BaseException:  # noqa: BLE001 - nothing of the helper may run in the child
        os.write(report, b"5")
    finally:
        os._exit(1)


def _reset_signals() -> None:
    """Ignore no signal: neither those that Python ignores nor those that a caller did."""
    for signum in signal.valid_signals():
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
