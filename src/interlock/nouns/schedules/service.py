"""Schedules on a store: added, dropped, paused, resumed, and published when they are due.

``publish_due`` is called by every client that finds entries of schedules in the ``due`` index: a
worker that looks for work, and ``maintain``.  Each run is one commit, so a process that is killed
between two of them leaves nothing half done, and the next one goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from msgspec import Struct

from interlock.core import codec, keys
from interlock.core.decision import Decision
from interlock.errors import BadInput, StoreDamaged, StoreFull, TooLarge
from interlock.nouns.schedules import rules, timing
from interlock.nouns.schedules import schedule as core
from interlock.nouns.schedules.schedule import DueRuns, Schedule
from interlock.nouns.tasks.task import Spec
from interlock.nouns.tasks.task_change import TaskChanges
from interlock.nouns.tasks.task_reader import TaskReader, decode_spec
from interlock.runtime.attempt import DecideOp
from interlock.runtime.identity import Actor
from interlock.runtime.retention_clock import engine_time, later_time
from interlock.runtime.runner import Decided, Runner
from interlock.steps import Op
from interlock.store import Item

T = TypeVar("T")

RUNS_AT_ONCE = 12
"""The most missed runs of one schedule that a call publishes; the next call goes on."""
_SCHEDULE = codec.Decoder(Schedule)


def decode_schedule(item: Item | None) -> Schedule | None:
    """A schedule."""
    return _SCHEDULE.read_if_present(item)


class ScheduleService:
    """What callers do with schedules, as generators for a driver."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def add(
        self, actor: Actor, name: str, schedule: Schedule, task: Spec, *, replaces: bool
    ) -> Op[core.AddOutcome]:
        """Add a schedule."""
        decide = partial(rules.add, name, schedule, task, replaces=replaces)
        return (yield from self._change(actor, name, decide))

    def drop(self, actor: Actor, name: str) -> Op[core.DropOutcome]:
        """Delete a schedule."""
        return (yield from self._change(actor, name, lambda it: rules.drop(name, it, actor.agent)))

    def pause(self, actor: Actor, name: str, reason: str) -> Op[core.PauseOutcome]:
        """Publish nothing until it is resumed."""
        now = self._runner.clock.wall()
        pausing = lambda it: rules.pause(name, it, actor.agent, reason, now)  # noqa: E731 - short
        return (yield from self._change(actor, name, pausing))

    def resume(self, actor: Actor, name: str) -> Op[core.ResumeOutcome]:
        """Go on with the first time after now."""
        now = yield from later_time(self._runner)

        def resuming(schedule: Schedule | None) -> Decision[core.ResumeOutcome]:
            following = None if schedule is None else timing.following(schedule, now)
            return rules.resume(name, schedule, following, actor.agent, now)

        return (yield from self._change(actor, name, resuming))

    def _change(
        self, actor: Actor, name: str, decide: Callable[[Schedule | None], Decision[T]]
    ) -> Op[T]:
        own = keys.schedule(name)

        def deciding() -> DecideOp[T]:
            return decide(decode_schedule((yield (own,)).items[own]))

        done: Decided[T] = yield from self._runner.change(deciding, actor)
        return done.outcome


class PublishedRuns(Struct, frozen=True):
    """How many commits were made for schedules that are due; ``now`` is the time that counted."""

    commits: int
    now: float


def publish_due(runner: Runner, actor: Actor, entries: Sequence[str]) -> Op[PublishedRuns]:
    """Publish what is due of schedules, by these entries of the ``due`` index.

    A schedule that cannot be read is tried again later, so that it does not stop the others; so is
    one that a full store does not take, so that ``maintain`` can go on and make room.
    """
    base = yield from runner.base()
    engine, now = (yield from engine_time()), runner.clock.wall()
    now = now if engine is None else min(now, engine)
    commits = 0
    for entry in entries:
        name = keys.schedule_in_index(entry)
        try:
            commits += yield from _publish(runner, actor, base, entry, now)
        except (StoreDamaged, StoreFull, TooLarge):
            yield from runner.change(partial(_postponing, entry, name, now), actor)
            commits += 1
    return PublishedRuns(commits, now)


def _publish(runner: Runner, actor: Actor, base: int, entry: str, now: float) -> Op[int]:
    """Publish the missed runs of a schedule, with a commit for each."""
    commits = 0
    while entry and commits < RUNS_AT_ONCE:
        moved: list[str] = []
        done: Decided[str] = yield from runner.change(
            partial(_publishing, runner, base, entry, now, moved), actor
        )
        if not done.outcome:
            break
        commits += 1
        entry = moved[-1] if moved and keys.due_at(moved[-1]) <= now else ""
    return commits


def _publishing(
    runner: Runner, base: int, entry: str, now: float, moved: list[str]
) -> DecideOp[str]:
    """Decide what becomes of an entry that is due; appends the entry that follows it."""
    name = keys.schedule_in_index(entry)
    own, what = keys.schedule(name), keys.schedule_task(name)
    items = (yield (own, what, entry)).items
    schedule = decode_schedule(items[own])
    if items[entry] is None:
        return Decision(outcome="")  # another client was quicker
    if schedule is None or schedule.due != entry:
        other = "" if schedule is None else schedule.due
        stands = bool(other) and (yield (other,)).items[other] is not None
        return rules.tidy(entry, name, schedule, stands=stands)
    if keys.due_at(entry) > now:
        return Decision(outcome="")
    task = decode_spec(items[what])
    if task is None or schedule.run is None:
        raise StoreDamaged(f"{what} is missing; drop the schedule, and add it again")
    try:
        found = due_runs(schedule, schedule.run, now)
    except BadInput as error:
        return rules.delay(name, schedule, str(error), now)
    if found.following is not None:
        moved.append(keys.due_schedule(found.following, name))
    reader = TaskReader(runner, base)
    return (
        yield from reader.decide(
            lambda facts: rules.publish(TaskChanges(facts, now), name, schedule, task, found)
        )
    )


def _postponing(entry: str, name: str, now: float) -> DecideOp[str]:
    if (yield (entry,)).items[entry] is None:
        return Decision(outcome="")
    return rules.postpone(entry, name, now)


def due_runs(schedule: Schedule, first: float, now: float) -> DueRuns:
    """What to publish of the runs from ``first`` on until now, by what is to become of them."""
    found = timing.missed(schedule, first, now) or [first]
    if schedule.missed == "all":
        kept = found[-timing.MISSED_MOST :]
        following = timing.following(schedule, kept[0])
        return DueRuns(run=kept[0], following=following, lost=len(found) - len(kept))
    last, following = found[-1], timing.following(schedule, max(found[-1], now))
    if schedule.missed == "none" and now - last > timing.GRACE:
        return DueRuns(run=None, following=following, lost=len(found))
    return DueRuns(run=last, following=following, lost=len(found) - 1)
