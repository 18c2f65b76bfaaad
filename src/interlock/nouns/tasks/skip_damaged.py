"""Claiming the next task where something cannot be read.

Choosing from a window stops at a task that does not read as one.  Then those that are ready are
tried one after the other, each by its name, and what cannot be read is passed over.  It stays where
it is, since only a copy of the store can mend it, and doctor names it.  That is slower, but
nobody's work stops.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from interlock.core import keys
from interlock.core.validate import ALL_ABILITIES
from interlock.drivers import Op
from interlock.errors import Lapsed, StoreDamaged
from interlock.nouns.tasks import decode
from interlock.nouns.tasks import task as core
from interlock.nouns.tasks.housekeeping import TaskMaintenance
from interlock.runtime.decode import readable
from interlock.runtime.gather import every
from interlock.runtime.identity import Identity
from interlock.runtime.runner import Runner
from interlock.runtime.steps import NextChanges, OpenWatch, Read
from interlock.store import Item

ClaimByName = Callable[[Identity, str, float | None], Op[core.ClaimOutcome]]

TRIED = 1000
"""Places of each set of requirements that are looked at."""
RECLAIMED_AT_ONCE = 16
"""What is stuck, so many at once."""
_NAP = 1.0


class SkipDamaged:
    """The way around, as a generator for a driver."""

    def __init__(self, runner: Runner, claim: ClaimByName) -> None:
        self._runner = runner
        self._claim = claim
        self._upkeep = TaskMaintenance(runner)

    def next(
        self, identity: Identity, can: Collection[str], *, ttl: float | None, wait: float
    ) -> Op[core.ClaimOutcome]:
        """Claim the best task that can be read, or (``wait``) stand by until there is one."""
        ends = self._runner.clock.monotonic() + wait
        watch = yield OpenWatch(keys.WAKE_READY, (yield Read(keys.BASE)).revision)
        try:
            while True:
                outcome = yield from self._best(identity, frozenset(can), ttl)
                left = ends - self._runner.clock.monotonic()
                if isinstance(outcome, core.Claimed) or left <= 0:
                    return outcome
                yield from _insist(identity)
                yield NextChanges(watch, min(left, self._runner.capabilities.allow(_NAP)))
        finally:
            watch.close()

    def _best(
        self, identity: Identity, able: frozenset[str], ttl: float | None
    ) -> Op[core.ClaimOutcome]:
        """Before saying that there is none, see what is stuck."""
        for last in (False, True):
            for place in (yield from _places(able)):
                outcome = yield from self._sound(identity, keys.task_in_index(place.key), ttl)
                if isinstance(outcome, core.Claimed):
                    return outcome
            if last or not (yield from self._mended(identity)):
                break
        return core.NoTask(
            reason="no task that is ready is one that you can do, and something cannot be read:"
            " see 'interlock doctor'"
        )

    def _sound(
        self, identity: Identity, task: str, ttl: float | None
    ) -> Op[core.ClaimOutcome | None]:
        """Claim a task that can be read; nothing is begun, and owed, with another."""
        snapshot = yield Read(keys.data(task), keys.status(task), keys.owner(task))
        try:
            for item in snapshot.items.values():
                if item is not None:
                    decode.examine(item)
            return (yield from self._claim(identity, task, ttl))
        except StoreDamaged:
            return None

    def _mended(self, identity: Identity) -> Op[bool]:
        kept = yield from self._upkeep.run(identity.actor, RECLAIMED_AT_ONCE)
        return kept.reclaimed + kept.moved > 0


def _places(able: frozenset[str]) -> Op[list[Item]]:
    """Those that are ready and that we can do, best first."""
    found = []
    for set_ in (yield from _sets(able)):
        found += yield from every(keys.ready(set_), most=TRIED)
    return sorted(found, key=lambda item: keys.ready_order(item.key))


def _sets(able: frozenset[str]) -> Op[list[str]]:
    """The sets of requirements that we can do; which one that is must be readable."""
    items = (yield from every(keys.SETS)) if able else []
    known = {item.key: readable(decode.names, item) for item in items}
    fitting = [
        key.removeprefix(keys.SETS)
        for key, names in known.items()
        if names is not None and (ALL_ABILITIES in able or able.issuperset(names))
    ]
    return [keys.NO_REQUIREMENTS, *fitting]


def _insist(identity: Identity) -> Op[None]:
    """Nobody waits for work whose session is over."""
    own = keys.live(identity.actor.session)
    if identity.joined and (yield Read(own))[own] is None:
        raise Lapsed(f"session {identity.actor.session} expired; join again")
