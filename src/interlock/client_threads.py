"""Several threads that work on tasks at once, for handlers that block.

    fleet.tasks.serve(build, can=["rust"], concurrency=8)

Each thread has a worker of its own, and ends a task with the claim of the next one, as a single
worker does; of the threads without a task one waits, and the others wait for it.  The caller's
thread only listens, for signals and stop messages.  A thread can be neither killed nor interrupted,
so a second signal, or a second message, releases the tasks that are being worked on, which makes
``claim.lost`` true for their handlers, and does not wait for them.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from interlock.client_tasks import Claim
from interlock.client_worker import Worker, listening
from interlock.nouns.messages.stops import StopNotice
from interlock.nouns.tasks.worker import SignalListener, WorkerLoop, WorkerTeam, interrupt_main
from interlock.runtime.stoppable import SLICE
from interlock.threads import background

if TYPE_CHECKING:
    from interlock.client import Fleet


class WorkerThreads:
    """The threads of one worker."""

    def __init__(self, fleet: Fleet, worker_loop: WorkerLoop, count: int, *, signals: bool) -> None:
        self._fleet = fleet
        self._worker_loop = worker_loop
        self._signals = signals
        team = WorkerTeam()
        self._workers = [Worker(fleet, worker_loop.twin(team), signals=False) for _ in range(count)]
        self._left = count
        self._guard = threading.RLock()  # a signal handler may need it, too
        self._wake_ups: SimpleQueue[None] = SimpleQueue()  # a signal handler may put into it
        self._error: BaseException | None = None
        self._asked = 0

    def run(self, handler: Callable[[Claim], None]) -> None:
        """Have each thread call this for one claim after the other, until the worker stops."""
        with (
            SignalListener(self._on_signal, wanted=self._signals),
            listening(self._fleet, self._worker_loop, self._obey),
        ):
            for number, worker in enumerate(self._workers):
                work = partial(self._work, worker, handler)
                background(work, f"interlock-worker-{number}").start()
            try:
                while self._left:
                    with suppress(Empty):  # another thread may receive a signal, and not wake us
                        self._wake_ups.get(timeout=SLICE)
                    if self._worker_loop.reason:
                        self._stop()
            except BaseException:
                self._worker_loop.stop("its threads were left")
                self._stop()
                self._release()
                raise
        if self._error is not None:
            raise self._error

    def _work(self, worker: Worker, handler: Callable[[Claim], None]) -> None:
        """In a thread: work until the worker stops, or an error ends it, and with it the others."""
        try:
            worker.handle(handler)
        except BaseException as error:  # noqa: BLE001 - raised in the thread of the caller
            self._error = self._error or error
            self._worker_loop.stop(f"a thread of the worker failed: {error}")
        if worker.stopped:
            self._worker_loop.stop(worker.stopped)
        with self._guard:
            self._left -= 1
        self.look()

    def look(self) -> None:
        """Have the caller's thread see whether it is to stop, or is done."""
        self._wake_ups.put(None)

    def _stop(self) -> None:
        for worker in self._workers:
            worker.stop(self._worker_loop.reason)

    def _release(self) -> None:
        """Release what the threads work on."""
        for worker in self._workers:
            worker.release_current()

    def _obey(self, stop: StopNotice) -> None:
        """In the listening thread: the second message also ends the wait of the caller's thread."""
        second = self._worker_loop.handle_stop(stop)
        self.look()
        if second:
            self._asked = 1
            if not interrupt_main(self._on_signal):
                self._release()

    def _on_signal(self, number: int) -> None:
        self._asked += 1
        if self._asked > 1:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(128 + number)
        self._worker_loop.stop(signal.Signals(number).name)
        self.look()
