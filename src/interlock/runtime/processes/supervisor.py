"""The helper process that runs one command, and ends all of it.

It is a process of its own so that the program that asks is neither forked, which is unsafe with
threads, nor becomes the parent of orphans that it does not know.

It gets one request on its standard input, and answers with one reply on its standard output.
When the standard input breaks, the program that asked is gone or does not want the reply, and
everything is killed.  Request and reply are in the format of ``marshal``: one interpreter runs both
sides, and only the parent can write to the pipe.

The wait ends with the command, at the time limit, after too much output, or with the parent.
Then no process is left: the descendants of the command get SIGTERM, and SIGKILL after the grace
period, or at once if this process gets a signal by then.  So a daemon that the command leaves
behind ends too, even if it called ``setsid`` and holds the pipe of the output.

Output can be passed on as it comes.  While its reader is slow, the command is not read from, so
that it waits as if it wrote to that reader itself; the helper still notices that it has to stop.

On Linux no process escapes, except one that this user may not kill.  Elsewhere a daemon that left
the process group of the command continues.
"""

from __future__ import annotations

import marshal
import os
import select
import stat
import sys
import time
from contextlib import suppress

from .tree import become_subreaper, end_with_parent, kill_descendants, reap, signal_descendants

TYPE_CHECKING = False  # importing typing would take as long as all else
if TYPE_CHECKING:
    import signal
    from hashlib import _Hash
else:
    import _signal as signal  # what signal is made of, without its enumerations

ENDED, NO_FOLDER, NOT_STARTED = "ended", "no folder", "not started"
LATE, TOO_MUCH, STOPPED = "late", "too much", "stopped"
UNKILLABLE = 2.0
"""How many seconds a process may take to end after SIGKILL, before the helper leaves it."""

_INPUT, _REPLY = 0, 1
_CHUNK = 1 << 16
_SMALL = 4096
"""What can be written to a pipe that has room without waiting."""
_DRAIN = 1 << 20
_FLUSH = 2.0
"""Seconds for a slow reader of passed output, after the end of the command."""
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
        input: bytes | None,  # noqa: A002 - the word that people use
        seconds: float,
        grace: float,
        outputs: list[tuple[int, float, int]],
    ) -> None:
        self.parent = parent
        self.command = command
        self.folder = folder
        """The folder to run in; empty for that of the helper."""
        self.environment = environment
        self.input = input
        """What it reads on its standard input; without one, that is empty."""
        self.seconds = seconds
        self.grace = grace
        self.outputs = outputs
        """For its output and its errors, or for both as one: how many bytes of the beginning and of
        the end are kept, how many are too much, and the descriptor that they are passed on to, or
        -1."""


class Output:
    """What a command wrote: size, beginning and end, and a digest of all if these are not all."""

    def __init__(self, kept: int, most: float, passed: int) -> None:
        self.size = 0
        self.passed = passed if passed < 0 else _own_end(passed)
        """The descriptor that it is passed on to; -1 without one."""
        self.waiting = b""
        """What is still to be passed on."""
        self._most = most
        self._kept = kept
        self._head = bytearray()
        self._tail = bytearray()
        self._digest: _Hash | None = None

    def add(self, data: bytes) -> None:
        """Take what it wrote next."""
        self.size += len(data)
        if self.passed >= 0:
            self.waiting += data
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

    @property
    def too_much(self) -> bool:
        """Whether it is more than is allowed."""
        return self.size > self._most

    def pass_on(self) -> None:
        """Pass on what the reader takes now; nothing more once it is gone."""
        try:
            self.waiting = self.waiting[os.write(self.passed, self.waiting[:_SMALL]) :]
        except BlockingIOError:
            pass
        except OSError:
            self.waiting, self.passed = b"", -1

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
        self._closed: set[int] = set()
        """Outputs that are at their end."""
        self._feed = -1
        self._input = asked.input or b""
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
        out, *rest = [self._pipe(*each) for each in self._asked.outputs]
        err = rest[0] if rest else out
        given = self._input_end()
        problem, report = os.pipe()
        helper = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            _become(self._asked, helper, (given, out, err), report)
        for end in {given, out, err, report}:
            os.close(end)
        if code := os.read(problem, 16):
            os.waitpid(self._pid, 0)
            return NOT_STARTED, int(code), True
        how = self._wait(time.monotonic() + self._asked.seconds)
        return how, self._status, self._end()

    def _pipe(self, kept: int, most: float, passed: int) -> int:
        """A pipe for its output; returns the end to write to."""
        read, write = os.pipe()
        os.set_blocking(read, False)
        self._events.register(read, select.POLLIN)
        self._outputs[read] = Output(kept, most, passed)
        return write

    def _input_end(self) -> int:
        """The end of its input that it reads from."""
        if self._asked.input is None:
            return os.open(os.devnull, os.O_RDONLY)
        read, self._feed = os.pipe()
        os.set_blocking(self._feed, False)
        self._events.register(self._feed, select.POLLOUT)
        return read

    def _give(self) -> None:
        """Write more of its input, which it need not read; the end of it closes the pipe."""
        try:
            self._input = self._input[os.write(self._feed, self._input[:_CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:
            self._input = b""
        if not self._input:
            self._events.unregister(self._feed)
            os.close(self._feed)
            self._feed = -1

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
                if end == _INPUT or (end == self._woken and self._is_told_to_stop()):
                    return STOPPED
                self._move(end)
            if any(output.too_much for output in self._outputs.values()):
                return TOO_MUCH
        self._drain()
        return ENDED

    def _is_told_to_stop(self) -> bool:
        """Whether a signal came that asks to stop."""
        try:
            return bool(_STOPS & set(os.read(self._woken, 4096)))
        except BlockingIOError:
            return False

    def _move(self, end: int) -> None:
        """Move input or output at a descriptor that is ready."""
        if end == self._feed:
            self._give()
        elif end in self._outputs:
            self._take(end)
            self._turn(end)
        for source, output in self._outputs.items():
            if end == output.passed and output.waiting:
                output.pass_on()
                self._turn(source, end)

    def _turn(self, source: int, target: int = -1) -> None:
        """Wait for the reader of passed output while it has to take some, else for the command."""
        output = self._outputs[source]
        target = output.passed if target < 0 else target
        with suppress(KeyError):
            self._events.unregister(source)
        if output.waiting:
            self._events.register(target, select.POLLOUT)
            return
        if target >= 0:
            with suppress(KeyError):
                self._events.unregister(target)
        if source not in self._closed:
            self._events.register(source, select.POLLIN)

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
            self._closed.add(end)
        self._outputs[end].add(data)
        return len(data)

    def _drain(self) -> None:
        """Read the rest of the output, which fits into the pipe; a daemon may write without end."""
        for end, output in self._outputs.items():
            left = _DRAIN
            while left > 0 and end not in self._closed and (size := self._take(end)):
                left -= size
            until = time.monotonic() + _FLUSH
            while output.waiting and (left_time := until - time.monotonic()) > 0:
                if select.select((), (output.passed,), (), left_time)[1]:
                    output.pass_on()

    def _end(self) -> bool:
        """End all processes that are left; returns whether none is."""
        kill_at = time.monotonic() + self._asked.grace
        if reap():
            self._signal(signal.SIGTERM)
        while reap() and time.monotonic() < kill_at and not self._is_told_to_stop():
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
    become_subreaper()  # before the request: what it imports is loaded while none has come
    asked = SupervisedCommand(**marshal.loads(_receive()))  # noqa: S302 - from the parent
    program = Program(asked)
    try:
        if asked.folder:
            os.chdir(asked.folder)
    except OSError as error:
        _answer((NO_FOLDER, error.errno or 0, True, []))
    else:
        _answer((*program.run(), [output.reply() for output in program.written]))
    os._exit(0)  # the caller waits for the end, and the interpreter's own takes a while


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


def _own_end(end: int) -> int:
    """A descriptor of our own for the same output, if possible one on which no write waits."""
    os.set_inheritable(end, False)  # the command must not keep it open
    with suppress(OSError):
        mode = os.fstat(end).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):  # a file would be written from its beginning
            return os.open(f"/proc/self/fd/{end}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    return os.dup(end)


def _become(
    asked: SupervisedCommand, helper: int, standard: tuple[int, int, int], report: int
) -> None:
    """In the child: execute the command, or report what prevents it."""
    try:
        signal.set_wakeup_fd(-1)
        end_with_parent()
        if os.getppid() != helper:
            os._exit(1)
        os.setpgid(0, 0)  # a command that signals its own group does not signal the helper
        _reset_signals()
        for number, end in enumerate(standard):
            os.dup2(end, number)
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
        if signal.getsignal(signum) == signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
