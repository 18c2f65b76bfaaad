"""Claims the next task of a store with damaged items.

The fast path (``claim_service.py``) stops at a damaged item.  Then the ready tasks are tried one
after the other, each by its name, and damaged ones are passed over.  They stay where they are,
since only a copy of the store can repair them, and ``doctor`` names them.  This is slower, but the
work goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from interlock.core import keys
from interlock.core.validate import ALL_ABILITIES
from interlock.drivers import NextChanges, Op, OpenWatch, Read
from interlock.errors import StoreDamaged
from interlock.nouns.tasks import decode
from interlock.nouns.tasks import task as core
from interlock.nouns.tasks.claim_wait import require_session
from interlock.nouns.tasks.housekeeping import TaskMaintenance
from interlock.runtime.identity import Identity
from interlock.runtime.reads import every, readable
from interlock.runtime.runner import Runner
from interlock.store import Item

ClaimByName = Callable[[Identity, str, float | None], Op[core.ClaimOutcome]]

TRIED = 1000
"""The most ready tasks of each set of requirements that are tried."""
RECLAIMED_AT_ONCE = 16
"""The bound of the maintenance that comes before the answer ``NoTask``."""
_NAP = 1.0


class SkipDamaged:
    """Claims of the next readable task, as generators for a driver."""

    def __init__(self, runner: Runner, claim: ClaimByName) -> None:
        self._runner = runner
        self._claim = claim
        self._maintenance = TaskMaintenance(runner)

    def next(
        self, identity: Identity, can: Collection[str], *, ttl: float | None, wait: float
    ) -> Op[core.ClaimOutcome]:
        """Claim the best readable task; with ``wait``, wait until there is one."""
        ends = self._runner.clock.monotonic() + wait
        watch = yield OpenWatch(keys.WAKE_READY, (yield Read(keys.BASE)).revision)
        try:
            while True:
                outcome = yield from self._claim_best(identity, frozenset(can), ttl)
                left = ends - self._runner.clock.monotonic()
                if isinstance(outcome, core.Claimed) or left <= 0:
                    return outcome
                yield from require_session(identity)
                yield NextChanges(watch, min(left, self._runner.capabilities.allow(_NAP)))
        finally:
            watch.close()

    def _claim_best(
        self, identity: Identity, able: frozenset[str], ttl: float | None
    ) -> Op[core.ClaimOutcome]:
        """Claim the best readable task; maintenance comes before the answer ``NoTask``."""
        for last in (False, True):
            for place in (yield from _ready_entries(able)):
                outcome = yield from self._claim_readable(
                    identity, keys.task_in_index(place.key), ttl
                )
                if isinstance(outcome, core.Claimed):
                    return outcome
            if last or not (yield from self._maintained(identity)):
                break
        return core.NoTask(
            reason="no task that is ready is one that you can do, and something cannot be read:"
            " see 'interlock doctor'"
        )

    def _claim_readable(
        self, identity: Identity, task: str, ttl: float | None
    ) -> Op[core.ClaimOutcome | None]:
        """Claim a task if all its items can be read; no claim of a damaged one is begun."""
        snapshot = yield Read(keys.data(task), keys.status(task), keys.owner(task))
        try:
            for item in snapshot.items.values():
                if item is not None:
                    decode.examine(item)
            return (yield from self._claim(identity, task, ttl))
        except StoreDamaged:
            return None

    def _maintained(self, identity: Identity) -> Op[bool]:
        kept = yield from self._maintenance.run(identity.actor, RECLAIMED_AT_ONCE)
        return kept.reclaimed + kept.moved > 0


def _ready_entries(able: frozenset[str]) -> Op[list[Item]]:
    """The ready tasks that we can do, best first."""
    found = []
    for set_ in (yield from _sets(able)):
        found += yield from every(keys.ready(set_), most=TRIED)
    return sorted(found, key=lambda item: keys.ready_order(item.key))


def _sets(able: frozenset[str]) -> Op[list[str]]:
    """The readable sets of requirements that we can do."""
    items = (yield from every(keys.SETS)) if able else []
    known = {item.key: readable(decode.names, item) for item in items}
    fitting = [
        key.removeprefix(keys.SETS)
        for key, names in known.items()
        if names is not None and (ALL_ABILITIES in able or able.issuperset(names))
    ]
    return [keys.NO_REQUIREMENTS, *fitting]
