"""The descendants of this process, in any process group and session.

A signal to a process group misses a child that called ``setsid``.  A daemon also has another
parent: on Linux that is the nearest subreaper above it, so a subreaper finds all that was started
below it.  Elsewhere a daemon belongs to process 1, and is not found.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal  # as in supervisor.py, which imports this one

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SHORTEST = 0.002
_LONGEST = 0.2
# In /proc/PID/stat after the name: the number of threads.
_THREADS = 17


def become_subreaper() -> None:
    """Make orphans among the descendants of this process its own children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def signal_descendants(signum: int, spared: int = 0) -> list[int]:
    """Send a signal to all descendants but one, and return them."""
    found = descendants(spared)
    for pid in found:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)
    return found


def kill_descendants(until: float | None = None) -> bool:
    """Kill all descendants, again and again until there are none; or until a monotonic time.

    Returns whether none is left.  The children that ended are reaped.
    """
    pause = _SHORTEST
    while reap():
        if until is not None and time.monotonic() >= until:
            return False
        signal_descendants(signal.SIGKILL)
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST)  # some cannot be killed: sudo
    return True


def reap() -> bool:
    """Reap the children that ended; returns whether there are others."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        return True
    return False


def descendants(spared: int = 0) -> list[int]:
    """All running descendants of this process but one."""
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
        # A process whose first thread ended looks like a zombie, but its other threads still run.
        if known[0] != b"Z" or int(known[_THREADS]) > 1:
            yield int(name), int(known[1])


def _listed() -> Iterator[tuple[int, int]]:
    """Running processes with their parents, from ps(1), for systems without /proc."""
    import subprocess

    lines = subprocess.run(
        ["/bin/ps", "-axo", "pid=,ppid=,stat="], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for pid, parent, state in (line.split() for line in lines):
        if not state.startswith("Z"):
            yield int(pid), int(parent)


def _prctl(what: int, value: int) -> None:
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(what, value, 0, 0, 0)
