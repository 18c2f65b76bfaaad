"""Housekeeping of schedules: entries that are missing, and times that a wrong clock wrote.

A schedule that is due is published with the due tasks (``nouns/tasks/housekeeping.py``).  This part
of ``maintain`` compares each schedule with its entry in the ``due`` index.
"""

from __future__ import annotations

from functools import partial

from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.errors import BadInput
from interlock.nouns.schedules import rules, timing
from interlock.nouns.schedules import schedule as core
from interlock.nouns.schedules.schedule import Schedule
from interlock.nouns.schedules.service import decode_schedule
from interlock.runtime.attempt import DecideOp
from interlock.runtime.housekeeping import HousekeepingPart
from interlock.runtime.reads import every, looked_up, readable
from interlock.runtime.retention_clock import later_time
from interlock.runtime.runner import Decided
from interlock.steps import Op, Read
from interlock.store import Range

ALL_READ_EVERY = 600.0
"""Seconds in which one pass reads all schedules, where they are more than a page."""


class ScheduleHousekeepingPart(HousekeepingPart):
    """The part of a pass of ``maintain`` that is about schedules."""

    def reclaim(self) -> Op[None]:
        """Put missing entries back, and correct the times that a wrong clock wrote.

        A pass reads a page of schedules; where there are more, all of them once in a while.
        """
        work, page = self.work, Range(keys.SCHEDULES)
        items = (yield Read(page)).ranges[page]
        if not items:
            return
        now = yield from later_time(work.runner)
        if len(items) == page.limit and (yield from self._is_time_for_all()):
            items = yield from every(keys.SCHEDULES)
        found = {item.key: readable(decode_schedule, item) for item in items}
        active = {key: each for key, each in found.items() if each and each.state == "active"}
        entries = yield from looked_up(each.due for each in active.values())
        wrong = [
            keys.schedule_of(key)
            for key, each in active.items()
            if entries[each.due] is None or each.moved > now + core.AHEAD
        ]
        for name in wrong[: work.bound]:
            done: Decided[bool] = yield from work.runner.change(
                partial(_repairing, name, now), work.actor
            )
            work.moved += done.outcome
        work.left += len(wrong[work.bound :])

    def _is_time_for_all(self) -> Op[bool]:
        """Whether no pass has read all schedules for a while; then this one does."""

        def deciding() -> DecideOp[bool]:
            if (yield (keys.SCHEDULES_READ,)).items[keys.SCHEDULES_READ] is not None:
                return Decision(outcome=False)
            mark = Write(keys.SCHEDULES_READ, {"for": "schedules"}, ALL_READ_EVERY)
            return Decision(outcome=True, puts=(mark,), quiet=True)

        done: Decided[bool] = yield from self.work.runner.change(deciding, self.work.actor)
        return done.outcome


def _repairing(name: str, now: float) -> DecideOp[bool]:
    own = keys.schedule(name)
    schedule = decode_schedule((yield (own,)).items[own])
    if schedule is None or not schedule.due:
        return Decision(outcome=False)
    stands = (yield (schedule.due,)).items[schedule.due] is not None
    return rules.repair(name, schedule, _following(schedule, now), stands=stands, now=now)


def _following(schedule: Schedule, now: float) -> float | None:
    try:
        return timing.following(schedule, now)
    except BadInput:  # this host does not know the time zone: a later pass of another one does it
        return schedule.run
