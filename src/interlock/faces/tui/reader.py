"""The threads behind the screen: one reads the store, others act; the screen waits for none.

They are daemons, so a store that never answers cannot keep the command from ending.  The reader
follows the events of the record, and reads again soon after one; sessions expire without an event,
so it also reads after a while.  A reading that takes long is repeated rarely.

When the store fails, the client is thrown away and another one is opened after a second: a file
that was replaced, or a server that was restarted, needs a new one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from interlock.errors import InterlockError
from interlock.faces.tui.screen_data import ZOOMS, ScreenData, read_screen
from interlock.faces.tui.views import VIEWS
from interlock.nouns.fleet.noun import WhyRequest
from interlock.nouns.record.noun import RecordExplain
from interlock.runtime.text import render

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.runtime.observe import Observed
    from interlock.runtime.operation import Request

Opens = Callable[[], "Fleet"]
LEAST_PAUSE = 0.25
"""Seconds between two readings, at least."""
SHARE = 4
"""A reading may take one part in this many of the time."""
EARLIER = 100
"""Revisions before the newest one whose events the log shows at first."""
AGAIN = 1.0
"""Seconds until a store that failed is opened again."""


class ScreenReader:
    """Reads one view, again and again, until it is stopped."""

    def __init__(
        self,
        opens: Opens,
        view: str,
        every: float,
        *,
        on_data: Callable[[ScreenData], object],
        on_events: Callable[[Sequence[Observed]], object],
        on_trouble: Callable[[str], object],
    ) -> None:
        self._opens = opens
        self._every = every
        self.view = view
        self.zoom = ZOOMS[0]
        self._on_data = on_data
        self._on_events = on_events
        self._on_trouble = on_trouble
        self._stopped = threading.Event()
        self._wanted = threading.Event()
        self._fleet: Fleet | None = None
        self._thread = threading.Thread(target=self._run, name="top-reader", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def show(self, view: str) -> None:
        """Read this view from now on, at once."""
        self.view = view
        self._wanted.set()

    def refresh(self) -> None:
        """Read again at once."""
        self._wanted.set()

    def stop(self) -> None:
        """End soon; it does not wait for a store that does not answer."""
        self._stopped.set()
        self._wanted.set()

    def join(self, timeout: float) -> bool:
        """Whether it ended within this time."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._follow()
            except InterlockError as error:
                self._tell(str(error))
            except Exception as error:  # noqa: BLE001 - the screen shows it, and goes on
                self._tell(f"unexpected {type(error).__name__}: {error}")
            if not self._stopped.is_set():
                self._stopped.wait(AGAIN)

    def _tell(self, message: str) -> None:
        if not self._stopped.is_set():
            self._on_trouble(message)

    def _follow(self) -> None:
        fleet = self._opens()
        try:
            newest = fleet.store.read().revision
            with fleet.observe(after=max(0, newest - EARLIER)) as events:
                while not self._stopped.is_set():
                    pause = self._read(fleet)
                    self._wait(events, pause)
        finally:
            with suppress(Exception):
                fleet.close()

    def _read(self, fleet: Fleet) -> float:
        """Read the view; returns how long to pause."""
        self._wanted.clear()
        began = time.monotonic()
        data = read_screen(fleet, VIEWS[self.view], self.zoom)
        if not self._stopped.is_set():
            self._on_data(data)
        return max(LEAST_PAUSE, SHARE * (time.monotonic() - began))

    def _wait(self, events: Any, pause: float) -> None:  # noqa: ANN401 - a stream of either client
        """Wait for events or for the next reading; the events of a burst share one reading."""
        ends = time.monotonic() + max(self._every, pause)
        while not self._stopped.is_set() and not self._wanted.is_set():
            left = ends - time.monotonic()
            if left <= 0:
                return
            found = events.take(min(left, LEAST_PAUSE))
            if found:
                self._on_events(found)
                ends = min(ends, time.monotonic() + pause)


def perform(
    opens: Opens,
    requests: Sequence[Request],
    then: Callable[[list[tuple[bool, str]]], object],
) -> None:
    """Carry out requests in a thread of its own, with a client of its own.

    ``then`` gets for each whether it succeeded, and what it said.  After an error of the store the
    others are not tried: each of them would wait as long.
    """

    def work() -> None:
        done: list[tuple[bool, str]] = []
        try:
            with opens() as fleet:
                for request in requests:
                    try:
                        outcome = fleet.act(request)
                    except InterlockError as error:
                        if error.exit_status > 3:  # noqa: PLR2004 - the store is in trouble
                            raise
                        done.append((False, str(error)))
                    else:
                        good = int(getattr(outcome, "exit_status", 0)) == 0
                        done.append((good, render(outcome)))
        except Exception as error:  # noqa: BLE001 - the screen shows it, and goes on
            if len(done) < len(requests):
                done.append((False, str(error)))
        rest = len(requests) - len(done)
        then(done + [(False, "not tried, since the store failed")] * rest)

    threading.Thread(target=work, name="top-act", daemon=True).start()


def explain(opens: Opens, thing: str, word: str, then: Callable[[str], object]) -> None:
    """Find out in a thread of its own what blocks a thing (``why``), or its ``history``."""
    request = WhyRequest(thing=thing) if word == "why" else RecordExplain(thing=thing)
    perform(opens, [request], lambda done: then(done[0][1] if done else ""))
