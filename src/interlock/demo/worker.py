"""The work of the demo, one release of a shop, and one agent that does it in its own process.

    fetch ─┬─> lint/M ──────────────┐
           └─> build/M ──> test/M ──┴─> merge/M ──(all)──┬─> package ─┬─> deploy
                                                         └─> notes ───┘

for each of 14 modules M; a module is built after the modules that it imports.  A build takes slots,
a merge takes the lock.  One build is a trap: its worker stays in the middle of it until the demo
has killed that worker; the next attempt just does it.  The agent that fetches first asks a
compiling agent a question, and alerts all agents when it is done.  The agent that deploys, which
comes last, asks all others to stop.

A worker reports on stdout, one JSON object a line, and takes orders from stdin, one word a line:
``go``, ``free`` (leave the trap) and ``stop`` (for an agent that missed the message).  When stdin
ends, the demo has ended or wants the worker to end: it gives back what it holds, and ends.
"""

from __future__ import annotations

import fcntl
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import ClassVar, NoReturn

import msgspec
from msgspec import Struct

import interlock
from interlock.client_messages import Message
from interlock.client_tasks import Claim
from interlock.threads import background

LOCK = "merge"
SEMAPHORE = "builds"
CAPACITY = 3
MODULES: dict[str, tuple[str, ...]] = {
    "users": (),
    "prices": (),
    "stock": (),
    "images": (),
    "mail": (),
    "search": (),
    "login": ("users",),
    "payments": ("users",),
    "cart": ("prices", "stock"),
    "catalog": ("images", "stock"),
    "orders": ("cart", "users"),
    "invoices": ("orders", "mail"),
    "shipping": ("orders",),
    "reports": ("orders", "stock"),
}
"""The imports of each module, all of them earlier in this table."""
URGENT = "payments"
TRAP = "build/search"
FIRST, LAST = "fetch", "deploy"
COMPILER, DEPLOY = "compiler", "deploy"
STAGES = ("fetch", "lint", "build", "test", "merge", "ship")
AGENTS = ("ada", "bob", "cleo", "dan", "eve", "finn", "gus", "hana")
STORE = "INTERLOCK_STORE"
"""The variable with the store of a worker: a URL may hold a password, and argv is public."""
LEAVING = 3.0
"""Seconds to give everything back; a store that does not answer must not keep the process."""
ANSWER = 30.0
"""Seconds to wait for an answer, which takes milliseconds."""
PHASE = "phase_complete"
"""The type of the alert that all agents subscribe to."""
QUESTION = "which Python do you compile with?"


class TaskWork(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The data of a task."""

    stage: str
    slots: int = 0
    trap: bool = False


class PlannedTask(Struct, frozen=True, kw_only=True):
    """One task of the graph."""

    task: str
    work: TaskWork
    needs: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    priority: int = 5


def plan() -> tuple[PlannedTask, ...]:
    """All tasks, each after the tasks that it needs."""
    merges = tuple(f"merge/{module}" for module in MODULES)
    ship = TaskWork(stage="ship")
    return (
        PlannedTask(task=FIRST, work=TaskWork(stage="fetch")),
        *(task for module in MODULES for task in _module(module)),
        PlannedTask(task="package", work=ship, needs=merges, requires=(COMPILER,)),
        PlannedTask(task="notes", work=ship, needs=merges),
        PlannedTask(task=LAST, work=ship, needs=("package", "notes"), requires=(DEPLOY,)),
    )


def _module(module: str) -> Iterator[PlannedTask]:
    build, trap = f"build/{module}", f"build/{module}" == TRAP
    imported = tuple(f"build/{other}" for other in MODULES[module])
    building = TaskWork(stage="build", slots=2 if trap else 1, trap=trap)
    for work, needs, requires in (
        (TaskWork(stage="lint"), (FIRST,), ()),
        (building, (FIRST, *imported), (COMPILER,)),
        (TaskWork(stage="test"), (build,), ()),
        (TaskWork(stage="merge"), (f"lint/{module}", f"test/{module}"), ()),
    ):
        yield PlannedTask(
            task=f"{work.stage}/{module}",
            work=work,
            needs=needs,
            requires=requires,
            priority=1 if module == URGENT else 5,
        )


def agent_names(count: int) -> tuple[str, ...]:
    """The names of this many agents."""
    return (*AGENTS[:count], *(f"w{number}" for number in range(len(AGENTS) + 1, count + 1)))


def abilities(number: int) -> tuple[str, ...]:
    """The abilities of one agent; two agents have each of them, so that one may die."""
    compiles = (COMPILER,) if number % 4 < 3 else ()  # noqa: PLR2004 - three of four
    return (*compiles, DEPLOY) if number < 2 else compiles  # noqa: PLR2004 - the first two


class WorkerJob(Struct, frozen=True, kw_only=True):
    """The only argument of a worker process, as JSON."""

    agent: str
    can: tuple[str, ...]
    ledger: str
    ttl: float
    pace: float


class WorkerReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker just did, and when by the monotonic clock; one line of JSON on its stdout."""

    state: str
    at: float
    task: str = ""
    attempt: int = 0
    token: int = 0
    slots: int = 0
    seconds: float = 0.0
    text: str = ""


class DemoFailed(interlock.InterlockError):
    """The demo cannot continue; the message gives the reason."""

    code: ClassVar[str] = "failed"
    exit_status: ClassVar[int] = 1

    def __init__(self, why: str) -> None:
        super().__init__(f"the demo failed: {why}")


class LedgerLine(Struct, frozen=True):
    """A merge that the ledger accepted: its number, the token of the lock, and the task."""

    count: int
    token: int
    task: str


class Ledger:
    """What the lock protects: a file with one numbered line for each merge.

    An agent reads how many lines there are, works for a moment, and writes the next line.  Without
    the lock two agents would write the same number.  The file refuses a write whose fencing token
    is older than the latest, as every system behind a lock should; its file lock makes that
    comparison and the write one step, and nothing more.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, count: int, *, token: int, task: str) -> bool:
        """Add a line, unless the file has a later token."""
        with open(self._path, "a+", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            if any(line.token > token for line in _merges(file.read())):
                return False
            os.write(file.fileno(), f"{count} {token} {task}\n".encode())
            return True

    def lines(self) -> list[LedgerLine]:
        """Every merge, in order."""
        try:
            with open(self._path, encoding="ascii") as file:
                return _merges(file.read())
        except FileNotFoundError:
            return []


def _merges(text: str) -> list[LedgerLine]:
    fields = (line.split() for line in text.splitlines())
    return [LedgerLine(int(count), int(token), task) for count, token, task in fields]


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
            with interlock.connect(os.environ[STORE], job.agent, ttl=job.ttl) as fleet:
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
            if claim.task == FIRST:
                self._query(fleet)
            self._spend()

    def _query(self, fleet: interlock.Fleet) -> None:
        began = time.monotonic()
        outcome = fleet.messages.query(f"?{COMPILER}", QUESTION, timeout=ANSWER)
        if isinstance(outcome, interlock.QueryAnswered):
            report("answered", text=outcome.answer, seconds=time.monotonic() - began)

    def _notify(self, fleet: interlock.Fleet, task: str) -> None:
        if task == FIRST:
            fleet.messages.alert(PHASE, {"phase": task, "at": time.monotonic()})
        if task == LAST:
            here = {each.agent for each in fleet.agents.list() if each.state == "alive"}
            for agent in sorted(here - {self._job.agent}):
                fleet.messages.stop(agent, "all is deployed")

    def _build(self, fleet: interlock.Fleet, claim: Claim, work: TaskWork) -> None:
        with fleet.slots(SEMAPHORE, weight=work.slots, capacity=CAPACITY) as held:
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
        with fleet.lock(LOCK) as held:
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
    os.write(1, msgspec.json.encode(line) + b"\n")


def main(job: str) -> int:
    """Do the job; an error is one line on stderr."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the demo may have ignored it
    try:
        DemoWorker(msgspec.json.decode(job, type=WorkerJob), Orders()).work()
    except (KeyboardInterrupt, BrokenPipeError):  # the demo has ended
        return 1
    except interlock.InterlockError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
