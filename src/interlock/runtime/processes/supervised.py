"""Commands that run below a supervisor, for programs with threads or an event loop.

    with Supervision() as supervision:
        ended = supervision.run(["make", "check"], folder=root, environment={...}, seconds=60)

    ended = await supervise(["make"], environment={...}, input=b"{}", outputs=(Capture(),))

``run`` may be called by many threads at once.  The end of the block ends everything that still
runs, and so does a cancellation of ``supervise``.  If this process is killed, its supervisors
notice it, and end what they run.
"""

from __future__ import annotations

import marshal
import os
import select
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from errno import ENOENT
from typing import IO, TYPE_CHECKING, Literal, Self, TypeAlias, cast

from msgspec import Struct

from interlock.runtime.processes.supervisor import NO_FOLDER, NOT_STARTED, UNKILLABLE

if TYPE_CHECKING:
    from asyncio import StreamReader
    from asyncio.subprocess import Process
    from subprocess import Popen

MOST = 16 << 20
"""A command is ended when it has written more bytes than this."""
KEPT = 64 << 10
"""The bytes of the beginning of its output, and of its end, that are kept."""
GRACE = 0.5
"""The seconds between SIGTERM and SIGKILL."""

LONGEST = 86400.0
"""The most seconds that a command can have."""

_MARGIN = 10.0
_HELPER_ENDED = "its helper process ended"

How: TypeAlias = Literal["ended", "no folder", "not started", "late", "too much", "stopped"]


class Capture(Struct, frozen=True, kw_only=True):
    """What to do with an output: keep ``kept`` bytes of both ends, allow ``most``, pass it on."""

    kept: int = KEPT
    most: float = float("inf")
    passed: int = -1
    """A descriptor of this process to which it is written as it comes; -1 for none."""


class Written(Struct, frozen=True, kw_only=True):
    """What a command wrote: its size, its beginning, its end if that is not all, its SHA-256."""

    size: int = 0
    head: bytes = b""
    tail: bytes = b""
    digest: str = ""


class Ended(Struct, frozen=True, kw_only=True):
    """How the run of a command ended.

    ``ended`` by itself, with its ``status``: the exit status, or 128+n after the signal n, which is
    also in ``signal``.  ``late`` at its time limit, ``too much`` after too much output, ``stopped``
    by the program that asked.  If it could not begin, ``says`` has the reason.  ``clean`` is false
    if a process is left that could not be killed.
    """

    how: How
    status: int = 0
    signal: int = 0
    says: str = ""
    clean: bool = True
    out: Written = Written()
    err: Written = Written()


class Supervision:
    """Runs commands, and ends those that still run at its own end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: set[IO[bytes]] = set()
        self._over = False
        self._prepared: Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End all commands that run; those that are asked for later do not begin."""
        with self._lock:
            self._over = True
            for line in self._lines:
                line.close()
            unused, self._prepared = self._prepared, None
        if unused is not None:
            for end in (unused.stdin, unused.stdout):
                cast("IO[bytes]", end).close()
            _end(unused)

    def prepare(self) -> None:
        """Start the helper of the next command now: it is ready when that is asked for."""
        with self._lock:
            if not self._over and self._prepared is None:
                with suppress(OSError):  # the command says so
                    self._prepared = _helper()

    def _take_helper(self) -> Popen[bytes]:
        with self._lock:
            ready, self._prepared = self._prepared, None
        return _helper() if ready is None else ready

    def run(
        self,
        command: Sequence[str],
        *,
        folder: str,
        environment: Mapping[str, str],
        seconds: float,
        kept: int = KEPT,
        most: float = MOST,
        joined: bool = True,
    ) -> Ended:
        """Run a command with empty input until its end, or to a limit; leaves no process behind.

        It is ended when it has written more than ``most`` bytes.  ``joined`` makes one output of
        its output and its errors.
        """
        seconds = min(seconds, LONGEST)
        outputs = (Capture(kept=kept, most=most),) * (1 if joined else 2)
        request = _request(
            command,
            environment,
            folder=folder,
            input=None,
            seconds=seconds,
            grace=GRACE,
            outputs=outputs,
        )
        limit = seconds + GRACE + UNKILLABLE + _MARGIN
        try:
            reply = self._ask(request, limit)
        except OSError as error:
            return _no_helper(error)
        if not reply:
            return Ended(how="stopped", says="" if self._over else _HELPER_ENDED)
        return _ended(reply)

    def _ask(self, request: bytes, limit: float) -> bytes:
        """Send the request to a new helper, and return its reply; empty if there is none."""
        with self._take_helper() as helper:
            line, answers = cast("IO[bytes]", helper.stdin), cast("IO[bytes]", helper.stdout)
            try:
                with self._lock:  # so that the line is not closed while it is written to
                    if self._over:
                        return b""
                    _send(line, request)
                    self._lines.add(line)
                return _receive(answers, limit)
            finally:
                with self._lock:
                    self._lines.discard(line)
                    line.close()
                _end(helper)


async def supervise(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    input: bytes,  # noqa: A002 - the word that people use
    outputs: Sequence[Capture],
    seconds: float | None = None,
    grace: float = GRACE,
) -> Ended:
    """Run a command in this folder until its end, or to a limit; leaves no process behind.

    A cancellation ends it with all that it started: SIGTERM, then SIGKILL after the grace period,
    or with a second cancellation.
    """
    import asyncio
    from asyncio.subprocess import PIPE

    limit = float("inf") if seconds is None else seconds
    request = _request(
        command,
        environment,
        folder="",
        input=input,
        seconds=limit,
        grace=grace,
        outputs=outputs,
    )
    try:
        helper = await asyncio.create_subprocess_exec(
            *helper_command("supervisor"),
            stdin=PIPE,
            stdout=PIPE,
            pass_fds=[each.passed for each in outputs if each.passed > 0],
            start_new_session=True,  # an interrupt from the terminal is for this process
        )
    except OSError as error:
        return _no_helper(error)
    line, answers = helper.stdin, helper.stdout
    if line is None or answers is None:
        raise AssertionError("the helper has pipes")
    ending = asyncio.ensure_future(_answer(answers, helper))
    try:
        line.write(request)
        with suppress(ConnectionError):
            await line.drain()
        reply = await asyncio.shield(ending)
    except asyncio.CancelledError:
        line.close()
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            with suppress(ProcessLookupError):
                helper.terminate()
            await ending
            raise
        raise
    finally:
        line.close()
    return _ended(reply) if reply else Ended(how="stopped", says=_HELPER_ENDED)


async def _answer(answers: StreamReader, helper: Process) -> bytes:
    """The reply of a helper, after its end."""
    reply = await answers.read()
    await helper.wait()
    return reply


def _request(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    folder: str,
    input: bytes | None,  # noqa: A002
    seconds: float,
    grace: float,
    outputs: Sequence[Capture],
) -> bytes:
    """The request to a helper: its length in one line, then itself."""
    request = marshal.dumps(
        {
            "parent": os.getpid(),
            "command": [os.fsencode(word) for word in command],
            "folder": os.fsencode(folder),
            "environment": {os.fsencode(k): os.fsencode(v) for k, v in environment.items()},
            "input": input,
            "seconds": seconds,
            "grace": grace,
            "outputs": [(each.kept, each.most, each.passed) for each in outputs],
        }
    )
    return b"%d\n%b" % (len(request), request)


def _helper() -> Popen[bytes]:
    """A new helper, which waits for its request."""
    import subprocess

    return subprocess.Popen(  # noqa: S603 - this interpreter
        helper_command("supervisor"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        start_new_session=True,  # an interrupt from the terminal is for this process
    )


def _no_helper(error: OSError) -> Ended:
    return Ended(how="not started", says=f"no helper process can start: {error.strerror}")


def _end(helper: Popen[bytes]) -> None:
    """Wait for the end of a helper, which answered or has to stop; kill one that does neither."""
    from subprocess import TimeoutExpired

    try:
        helper.wait(GRACE + UNKILLABLE + _MARGIN)
    except TimeoutExpired:
        helper.kill()


def helper_command(module: str) -> list[str]:
    """The command that runs ``main`` of a module of this folder in a process of its own."""
    if not sys.executable:
        raise FileNotFoundError(ENOENT, "the Python interpreter is unknown")
    start = f"import sys; sys.path.append(sys.argv[1]); from processes.{module} import main; main()"
    return [sys.executable, "-I", "-S", "-c", start, os.path.dirname(os.path.dirname(__file__))]


def _send(end: IO[bytes], data: bytes) -> None:
    left = memoryview(data)
    with suppress(BrokenPipeError):
        while left:
            left = left[os.write(end.fileno(), left) :]


def _receive(end: IO[bytes], limit: float) -> bytes:
    """All that is written to the pipe until its end; empty if that does not come in time."""
    events = select.poll()
    events.register(end, select.POLLIN)
    ends = time.monotonic() + limit
    parts: list[bytes] = []
    while events.poll(max(ends - time.monotonic(), 0.0) * 1000):
        part = os.read(end.fileno(), MOST)
        if not part:
            return b"".join(parts)
        parts.append(part)
    return b""


def _ended(reply: bytes) -> Ended:
    how, number, clean, outputs = marshal.loads(reply)  # noqa: S302 - of this interpreter
    out, err = (*map(_written, outputs), Written(), Written())[:2]
    if how in (NO_FOLDER, NOT_STARTED):
        return Ended(how=how, says=os.strerror(number).lower())
    return Ended(
        how=how,
        status=number if number >= 0 else 128 - number,
        signal=max(-number, 0),
        clean=clean,
        out=out,
        err=err,
    )


def _written(output: tuple[int, bytes, bytes, str]) -> Written:
    from hashlib import sha256

    size, head, tail, digest = output
    return Written(size=size, head=head, tail=tail, digest=digest or sha256(head).hexdigest())
