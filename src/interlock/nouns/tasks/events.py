"""What happens to tasks, as it happens: the events of the record, without polling.

An event of the record says what happened to which task.  Whoever hears that there is something to
do also wants to know what it is, so the data of all tasks that were published or became ready are
read along, in one go for all that came together.

If history is gone before somebody has read it, nobody can say what happened meanwhile, but what is
ready now can be seen: it is told as ``ready``.  Whoever listens for anything else is told that
something was ``missed``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from interlock.clock import Clock
from interlock.core import keys
from interlock.core.log import Entry
from interlock.core.validate import ALL_ABILITIES
from interlock.drivers import Op
from interlock.errors import BadInput
from interlock.nouns.record.service import opened
from interlock.nouns.tasks import decode
from interlock.nouns.tasks import task as core
from interlock.nouns.tasks.task import EVENT_NAMES, TaskEvent
from interlock.runtime.gather import looked_up
from interlock.runtime.history import read
from interlock.runtime.steps import NextChanges, Read
from interlock.store import Change, Item, Range, Resync, Watch

TO_DO = frozenset({"published", "ready"})
"""What says that there may be something to do."""

_MARK = b'"task:'
_PAGE = 100


class EventFilter(Struct, frozen=True, kw_only=True):
    """Which events somebody asks for; ``can`` is None for whoever wants to hear of all tasks."""

    events: frozenset[str] = TO_DO
    prefix: str = ""
    can: frozenset[str] | None = None

    def names(self, event: TaskEvent) -> bool:
        """Whether it is asked for, as far as its name and that of its task tell."""
        return event.event in self.events and event.task.startswith(self.prefix)

    def fits(self, spec: core.Spec | None) -> bool:
        """Whether a task is one that we could do."""
        if self.can is None or spec is None or ALL_ABILITIES in self.can:
            return True
        return self.can.issuperset(spec.requires)


class TaskEventFeed:
    """The events of tasks after a revision, as they come; whoever opened it closes it."""

    about = "a subscription to tasks"
    callback: Callable[[TaskEvent], object] | None = None

    def __init__(self, asked: EventFilter, clock: Clock) -> None:
        self._wanted = asked
        self._clock = clock
        self._watch: Watch | None = None
        self._ready: str | None = None
        """How far those that are ready were told, while that is to be done."""
        self._missed = 0
        self._heard: list[TaskEvent] = []
        """What came and was not told yet: trouble with reading what it is about loses nothing."""

    def open(self, after: int | None) -> Op[None]:
        """Begin after a revision, or from now on."""
        self._watch = yield from opened(after)

    def take(self, timeout: float | None) -> Op[tuple[TaskEvent, ...]]:
        """What came since the last call; waits for the first event, at most so long."""
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
        """Stop listening."""
        if self._watch is not None:
            self._watch.close()

    def _next(self, timeout: float | None) -> Op[list[TaskEvent]]:
        if not self._heard and self._ready is not None:
            yield from self._page(self._ready)
        elif not self._heard:
            self._listen((yield NextChanges(self._watch, timeout)))  # type: ignore[arg-type]  # it is open
        return (yield from self._described())

    def _listen(self, changes: Iterable[Change | Resync]) -> None:
        found: list[TaskEvent] = []
        for change in changes:
            if isinstance(change, Resync):
                found, self._ready, self._missed = [], "", change.revision
                if not self._wanted.events <= TO_DO:
                    found.append(TaskEvent(event="missed", revision=change.revision))
            elif _MARK in change.value:
                found += filter(self._wanted.names, _events(change))
        if self._ready is not None and not self._wanted.events & TO_DO:
            self._ready = None
        self._heard = found

    def _page(self, after: str) -> Op[None]:
        """Some of those that are ready."""
        page = Range(keys.READY, after, _PAGE)
        items: tuple[Item, ...] = (yield Read(page)).ranges[page]
        self._ready = items[-1].key if len(items) == _PAGE else None
        tasks = [keys.task_in_index(item.key) for item in items]
        self._heard = [
            TaskEvent(event="ready", task=task, at=self._clock.wall(), revision=self._missed)
            for task in tasks
            if task.startswith(self._wanted.prefix)
        ]

    def _described(self) -> Op[list[TaskEvent]]:
        """What we heard with what it is about, as far as wanted; without what is not ours."""
        refs = [
            keys.data(event.task)
            for event in self._heard
            if event.event in TO_DO or (self._wanted.can is not None and event.task)
        ]
        items = (yield from looked_up(refs)) if refs else {}
        events, self._heard = self._heard, []
        specs = {key: decode.spec(item) for key, item in items.items()}
        return [
            _described(event, spec)
            for event in events
            if self._wanted.fits(spec := specs.get(keys.data(event.task)))
        ]


def event_filter(events: Iterable[str], prefix: str, can: Collection[str] | None) -> EventFilter:
    """Checked words as what somebody asks for."""
    if isinstance(events, str):
        raise BadInput(f"'events' takes a list of words; put brackets around {events!r:.40}")
    asked = frozenset(events)
    unknown = sorted(asked - set(EVENT_NAMES))
    if unknown or not asked:
        what = (
            f"no event of a task is called {unknown[0]!r:.40}" if unknown else "no event is named"
        )
        raise BadInput(f"{what}; there are: {', '.join(EVENT_NAMES)}")
    return EventFilter(events=asked, prefix=prefix, can=None if can is None else frozenset(can))


def _events(change: Change) -> Iterable[TaskEvent]:
    entry = read(Item(change.key, change.value, change.revision, change.revision))
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


def _described(event: TaskEvent, spec: core.Spec | None) -> TaskEvent:
    if spec is None or event.event not in TO_DO:
        return event
    data = msgspec.json.decode(spec.data)
    return replace(event, data=data, priority=spec.priority, requires=spec.requires)
