"""The events of tasks, as the record grows, without polling.

An event of the record says what happened to which task.  A subscriber that learns of new work also
needs its data, so the data of tasks that were published or became ready are read, with one read for
all events that arrived together.

If the entries are gone before the subscriber has read them, the tasks that are ready now are
reported as ``ready``.  A subscriber to other events also gets ``missed``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from interlock.clock import Clock
from interlock.core import keys, validate
from interlock.core.log import Entry
from interlock.core.validate import ALL_ABILITIES
from interlock.drivers import NextChanges, Op, Read
from interlock.errors import BadInput
from interlock.nouns.tasks import task as core
from interlock.nouns.tasks.task import EVENT_NAMES, TaskEvent
from interlock.nouns.tasks.task_reader import decode_spec
from interlock.runtime.history import open_log, read_entry
from interlock.runtime.reads import looked_up
from interlock.store import Change, Item, Range, Resync, Watch

WORK_EVENTS = frozenset({"published", "ready"})
"""The events that announce work."""

_MARK = b'"task:'
_PAGE = 100


class EventFilter(Struct, frozen=True, kw_only=True):
    """The events that a subscriber wants; ``can`` is None for those of all tasks."""

    events: frozenset[str] = WORK_EVENTS
    prefix: str = ""
    can: frozenset[str] | None = None

    def names(self, event: TaskEvent) -> bool:
        """Whether the filter accepts the name of an event and the id of its task."""
        return event.event in self.events and event.task.startswith(self.prefix)

    def fits(self, spec: core.Spec | None) -> bool:
        """Whether the subscriber could do a task."""
        if self.can is None or spec is None or ALL_ABILITIES in self.can:
            return True
        return self.can.issuperset(spec.requires)


class TaskEventFeed:
    """The events of tasks after a revision; the caller that opens it closes it."""

    about = "a subscription to tasks"
    callback: Callable[[TaskEvent], object] | None = None

    def __init__(self, filter_: EventFilter, clock: Clock) -> None:
        self._filter = filter_
        self._clock = clock
        self._watch: Watch | None = None
        self._ready: str | None = None
        """The last key of the ready tasks that were reported, while they are being reported."""
        self._missed = 0
        self._events: list[TaskEvent] = []
        """Events that were not returned yet: an error while their data are read loses none."""

    def open(self, after: int | None) -> Op[None]:
        """Start after a revision, or from now on."""
        self._watch = yield from open_log(after)

    def take(self, timeout: float | None) -> Op[tuple[TaskEvent, ...]]:
        """The events since the last call; waits for the first one, up to ``timeout``."""
        ends = None if timeout is None else self._clock.monotonic() + timeout
        while True:
            found = yield from self._next(
                None if ends is None else max(0.0, ends - self._clock.monotonic())
            )
            over = ends is not None and self._clock.monotonic() >= ends
            if found or (over and self._ready is None):
                return tuple(found)

    def each(self, taken: tuple[TaskEvent, ...]) -> tuple[TaskEvent, ...]:
        """The values one by one."""
        return taken

    def close(self) -> None:
        """Close the watch."""
        if self._watch is not None:
            self._watch.close()

    def _next(self, timeout: float | None) -> Op[list[TaskEvent]]:
        if not self._events and self._ready is not None:
            yield from self._ready_page(self._ready)
        elif not self._events:
            self._collect((yield NextChanges(self._watch, timeout)))  # type: ignore[arg-type]  # it is open
        return (yield from self._with_data())

    def _collect(self, changes: Iterable[Change | Resync]) -> None:
        found: list[TaskEvent] = []
        for change in changes:
            if isinstance(change, Resync):
                found, self._ready, self._missed = [], "", change.revision
                if not self._filter.events <= WORK_EVENTS:
                    found.append(TaskEvent(event="missed", revision=change.revision))
            elif _MARK in change.value:
                found += filter(self._filter.names, _events(change))
        if self._ready is not None and not self._filter.events & WORK_EVENTS:
            self._ready = None
        self._events = found

    def _ready_page(self, after: str) -> Op[None]:
        """Report a page of the ready tasks."""
        page = Range(keys.READY, after, _PAGE)
        items: tuple[Item, ...] = (yield Read(page)).ranges[page]
        self._ready = items[-1].key if len(items) == _PAGE else None
        tasks = [keys.task_in_index(item.key) for item in items]
        self._events = [
            TaskEvent(event="ready", task=task, at=self._clock.wall(), revision=self._missed)
            for task in tasks
            if task.startswith(self._filter.prefix)
        ]

    def _with_data(self) -> Op[list[TaskEvent]]:
        """The events with their data; without those of tasks that the subscriber cannot do."""
        refs = [
            keys.data(event.task)
            for event in self._events
            if event.event in WORK_EVENTS or (self._filter.can is not None and event.task)
        ]
        items = (yield from looked_up(refs)) if refs else {}
        events, self._events = self._events, []
        specs = {key: decode_spec(item) for key, item in items.items()}
        return [
            _with_spec(event, spec)
            for event in events
            if self._filter.fits(spec := specs.get(keys.data(event.task)))
        ]


def event_filter(events: Iterable[str], prefix: str, can: Collection[str] | None) -> EventFilter:
    """Validated arguments as a filter."""
    if isinstance(events, str):
        raise BadInput(f"'events' takes a list of words; put brackets around {events!r:.40}")
    asked = tuple(validate.require_iterable(events, "'events'"))
    unknown = [each for each in asked if each not in EVENT_NAMES]
    if unknown or not asked:
        what = (
            f"no event of a task is called {unknown[0]!r:.40}" if unknown else "no event is named"
        )
        raise BadInput(f"{what}; there are: {', '.join(EVENT_NAMES)}")
    return EventFilter(
        events=frozenset(asked), prefix=prefix, can=None if can is None else frozenset(can)
    )


def _events(change: Change) -> Iterable[TaskEvent]:
    entry = read_entry(Item(change.key, change.value, change.revision, change.revision))
    for event in entry.events:
        kind, _, word = event.name.partition(":")
        task = _task(event.thing or entry.thing)
        if kind == "task" and not task.startswith(core.BATCH):
            yield _event(word, task, event.agent or entry.agent, change.revision, entry)


def _event(word: str, task: str, agent: str, revision: int, entry: Entry) -> TaskEvent:
    known: Any = word
    return TaskEvent(event=known, task=task, agent=agent, at=entry.at, revision=revision)


def _task(thing: str) -> str:
    return thing.removeprefix("task/")


def _with_spec(event: TaskEvent, spec: core.Spec | None) -> TaskEvent:
    if spec is None or event.event not in WORK_EVENTS:
        return event
    data = msgspec.json.decode(spec.data)
    return replace(event, data=data, priority=spec.priority, requires=spec.requires)
