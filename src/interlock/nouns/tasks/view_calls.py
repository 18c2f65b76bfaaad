"""The calls that look at tasks: list, show, tree, notes, files, events as they happen."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from interlock.core import validate
from interlock.errors import BadInput
from interlock.nouns.tasks import task as task_types
from interlock.nouns.tasks import task_outcomes
from interlock.nouns.tasks.task_view import DRAWN
from interlock.runtime.calls import Calls, D, call, opened
from interlock.steps import Op

if TYPE_CHECKING:
    from interlock.nouns.tasks.history import TaskEventFeed
    from interlock.nouns.tasks.task_view import Format, TaskList, TaskNotes, TaskTree, TaskView


class TaskViewCalls(Calls[D]):
    """Tasks, for readers."""

    @call
    def notes(
        self, task: str, *, after: int = 0, limit: int = task_types.LISTED
    ) -> Op[TaskNotes | task_outcomes.NoTask]:
        """The notes of a task, from the first on, or ``after`` a number."""
        from interlock.nouns.tasks import notes
        from interlock.nouns.tasks.task_view import MOST_NOTES

        most = validate.count(limit, "limit", MOST_NOTES)
        return notes.list_notes(validate.task_id(task), validate.after(after), most)

    @call
    def file(self, path: str | os.PathLike[str]) -> Op[dict[str, Any]]:
        """A value that refers to a file: for data and results that are too large for the store.

        ``publish("train", fleet.tasks.file("model.bin"))``, or a part of a larger value.  It has
        the path, the size and the SHA-256 of the file, which stays where it is.
        """
        from interlock.nouns.tasks import file_values  # few tasks have a file

        return file_values.reference(path)

    @call
    def read_file(self, value: object) -> Op[bytes]:
        """The bytes of the file that a value refers to, as they were; raises Changed if not."""
        from interlock.nouns.tasks import file_values

        return file_values.read(value)

    @call
    def show(self, task: str) -> Op[TaskView | task_outcomes.NoTask]:
        """One task: its state, its worker, its text, its data, its result and its last notes."""
        from interlock.nouns.tasks import views  # a worker needs none

        return views.show(self.context.runner, validate.task_id(task))

    @call
    def list(
        self,
        *,
        state: Iterable[str] = (),
        all: bool = False,  # noqa: A002 - as the command line calls it
        label: Iterable[str] = (),
        title: str = "",
        needs: Iterable[str] = (),
        requires: Iterable[str] = (),
        holder: str | None = None,
        prefix: str | None = None,
        after: str | None = None,
        limit: int = task_types.LISTED,
    ) -> Op[TaskList]:
        """Tasks by id, without complete ones; ``all`` of them, or in these states.

        Only tasks that have each ``label``, that have all these words in their ``title``, in either
        case, that need each of ``needs``, that require each of ``requires``, that a ``holder``
        works on, whose id begins with ``prefix``.  ``more`` in the answer is what to give as
        ``after`` to go on.
        """
        from interlock.nouns.tasks.task_view import MOST
        from interlock.nouns.tasks.views import OPEN, TaskQuery, list_tasks

        wanted = _states(state) or (
            frozenset(task_types.STATES) if validate.flag(all, "all") else OPEN
        )
        query = TaskQuery(
            states=wanted & {"running"} if holder else wanted,
            labels=frozenset(validate.names(label, "label", task_types.LABELS_LIMIT)),
            requires=frozenset(validate.names(requires, "requires", task_types.REQUIRES_LIMIT)),
            needs=frozenset(validate.names(needs, "needs", task_types.NEEDS_LIMIT)),
            words=validate.title_words(title),
            agent="" if holder is None else validate.name(holder, "agent name"),
            prefix="" if prefix is None else validate.task_prefix(prefix),
            after="" if after is None else validate.task_id(after),
            limit=validate.count(limit, "limit", MOST),
        )
        return list_tasks(self.context.runner, query)

    @call
    def tree(
        self,
        task: str | None = None,
        *,
        format: Format = "tree",  # noqa: A002 - as the command line calls it
        all: bool = False,  # noqa: A002 - as the command line calls it
        label: Iterable[str] = (),
        prefix: str | None = None,
        limit: int = DRAWN,
    ) -> Op[TaskTree | task_outcomes.NoTask]:
        """A task with all that it needs, as a tree; without one, the open tasks.

        ``drawing`` in the answer is text: a ``tree``, or a graph for ``mermaid`` or ``dot``.  Needs
        of complete tasks are left out, unless ``all`` are wanted.  Without a task, only open tasks
        that have each ``label``, whose id begins with ``prefix``, and what they need.
        """
        from interlock.nouns.tasks import tree
        from interlock.nouns.tasks.task_view import FORMATS, MOST
        from interlock.nouns.tasks.views import TaskQuery

        if format not in FORMATS:
            known = ", ".join(FORMATS)
            raise BadInput(f"there is no format {format!r:.40}; there are {known}")
        query = TaskQuery(
            labels=frozenset(validate.names(label, "label", task_types.LABELS_LIMIT)),
            prefix="" if prefix is None else validate.task_prefix(prefix),
            limit=validate.count(limit, "limit", MOST),
        )
        if task is not None and (query.labels or query.prefix):
            raise BadInput("a task has its own tree; leave out the task, or the label and prefix")
        return tree.read_tree(
            self.context.runner,
            "" if task is None else validate.task_id(task),
            query,
            drawn=format,
            whole=validate.flag(all, "all"),
        )

    @opened
    def subscribe(
        self,
        *,
        events: Iterable[str] = task_types.EVENT_NAMES,
        prefix: str = "",
        can: Iterable[str] | None = None,
        after: int | None = None,
        callback: Callable[[task_types.TaskEvent], object] | None = None,
    ) -> Op[TaskEventFeed]:
        """Events of tasks as they happen, from now on or ``after`` a revision: all, or ``events``.

        Iterate over it, or ``take`` with a time limit; with a ``callback`` (in an event loop it may
        be a coroutine function) each event is passed to that until the stream is closed.  ``can``
        leaves out tasks that require anything else, and ``prefix`` selects ids by their beginning.
        """
        from interlock.nouns.tasks.history import TaskEventFeed

        able_to = None if can is None else validate.abilities(can)
        feed = TaskEventFeed(
            events, validate.task_prefix(prefix), able_to, self.context.runner.clock
        )
        yield from feed.open(after)
        feed.callback = callback
        return feed

    watch = subscribe


def _states(given: Iterable[str]) -> frozenset[task_types.State]:
    wanted = validate.names(given, "state", len(task_types.STATES))
    unknown = [each for each in wanted if each not in task_types.STATES]
    if unknown:
        raise BadInput(
            f"there is no state {unknown[0]!r}; there are {', '.join(task_types.STATES)}"
        )
    return frozenset(state for state in task_types.STATES if state in wanted)
