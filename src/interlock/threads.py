"""Background threads, which leave signals to the program.

The kernel gives a signal to any thread that does not block it.  Python notices a signal in a
background thread, but the main thread is not woken from a blocking call: a program that reads its
input would react only after the next line.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable

AGAIN = 0.5
"""Seconds after which a loop that failed begins again."""


def background(target: Callable[[], None], name: str) -> threading.Thread:
    """A thread that ends with the program, and blocks signals."""
    import signal  # a short command starts no thread

    left = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)

    def run() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, left)
        target()

    return threading.Thread(target=run, name=name, daemon=True)


def going_on(loop: Callable[[], None], name: str, over: threading.Event) -> Callable[[], None]:
    """A loop of a background thread that begins again if it fails, which is logged once."""

    def run() -> None:
        failures = LoopFailures(name)
        while not over.is_set():
            try:
                loop()
            except Exception as error:  # noqa: BLE001 - it begins again
                if over.is_set():
                    return
                failures.note(error)
            else:
                return
            over.wait(AGAIN)

    return run


async def going_on_async(
    loop: Callable[[], Awaitable[None]], name: str, over: Callable[[], bool] = lambda: False
) -> None:
    """A loop of a background task that begins again if it fails, which is logged once."""
    import asyncio  # there already, since a loop runs

    failures = LoopFailures(name)
    while not over():
        try:
            await loop()
        except Exception as error:  # noqa: BLE001 - it begins again
            if over():
                return
            failures.note(error)
        else:
            return
        await asyncio.sleep(AGAIN)


class LoopFailures:
    """What a background loop failed with; the same failure is logged once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last = ""

    def note(self, error: Exception) -> None:
        """It failed."""
        said = repr(error)
        if said != self._last:
            import logging

            self._last = said
            log = logging.getLogger("interlock")
            log.warning("%s failed, and begins again: %s", self._name, said, exc_info=error)
