"""One agent of the demo, a process of its own: claims the next task that it can do, and does it.

To do it is to be busy for a moment: a build in slots, a merge under the lock, the rest just so.

It reports what it does on stdout, one JSON object a line, and takes orders from stdin, one word a
line: ``go``, ``free`` (whoever is in the trap goes on) and ``stop``.  When stdin ends, the demo is
gone or wants us gone: the worker gives back what it has, and ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import NoReturn

import msgspec

import interlock
from interlock.core.task import Claimed
from interlock.demo.ledger import Ledger
from interlock.demo.plan import CAPACITY, LOCK, SEMAPHORE, Work
from interlock.demo.protocol import STORE, Job, Said, decode_job, encode

LEAVING = 3.0
"""Seconds to give everything back; a store that is away must not keep us."""
WAIT = 0.5
"""Seconds to wait for a task before looking whether the demo is over."""


class Orders:
    """What the demo told us, heard by a thread."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.free = threading.Event()
        self.stop = threading.Event()
        threading.Thread(target=self._listen, name="orders", daemon=True).start()

    def _listen(self) -> NoReturn:
        # Not sys.stdin: a thread inside of its buffer would trip up the interpreter's end.
        heard = b""
        while more := os.read(0, 100):
            *words, heard = (heard + more).split(b"\n")
            for word in words:
                getattr(self, word.decode()).set()
        main = threading.main_thread().ident
        assert main is not None  # noqa: S101 - it runs
        signal.pthread_kill(main, signal.SIGINT)
        time.sleep(LEAVING)
        os._exit(1)


class Worker:
    """The tasks of one agent."""

    def __init__(self, job: Job, orders: Orders) -> None:
        self._job = job
        self._orders = orders
        self._ledger = Ledger(job.ledger)

    def work(self) -> None:
        """Task after task until told to stop, with a new session should ours lapse."""
        while not self._orders.stop.is_set():
            job = self._job
            with interlock.connect(os.environ[STORE], job.agent, ttl=job.ttl) as fleet:
                say("ready")
                self._orders.go.wait()
                try:
                    while not self._orders.stop.is_set():
                        claim = fleet.tasks.next(can=job.can, wait=WAIT)
                        if isinstance(claim, Claimed):
                            self._do(fleet, claim)
                except (interlock.Lapsed, interlock.Lost):
                    say("lost")
        say("done")

    def _do(self, fleet: interlock.Fleet, claim: Claimed) -> None:
        work = msgspec.convert(claim.data, Work)
        say("working", claim)
        if work.slots:
            self._build(fleet, claim, work)
        elif work.stage == "merge":
            self._merge(fleet, claim)
        else:
            self._spend()
        fleet.tasks.complete(claim.task, token=claim.token)

    def _build(self, fleet: interlock.Fleet, claim: Claimed, work: Work) -> None:
        with fleet.slots(SEMAPHORE, weight=work.slots, capacity=CAPACITY) as held:
            say("building", claim, slots=work.slots)
            self._spend()
            if work.trap and not self._orders.free.is_set():
                say("staying", claim, slots=work.slots)
                while not (held.lost or self._orders.free.wait(self._job.ttl / 20)):
                    pass
            if not held.lost:
                say("built", claim)

    def _merge(self, fleet: interlock.Fleet, claim: Claimed) -> None:
        """Add a line to the list, unless somebody did so who was lost right after that."""
        with fleet.lock(LOCK) as held:
            before = self._ledger.lines()
            self._spend()
            if claim.task not in (line.task for line in before):
                self._ledger.write(len(before) + 1, token=held.token, task=claim.task)

    def _spend(self) -> None:
        """Be busy; what a real agent does takes minutes."""
        time.sleep(self._job.pace)


def say(state: str, claim: Claimed | None = None, *, slots: int = 0) -> None:
    """Tell the demo, with the time, which all processes of a machine read off one clock."""
    said = Said(state=state, at=time.monotonic(), slots=slots)
    if claim is not None:
        said = msgspec.structs.replace(
            said, task=claim.task, attempt=claim.attempt, token=claim.token or 0
        )
    os.write(1, encode(said) + b"\n")


def main(job: str) -> int:
    """Do the job; trouble is one line on stderr."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # our parent may have ignored it
    try:
        Worker(decode_job(job), Orders()).work()
    except (KeyboardInterrupt, BrokenPipeError):  # nobody is there any more
        return 1
    except interlock.InterlockError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
