"""See it work: agents do a graph of tasks, one is killed in the middle of one, and all gets done.

Everything here goes through the public API, with real processes, on any store.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from interlock.errors import BadInput

if TYPE_CHECKING:
    from interlock.demo.facts import Facts

INTERRUPTED = 130
PACE = 0.1
"""Seconds that a task takes when people watch."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_demo(
    store: str | None = None,
    *,
    write: Callable[[object], object] | None = None,
    ttl: float = 2.0,
    workers: int = 8,
) -> int:
    """Show agents that do a graph of tasks, a crash, and who takes over; returns the status.

    With ``write`` nothing is shown, and what came of it is given to that.

    It makes a store of its own and removes it: in a temporary folder, or, if a store is named, on
    the disk or the server where that is.  So nobody's work is touched, and nothing is left.
    """
    try:
        with _polite_signals():
            facts = _run(store, json=write is not None, ttl=ttl, workers=workers)
    except KeyboardInterrupt:
        message = "interrupted; all workers are ended"
        if write is not None:
            write({"error": "interrupted", "message": message})
        else:
            sys.stderr.write(f"interlock: {message}\n")
        return INTERRUPTED
    if write is not None:
        write(facts)
    return 0 if facts.outcome == "done" else 1


def _run(store: str | None, *, json: bool, ttl: float, workers: int) -> Facts:
    import interlock
    from interlock.demo import crew, display, facts, report
    from interlock.demo.ledger import Ledger
    from interlock.demo.place import place
    from interlock.demo.plan import CAPACITY, abilities, plan
    from interlock.demo.play import Play
    from interlock.demo.protocol import Job

    if workers < 2:  # noqa: PLR2004 - one dies, one takes over
        raise BadInput("the demo needs two workers or more")
    steps = plan()
    with ExitStack() as stack:
        url = stack.enter_context(place(store))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="interlock-demo-"))
        fleet = stack.enter_context(interlock.connect(url, "demo", join=False))
        screen: display.Silent = display.Silent() if json else display.choose(steps, workers)
        stack.callback(screen.close)
        job = Job(
            agent="",
            can=(),
            ledger=os.path.join(folder, "merged"),
            ttl=max(ttl, fleet.store.capabilities.min_ttl),
            pace=PACE * screen.leisure,
        )
        began = time.monotonic()
        agents = crew.Crew(folder, url)
        stack.callback(agents.end)
        screen.title(
            f"{workers} agents do {len(steps)} tasks and share {CAPACITY} slots and a lock;"
            " one is killed."
        )
        seen = Play(fleet, agents, screen, job, steps).perform(workers)
        result = facts.gather(
            seen,
            Ledger(job.ledger).lines(),
            fleet.record.log(limit=100_000, last=False),
            steps,
            can={name: abilities(number) for number, name in enumerate(crew.names(workers))},
            ttl=job.ttl,
            verdicts=report.verdicts(fleet),
            grain=fleet.store.capabilities.grain,
            seconds=time.monotonic() - began,
        )
        screen.report(result)
        return result


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
