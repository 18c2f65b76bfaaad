"""``run --restart``: a program that is started again when it ends.

Each start is a process of its own below this one, with a new session; so the store of one start is
never copied into the next.  The pause between two starts doubles, and is short again after a run of
a minute.  A signal to this command, a stop message to the agent, or a request that can never
succeed ends it for good; a signal that is ignored, as ``nohup`` does it, stays ignored.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from interlock.errors import BadInput, InterlockError
from interlock.faces.cli.child import NOT_EXECUTABLE, NOT_FOUND
from interlock.faces.cli.command import Stopped, note
from interlock.faces.cli.run import in_foreground
from interlock.runtime.processes.tree import end_with_parent
from interlock.runtime.text import lasting

if TYPE_CHECKING:
    from types import FrameType

POLICIES = ("never", "failure", "always")
LONGEST = 60.0
"""Seconds between two starts, at most; a run of that length counts as a good start."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FOR_GOOD = b"!"


def restarting(policy: str, backoff: float, run: Callable[[Callable[[], None]], int]) -> int:
    """Call ``run`` in a new process, again and again as the policy says; returns the last status.

    ``run`` gets a function to call when a message asked the program to stop.
    """
    if policy not in POLICIES:
        raise BadInput(f"--restart is {', '.join(POLICIES)}, not {policy!r:.40}")
    caught: list[int] = []
    child = [0]

    def on_signal(signum: int, _frame: FrameType | None) -> None:
        caught.append(signum)
        # A terminal sends its interrupt to the whole foreground group: the program has it already.
        if child[0] and (signum != signal.SIGINT or not in_foreground()):
            with suppress(ProcessLookupError):
                os.kill(child[0], signum)

    before = {
        each: signal.signal(each, on_signal)
        for each in _SIGNALS
        if signal.getsignal(each) is not signal.SIG_IGN
    }
    pause = backoff
    while True:
        began = time.monotonic()
        status, over = _once(run, child, caught, before)
        if over or caught or not _again(policy, status):
            return status
        pause = backoff if time.monotonic() - began >= LONGEST else pause
        note(f"it ended with status {status}; it starts again in {lasting(pause)}")
        if _slept(pause, caught):
            return status
        pause = min(2 * pause, LONGEST)


def _again(policy: str, status: int) -> bool:
    if status in (NOT_FOUND, NOT_EXECUTABLE):  # it cannot start the next time, either
        return False
    return policy == "always" or (policy == "failure" and status != 0)


def _slept(seconds: float, caught: list[int]) -> bool:
    """Sleep; True if a signal came."""
    ends = time.monotonic() + seconds
    while not caught and (left := ends - time.monotonic()) > 0:
        time.sleep(min(left, 0.2))
    return bool(caught)


def _once(
    run: Callable[[Callable[[], None]], int],
    child: list[int],
    caught: list[int],
    handlers: Mapping[signal.Signals, object],
) -> tuple[int, bool]:
    """Run once in a child; its status, and whether it is over for good."""
    heard, say = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until either side can handle one
    pid = os.fork()
    if pid == 0:
        os.close(heard)
        for signum, handler in handlers.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]  # as signal() returned it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os._exit(_status(run, say))
    child[0] = pid  # before the look: another thread may have taken the signal in spite of the mask
    early = tuple(caught)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    for number in early:  # it came before there was a child
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    os.close(say)
    with os.fdopen(heard, "rb") as file:
        said = file.read()
    _, status = os.waitpid(pid, 0)
    child[0] = 0
    code = os.waitstatus_to_exitcode(status)
    return (code if code >= 0 else 128 - code), bool(said)


def _report(say: int) -> None:
    os.write(say, _FOR_GOOD)


def _status(run: Callable[[Callable[[], None]], int], say: int) -> int:
    """In the child: the exit status of a run, with its errors reported."""
    from interlock.faces.cli.command import INTERRUPTED, failed

    end_with_parent()
    try:
        status = run(lambda: _report(say))
    except KeyboardInterrupt:
        status = INTERRUPTED
    except Stopped as stopped:
        status = stopped.exit_status
    except InterlockError as error:
        if isinstance(error, BadInput):  # it is the same the next time
            _report(say)
        status = failed(error, json=False)
    except BaseException as error:  # noqa: BLE001 - nothing of the parent may run in the child
        note(repr(error))
        status = InterlockError.exit_status
    sys.stdout.flush()
    sys.stderr.flush()
    return status
