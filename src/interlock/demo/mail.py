"""What an agent of the demo does with its messages, beside its work: it hears, and it answers."""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable

import interlock
from interlock.core.message import Received
from interlock.demo.protocol import Said
from interlock.threads import background

PHASE = "phase_complete"
"""The type of the alert that everybody subscribes to."""
QUESTION = "which Python do you compile with?"
LOOK = 0.5
"""Seconds after which it looks whether it still is to listen."""


class Mail:
    """The messages of one agent, in a thread of its own; stops are for whoever works."""

    def __init__(
        self, fleet: interlock.Fleet, can: tuple[str, ...], say: Callable[[Said], None]
    ) -> None:
        self._fleet = fleet
        self._can = can
        self._say = say
        self._over = threading.Event()
        fleet.messages.subscribe(PHASE)
        self._thread = background(self._listen, "mail")
        self._thread.start()

    def close(self) -> None:
        """Listen no more."""
        self._over.set()
        self._thread.join()

    def _listen(self) -> None:
        while not self._over.is_set():
            try:
                self._fleet.messages.wait(LOOK, can=self._can)
                found = self._fleet.messages.inbox(can=self._can).messages
                for message in found:
                    self._read(message)
            except interlock.StoreTrouble:
                found = ()
                self._over.wait(LOOK)
            if any(message.kind == "stop" for message in found):
                return

    def _read(self, message: Received) -> None:
        if message.kind == "alert":
            late = time.monotonic() - message.data["at"]
            self._say(Said(state="heard", at=time.monotonic(), seconds=late))
        if message.kind == "query":
            self._fleet.messages.reply(message.id, platform.python_version())
        if message.kind != "stop":
            self._fleet.messages.ack(message.id, can=self._can)
