"""One agent of the demo, a process of its own: claims the next task that it can do, and does it.

To do it is to be busy for a moment: a build in slots, a merge under the lock, the rest just so.
Whoever fetches asks somebody who compiles a question first, and tells all when it is done.  Whoever
deploys, which comes last, asks all others to stop.

It reports what it does on stdout, one JSON object a line, and takes orders from stdin, one word a
line: ``go``, ``free`` (whoever is in the trap goes on) and ``stop`` (for who heard of no other).
When stdin ends, the demo is gone or wants us gone: the worker gives back what it has, and ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

import msgspec

import interlock
from interlock.client_work import Claim
from interlock.demo.ledger import Ledger
from interlock.demo.mail import PHASE, QUESTION, Mail
from interlock.demo.plan import CAPACITY, COMPILER, FIRST, LAST, LOCK, SEMAPHORE, Work
from interlock.demo.protocol import STORE, Job, Said, decode_job, encode
from interlock.nouns.messages.query_rules import Answered

LEAVING = 3.0
"""Seconds to give everything back; a store that is away must not keep us."""
ANSWER = 30.0
"""Seconds to wait for an answer; it comes in milliseconds."""


class Orders:
    """What the demo told us, heard by a thread."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.free = threading.Event()
        self.stop = threading.Event()
        self.on_stop: Callable[[], None] = self.stop.set
        threading.Thread(target=self._listen, name="orders", daemon=True).start()

    def _listen(self) -> NoReturn:
        # Not sys.stdin: a thread inside of its buffer would trip up the interpreter's end.
        heard = b""
        while more := os.read(0, 100):
            *words, heard = (heard + more).split(b"\n")
            for word in words:
                getattr(self, word.decode()).set()
                if word == b"stop":
                    self.on_stop()
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
        stopped = ""
        while not stopped:
            job = self._job
            with interlock.connect(os.environ[STORE], job.agent, ttl=job.ttl) as fleet:
                fleet.agents.status("idle", can=job.can)
                mail = Mail(fleet, job.can, tell)
                say("ready")
                self._orders.go.wait()
                try:
                    stopped = self._until_stopped(fleet)
                except (interlock.Lapsed, interlock.Lost):
                    say("lost")
                finally:
                    mail.close()
        say("done", text=stopped)

    def _until_stopped(self, fleet: interlock.Fleet) -> str:
        """Work, and return why no more."""
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
                self._tell_others(fleet, claim.task)
        return worker.stopped

    def _do(self, fleet: interlock.Fleet, claim: Claim) -> None:
        work = msgspec.convert(claim.data, Work)
        say("working", claim)
        if work.slots:
            self._build(fleet, claim, work)
        elif work.stage == "merge":
            self._merge(fleet, claim)
        else:
            if claim.task == FIRST:
                self._ask(fleet)
            self._spend()

    def _ask(self, fleet: interlock.Fleet) -> None:
        """Ask whoever can compile, and say what came of it."""
        began = time.monotonic()
        outcome = fleet.messages.query(f"?{COMPILER}", QUESTION, timeout=ANSWER)
        if isinstance(outcome, Answered):
            say("answered", text=outcome.answer, seconds=time.monotonic() - began)

    def _tell_others(self, fleet: interlock.Fleet, task: str) -> None:
        if task == FIRST:
            fleet.messages.alert(PHASE, {"phase": task, "at": time.monotonic()})
        if task == LAST:
            here = {each.agent for each in fleet.agents.list() if each.state == "alive"}
            for agent in sorted(here - {self._job.agent}):
                fleet.messages.stop(agent, "all is deployed")

    def _build(self, fleet: interlock.Fleet, claim: Claim, work: Work) -> None:
        with fleet.slots(SEMAPHORE, weight=work.slots, capacity=CAPACITY) as held:
            say("building", claim, slots=work.slots)
            self._spend()
            if work.trap and not self._orders.free.is_set():
                say("staying", claim, slots=work.slots)
                while not (held.lost or self._orders.free.wait(self._job.ttl / 20)):
                    pass
            if not held.lost:
                say("built", claim)

    def _merge(self, fleet: interlock.Fleet, claim: Claim) -> None:
        """Add a line to the list, unless somebody did so who was lost right after that."""
        with fleet.lock(LOCK) as held:
            before = self._ledger.lines()
            self._spend()
            if claim.task not in (line.task for line in before):
                self._ledger.write(len(before) + 1, token=held.token, task=claim.task)

    def _spend(self) -> None:
        """Be busy; what a real agent does takes minutes."""
        time.sleep(self._job.pace)


def say(
    state: str,
    claim: Claim | None = None,
    *,
    slots: int = 0,
    seconds: float = 0.0,
    text: str = "",
) -> None:
    """Tell the demo, with the time, which all processes of a machine read off one clock."""
    said = Said(state=state, at=time.monotonic(), slots=slots, seconds=seconds, text=text)
    if claim is not None:
        said = msgspec.structs.replace(
            said, task=claim.task, attempt=claim.attempt, token=claim.token
        )
    tell(said)


def tell(said: Said) -> None:
    """The same, in a line that no other thread can break."""
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
