"""``maintain --guards``: looks for gates at the pace of each guard, and keeps house beside it.

A pass over the whole store comes first, then once in a minute, and when a task or a schedule is
due; if the store is the home of a swarm, its requests are tended then, too.  The part of the pass
that is about gates comes every five seconds: a grant that expires is no commit, and so it checks no
gate.  In a large store both come more rarely, so that they take a tenth of the time at most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from interlock.core import keys, validate
from interlock.core.validate import FOREVER
from interlock.nouns.guards.housekeeping import GuardHousekeepingPart
from interlock.nouns.guards.poller import OutsidePoller
from interlock.nouns.requests.housekeeping import after_pass
from interlock.runtime.housekeeping import HousekeepingPass, Maintained
from interlock.steps import Op, Read
from interlock.store import Range

if TYPE_CHECKING:
    from interlock.client_context import Context

EVERYTHING = 60.0
"""Seconds between two passes over the whole store."""
GATES = 5.0
"""Seconds between two passes over the gates."""
SHARE = 9
"""A pause is at least so many times as long as the pass before it."""


class GuardMaintenance:
    """Maintains a store for a while; ``outcome`` has what it has done so far."""

    def __init__(self, context: Context, timeout: float | str | None = None) -> None:
        self.poller = OutsidePoller(context)
        self._seconds = FOREVER if timeout is None else validate.duration(timeout, "time of --for")
        self._context = context
        self._clock = context.runner.clock
        self._actor = context.identity.actor
        self._pass = HousekeepingPass(context.runner, context.settings)
        self._gates = GuardHousekeepingPart(self._pass)
        self._total = Maintained()
        self._next_pass = self._next_gates = float("-inf")

    @property
    def outcome(self) -> Maintained:
        """All that was done until now."""
        looked = self.poller.report
        return replace(
            self._total,
            looks=looked.looks,
            changed=looked.changed,
            not_allowed=looked.not_allowed,
        )

    def run(self) -> Op[Maintained]:
        """Go on until the time is up; one round if there is none."""
        ends = self._clock.monotonic() + self._seconds
        if not self._seconds:
            yield from self.keep_house()
            yield from self.poller.round()
        else:
            self.poller.also = self.keep_house
            yield from self.poller.run(ends)
        return self.outcome

    def keep_house(self) -> Op[None]:
        """Do what is due: a pass over the whole store, or over the gates."""
        began = self._clock.monotonic()
        if began >= self._next_pass:
            yield from self._whole_pass()
            due = yield from self._until_due()
            took = self._clock.monotonic() - began
            self._next_pass = began + took + max(min(EVERYTHING, due), SHARE * took)
        elif began >= self._next_gates:
            before = self._pass.moved
            yield from self._gates.reclaim()
            self._total = replace(self._total, moved=self._total.moved + self._pass.moved - before)
        else:
            return
        took = self._clock.monotonic() - began
        self._next_gates = began + took + max(GATES, SHARE * took)

    def _until_due(self) -> Op[float]:
        """Seconds until the first task or schedule is due, which no commit reports."""
        head = Range(keys.DUE, limit=1)
        found = (yield Read(head)).ranges[head]
        return max(keys.due_at(found[0].key) - self._clock.wall(), 0.0) if found else EVERYTHING

    def _whole_pass(self) -> Op[None]:
        done = yield from after_pass(self._context, (yield from self._pass.run(self._actor)))
        total = self._total
        self._total = replace(
            done,
            reclaimed=total.reclaimed + done.reclaimed,
            sealed=total.sealed + done.sealed,
            moved=total.moved + done.moved,
            forgotten=total.forgotten + done.forgotten,
            forgotten_tasks=total.forgotten_tasks + done.forgotten_tasks,
        )
