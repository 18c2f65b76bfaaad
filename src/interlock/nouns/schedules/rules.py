"""Decisions about schedules: add, drop, pause, resume, and publish what is due.

``timing.py`` finds the times before a decision is made: these functions only compare them.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Event, Write
from interlock.core.safe_text import foreign
from interlock.nouns.schedules import schedule as core
from interlock.nouns.schedules.schedule import DueRuns, Schedule, run_id
from interlock.nouns.tasks import progress_rules
from interlock.nouns.tasks.rules import OPEN
from interlock.nouns.tasks.task import DueEntry, Spec
from interlock.nouns.tasks.task_change import TaskChanges
from interlock.runtime.attempt import outcome_word

T = TypeVar("T")

POSTPONED = 300.0
"""Seconds until a schedule is tried again that this host can neither read nor date."""
_VERBS = {"added": "add", "dropped": "drop", "paused": "pause", "resumed": "resume"}
_WAKE = keys.wake_ready(keys.NO_REQUIREMENTS)
"""Every waiting worker is woken by it, and plans its sleep again."""


def add(
    name: str, fresh: Schedule, task: Spec, before: Schedule | None, *, replaces: bool
) -> Decision[core.AddOutcome]:
    """Add a schedule, whose first ``run`` is known; with ``replaces`` also instead of another."""
    if before is not None and not replaces:
        return Decision(outcome=core.ScheduleExists(schedule=name, state=before.state))
    assert fresh.run is not None  # noqa: S101 - a schedule that never comes was refused
    kept = fresh
    if before is not None:
        kept = replace(
            fresh,
            published=before.published,
            lost=before.lost,
            skipped=before.skipped,
            last_task=before.last_task,
            last_run=before.last_run,
            last_at=before.last_at,
        )
    moved = _at(name, kept, fresh.run, fresh.at)
    outcome: core.AddOutcome = core.ScheduleAdded(
        schedule=name,
        next_run=fresh.run,
        task=run_id(name, fresh.run),
        replaced=before is not None,
    )
    puts = (Write(keys.schedule_task(name), task), *_moved(name, moved))
    return _changed(outcome, name, fresh.by, puts, _gone(before, moved))


def drop(name: str, before: Schedule | None, agent: str) -> Decision[core.DropOutcome]:
    """Delete a schedule."""
    if before is None:
        return Decision(outcome=core.UnknownSchedule(unknown=(name,)))
    deletes = (keys.schedule(name), keys.schedule_task(name), *_gone(before, None))
    outcome: core.DropOutcome = core.ScheduleDropped(schedule=name)
    return _changed(outcome, name, agent, (), deletes)


def pause(
    name: str, before: Schedule | None, agent: str, reason: str, now: float
) -> Decision[core.PauseOutcome]:
    """Publish nothing until it is resumed."""
    if before is None:
        return Decision(outcome=core.UnknownSchedule(unknown=(name,)))
    if before.state == "paused":
        return Decision(outcome=core.SchedulePaused(schedule=name, already=True))
    after = replace(before, state="paused", due="", moved=now, changed_by=agent, reason=reason)
    outcome: core.PauseOutcome = core.SchedulePaused(schedule=name)
    done = _changed(outcome, name, agent, _moved(name, after), _gone(before, after))
    return replace(done, reason=reason)


def resume(
    name: str, before: Schedule | None, following: float | None, agent: str, now: float
) -> Decision[core.ResumeOutcome]:
    """Go on with the first time after now."""
    if before is None:
        return Decision(outcome=core.UnknownSchedule(unknown=(name,)))
    if before.state == "active" and before.moved <= now + core.AHEAD:
        return Decision(
            outcome=core.ScheduleResumed(schedule=name, next_run=before.run, already=True)
        )
    active = replace(before, state="active", changed_by=agent, reason="")
    after = _at(name, active, following, now)
    outcome: core.ResumeOutcome = core.ScheduleResumed(schedule=name, next_run=following)
    return _changed(outcome, name, agent, _moved(name, after), _gone(before, after))


def publish(
    changes: TaskChanges, name: str, schedule: Schedule, task: Spec, found: DueRuns
) -> Decision[str]:
    """Publish the task of a run that is due, and go on to the next time.

    ``published``; ``failed`` if it cannot be, ``missed`` if there is none to publish any more,
    ``skipped`` if the last one is open, ``moved`` if it was published before.
    """
    after = _at(name, schedule, found.following, changes.now)
    after = replace(after, lost=schedule.lost + found.lost)
    word, said = "missed", f"{found.lost} runs"
    if found.run is not None and (open_ := _open_run(changes, schedule)):
        word, said = "skipped", open_
        after = replace(after, skipped=schedule.skipped + 1)
    elif found.run is not None:
        id_ = run_id(name, found.run)
        spec = replace(task, at=found.run, schedule=name)
        if schedule.deadline is not None:
            spec = replace(spec, deadline=changes.now + schedule.deadline)
        word, failure = _publish_task(changes, name, id_, spec)
        said = failure or id_
        if failure:
            after = replace(after, failure=failure, failed_run=found.run)
        else:
            after = replace(
                after,
                failure="",
                failed_run=0.0,
                published=after.published + (word == "published"),
                last_task=id_,
                last_run=found.run,
                last_at=changes.now,
            )
    changes.delete(schedule.due)
    changes.write(*_moved(name, after))
    changes.signal(_WAKE)
    changes.event(f"schedule:{word}", schedule.by)
    return replace(changes.decision(word, "schedule.publish", f"schedule/{name}"), reason=said)


def _open_run(changes: TaskChanges, schedule: Schedule) -> str:
    """Why a run is given up: the last task is open, and runs must not overlap; else empty."""
    last = schedule.last_task
    if schedule.overlap != "skip" or not last:
        return ""
    status = changes.facts.status(last)
    changes.rely(keys.status(last))
    if status is None or status.state not in OPEN:
        return ""
    return f"{last} is {status.state}"


def _publish_task(changes: TaskChanges, name: str, id_: str, spec: Spec) -> tuple[str, str]:
    """Publish the task of a run: the word for the record, and why it cannot be."""
    progress_rules.read_needs(changes, spec.needs, (id_,))
    if changes.status(id_) is not None:
        if changes.facts.spec(id_).schedule == name:  # by an earlier schedule of this name
            return "moved", ""
        return (
            "failed",
            f"there is a task {foreign(id_)} already, which this schedule did not publish",
        )
    changes.facts.need_all(changes.exists, spec.needs)
    missing = next((need for need in spec.needs if not changes.exists(need)), None)
    if missing is not None:
        return "failed", f"its task needs {foreign(missing)}, which does not exist"
    progress_rules.read_requirement_sets(changes, (spec,))
    progress_rules.create(changes, id_, spec)
    return "published", ""


def tidy(entry: str, name: str, schedule: Schedule | None, *, stands: bool) -> Decision[str]:
    """Delete an entry of the ``due`` index that its schedule does not name.

    If the entry that it does name is gone (``stands``), that is put back.
    """
    puts: tuple[Write, ...] = ()
    if schedule is not None and schedule.due and not stands:
        puts = (Write(schedule.due, DueEntry()),)
    return Decision(
        outcome="tidied",
        verb="schedule.tidy",
        thing=f"schedule/{name}",
        puts=puts,
        deletes=(entry,),
    )


def postpone(entry: str, name: str, now: float) -> Decision[str]:
    """Try a schedule again later that this host can neither read nor date."""
    return Decision(
        outcome="postponed",
        verb="schedule.tidy",
        thing=f"schedule/{name}",
        puts=(Write(keys.due_schedule(now + POSTPONED, name), DueEntry()),),
        deletes=(entry,),
    )


def delay(name: str, schedule: Schedule, failure: str, now: float) -> Decision[str]:
    """Keep the run of a schedule for later, since this host cannot date the next one."""
    due = keys.due_schedule(now + POSTPONED, name)
    after = replace(schedule, due=due, moved=now, failure=failure, failed_run=schedule.run or 0.0)
    return Decision(
        outcome="failed",
        verb="schedule.publish",
        thing=f"schedule/{name}",
        puts=_moved(name, after),
        deletes=(schedule.due,),
        events=(Event("schedule:failed", schedule.by),),
        reason=failure,
    )


def repair(
    name: str, schedule: Schedule | None, following: float | None, *, stands: bool, now: float
) -> Decision[bool]:
    """Put back the entry of a schedule, or correct the time that a wrong clock gave it."""
    if schedule is None or schedule.state != "active":
        return Decision(outcome=False)
    after = schedule
    if schedule.moved > now + core.AHEAD:
        after = _at(name, schedule, following, now)
    elif stands or not schedule.due:
        return Decision(outcome=False)
    return Decision(
        outcome=True,
        verb="schedule.tidy",
        thing=f"schedule/{name}",
        puts=_moved(name, after),
        deletes=_gone(schedule, after),
        signals=(_WAKE,),
    )


def _at(name: str, schedule: Schedule, run: float | None, now: float) -> Schedule:
    """The schedule with its next run; it has ended if there is none any more."""
    if run is None:
        return replace(schedule, state="ended", run=None, due="", moved=now)
    return replace(schedule, run=run, due=keys.due_schedule(run, name), moved=now)


def _moved(name: str, after: Schedule) -> tuple[Write, ...]:
    """The writes of a schedule and of its entry."""
    entry = (Write(after.due, DueEntry()),) if after.due else ()
    return (Write(keys.schedule(name), after), *entry)


def _gone(before: Schedule | None, after: Schedule | None) -> tuple[str, ...]:
    """The entry of a schedule that stands no more."""
    if before is None or not before.due or (after is not None and after.due == before.due):
        return ()
    return (before.due,)


def _changed(
    outcome: T, name: str, agent: str, puts: tuple[Write, ...], deletes: tuple[str, ...]
) -> Decision[T]:
    """The decision of a caller; its verb and its event follow from the outcome."""
    word = outcome_word(outcome)
    return Decision(
        outcome=outcome,
        verb=f"schedule.{_VERBS[word]}",
        thing=f"schedule/{name}",
        puts=puts,
        deletes=deletes,
        signals=(_WAKE,),
        events=(Event(f"schedule:{word}", agent),),
    )
