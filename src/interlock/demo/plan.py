"""The work of the demo: one release of a shop, a graph of 60 tasks.

    fetch ─┬─> lint/M ──────────────┐
           └─> build/M ──> test/M ──┴─> merge/M ──(all)──┬─> package ─┬─> deploy
                                                         └─> notes ───┘

for each of 14 modules M; what a module imports is built before it.  A build takes slots, a merge
takes the lock.  One build is a trap: whoever does it stays in the middle until the demo has killed
it there; whoever does it after that just does it.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Struct

import interlock
from interlock.demo.protocol import Failed
from interlock.nouns.tasks.task import Published

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
"""What each imports; only what stands above it."""
URGENT = "payments"
TRAP = "build/search"
FIRST, LAST = "fetch", "deploy"
COMPILER, DEPLOY = "compiler", "deploy"
STAGES = ("fetch", "lint", "build", "test", "merge", "ship")
RETRIES = 100
"""A machine that stands still for long makes many lose a task that did nothing wrong."""


class Work(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What there is to do, as the data of a task say it."""

    stage: str
    slots: int = 0
    trap: bool = False


class Step(Struct, frozen=True, kw_only=True):
    """One task."""

    task: str
    work: Work
    needs: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    priority: int = 5


def plan() -> tuple[Step, ...]:
    """All tasks, each after what it needs."""
    merges = tuple(f"merge/{module}" for module in MODULES)
    ship = Work(stage="ship")
    return (
        Step(task=FIRST, work=Work(stage="fetch")),
        *(step for module in MODULES for step in _module(module)),
        Step(task="package", work=ship, needs=merges, requires=(COMPILER,)),
        Step(task="notes", work=ship, needs=merges),
        Step(task=LAST, work=ship, needs=("package", "notes"), requires=(DEPLOY,)),
    )


def abilities(number: int) -> tuple[str, ...]:
    """What an agent can do; two can do each thing, so that one may die."""
    compiles = (COMPILER,) if number % 4 < 3 else ()  # noqa: PLR2004 - three of four
    return (*compiles, DEPLOY) if number < 2 else compiles  # noqa: PLR2004 - the first two


def publish(fleet: interlock.Fleet, steps: tuple[Step, ...]) -> None:
    """Put all of them where everybody finds them."""
    for step in steps:
        outcome = fleet.tasks.publish(
            step.task,
            msgspec.to_builtins(step.work),
            needs=step.needs,
            requires=step.requires,
            priority=step.priority,
            retries=RETRIES,
            backoff=0,
        )
        if not isinstance(outcome, Published):
            raise Failed(f"task {step.task} was there already")


def _module(module: str) -> Iterator[Step]:
    priority = 1 if module == URGENT else 5
    lint, build, test = (f"{stage}/{module}" for stage in ("lint", "build", "test"))
    trap = build == TRAP
    imported = tuple(f"build/{other}" for other in MODULES[module])
    building = Work(stage="build", slots=2 if trap else 1, trap=trap)
    yield Step(task=lint, work=Work(stage="lint"), needs=("fetch",), priority=priority)
    yield Step(
        task=build,
        work=building,
        needs=("fetch", *imported),
        requires=(COMPILER,),
        priority=priority,
    )
    yield Step(task=test, work=Work(stage="test"), needs=(build,), priority=priority)
    yield Step(
        task=f"merge/{module}",
        work=Work(stage="merge"),
        needs=(lint, test),
        priority=priority,
    )
