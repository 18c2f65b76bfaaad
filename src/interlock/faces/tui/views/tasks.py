"""Tasks as rows, and as a tree of what needs what."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from interlock.faces.tui.screen_data import (
    MOST,
    TONES,
    Column,
    TableRow,
    TableView,
    ViewSource,
    action,
    actions,
    cells,
)
from interlock.nouns.tasks.view_noun import TasksList

if TYPE_CHECKING:
    from interlock.nouns.tasks.task_view import ListedTask

_ORDER = ("running", "dead", "failed", "blocked", "pending")
_RANK = {state: at for at, state in enumerate(_ORDER)}


def tasks(source: ViewSource) -> TableView:
    """Open tasks: those that run first, then by priority; a lower number is more urgent.

    Each state is read by itself, so that many tasks that wait hide none that runs.
    """
    found: dict[str, ListedTask] = {}  # by id: a task that moves may be in two lists
    more = False
    for state in _ORDER:
        listed = source.act(TasksList(state=(state,), limit=MOST))
        more = more or bool(listed.more)
        for task in sorted(listed.tasks, key=lambda each: each.priority):
            found.setdefault(task.task, task)
    rows = tuple(_task(source, each) for each in islice(found.values(), MOST))
    return TableView(
        name="tasks",
        columns=(
            Column("task"), Column("state"), Column("title", 70), Column("worker"),
            Column("progress", 90), Column("since", 60), Column("why", 80),
        ),
        empty="No task is open.\n\nPublish one: interlock task add build --agent ada",
        rows=rows,
        more=more or len(found) > MOST,
    )  # fmt: skip


def _task(source: ViewSource, task: ListedTask) -> TableRow:
    id_, state = task.task, "stale" if task.stale else task.state
    runs, waits = task.state == "running", task.state in ("pending", "blocked")
    return TableRow(
        key=id_,
        cells=cells(
            id_,
            state,
            task.title,
            task.holder or task.by,
            "" if task.progress is None else f"{_bar(task.progress)} {task.progress:4.0%}",
            source.ago(task.since),
            task.reason or (f"needs {task.on}" if task.on else "") or task.leaf or task.doing,
        ),
        tone=TONES.get(state, ""),
        thing=f"task/{id_}",
        actions=actions(
            action("task requeue", task=id_, token=task.token) if runs else None,
            action("task cancel", task=id_) if runs or waits else None,
            action("task drop", tasks=(id_,)) if waits else None,
            action("task retry", task=id_) if not runs and not waits else None,
            action("task note", task=id_),
            action("stop", who=task.holder) if task.holder else None,
        ),
    )


def _bar(part: float, width: int = 8) -> str:
    full = round(max(0.0, min(1.0, part)) * width)
    return "█" * full + "░" * (width - full)


def tree(source: ViewSource) -> TableView:
    """Each task below one that it needs; those without needs and dependents come last."""
    found = source.act(TasksList(all=True, limit=MOST))
    rows = [
        replace(row, key=f"{at} {row.key}", cells=(branch + row.cells[0], *row.cells[1:4], also))
        for at, (task, branch, also) in enumerate(branches(found.tasks))
        for row in (_task(source, task),)
    ]
    return TableView(
        name="tree",
        columns=(
            Column("task"), Column("state"), Column("title", 80), Column("worker", 60),
            Column("needs, too", 70),
        ),
        empty="No task is there.\n\nPublish two, one of which needs the other:"
        " interlock task add test --needs build --agent ada",
        rows=tuple(rows),
        more=bool(found.more),
    )  # fmt: skip


def branches(tasks: Sequence[ListedTask]) -> list[tuple[ListedTask, str, str]]:
    """Tasks in the order of a tree: each with the lines that lead to it, and its other needs.

    A task that needs several stands below the last one that is not complete, or else below the
    last one.
    """
    known = {each.task: each for each in tasks}
    below: dict[str, list[ListedTask]] = {}
    for task in tasks:
        needs = [need for need in task.needs if need in known]
        waits = [need for need in needs if known[need].state != "complete"]
        below.setdefault((waits or needs or [""])[-1], []).append(task)
    found: list[tuple[ListedTask, str, str]] = []

    def add(task: ListedTask, above: str, lead: str, under: str) -> None:
        also = ", ".join(need for need in task.needs if need != above)
        found.append((task, lead, also))
        children = below.pop(task.task, [])
        for at, child in enumerate(children):
            last = at + 1 == len(children)
            lead_, under_ = ("└─ ", "   ") if last else ("├─ ", "│  ")
            add(child, task.task, under + lead_, under + under_)

    roots = below.pop("", [])
    for root in sorted(roots, key=lambda each: (each.task not in below, _RANK.get(each.state, 9))):
        add(root, "", "", "")
    return found
