"""Threads of our own, which leave signals to the program.

A signal for a process is given to any thread that does not block it.  One that is given to a thread
of ours is noticed by Python, but does not wake the main thread from a call that waits: a program
that reads its input would not hear of it until the next line comes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


def background(target: Callable[[], None], name: str) -> threading.Thread:
    """A thread that ends with the program, and hears no signals."""
    import signal  # a short command starts no thread

    left = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)

    def run() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, left)
        target()

    return threading.Thread(target=run, name=name, daemon=True)
