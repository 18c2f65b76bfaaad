"""Tasks as a tree of their needs, and as a graph in Mermaid or DOT.

A tree begins with one task, or with the open tasks that no other open task needs; below each task
stand its needs.  What is below a complete task is complete, too, so it is left out unless asked
for.  A need of several tasks is drawn once with all below it; others name it.  So every drawing
ends, even where an id was used again and two tasks seem to need each other.

Titles and ids come from other programs: each format has its own way to spell out what would be a
sign of the format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from msgspec import Struct

from interlock.core.safe_text import foreign, printable
from interlock.nouns.tasks import task_outcomes
from interlock.nouns.tasks.task_view import Format, ListedTask, TaskTree, TreeTask
from interlock.nouns.tasks.views import TaskQuery, TaskSnapshot, list_tasks, read_tasks
from interlock.runtime.runner import Runner
from interlock.steps import Op

_AT_ONCE = 30
_DEEPEST = 40
"""Levels of a tree in a terminal; more would not fit into a line."""
_NAMED = 20
"""Needs of one task that are named though they are drawn elsewhere."""
_EDGES = 20_000
"""Edges of a graph, above which no program draws it."""
_COLOURS = {
    "blocked": "#f5d58a", "pending": "#d8e3f0", "running": "#b5dfb0", "complete": "#e6e6e6",
    "failed": "#f0a8a0", "dead": "#f0a8a0", "dropped": "#e3d3e8", "deleted": "#f4f4f4",
}  # fmt: skip
_INNER, _LAST = "├─ ", "└─ "
# Patterns as text: one that is not used need not be compiled.
_MERMAID = r"[^\w .,/:@=~-]|_"
_DOT = r'["\\]'


class _TreeLine(Struct, frozen=True, kw_only=True, gc=False):
    """A line of a tree that is to be drawn: a task, or a remark."""

    task: str
    remark: str = ""
    before: str = ""
    branch: str = ""
    depth: int = 0


def read_tree(
    runner: Runner, task: str, query: TaskQuery, *, drawn: Format, whole: bool
) -> Op[TaskTree | task_outcomes.NoTask]:
    """The tree below a task, or, without one, of the open tasks that a query selects.

    ``whole`` also reads below complete tasks.
    """
    known: dict[str, TreeTask] = {}
    more = False
    if task:
        first = yield from _read(runner, [task])
        if first[task].state == "deleted":
            reason = f"there is no task {foreign(task)}"
            return task_outcomes.NoTask(task=task, state="unknown", reason=reason)
        known = dict(first)
    else:
        found = yield from list_tasks(runner, query)
        known = {each.task: _listed(each) for each in found}
        more = bool(found.more)
    begun = list(known)
    ends = frozenset[str]() if whole else frozenset({"complete"})
    level = list(begun)
    while level:
        going_on = [id_ for id_ in level if id_ == task or known[id_].state not in ends]
        needs = [need for id_ in going_on for need in known[id_].needs]
        level = [need for need in dict.fromkeys(needs) if need not in known]
        room = max(0, query.limit - len(known))
        more, level = more or len(level) > room, level[:room]
        known.update((yield from _read(runner, level)))
    needed = {need for each in known.values() for need in each.needs}
    roots = (task,) if task else tuple([id_ for id_ in begun if id_ not in needed])
    drawing = {"tree": _tree, "mermaid": _mermaid, "dot": _dot}[drawn](known, roots)
    return TaskTree(
        roots=roots,
        tasks=tuple(known.values()),
        more=more,
        format=drawn,
        drawing="\n".join(drawing),
    )


def _read(runner: Runner, tasks: list[str]) -> Op[dict[str, TreeTask]]:
    """Some tasks; only a few at once have all their data in memory."""
    found: dict[str, TreeTask] = {}
    for start in range(0, len(tasks), _AT_ONCE):
        some = yield from read_tasks(runner, tasks[start : start + _AT_ONCE])
        found.update({each.task: _snapshot(each) for each in some})
    return found


def _snapshot(task: TaskSnapshot) -> TreeTask:
    if task.status is None or task.spec is None:
        return TreeTask(task=task.task, state="deleted")
    return TreeTask(
        task=task.task,
        state=task.status.state,
        title=task.spec.title,
        needs=task.spec.needs,
        holder="" if task.claim is None else task.claim.agent,
    )


def _listed(task: ListedTask) -> TreeTask:
    return TreeTask(
        task=task.task, state=task.state, title=task.title, needs=task.needs, holder=task.holder
    )


# Drawings.


def _tree(known: Mapping[str, TreeTask], roots: Sequence[str]) -> Iterator[str]:
    """The lines of a tree; what is too deep, or in a cycle of ids, stands after the rest."""
    drawn: set[str] = set()
    for root in (*roots, *known):
        if root not in drawn:
            yield from _below(known, root, drawn)


def _below(known: Mapping[str, TreeTask], root: str, drawn: set[str]) -> Iterator[str]:
    """A task and all its needs that were not drawn yet."""
    stack = [_TreeLine(task=root)]
    while stack:
        line = stack.pop()
        if not line.task:
            yield f"{line.before}{line.branch}{line.remark}"
            continue
        each, again = known[line.task], line.task in drawn
        drawn.add(line.task)
        below = again and any(need in known for need in each.needs)
        yield f"{line.before}{line.branch}{_said(each)}{' (shown above)' if below else ''}"
        if not again:
            stack += reversed(list(_children(known, each, drawn, line)))


def _children(
    known: Mapping[str, TreeTask], task: TreeTask, drawn: set[str], line: _TreeLine
) -> Iterator[_TreeLine]:
    """The lines right below a task."""
    needs = [need for need in task.needs if need in known]
    if needs and line.depth == _DEEPEST:
        needs, remarks = [], ["its needs are shown below"]
    else:
        others = [need for need in needs if need in drawn][_NAMED:]
        needs = [need for need in needs if need not in set(others)]
        remarks = [f"and {len(others)} more that are shown above"] if others else []
    before = line.before + {"": "", _INNER: "│  ", _LAST: "   "}[line.branch]
    last = len(needs) + len(remarks) - 1
    for number, need in enumerate((*needs, *remarks)):
        is_task = number < len(needs)
        yield _TreeLine(
            task=need if is_task else "",
            remark="" if is_task else need,
            before=before,
            branch=_LAST if number == last else _INNER,
            depth=line.depth + 1,
        )


def _said(task: TreeTask) -> str:
    title = f" {foreign(task.title)}" if task.title else ""
    return f"{foreign(task.task)} [{task.words}]{title}"


def _mermaid(known: Mapping[str, TreeTask], _roots: Sequence[str]) -> Iterator[str]:
    """A flow chart of Mermaid: an arrow leads from a need to the task that needs it."""
    numbers = {id_: number for number, id_ in enumerate(known)}
    yield "flowchart LR"
    for id_, each in known.items():
        said = "<br/>".join(map(_in_mermaid, _label(each)))
        yield f'  t{numbers[id_]}["{said}"]:::{each.state}'
    for need, id_ in _edges(known):
        yield f"  t{numbers[need]} --> t{numbers[id_]}"
    for state in sorted({each.state for each in known.values()}):
        yield f"  classDef {state} fill:{_COLOURS[state]},color:#000"


def _dot(known: Mapping[str, TreeTask], _roots: Sequence[str]) -> Iterator[str]:
    """A graph for Graphviz: an arrow leads from a need to the task that needs it."""
    numbers = {id_: number for number, id_ in enumerate(known)}
    yield "digraph tasks {"
    yield "  rankdir=LR;"
    yield '  node [shape=box, style="rounded,filled", fontname="sans-serif"];'
    for id_, each in known.items():
        said = "\\n".join(map(_in_dot, _label(each)))
        yield f'  t{numbers[id_]} [label="{said}", fillcolor="{_COLOURS[each.state]}"];'
    for need, id_ in _edges(known):
        yield f"  t{numbers[need]} -> t{numbers[id_]};"
    yield "}"


def _label(task: TreeTask) -> list[str]:
    """The lines in the box of a task."""
    return [task.task, *([task.title] if task.title else ()), task.words]


def _edges(known: Mapping[str, TreeTask]) -> Iterator[tuple[str, str]]:
    pairs = ((need, id_) for id_, each in known.items() for need in each.needs if need in known)
    return islice(pairs, _EDGES)


def _in_mermaid(text: str) -> str:
    """A text between quotes: every sign that Mermaid, Markdown or HTML may read is a number."""
    return re.sub(_MERMAID, lambda sign: f"#{ord(sign[0])};", printable(text))


def _in_dot(text: str) -> str:
    """A text between quotes, where Graphviz reads quotes and backslashes alone."""
    return re.sub(_DOT, lambda sign: f"\\{sign[0]}", printable(text))
