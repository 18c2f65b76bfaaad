"""What list, show, why and health say about schedules."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import asdict, replace

from interlock.core import keys
from interlock.core.decision import Event
from interlock.core.entry import RecordLine
from interlock.core.history import HistoryEvent, NounHistory
from interlock.core.safe_text import foreign
from interlock.core.validate import command, quote, span
from interlock.errors import BadInput
from interlock.nouns.schedules import schedule as core
from interlock.nouns.schedules import timing
from interlock.nouns.schedules.schedule import Schedule
from interlock.nouns.schedules.service import decode_schedule
from interlock.nouns.tasks.task import Spec
from interlock.nouns.tasks.task_reader import decode_spec
from interlock.runtime.health import HealthCheck, Problem
from interlock.runtime.reads import Pages, looked_up, readable
from interlock.runtime.retention_clock import later_time
from interlock.runtime.why import Why
from interlock.steps import Op, Read

if TYPE_CHECKING:
    from interlock.client_context import Context

PAGE = 200
_NEXT = 5
"""The next times that ``show`` names."""
_SHOWN = (
    "title", "text", "priority", "requires", "needs", "labels", "guards", "evidence", "retries",
    "backoff", "backoff_most",
)  # fmt: skip


def when(schedule: Schedule) -> str:
    """When a schedule is due, in words."""
    if schedule.cron:
        return f"{schedule.cron} ({schedule.zone})"
    return f"every {span(schedule.every)}"


def list_schedules(prefix: str, after: str | None, limit: int) -> Op[core.ScheduleList]:
    """Schedules by name."""
    found: list[core.ListedSchedule] = []
    start = "" if after is None else keys.schedule(after)
    pages = Pages(keys.SCHEDULES + keys.encode(prefix), start, PAGE)
    while not pages.finished:
        for item in (yield from pages.read(PAGE)):
            schedule = readable(decode_schedule, item)
            if schedule is None:
                continue
            if len(found) == limit:
                return core.ScheduleList(schedules=tuple(found), more=found[-1].schedule)
            found.append(_listed(keys.schedule_of(item.key), schedule))
    return core.ScheduleList(schedules=tuple(found))


def show_schedule(name: str, now: float) -> Op[core.ScheduleView | core.UnknownSchedule]:
    """One schedule."""
    own, what = keys.schedule(name), keys.schedule_task(name)
    items = (yield Read(own, what)).items
    schedule = decode_schedule(items[own])
    if schedule is None:
        return core.UnknownSchedule(unknown=(name,))
    task = decode_spec(items[what])
    return core.ScheduleView(
        **asdict(_listed(name, schedule)),
        task={} if task is None else _fields(task),
        next_runs=tuple(_next_runs(schedule, now)),
        deadline_in=schedule.deadline,
    )


def _fields(task: Spec) -> dict[str, object]:
    """The fields of the task that differ from those of a plain one."""
    plain = Spec(at=0.0)
    found = {
        name: getattr(task, name)
        for name in _SHOWN
        if getattr(task, name, None) != getattr(plain, name, None)
    }
    data = msgspec.json.decode(task.data)
    return found if data is None else {"data": data, **found}


def _next_runs(schedule: Schedule, now: float) -> list[float]:
    found: list[float] = []
    run = schedule.run if schedule.state == "active" else None
    while run is not None and len(found) < _NEXT:
        found.append(run)
        try:
            run = timing.following(schedule, max(run, now))
        except BadInput:  # this host does not know the time zone
            break
    return found


def _listed(name: str, schedule: Schedule) -> core.ListedSchedule:
    return core.ListedSchedule(
        schedule=name,
        state=schedule.state,
        when=when(schedule),
        missed=schedule.missed,
        overlap=schedule.overlap,
        every=schedule.every or None,
        cron=schedule.cron,
        zone=schedule.zone if schedule.cron else "",
        next_run=schedule.run if schedule.state == "active" else None,
        published=schedule.published,
        lost=schedule.lost,
        skipped=schedule.skipped,
        last_task=schedule.last_task,
        last_run=schedule.last_run or None,
        last_at=schedule.last_at or None,
        failure=schedule.failure,
        failed_run=schedule.failed_run or None,
        added_at=schedule.at,
        added_by=schedule.by,
        reason=schedule.reason,
        changed_by=schedule.changed_by,
    )


def moment(time: float | None, zone: str = "UTC") -> str:
    """A time of the wall clock in a zone, for a person; in UTC if this host does not know it."""
    if time is None:
        return ""
    try:
        there = datetime.fromtimestamp(time, timing.zone_of(zone))
    except BadInput:
        return moment(time)
    return f"{there:%Y-%m-%d %H:%M:%S} {there.tzname()}"


class ScheduleHistory(NounHistory):
    """Schedules: added, published, missed, skipped, failed, paused, resumed, dropped.

    ``says`` has the task that was published, or why none was.
    """

    words = ("schedule",)

    def _event(self, line: RecordLine, event: Event) -> HistoryEvent:
        found = super()._event(line, event)
        if not event.name.startswith("schedule:"):
            return found
        given = found.what == "paused" and line.reason
        return replace(found, says=foreign(line.reason) if given else line.reason)


def why(context: Context, name: str) -> Op[Why]:
    """Explain why a schedule publishes nothing now."""
    own, thing = keys.schedule(name), f"schedule/{name}"
    schedule = decode_schedule((yield Read(own))[own])
    if schedule is None:
        return Why(
            thing=thing,
            blocked=False,
            because="there is no such schedule",
            clear=f"add it: interlock schedule add {quote(name)} --every 1h --agent NAME",
            state="unknown",
        )
    now = context.runner.clock.wall()
    if schedule.state != "active":
        return _resting(name, schedule)
    if schedule.failure:
        return Why(
            thing=thing,
            blocked=True,
            because=f"its run of {moment(schedule.failed_run)} could not be published:"
            f" {schedule.failure}; its next run is at {moment(schedule.run)}",
            clear="remove the cause before its next run, or add it again with --replace",
            by=schedule.by,
            since=schedule.moved,
            state=schedule.state,
        )
    if schedule.run is not None and schedule.run <= now:
        return Why(
            thing=thing,
            blocked=True,
            because=f"its run of {moment(schedule.run)} is due, and no process looked since",
            clear="start a worker, or run 'interlock maintain'",
            since=schedule.run,
            state=schedule.state,
        )
    last = f"; it published {foreign(schedule.last_task)} last" if schedule.last_task else ""
    return Why(
        thing=thing,
        blocked=False,
        because=f"its next run is at {moment(schedule.run)}{last}",
        clear="nothing is left to do until then",
        by=schedule.by,
        since=schedule.last_at or None,
        state=schedule.state,
    )


def _resting(name: str, schedule: Schedule) -> Why:
    said = f": {foreign(schedule.reason)}" if schedule.reason else ""
    paused = schedule.state == "paused"
    return Why(
        thing=f"schedule/{name}",
        blocked=True,
        because=f"it is paused{said}" if paused else "it has no further time",
        clear=f"interlock schedule resume {quote(name)} --agent NAME"
        if paused
        else f"add it with other times: interlock schedule add {quote(name)} --replace",
        by=schedule.changed_by,
        since=schedule.moved,
        state=schedule.state,
    )


def health(checkup: HealthCheck) -> Op[list[Problem]]:
    """Schedules that need attention: runs that could not be published, or that none published."""
    items = yield from checkup.read(keys.SCHEDULES)
    now = (yield from later_time(checkup.runner)) if items else 0.0
    found = list[Problem]()
    active = {
        keys.schedule_of(item.key): each
        for item in items
        if (each := readable(decode_schedule, item)) is not None and each.state == "active"
    }
    entries = yield from looked_up(each.due for each in active.values())
    for name, each in active.items():
        thing, since = f"schedule/{name}", each.run
        if each.failure:
            said = f"its run of {moment(each.failed_run)} could not be published: {each.failure}"
            remedy, since = (
                f"remove the cause; see {command(f'interlock why {quote(thing)}')}",
                each.failed_run,
            )
        elif each.run is not None and now - each.run > checkup.patience.waiting:
            said = f"its run of {moment(each.run)} was not published: no process looks for work"
            remedy = "start a worker, or run 'interlock maintain'"
        elif each.moved > now + core.AHEAD or entries[each.due] is None:
            said = "a client with a wrong clock, or of an older version, changed its next run"
            remedy, since = "run 'interlock maintain'", None
        else:
            continue
        found.append(
            Problem(
                kind="failed" if each.failure else "overdue",
                says=f"{thing}: {said}",
                remedy=remedy,
                thing=thing,
                agent=each.by,
                since=since,
            )
        )
    return found
