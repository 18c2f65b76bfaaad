"""The calls of schedules: arguments are validated, and the service carries them out."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING

from msgspec.structs import replace as changed

from interlock.client_context import Moment
from interlock.core import validate
from interlock.errors import BadInput
from interlock.nouns.schedules import schedule as core
from interlock.nouns.schedules import timing
from interlock.nouns.schedules.schedule import Schedule
from interlock.nouns.tasks import task as task_types
from interlock.runtime.calls import Calls, D, call
from interlock.runtime.given import Given
from interlock.steps import Op

if TYPE_CHECKING:
    from interlock.nouns.schedules.service import ScheduleService


class ScheduleCalls(Calls[D]):
    """Schedules, by name."""

    @cached_property
    def _service(self) -> ScheduleService:
        from interlock.nouns.schedules.service import ScheduleService

        return ScheduleService(self.context.runner)

    @call
    def add(
        self,
        schedule: str,
        data: object = None,
        *,
        every: float | str | None = None,
        start: Moment | None = None,
        cron: str | None = None,
        zone: str = "UTC",
        missed: str = "once",
        overlap: str = "allow",
        title: str = "",
        text: str = "",
        priority: int = task_types.PRIORITY,
        requires: Iterable[str] = (),
        needs: Iterable[str] = (),
        labels: Iterable[str] = (),
        guard: str | Iterable[str] = (),
        evidence: str | Iterable[str] = (),
        deadline: float | str | None = None,
        retries: int = task_types.RETRIES,
        backoff: float | str = task_types.BACKOFF,
        backoff_most: float | str = task_types.BACKOFF_MOST,
        replace: bool = False,
        given: Given = (),
    ) -> Op[core.AddOutcome]:
        """Publish a task again and again: ``every`` so often, or by a ``cron`` line in a ``zone``.

        An interval counts from ``start`` on (a duration from now, or a time), else from now.  Each
        run is published once, however many processes look, as the task ``NAME@TIME``, with the
        planned time in UTC.  It is published by the processes that look for work (``next``,
        ``work``, ``serve``) and by ``maintain``.  If none of them looked for a while, ``missed``
        says what to do about the runs of that time: publish the last one (``once``), ``all`` of
        them, the last hundred at most, or ``none``.  While its last task is open, a run is
        published all the same, or not at all with ``overlap="skip"``.

        The other arguments are those of ``tasks.publish``; ``deadline`` is how long after its
        publishing each task may begin.  With ``replace`` it replaces a schedule of the same name.
        """
        now, agent = self.context.runner.clock.wall(), self.context.me().actor.agent
        name = schedule_name(schedule)
        made = Schedule(
            at=now,
            by=agent,
            missed=_missed(missed),
            overlap=_overlap(overlap),
            deadline=None if deadline is None else validate.duration(deadline, "deadline"),
        )
        if every is not None and cron is None and zone == "UTC":
            made = _at_intervals(made, now, every, start)
        elif cron is not None and every is None and start is None:
            made = _by_cron(made, cron, zone)
        else:
            raise BadInput(
                "a schedule needs either an interval (every=3600, --every 1h), maybe with a start,"
                " or a cron line (cron='0 9 * * 1-5'), maybe with a time zone"
            )
        made = _with_first_run(made, now)
        fields = {
            "data": data,
            "title": title,
            "text": text,
            "priority": priority,
            "requires": requires,
            "needs": needs,
            "labels": labels,
            "guard": _several(guard),
            "evidence": _several(evidence),
            "retries": retries,
            "backoff": backoff,
            "backoff_most": backoff_most,
        }
        from interlock.nouns.tasks.plan import template

        task, again = template(fields, agent), validate.flag(replace, "replace")
        identity = self._identity(given)
        adding = self._service.add(identity.actor, name, made, task, replaces=again)
        return self._fenced(identity, adding)

    @call
    def drop(self, schedule: str, *, given: Given = ()) -> Op[core.DropOutcome]:
        """Delete a schedule; the tasks that it published stay."""
        identity = self._identity(given)
        return self._fenced(identity, self._service.drop(identity.actor, schedule_name(schedule)))

    @call
    def pause(self, schedule: str, reason: str = "", *, given: Given = ()) -> Op[core.PauseOutcome]:
        """Publish nothing until it is resumed."""
        said = validate.text(reason, "reason", validate.REASON_LIMIT)
        identity = self._identity(given)
        return self._fenced(
            identity, self._service.pause(identity.actor, schedule_name(schedule), said)
        )

    @call
    def resume(self, schedule: str, *, given: Given = ()) -> Op[core.ResumeOutcome]:
        """Go on with the first time after now; runs of the time in between are not published."""
        identity = self._identity(given)
        return self._fenced(identity, self._service.resume(identity.actor, schedule_name(schedule)))

    @call
    def list(
        self,
        *,
        prefix: str | None = None,
        after: str | None = None,
        limit: int = core.LISTED,
    ) -> Op[core.ScheduleList]:
        """Schedules by name, with their next times; ``after`` a name, if ``more`` are left."""
        from interlock.nouns.schedules.views import list_schedules

        return list_schedules(
            "" if prefix is None else validate.prefix(prefix),
            None if after is None else schedule_name(after),
            validate.integer(limit, "limit", 1, core.MOST),
        )

    @call
    def show(self, schedule: str) -> Op[core.ScheduleView | core.UnknownSchedule]:
        """One schedule: when it is due, what it publishes, and what became of its last run."""
        from interlock.nouns.schedules.views import show_schedule

        return show_schedule(schedule_name(schedule), self.context.runner.clock.wall())


def schedule_name(text: str) -> str:
    """The name of a schedule, with which the ids of its tasks begin."""
    name = validate.task_id(validate.name(text, "schedule name"))
    if name.startswith("schedule/"):
        raise BadInput(f"a schedule goes by its name alone here; drop 'schedule/' from {name!r}")
    if len(name.encode()) > core.NAME_LIMIT:
        raise BadInput(
            f"the schedule name has {len(name.encode())} bytes; {core.NAME_LIMIT} are allowed,"
            " since the ids of its tasks are the name and the time"
        )
    return name


def _missed(word: str) -> core.MissedRuns:
    for known in core.MISSED:
        if word == known:
            return known
    raise BadInput(f"'missed' is {', '.join(core.MISSED)}, not {word!r:.40}")


def _overlap(word: str) -> core.Overlap:
    for known in core.OVERLAPS:
        if word == known:
            return known
    raise BadInput(f"'overlap' is {' or '.join(core.OVERLAPS)}, not {word!r:.40}")


def _several(given: str | Iterable[str]) -> Iterable[str]:
    return (given,) if isinstance(given, str) else given


def _at_intervals(made: Schedule, now: float, every: float | str, start: Moment | None) -> Schedule:
    """The schedule, with its interval."""
    seconds = validate.duration(every, "interval")
    if seconds < 1 or seconds != int(seconds):
        raise BadInput(f"the interval is {seconds:g} s; give a whole number of seconds, from 1 on")
    first = now + seconds if start is None else validate.future_moment(start, now, "start")
    return changed(made, every=seconds, start=float(ceil(first)))


def _by_cron(made: Schedule, cron: str, zone: str) -> Schedule:
    """The schedule, with its cron line."""
    line = timing.check_cron(validate.text(cron, "cron line", validate.REASON_LIMIT))
    text = validate.text(zone, "time zone", validate.NAME_LIMIT)
    return changed(made, cron=line, zone=timing.check_zone(text))


def _with_first_run(made: Schedule, now: float) -> Schedule:
    """The schedule with its first run; it is refused if there is none."""
    run = timing.following(made, now)
    if run is None:
        raise BadInput(f"the cron line {made.cron!r} never comes; name days that exist")
    return changed(made, run=run)
