"""What the hooks of one session remember between two events, in a small file of the user's cache.

A lost file does no harm: messages and files are reported a second time.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any, Self

from interlock.core.codec import digest
from interlock.faces.hooks.event import HookEvent


class HookState:
    """A block that reads the file, and writes it at its end; after an exception it writes nothing.

    shown     the messages of the last answer, to be acknowledged at the next event
    left      messages that were shown and stay unread: questions, and those that were cut
    reported  how files looked that were reported
    stops     how often in a row mail kept the agent from stopping
    beat      when the session was last renewed
    counted   when its transcript was last counted
    idle      whether the agent stopped, and has done nothing since
    """

    def __init__(self, event: HookEvent) -> None:
        text = f"{event.session}\n{event.agent_id}\n{os.environ.get('INTERLOCK_AGENT', '')}"
        name = digest(text.encode("utf-8", "replace"))[:24]
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        self._file = os.path.join(cache, "interlock", "hooks", f"{name}.json")
        self.shown: list[str] = []
        self.left: list[str] = []
        self.reported: dict[str, list[int]] = {}
        self.stops = 0
        self.beat = 0.0
        self.counted = 0.0
        self.idle = False
        self._over = False

    @property
    def file(self) -> str:
        """Where it is kept."""
        return self._file

    def __enter__(self) -> Self:
        return self.loaded()

    def loaded(self) -> Self:
        """The same with what the file says; a reader leaves that as it is."""
        with suppress(OSError, ValueError, TypeError), open(self._file, encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
            self.shown = [str(each) for each in found.get("shown", ())]
            self.left = [str(each) for each in found.get("left", ())]
            self.reported = dict(found.get("reported", {}))
            self.stops, self.beat = int(found.get("stops", 0)), float(found.get("beat", 0.0))
            self.counted, self.idle = float(found.get("counted", 0.0)), bool(found.get("idle"))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None or self._over:  # the answer was not given
            return
        kept = {key: value for key, value in vars(self).items() if not key.startswith("_")}
        beside = f"{self._file}.{os.getpid()}"
        with suppress(OSError):
            os.makedirs(os.path.dirname(self._file), mode=0o700, exist_ok=True)
            with open(beside, "w", encoding="utf-8") as file:
                json.dump(kept, file)
            os.replace(beside, self._file)

    def remove(self) -> None:
        """The session is over."""
        self._over = True
        for path in (self._file, f"{self._file}.wake", f"{self._file}.monitor"):
            with suppress(OSError):
                os.remove(path)
