"""The lines around the table: head, tabs and status bar; and how wide its columns are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.cells import cell_len
from rich.text import Text

from interlock.core.safe_text import one_line
from interlock.core.validate import span
from interlock.faces.tui.screen_data import ScreenData, TableRow, TableView
from interlock.faces.tui.views import VIEWS

STALE = 10.0
"""Seconds after which the data is called old."""
WIDE = 100
"""Columns from which on the tabs have their whole names."""
LABELS = {
    "person": "Person", "agents": "Agents", "tasks": "Tasks", "locks": "Locks",
    "messages": "Mail", "questions": "Questions", "pipelines": "Pipelines", "swarms": "Swarms",
    "record": "Record", "timeline": "Timeline", "tree": "Tree", "files": "Files",
    "merges": "Merges", "schedules": "Schedules", "guards": "Guards", "budgets": "Budgets",
}  # fmt: skip
DIGITS = "1234567890"
"""The keys of the first views."""
_TASKS = ("running", "pending", "blocked", "dead", "failed")
_CALL = "bold yellow"
"""What waits for the person who looks."""


def _line(text: str = "", style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def head(place: str, data: ScreenData | None) -> Text:
    """The store, and the numbers of its agents and tasks."""
    text = _line()
    text.append("interlock", "bold").append(f"  {one_line(place)}")
    if data is not None:
        said = [f"{data.agents} agent{'' if data.agents == 1 else 's'}"]
        said += [f"{data.tasks[state]} {state}" for state in _TASKS if data.tasks.get(state)]
        text.append("  ·  ", "dim").append("  ·  ".join(said))
    return text


def tabs(here: str, counts: Mapping[str, int], width: int) -> Text:
    """The views with their keys and counts; a narrow terminal shows the name of this one only.

    Those without a key are behind ``o``; one of them stands here while it is shown.
    """
    text = _line()
    for at, name in enumerate(VIEWS):
        key = DIGITS[at : at + 1]
        if not key and name != here:
            continue
        count, calls = counts.get(name, 0), name in ("person", "questions", "messages")
        whole = width >= WIDE or name == here
        label = f"{key} {LABELS[name]}".strip() if whole else key
        label += f" {count}" if count and (whole or calls) else ""
        style = "reverse bold" if name == here else _CALL if calls and count else ""
        text.append(f" {label} ", style)
    return text.append(" o more ", "dim")


def status(
    data: ScreenData | None,
    *,
    trouble: str,
    age: float,
    words: Sequence[str],
    rows: int,
    agent: str,
) -> Text:
    """Questions and mail first, since they wait for the person who looks."""
    questions, unread = (0, 0) if data is None else (data.questions, data.unread)
    text = _line()
    text.append(f"{questions} question{'' if questions == 1 else 's'}", _CALL if questions else "")
    text.append(" pending, ").append(f"{unread} unread", _CALL if unread else "")
    if words:
        text.append(f"  filter '{' '.join(words)}': {rows} row{'' if rows == 1 else 's'}", "bold")
    if trouble:
        text.append(f"  store away, last read {span(age)} ago", "bold red")
    elif data is None:
        text.append("  reading the store")
    elif age > STALE:
        text.append(f"  last read {span(age)} ago, the store is slow", _CALL)
    else:
        text.append("  live", "green").append(f" at revision {data.revision}")
    if data is not None and data.view.more:
        text.append("  not all rows are shown", "yellow")
    return text.append(f"  as {one_line(agent)}", "dim")


def hints(row: TableRow | None) -> Text:
    """What can be done now, by key."""
    text = _line()
    offers = [(each.key, each.label) for each in row.actions] if row is not None else []
    offers += [("w", "why"), ("h", "history")] if row is not None and row.thing else []
    for key, label in [*offers, ("/", "filter"), ("l", "log"), ("?", "keys"), ("q", "quit")]:
        text.append(key, "bold").append(f" {label}   ")
    return text


LEAST = 6
"""The columns that a cell keeps, however narrow the terminal is."""
PADDING = 2
"""What a table adds to each cell."""


def widths(
    view: TableView, rows: Sequence[TableRow], visible: Sequence[int], width: int
) -> dict[int, int]:
    """How wide each visible column is: as its content, but the widest shrink until all fit."""
    found = {
        at: max([cell_len(view.columns[at].title), *(cell_len(row.cells[at]) for row in rows)])
        for at in visible
    }
    room = max(width - PADDING * len(visible), LEAST * len(visible))
    for _ in range(sum(found.values()) - room):
        widest = max(found, key=lambda at: found[at])
        found[widest] -= 1
    return found


def no_row(view: TableView) -> str:
    """Why there is no row: of a filter, of what is not read, or of an empty store."""
    if not view.rows:
        return view.empty
    none = "no row has these words"
    if view.more:
        none = f"none of these {len(view.rows)} rows has these words, and there are others"
    return f"{none}; esc clears the filter"
