"""Housekeeping of swarms: decisions about shared values whose time is up, and old conflicts.

What needs the bus is done by the link, and by ``maintain`` after its pass.
"""

from __future__ import annotations

from interlock.core import keys
from interlock.nouns.swarms.shared import decode_conflict, decode_undecided
from interlock.nouns.swarms.shared_service import settle_ended
from interlock.runtime.housekeeping import HousekeepingPart
from interlock.runtime.reads import every, readable
from interlock.steps import Op, Read
from interlock.store import Item

CONFLICT_KEPT = 90 * 86400.0
"""Seconds that a conflict is kept, as the audit is; longer while a person has not decided."""


class SwarmHousekeepingPart(HousekeepingPart):
    """The part of a pass of ``maintain`` that is about swarms."""

    def reclaim(self) -> Op[None]:
        """End decisions about shared values, and carry out those that people made."""
        self.work.moved += yield from settle_ended(self.work.runner, self.work.actor)

    def expired(self, now: float) -> Op[list[Item]]:
        """Conflicts that were kept for long enough."""
        if (yield Read(keys.OWN_SWARM))[keys.OWN_SWARM] is None:
            return []
        left = [readable(decode_undecided, i) for i in (yield from every(keys.UNDECIDED))]
        undecided = {each.decision for each in left if each is not None}
        old = []
        for item in (yield from every(keys.CONFLICTS, most=self.work.bound)):
            found = readable(decode_conflict, item)
            kept = found is None or found.at + CONFLICT_KEPT >= now
            if found is not None and not kept and found.decision not in undecided:
                old.append(item)
        return old
