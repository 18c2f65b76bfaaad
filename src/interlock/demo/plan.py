"""The work of the demo, one release of a shop; and the messages between the demo and its workers.

    fetch ─┬─> lint/M ──────────────┐
           └─> build/M ──> test/M ──┴─> merge/M ──(all)──┬─> package ─┬─> deploy
                                                         └─> notes ───┘

for each of 14 modules M; a module is built after the modules that it imports.  A build takes slots,
a merge takes the lock.  One build is a trap: its worker stays in the middle of it until the demo
has killed that worker; the next attempt just does it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from typing import ClassVar

import msgspec
from msgspec import Struct

from interlock.errors import InterlockError

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


class DemoFailed(InterlockError):
    """The demo cannot continue; the message gives the reason."""

    code: ClassVar[str] = "failed"
    exit_status: ClassVar[int] = 1

    def __init__(self, why: str) -> None:
        super().__init__(f"the demo failed: {why}")


class Merge(Struct, frozen=True):
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

    def lines(self) -> list[Merge]:
        """Every merge, in order."""
        try:
            with open(self._path, encoding="ascii") as file:
                return _merges(file.read())
        except FileNotFoundError:
            return []


def _merges(text: str) -> list[Merge]:
    fields = (line.split() for line in text.splitlines())
    return [Merge(int(count), int(token), task) for count, token, task in fields]


encode = msgspec.json.encode
decode_job = msgspec.json.Decoder(WorkerJob).decode
decode_report = msgspec.json.Decoder(WorkerReport).decode
