"""One agent of the demo, a process of its own: builds in its slots, then merges under the lock.

To build is to be at work for a moment; to merge is to add one to the count.

It reports what it does on stdout, one JSON object a line, and takes orders from stdin, one word a
line: ``go``, ``stay`` (in the next turn, keep slots and lock and never write) and ``stop``.  When
stdin ends, the demo is gone or wants us gone: the worker gives back what it has, and ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import NoReturn

import interlock
from interlock.client import Block
from interlock.demo.ledger import Ledger
from interlock.demo.protocol import STORE, Job, Said, decode_job, encode

STAYS = 2
"""Slots of the one that stays: too many for others to go on beside it."""
LEAVING = 3.0
"""Seconds to give everything back; a store that is away must not keep us."""


class Orders:
    """What the demo told us, heard by a thread."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.stay = threading.Event()
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
    """The turns of one agent."""

    def __init__(self, job: Job, orders: Orders) -> None:
        self._job = job
        self._orders = orders
        self._ledger = Ledger(job.ledger)
        self._pause = threading.Event()

    def work(self) -> None:
        """Turn after turn until told to stop, with a new session should ours lapse."""
        while not self._orders.stop.is_set():
            job = self._job
            with interlock.connect(os.environ[STORE], job.agent, ttl=job.ttl) as fleet:
                say("ready", session=fleet.session)
                self._orders.go.wait()
                try:
                    while not self._orders.stop.is_set():
                        self._turn(fleet)
                except (interlock.Lapsed, interlock.Lost):
                    say("lost")
        say("done")

    def _turn(self, fleet: interlock.Fleet) -> None:
        if self._orders.stay.is_set():
            with self._slots(fleet, STAYS):
                say("building", weight=STAYS)
                self._merge(fleet, staying=True)
            return
        say("queueing")
        with self._slots(fleet, self._job.weight) as held:
            say("building", weight=self._job.weight)
            self._pause.wait(self._job.pace)
            if not held.lost:
                say("built")
        self._merge(fleet, staying=False)

    def _slots(self, fleet: interlock.Fleet, weight: int) -> Block:
        return fleet.slots(self._job.semaphore, weight=weight, capacity=self._job.capacity)

    def _merge(self, fleet: interlock.Fleet, *, staying: bool) -> None:
        job = self._job
        say("waiting")
        with fleet.lock(job.lock) as held:
            stale = (
                held.outcome.reclaimed_from if isinstance(held.outcome, interlock.Reclaimed) else ""
            )
            say("holding", token=held.token, reclaimed_from=stale)
            count = self._ledger.count()
            self._pause.wait(job.pace)
            if staying:
                say("staying", token=held.token, count=count)
                while not held.lost:
                    self._pause.wait(job.ttl / 20)
            elif self._ledger.write(count + 1, token=held.token, agent=job.agent):
                say("wrote", token=held.token, count=count + 1)


def say(
    state: str,
    *,
    token: int = 0,
    count: int = 0,
    weight: int = 0,
    reclaimed_from: str = "",
    session: str = "",
) -> None:
    """Tell the demo, with the time, which all processes of a machine read off one clock."""
    said = Said(
        state=state,
        at=time.monotonic(),
        token=token,
        count=count,
        weight=weight,
        reclaimed_from=reclaimed_from,
        session=session,
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
