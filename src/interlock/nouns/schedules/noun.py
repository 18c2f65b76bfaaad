"""The declaration of schedules: their requests, operations, keys, and what they add to others."""

from typing import TYPE_CHECKING, Annotated, get_args

from interlock.core import keys
from interlock.nouns.schedules import schedule as core
from interlock.nouns.tasks import task as task_types
from interlock.nouns.tasks.publish_options import (
    Backoff,
    BackoffMost,
    Data,
    Evidence,
    Guards,
    Labels,
    Needs,
    Priority,
    Requires,
    Retries,
    Text,
    Title,
    shared_terms,
)
from interlock.runtime.noun import KeyKind, Noun, Part
from interlock.runtime.operation import Duration, Given, Operation, Request, option

if TYPE_CHECKING:
    from interlock.nouns.fleet.calls import FleetCalls
    from interlock.steps import Op

Name = Annotated[str, option("name", "the name of the schedule", positional=True)]


class ScheduleAdd(Request, frozen=True, kw_only=True):
    """Publish a task again and again."""

    schedule: Annotated[
        str, option("name", "its name; its tasks are called NAME@TIME", positional=True)
    ]
    every: Annotated[Duration | None, option("duration", "the time between two runs: 1h")] = None
    start: Annotated[
        str | None,
        option("text", "the first run of --every: 2h from now, or a time: 2026-11-15T10:00"),
    ] = None
    cron: Annotated[
        str | None,
        option("text", "minute, hour, day of the month, month, day of the week: '0 9 * * 1-5'"),
    ] = None
    zone: Annotated[str, option("text", "the time zone of --cron: Europe/Berlin")] = "UTC"
    missed: Annotated[
        str,
        option("text", "if no process looked in time: publish the last run (once), all, or none"),
    ] = "once"
    overlap: Annotated[
        str,
        option("text", "while its last task is open: publish the next (allow), or do not (skip)"),
    ] = "allow"
    title: Title = ""
    text: Text = ""
    data: Data = None
    priority: Priority = task_types.PRIORITY
    needs: Needs = ()
    requires: Requires = ()
    label: Labels = ()
    guard: Guards = ()
    evidence: Evidence = ()
    deadline: Annotated[
        str | None,
        option("text", "a dead letter if no worker began it so long after its publishing: 30m"),
    ] = None
    retries: Retries = task_types.RETRIES
    backoff: Backoff = task_types.BACKOFF
    backoff_most: BackoffMost = task_types.BACKOFF_MOST
    replace: Annotated[bool, option("flag", "replace a schedule of the same name")] = False
    given: Given = ()


class ScheduleDrop(Request, frozen=True, kw_only=True):
    """Delete a schedule."""

    schedule: Name
    given: Given = ()


class SchedulePause(Request, frozen=True, kw_only=True):
    """Publish nothing for now."""

    schedule: Name
    reason: Annotated[str, option("text", "the reason, shown to others", positional=True)] = ""
    given: Given = ()


class ScheduleResume(Request, frozen=True, kw_only=True):
    """Go on."""

    schedule: Name
    given: Given = ()


class SchedulesList(Request, frozen=True, kw_only=True):
    """Schedules by name."""

    prefix: Annotated[str | None, option("text", "only names that begin like this")] = None
    after: Annotated[str | None, option("name", "start after this name")] = None
    limit: Annotated[
        int, option("int", "how many schedules to list at most", least=1, most=core.MOST)
    ] = core.LISTED


class ScheduleShow(Request, frozen=True, kw_only=True):
    """One schedule."""

    schedule: Name


def _add(fleet: "FleetCalls", request: ScheduleAdd) -> "Op[core.AddOutcome]":
    return fleet.schedules.add(
        request.schedule,
        request.data,
        every=request.every,
        start=request.start,
        cron=request.cron,
        zone=request.zone,
        missed=request.missed,
        overlap=request.overlap,
        replace=request.replace,
        **shared_terms(request),
    )


NOUN = Noun(
    name="schedule",
    help="tasks that are published again and again, each run once",
    calls="interlock.nouns.schedules.calls:ScheduleCalls",
    keys=(
        KeyKind(prefix=keys.SCHEDULES, read="interlock.nouns.schedules.service:decode_schedule"),
        KeyKind(prefix=keys.SCHEDULE_TASKS, read="interlock.nouns.tasks.task_reader:decode_spec"),
    ),
    why={"schedule": "interlock.nouns.schedules.views:why"},
    history="interlock.nouns.schedules.views:ScheduleHistory",
    health=Part(32, "interlock.nouns.schedules.views:health"),
    housekeeping=Part(9, "interlock.nouns.schedules.housekeeping:ScheduleHousekeepingPart"),
    events=True,
    texts=("interlock.nouns.schedules.text",),
    operations=(
        Operation(
            name="schedule add",
            help="publish a task again and again, at an interval or by a cron line",
            request=ScheduleAdd,
            outcomes=get_args(core.AddOutcome),
            needs="agent",
            act=_add,
            examples=(
                "interlock schedule add nightly --cron '0 2 * * *' --zone Europe/Rome --agent ada",
                "interlock schedule add sweep --every 1h --requires gpu --overlap skip --agent ada",
            ),
        ),
        Operation(
            name="schedule list",
            help="list schedules by name: when they are due, and their last task",
            request=SchedulesList,
            outcomes=(core.ScheduleList,),
            needs="store",
            reads=True,
            pages=True,
            call="schedules.list",
        ),
        Operation(
            name="schedule show",
            help="show one schedule: its next times, its task, its last run",
            request=ScheduleShow,
            outcomes=(core.ScheduleView, core.UnknownSchedule),
            needs="store",
            reads=True,
            call="schedules.show",
        ),
        Operation(
            name="schedule pause",
            help="publish nothing until the schedule is resumed",
            request=SchedulePause,
            outcomes=get_args(core.PauseOutcome),
            needs="agent",
            call="schedules.pause",
            takes=True,
            examples=("interlock schedule pause nightly 'the disk is full' --agent ada",),
        ),
        Operation(
            name="schedule resume",
            help="go on with the first time after now",
            request=ScheduleResume,
            outcomes=get_args(core.ResumeOutcome),
            needs="agent",
            call="schedules.resume",
            takes=True,
        ),
        Operation(
            name="schedule drop",
            help="delete a schedule; the tasks that it published stay",
            request=ScheduleDrop,
            outcomes=get_args(core.DropOutcome),
            needs="agent",
            call="schedules.drop",
            takes=True,
            examples=("interlock schedule drop nightly --agent ada",),
        ),
    ),
)
