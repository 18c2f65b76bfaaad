"""What an agent of the demo does with its messages, beside its work: it hears, and it answers."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable

import interlock
from interlock.client_messages import Message
from interlock.demo.protocol import Said
from interlock.threads import background

PHASE = "phase_complete"
"""The type of the alert that everybody subscribes to."""
QUESTION = "which Python do you compile with?"


class Mail:
    """The messages of one agent, in a thread of its own; a stop is heard by whoever works."""

    def __init__(
        self, fleet: interlock.Fleet, can: tuple[str, ...], say: Callable[[Said], None]
    ) -> None:
        self._say = say
        fleet.messages.subscribe(PHASE)
        self._messages = fleet.messages.recv(can=can)
        self._thread = background(self._listen, "mail")
        self._thread.start()

    def close(self) -> None:
        """Listen no more."""
        self._messages.close()
        self._thread.join()

    def _listen(self) -> None:
        for message in self._messages:
            self._read(message)

    def _read(self, message: Message) -> None:
        if message.kind == "alert":
            late = time.monotonic() - message.data["at"]
            self._say(Said(state="heard", at=time.monotonic(), seconds=late))
        elif message.kind == "query":
            message.reply(platform.python_version())
