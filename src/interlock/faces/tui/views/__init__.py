"""The views: what each shows of the answers of declared operations, and what it offers."""

from __future__ import annotations

from collections.abc import Callable

from interlock.faces.tui.screen_data import TableView, ViewSource
from interlock.faces.tui.views import files, flow, grants, people, record, swarms, tasks

VIEWS: dict[str, Callable[[ViewSource], TableView]] = {
    "person": people.person,
    "agents": people.agents,
    "tasks": tasks.tasks,
    "locks": grants.locks,
    "messages": people.messages,
    "questions": people.questions,
    "pipelines": flow.pipelines,
    "swarms": swarms.swarms,
    "record": record.record,
    "timeline": record.timeline,
    "tree": tasks.tree,
    "files": files.files,
    "merges": files.merges,
    "schedules": flow.schedules,
    "guards": flow.guards,
    "budgets": files.budgets,
}
"""The views by name; the first ten have a digit, ``o`` opens the others."""
