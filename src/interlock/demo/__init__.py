"""See it work: agents share a lock and slots, one is killed while it has both, and both move on.

Everything here goes through the public API, with real processes, on any store.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from interlock.errors import BadInput, InterlockError

if TYPE_CHECKING:
    import interlock
    from interlock.demo.crew import Crew
    from interlock.demo.facts import Facts

LOCK = "merge"
SEMAPHORE = "builds"
CAPACITY = 3
INTERRUPTED = 130
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_demo(
    store: str | None = None, *, json: bool = False, ttl: float = 2.0, workers: int = 8
) -> int:
    """Show agents that share a lock and slots, a crash, and who takes over; returns the status.

    Without a store it makes one in a temporary folder and removes it.  On a given store it uses a
    lock and a semaphore of its own, so that nobody is disturbed, and leaves nothing there but its
    record.
    """
    try:
        with _polite_signals():
            facts = _run(store, json=json, ttl=ttl, workers=workers)
    except KeyboardInterrupt:
        message = "interrupted; all workers are ended"
        if json:
            _print({"error": "interrupted", "message": message})
        else:
            sys.stderr.write(f"interlock: {message}\n")
        return INTERRUPTED
    if json:
        _print(facts)
    return 0 if facts.outcome == "done" else 1


def _run(store: str | None, *, json: bool, ttl: float, workers: int) -> Facts:
    import interlock
    from interlock.demo import display, facts, report
    from interlock.demo.crew import Crew
    from interlock.demo.ledger import Ledger
    from interlock.demo.play import PACE, Play
    from interlock.demo.protocol import Job

    if workers < 2:  # noqa: PLR2004 - one dies, one takes over
        raise BadInput("the demo needs two workers or more")
    if store is not None and store.startswith("memory:"):
        raise BadInput("a store in memory is not shared between processes; name another, or none")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="interlock-demo-"))
        url = store or os.path.join(folder, "store.db")
        place = "" if store is None else f"demo/{os.urandom(4).hex()}/"
        lock, semaphore = place + LOCK, place + SEMAPHORE
        fleet = stack.enter_context(interlock.connect(url))
        before = facts.latest(fleet)
        job = Job(
            agent="",
            lock=lock,
            semaphore=semaphore,
            capacity=CAPACITY,
            weight=1,
            ledger=os.path.join(folder, "count"),
            ttl=max(ttl, fleet.store.capabilities.min_ttl),
            pace=PACE,
        )
        began = time.monotonic()
        screen: display.Silent = display.Silent() if json else display.choose(fleet, lock, workers)
        stack.callback(screen.close)
        crew = Crew(folder, url)
        stack.callback(_bury, fleet, crew, semaphore)
        stack.callback(crew.end)
        screen.title(
            f"{workers} agents share a lock and {CAPACITY} slots;"
            " one is killed with both. See what happens."
        )
        seen = Play(fleet, crew, screen, job, workers).perform()
        result = facts.gather(
            seen,
            Ledger(job.ledger).lines(),
            facts.record(fleet, before, (f"lock/{lock}", f"sem/{semaphore}"), crew.sessions()),
            workers=workers,
            ttl=job.ttl,
            capacity=CAPACITY,
            verdicts=report.verdicts(fleet),
            grain=fleet.store.capabilities.grain,
            seconds=time.monotonic() - began,
        )
        screen.report(result)
        return result


def _bury(fleet: interlock.Fleet, crew: Crew, semaphore: str) -> None:
    """End the sessions of whoever could not leave, with all that they hold, and our semaphore."""
    from interlock.driving import drive
    from interlock.services.runner import Who

    desk = fleet.calls.desk
    with suppress(InterlockError):  # a store that is away: it all lapses by itself
        for session in crew.sessions(left=False):
            drive(desk.sessions.leave(Who("demo", session)), fleet.store)
        drive(desk.semaphores.remove(Who("demo"), semaphore), fleet.store)


@contextmanager
def _polite_signals() -> Iterator[None]:
    """When asked to leave by a signal, end the workers and remove the folder; once is enough."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]

    def leave(number: int, _: FrameType | None) -> NoReturn:
        for other in asked:
            signal.signal(other, signal.SIG_IGN)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in asked}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print(value: object) -> None:
    import msgspec

    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()
