"""Housekeeping of guards: observations that are too old are deleted."""

from __future__ import annotations

from interlock.core import keys
from interlock.runtime.housekeeping import HousekeepingPart
from interlock.runtime.reads import every, looked_up
from interlock.steps import Op
from interlock.store import Item


class GuardHousekeepingPart(HousekeepingPart):
    """The part of a pass that is about guards."""

    def expired(self, _now: float) -> Op[list[Item]]:
        """Observations that the engine says are older than their guards allow."""
        items = yield from every(keys.OBSERVED)
        alive = yield from looked_up(keys.observed_live(item.key) for item in items)
        return [item for item in items if alive[keys.observed_live(item.key)] is None]
