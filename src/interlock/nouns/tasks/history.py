"""The history of tasks, from entries of the record.

An entry does not say the state of a task after it, but it names every key that it wrote.  So a task
that was put under ``hangs/{need}`` is blocked on that need, one under ``due/{moment}`` must rest
until then, and one under ``ended/`` is not retried:

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

from collections.abc import Iterator

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import REFUSALS, Event
from interlock.core.history import HistoryEvent, NounHistory, OpenSpan, history_event, seconds_since
from interlock.core.log import RecordLine
from interlock.drivers import Op, Read
from interlock.nouns.tasks.task import BATCH
from interlock.nouns.tasks.task_reader import decode_status
from interlock.store import Snapshot

_ENDS = ("released", "completed", "failed", "dead", "reclaimed", "cancelled", "requeued")
_BEGINS = ("published", "retried")
_COUNTED = ("failed", "reclaimed")
_WITH_REASON = ("failed", "dead", "cancelled")
_WAITS = {("task.wait", "waiting"): "waiting", ("task.withdraw", "withdrawn"): "withdrew"}


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
            if (
                event.name != "task:ready" or thing not in reported
            ):  # else it is ready from the start
                yield self._task_event(line, event, thing, hangs.get(thing, ""))
            reported.add(thing)
        for thing, need in hangs.items():
            if thing not in reported:
                yield history_event(line, "", "blocked", thing, on=need)
        if (what := _WAITS.get((line.verb, line.outcome))) is not None:
            yield history_event(line, line.agent, what, line.thing, session=line.session)
        elif not line.events and line.outcome in REFUSALS:
            yield self._refused(line, line.thing)

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
            says=line.reason if what == "requeued" else "",
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
    """All its needs are complete, or it is due."""
    if line.verb == "task.ready":
        return history_event(line, "", "ready", thing, by=line.agent)
    by = line.agent if line.verb == "task.complete" else ""
    return history_event(line, "", "unblocked", thing, on=_task(line.thing), by=by)


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
    """Tasks that an entry left blocked, each with its need; those of a batch are hidden."""
    for key in line.put:
        if key.startswith(keys.HANGS):
            need = keys.decode(key.split("/", 2)[1])
            if not need.startswith(BATCH):
                yield f"task/{keys.task_in_index(key)}", need


def _task(thing: str) -> str:
    return thing.removeprefix("task/")


def with_reason(found: tuple[HistoryEvent, ...], task: str) -> Op[tuple[HistoryEvent, ...]]:
    """The events, with the reason that the task itself still has."""
    snapshot: Snapshot = yield Read(keys.status(task))
    status = decode_status(snapshot[keys.status(task)])
    last = next((each for each in reversed(found) if each.what in _WITH_REASON), None)
    if last is None or status is None or status.state in ("running", "complete"):
        return found
    reason = status.reason if last.what != "cancelled" else status.reason.partition(": ")[2]
    return tuple(replace(each, says=reason) if each is last else each for each in found)
