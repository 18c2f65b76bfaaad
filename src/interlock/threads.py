"""Background threads, which leave signals to the program.

The kernel gives a signal to any thread that does not block it.  Python notices a signal in a
background thread, but the main thread is not woken from a blocking call: a program that reads its
input would react only after the next line.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


def background(target: Callable[[], None], name: str) -> threading.Thread:
    """A thread that ends with the program, and blocks signals."""
    import signal  # a short command starts no thread

    left = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)

    def run() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, left)
        target()

    return threading.Thread(target=run, name=name, daemon=True)
