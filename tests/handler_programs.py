"""A program whose signal handler uses the store; see ``tests/test_thread_calls.py``."""

from __future__ import annotations

import signal
import sys
import time

from tests.processes.lock_programs import say, wait

import interlock
from interlock.errors import StoreInUse

LONG = 1.0
"""Seconds of commits between the first signal and the last."""
EVERY = 0.003
"""Seconds between two signals."""


def interrupted(url: str, act: str) -> None:
    """Commit, interrupted by signals; the handler releases, closes, or takes a lock."""
    fleet = interlock.connect(url, agent="ada")
    fleet.locks.acquire("spare")

    def handler(_number: int, _frame: object) -> None:
        if act == "close":
            signal.setitimer(signal.ITIMER_REAL, 0)
            fleet.close()
            raise SystemExit
        if act == "release":
            fleet.locks.release("spare", token=token)
            return
        try:
            fleet.locks.acquire("other")
        except StoreInUse:
            return

    found = fleet.locks.show("spare")
    token = found.token
    signal.signal(signal.SIGALRM, handler)
    say("ready")
    wait()
    signal.setitimer(signal.ITIMER_REAL, EVERY, EVERY)
    ends = time.monotonic() + LONG
    try:
        while time.monotonic() < ends:
            fleet.locks.acquire("busy")
            fleet.locks.release("busy")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        say("done")
    fleet.close()


def main() -> None:
    globals()[sys.argv[1]](*sys.argv[2:])
