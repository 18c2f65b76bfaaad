"""One agent of the demo, a process of its own: claims the next task that it can do, and does it.

A task keeps the agent busy for a moment: a build in slots, a merge under the lock.  The agent that
fetches first asks a compiling agent a question, and alerts all agents when it is done.  The agent
that deploys, which comes last, asks all others to stop.

The worker reports on stdout, one JSON object a line, and takes orders from stdin, one word a line:
``go``, ``free`` (leave the trap) and ``stop`` (for an agent that missed the message).  When stdin
ends, the demo has ended or wants the worker to end: it gives back what it holds, and ends.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

import msgspec

import interlock
from interlock.client_messages import Message
from interlock.client_tasks import Claim
from interlock.demo import plan
from interlock.demo.plan import Ledger, TaskWork, WorkerJob, WorkerReport
from interlock.nouns.messages.query import Answered
from interlock.threads import background

LEAVING = 3.0
"""Seconds to give everything back; a store that does not answer must not keep the process."""
ANSWER = 30.0
"""Seconds to wait for an answer, which takes milliseconds."""
PHASE = "phase_complete"
"""The type of the alert that all agents subscribe to."""
QUESTION = "which Python do you compile with?"


class Orders:
    """The orders of the demo, read by a thread."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.free = threading.Event()
        self.stop = threading.Event()
        self.on_stop: Callable[[], None] = self.stop.set
        threading.Thread(target=self._listen, name="orders", daemon=True).start()

    def _listen(self) -> NoReturn:
        # Not sys.stdin: a thread inside of its buffer would trip up the interpreter's end.
        rest = b""
        while more := os.read(0, 100):
            *orders, rest = (rest + more).split(b"\n")
            for order in orders:
                getattr(self, order.decode()).set()
                if order == b"stop":
                    self.on_stop()
        main = threading.main_thread().ident
        assert main is not None  # noqa: S101 - it runs
        signal.pthread_kill(main, signal.SIGINT)
        time.sleep(LEAVING)
        os._exit(1)


class MessageReader:
    """The messages of one agent, read by a thread; the worker itself sees a stop."""

    def __init__(self, fleet: interlock.Fleet, can: tuple[str, ...]) -> None:
        fleet.messages.subscribe(PHASE)
        self._messages = fleet.messages.recv(can=can)
        self._thread = background(self._listen, "reader")
        self._thread.start()

    def close(self) -> None:
        """Stop reading."""
        self._messages.close()
        self._thread.join()

    def _listen(self) -> None:
        for message in self._messages:
            self._read(message)

    def _read(self, message: Message) -> None:
        if message.kind == "alert":
            report("heard", seconds=time.monotonic() - message.data["at"])
        elif message.kind == "query":
            message.reply(platform.python_version())


class DemoWorker:
    """The tasks of one agent."""

    def __init__(self, job: WorkerJob, orders: Orders) -> None:
        self._job = job
        self._orders = orders
        self._ledger = Ledger(job.ledger)

    def work(self) -> None:
        """Do task after task until a stop, in a new session when one expires."""
        stopped = ""
        while not stopped:
            job = self._job
            with interlock.connect(os.environ[plan.STORE], job.agent, ttl=job.ttl) as fleet:
                fleet.agents.status("idle", can=job.can)
                reader = MessageReader(fleet, job.can)
                report("ready")
                self._orders.go.wait()
                try:
                    stopped = self._until_stopped(fleet)
                except (interlock.Lapsed, interlock.Lost):
                    report("lost")
                finally:
                    reader.close()
        report("done", text=stopped)

    def _until_stopped(self, fleet: interlock.Fleet) -> str:
        """Work, and return the reason for the stop."""
        worker = fleet.tasks.work(can=self._job.can, stop_on_signals=False)
        self._orders.on_stop = lambda: worker.stop("the demo is over")
        if self._orders.stop.is_set():
            self._orders.on_stop()
        for claim in worker:
            with claim:
                self._do(fleet, claim)
            if claim.ended == "lost":
                raise claim.over()
            if claim.ended == "completed":
                self._notify(fleet, claim.task)
        return worker.stopped

    def _do(self, fleet: interlock.Fleet, claim: Claim) -> None:
        work = msgspec.convert(claim.data, TaskWork)
        report("working", claim)
        if work.slots:
            self._build(fleet, claim, work)
        elif work.stage == "merge":
            self._merge(fleet, claim)
        else:
            if claim.task == plan.FIRST:
                self._query(fleet)
            self._spend()

    def _query(self, fleet: interlock.Fleet) -> None:
        began = time.monotonic()
        outcome = fleet.messages.query(f"?{plan.COMPILER}", QUESTION, timeout=ANSWER)
        if isinstance(outcome, Answered):
            report("answered", text=outcome.answer, seconds=time.monotonic() - began)

    def _notify(self, fleet: interlock.Fleet, task: str) -> None:
        if task == plan.FIRST:
            fleet.messages.alert(PHASE, {"phase": task, "at": time.monotonic()})
        if task == plan.LAST:
            here = {each.agent for each in fleet.agents.list() if each.state == "alive"}
            for agent in sorted(here - {self._job.agent}):
                fleet.messages.stop(agent, "all is deployed")

    def _build(self, fleet: interlock.Fleet, claim: Claim, work: TaskWork) -> None:
        with fleet.slots(plan.SEMAPHORE, weight=work.slots, capacity=plan.CAPACITY) as held:
            report("building", claim, slots=work.slots)
            self._spend()
            if work.trap and not self._orders.free.is_set():
                report("staying", claim, slots=work.slots)
                while not (held.lost or self._orders.free.wait(self._job.ttl / 20)):
                    pass
            if not held.lost:
                report("built", claim)

    def _merge(self, fleet: interlock.Fleet, claim: Claim) -> None:
        """Add a line to the ledger, unless an earlier attempt did so and was lost after that."""
        with fleet.lock(plan.LOCK) as held:
            before = self._ledger.lines()
            self._spend()
            if claim.task not in (line.task for line in before):
                self._ledger.write(len(before) + 1, token=held.token, task=claim.task)

    def _spend(self) -> None:
        """Be busy; a real agent takes minutes."""
        time.sleep(self._job.pace)


def report(
    state: str,
    claim: Claim | None = None,
    *,
    slots: int = 0,
    seconds: float = 0.0,
    text: str = "",
) -> None:
    """Write a report in one call, which another thread cannot split.

    Its time is comparable: all processes of a machine read one monotonic clock.
    """
    line = WorkerReport(
        state=state,
        at=time.monotonic(),
        task=claim.task if claim else "",
        attempt=claim.attempt if claim else 0,
        token=claim.token if claim else 0,
        slots=slots,
        seconds=seconds,
        text=text,
    )
    os.write(1, plan.encode(line) + b"\n")


def main(job: str) -> int:
    """Do the job; an error is one line on stderr."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the demo may have ignored it
    try:
        DemoWorker(plan.decode_job(job), Orders()).work()
    except (KeyboardInterrupt, BrokenPipeError):  # the demo has ended
        return 1
    except interlock.InterlockError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
