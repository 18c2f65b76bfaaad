"""Claims the next task of a store with damaged items.

The fast path (``claim_service.py``) stops at a damaged item.  Then the ready tasks are tried one
after the other, each by its name, and damaged ones are passed over.  They stay where they are,
since only a copy of the store can repair them, and ``doctor`` names them.  This is slower, but the
work goes on.
"""

from __future__ import annotations

from collections.abc import Callable

from interlock.core import keys
from interlock.errors import StoreDamaged
from interlock.nouns.tasks import task as task_types
from interlock.nouns.tasks import task_outcomes
from interlock.nouns.tasks.claim_service import require_session
from interlock.nouns.tasks.housekeeping import TaskMaintenance
from interlock.nouns.tasks.ready_index import Abilities, all_abilities
from interlock.nouns.tasks.task_reader import decode_names, examine
from interlock.runtime.identity import Identity
from interlock.runtime.reads import every, readable
from interlock.runtime.runner import Runner
from interlock.steps import NextChanges, Op, OpenWatch, Read

Claim = Callable[[str], Op[task_outcomes.ClaimOutcome]]
"""Claims one task by its name."""

TRIED = 1000
"""The most ready tasks of each set of requirements that are tried."""
RECLAIMED_AT_ONCE = 16
"""The bound of the maintenance that comes before the answer ``NoTask``."""
_NAP = 1.0


def claim_readable(
    runner: Runner, identity: Identity, able: Abilities, claim: Claim, wait: float
) -> Op[task_outcomes.ClaimOutcome]:
    """Claim the best readable task; with ``wait``, wait until there is one."""
    ends = runner.clock.monotonic() + wait
    watch = yield OpenWatch(keys.WAKE_READY, (yield Read(keys.BASE)).revision)
    try:
        while True:
            outcome = yield from _claim_best(runner, identity, able, claim)
            left = ends - runner.clock.monotonic()
            if isinstance(outcome, task_outcomes.Claimed) or left <= 0:
                return outcome
            yield from require_session(identity)
            yield NextChanges(watch, min(left, runner.capabilities.allow(_NAP)))
    finally:
        watch.close()


def _claim_best(
    runner: Runner, identity: Identity, able: Abilities, claim: Claim
) -> Op[task_outcomes.ClaimOutcome]:
    """Claim the best readable task; maintenance comes before the answer ``NoTask``."""
    for last in (False, True):
        if (claimed := (yield from claim_first(able, claim))) is not None:
            return claimed
        if not last:
            done = yield from TaskMaintenance(runner).run(identity.actor, RECLAIMED_AT_ONCE)
            if not done.reclaimed + done.moved:
                break
    return task_outcomes.NoTask(
        reason="no task that is ready is one that you can do, and something cannot be read:"
        " see 'interlock doctor'"
    )


def claim_first(able: Abilities, claim: Claim) -> Op[task_outcomes.Claimed | None]:
    """Claim the first readable task of all that are ready; None if there is none."""
    for task in (yield from _ready_tasks((yield from all_abilities(able)))):
        outcome = yield from _claim_if_readable(task, claim)
        if isinstance(outcome, task_outcomes.Claimed):
            return outcome
    return None


def _claim_if_readable(task: str, claim: Claim) -> Op[task_outcomes.ClaimOutcome | None]:
    """Claim a task if all its items can be read; no claim of a damaged one is begun."""
    snapshot = yield Read(keys.data(task), keys.status(task), keys.owner(task))
    try:
        for item in snapshot.items.values():
            if item is not None:
                examine(item)
        return (yield from claim(task))
    except StoreDamaged:
        return None


def _ready_tasks(able: frozenset[str]) -> Op[list[str]]:
    """The ready tasks that we can do, as far as their sets of requirements are readable."""
    sets = [keys.NO_REQUIREMENTS] if task_types.can_do(able, ()) else []
    for item in (yield from every(keys.SETS)) if able else ():
        names = readable(decode_names, item)
        if names is not None and task_types.can_do(able, names):
            sets.append(item.key.removeprefix(keys.SETS))
    places = []
    for set_ in sets:
        places += yield from every(keys.ready(set_), most=TRIED)
    places.sort(key=lambda item: keys.ready_order(item.key))
    return [keys.task_in_index(item.key) for item in places]
