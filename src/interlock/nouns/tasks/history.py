"""The events of tasks, from entries of the record: as they happen, and as history.

**A subscriber** gets the events as the record grows, without polling.  One that learns of new work
also needs its data, so the data of tasks that were published or became ready are read, with one
read for all events that arrived together.  If the entries are gone before the subscriber has read
them, the tasks that are ready now are reported as ``ready``.  A subscriber to other events also
gets ``missed``.

**The history** says more than the events.  An entry does not say the state of a task after it, but
it names every key that it wrote.  So a task that was put under ``hangs/{need}`` is blocked on that
need, one under ``due/{moment}`` must rest until then, and one under ``ended/`` is not retried:

    ada publishes t1          task.publish, task:published ada, hangs/t0/t1: blocked on t0
    bob completes t0          task.complete t0, task:ready about t1: unblocked
    cleo claims t1            task.claim, task:claimed cleo
    dan finds her lost        task.reclaim, task:reclaimed cleo, due/...: it rests

The token of a claim is the base of the store plus the revision of the entry that claimed.  An
attempt has a number where every entry since the task was published, or retried, was read.
The history of a task of an import begins when the import is complete: before that it hangs on a
batch, and is hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from interlock.clock import Clock
from interlock.core import keys, validate
from interlock.core.decision import REFUSALS, Event
from interlock.core.entry import RecordLine
from interlock.core.history import HistoryEvent, NounHistory, OpenSpan, history_event, seconds_since
from interlock.core.validate import ALL_ABILITIES
from interlock.errors import BadInput
from interlock.nouns.tasks.task import BATCH, EVENT_NAMES, Spec, TaskEvent
from interlock.nouns.tasks.task_reader import decode_spec, decode_status
from interlock.runtime.history import open_log, read_entry
from interlock.runtime.reads import looked_up
from interlock.steps import NextChanges, Op, Read
from interlock.store import Change, Item, Range, Resync, Snapshot, Watch

WORK_EVENTS = frozenset({"published", "ready"})
"""The events that announce work."""
_MARK = b'"task:'
_PAGE = 100
_ENDS = ("released", "completed", "failed", "dead", "reclaimed", "cancelled", "requeued")
_BEGINS = ("published", "retried")
_COUNTED = ("failed", "reclaimed")
_WITH_REASON = ("failed", "dead", "cancelled", "dropped")
_SAYS = ("requeued", "blocked", "warned")
"""The events whose entries say why."""
_WAITS = {("task.wait", "waiting"): "waiting", ("task.withdraw", "withdrawn"): "withdrew"}


class TaskEventFeed:
    """The events of tasks after a revision; the caller that opens it closes it.

    ``can`` are the abilities of a subscriber that only wants tasks which it could do.
    """

    about = "a subscription to tasks"
    callback: Callable[[TaskEvent], object] | None = None

    def __init__(
        self, events: Iterable[str], prefix: str, can: Collection[str] | None, clock: Clock
    ) -> None:
        self._wanted = _event_names(events)
        self._prefix = prefix
        self._can = None if can is None else frozenset(can)
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
                if not self._wanted <= WORK_EVENTS:
                    found.append(TaskEvent(event="missed", revision=change.revision))
            elif _MARK in change.value:
                found += filter(self._wants, _events(change))
        if self._ready is not None and not self._wanted & WORK_EVENTS:
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
            if task.startswith(self._prefix)
        ]

    def _with_data(self) -> Op[list[TaskEvent]]:
        """The events with their data; without those of tasks that the subscriber cannot do."""
        refs = [
            keys.data(event.task)
            for event in self._events
            if event.event in WORK_EVENTS or (self._can is not None and event.task)
        ]
        items = (yield from looked_up(refs)) if refs else {}
        events, self._events = self._events, []
        specs = {key: decode_spec(item) for key, item in items.items()}
        return [
            _with_spec(event, spec)
            for event in events
            if self._fits(spec := specs.get(keys.data(event.task)))
        ]

    def _wants(self, event: TaskEvent) -> bool:
        return event.event in self._wanted and event.task.startswith(self._prefix)

    def _fits(self, spec: Spec | None) -> bool:
        """Whether the subscriber could do a task."""
        if self._can is None or spec is None or ALL_ABILITIES in self._can:
            return True
        return self._can.issuperset(spec.requires)


def _event_names(events: Iterable[str]) -> frozenset[str]:
    if isinstance(events, str):
        raise BadInput(f"'events' takes a list of words; put brackets around {events!r:.40}")
    asked = tuple(validate.require_iterable(events, "'events'"))
    unknown = [each for each in asked if each not in EVENT_NAMES]
    if unknown or not asked:
        what = (
            f"no event of a task is called {unknown[0]!r:.40}" if unknown else "no event is named"
        )
        raise BadInput(f"{what}; there are: {', '.join(EVENT_NAMES)}")
    return frozenset(asked)


def _events(change: Change) -> Iterator[TaskEvent]:
    entry = read_entry(Item(change.key, change.value, change.revision, change.revision))
    for event in entry.events:
        kind, _, word = event.name.partition(":")
        task = _task(event.thing or entry.thing)
        if kind == "task" and not task.startswith(BATCH):
            known: Any = word
            agent = event.agent or entry.agent
            revision = change.revision
            yield TaskEvent(
                event=known,
                task=task,
                agent=agent,
                at=entry.at,
                revision=revision,
                progress=event.details.get("progress"),
                doing=event.details.get("doing", ""),
            )


def _with_spec(event: TaskEvent, spec: Spec | None) -> TaskEvent:
    if spec is None or event.event not in WORK_EVENTS:
        return event
    data = msgspec.json.decode(spec.data)
    return replace(
        event, data=data, priority=spec.priority, requires=spec.requires, title=spec.title
    )


class TaskHistory(NounHistory):
    """The tasks after the entries so far."""

    words = ("task",)

    def __init__(self, base: int, kind: str) -> None:
        super().__init__(base, kind)
        self._whole = kind != "agent"
        """Whether no entry about the tasks is left out."""
        self._claims: dict[str, OpenSpan] = {}
        self._attempts: dict[str, int] = {}

    def events(self, line: RecordLine) -> Iterator[HistoryEvent]:
        """The history events of an entry."""
        hangs = dict(_hung(line))
        reported = set()
        for event in line.events:
            thing = event.thing or line.thing
            # A task that becomes ready with its first event is ready from the start.
            if event.name != "task:ready" or thing not in reported:
                yield self._task_event(line, event, thing, hangs.get(thing, ""))
            reported.add(thing)
        for thing, need in hangs.items():
            if thing not in reported:
                yield history_event(line, "", "blocked", thing, on=need)
        if (what := _WAITS.get((line.verb, line.outcome))) is not None:
            yield history_event(line, line.agent, what, line.thing, session=line.session)
        elif not line.events and line.outcome in REFUSALS:
            yield self._refused(line, line.thing)
        elif (line.verb, line.outcome) == ("task.complete", "blocked"):
            yield replace(self._refused(line, line.thing), reason="evidence", says=line.reason)

    def _refused(self, line: RecordLine, thing: str) -> HistoryEvent:
        return history_event(
            line, line.agent, "refused", thing, session=line.session, reason=line.outcome
        )

    def _task_event(self, line: RecordLine, event: Event, thing: str, need: str) -> HistoryEvent:
        what = event.name.partition(":")[2]
        if what == "claimed":
            return self._claim(line, event, thing)
        if what == "ready":
            return _ready(line, thing)
        if what in REFUSALS:
            return self._refused(line, thing)
        if what == "noted":
            number = next((keys.note_of(key) for key in line.put if key.startswith(keys.NOTES)), 0)
            return history_event(
                line, event.agent, what, thing, session=line.session, on=str(number)
            )
        if what in _BEGINS and self._whole:
            self._attempts[thing] = 0
        ended = self._claims.pop(thing, None) if what in _ENDS else None
        if what in _COUNTED and thing in self._attempts:
            self._attempts[thing] += 1
        own = line.session if line.agent == event.agent else ""
        return history_event(
            line,
            event.agent,
            what,
            thing,
            session=own if ended is None or what == "cancelled" else ended.session,
            trace=line.trace if ended is None or own else ended.trace,
            token=None if ended is None else ended.token,
            held=seconds_since(ended, line),
            on=need,
            rests=_rests(line, thing),
            reason=_reason(line, what, thing),
            says=_says(line, event, what),
            changed=event.details if what == "edited" else {},
        )

    def _claim(self, line: RecordLine, event: Event, thing: str) -> HistoryEvent:
        claim = OpenSpan(
            at=line.at, session=line.session, trace=line.trace, token=self._base + line.revision
        )
        self._claims[thing] = claim
        known = self._attempts.get(thing)
        return history_event(
            line,
            event.agent,
            "claimed",
            thing,
            session=line.session,
            token=claim.token,
            attempt=None if known is None else known + 1,
        )


def _ready(line: RecordLine, thing: str) -> HistoryEvent:
    """All its needs are complete, its guards pass, or it is due."""
    if line.verb == "task.edit":
        return history_event(line, "", "ready", thing, by=line.agent, on="edit")
    if line.verb == "task.ready":
        left = [key for key in line.deleted if key.startswith(keys.BEHIND_GUARDS)]
        own = [keys.hangs_of(key)[0] for key in left if keys.task_in_index(key) == _task(thing)]
        guard = f"guard {own[0].removeprefix('-')}" if own else ""
        return history_event(line, "", "ready", thing, by=line.agent, on=guard)
    by = line.agent if line.verb == "task.complete" else ""
    return history_event(line, "", "unblocked", thing, on=_task(line.thing), by=by)


def _says(line: RecordLine, event: Event, what: str) -> str:
    """The words of an entry about an event."""
    if what == "progress":
        from interlock.nouns.tasks.text import progress_text

        return progress_text(event.details.get("progress", 0.0), event.details.get("doing", ""))
    return line.reason if what in _SAYS else ""


def _reason(line: RecordLine, what: str, thing: str) -> str:
    """The reason of an event, as far as the entry shows it."""
    if what == "dead":
        return "deadline" if line.verb == "task.expire" else "attempts"
    return "final" if what == "failed" and keys.ended(_task(thing)) in line.put else ""


def _rests(line: RecordLine, thing: str) -> float | None:
    """Seconds until a worker may begin it, if the entry made it wait."""
    for key in line.put:
        if key.startswith(keys.DUE) and keys.task_in_index(key) == _task(thing):
            return round(max(keys.due_at(key) - line.at, 0.0), 3)
    return None


def _hung(line: RecordLine) -> Iterator[tuple[str, str]]:
    """Tasks that an entry left blocked, each with its need or its guard.

    Those of a batch are hidden.
    """
    for key in line.put:
        if key.startswith(keys.HANGS):
            need = keys.decode(key.split("/", 2)[1])
            if key.startswith(keys.BEHIND_GUARDS):
                yield f"task/{keys.task_in_index(key)}", f"guard {need.removeprefix('-')}"
            elif not need.startswith(BATCH):
                yield f"task/{keys.task_in_index(key)}", need


def _task(thing: str) -> str:
    return thing.removeprefix("task/")


def with_reason(found: tuple[HistoryEvent, ...], task: str) -> Op[tuple[HistoryEvent, ...]]:
    """The events, with the reason that the task itself still has, and what its notes say."""
    if numbers := [each.on for each in found if each.what == "noted"]:
        from interlock.nouns.tasks.notes import heads

        said = yield from heads(task, numbers)
        found = tuple(
            replace(each, says=said.get(each.on, "")) if each.what == "noted" else each
            for each in found
        )
    snapshot: Snapshot = yield Read(keys.status(task))
    status = decode_status(snapshot[keys.status(task)])
    last = next((each for each in reversed(found) if each.what in _WITH_REASON), None)
    if last is None or status is None or status.state in ("running", "complete"):
        return found
    reason = status.reason
    if last.what in ("cancelled", "dropped"):
        reason = reason.removeprefix(f"{last.what} by {status.by}").removeprefix(": ")
    return tuple(replace(each, says=reason) if each is last else each for each in found)
