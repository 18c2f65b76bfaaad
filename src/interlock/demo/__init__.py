"""``interlock demo``: agents work on a graph of tasks, one agent is killed, and all work is done.

Everything here goes through the public API, with real processes, on any store.

worker.py    the tasks, and one agent that does them in a process of its own
scenario.py  the worker processes, and what happens to them in order
results.py   the result, counted in the record and compared with the guarantees
display.py   the screen: a table redrawn in place, or plain lines
"""

from __future__ import annotations

import io
import math
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from interlock.errors import BadInput, StoreTrouble

if TYPE_CHECKING:
    from interlock import Fleet
    from interlock.demo.results import DemoResult

INTERRUPTED = 130
PACE = 0.1
"""Seconds that a task takes when people watch."""
_PROBE = "latency"
"""The lock that is taken to see how long a commit takes."""
_TRIED_COMMITS = 3
_LONGEST_TTL = 30.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_demo(
    store: str | None = None,
    *,
    write: Callable[[object], object] | None = None,
    ttl: float = 2.0,
    workers: int = 8,
) -> int:
    """Run the demo and return the exit status.

    With ``write`` nothing is shown: the result is given to that function.

    The demo makes a store of its own and removes it: in a temporary folder, or, if a store is
    named, on the same disk or server.  A worker claims any task of its store, so the
    demo must not share one.
    """
    try:
        with _clean_exit_on_signals():
            result = _run(store, json=write is not None, ttl=ttl, workers=workers)
    except KeyboardInterrupt:
        message = "interrupted; all workers are ended"
        if write is not None:
            write({"error": "interrupted", "message": message})
        else:
            sys.stderr.write(f"interlock: {message}\n")
        return INTERRUPTED
    if write is not None:
        write(result)
    return 0 if result.outcome == "done" else 1


def _run(store: str | None, *, json: bool, ttl: float, workers: int) -> DemoResult:
    import interlock
    from interlock.demo import display, results
    from interlock.demo.scenario import Scenario, WorkerPool
    from interlock.demo.worker import CAPACITY, Ledger, WorkerJob, abilities, agent_names, plan

    if workers < 2:  # noqa: PLR2004 - one is killed, one takes over
        raise BadInput("the demo needs two workers or more")
    tasks = plan()
    with ExitStack() as stack:
        url = stack.enter_context(own_store(store))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="interlock-demo-"))
        fleet = stack.enter_context(interlock.connect(url, "demo", join=False))
        screen = display.Plain(io.StringIO()) if json else display.choose(tasks, workers)
        stack.callback(screen.close)
        job = WorkerJob(
            agent="",
            can=(),
            ledger=os.path.join(folder, "merged"),
            ttl=lasting_ttl(fleet, ttl, workers),
            pace=PACE * screen.leisure,
        )
        began = time.monotonic()
        pool = WorkerPool(folder, url)
        stack.callback(pool.close)
        screen.title(
            f"{workers} agents do {len(tasks)} tasks and share {CAPACITY} slots and a lock;"
            " one is killed."
        )
        observed = Scenario(fleet, pool, screen, job, tasks).run(workers)
        result = results.gather(
            observed,
            Ledger(job.ledger).lines(),
            fleet.record.log(limit=100_000, last=False),
            tasks,
            can={name: abilities(number) for number, name in enumerate(agent_names(workers))},
            ttl=job.ttl,
            verdicts=results.verdicts(fleet),
            grain=fleet.store.capabilities.grain,
            seconds=time.monotonic() - began,
        )
        screen.report(result)
        return result


def lasting_ttl(fleet: Fleet, ttl: float, workers: int) -> float:
    """The ttl for sessions that do not expire because the store is slow, or the machine is busy.

    Commits of all workers may come one after the other, and a session is renewed three times in
    its ttl: so it lasts for three commits of each worker, which take about twice as long as now
    when all of them work.
    """
    spans = []
    for _ in range(_TRIED_COMMITS):
        began = time.monotonic()
        fleet.locks.acquire(_PROBE)
        spans.append(time.monotonic() - began)
        fleet.locks.release(_PROBE)
    needed = 3 * workers * 2 * sorted(spans)[_TRIED_COMMITS // 2]
    return max(ttl, fleet.store.capabilities.min_ttl, min(math.ceil(needed), _LONGEST_TTL))


@contextmanager
def _clean_exit_on_signals() -> Iterator[None]:
    """Turn the first signal into an exception, so that workers end and folders are removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]

    def leave(number: int, _: FrameType | None) -> NoReturn:
        for other in handled:
            signal.signal(other, signal.SIG_IGN)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def own_store(store: str | None) -> Iterator[str]:
    """The URL of a new store: on the same server, on the same disk, or in a temporary folder."""
    from interlock.stores import file_of, is_git, is_network

    if store is not None and store.startswith("memory:"):
        raise BadInput("a store in memory is not shared between processes; name another, or none")
    if store is not None and is_git(store):
        from interlock.stores.git.store import temporary_branch

        with temporary_branch(store, "demo") as url:
            yield url
        return
    if store is not None and is_network(store):
        with _own_namespace(store) as url:
            yield url
        return
    if store is not None and ":" in store.partition("/")[0] and not store.startswith("sqlite:"):
        raise BadInput(
            "the demonstration runs on SQLite, Redis, etcd or git; name such a store, or none"
        )
    named = None if store is None else file_of(store)
    with _own_folder(None if named is None else os.path.dirname(named) or ".") as folder:
        yield os.path.join(folder, "store.db")


@contextmanager
def _own_namespace(url: str) -> Iterator[str]:
    from interlock.bench.engine import network

    engine = network(url, "demo")
    reached = True
    try:
        yield engine.fresh()
    except StoreTrouble:
        reached = False
        raise
    finally:
        if reached:
            with suppress(Exception):  # the error that ended the demo is the one to report
                engine.close()


def _own_folder(parent: str | None) -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="interlock-demo-", dir=parent)
    except OSError as error:
        raise BadInput(
            f"no folder can be made in {parent or tempfile.gettempdir()}: {error.strerror};"
            " name another store, or none"
        ) from None
