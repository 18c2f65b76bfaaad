"""What a person is shown of tasks; how it is found is in ``seen.py``."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from interlock.core.outcomes import Listing
from interlock.nouns.tasks.task import State

MOST = 10_000
"""So many tasks at once."""


class ListedTask(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task as a person sees it among others.

    While it runs: its ``holder`` with its ``token``, ``stale`` if that one is lost.  While it is
    blocked: the need that it is blocked ``on``.  While it has to wait: how long (``retry_in``).
    ``since`` is when it came into its state, ``by`` who ended it.
    """

    task: str
    state: State
    priority: int
    attempts: int
    retries: int
    requires: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    holder: str = ""
    token: int | None = None
    since: float | None = None
    expires_in: float | None = None
    stale: bool = False
    session: str = ""
    on: str = ""
    retry_in: float | None = None
    reason: str = ""
    by: str = ""
    published_at: float | None = None
    published_by: str = ""
    not_before: float | None = None
    deadline: float | None = None


class TaskView(ListedTask, frozen=True, kw_only=True, omit_defaults=True):
    """One task with its data, and what came of it: ``result``, or the ``error`` if it failed."""

    data: Any = None
    result: Any = None
    error: Any = None


class TaskList(Listing[ListedTask], frozen=True, kw_only=True):
    """Tasks by id; ``more`` is the last one if there are others after it."""

    listed = "tasks"

    tasks: tuple[ListedTask, ...]
    more: str = ""
