"""Tasks for display: in a list, and one by itself."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias, get_args

from msgspec import Struct

from interlock.core.outcomes import Listing
from interlock.core.safe_text import foreign
from interlock.nouns.tasks.task import State

MOST = 10_000
"""The most tasks of one list."""
MOST_NOTES = 100
"""The most notes of one page: together they may have a megabyte and a half."""
DRAWN = 200
"""The tasks of a tree, unless more are asked for."""
Format: TypeAlias = Literal["tree", "mermaid", "dot"]
FORMATS: tuple[Format, ...] = get_args(Format)


class ListedTask(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task in a list.

    While it runs: its ``holder`` with its ``token``, ``stale`` if the holder is lost; how far the
    work is (``progress``, from 0 to 1) and what is being done, if the holder reported that.
    While it is blocked: the need that it is blocked ``on``, or the ``guard`` with the ``leaf`` that
    keeps it.  While it must wait: how long (``retry_in``).
    ``since`` is when it entered its state, ``by`` the agent that ended it.
    """

    task: str
    state: State
    title: str = ""
    priority: int
    attempts: int
    retries: int
    requires: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    guards: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    holder: str = ""
    token: int | None = None
    since: float | None = None
    expires_in: float | None = None
    stale: bool = False
    session: str = ""
    progress: float | None = None
    doing: str = ""
    on: str = ""
    guard: str = ""
    leaf: str = ""
    retry_in: float | None = None
    reason: str = ""
    by: str = ""
    published_at: float | None = None
    published_by: str = ""
    not_before: float | None = None
    deadline: float | None = None
    plan: str = ""
    schedule: str = ""


class TaskNote(Struct, frozen=True, kw_only=True):
    """A note: its number, from 1 on, its author, when it was written, and what it says."""

    of_lines: ClassVar[tuple[str, ...]] = ("text",)

    note: int
    by: str
    at: float
    text: str


class TaskNotes(Listing[TaskNote], frozen=True, kw_only=True):
    """Notes in their order; ``more`` is the last number if there are more after it."""

    listed = "notes"

    task: str
    notes: tuple[TaskNote, ...]
    more: int | None = None


class TaskView(ListedTask, frozen=True, kw_only=True, omit_defaults=True):
    """One task with its text, its data and its ``result``, or the ``error`` if it failed.

    ``notes`` are the last ones; ``earlier_notes`` counts those before them.
    """

    of_lines = ("text",)

    text: str = ""
    notes: tuple[TaskNote, ...] = ()
    earlier_notes: int = 0
    data: Any = None
    result: Any = None
    error: Any = None


class TaskList(Listing[ListedTask], frozen=True, kw_only=True):
    """Tasks by id; ``more`` is the last id if there are more after it."""

    listed = "tasks"

    tasks: tuple[ListedTask, ...]
    more: str = ""


class TreeTask(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task of a tree; ``deleted`` is one that was complete and does not exist any more."""

    task: str
    state: State | Literal["deleted"]
    title: str = ""
    needs: tuple[str, ...] = ()
    holder: str = ""

    @property
    def words(self) -> str:
        """Its state, with its worker."""
        return f"{self.state}, {foreign(self.holder)}" if self.holder else self.state


class TaskTree(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tasks with their needs: the ``roots``, and all that was read below them.

    ``more`` says that there are more tasks than were asked for.  ``drawing`` is the text of the
    tree, or of the graph.
    """

    of_lines: ClassVar[tuple[str, ...]] = ("drawing",)

    roots: tuple[str, ...]
    tasks: tuple[TreeTask, ...]
    more: bool = False
    format: Format = "tree"
    drawing: str = ""
